// SimEngine: a client of the depot as an engine has one, its I/O core driven on the simulation's loop, that does random
// operations and judges how each of them ends. One thread.
//
// Judged: a key that has not failed has, in each layer, the bytes of one version that somebody put under it, the same
// in all layers; a key that nobody put fails; every operation ends once, by its deadline; layers are announced in order
// and once; the memory of an operation that has ended is not written any more and its region is free at once.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "client/core.h"
#include "client/region_table.h"
#include "client/request.h"
#include "io/sim/sim_loop.h"
#include "io/sim/sim_net.h"
#include "netsim/sim_depot.h"
#include "tls/context.h"

namespace kvd::netsim {

inline constexpr std::size_t kRecords = 48;  // more than pool and flash hold
inline constexpr std::size_t kNeverPut = 4;  // numbers behind them that are asked for all the same
inline constexpr std::uint64_t kVersions = 3;

// What all engines of a run share.
struct Shared {
  std::array<std::uint8_t, kRecords + kNeverPut> put{};  // bit v: version v was put at some time
  bool native = false;                                   // keys of all engines
  bool verify = true;  // false for the control alone: it shows that verification matters
  std::vector<std::string> wrong;
  std::uint64_t digest = 0;  // of everything that ended, and when: two runs of a seed are equal
  std::uint64_t gets = 0, puts = 0, others = 0, keys_hit = 0, timeouts = 0, cancelled = 0, unavailable = 0, busy = 0;
  std::uint64_t corrupt_slabs = 0, leases = 0;
  void fail(std::string line) { wrong.push_back(std::move(line)); }
};

class SimEngine {
 public:
  // All are borrowed. `tls`: what its connections are encrypted with; null = they are not.
  SimEngine(io::SimLoop& loop, io::SimNet& net, std::uint64_t seed, Shared& shared, const tls::ClientFiles* tls);
  ~SimEngine();

  // Does something at random.
  void step();
  // Collects what has ended and looks for what is overdue.
  void look();
  // Ends what runs, once, and begins anew, as another process would.
  void restart();
  [[nodiscard]] bool connected() const noexcept { return state_->connected(); }
  [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
  // On a network and a depot that work: more requests one after the other than a connection may have unfinished. Each
  // must be answered, or something of earlier ones is still counted.
  void ask_everything();
  // Removes all records; they must be gone then, for as long as nobody else puts any.
  void remove_everything();

 private:
  struct Running {
    OpId id = 0;
    client::OpKind kind{};
    Time submitted{}, latest{};
    std::vector<std::size_t> records;
    std::uint16_t layer_first = 0, layers = 0;
    std::vector<std::byte> memory;       // [layer][key] slab
    std::vector<std::uint8_t> versions;  // of a get: those that all layers of a key so far can be of
    RegionId region;
    bool whole = true;             // of a put
    std::uint16_t next_layer = 0;  // of a put: to be released; of a get: to be announced
  };
  // Memory of an operation that has ended: nothing may be written there.
  struct Ended {
    std::vector<std::byte> memory;
    Time until{};
  };

  void start();
  void stop();
  [[nodiscard]] net::MakeDialer make_dialer() const;
  [[nodiscard]] std::vector<std::byte> keys_of(const std::vector<std::size_t>& records) const;
  [[nodiscard]] std::vector<std::size_t> some_records(std::size_t among);
  Deadline some_deadline();
  void submit(std::unique_ptr<Running> running, Result<client::OpRequest> request, const Deadline& deadline);
  std::unique_ptr<Running> make(client::OpKind kind, std::vector<std::size_t> records);
  Placement place(Running& running);
  void get(std::vector<std::size_t> records, bool part, const Deadline& deadline);
  void put(std::vector<std::size_t> records, bool whole, const Deadline& deadline);
  void match(std::vector<std::size_t> records, const Deadline& deadline);
  void remove(std::vector<std::size_t> records, const Deadline& deadline);
  void release_layer();
  void cancel_one();
  void unpin_one();
  Code finish();

  void take(const Completion& done);
  void judge_layer(Running& running, const Completion& done);
  void judge_end(Running& running, const Completion& done);
  void let_go(Running& running);
  void check_ended();
  [[nodiscard]] std::string name(const Running& running) const;

  io::SimLoop& loop_;
  io::SimNet& net_;
  Random random_;
  Shared& shared_;
  const tls::ClientFiles* tls_;
  client::NamespaceTable namespaces_;
  client::RegionTable regions_;
  NamespaceId ns_ = 0;
  std::unique_ptr<client::OpTable> ops_;
  std::unique_ptr<client::ClientState> state_;  // of this life
  std::unique_ptr<client::Core> core_;
  std::list<std::unique_ptr<Running>> running_;
  std::deque<Ended> ended_;
  std::vector<LeaseId> leases_;
  std::vector<std::uint64_t> layer_offsets_, block_offsets_;  // of the request that is being made
  // How the operation that was submitted last has ended.
  Code last_code_ = Code::kOk;
  std::uint32_t last_hits_ = 0;
  OpId last_id_ = 0;
  std::uint64_t number_;
};

}  // namespace kvd::netsim
