#include "http/endpoint.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace kvd::http {

Result<boost::asio::ip::tcp::endpoint> parse_endpoint(const std::string& text) {
  constexpr const char* kShape = "an HTTP address is HOST:PORT with a number as host, as in 127.0.0.1:7071";
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return fail(Code::kInvalid, kShape);
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error || parsed.ec != std::errc{} || parsed.ptr != end) return fail(Code::kInvalid, kShape);
  return boost::asio::ip::tcp::endpoint(address, port);
}

}  // namespace kvd::http
