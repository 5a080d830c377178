// SimNet: a network in memory that fails on purpose. Streams between names on one loop, in virtual time on a SimLoop,
// driven by one seed: the same seed and the same calls give the same conversation, byte for byte and in the same order.
//
// What it models of TCP: connections that take a round trip, are refused or never answered; byte streams with bounded
// buffers, whose bytes come in order, cut into segments at arbitrary places; latency, bandwidth and pauses of each
// connection by itself, so connections overtake each other and bytes of one never do; the end of one direction, a
// close, a reset. Faults: a connection cut in the middle of a segment, after which both ends see a reset; one that goes
// silent, where both ends wait (what keep-alive probes find after a while); bits turned over that the checksums of the
// path have missed; a connection that arrives twice, the second time with a copy of the first one's beginning, as where
// something on the path replays. Not modelled: names, routes, congestion, urgent data, half-delivered resets.
//
// Everything belongs to the loop's thread. A SimNet outlives its streams; the loop outlives the SimNet.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "io/loop.h"
#include "io/stream.h"

namespace kvd::io {

class SimLink;

struct SimNetModel {
  Duration latency_min = std::chrono::microseconds(20);  // one way; each connection draws its own from [min, max]
  Duration latency_max = std::chrono::microseconds(500);
  Duration jitter_max = std::chrono::microseconds(100);  // of a segment, on top; uniform below
  std::uint64_t bytes_per_second = 0;                    // of a direction of a connection; 0 = no limit
  std::size_t window_bytes = std::size_t{256} << 10;     // of a direction: on its way or not taken yet; full = kBusy
  std::size_t segment_bytes_max = std::size_t{16} << 10;
  // A connection that went silent ends after this, as keep-alive probes have no answer (net/socket_stream.h).
  Duration silence_max = std::chrono::seconds(60);
};

// Chances out of a million.
struct SimNetRates {
  std::uint32_t refuse = 0, ignore = 0;          // of an attempt to connect: refused; never answered
  std::uint32_t repeat = 0;                      // of a connection: arrives a second time, up to two seconds later
  std::uint32_t cut = 0, silence = 0;            // of a segment: the connection is cut in it; nothing comes from it on
  std::uint32_t flip = 0, pause = 0;             // of a segment: one bit is wrong; it comes later
  Duration pause_max = std::chrono::seconds(1);  // uniform below
};

struct SimNetCounters {
  std::uint64_t connections = 0, segments = 0, bytes = 0;
  std::uint64_t refused = 0, ignored = 0, repeated = 0, cut = 0, silent = 0, flipped = 0, paused = 0;
  [[nodiscard]] std::uint64_t faults() const noexcept {
    return refused + ignored + repeated + cut + silent + flipped + paused;
  }
};

class SimNet {
 public:
  using OnAccept = std::move_only_function<void(std::unique_ptr<Stream>)>;
  using OnConnect = std::move_only_function<void(Result<std::unique_ptr<Stream>>)>;

  SimNet(Loop& loop, std::uint64_t seed, const SimNetModel& model = {});
  ~SimNet();
  SimNet(const SimNet&) = delete;
  SimNet& operator=(const SimNet&) = delete;

  // Connections to `name` are accepted from now on, until unlisten(). One listener a name.
  void listen(const std::string& name, OnAccept on_accept);
  void unlisten(const std::string& name);
  // Connects: on_done comes from the loop at most once, with a stream or kUnavailable. Never, when the attempt is
  // ignored or cancelled. Returns the attempt's number, for cancel().
  std::uint64_t connect(const std::string& name, OnConnect on_done);
  void cancel(std::uint64_t attempt);

  // From now on segments and attempts may be at fault by themselves. All zero: none is.
  void set_rates(const SimNetRates& rates) noexcept { rates_ = rates; }
  // The host of this name is gone without a word: all its connections are silent from here on. What listens there goes
  // on (it is the next one that was started under this name).
  void vanish(const std::string& name);
  // All connections of this name are reset.
  void reset(const std::string& name);
  [[nodiscard]] const SimNetCounters& counters() const noexcept { return counters_; }
  // Connections of which at least one end is open.
  [[nodiscard]] std::size_t open_links() const noexcept;

 private:
  friend class SimLink;
  friend class SimStream;
  struct Attempt {
    std::string name;
    OnConnect on_done;
    std::unique_ptr<Timer> timer;
  };
  // A connection that will arrive a second time.
  struct Repeat {
    std::vector<std::byte> bytes;  // copied of the first
    std::size_t bytes_max = 0;
    std::string name;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Timer> timer;
    bool over = false;
  };

  bool draw(std::uint32_t rate, std::uint64_t& counter);
  void arrive(std::uint64_t attempt);
  SimLink& make_link(const std::string& name);
  void repeat_later(SimLink& link, const std::string& name);
  void on_repeat(Repeat& repeat);
  void forget_unused();

  Loop& loop_;
  Random random_;
  const SimNetModel model_;
  SimNetRates rates_;
  SimNetCounters counters_;
  std::map<std::string, OnAccept> listeners_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::uint64_t next_attempt_ = 1;
  std::list<std::unique_ptr<SimLink>> links_;
  std::list<Repeat> repeats_;  // its streams end before the links
};

}  // namespace kvd::io
