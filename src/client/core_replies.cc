// What the depot says, and where its payload goes. See core.h.
#include <algorithm>
#include <string>
#include <utility>

#include "client/core.h"

namespace kvd::client {

Status Core::on_message(Channel& channel, const wire::Header& header, Bytes meta) {
  if (header.opcode == wire::Opcode::kPingReply) {
    if (header.request_id == word_id_) {
      word_id_ = 0;
      data_.channel.note_word();
      return {};
    }
    if (breaker_.open()) close_breaker();  // also when it comes after its deadline: the depot is back
    return {};
  }
  if (header.opcode == wire::Opcode::kTaken) return on_taken(channel, header, meta);
  if (header.opcode == wire::Opcode::kUnpinReply) {
    if (unpins_ > 0) --unpins_;
    return {};
  }
  Running* const running = running_of(header.request_id);
  if (running == nullptr) return on_stray(side_of(channel), header, meta);
  if (running->channel != &channel || !running->sent) return fail(Code::kCorrupt, "an answer nobody asked for");
  // Before the op can end (see on_deadline()). The depot keeps the same total: whose clock was first makes no
  // difference. With a progress limit a depot that says so is one that is there.
  if (header.status == Code::kTimeout) {
    if (running->deadline.total_only() && running->deadline.owed()) fail_breaker();
  } else {
    breaker_.on_success();
  }
  switch (op_of(*running).request.kind) {
    case OpKind::kGet: return on_get_data(*running, header, meta);
    case OpKind::kPut: return on_put_reply(*running, header, meta);
    case OpKind::kMatch: return on_match_reply(*running, header, meta);
    case OpKind::kRemove: return on_remove_reply(*running, header, meta);
    case OpKind::kStats: return on_stats_reply(*running, header, meta);
  }
  return {};
}

// A message of a request that has ended here: discarded, until its last one.
Status Core::on_stray(Side& side, const wire::Header& header, Bytes meta) {
  const auto found = side.draining.find(header.request_id);
  if (found == side.draining.end()) return fail(Code::kCorrupt, "an answer nobody asked for");
  if (header.opcode == wire::Opcode::kMatchReply && header.status == Code::kOk) {
    // Nobody knows this lease, so it would pin the pool until it expires.
    const auto reply = wire::decode<wire::MatchReply>(header, meta);
    if (!reply) return fail(reply.error());
    if (reply->lease != 0) unpin(reply->lease);
  }
  if (header.opcode == wire::Opcode::kGetView) {
    if (Status released = on_stray_view(side, header, meta); !released) return released;
  }
  const bool more_may_follow = header.opcode == wire::Opcode::kGetData || header.opcode == wire::Opcode::kGetView;
  if (!more_may_follow || header.last()) side.draining.erase(found);
  return {};
}

Status Core::on_get_data(Running& running, const wire::Header& header, Bytes meta) {
  if (header.opcode == wire::Opcode::kGetView) return on_get_view(running, header, meta);
  if (header.opcode != wire::Opcode::kGetData) return fail(Code::kCorrupt, "a GET was answered with another message");
  if (header.status != Code::kOk) return end_refused(running, header, meta);
  const auto data = wire::decode<wire::GetData>(header, meta);
  if (!data) return fail(data.error());
  if (Status begun = running.get->begin(header, *data); !begun) return end_unless_corrupt(running, header, begun);
  if (header.payload_bytes() > 0) {
    receiving_ = &running;
    receiving_last_ = header.last();
  } else {
    finish_get(running, header.last());
  }
  return {};
}

// A borrow for whose copies there is no memory ends; anything else is the depot's fault and ends the connection.
Status Core::end_unless_corrupt(Running& running, const wire::Header& header, const Status& why) {
  if (why.error().code != Code::kNoSpace) return why;
  receiving_ = &running;  // nothing more is to be asked of the depot when this is its last message
  receiving_last_ = header.last();
  end_early(running, Code::kNoSpace, why.error().what);
  return {};
}

std::size_t Core::payload_places(Channel& channel, std::span<iovec> out) {
  return is_data(channel) && receiving_ != nullptr ? receiving_->get->places(out) : 0;
}

void Core::payload_landed(Channel& channel, std::size_t bytes) {
  if (is_data(channel) && receiving_ != nullptr) receiving_->get->landed(bytes);
  run_commands();  // so that cancel() and lookups wait for one receive call, not for a socket to run dry
}

Status Core::on_payload_end(Channel& channel) {
  if (!is_data(channel)) return {};
  Running* const running = std::exchange(receiving_, nullptr);
  if (running != nullptr) finish_get(*running, receiving_last_);
  return {};
}

// A message of a get is in. The op ends with its last layer, also when the depot's last message is yet to come.
void Core::finish_get(Running& running, bool last) {
  if (!running.get->complete()) return;
  if (!last) side_of(*running.channel).draining.insert(running.id);
  end(running, Code::kOk, {});
}

Status Core::on_put_reply(Running& running, const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kPutReply) return fail(Code::kCorrupt, "a PUT was answered with another message");
  if (header.status != Code::kOk) return end_refused(running, header, meta);
  const auto reply = wire::decode<wire::PutReply>(header, meta);
  if (!reply) return fail(reply.error());
  Op& op = op_of(running);
  const std::size_t keys = op.request.keys.count();
  if (header.items != keys) return fail(Code::kCorrupt, "a PUT reply with another number of keys");
  FailedKeys failed(keys);
  for (std::size_t key = 0; key < keys; ++key) {
    if (wire::bit(reply->failed, key)) failed.set(key);
  }
  op.results.whole.failed_keys = failed.count();
  op.results.whole.failed = failed.snapshot(op.results);
  op.results.whole.failed_code = reply->why;
  std::string reason(reply->reason);
  std::ranges::replace_if(reason, [](char c) { return c < ' ' || c > '~'; }, '?');
  end(running, Code::kOk, reason);
  return {};
}

Status Core::on_match_reply(Running& running, const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kMatchReply) return fail(Code::kCorrupt, "MATCH was answered by another message");
  if (header.status != Code::kOk) return end_refused(running, header, meta);
  const auto reply = wire::decode<wire::MatchReply>(header, meta);
  if (!reply) return fail(reply.error());
  const OpRequest& request = op_of(running).request;
  if (reply->tiers.size() * request.groups.size() != request.keys.count() ||
      reply->prefix_blocks > reply->tiers.size()) {
    return fail(Code::kCorrupt, "a MATCH reply with another number of blocks");
  }
  Completion& whole = op_of(running).results.whole;
  whole.prefix_blocks = reply->prefix_blocks;
  whole.lease = reply->lease;
  for (const std::byte tier : reply->tiers.first(reply->prefix_blocks)) {
    if (static_cast<Tier>(tier) == Tier::kFlash) ++whole.flash_blocks;
  }
  end(running, Code::kOk, {});
  return {};
}

Status Core::on_remove_reply(Running& running, const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kRemoveReply) {
    return fail(Code::kCorrupt, "a REMOVE was answered with another message");
  }
  if (header.status != Code::kOk) return end_refused(running, header, meta);
  const auto reply = wire::decode<wire::RemoveReply>(header, meta);
  if (!reply) return fail(reply.error());
  op_of(running).results.whole.removed = reply->removed;
  end(running, Code::kOk, {});
  return {};
}

Status Core::on_stats_reply(Running& running, const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kStatsReply) return fail(Code::kCorrupt, "STATS was answered by another message");
  if (header.status != Code::kOk) return end_refused(running, header, meta);
  const auto reply = wire::decode<wire::StatsReply>(header, meta);
  if (!reply) return fail(reply.error());
  op_of(running).results.text = reply->json;
  end(running, Code::kOk, {});
  return {};
}

}  // namespace kvd::client
