#include "http/client.h"

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "http/endpoint.h"

namespace kvd::http {
namespace {

namespace beast = boost::beast;

constexpr std::size_t kBufferBytesMax = 64 << 10;
constexpr const char* kTooLong = "the answer over HTTP is too long";

Error as_error(const beast::error_code& error) {
  if (error == beast::error::timeout) return {.code = Code::kTimeout, .what = "no answer in time"};
  const bool system = error.category() == boost::system::system_category();
  return {.code = Code::kIo, .sys_errno = system ? error.value() : 0, .what = "no answer over HTTP"};
}

}  // namespace

Result<Response> get(const std::string& address, std::string_view path, Duration limit) {
  const auto endpoint = parse_endpoint(address);
  if (!endpoint) return fail(endpoint.error());
  boost::asio::io_context context(1);
  beast::tcp_stream stream(context);
  stream.expires_after(limit);  // of all that follows
  beast::error_code error;
  const auto on_end = [&error](const beast::error_code& result, auto&&...) { error = result; };
  const auto run = [&] {
    context.restart();
    context.run();
    return !error;
  };

  stream.async_connect(*endpoint, on_end);
  if (!run()) return fail(as_error(error));
  beast::http::request<beast::http::empty_body> request(beast::http::verb::get, {path.data(), path.size()}, 11);
  request.set(beast::http::field::host, address);
  request.keep_alive(false);
  beast::http::async_write(stream, request, on_end);
  if (!run()) return fail(as_error(error));
  beast::flat_buffer buffer(kBufferBytesMax);  // a header, or what surrounds a chunk, is no longer
  beast::http::response_parser<beast::http::string_body> parser;
  beast::http::async_read_header(stream, buffer, parser, on_end);
  if (!run()) return fail(as_error(error));
  if (parser.content_length().value_or(0) > kAnswerBytesMax) return fail(Code::kIo, kTooLong);
  while (!parser.is_done()) {
    beast::http::async_read_some(stream, buffer, parser, on_end);
    if (!run()) return fail(as_error(error));
    if (parser.get().body().size() > kAnswerBytesMax) return fail(Code::kIo, kTooLong);
  }

  auto message = parser.release();
  Response response;
  response.status = static_cast<int>(message.result_int());
  const auto type = message[beast::http::field::content_type];
  response.content_type.assign(type.data(), type.size());
  response.body = std::move(message.body());
  return response;
}

}  // namespace kvd::http
