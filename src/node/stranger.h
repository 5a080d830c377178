// Stranger: a session's place among the strangers (Strangers), for as long as its client is one, and how it gives way.
// Owned by its session, whose stream and loop it uses; one loop.
#pragma once

#include <functional>
#include <utility>

#include "base/result.h"
#include "io/stream.h"
#include "node/context.h"
#include "node/strangers.h"

namespace kvd::node {

class Stranger final : private Strangers::Guest {
 public:
  // `close` ends the session's connection, without destroying it.
  Stranger(NodeContext& context, std::function<void(const Error&)> close)
      : context_(context), close_(std::move(close)) {}

  // Whoever is at the other end of `stream`, which outlives this, needs a place. kBusy: there is none.
  Status take(const io::Stream& stream) {
    stream_ = &stream;
    place_ = context_.gate.take_stranger(*this);
    return place_ ? Status{} : Status(fail(Code::kBusy, "too many connections of strangers"));
  }
  // It is none any more.
  void release() { place_.release(); }
  // See Strangers::Place.
  void stay() noexcept { place_.stay(); }

 private:
  [[nodiscard]] bool silent() const override { return !stream_->heard(); }
  void give_way() override {
    place_.release();
    context_.counters.connections_silent.add();
    close_({Code::kUnavailable, 0, "it has not said who it is, and others wanted its place"});
  }

  NodeContext& context_;
  std::function<void(const Error&)> close_;
  const io::Stream* stream_ = nullptr;
  Strangers::Place place_;
};

}  // namespace kvd::node
