#include "store/recovery.h"

#include <errno.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "store/aligned_buffer.h"
#include "store/blocking_disk.h"
#include "store/footer_reader.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kHeadersAtOnce = 256;  // as many operations as a disk takes
constexpr std::size_t kEnteredAtOnce = 32;     // records whose reads of the index overlap

// Reads of one page each, started together.
class PageBatch {
 public:
  PageBatch(Flash& flash, std::uint32_t count) : flash_(flash), pages_(std::size_t{count} * kPageBytes), ops_(count) {}

  void read(std::uint32_t i, std::uint64_t offset) {
    Slot& slot = ops_[i];
    slot.buffer = {page(i).data(), kPageBytes};
    slot.op.offset = offset;
    slot.op.buffers = {&slot.buffer, 1};
    slot.op.on_done = [this, &slot](Status status) {
      slot.status = status;
      --pending_;
    };
    ++pending_;
    flash_.submit(slot.op);
  }
  void wait() {
    while (pending_ > 0) flash_.loop.run_once(Duration::max());
  }
  [[nodiscard]] MutableBytes page(std::uint32_t i) const { return pages_.span().subspan(i * kPageBytes, kPageBytes); }
  [[nodiscard]] const Status& status(std::uint32_t i) const { return ops_[i].status; }

 private:
  struct Slot {
    io::DiskOp op;
    iovec buffer{};
    Status status;
  };
  Flash& flash_;
  AlignedBuffer pages_;
  std::vector<Slot> ops_;
  std::uint32_t pending_ = 0;
};

// Whether two tombstones say the same.
bool same(const Tombstone& a, const Tombstone& b) {
  return a.segment == b.segment && a.generation == b.generation && a.key.hash == b.key.hash && a.put_seq == b.put_seq;
}

}  // namespace

Recovery::Recovery(Flash& flash, Pool& pool)
    : flash_(flash), pool_(pool), seqs_(flash.segments.count(), [this](std::uint32_t segment) {
        return read_footer({segment, flash_.segments.at(segment).generation, false});
      }) {}

Result<RecoveryReport> Recovery::run() {
  std::vector<Use> uses;
  if (auto read = read_headers(uses); !read) return fail(read.error());
  // Newest first: when the index has become smaller, the oldest segments are the ones that go.
  std::ranges::sort(uses, std::greater<>(), &Use::generation);
  for (const Use& use : uses) {
    flash_.generation_next = std::max(flash_.generation_next, use.generation + 1);
    flash_.segments.at(use.segment).generation = use.generation;
    flash_.segments.at(use.segment).order = use.generation;
  }
  // Above all of earlier openings, also of headers that are damaged now: their footers must not count for a new use.
  flash_.generation_next = std::max(flash_.generation_next, flash_.volume.boot_epoch() << 32);
  // And a put of this opening is newer than what lies in a segment that only a later opening can read again.
  flash_.put_seq_next = std::max(flash_.put_seq_next, flash_.volume.boot_epoch() << 40);
  std::vector<std::pair<Use, bool>> sealed;
  std::vector<SegmentUse> wanted;
  for (const Use& use : uses) wanted.push_back(whole(use));
  FooterReader footers(flash_, std::move(wanted));
  for (const Use& use : uses) {
    auto footer = footers.next();
    if (!footer) footer = read_footer(use);
    bool has_footer = footer.has_value();
    if (!has_footer) {
      footer = scan(use);
      if (footer->content.descriptors.empty()) continue;  // begun and never used: free
      ++report_.scanned;
      has_footer = write_footer(use, *footer);
    }
    ++report_.segments;
    seqs_.note(use.segment, footer->content.descriptors, has_footer);
    sealed.emplace_back(use, absorb(use, *footer));
  }
  sort_for_eviction(sealed);
  for (const auto& [use, absorbed] : sealed) {
    flash_.segments.seal(use.segment, use.refused);
    if (!absorbed) surplus_.push_back(use.segment);
  }
  apply_tombstones();
  report_.records = flash_.index.size();
  return report_;
}

void Recovery::sort_for_eviction(std::vector<std::pair<Use, bool>>& sealed) const {
  std::unordered_map<std::uint32_t, std::uint64_t> rank;  // of listed segments, the most recently used highest
  std::uint64_t listed_newest = 0;
  for (std::size_t i = 0; i < recent_.size(); ++i) rank[recent_[i]] = recent_.size() - i;
  for (const auto& [use, absorbed] : sealed)
    if (rank.contains(use.segment)) listed_newest = std::max(listed_newest, use.generation);
  // Segments that are not listed were used less than all that are, or were not sealed yet when the list was written.
  const auto order = [&](const std::pair<Use, bool>& s) {
    const auto at = rank.find(s.first.segment);
    const int place = at != rank.end() ? 1 : s.first.generation > listed_newest ? 2 : 0;
    return std::tuple(place, at != rank.end() ? at->second : s.first.generation);
  };
  std::ranges::sort(sealed, {}, order);
}

Status Recovery::read_headers(std::vector<Use>& uses) {
  std::uint32_t unreadable = 0;
  PageBatch batch(flash_, std::min(kHeadersAtOnce, flash_.segments.count()));
  for (std::uint32_t first = 0; first < flash_.segments.count(); first += kHeadersAtOnce) {
    const std::uint32_t count = std::min(kHeadersAtOnce, flash_.segments.count() - first);
    for (std::uint32_t i = 0; i < count; ++i) batch.read(i, flash_.volume.offset_of(first + i));
    batch.wait();
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto parse = [&](const Status& status) {
        return status ? parse_segment_header(batch.page(i), flash_.volume.seeds(), first + i)
                      : Result<SegmentHeader>(fail(status.error()));
      };
      auto header = parse(batch.status(i));
      if (!header && (!batch.status(i) || load<std::uint64_t>(batch.page(i).data()) != 0)) {
        const Status again =
            BlockingDisk(flash_.loop, flash_.volume.disk()).read(flash_.volume.offset_of(first + i), batch.page(i));
        header = parse(again);
        if (!again) ++unreadable;
      }
      if (!header) continue;
      uses.push_back({first + i, header->generation, (header->features & ~kFeaturesKnown) != 0});
      if (header->generation <= recent_generation_) continue;
      recent_generation_ = header->generation;
      recent_ = parse_recent(batch.page(i));
    }
  }
  if (unreadable == flash_.segments.count()) return fail(Code::kIo, "no segment of the flash file can be read", EIO);
  return {};
}

ReadSegment Recovery::reader_of(const Use& use) {
  return [this, start = flash_.volume.offset_of(use.segment)](std::uint64_t offset, MutableBytes to) {
    return BlockingDisk(flash_.loop, flash_.volume.disk()).read(start + offset, to);
  };
}

SegmentUse Recovery::whole(const Use& use) const {
  return {use.segment, use.generation, flash_.volume.segment_bytes()};
}

Result<Footer> Recovery::read_footer(const Use& use) {
  return store::read_footer(reader_of(use), flash_.volume.seeds(), whole(use));
}

// ---- Segments without a footer ----

Footer Recovery::scan(const Use& use) {
  Footer footer;
  SegmentContent read;           // everything the frames say
  std::vector<Descriptor> good;  // of these, what verifies
  const auto verify = [&](const FrameHead& head, std::uint32_t page, std::size_t first) {
    verify_frame(use, head, first, page, read, good);
  };
  const auto [frames, end] = walk_frames(reader_of(use), flash_.volume.seeds(), whole(use), UINT32_MAX, read, verify);
  read.descriptors = std::move(good);
  footer.content = std::move(read);
  footer.trailer.segment = use.segment;
  footer.trailer.generation = use.generation;
  footer.trailer.frames = frames;
  footer.trailer.data_pages = end;
  return footer;
}

void Recovery::verify_frame(const Use& use, const FrameHead& head, std::size_t first_descriptor,
                            std::uint32_t first_page, SegmentContent& content, std::vector<Descriptor>& good) {
  const std::uint32_t payload = first_page + head.descriptor_bytes / 4096;
  for (std::size_t i = first_descriptor; i < content.descriptors.size(); ++i) {
    const Descriptor& d = content.descriptors[i];
    const bool inside = d.tombstone() || d.offset >= payload;
    if (inside && servable(d, content, payload + head.payload_pages) &&
        (record_verifies(use, d, content) || record_verifies(use, d, content))) {
      good.push_back(d);
    } else {
      ++report_.dropped;
    }
  }
}

bool Recovery::record_verifies(const Use& use, const Descriptor& d, const SegmentContent& content) {
  if (d.tombstone()) return true;
  const GroupInfo group{content.schemas[d.schema], block::shape_of(content.schemas[d.schema], true),
                        block::shape_of(content.schemas[d.schema], false)};
  const block::RecordShape& shape = *group.shape_of_pages(d.length / 4096);
  RecordKey key;
  key.ns = Namespaces::kNone;
  key.id = {d.key(), d.shard, group.schema.group};
  PoolRecord* image = pool_.allocate(key, shape);
  if (image == nullptr) return false;  // larger than the pool: it could not be served either
  const bool ok = reader_of(use)(std::uint64_t{d.offset} * kPageBytes, {image->image, image->bytes()}).has_value() &&
                  check_record({image->image, image->bytes()}, d, content).has_value();
  pool_.detach(*image);
  return ok;
}

bool Recovery::write_footer(const Use& use, Footer& footer) {
  SegmentContent& content = footer.content;
  const std::size_t bytes = footer_bytes(content.schemas.size(), content.namespaces.size(), content.descriptors.size());
  if (bytes / kPageBytes + footer.trailer.data_pages > flash_.volume.segment_pages()) return false;
  footer.usage.resize(content.namespaces.size());
  for (const Descriptor& d : content.descriptors) {
    footer.trailer.put_seq_max = std::max(footer.trailer.put_seq_max, d.put_seq);
    if (d.tombstone()) continue;
    footer.usage[d.name_space].records += 1;
    footer.usage[d.name_space].bytes += d.length;
  }
  footer.trailer.boot_epoch = flash_.volume.boot_epoch();
  const AlignedBuffer area(bytes);
  encode_footer(area.span(), flash_.volume.seeds(), footer.trailer, content, footer.usage);
  BlockingDisk disk(flash_.loop, flash_.volume.disk());
  const std::uint64_t end = flash_.volume.offset_of(use.segment) + flash_.volume.segment_bytes();
  // Without it the next start scans again; nothing is lost.
  const auto written = disk.write(end - bytes, area.span());
  if (!written)
    flash_.log.warn(
        fmt::format("store: the footer of segment {} was not written: {}", use.segment, error_text(written.error())));
  return written.has_value();
}

// ---- Into memory ----

// Enters what a segment holds; false when the index has no room for all of it.
bool Recovery::absorb(const Use& use, const Footer& footer) {
  const SegmentContent& content = footer.content;
  bool room = true;
  std::unordered_map<std::uint32_t, NamespaceHandle> handles;  // of a namespace with a schema: few, or one a record
  std::vector<Entering> entering;
  entering.reserve(kEnteredAtOnce);
  for (const Descriptor& d : content.descriptors) {
    flash_.put_seq_next = std::max(flash_.put_seq_next, d.put_seq + 1);
    if (!servable(d, content, footer.trailer.data_pages)) {
      ++report_.dropped;
      continue;
    }
    const auto [known, is_new] = handles.try_emplace(std::uint32_t{d.name_space} << 16 | d.schema);
    if (is_new) {
      known->second = flash_.namespaces.learn(content.namespaces[d.name_space], content.schemas[d.schema]);
      flash_.hold_namespace(use.segment, known->second);
    }
    const NamespaceHandle ns = known->second;
    const RecordKey key = flash_.namespaces.key_of(ns, {d.key(), d.shard, content.schemas[d.schema].group});
    if (d.tombstone()) {
      if (d.offset < flash_.segments.count())
        tombstones_.push_back({key, d.put_seq, d.offset, d.checksum, use.segment, use.generation});
    } else if (!use.refused) {
      flash_.index.prefetch(key.hash);
      entering.push_back({&d, key});
      if (entering.size() == kEnteredAtOnce) room = enter(use, entering) && room;
    }
  }
  return enter(use, entering) && room;
}

// False when there was no room for one.
bool Recovery::enter(const Use& use, std::vector<Entering>& entering) {
  std::uint64_t entered = 0;
  for (const Entering& record : entering) entered += insert(use, *record.descriptor, record.key) ? 1 : 0;
  const bool all = entered == entering.size();
  report_.dropped += entering.size() - entered;
  entering.clear();
  return all;
}

// Of two copies in different segments the newer is a tombstone of the older: it must not end before that does. Within a
// segment later is newer: records are appended in the order of their puts.
bool Recovery::insert(const Use& use, const Descriptor& d, const RecordKey& key) {
  const std::uint64_t hash = key.hash;
  const auto other = flash_.index.find(hash);
  if (other && other->segment != use.segment) {
    const std::uint64_t generation = flash_.segments.at(other->segment).generation;
    // Where it cannot be told any more, the one in the segment that was begun later stays.
    if (!seqs_.newer(d.put_seq, other->segment, other->offset, false)) {
      const auto seq = seqs_.at(other->segment, other->offset);
      if (seq && *seq > d.put_seq)
        tombstones_.push_back({key, *seq, use.segment, use.generation, other->segment, generation});
      return true;
    }
    tombstones_.push_back({key, d.put_seq, other->segment, generation, use.segment, use.generation});
  } else if (!other && flash_.index.size() >= flash_.index.records_max()) {
    return false;
  }
  return flash_.enter(key, {use.segment, d.offset, d.length / 4096, 0, static_cast<std::uint32_t>(d.checksum)});
}

// The youngest segment whose tombstones are all in others, too, or name nothing any more; tombstones_ is sorted.
std::optional<std::uint32_t> Recovery::segment_of_copies() const {
  std::vector<bool> needed(flash_.segments.count());
  for (std::size_t i = 0, end = 0; i < tombstones_.size(); i = end) {
    const Tombstone& t = tombstones_[i];
    while (end < tombstones_.size() && same(t, tombstones_[end])) ++end;
    const bool names_something = t.segment != t.holder && t.generation == flash_.segments.at(t.segment).generation;
    if (end == i + 1 && names_something) needed[t.holder] = true;
  }
  std::optional<std::uint32_t> youngest;
  for (std::uint32_t s = 0; s < needed.size(); ++s)
    if (!needed[s] && flash_.segments.at(s).state == SegmentState::kSealed &&
        (!youngest || flash_.segments.at(s).generation > flash_.segments.at(*youngest).generation))
      youngest = s;
  return youngest;
}

void Recovery::apply_tombstones() {
  for (std::size_t i = 0, end = tombstones_.size(); i < end; ++i) {
    const Tombstone t = tombstones_[i];
    const auto entry = flash_.index.find(t.key.hash);
    if (!entry || !seqs_.newer(t.put_seq, entry->segment, entry->offset, true)) continue;
    // What it hides in another segment than the one that it names may outlive that one.
    if (entry->segment != t.segment)
      tombstones_.push_back({t.key, t.put_seq, entry->segment, flash_.segments.at(entry->segment).generation, t.holder,
                             t.holder_generation});
    flash_.leave(t.key, entry->segment, entry->offset);
  }
  // A crash while tombstones were carried over leaves two copies. One is enough, and not the one in a segment of which
  // all are elsewhere, too: that may be all that is free to be given up, so it must have nothing to carry.
  const auto sort = [&](std::optional<std::uint32_t> last) {
    std::ranges::sort(tombstones_, {}, [last](const Tombstone& t) {
      return std::tuple(t.segment, t.generation, t.key.hash, t.put_seq, t.holder == last, t.holder_generation);
    });
  };
  sort({});
  sort(segment_of_copies());
  const auto rest = std::ranges::unique(tombstones_, same);
  tombstones_.erase(rest.begin(), rest.end());
  for (const Tombstone& tombstone : tombstones_) {
    flash_.hold_namespace(tombstone.segment, tombstone.key.ns);
    flash_.tombstones.restore(tombstone);
  }
}

}  // namespace kvd::store
