#include "http/server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <list>
#include <optional>
#include <system_error>
#include <thread>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "http/endpoint.h"

namespace kvd::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

constexpr std::size_t kConnectionsMax = 64;
constexpr std::uint32_t kHeaderBytesMax = 8192;
constexpr int kRequestsMax = 100;
constexpr auto kRequestLimit = std::chrono::seconds(5);
constexpr auto kIdleLimit = std::chrono::seconds(60);
constexpr auto kAcceptRest = std::chrono::milliseconds(100);
constexpr int kNice = 10;

class HttpConnection;
using OpenConnections = std::list<HttpConnection*>;  // who has waited for its peer for longest comes first

// One connection. Owned by the handlers of its pending operations: when none is pending any more, it is gone.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, const HttpServer::Handler& handler, OpenConnections& open)
      : stream_(std::move(socket)), handler_(handler), open_(open), place_(open.insert(open.end(), this)) {}
  ~HttpConnection() {
    if (listed_) open_.erase(place_);
  }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void read(std::chrono::seconds limit) {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(0);
    stream_.expires_after(limit);
    beast::http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, std::size_t) { self->on_read(error); });
  }

  // Ends it, whatever it is doing; it leaves the list at once.
  void cut() {
    open_.erase(place_);
    listed_ = false;
    stream_.close();
  }

 private:
  using Message = beast::http::response<beast::http::string_body>;

  void on_read(beast::error_code error) {
    if (!listed_) return;
    if (error == beast::http::error::end_of_stream || error == beast::error::timeout) return close();
    if (error == asio::error::operation_aborted || error == asio::error::connection_reset) return;
    if (error) return write({.status = 400, .body = "bad request\n"}, false, false);
    const auto& request = parser_->get();
    const bool head = request.method() == beast::http::verb::head;
    if (!head && request.method() != beast::http::verb::get) {
      return write({.status = 405, .body = "only GET and HEAD are answered here\n"}, false, false);
    }
    const std::string_view target(request.target().data(), request.target().size());
    open_.splice(open_.end(), open_, place_);
    const bool keep = request.keep_alive() && ++requests_ < kRequestsMax;
    write(handler_(target.substr(0, target.find('?'))), keep, head);
  }

  void write(Response response, bool keep, bool head) {
    reply_.emplace();
    reply_->result(static_cast<unsigned>(response.status));
    reply_->set(beast::http::field::server, "kvdepot");
    reply_->set(beast::http::field::content_type, response.content_type);
    reply_->keep_alive(keep);
    const std::size_t bytes = response.body.size();
    if (!head) reply_->body() = std::move(response.body);
    reply_->content_length(bytes);
    serializer_.emplace(*reply_);
    stream_.expires_after(kRequestLimit);
    const auto done = [self = shared_from_this(), keep](beast::error_code error, std::size_t) {
      if (error || !self->listed_) return;
      if (!keep) return self->close();
      self->read(kIdleLimit);
    };
    if (head) {
      beast::http::async_write_header(stream_, *serializer_, done);
    } else {
      beast::http::async_write(stream_, *serializer_, done);
    }
  }

  void close() {
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  beast::tcp_stream stream_;
  const HttpServer::Handler& handler_;
  OpenConnections& open_;
  OpenConnections::iterator place_;
  bool listed_ = true;
  beast::flat_buffer buffer_{kHeaderBytesMax};
  std::optional<beast::http::request_parser<beast::http::empty_body>> parser_;
  std::optional<Message> reply_;
  std::optional<beast::http::response_serializer<beast::http::string_body>> serializer_;
  int requests_ = 0;
};

class BeastServer final : public HttpServer {
 public:
  explicit BeastServer(Handler handler) : handler_(std::move(handler)), acceptor_(context_), rest_(context_) {}

  ~BeastServer() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status open(const tcp::endpoint& endpoint) {
    beast::error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(static_cast<int>(kConnectionsMax), error);
    if (error == asio::error::address_in_use) return fail(Code::kBusy, "the HTTP address is in use", error.value());
    if (error) return fail(Code::kIo, "listen for HTTP", error.value());
    endpoint_ = acceptor_.local_endpoint(error);
    accept();
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& failed) {
      return fail(Code::kNoSpace, "start the HTTP thread", failed.code().value());
    }
    return {};
  }

  [[nodiscard]] std::string address() const override {
    const std::string host = endpoint_.address().to_string();
    return (endpoint_.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint_.port());
  }

 private:
  // Pages are long, and whoever asks for many of them must not take a core from those whose bytes are waited for.
  void serve() {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), ::getpriority(PRIO_PROCESS, 0) + kNice);
    context_.run();
  }

  void accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (error) {  // no descriptors left: trying again at once would only spin
        rest_.expires_after(kAcceptRest);
        rest_.async_wait([this](beast::error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (open_.size() >= kConnectionsMax) open_.front()->cut();
      std::make_shared<HttpConnection>(std::move(socket), handler_, open_)->read(kRequestLimit);
      accept();
    });
  }

  Handler handler_;
  OpenConnections open_;  // declared before the context, whose destruction destroys connections
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer rest_;
  tcp::endpoint endpoint_;
  std::thread thread_;
};

}  // namespace

Status HttpServer::check(const std::string& address) {
  const Result<tcp::endpoint> endpoint = parse_endpoint(address);
  if (!endpoint) return fail(endpoint.error());
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, Handler handler) {
  const Result<tcp::endpoint> endpoint = parse_endpoint(address);
  if (!endpoint) return fail(endpoint.error());
  if (!endpoint->address().is_loopback()) {
    return fail(Code::kInvalid, "other machines could reach this HTTP address and there is no authentication yet");
  }
  auto server = std::make_unique<BeastServer>(std::move(handler));
  if (const Status opened = server->open(*endpoint); !opened) return fail(opened.error());
  return server;
}

}  // namespace kvd::http
