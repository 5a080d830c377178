#include "store/verify.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "store/aligned_buffer.h"
#include "store/segment_scan.h"

namespace kvd::store {
namespace {

// One read serves all records in it: small records would otherwise be read one by one.
constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;
constexpr auto kProgressEvery = std::chrono::milliseconds(100);

// Verifies segments one after another; belongs to one thread.
class SegmentVerifier {
 public:
  explicit SegmentVerifier(const StoreReader& reader) : reader_(reader) {}

  void verify(std::uint32_t segment);
  [[nodiscard]] VerifyReport& report() noexcept { return report_; }

 private:
  void verify_record(const SegmentReport& found, const Descriptor& d);
  // The image of `d`, from the window or read anew. Valid until the next call.
  Result<Bytes> image_of(std::uint32_t segment, const Descriptor& d);

  const StoreReader& reader_;
  VerifyReport report_;
  AlignedBuffer window_{kWindowBytes};
  std::uint64_t window_at_ = 0, window_bytes_ = 0;
};

void SegmentVerifier::verify(std::uint32_t segment) {
  window_bytes_ = 0;
  SegmentReport found = read_segment(reader_, segment, true);
  if (found.holds_records()) {
    ++report_.segments_used;
    auto& descriptors = found.footer.content.descriptors;
    std::ranges::sort(descriptors, {}, &Descriptor::offset);
    for (const Descriptor& d : descriptors) {
      if (d.tombstone()) continue;
      ++report_.records;
      if (servable(d, found.footer.content, found.footer.trailer.data_pages)) {
        verify_record(found, d);
      } else {
        ++report_.records_ignored;
      }
    }
  }
  std::ranges::move(found.findings, std::back_inserter(report_.findings));
}

void SegmentVerifier::verify_record(const SegmentReport& found, const Descriptor& d) {
  const auto image = image_of(found.segment, d);
  const auto checked =
      image ? check_record(*image, d, found.footer.content) : Result<CheckedRecord>(fail(image.error()));
  if (checked) {
    report_.bytes += d.length;
    return;
  }
  ++report_.records_damaged;
  Error why = checked.error();
  if (!image) why.what = "cannot be read";
  report_.findings.push_back(
      {true, found.segment,
       fmt::format("record {:016x}{:016x} at page {}: {}", d.key_hi, d.key_lo, d.offset, error_text(why))});
}

Result<Bytes> SegmentVerifier::image_of(std::uint32_t segment, const Descriptor& d) {
  const std::uint64_t at = reader_.offset_of(segment, d.offset);
  const std::uint64_t end = reader_.offset_of(segment) + reader_.segment_bytes();
  if (at < window_at_ || at + d.length > window_at_ + window_bytes_) {
    if (d.length > window_.size()) window_ = AlignedBuffer(d.length);
    window_at_ = at;
    window_bytes_ = std::min<std::uint64_t>(std::max<std::uint64_t>(kWindowBytes, d.length), end - at);
    // An unreadable spot behind the record must not count against it.
    if (!reader_.read(at, window_.first(window_bytes_))) {
      window_bytes_ = d.length;
      if (auto status = reader_.read(at, window_.first(d.length)); !status) {
        window_bytes_ = 0;
        return fail(status.error());
      }
    }
  }
  return Bytes(window_.span()).subspan(at - window_at_, d.length);
}

void add(VerifyReport& sum, VerifyReport& part) {
  sum.records += part.records;
  sum.records_damaged += part.records_damaged;
  sum.records_ignored += part.records_ignored;
  sum.bytes += part.bytes;
  sum.segments_used += part.segments_used;
  std::ranges::move(part.findings, std::back_inserter(sum.findings));
}

void judge_superblocks(const StoreReader& reader, std::vector<Finding>& findings) {
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i)
    if (const char* what = reader.copy_damage(i))
      findings.push_back({true, Finding::kWholeStore, fmt::format("superblock copy {}: {}", i, what)});
  const std::uint64_t wanted = reader.offset_of(reader.segments());
  if (reader.file_bytes() < wanted)
    findings.push_back({true, Finding::kWholeStore,
                        fmt::format("the file has {} bytes, the store {}: it was cut", reader.file_bytes(), wanted)});
}

}  // namespace

std::uint64_t VerifyReport::damages() const noexcept {
  return static_cast<std::uint64_t>(std::ranges::count_if(findings, &Finding::damage));
}

VerifyReport verify_store(const StoreReader& reader, unsigned threads, const VerifyProgress& progress) {
  KVD_CHECK(threads >= 1);
  const std::uint32_t segments = reader.segments();
  std::atomic<std::uint32_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::vector<std::unique_ptr<SegmentVerifier>> parts;
  for (unsigned i = 0; i < threads; ++i) parts.push_back(std::make_unique<SegmentVerifier>(reader));
  std::vector<std::jthread> workers;
  for (auto& part : parts)
    workers.emplace_back([&, verifier = part.get()] {
      for (std::uint32_t s = next.fetch_add(1); s < segments; s = next.fetch_add(1)) {
        verifier->verify(s);
        if (done.fetch_add(1) + 1 == segments) {
          const std::lock_guard lock(mutex);
          finished.notify_all();
        }
      }
    });
  {
    std::unique_lock lock(mutex);
    while (!finished.wait_for(lock, kProgressEvery, [&] { return done.load() == segments; }))
      progress(done.load(), segments);
  }
  workers.clear();
  progress(segments, segments);
  VerifyReport report;
  judge_superblocks(reader, report.findings);
  const std::size_t heads = report.findings.size();
  for (auto& part : parts) add(report, part->report());
  // By segment, and as found within one, which is one worker's. (GCC 12's stable_sort uses what clang warns of.)
  std::map<std::uint32_t, std::vector<Finding>> by_segment;
  for (std::size_t i = heads; i < report.findings.size(); ++i)
    by_segment[report.findings[i].segment].push_back(std::move(report.findings[i]));
  report.findings.resize(heads);
  for (auto& [segment, findings] : by_segment) std::ranges::move(findings, std::back_inserter(report.findings));
  return report;
}

}  // namespace kvd::store
