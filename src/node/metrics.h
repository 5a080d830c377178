// A node's figures under the names that others read: Prometheus text for /metrics, JSON for STATS. Reads only atomics
// and copies, so any thread may call them; no failure, no blocking.
#pragma once

#include <string>
#include <vector>

#include "net/counters.h"
#include "node/counters.h"
#include "node/tenants.h"
#include "store/store.h"

namespace kvd::node {

struct Figures {
  const NodeCounters& node;
  const net::NetCounters& net;
  const Tenants& tenants;
  const store::StoreStats* store = nullptr;        // null while the store is being opened
  std::vector<store::TenantFigures> spaces = {};   // what tenants take up
  std::vector<store::DeviceFigures> devices = {};  // of the flash tier
  bool ready = false;
  double uptime_s = 0;
};

// Prometheus text format 0.0.4; names start with kvdepot_, counters end in _total.
std::string metrics_text(const Figures& figures);

// {"version": ..., "uptime_s": ..., "store": {...}, "node": {...}, "net": {...}, "tenants": {...},
// "devices": [{"dir": ..., "why_off": ..., ...}]}; numbers by the fields' names.
std::string stats_json(const Figures& figures);

}  // namespace kvd::node
