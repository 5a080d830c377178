// hiredis_driver: Redis by hiredis, its requests pipelined, as an arm of the net suite: hiredis_driver PORT
//
// Its end of the connection has Reno, as the other clients' have. A value is verified where hiredis has put it, without
// the copy into the destination that an engine would need.
#include <cstdlib>
#include <memory>
#include <string>

#include <hiredis/hiredis.h>

#include "arm.h"
#include "socket.h"

namespace kvd::bench {
namespace {

struct Free {
  void operator()(redisContext* context) const { redisFree(context); }
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

class HiredisArm final : public Arm {
 public:
  explicit HiredisArm(int port) : context_(redisConnect("127.0.0.1", port)) {
    if (context_ == nullptr || context_->err != 0) throw Error("hiredis can't connect");
    use_reno(context_->fd);
  }

  void use(Records& records) override { records_ = &records; }

  void send(What what, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) {
      const std::string key = "bench-net-" + std::to_string(i);
      const auto body = records_->source(i);
      const int queued = what == What::kGet ? redisAppendCommand(context_.get(), "GET %b", key.data(), key.size())
                                            : redisAppendCommand(context_.get(), "SET %b %b", key.data(), key.size(),
                                                                 body.data(), body.size());
      if (queued != REDIS_OK) throw Error("hiredis does not take a request");
    }
    for (int done = 0; done == 0;) {
      if (redisBufferWrite(context_.get(), &done) != REDIS_OK) throw Error(context_->errstr);
    }
  }

  void finish(What what, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) {
      void* answer = nullptr;
      if (redisGetReply(context_.get(), &answer) != REDIS_OK) throw Error(context_->errstr);
      const std::unique_ptr<redisReply, Free> reply(static_cast<redisReply*>(answer));
      if (what == What::kPut) {
        if (reply->type != REDIS_REPLY_STATUS) throw Error("a value was not stored");
        continue;
      }
      if (reply->type != REDIS_REPLY_STRING) throw Error("a value is missing");
      if (!records_->matches(i, std::as_bytes(std::span(reply->str, reply->len))))
        throw Error("a value is not what was put");
    }
  }

  [[nodiscard]] bool fills_targets() const noexcept override { return false; }

 private:
  std::unique_ptr<redisContext, Free> context_;
  Records* records_ = nullptr;
};

}  // namespace
}  // namespace kvd::bench

int main(int argc, char** argv) {
  using kvd::bench::HiredisArm;
  return kvd::bench::obey_made([&] { return std::make_unique<HiredisArm>(std::atoi(argc > 1 ? argv[1] : "0")); });
}
