#include "text_arm.h"

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "socket.h"

namespace kvd::bench {
namespace {

struct Redis {
  static std::string put(const std::string& key, std::size_t bytes) {
    return "*3\r\n$3\r\nSET\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n$" + std::to_string(bytes) +
           "\r\n";
  }
  static std::string get(const std::string& key) {
    return "*2\r\n$3\r\nGET\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
  }
  static constexpr std::string_view kStored = "+OK";
  static constexpr std::string_view kValue = "$";  // then its length
};

struct Memcached {
  static std::string put(const std::string& key, std::size_t bytes) {
    return "ms " + key + " " + std::to_string(bytes) + "\r\n";
  }
  static std::string get(const std::string& key) { return "mg " + key + " v\r\n"; }
  static constexpr std::string_view kStored = "HD";
  static constexpr std::string_view kValue = "VA ";
};

template <class Protocol>
class TextArm final : public Arm {
 public:
  explicit TextArm(std::uint16_t port) : socket_(Socket::connect(port)), reader_(socket_) {}

  void use(Records& records) override { records_ = &records; }

  void send(What what, const Request& request) override {
    heads_.clear();
    pieces_.clear();
    static constexpr std::string_view kEnd = "\r\n";
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i)
      heads_.push_back(what == What::kPut ? Protocol::put(key(i), records_->bytes()) : Protocol::get(key(i)));
    for (std::uint32_t i = 0; i < request.count; ++i) {
      pieces_.push_back({heads_[i].data(), heads_[i].size()});
      if (what == What::kGet) continue;
      const auto body = records_->source(request.first + i);
      pieces_.push_back({body.data(), body.size()});
      pieces_.push_back({const_cast<char*>(kEnd.data()), kEnd.size()});  // sendmsg only reads
    }
    socket_.send_all(pieces_);
  }

  void finish(What what, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) {
      if (what == What::kPut) {
        const std::string_view answer = reader_.line();
        if (answer != Protocol::kStored) throw Error("a value was not stored: " + std::string(answer));
      } else {
        take_value(i);
      }
    }
  }

 private:
  [[nodiscard]] static std::string key(std::uint32_t i) { return "bench-net-" + std::to_string(i); }

  void take_value(std::uint32_t i) {
    const std::string_view answer = reader_.line();
    std::size_t bytes = 0;
    if (answer.starts_with(Protocol::kValue))
      std::from_chars(answer.data() + Protocol::kValue.size(), answer.data() + answer.size(), bytes);
    if (bytes != records_->bytes()) throw Error("a value is missing: " + std::string(answer));
    const auto place = records_->target(i);
    hash_.restart();
    reader_.read(place, hash_);
    if (!reader_.line().empty()) throw Error("a value is longer than it should be");
    if (!records_->matches(i, hash_)) throw Error("a value is not what was put");
  }

  Socket socket_;
  LineReader reader_;
  ValueHash hash_;
  Records* records_ = nullptr;
  std::vector<std::string> heads_;
  std::vector<iovec> pieces_;
};

}  // namespace

std::unique_ptr<Arm> open_redis(std::uint16_t port) { return std::make_unique<TextArm<Redis>>(port); }
std::unique_ptr<Arm> open_memcached(std::uint16_t port) { return std::make_unique<TextArm<Memcached>>(port); }

}  // namespace kvd::bench
