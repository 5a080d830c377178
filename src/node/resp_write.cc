// How a RESP session stores what SET and MSET brought: all parts first, then all heads in one turn of the loop. And how
// it removes.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "node/resp_session.h"

namespace kvd::node {
namespace {

// The write budget is spent, or the tenant's quota of flash is smaller than the value.
std::string why_not_stored(const Error& why) {
  if (why.code == Code::kBusy) return fmt::format("ERR {}: the value is not on flash", why.what);
  return "ERR the flash tier cannot take the value: it is not on flash";
}

}  // namespace

std::string RespSession::why_not_begun(const Error& why) {
  if (why.code == Code::kNoSpace) return fmt::format("ERR {}", why.what);
  return "OOM command not allowed when used memory > 'maxmemory'.";
}

void RespSession::store_all(Condition condition) {
  const auto& arguments = parser_.arguments();
  // Typed in one line, values are words like others.
  for (std::size_t i = 2; puts_.empty() && i < arguments.size() && refusal_.empty();
       i += single_ ? arguments.size() : 2) {
    if (arguments[i].taken != wire::RespParser::Taken::kKept) break;
    const std::string_view key = parser_.text(i - 1), value = parser_.text(i);
    if (key.size() > kRespKeyBytesMax) {
      refusal_ = "ERR the key is longer than 1024 bytes";
      break;
    }
    inline_puts_.push_back(std::make_shared<RespPut>(context_.node, keyspace_, key, value.size()));
    RespPut& put = *inline_puts_.back();
    if (const Status begun = put.begin(unfinished_, context_.ack); !begun) {
      refusal_ = why_not_begun(begun.error());
      break;
    }
    for (std::size_t at = 0; at < value.size();) {
      const MutableBytes place = put.place();
      const std::size_t n = std::min(place.size(), value.size() - at);
      std::memcpy(place.data(), value.data() + at, n);
      put.landed(n);
      at += n;
    }
  }
  for (auto& put : std::exchange(inline_puts_, {})) puts_.push_back(std::move(put));
  if (!refusal_.empty()) return answer_error(refusal_);
  writing_ = true;
  write_status_ = {};
  writes_left_ = puts_.size() + 1;  // one for this loop
  for (const auto& put : puts_) {
    put->store_parts(context_.ack, [self = self_, condition](const Status& status) {
      if (*self != nullptr) (*self)->parts_stored(condition, status);
    });
  }
  parts_stored(condition, {});
}

void RespSession::parts_stored(Condition condition, const Status& status) {
  if (!status && write_status_) write_status_ = status;
  if (--writes_left_ > 0) return;
  if (!write_status_) {
    answer_error(why_not_stored(write_status_.error()));
    return write_done();
  }
  // In the turn in which it is published: of two at once one is too late.
  if (condition != Condition::kAlways && keyspace_->present(puts_[0]->key()) != (condition == Condition::kPresent)) {
    answer_nil();
    return write_done();
  }
  writes_left_ = puts_.size() + 1;
  for (const auto& put : puts_) {
    context_.node.counters.resp_bytes_received.add(put->value_bytes());
    if (access_.use != nullptr) access_.use->bytes_received.add(put->value_bytes());
    put->publish(context_.ack, [self = self_](const Status& done) {
      if (*self != nullptr) (*self)->published(done);
    });
  }
  published({});
}

void RespSession::published(const Status& status) {
  if (!status && write_status_) write_status_ = status;
  if (--writes_left_ > 0) return;
  if (write_status_) {
    answer_simple("OK");
  } else {
    answer_error(why_not_stored(write_status_.error()));
  }
  write_done();
}

// Keys of a DEL.
void RespSession::remove_some() {
  while (!late_ && removing_at_ < removing_.size()) {
    removed_ += keyspace_->remove(removing_[removing_at_++]) ? 1 : 0;
    if (removing_at_ < removing_.size()) static_cast<void>(turn_is_over());
  }
  if (removing_at_ == removing_.size()) removed();
}

// Answered when a crash cannot bring them back.
void RespSession::removed() {
  removing_.clear();
  context_.node.store.await_removals([self = self_, removed = removed_](const Status& status) {
    if (*self == nullptr) return;
    if (status) {
      (*self)->answer_integer(removed);
    } else {
      (*self)->answer_error("ERR the flash tier is off: what it holds of the keys may come back with the next start");
    }
    (*self)->write_done();
  });
}

void RespSession::write_done() {
  writing_ = false;
  forget_puts();
  schedule();
}

}  // namespace kvd::node
