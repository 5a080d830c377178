// Namespaces: every namespace this store knows, opened by callers or found on flash, with the shapes of its records.
//
// An entry stays, with its handle and the addresses of its shapes, while somebody has it open (at most 65,535 are) or
// holds it: a record in the pool, a segment with something of it or with a tombstone that names it. So those that
// nobody has open are bounded by what pool and flash hold. Then it is forgotten, and another namespace gets its handle.
//
// While recovery still reads what flash holds, the schema that is told first of a group counts, and recovery tells the
// newest first. So a namespace can be opened as soon as all groups that it is opened with were told: what is told later
// cannot change them. What recovery makes known does not depend on who has opened what. One owner, no locking.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "block/key.h"
#include "block/schema.h"
#include "kvdepot/types.h"
#include "store/format.h"
#include "store/store.h"

namespace kvd::store {

// One group of a namespace.
struct GroupInfo {
  GroupSchema schema;
  block::RecordShape foreign;  // of records with foreign keys
  block::RecordShape native;   // differs for one-layer groups only: no table page

  // The shape whose image has this many pages; null when neither has.
  [[nodiscard]] const block::RecordShape* shape_of_pages(std::uint32_t pages) const noexcept;
};

struct TenantSpace;
class TenantSpaces;

struct NamespaceInfo {
  NamespaceName name;
  block::NamespaceHash hash;
  std::deque<GroupInfo> groups;
  TenantSpace* tenant = nullptr;  // of a known one
  std::uint32_t users = 0;        // that have it open
  std::uint32_t holds = 0;
  bool known = false;

  [[nodiscard]] const GroupInfo* group(std::uint16_t number) const noexcept;
};

// What a record is known by inside the store. `hash` mixes the namespace in: native keys of two tenants may be equal.
struct RecordKey {
  NamespaceHandle ns = 0;
  block::RecordId id;
  std::uint64_t hash = 0;
};

// The hash under which a record of a namespace is found in the pool's table and in the flash index.
inline std::uint64_t record_hash(const block::NamespaceHash& ns, const block::RecordId& id) noexcept {
  return block::hash_record(ns, id);
}

class Namespaces {
 public:
  static constexpr std::size_t kOpenedMax = 65'535;
  static constexpr NamespaceHandle kNone = UINT32_MAX;

  // `record_bytes_max`: the largest record this store can hold.
  explicit Namespaces(std::uint64_t record_bytes_max, std::size_t devices = 1);
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // Opens a namespace, until close(); the same handle for an equal one that is known. kInvalid: bad names or geometry,
  // a record too large for this store, or known here with another schema (also: without a group of which flash holds
  // something); kNoSpace: too many, of all or of the tenant; kUnavailable: flash may hold a group of it that was not
  // told yet (set_reading()). `own`: flash holds no other schema under this name, so that it need not have been told.
  Result<NamespaceHandle> open(const Namespace& ns, bool own = false);
  void close(NamespaceHandle handle);
  // What flash holds is being read, or is known.
  void set_reading(bool is) noexcept { reading_ = is; }
  // A namespace found on flash with one of its groups.
  struct Told {
    NamespaceHandle handle = kNone;  // to be held at once
    bool agrees = true;              // false: the group is known otherwise, and stays so
  };
  Told learn(const NamespaceName& name, const GroupSchema& schema);
  void hold(NamespaceHandle handle);
  void release(NamespaceHandle handle);

  [[nodiscard]] bool known(NamespaceHandle handle) const noexcept {
    return handle < entries_.size() && entries_[handle].known;
  }
  [[nodiscard]] bool opened(NamespaceHandle handle) const noexcept {
    return known(handle) && entries_[handle].users > 0;
  }
  // Requires known(handle).
  [[nodiscard]] const NamespaceInfo& at(NamespaceHandle handle) const noexcept { return entries_[handle]; }
  // What the tenant of a known one takes up.
  [[nodiscard]] TenantSpace& tenant(NamespaceHandle handle) const noexcept { return *entries_[handle].tenant; }
  [[nodiscard]] TenantSpaces& tenants() const noexcept { return *tenants_; }
  [[nodiscard]] RecordKey key_of(NamespaceHandle handle, const block::RecordId& id) const noexcept {
    return {handle, id, record_hash(entries_[handle].hash, id)};
  }

 private:
  NamespaceHandle find_or_add(const NamespaceName& name);
  void forget_unused(NamespaceHandle handle);
  [[nodiscard]] Status may_open(const std::string& tenant) const;

  std::uint64_t record_bytes_max_;
  std::unique_ptr<TenantSpaces> tenants_;
  std::deque<NamespaceInfo> entries_;
  std::vector<NamespaceHandle> free_;  // of entries that are not known
  std::map<block::NamespaceHash, NamespaceHandle> by_hash_;
  std::size_t opened_ = 0;
  bool reading_ = false;
};

}  // namespace kvd::store
