// How the bodies of puts go out: in turns of kGroupBytes, so that those that came first end first, hashed in bounded
// steps. See core.h.
#include "client/core.h"

namespace kvd::client {

// Layers may have become ready: the put gets in line.
void Core::on_layers(Running& running) {
  update_owed(running);
  if (!running.sent || running.pumping || !running.put->ready()) return;
  running.pumping = true;
  running.turn_bytes = 0;
  puts_.push_back(op_of(running).slot);
  if (!pump_posted_ && !pumping_) {
    pump_posted_ = true;
    loop_.post([this] {
      pump_posted_ = false;
      pump_puts();
    });
  }
}

// The depot owes a put something while bytes of ours wait for it, and once it has everything.
void Core::update_owed(Running& running) {
  const PutFlow& flow = *running.put;
  const bool before = running.deadline.owed();
  const bool owed = !running.sent || flow.ready() || flow.all_taken() || !running.bodies.empty();
  running.deadline.set_owed(owed, loop_.now());
  if (owed && !before) arm_deadline(running);
}

void Core::on_drained(Channel& channel) {
  if (is_data(channel)) pump_puts();
}

// Produces messages until enough is queued, nothing is ready, or this turn's share of hashing is used up.
void Core::pump_puts() {
  if (pumping_ || stopped_) return;
  pumping_ = true;
  std::size_t budget = data_.channel.arena() == nullptr ? kHashBytesPerTurn : kPutCopiesPerTurn;
  bool waits_for_room = false;
  bool pumped = false;
  while (!puts_.empty() && data_.channel.ready() && !data_.channel.connection().congested() && budget > 0) {
    const std::uint32_t slot = puts_.front();
    puts_.pop_front();
    Running& running = running_[slot];
    running.pumping = false;
    if (running.id == 0 || running.put == nullptr || !running.put->ready()) continue;
    if (!running.put->has_room()) {  // on_taken() comes
      running.pumping = waits_for_room = true;
      puts_.push_front(slot);
      break;
    }
    const bool more = pump_put(running, budget);
    pumped = true;
    // What goes through the arena is copied by the depot while the next part is copied here.
    const bool through_arena = running.put->uses_arena();
    net::Connection& connection = data_.channel.connection();
    if (through_arena || connection.queued_bytes() >= kSendAtOnce) connection.flush();
    if (!more || running.put == nullptr || running.pumping) continue;  // flush() may have ended the op
    running.pumping = true;
    if (running.turn_bytes < kGroupBytes) {
      puts_.push_front(slot);
    } else {
      running.turn_bytes = 0;
      puts_.push_back(slot);
    }
  }
  if (pumped && data_.channel.ready()) data_.channel.connection().flush();
  pumping_ = false;
  if (puts_.empty() || waits_for_room || !data_.channel.ready()) return;
  if (data_.channel.connection().congested() || pump_posted_) return;
  pump_posted_ = true;
  loop_.post([this] {
    pump_posted_ = false;
    pump_puts();
  });
}

// Hashes towards the next message of one put and queues it when it is complete. True when the put has more to send.
bool Core::pump_put(Running& running, std::size_t& budget) {
  PutFlow& flow = *running.put;
  const std::size_t step = budget;
  budget = 0;  // unless the message was completed with less
  if (!flow.prepare(step)) return true;
  PutFlow::Message message = flow.take();
  if (message.bytes < step) budget = step - message.bytes;
  running.turn_bytes += message.bytes;
  if (message.body.empty()) {  // nothing of the caller's is borrowed: it goes out whatever becomes of the operation
    const auto on_done = [this, &channel = data_.channel, bytes = message.bytes] { on_told(channel, bytes); };
    data_.channel.connection().send({.head = std::move(message.head), .body = {}, .on_done = on_done});
    update_owed(running);
    return flow.ready();
  }
  const std::uint32_t slot = op_of(running).slot;
  const auto on_done = [this, slot, id = running.id, bytes = message.bytes] { on_body_sent(slot, id, bytes); };
  running.bodies.push_back(data_.channel.connection().send(
      {.head = std::move(message.head), .body = std::move(message.body), .on_done = on_done}));
  update_owed(running);
  return flow.ready();
}

void Core::on_body_sent(std::uint32_t slot, OpId id, std::size_t bytes) {
  Running& running = running_[slot];
  if (running.id != id || running.bodies.empty()) return;  // the op is over: its bodies were taken back
  // A connection that ends gives back what it has not sent.
  if (running.channel->ready()) state_.bytes_stored.add(bytes);
  running.bodies.pop_front();
  running.channel->note_body();
  update_owed(running);
}

// The depot knows of slabs in the arena.
void Core::on_told(Channel& channel, std::size_t bytes) {
  if (!channel.ready()) return;
  state_.bytes_stored.add(bytes);
  channel.note_body();
}

Status Core::on_taken(Channel& channel, const wire::Header& header, Bytes meta) {
  const auto told = wire::decode<wire::Taken>(header, meta);
  if (!told) return fail(told.error());
  if (channel.arena() == nullptr) return fail(Code::kCorrupt, "the depot has taken what was not sent");
  if (Status taken = channel.arena()->taken(told->messages); !taken) return taken;
  pump_puts();
  return {};
}

}  // namespace kvd::client
