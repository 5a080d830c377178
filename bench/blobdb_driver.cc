// blobdb_driver: the same runs as store_driver's put and get on RocksDB with BlobDB, as JSON on stdout.
//
// Set up as RocksDB's wiki says for large values: integrated BlobDB (every value in blob files), garbage collection of
// blobs on, no compression, direct reads and direct flushes, checksums verified. Writes go through the write-ahead log
// without a sync, which is what kvdepot calls `written`: they survive SIGKILL. Values carry their number, and the get
// run compares it.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

namespace {

struct Wanted {
  std::string what, dir;
  std::uint64_t size = 65536, first = 0, count = 0, records = 0, bytes = 0, seed = 1;
  unsigned keys = 64, threads = 8;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string key_of(std::uint64_t number) {
  // Hashed, as keys of KV blocks are.
  std::uint64_t x = number + 1;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  std::string key(16, '\0');
  std::memcpy(key.data(), &x, 8);
  std::memcpy(key.data() + 8, &number, 8);
  return key;
}

rocksdb::Options make_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.enable_blob_files = true;
  options.min_blob_size = 0;
  options.blob_file_size = 256ull << 20;
  options.enable_blob_garbage_collection = true;
  options.compression = rocksdb::kNoCompression;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  options.write_buffer_size = 128ull << 20;
  options.max_write_buffer_number = 3;
  options.max_background_jobs = 2;
  options.max_total_wal_size = 512ull << 20;
  rocksdb::BlockBasedTableOptions table;
  table.cache_index_and_filter_blocks = false;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

bool put(rocksdb::DB& db, const Wanted& wanted) {
  std::string value(wanted.size, '\0');
  std::mt19937_64 random(7);
  for (std::size_t at = 0; at + 8 <= value.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(value.data() + at, &word, 8);
  }
  for (std::uint64_t n = wanted.first; n < wanted.first + wanted.count; ++n) {
    std::memcpy(value.data(), &n, 8);
    if (!db.Put(rocksdb::WriteOptions(), key_of(n), value).ok()) return false;
  }
  return db.Flush(rocksdb::FlushOptions()).ok();
}

// Threads take batches of keys from one list; each batch is one MultiGet.
bool get(rocksdb::DB& db, const Wanted& wanted, std::uint64_t& got) {
  std::vector<std::uint64_t> order(wanted.records);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(wanted.seed));
  const std::uint64_t count = std::min<std::uint64_t>(order.size(), wanted.bytes / wanted.size);
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> good{true};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < wanted.threads; ++t)
    threads.emplace_back([&] {
      for (std::uint64_t from = next.fetch_add(wanted.keys); from < count && good; from = next.fetch_add(wanted.keys)) {
        const std::uint64_t end = std::min<std::uint64_t>(from + wanted.keys, count);
        std::vector<std::string> keys;
        for (std::uint64_t i = from; i < end; ++i) keys.push_back(key_of(order[i]));
        const std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
        std::vector<rocksdb::PinnableSlice> values(keys.size());
        std::vector<rocksdb::Status> statuses(keys.size());
        db.MultiGet(rocksdb::ReadOptions(), db.DefaultColumnFamily(), keys.size(), slices.data(), values.data(),
                    statuses.data());
        for (std::uint64_t i = from; i < end; ++i) {
          const auto& value = values[i - from];
          if (!statuses[i - from].ok() || value.size() != wanted.size ||
              std::memcmp(value.data(), &order[i], sizeof order[i]) != 0)
            good = false;
        }
      }
    });
  threads.clear();
  got = count * wanted.size;
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One timed run on RocksDB with BlobDB", "blobdb_driver");
  Wanted wanted;
  app.add_option("what", wanted.what, "put or get")->required();
  app.add_option("--dir", wanted.dir)->required();
  app.add_option("--size", wanted.size);
  app.add_option("--first", wanted.first);
  app.add_option("--count", wanted.count);
  app.add_option("--records", wanted.records);
  app.add_option("--bytes", wanted.bytes);
  app.add_option("--seed", wanted.seed);
  app.add_option("--keys", wanted.keys, "of one MultiGet");
  app.add_option("--threads", wanted.threads);
  CLI11_PARSE(app, argc, argv);
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(make_options(), wanted.dir, &opened);
  if (!status.ok()) {
    std::fprintf(stderr, "blobdb_driver: %s\n", status.ToString().c_str());
    return 1;
  }
  const std::unique_ptr<rocksdb::DB> db(opened);
  const double begun = now(), cpu = cpu_now();
  std::uint64_t bytes = wanted.count * wanted.size;
  const bool good = wanted.what == "put" ? put(*db, wanted) : get(*db, wanted, bytes);
  const double seconds = now() - begun;
  if (!good) {
    std::fprintf(stderr, "blobdb_driver: %s: a record is missing or wrong\n", wanted.what.c_str());
    return 1;
  }
  std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", static_cast<unsigned long long>(bytes),
              seconds, cpu_now() - cpu);
  return 0;
}
