// SimLink: one connection of a SimNet: what is on its way in both directions, and the two ends. Owned by the SimNet,
// used by the two streams that are its ends; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "io/sim/sim_net.h"

namespace kvd::io {

class SimLink {
 public:
  enum End : std::uint8_t { kNear = 0, kFar = 1 };  // who connected; who accepted

  SimLink(SimNet& net, std::string name, std::uint64_t seed);

  // The stream of an end; once for each.
  std::unique_ptr<Stream> stream(End end);
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // Its streams are gone.
  [[nodiscard]] bool unused() const noexcept { return streams_ == 0; }
  [[nodiscard]] bool closed() const noexcept { return sides_[kNear].closed && sides_[kFar].closed; }
  // Nothing is delivered any more, and nobody is told; after model.silence_max both ends see it.
  void go_silent();
  // Both ends see a reset now.
  void reset();
  // Copies what the near end sends into `tap`, as long as there is room in it, until drop_tap() or its close.
  void set_tap(std::vector<std::byte>* tap, std::size_t bytes_max) noexcept {
    tap_ = tap;
    tap_bytes_max_ = bytes_max;
  }
  void drop_tap(const std::vector<std::byte>* tap) noexcept {
    if (tap_ == tap) tap_ = nullptr;
  }

 private:
  friend class SimStream;
  enum class Kind : std::uint8_t { kData, kEnd, kClose, kReset };
  struct Segment {
    Time at{};
    Kind kind = Kind::kData;
    std::vector<std::byte> bytes;
  };
  // What is on its way to an end, what it has, and what its user wants.
  struct Side {
    explicit Side(Loop& loop, Callback on_arrival, Callback on_ready_timer)
        : arrival(loop, std::move(on_arrival)), ready(loop, std::move(on_ready_timer)) {}
    std::deque<Segment> coming;
    std::vector<std::byte> arrived;
    std::size_t taken = 0;  // of `arrived`
    std::size_t held = 0;   // bytes that count for the window: on their way here, lost in silence, or arrived
    Time last_at{};         // segments do not overtake each other
    Time line_free{};       // when the line towards this end is free
    bool ended = false;     // the other end sends no more
    bool peer_closed = false;
    int error = 0;  // errno once the connection is over
    bool closed = false;
    bool sending_ended = false;
    std::size_t mark = 1;
    std::uint32_t interest = Watch::kNone;
    Watch::OnReady on_ready;
    Timer arrival;
    Timer ready;
  };

  // What streams do.
  Result<std::size_t> receive(End end, std::span<const iovec> places);
  Result<std::size_t> send(End end, std::span<const iovec> pieces);
  void end_sending(End end);
  void close(End end);
  void want(End end, std::uint32_t interest);

  static End other(End end) noexcept { return end == kNear ? kFar : kNear; }
  void dispatch(End to, Segment segment);
  void send_segment(End to, std::vector<std::byte> bytes);
  void cut_at(Time at);
  void on_arrival(End end);
  void on_ready_timer(End end);
  [[nodiscard]] std::uint32_t ready(End end) const;
  void update(End end);
  void break_off(int error);

  SimNet& net_;
  const std::string name_;
  Random random_;
  const Duration latency_;
  std::array<Side, 2> sides_;
  Timer silence_timer_;
  Timer cut_timer_;
  int streams_ = 0;  // that live
  bool silent_ = false;
  bool cut_ = false;  // what is sent from now on is lost
  std::vector<std::byte>* tap_ = nullptr;
  std::size_t tap_bytes_max_ = 0;
};

}  // namespace kvd::io
