// NetBench: workloads of one client on a depot that runs, timed: what `kvdepot bench net` shows.
//
// Records are numbered; keys and the first bytes of every slab follow from the number, and the client verifies all
// slabs, so a wrong answer is an error here. All records are in a namespace of this object's own, which nobody else
// finds. Everything blocks; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cmd/stopwatch.h"
#include "cmd/store_bench.h"
#include "kvdepot/client.h"

namespace kvd::cmd {

struct NetBenchOptions {
  std::string depot;                                       // as Client::open()
  bool shared_memory = false;                              // of the depot's host, where that is possible
  std::string token_file;                                  // as ClientOptions::token_file
  std::string tls_ca, tls_cert, tls_key, tls_server_name;  // as in ClientOptions
  std::string tenant = "default";                          // of the records
  std::uint64_t bytes = std::uint64_t{64} << 20;           // of the records that are kept in the depot at once
  RecordSize size;
};

struct NetFigures {
  RunFigures run;                 // processor time is this process's, the client's
  std::vector<double> latency_s;  // of each request, from its submission to its end
};

class NetBench {
 public:
  static constexpr std::uint32_t kDepth = 8;                              // requests at once
  static constexpr std::uint64_t kRequestBytes = std::uint64_t{2} << 20;  // of one request, at least one record
  static constexpr std::uint32_t kMatchKeys = 512;                        // of one lookup

  // Connects. Errors as Client::open(); kNoSpace: not two records in options.bytes.
  static Result<std::unique_ptr<NetBench>> open(const NetBenchOptions& options);
  ~NetBench();  // removes what put() has stored, as far as the depot answers
  NetBench(const NetBench&) = delete;
  NetBench& operator=(const NetBench&) = delete;

  // Each stores, gets, or looks up; a repetition stores new records in place of the old. Errors: what the first
  // operation that failed ended with, and `why` in words; kNotFound: a record that was stored is missing; kCorrupt:
  // wrong bytes.
  Result<NetFigures> put();
  Result<NetFigures> get(double seconds);    // for that long; all records at least once
  Result<NetFigures> match(double seconds);  // of the first kMatchKeys records
  Status remove();
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  struct Request {
    OpId op = 0;
    std::uint32_t first = 0, count = 0;  // records; they lie at the same places in both regions
  };

  NetBench(const NetBenchOptions& options, std::unique_ptr<Client> client);
  Status prepare();
  void fill();
  [[nodiscard]] KeyList keys(std::uint32_t first, std::uint32_t count) const noexcept;
  [[nodiscard]] Placement place(std::uint32_t first, std::uint32_t count, RegionId region) const noexcept;
  [[nodiscard]] Request request(std::uint64_t number) const noexcept;
  bool take(const Request& request) noexcept;
  // Keeps kDepth requests going until `seconds` have passed and all records were in one.
  template <class Submit, class Check>
  Result<NetFigures> pump(double seconds, Submit submit, Check check);
  Result<Completion> finish(OpId op);

  const NetBenchOptions options_;
  const std::uint32_t records_;
  const std::uint32_t batch_;
  NamespaceId ns_ = 0;
  std::vector<std::byte> source_, target_;
  RegionId source_region_{}, target_region_{};
  std::vector<std::uint64_t> hashes_;  // of the records that are stored: keys
  std::vector<std::uint64_t> layer_offset_, block_offset_;
  std::uint64_t numbers_used_ = 0;
  bool stored_ = false;
  std::string why_;
  std::unique_ptr<Client> client_;  // the last: ends before the memory that it reads and writes
};

}  // namespace kvd::cmd
