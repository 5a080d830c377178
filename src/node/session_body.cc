// GET and PUT: admission, the order in which GETs use the socket, deadlines, cancellation and the end of both.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "block/schema.h"
#include "node/session.h"
#include "node/turn_allowance.h"

namespace kvd::node {
namespace {

// Of the pool in one turn, as what is lent does not fill the socket: what a connection may queue.
constexpr std::uint64_t kLentPerTurn = std::uint64_t{8} << 20;
constexpr std::size_t kSoonAgainBytes = std::size_t{256} << 10;  // takes less than to be woken behind it
constexpr Duration kDoubt = std::chrono::milliseconds(250);      // a CANCEL is queued at once, behind a few bodies

// No client holds parts of the pool for longer than the limit, whatever it asks for.
Time deadline_of(const wire::Header& header, Time now, Duration limit) {
  return after(now, header.deadline_ms == 0 ? limit : std::min<Duration>(limit, Millis(header.deadline_ms)));
}

std::uint64_t micros(Duration d) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

}  // namespace

// Whether a GET or PUT with this id may begin. An error ends the connection.
Status Session::check_op(const wire::Header& header) {
  if (gets_by_id_.contains(header.request_id) || puts_.contains(header.request_id)) {
    return fail(Code::kCorrupt, "a request id is used twice");
  }
  return {};
}

// What the operation takes of bounded things, or why it is turned away.
Result<Session::Admitted> Session::admit(const wire::Header& header) {
  if (gets_.size() + puts_.size() >= context_.limits.ops_max) {
    return fail(Code::kBusy, "too many unfinished requests on this connection");
  }
  Result<KeyShare> keys = take_keys(header.items);
  if (!keys) return fail(keys.error());
  Result<TenantSlot> slot = take_slot();
  if (!slot) return fail(slot.error());
  return Admitted{.keys = std::move(*keys), .slot = std::move(*slot)};
}

Result<Session::KeyShare> Session::take_keys(std::uint64_t keys) {
  if (!context_.op_keys.has_room(keys) || !op_keys_.is_fair(keys))
    return fail(Code::kBusy, "too many keys are being moved");
  return op_keys_.take_of_all(keys);
}

Status Session::on_get(const wire::Header& header, Bytes meta) {
  const Time arrived = connection_->last_received();
  if (Status checked = check_op(header); !checked) return checked;
  const Result<wire::Get> get = wire::decode<wire::Get>(header, meta);
  if (!get) return undecodable(header, get.error());
  Result<SharedNamespace> use = namespace_of(get->ns);
  if (!use) return refuse(header, use.error());
  const store::NamespaceHandle ns = (*use)->handle();
  const GroupSchema* const schema = context_.store.schema(ns, get->group);
  if (schema == nullptr) return refuse(header, {Code::kInvalid, 0, "the namespace has no such group"});
  const int layers = header.layer_count == 0 ? schema->layers - header.layer_first : header.layer_count;
  if (layers <= 0 || header.layer_first + layers > schema->layers) {
    return refuse(header, {Code::kInvalid, 0, "the group has fewer layers"});
  }
  if (get->keep && !holdings_->keeper.held()) {
    return refuse(header, {Code::kInvalid, 0, "this connection may keep nothing"});
  }
  Result<Admitted> admitted = admit(header);
  if (!admitted) return refuse(header, admitted.error());

  const block::RecordShape shape = block::shape_of(*schema, !get->keys.native);
  const GetOp::Request request{.id = header.request_id,
                               .ns = ns,
                               .slab_bytes = shape.slab_bytes,
                               .slab_stride = shape.slab_stride,
                               .record_bytes = static_cast<std::uint32_t>(shape.record_bytes()),
                               .layer_first = header.layer_first,
                               .layer_end = static_cast<std::uint16_t>(header.layer_first + layers),
                               .stop_at_first_failure = get->stop_at_first_failure,
                               .keep = get->keep,
                               .deadline = deadline_of(header, arrived, context_.limits.op_limit)};
  auto keys = std::make_unique<OpKeys>(context_.store.namespace_hash(ns), get->keys, get->shard, get->group);
  const std::size_t bytes = keys->count() * static_cast<std::size_t>(layers) * shape.slab_bytes;
  // Who waits for little, and for nothing else, asks soon again.
  if (bytes <= kSoonAgainBytes && gets_by_id_.empty()) context_.loop.expect();
  RunningGet running{
      .slot = std::move(admitted->slot),
      .ns = std::move(*use),
      .op = std::make_shared<GetOp>(context_, pins_, request, std::move(keys), [this] { schedule_pump(); }),
      .keys = std::move(admitted->keys),
      .deadline = nullptr,
      .queued = {},
      .arrived = arrived,
      .refused = 0};
  running.deadline = std::make_unique<io::Timer>(context_.loop, [this, id = request.id] {
    end_get(id, {Code::kTimeout, 0, "the request's deadline has passed"});
    connection_->flush();
  });
  running.deadline->arm(request.deadline);
  context_.counters.requests_get.add();
  context_.counters.ops.add(1);
  gets_.push_back(std::move(running));
  gets_by_id_.emplace(request.id, std::prev(gets_.end()));
  schedule_pump();
  return {};
}

// The store's answers come one by one; what they make possible is done once in a turn of the loop.
void Session::schedule_pump() {
  if (!pump_timer_.armed()) pump_timer_.arm(Time{});  // as soon as others have had their turn
}

void Session::on_room() {
  if (!gets_.empty()) schedule_pump();
}

// GETs begin in the order of their arrival: behind one that waits for pins the others wait too, or small ones would
// take what it waits for, again and again.
void Session::pump() {
  // What may be copied without standing in line.
  if (window_ != nullptr && !window_slices_.waits())
    copies_left_ = context_.copies.take(context_.limits.copied_at_once);
  pump_all();
  context_.copies.give_back(std::exchange(copies_left_, 0));
}

void Session::pump_all() {
  lent_now_ = 0;
  refused_ = 0;
  const bool waited = std::exchange(waits_for_window_, false);
  if (copying_) go_on_copying();
  for (RunningGet& get : gets_) {
    if (refused_ > 0 && !get.op->started()) continue;
    pump_get(get);
    if (get.op->started()) continue;
    if (get.refused == 0) {
      get.refused = ++context_.refusals;
      context_.on_refused();
    }
    refused_ = get.refused;
  }
  if (waits_for_window_ && !waited) window_waits_since_ = context_.loop.now();
  connection_->flush();
}

void Session::pump_get(RunningGet& get) {
  get.op->advance();
  while (!connection_->closed() && !get.op->finished() && !connection_->congested() && get.op->ready()) {
    if (lent_now_ >= kLentPerTurn) return schedule_pump();
    if (copying_) return;
    if (goes_through_window(get)) {
      if (waits_for_window_ || !begin_copying(get)) {
        waits_for_window_ = true;  // and so do those behind it, or small ones would take what it waits for
        return;
      }
      go_on_copying();
      continue;
    }
    std::uint64_t view = 0;
    net::Outgoing message = next_message(get, view);
    send_next(get, std::move(message), view);
    get.op->advance();
  }
}

void Session::send_next(RunningGet& get, net::Outgoing message, std::uint64_t view) {
  if (get.op->finished()) {
    message.on_done = [this, op = get.op, on_done = std::move(message.on_done)]() mutable {
      if (on_done) on_done();
      finish_get(*op);
    };
  }
  get.queued.push_back({.id = connection_->send(std::move(message)), .view = view});
}

// The last message is in the socket, or has gone with the connection.
void Session::finish_get(const GetOp& op) {
  const auto found = gets_by_id_.find(op.request().id);
  if (found == gets_by_id_.end() || found->second->op.get() != &op) return;  // ended before its time
  const RunningGet get = std::move(*found->second);
  gets_.erase(found->second);
  gets_by_id_.erase(found);
  get.op->abort();  // what it has lent may outlive this session
  NodeCounters& counters = context_.counters;
  counters.ops.sub(1);
  if (connection_ == nullptr || connection_->closed()) return;
  counters.keys_got.add(get.op->keys() - get.op->failed());
  counters.keys_missed.add(get.op->failed());
  if (TenantUse* const tenant = get.slot.tenant.get()) {
    const GetOp::Request& request = get.op->request();
    const auto layers = static_cast<std::uint64_t>(request.layer_end - request.layer_first);
    const std::uint64_t got = get.op->keys() - get.op->failed();
    tenant->records_got.add(got);
    tenant->records_missed.add(get.op->failed());
    tenant->bytes_sent.add(got * layers * request.slab_bytes);
  }
  counters.get_us.record_us(micros(connection_->last_sent() - get.arrived));
}

// Ends a GET before its time. Messages that have not started are taken back; one that has goes out whole, and when it
// is the last one it is the answer.
void Session::end_get(std::uint64_t id, const Error& why) {
  const auto found = gets_by_id_.find(id);
  if (found == gets_by_id_.end()) return;
  RunningGet get = std::move(*found->second);
  gets_.erase(found->second);
  gets_by_id_.erase(found);
  get.op->abort();
  const bool dropped = drop_copying(*get.op);
  if (!get.op->started() || dropped) schedule_pump();  // those behind it in the line
  std::size_t withdrawn = 0;
  for (auto queued = get.queued.rbegin(); queued != get.queued.rend(); ++queued, ++withdrawn) {
    if (!connection_->withdraw(queued->id)) break;
    views_.withdraw(queued->view);
  }
  const bool answered = get.op->finished() && withdrawn == 0 && !dropped;
  context_.counters.ops.sub(1);
  (why.code == Code::kTimeout ? context_.counters.timeouts : context_.counters.cancelled).add();
  if (!answered) static_cast<void>(refuse(wire::Opcode::kGetData, id, why));
}

Status Session::on_put(const wire::Header& header, Bytes meta) {
  const Time arrived = connection_->last_received();
  if (Status checked = check_op(header); !checked) return checked;
  const Result<wire::Put> put = wire::decode<wire::Put>(header, meta);
  if (!put) return undecodable(header, put.error());
  Result<SharedNamespace> use = namespace_of(put->ns);
  if (!use) return refuse(header, use.error());
  const store::NamespaceHandle ns = (*use)->handle();
  const GroupSchema* const schema = context_.store.schema(ns, put->group);
  if (schema == nullptr) return refuse(header, {Code::kInvalid, 0, "the namespace has no such group"});
  Result<Admitted> admitted = admit(header);
  if (!admitted) return refuse(header, admitted.error());

  const std::uint64_t id = header.request_id;
  const PutOp::Request request{
      .id = id, .ns = ns, .shape = block::shape_of(*schema, !put->keys.native), .ack = put->ack};
  auto keys = std::make_unique<OpKeys>(context_.store.namespace_hash(ns), put->keys, put->shard, put->group);
  RunningPut running{.slot = std::move(admitted->slot),
                     .ns = std::move(*use),
                     .op = std::make_shared<PutOp>(context_, unfinished_, request, std::move(keys),
                                                   [this, id] {
                                                     finish_put(id);
                                                     connection_->flush();
                                                   }),
                     .keys = std::move(admitted->keys),
                     .deadline = std::make_unique<io::Timer>(context_.loop,
                                                             [this, id] {
                                                               end_put(id,
                                                                       {Code::kTimeout, 0, "the PUT took too long"});
                                                               connection_->flush();
                                                             }),
                     .until = deadline_of(header, arrived, context_.limits.op_limit),
                     .idle_limited = header.deadline_ms == 0,
                     .arrived = arrived};
  context_.counters.requests_put.add();
  context_.counters.ops.add(1);
  if (!running.idle_limited) running.deadline->arm(running.until);
  touch_put(running);
  const std::shared_ptr<PutOp> op = running.op;  // outlives its own end
  puts_.emplace(id, std::move(running));
  op->begin();
  if (op->complete()) finish_put(id);
  return {};
}

// A PUT without a deadline must go on coming.
void Session::touch_put(RunningPut& put) {
  if (put.idle_limited)
    put.deadline->arm(std::min(put.until, after(context_.loop.now(), context_.limits.put_idle_limit)));
}

Status Session::on_put_data(const wire::Header& header, Bytes meta) {
  receiving_put_ = 0;
  const Result<wire::PutData> data = wire::decode<wire::PutData>(header, meta);
  if (!data) return fail(data.error());
  if (data->key_first && !puts_in_parts_) return fail(Code::kCorrupt, "a part of a PUT where none was agreed on");
  const auto found = puts_.find(header.request_id);
  if (found == puts_.end()) return {};  // it has ended: refused, cancelled, or nothing of it is needed
  if (Status begun = found->second.op->begin_message(header, *data); !begun) return begun;
  receiving_put_ = header.request_id;
  touch_put(found->second);
  return {};
}

std::size_t Session::payload_places(std::span<iovec> out) {
  const auto found = puts_.find(receiving_put_);
  return found == puts_.end() ? 0 : found->second.op->places(out);
}

void Session::payload_landed(std::size_t bytes) {
  const auto found = puts_.find(receiving_put_);
  if (found == puts_.end()) return;
  found->second.op->landed(bytes);
  if (tenant_ != nullptr) tenant_->bytes_received.add(bytes);
}

Status Session::on_payload_end() {
  end_put_message(std::exchange(receiving_put_, 0));
  return {};
}

void Session::end_put_message(std::uint64_t id) {
  const auto found = puts_.find(id);
  if (found == puts_.end()) return;
  const std::shared_ptr<PutOp> op = found->second.op;  // outlives its own end
  touch_put(found->second);
  op->end_message();
  if (op->complete()) finish_put(id);
}

// All layers are in and acknowledged, or nothing is left to wait for.
void Session::finish_put(std::uint64_t id) {
  const auto found = puts_.find(id);
  if (found == puts_.end()) return;
  const RunningPut put = std::move(found->second);
  puts_.erase(found);
  const FailedKeys& failed = put.op->failed();
  NodeCounters& counters = context_.counters;
  counters.ops.sub(1);
  counters.keys_put.add(failed.left());
  counters.keys_put_failed.add(failed.failed());
  counters.put_us.record_us(micros(context_.loop.now() - put.arrived));
  if (put.op->corrupt_slabs() > 0) {
    doubts_.push_back({id, put.op->corrupt_slabs(), after(context_.loop.now(), kDoubt)});
    if (!doubt_timer_.armed()) doubt_timer_.arm(doubts_.front().until);
  }
  const wire::Header header{
      .flags = wire::kFlagLast, .request_id = id, .items = static_cast<std::uint32_t>(put.op->keys())};
  const Error& why = put.op->first_failure();
  const wire::PutReply answer{.failed = failed.bitmap(), .why = why.code, .reason = why.what};
  tell_taken();
  connection_->send({.head = wire::frame(header, answer), .body = {}, .on_done = {}});
}

// No CANCEL came behind them: they went bad on their way, or at their sender.
void Session::count_corrupt() {
  for (; !doubts_.empty() && doubts_.front().until <= context_.loop.now(); doubts_.pop_front()) {
    context_.counters.put_corrupt.add(doubts_.front().slabs);
  }
  if (!doubts_.empty()) doubt_timer_.arm(doubts_.front().until);
}

void Session::forget_corrupt(std::uint64_t id) {
  std::erase_if(doubts_, [id](const Doubt& doubt) { return doubt.put == id; });
}

void Session::end_put(std::uint64_t id, const Error& why) {
  const auto found = puts_.find(id);
  if (found == puts_.end()) return;
  const RunningPut put = std::move(found->second);
  puts_.erase(found);
  put.op->abort();
  context_.counters.ops.sub(1);
  (why.code == Code::kTimeout ? context_.counters.timeouts : context_.counters.cancelled).add();
  tell_taken();
  static_cast<void>(refuse(wire::Opcode::kPutReply, id, why));
}

}  // namespace kvd::node
