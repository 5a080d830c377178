#include "crash/journal.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "crash/machine.h"
#include "store/device_table.h"
#include "store/format.h"

namespace kvd::crash {

using io::DiskOp;

namespace {

void describe_frames(Bytes bytes, const store::FormatSeeds& seeds, store::FrameExpected expected, std::string& text) {
  for (std::uint32_t page = 1; page < kSegmentBytes / kPageBytes; ++expected.frame_seq) {
    store::SegmentContent content;
    expected.pages_left = static_cast<std::uint32_t>(kSegmentBytes / kPageBytes - page);
    const auto head = store::parse_frame(bytes.subspan(page * kPageBytes), seeds, expected, content);
    if (!head) break;
    for (const store::Descriptor& d : content.descriptors) {
      const auto record = record_of(d.key_lo);
      const std::string name = record ? fmt::format("record {}", *record) : "another record";
      const std::uint8_t version =
          d.tombstone() || !record ? 0 : version_of(*record, bytes.subspan(d.offset * kPageBytes, d.length));
      text += d.tombstone()
                  ? fmt::format("  frame {}: tombstone of {} in segment {} generation {:x}, seq {}\n", head->frame_seq,
                                name, d.offset, d.checksum, d.put_seq)
                  : fmt::format("  frame {}: {} version {}, seq {}\n", head->frame_seq, name, version, d.put_seq);
    }
    page += head->descriptor_bytes / 4096 + head->payload_pages;
  }
}

}  // namespace

std::string describe(const Start& start) {
  Image image = start.durable;
  for (const io::SimWrite& write : start.unflushed) image.write(write.offset, write.bytes);
  std::string text;
  for (std::size_t device = 0; device < start.oracle.devices(); ++device) {
    const io::SparseBytes& drive = image.bytes(device);
    std::vector<std::byte> bytes(kSegmentBytes);
    drive.read(0, MutableBytes(bytes).first(kPageBytes));
    const store::FormatSeeds seeds(load<store::Superblock>(bytes.data()).uuid);
    for (std::uint32_t segment = 0; segment < kSegments; ++segment) {
      drive.read(store::kHeadBytes + segment * kSegmentBytes, bytes);
      const auto header = store::parse_segment_header(Bytes(bytes).first(kPageBytes), seeds, segment);
      if (!header) continue;
      const auto trailer = store::peek_footer(bytes, segment, header->generation, kSegmentBytes);
      text += fmt::format("device {} segment {} generation {:x}, {}\n", device, segment, header->generation,
                          trailer ? fmt::format("footer of {} frames", trailer->frames) : "no footer");
      describe_frames(bytes, seeds, {header->generation, segment, 0, 0}, text);
    }
  }
  return text;
}

Journal::Journal(const Start& start) : oracle_(start.oracle), shared_(std::make_shared<const Oracle>(oracle_)) {
  writes_ = start.unflushed;
  for (std::uint32_t i = 0; i < writes_.size(); ++i) done_[drive_of(writes_[i].offset)].push_back(i);
}

void Journal::note(Step step, std::size_t drive, std::uint32_t index, bool oracle_changed) {
  if (oracle_changed || std::exchange(stale_, false)) shared_ = std::make_shared<const Oracle>(oracle_);
  events_.push_back({step, static_cast<std::uint8_t>(drive), index, shared_});
}

// A header or a frame, or a footer.
void Journal::written_to_log(std::size_t drive, std::uint64_t offset, Bytes bytes) {
  const std::uint64_t at = offset - store::kHeadBytes;
  const auto segment = static_cast<std::uint8_t>(drive * kSegments + at / kSegmentBytes);
  const std::uint32_t bit = std::uint32_t{1} << segment;
  if (at % kSegmentBytes == 0) {
    oracle_.given_up(segment);
    new_headers_ |= bit;
    return;
  }
  if ((new_headers_ & bit) != 0) oracle_.reused(segment);
  new_headers_ &= ~bit;
  read_frame(segment, bytes);
}

void Journal::submitted(std::size_t drive, std::uint64_t id, DiskOp::Kind kind, std::uint64_t offset, Bytes bytes) {
  ++now_;
  if (kind == DiskOp::Kind::kRead) return;
  if (kind == DiskOp::Kind::kSync) {
    open_.push_back({drive, id, static_cast<std::uint32_t>(done_[drive].size()), now_});
    return;
  }
  if (offset >= store::kHeadBytes) written_to_log(drive, offset, bytes);
  if (frozen_) return;
  open_.push_back({drive, id, static_cast<std::uint32_t>(writes_.size()), now_});
  writes_.push_back({.offset = drive * kDriveSpan + offset, .bytes = {bytes.begin(), bytes.end()}});
  note(Step::kSubmit, drive, open_.back().index, offset >= store::kHeadBytes);
}

std::string Journal::text() const {
  const auto place = [](const io::SimWrite& write) -> std::string {
    const std::size_t drive = drive_of(write.offset);
    const std::uint64_t offset = write.offset % kDriveSpan;
    if (drive == kListDrive) return fmt::format("list of devices {}", offset / store::kDeviceTableStride);
    if (offset == store::kUseTableAt) return fmt::format("device {} table of uses", drive);
    if (offset == store::kChangeMapAt) return fmt::format("device {} map of changes", drive);
    if (offset < store::kHeadBytes)
      return fmt::format("device {} superblock {}", drive, offset / store::kSuperblockStride);
    const std::uint64_t segment = (offset - store::kHeadBytes) / kSegmentBytes;
    const std::uint64_t page = (offset - store::kHeadBytes) % kSegmentBytes / kPageBytes;
    const std::size_t pages = (write.bytes.size() + kPageBytes - 1) / kPageBytes;
    if (load<std::uint64_t>(write.bytes.data()) != store::kMagicFrame)
      return fmt::format("device {} segment {} {} page {}, {} pages", drive, segment, page == 0 ? "header" : "footer",
                         page, pages);
    const auto head = load<store::FrameHead>(write.bytes.data());
    return fmt::format("device {} segment {} frame {} page {}, {} pages, {} records and tombstones", drive, segment,
                       head.frame_seq, page, pages, head.records);
  };
  std::string text;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    switch (event.step) {
      case Step::kSubmit:
        text += fmt::format("{:4} write {} {}\n", i + 1, event.index, place(writes_[event.index]));
        break;
      case Step::kComplete: text += fmt::format("{:4} done {}\n", i + 1, event.index); break;
      case Step::kFlush:
        text += fmt::format("{:4} drive {}: flushed {} writes\n", i + 1, event.drive, event.index);
        break;
      case Step::kPromise: text += fmt::format("{:4} acknowledged\n", i + 1); break;
    }
  }
  return text;
}

// Which versions go to flash here.
void Journal::read_frame(std::uint8_t segment, Bytes bytes) {
  const auto head = load<store::FrameHead>(bytes.data());
  if (head.magic != store::kMagicFrame) return;
  const std::byte* at = bytes.data() + sizeof head + head.schemas * sizeof(store::SchemaEntry) +
                        head.namespaces * sizeof(store::NamespaceEntry);
  std::size_t image = head.descriptor_bytes;
  for (std::uint32_t i = 0; i < head.records; ++i, at += sizeof(store::Descriptor)) {
    const auto d = load<store::Descriptor>(at);
    if (d.tombstone()) continue;
    if (const auto record = record_of(d.key_lo))
      if (const std::uint8_t version = version_of(*record, bytes.subspan(image, d.length)))
        oracle_.copied(*record, version, segment);
    image += d.length;
  }
}

void Journal::completed(std::size_t drive, std::uint64_t id, DiskOp::Kind kind, bool ok) {
  ++now_;
  const auto at = std::ranges::find_if(open_, [&](const Open& open) { return open.drive == drive && open.id == id; });
  if (at == open_.end()) return;
  const Open open = *at;
  open_.erase(at);
  if (!ok) return;
  if (kind == DiskOp::Kind::kSync) {
    oracle_.flushed(drive, open.at);
    if (!frozen_) note(Step::kFlush, drive, open.index, true);
  } else if (!frozen_) {
    done_[drive].push_back(open.index);
    note(Step::kComplete, drive, open.index, false);
  }
}

void Journal::acknowledged(std::size_t record, std::uint8_t version, AckLevel level) {
  ++now_;
  oracle_.acknowledged(record, version, level);
  if (!frozen_) note(Step::kPromise, 0, 0, true);
}

void Journal::removals_acknowledged(std::size_t before) {
  ++now_;
  oracle_.removals_acknowledged(before, now_);
  if (!frozen_) note(Step::kPromise, 0, 0, true);
}

// These two promise nothing more, so they are no reason to stop the machine there.
std::size_t Journal::removed(std::size_t record) {
  stale_ = true;
  return oracle_.removed(record);
}

std::uint8_t Journal::put(std::size_t record) {
  stale_ = true;
  return oracle_.put(record);
}

}  // namespace kvd::crash
