// Who the client of a connection is, where there are credentials: its token, what it may do, and its tenant's bounds.
#include <utility>

#include "node/session.h"

namespace kvd::node {
namespace {

// All that a stranger is told. The reason is in the depot's log.
constexpr Error kUnauthorized{Code::kInvalid, 0, "unauthorized"};

}  // namespace

// Whose certificate is listed is in. Of the others, a client that has no token, or does not know what one is, is
// refused at once; the rest are asked for it.
Status Session::on_stranger(const wire::Header& hello, const wire::Hello& said) {
  const char* why = "no token";
  if (const io::PeerCertificate* const certificate = connection_->stream().peer_certificate()) {
    Result<Gate::Admission> admission = context_.gate.enter(*certificate);
    if (admission) {
      handshake_timer_.disarm();
      if (const Status in = admit(std::move(*admission)); !in) {
        turn_away(wire::Opcode::kHelloReply, in.error());
        return {};
      }
      let_in(hello, 0);
      return {};
    }
    why = admission.error().what;
  }
  if ((said.features & wire::kFeatureToken) == 0) {
    context_.gate.refuse(peer_host_, why);
    say_unauthorized(wire::Opcode::kHelloReply);
    return {};
  }
  awaits_token_ = true;
  asked_ = said.features;
  let_in(hello, wire::kFeatureToken | (asked_ & wire::kFeatureAuthFeatures));
  return {};
}

// A wrong token is answered after a moment, so that guesses take their time and one of the few places for strangers.
Status Session::on_auth(const wire::Header& header, Bytes meta) {
  const Result<wire::Auth> auth = wire::decode<wire::Auth>(header, meta);
  if (!auth) return fail(auth.error());
  if (!awaits_token_) return fail(Code::kCorrupt, "AUTH where it was not asked for");
  awaits_token_ = false;
  handshake_timer_.disarm();
  std::optional<Gate::Admission> admission = context_.gate.enter(as_bytes(auth->token), peer_host_);
  if (!admission) {
    connection_->hold();  // one guess: nothing more is taken from it
    stranger_.stay();
    refusal_timer_.arm_in(context_.limits.refusal_delay);
    return {};
  }
  if (const Status in = admit(std::move(*admission)); !in) {
    turn_away(wire::Opcode::kAuthReply, in.error());
    return {};
  }
  // A client that could not be told now, who it is being known, was told of nothing with HELLO and gets nothing.
  wire::AuthReply said;
  if ((asked_ & wire::kFeatureAuthFeatures) != 0) said.features = make_memory(asked_);
  const wire::Header answer{.flags = wire::kFlagLast, .request_id = header.request_id};
  connection_->send({.head = wire::frame(answer, said), .body = {}, .on_done = {}});
  offer(said.features.value_or(0));
  return {};
}

Status Session::admit(Gate::Admission admission) {
  Result<TenantSlot> seat = context_.gate.take_connection(admission.tenant);
  if (!seat) return fail(seat.error());
  seat_ = std::move(*seat);
  identity_ = std::move(admission.identity);
  tenant_ = std::move(admission.tenant);
  context_.gate.count_for(tenant_, {.pinned = pins_, .unfinished = unfinished_, .op_keys = &op_keys_});
  connection_->set_share(tenant_.get());
  for (net::SliceLine::User* const work : {&window_slices_, &match_slices_, &remove_slices_, &arena_slices_})
    work->set_share(tenant_.get());
  checker_.set_share(tenant_.get());
  stranger_.release();
  greeted_ = true;
  connection_->set_meta_bytes_max(wire::kMetaBytesMax);
  return {};
}

// Whoever was refused within the handshake has not come to HELLO.
void Session::on_closed(const Error& why) {
  if (const char* const refusal = connection_->stream().refusal()) context_.gate.refuse(peer_host_, refusal);
  on_closed_(*this, why);
}

void Session::turn_away(wire::Opcode opcode, const Error& why) {
  connection_->hold();  // nothing more is taken from it
  static_cast<void>(refuse(opcode, 0, why));
  connection_->close_after_flush({Code::kUnavailable, 0, why.what});
}

void Session::say_unauthorized(wire::Opcode opcode) { turn_away(opcode, kUnauthorized); }

void Session::renew_identity() {
  if (const Status judged = connection_->stream().judge_again(); !judged) {
    context_.gate.refuse(peer_host_, judged.error().what);
    return close({Code::kUnavailable, 0, "the client's certificate is not accepted any more"});
  }
  if (identity_ == nullptr) return;  // has not shown anything yet
  std::optional<Gate::Admission> admission = context_.gate.renew(*identity_, connection_->stream().peer_certificate());
  if (!admission) {
    context_.gate.refuse(peer_host_, *identity_, "revoked");
    return close({Code::kUnavailable, 0, "the client's credential was revoked"});
  }
  identity_ = std::move(admission->identity);
  tenant_ = std::move(admission->tenant);
  if (!shares_memory_ || may_see_pool()) return;
  context_.gate.refuse(peer_host_, *identity_, "does not allow the pool any more");
  close({Code::kUnavailable, 0, "the client's credential does not allow the pool's memory any more"});
}

bool Session::may(wire::Opcode opcode) const noexcept {
  using auth::Right;
  switch (opcode) {
    case wire::Opcode::kMatch:
    case wire::Opcode::kGet:
    case wire::Opcode::kCheck: return identity_->rights.allow(Right::kRead);
    case wire::Opcode::kPut:
    case wire::Opcode::kRemove: return identity_->rights.allow(Right::kWrite);
    case wire::Opcode::kStats: return identity_->rights.allow(Right::kAdmin);  // the figures are of all tenants
    default: return true;  // of the connection itself, or of requests that were allowed
  }
}

// One of the requests that the tenant may have in flight.
Result<TenantSlot> Session::take_slot() {
  if (tenant_ == nullptr) return TenantSlot{};
  TenantSlot slot{.tenant = tenant_, .share = tenant_->requests.take(1)};
  if (!slot.share) {
    tenant_->refused.add();
    return fail(Code::kBusy, "the tenant has as many requests in flight as it may");
  }
  return slot;
}

}  // namespace kvd::node
