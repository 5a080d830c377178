#include "netsim/sim_depot.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvd::netsim {
namespace {

constexpr Duration kStopLimit = std::chrono::seconds(10);
constexpr Duration kSlack = Millis(50);

}  // namespace

SimDepot::SimDepot(io::SimLoop& loop, io::SimNet& net, std::uint64_t seed, const io::SimFaultRates& rates,
                   std::shared_ptr<tls::Context> tls)
    : loop_(loop), net_(net), rates_(rates), tls_(std::move(tls)), disks_(seed) {
  store::StoreOptions& store = options_.store;
  store.dir = dir_.path() + "/store";
  store.pool_bytes = 1 << 20;
  store.segment_bytes = 256 << 10;
  store.flash_bytes = (4 << 20) + 8 * store.segment_bytes;
  store.demote_idle = Millis(5);
  store.demote_after = Millis(50);
  store.prefault = false;
  store.small_sizes = true;
  if (seed % 2 == 0) store.scrub_bytes_per_s = std::uint64_t{8} << 20;
  options_.disks = &disks_;
  options_.shared_memory = false;
  options_.limits.ops_max = kOpsMax;
  options_.serve_recovering = seed % 3 != 0;
}

SimDepot::~SimDepot() {
  net_.unlisten(kDepotName);
  disks_.kill({.seed = 1});  // a drive that hangs would keep the store from ending
  node_.reset();
}

std::string SimDepot::start() {
  drive().stall(0, {});
  io::SimFaultRates opening = healed_ ? io::SimFaultRates{} : rates_;
  opening.delay = 0;
  for (int attempt = 0;; ++attempt) {
    drive().set_fault_rates(attempt < 3 ? opening : io::SimFaultRates{});
    std::string why;
    const Status opened = open(why);
    drive().set_fault_rates(healed_ ? io::SimFaultRates{} : rates_);
    if (opened) return {};
    if (attempt >= 3 || opened.error().code != Code::kIo) return "the depot refuses to start: " + why;
  }
}

Status SimDepot::open(std::string& why) {
  auto started = node::Node::start(loop_, log_, options_, &why);
  if (!started) return fail(started.error());
  node_ = std::move(*started);
  net_.listen(kDepotName, [this](std::unique_ptr<io::Stream> stream) {
    if (tls_ != nullptr) stream = *tls_->wrap(std::move(stream));
    static_cast<void>(node_->adopt(std::move(stream)));  // where there are too many, it is closed
  });
  const Status recovered = node_->recover(&why);
  if (recovered) return {};
  net_.unlisten(kDepotName);
  node_.reset();
  return recovered;
}

void SimDepot::kill(std::uint64_t seed) {
  net_.unlisten(kDepotName);
  disks_.kill({.seed = seed});
  stop();
}

void SimDepot::lose_power(std::uint64_t seed) {
  net_.unlisten(kDepotName);
  net_.vanish(kDepotName);
  disks_.lose_power({.seed = seed});
  stop();
}

void SimDepot::begin_stop() {
  net_.unlisten(kDepotName);
  stop_by_ = after(loop_.now(), kStopLimit + kSlack);
  node_->drain(kStopLimit, [this] { stopped_ = true; });
}

void SimDepot::stop() {
  // A drive that hangs would keep the store from ending; what was to be written has been.
  if (stopping()) disks_.kill({.seed = 1});
  node_.reset();
  stop_by_ = kNever;
  stopped_ = false;
}

void SimDepot::heal() {
  healed_ = true;
  drive().stall(0, {});
  drive().set_fault_rates({});
}

std::uint64_t SimDepot::stat(const char* room, const char* name) const {
  return nlohmann::json::parse(node_->stats_json()).at(room).at(name).get<std::uint64_t>();
}

std::string SimDepot::leaks(std::uint64_t connections) const {
  const auto json = nlohmann::json::parse(node_->stats_json());
  std::string leaks;
  const auto expect = [&](const char* room, const char* name, std::uint64_t expected) {
    const auto value = json.at(room).at(name).get<std::uint64_t>();
    if (value != expected) leaks += fmt::format(" {} {}", value, name);
  };
  expect("node", "connections", connections);
  for (const char* name : {"ops", "leases", "op_keys", "pinned_bytes", "unfinished_bytes", "views", "view_bytes"}) {
    expect("node", name, 0);
  }
  expect("store", "unfinished_puts", 0);
  expect("store", "pool_bytes_pinned", 0);
  return leaks;
}

}  // namespace kvd::netsim
