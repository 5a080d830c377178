// SimDepot: a depot on a simulated machine: a node with its store on drives that fail, reached over a simulated network
// under the name "depot". It can be killed, lose its power, end orderly, and start again on the same drives. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "io/sim/sim_net.h"
#include "node/node.h"
#include "store/testing/store_kit.h"
#include "tls/context.h"

namespace kvd::netsim {

inline constexpr const char* kDepotName = "depot";
inline constexpr std::uint16_t kLayers = 4;
inline constexpr std::uint32_t kSlabBytes = 5'000;  // records of 36 KiB; the pool holds 28 of them
inline constexpr std::uint32_t kOpsMax = 8;         // of a connection: what is never freed shows soon

class SimDepot {
 public:
  // `tls`: its connections are encrypted; null = they are not.
  SimDepot(io::SimLoop& loop, io::SimNet& net, std::uint64_t seed, const io::SimFaultRates& rates,
           std::shared_ptr<tls::Context> tls);
  ~SimDepot();

  // Recovers and listens, of two seeds in three at once. Empty, or what was wrong: it may fail with an I/O error while
  // the drive fails, three times.
  std::string start();
  [[nodiscard]] bool up() const noexcept { return node_ != nullptr; }

  // The process dies: its connections end, its drive has part of what was under way.
  void kill(std::uint64_t seed);
  // The machine dies: its connections are silent.
  void lose_power(std::uint64_t seed);
  // Begins an orderly end; stopped() says when it is through, and stop() ends the node then.
  void begin_stop();
  [[nodiscard]] bool stopping() const noexcept { return stop_by_ != kNever; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  [[nodiscard]] Time stop_by() const noexcept { return stop_by_; }
  void stop();

  // The drive stops answering, for a while or for ever.
  void hang(std::uint64_t operations, Duration extra) { drive().stall(operations, extra); }
  // From now on the drive works.
  void heal();
  [[nodiscard]] std::uint64_t disk_faults() { return drive().faults(); }
  [[nodiscard]] std::uint64_t stat(const char* room, const char* name) const;
  // What the node holds although nothing is under way; empty when it holds nothing. `connections`: how many there are.
  [[nodiscard]] std::string leaks(std::uint64_t connections) const;

 private:
  Status open(std::string& why);
  [[nodiscard]] io::SimDrive& drive() { return disks_.drive(options_.store.dir + "/flash.kvd"); }

  io::SimLoop& loop_;
  io::SimNet& net_;
  const io::SimFaultRates rates_;
  const std::shared_ptr<tls::Context> tls_;
  bool healed_ = false;
  io::SimDisks disks_;
  store::TempDir dir_;
  NullLog log_;
  node::NodeOptions options_;
  std::unique_ptr<node::Node> node_;
  Time stop_by_ = kNever;
  bool stopped_ = false;
};

}  // namespace kvd::netsim
