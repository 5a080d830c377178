// The clients of the net suite: one process is one client of one kind, told by lines on stdin what to do, and its
// figures are lines of JSON on stdout. What is the same for all kinds is here: the records, the pump that keeps a
// number of requests under way, times and processor time. An arm only sends a request and collects its answer.
//
//   records BYTES COUNT               records of so many bytes, with new content
//   put BATCH DEPTH SECONDS           all records at least once; BATCH records a request, DEPTH requests at once
//   get BATCH DEPTH SECONDS [RATE]    the same; RATE: bytes a second at the most, evenly
//   match KEYS SECONDS [STEP]         lookups of KEYS keys, one after the other (the depot's arm only), the same ones
//   each
//                                     time, or each time STEP records further on
//
// A process that meets an error prints {"error": "..."} and ends with status 1. Errors are exceptions here: a benchmark
// has nothing to do after one. Source and destination together are larger than the caches, so both are cold. One thread
// calls an arm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvd::bench {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// xxh3 of what is there as a whole.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

// xxh3 of a value that comes in pieces, each of which is still in the cache when it is added.
class ValueHash {
 public:
  ValueHash();
  ~ValueHash();
  void restart();
  void add(std::span<const std::byte> piece);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// `count` records back to back: what is put, and as much room for what is got.
class Records {
 public:
  // Random content, other with each seed; the destination is written once, so that no page is missing.
  Records(std::size_t record_bytes, std::uint32_t count, std::uint64_t seed);
  [[nodiscard]] std::size_t bytes() const noexcept { return record_bytes_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] std::span<std::byte> source(std::uint32_t i) noexcept { return at(source_, i); }
  [[nodiscard]] std::span<std::byte> target(std::uint32_t i) noexcept { return at(target_, i); }
  // xxh3 of record i, against which peers' clients verify what they got, as the depot's client does by itself.
  [[nodiscard]] bool matches(std::uint32_t i, std::span<const std::byte> got) const noexcept;
  [[nodiscard]] bool matches(std::uint32_t i, const ValueHash& hash) const { return hash.value() == hashes_[i]; }
  void wipe_targets();
  // Throws when a byte of a destination is not what was put.
  void compare_targets() const;

 private:
  [[nodiscard]] std::span<std::byte> at(std::vector<std::byte>& all, std::uint32_t i) noexcept {
    return std::span(all).subspan(i * record_bytes_, record_bytes_);
  }
  std::size_t record_bytes_;
  std::uint32_t count_;
  std::vector<std::byte> source_, target_;
  std::vector<std::uint64_t> hashes_;
};

enum class What : std::uint8_t { kPut, kGet };

// `count` neighbouring records.
struct Request {
  std::uint64_t number = 0;  // of this run; requests are finished in their order
  std::uint32_t first = 0, count = 0;
};

class Arm {
 public:
  virtual ~Arm() = default;
  // Records that requests name from now on; they outlive the arm's use of them.
  virtual void use(Records& records) = 0;
  virtual void send(What what, const Request& request) = 0;
  // Blocks until the oldest request is answered. Throws when a record is missing or wrong.
  virtual void finish(What what, const Request& request) = 0;
  // One lookup of `keys` records from number `first` on, all of which must be there.
  virtual void match(std::uint32_t first, std::uint32_t keys) {
    static_cast<void>(first);
    static_cast<void>(keys);
    throw Error("this client has no lookups");
  }
  // Gets land in Records::target() and are worth comparing.
  [[nodiscard]] virtual bool fills_targets() const noexcept { return true; }
};

// Obeys the lines on stdin until their end; the process' exit status.
int obey(Arm& arm);
// Runs `make` and obey(); what it throws is said on stdout.
template <class Make>
int obey_made(Make make);
int complain(const std::string& what);

template <class Make>
int obey_made(Make make) {
  try {
    const auto arm = make();
    return obey(*arm);
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}

}  // namespace kvd::bench
