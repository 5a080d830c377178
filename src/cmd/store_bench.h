// StoreBench: workloads on a store of its own, timed: what `kvdepot bench store` shows and what bench/store.py
// compares.
//
// Records are numbered; their keys and bytes follow from the number, so every get can be told right from wrong without
// keeping anything. Slabs carry their number and layer in their first 16 bytes; the store's checksums, which are always
// on, cover the rest. The store is used as an embedding program uses it: one loop, one thread. Everything blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cmd/stopwatch.h"
#include "io/loop.h"
#include "store/store.h"

namespace kvd::cmd {

// A record of `layers` slabs. One layer: no table page; such a record of 64 KiB is one I/O of 64 KiB.
struct RecordSize {
  std::uint16_t layers = 1;
  std::uint32_t slab_bytes = 64 << 10;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return std::uint64_t{layers} * slab_bytes; }
};

inline constexpr RecordSize kRecordSizes[] = {{1, 64 << 10}, {4, 64 << 10}, {16, 64 << 10}, {64, 64 << 10}};

// What all benchmarks of stores put: the namespace of such records, the key of record `number`, and what its slabs
// begin with (at least 16 bytes).
Namespace bench_namespace(const RecordSize& size);
block::RecordId bench_record(std::uint64_t number);
void bench_stamp(MutableBytes slab, std::uint64_t number, std::uint32_t layer);

struct StoreBenchOptions {
  std::string dir;
  std::uint64_t pool_bytes = std::uint64_t{512} << 20;
  std::uint64_t flash_bytes = std::uint64_t{4} << 30;  // in `dir`, and in each of
  std::vector<std::string> devices = {};
  RecordSize size;
  bool verify = true;  // as StoreOptions::verify: off only to learn what verification costs
};

// How keys are asked for: `keys` in one request, `requests` of them at once.
struct GetPattern {
  std::uint64_t records = 0;  // numbers 0 .. records - 1 are stored
  std::uint64_t bytes = 0;    // about so much is read, each record at most once
  std::uint32_t keys = 64;
  std::uint32_t requests = 2;
  bool in_order = false;  // as they were put; otherwise in an order without neighbours
  std::uint64_t seed = 1;
};

class StoreBench {
 public:
  // Opens or creates the store in options.dir. `why` as Store::open().
  static Result<std::unique_ptr<StoreBench>> open(Log& log, const StoreBenchOptions& options, std::string& why);
  ~StoreBench();

  [[nodiscard]] std::uint64_t drives() const noexcept { return 1 + options_.devices.size(); }
  // How many records fit without any being evicted, with room for open and ready segments.
  [[nodiscard]] std::uint64_t records_max() const;
  // Puts the records [first, first + count), each acknowledged `written`. kIo when one was not.
  Result<RunFigures> put(std::uint64_t first, std::uint64_t count);
  // Gets from flash. kNotFound: a miss; kCorrupt: wrong bytes.
  Result<RunFigures> get(const GetPattern& pattern);
  // One request for records [first, first + count): whole, or in layer order as a depot asks: the first layers alone,
  // then groups of layers of at least 256 KiB, read ahead.
  Result<RunFigures> get_layers(std::uint64_t first, std::uint64_t count, bool whole);
  // Gets records [0, count), which fit into the pool and are in it after one round, `rounds` times. kBorrow: pinned and
  // not copied; kCopy: into cold memory, hashed in the same pass; kMemcpy: a plain copy of the same bytes, without
  // gets.
  enum class PoolGet : std::uint8_t { kBorrow, kCopy, kMemcpy };
  Result<RunFigures> get_from_pool(std::uint64_t count, std::uint32_t rounds, PoolGet how);
  // Writes what is dirty, flushes, closes. The store is gone afterwards.
  void close();

 private:
  StoreBench(Log& log, const StoreBenchOptions& options) : log_(log), options_(options) {}
  struct Request;
  struct LayerRun;

  Status start(std::string& why);
  void wait_for_pool();
  void fill_source();
  Status put_one(std::uint64_t number, std::uint64_t& waiting, Status& worst);
  // Whether a view holds the layers [first, ...) of record `number`.
  [[nodiscard]] bool right(const store::RecordView& view, std::uint64_t number, std::uint32_t first) const;
  [[nodiscard]] MutableBytes destination(std::vector<std::byte>& to, std::uint64_t number) const;
  Status pass_pool(std::uint64_t count, bool copy, std::vector<std::byte>& to);
  Result<RunFigures> copy_pool(std::uint64_t count, std::uint32_t rounds, std::vector<std::byte>& to);
  Result<store::RecordView> get_now(std::uint64_t number);

  Log& log_;
  StoreBenchOptions options_;
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<store::Store> store_;
  store::NamespaceHandle ns_ = 0;
  std::vector<std::byte> source_;  // payload to put, but for the first 16 bytes of each slab
};

}  // namespace kvd::cmd
