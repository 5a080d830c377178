#include "bench/sparse_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "block/checksum.h"
#include "io/fd.h"
#include "store/aligned_buffer.h"
#include "store/format.h"
#include "store/superblocks.h"
#include "store/volume.h"

namespace kvd::bench {
namespace {

constexpr std::uint64_t kSegmentBytes = store::kSegmentBytesMax;
constexpr std::uint32_t kSegmentPages = kSegmentBytes / kPageBytes;
constexpr std::uint64_t kFrameBytes = std::uint64_t{2} << 20;  // as store::Demoter fills them
constexpr std::uint32_t kReservePages = 16;                    // as store::OpenSegment keeps them
constexpr std::uint64_t kFreeSegments = 4;

class Maker {
 public:
  Maker(const SparseOptions& options, io::UniqueFd file)
      : options_(options),
        file_(std::move(file)),
        ns_(cmd::bench_namespace(options.size)),
        shape_(block::shape_of(ns_.groups[0], false)),
        seeds_(uuid_),
        image_(shape_.record_bytes()) {}

  Result<std::uint64_t> make();

 private:
  [[nodiscard]] std::uint32_t pages() const { return static_cast<std::uint32_t>(shape_.record_bytes() / kPageBytes); }
  [[nodiscard]] std::uint32_t in_a_frame() const {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(kFrameBytes / shape_.record_bytes(), 1));
  }
  // Of a record in its segment: a page of descriptors before each frame.
  [[nodiscard]] std::uint32_t page_of(std::uint64_t i) const {
    return static_cast<std::uint32_t>(1 + i * pages() + i / in_a_frame() + 1);
  }
  [[nodiscard]] std::uint64_t in_a_segment() const;
  Status write(std::uint64_t offset, Bytes bytes) const;
  Status write_superblocks(std::uint64_t segments);
  Status write_segment(std::uint32_t segment, std::uint64_t first, std::uint64_t count, bool real);
  // Its image, into image_; the checksum of its descriptor.
  std::uint64_t fill_image(std::uint64_t number);

  const SparseOptions& options_;
  io::UniqueFd file_;
  Namespace ns_;
  block::RecordShape shape_;
  const store::Uuid uuid_ = store::random_uuid();
  store::FormatSeeds seeds_;
  store::AlignedBuffer image_;
};

std::uint64_t Maker::in_a_segment() const {
  std::uint64_t count = (kSegmentPages - 1 - kReservePages) / pages();
  while (page_of(count) + store::footer_bytes(1, 1, count) / kPageBytes + kReservePages > kSegmentPages) --count;
  return count;
}

Status Maker::write(std::uint64_t offset, Bytes bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return fail(Code::kIo, "writing the sparse store", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

Status Maker::write_superblocks(std::uint64_t segments) {
  store::Superblock block;
  block.uuid = uuid_;
  block.generation = 1;
  block.boot_epoch = 1;
  block.segment_bytes = kSegmentBytes;
  block.segments = segments;
  const store::AlignedBuffer page(kPageBytes);
  for (; block.copy < store::kSuperblockCopies; ++block.copy) {
    store::encode_superblock(page.span(), block);
    if (auto written = write(block.copy * store::kSuperblockStride, page.span()); !written) return written;
  }
  return {};
}

std::uint64_t Maker::fill_image(std::uint64_t number) {
  const std::uint64_t seed = block::record_seed(cmd::bench_record(number), shape_);
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < shape_.layers; ++layer) {
    const MutableBytes slab = image_.span().subspan(shape_.slab_offset(layer), shape_.slab_bytes);
    cmd::bench_stamp(slab, number, layer);
    checksums.push_back(block::slab_checksum(seed, layer, slab));
  }
  if (shape_.table_bytes == 0) return checksums[0];
  const MutableBytes table = image_.first(shape_.table_bytes);
  block::encode_table(table, seed, checksums, {});
  return block::decode_table(table, seed, shape_)->checksum;
}

Status Maker::write_segment(std::uint32_t segment, std::uint64_t first, std::uint64_t count, bool real) {
  const std::uint64_t start = store::kHeadBytes + segment * kSegmentBytes;
  store::SegmentHeader header;
  header.segment = segment;
  header.uuid = uuid_;
  header.generation = (std::uint64_t{1} << 32) + segment;
  header.boot_epoch = 1;
  header.segment_bytes = kSegmentBytes;
  const store::AlignedBuffer page(kPageBytes);
  // As a store that keeps a segment ready: the one before it is not begun yet when its header is written.
  store::encode_segment_header(page.span(), seeds_, header, {}, header.generation - (segment > 0 ? 1 : 0));
  if (auto written = write(start, page.span()); !written) return written;

  store::SegmentContent content{{ns_.groups[0]}, {{ns_.tenant, ns_.fingerprint}}, {}};
  for (std::uint64_t i = 0; i < count; ++i) {
    const block::RecordId id = cmd::bench_record(first + i);
    store::Descriptor d;
    d.key_hi = id.key.hi;
    d.key_lo = id.key.lo;
    d.offset = page_of(i);
    d.length = static_cast<std::uint32_t>(shape_.record_bytes());
    d.put_seq = first + i + 1;
    d.checksum = real ? fill_image(first + i) : id.key.hi;
    content.descriptors.push_back(d);
    if (!real) continue;
    if (auto written = write(start + std::uint64_t{d.offset} * kPageBytes, image_.span()); !written) return written;
  }
  store::FooterTrailer trailer;
  trailer.generation = header.generation;
  trailer.boot_epoch = 1;
  trailer.segment = segment;
  trailer.frames = static_cast<std::uint32_t>((count + in_a_frame() - 1) / in_a_frame());
  trailer.data_pages = page_of(count - 1) + pages();
  trailer.put_seq_max = first + count;
  const store::NamespaceUsage usage{count, count * shape_.record_bytes()};
  const store::AlignedBuffer footer(store::footer_bytes(1, 1, count));
  store::encode_footer(footer.span(), seeds_, trailer, content, {&usage, 1});
  return write(start + kSegmentBytes - footer.size(), footer.span());
}

Result<std::uint64_t> Maker::make() {
  const std::uint64_t each = in_a_segment();
  std::uint64_t segments = (options_.records + each - 1) / each + kFreeSegments;
  if (options_.flash_bytes > 0) segments = (options_.flash_bytes - store::kHeadBytes) / kSegmentBytes;
  const std::uint64_t room = (segments - kFreeSegments) * each;
  const std::uint64_t records = options_.records == 0 ? room : std::min(options_.records, room);
  const auto used = static_cast<std::uint32_t>((records + each - 1) / each);
  if (::ftruncate(file_.get(), static_cast<off_t>(store::kHeadBytes + segments * kSegmentBytes)) != 0)
    return fail(Code::kIo, "the file system takes no file of that size", errno);
  if (auto written = write_superblocks(segments); !written) return fail(written.error());
  for (std::uint32_t segment = 0; segment < used; ++segment) {
    const std::uint64_t first = segment * each;
    const bool real = segment + options_.real_segments >= used;
    if (auto written = write_segment(segment, first, std::min(each, records - first), real); !written)
      return fail(written.error());
  }
  if (::fsync(file_.get()) != 0) return fail(Code::kIo, "writing the sparse store", errno);
  return records;
}

}  // namespace

Result<std::uint64_t> make_sparse_store(const SparseOptions& options) {
  if (::mkdir(options.dir.c_str(), 0700) != 0) return fail(Code::kIo, "making the directory of a sparse store", errno);
  io::UniqueFd file(::open((options.dir + "/flash.kvd").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.ok()) return fail(Code::kIo, "creating a sparse store", errno);
  return Maker(options, std::move(file)).make();
}

}  // namespace kvd::bench
