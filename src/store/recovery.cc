#include "store/recovery.h"

#include <errno.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "store/aligned_buffer.h"
#include "store/footer_reader.h"
#include "store/use_table.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kHeadersAtOnce = 256;  // as many operations as a disk takes
constexpr std::size_t kEnteredAtOnce = 32;     // records whose reads of the index overlap
constexpr std::size_t kTurnRecords = 4096;     // entered in a turn of the loop: a millisecond or less
constexpr std::size_t kTurnTombstones = 2048;  // applied in one: each is looked up and sorted twice
// Parts of all tombstones: a few hundred in each where a store keeps the most; a small store has fewer.
constexpr std::size_t kTombstonePartsMax = 1024;
constexpr std::size_t kTombstonePartRecords = 256;  // that the index has room for, to a part

// Reads the first page of some segments of a device, many at once: when one is there it is looked at, and the next one
// is started.
class FirstPages {
 public:
  using OnPage = std::function<void(std::uint32_t segment, Bytes page, const Status& status)>;

  FirstPages(io::Loop& loop, FlashDevice& device, std::span<const std::uint32_t> segments, OnPage on_page)
      : loop_(loop),
        device_(device),
        segments_(segments),
        on_page_(std::move(on_page)),
        slots_(std::min<std::size_t>(kHeadersAtOnce, segments.size())),
        pages_(slots_.size() * kPageBytes) {}

  void read() {
    for (std::size_t i = 0; i < slots_.size(); ++i) start(i);
    while (pending_ > 0) loop_.run_once(Duration::max());
  }

 private:
  struct Slot {
    io::DiskOp op;
    iovec buffer{};
  };

  void start(std::size_t i) {
    if (next_ == segments_.size()) return;
    const std::uint32_t segment = segments_[next_++];
    const MutableBytes page = pages_.span().subspan(i * kPageBytes, kPageBytes);
    Slot& slot = slots_[i];
    slot.buffer = {page.data(), page.size()};
    slot.op.offset = device_.offset_of(segment);
    slot.op.buffers = {&slot.buffer, 1};
    slot.op.on_done = [this, i, segment, page](const Status& status) {
      --pending_;
      on_page_(segment, page, status);
      start(i);
    };
    ++pending_;
    device_.submit(slot.op);
  }

  io::Loop& loop_;
  FlashDevice& device_;
  std::span<const std::uint32_t> segments_;
  OnPage on_page_;
  std::vector<Slot> slots_;
  AlignedBuffer pages_;
  std::size_t next_ = 0, pending_ = 0;
};

// Whether two tombstones say the same.
bool same(const Tombstone& a, const Tombstone& b) {
  return a.segment == b.segment && a.generation == b.generation && a.key.hash == b.key.hash && a.put_seq == b.put_seq;
}

// Whether what holds it lies on another device than what it names.
bool is_elsewhere(const Tombstone& t, const Segments& segments) {
  return segments.at(t.holder).device != segments.at(t.segment).device;
}

// Those that say the same behind each other, those in segments of `last` behind others, and those that are told by what
// lies on another device behind these.
void sort_alike(std::vector<Tombstone>& tombstones, const std::vector<std::uint32_t>& last, const Segments& segments) {
  std::ranges::sort(tombstones, {}, [&](const Tombstone& t) {
    const bool in_last = std::ranges::find(last, t.holder) != last.end();
    return std::tuple(t.segment, t.generation, t.key.hash, t.put_seq, is_elsewhere(t, segments), in_last,
                      t.holder_generation);
  });
}

}  // namespace

Recovery::Recovery(Flash& flash, Meanwhile meanwhile)
    : flash_(flash),
      meanwhile_(std::move(meanwhile)),
      tombstones_(std::clamp<std::size_t>(flash.index.records_max() / kTombstonePartRecords, 1, kTombstonePartsMax)),
      seqs_(flash.segments.count(),
            [this](std::uint32_t segment) {
              return read_footer({segment, flash_.segments.at(segment).generation, false});
            }),
      recent_(flash.devices.size()) {}

Result<RecoveryReport> Recovery::run() {
  std::vector<Use> uses;
  for (const auto& device : flash_.devices)
    if (auto found = find_uses(*device, uses); !found) return fail(found.error());
  // Newest first: when the index has become smaller, the oldest segments are the ones that go.
  std::ranges::sort(uses, std::greater<>(), &Use::generation);
  number_on(uses);
  std::vector<FooterReader::Wanted> wanted;
  for (const Use& use : uses) wanted.push_back({&flash_.device_of(use.segment), whole(use)});
  FooterReader footers(flash_.loop, std::move(wanted));
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (stopped_ || !go_on()) return fail(Code::kCancelled, "recovery was stopped");
    take(uses[i], footers.next());
    if (meanwhile_ && i + 1 < uses.size()) known_above(uses[i + 1].generation);
    flash_.stats.recovery_percent.set((i + 1) * 99 / uses.size());  // the last one is for the tombstones
  }
  if (stopped_ || !finish()) return fail(Code::kCancelled, "recovery was stopped");
  report_.records = flash_.index.size();
  return report_;
}

// What this opening writes is numbered above all that is there.
void Recovery::number_on(const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    flash_.generation_next = std::max(flash_.generation_next, use.generation + 1);
    flash_.segments.at(use.segment).generation = use.generation;
    flash_.segments.at(use.segment).order = use.generation;
    flash_.segments.at(use.segment).unopened = use.unopened;
    FlashDevice& device = flash_.device_of(use.segment);
    device.unlisted = device.unlisted || use.refused;
    flash_.segments.unread(use.segment);
  }
  // Above all of earlier openings, also of headers that are damaged now: their footers must not count for a new use.
  const std::uint64_t epoch = flash_.boot_epoch();
  flash_.generation_next = std::max(flash_.generation_next, epoch << 32);
  // And a put of this opening is newer than what lies in a segment that only a later opening can read again.
  flash_.put_seq_next = std::max(flash_.put_seq_next, epoch << 40);
}

void Recovery::take(const Use& use, const Result<Footer*>& listed) {
  Result<Footer> other = listed ? Result<Footer>(fail(Code::kNotFound, "")) : read_footer(use);
  bool has_footer = listed.has_value() || other.has_value();
  if (!has_footer) {
    const bool hidden = other.error().code == Code::kIo;  // a footer, which a later start may read
    Scan found;
    other = scan(use, found);
    if (found.cut_short) leave_for_later(use, other->trailer.data_pages);
    const bool unread = found.cut_short || hidden || found.unreadable > 0;
    const bool empty = !unread && other->content.descriptors.empty();
    has_footer = !found.cut_short && !empty && write_footer(use, *other);
    // What is left out of a footer is there again where that is lost with power, or cannot be read.
    if (unread || (!has_footer && !empty && found.damaged > 0)) flash_.note_half_known(use.segment);
    tell_left_out(use, found, has_footer);
    if (empty) return flash_.segments.unread(use.segment, false);  // begun, never used
    ++report_.scanned;
  }
  const Footer& footer = listed ? **listed : *other;
  ++report_.segments;
  seqs_.note(use.segment, footer.content.descriptors, has_footer);
  taken_.emplace_back(use, absorb(use, footer));
  if (meanwhile_ && use.unopened != 0 && !use.refused) unserved_.push_back(use);
}

void Recovery::known_above(std::uint64_t generation) {
  std::erase_if(unserved_, [&](const Use& use) {
    if (use.unopened <= generation) return false;
    flash_.segments.recovered(use.segment);
    return true;
  });
}

bool Recovery::finish() {
  sort_for_eviction(taken_);
  for (const auto& [use, absorbed] : taken_) {
    flash_.segments.seal(use.segment);  // with which it may be chosen as a victim, but for what is half known
    if (!absorbed || use.refused || flash_.half_known(use.segment)) flash_.note_half_known(use.segment);
  }
  if (!apply_tombstones()) return false;
  // What is not absorbed is given up now, and not before what it tells is known.
  if (!std::ranges::all_of(taken_, &std::pair<Use, bool>::second)) flash_.doubts_end = true;
  return true;
}

void Recovery::sort_for_eviction(std::vector<std::pair<Use, bool>>& sealed) const {
  std::unordered_map<std::uint32_t, std::uint64_t> rank;  // of listed segments, a device's most recently used highest
  std::vector<std::uint64_t> listed_newest(recent_.size());
  for (const Recent& recent : recent_)
    for (std::size_t i = 0; i < recent.segments.size(); ++i) rank[recent.segments[i]] = recent.segments.size() - i;
  for (const auto& [use, absorbed] : sealed) {
    std::uint64_t& newest = listed_newest[flash_.segments.at(use.segment).device];
    if (rank.contains(use.segment)) newest = std::max(newest, use.generation);
  }
  // Segments that are not listed were used less than all that are, or were not sealed yet when the list was written.
  const auto order = [&](const std::pair<Use, bool>& s) {
    const auto at = rank.find(s.first.segment);
    const std::uint64_t newest = listed_newest[flash_.segments.at(s.first.segment).device];
    const int place = at != rank.end() ? 1 : s.first.generation > newest ? 2 : 0;
    return std::tuple(place, at != rank.end() ? at->second : s.first.generation);
  };
  std::ranges::sort(sealed, {}, order);
}

Status Recovery::find_uses(FlashDevice& device, std::vector<Use>& uses) {
  const std::size_t before = uses.size();
  Numbers unreadable;
  if (!device.volume.created() && believe_table(device, uses, unreadable)) return doubt(device, unreadable), Status{};
  uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(before), uses.end());
  std::vector<std::uint32_t> all(device.segments.count());
  std::iota(all.begin(), all.end(), device.segments.first());
  unreadable = read_headers(device, all, uses);
  if (unreadable.size() == all.size()) return fail(Code::kIo, "no segment of the flash file can be read", EIO);
  doubt(device, unreadable);
  return {};
}

// At a later opening they may be readable again.
void Recovery::doubt(FlashDevice& device, const Numbers& unreadable) {
  if (unreadable.empty()) return;
  for (const std::uint32_t segment : unreadable) flash_.segments.doubt(segment);
  device.doubtful = static_cast<std::uint32_t>(unreadable.size());
  device.unlisted = true;
  flash_.log.warn(
      fmt::format("store: the headers of {} segments (the first is {}) cannot be read: what lies there is missed, and "
                  "looked for at the next start unless something is removed, replaced or given up before",
                  unreadable.size(), std::ranges::min(unreadable)));
}

// The newest header that the table tells of is read all the same: it says in which order segments were used, and
// whether the table is right.
bool Recovery::believe_table(FlashDevice& device, std::vector<Use>& uses, Numbers& unreadable) {
  const auto table = UseTable::read(flash_, device);
  if (!table) return false;
  std::vector<Use> listed;
  std::vector<std::uint32_t> changed;
  for (std::uint32_t s = 0; s < table->uses.size(); ++s) {
    const UseEntry& use = table->uses[s];
    if (has_bit(table->changed, s)) {
      changed.push_back(device.numbered(s));
    } else if (use.generation != 0) {
      listed.push_back({device.numbered(s), use.generation, false, use.unopened});
    }
  }
  uses.insert(uses.end(), listed.begin(), listed.end());
  unreadable = read_headers(device, changed, uses);
  if (listed.empty()) return true;
  const Use newest = *std::ranges::max_element(listed, {}, &Use::generation);
  const AlignedBuffer page(kPageBytes);
  std::vector<Use> read;
  return reader_of(newest)(0, page.span()) && take_header(device, newest.segment, page.span(), read) &&
         read[0].generation == newest.generation && read[0].unopened == newest.unopened;
}

// Those of them that cannot be read.
Recovery::Numbers Recovery::read_headers(FlashDevice& device, std::span<const std::uint32_t> segments,
                                         std::vector<Use>& uses) {
  std::vector<std::uint32_t> again;
  FirstPages(flash_.loop, device, segments, [&](std::uint32_t segment, Bytes page, const Status& status) {
    const bool taken = status && take_header(device, segment, page, uses);
    if (!taken && (!status || load<std::uint64_t>(page.data()) != 0)) again.push_back(segment);
  }).read();
  Numbers unreadable;
  const AlignedBuffer page(kPageBytes);
  for (const std::uint32_t segment : again) {
    const Status read = disk_of(device).read(device.offset_of(segment), page.span());
    if (!read) unreadable.push_back(segment);
    if (read) take_header(device, segment, page.span(), uses);
  }
  return unreadable;
}

// False when this is no header.
bool Recovery::take_header(FlashDevice& device, std::uint32_t segment, Bytes page, std::vector<Use>& uses) {
  const auto header = parse_segment_header(page, device.volume.seeds(), device.local(segment));
  if (!header) return false;
  uses.push_back({segment, header->generation, (header->features & ~kFeaturesKnown) != 0,
                  std::min(parse_unopened(page), header->generation)});
  Recent& recent = recent_[flash_.segments.at(segment).device];
  if (header->generation <= recent.generation) return true;
  recent.generation = header->generation;
  recent.segments = parse_recent(page);
  for (std::uint32_t& listed : recent.segments) listed = device.numbered(listed);
  return true;
}

ReadSegment Recovery::reader_of(const Use& use) {
  FlashDevice& device = flash_.device_of(use.segment);
  return [this, &device, start = device.offset_of(use.segment)](std::uint64_t offset, MutableBytes to) {
    return disk_of(device).read(start + offset, to);
  };
}

SegmentUse Recovery::whole(const Use& use) const {
  return {flash_.device_of(use.segment).local(use.segment), use.generation, flash_.segment_bytes()};
}

Result<Footer> Recovery::read_footer(const Use& use) {
  return store::read_footer(reader_of(use), flash_.device_of(use.segment).volume.seeds(), whole(use));
}

// ---- Segments without a footer ----

Footer Recovery::scan(const Use& use, Scan& found) {
  Footer footer;
  const auto verify = [&](const FrameHead& head, std::uint32_t page, std::size_t first) {
    verify_frame(use, head, first, page, found);
  };
  const FramesFound frames = walk_frames(reader_of(use), flash_.device_of(use.segment).volume.seeds(), whole(use),
                                         UINT32_MAX, found.content, verify);
  found.cut_short = frames.cut_short;
  found.content.descriptors = std::move(found.good);
  footer.content = std::move(found.content);
  footer.trailer.segment = whole(use).segment;
  footer.trailer.generation = use.generation;
  footer.trailer.frames = frames.frames;
  footer.trailer.data_pages = frames.end_page;
  return footer;
}

// From this page on it could not be read, and it may be readable at a later opening.
void Recovery::leave_for_later(const Use& use, std::uint32_t page) {
  ++report_.dropped;
  flash_.log.warn(fmt::format(
      "store: segment {} cannot be read from page {} on: what lies there is missed, and looked for at the next start "
      "unless something is removed, replaced or given up before, with which all of the segment goes",
      use.segment, page));
}

void Recovery::tell_left_out(const Use& use, const Scan& found, bool for_good) const {
  if (found.unreadable + found.damaged == 0) return;
  flash_.log.warn(fmt::format(
      "store: segment {}: {} records that could not be read twice, and {} that are damaged, are missed{}", use.segment,
      found.unreadable, found.damaged, for_good ? " for good: the footer that is written now leaves them out" : ""));
}

void Recovery::verify_frame(const Use& use, const FrameHead& head, std::size_t first_descriptor,
                            std::uint32_t first_page, Scan& found) {
  const std::uint32_t payload = first_page + head.descriptor_bytes / 4096;
  for (std::size_t i = first_descriptor; i < found.content.descriptors.size(); ++i) {
    const Descriptor& d = found.content.descriptors[i];
    const bool inside = d.tombstone() || d.offset >= payload;
    Status sound = fail(Code::kCorrupt, "is not where its frame says");
    if (inside && servable(d, found.content, payload + head.payload_pages)) {
      sound = verify_record(use, d, found.content);
      if (!sound) sound = verify_record(use, d, found.content);
    }
    if (sound) {
      found.good.push_back(d);
      continue;
    }
    ++report_.dropped;
    ++(sound.error().code == Code::kCorrupt ? found.damaged : found.unreadable);
  }
}

Status Recovery::verify_record(const Use& use, const Descriptor& d, const SegmentContent& content) {
  if (d.tombstone()) return {};
  image_.grow(d.length);
  const MutableBytes image = image_.first(d.length);
  if (Status read = reader_of(use)(std::uint64_t{d.offset} * kPageBytes, image); !read) return read;
  const auto checked = check_record(image, d, content);
  return checked ? Status{} : fail(checked.error());
}

bool Recovery::write_footer(const Use& use, Footer& footer) {
  FlashDevice& device = flash_.device_of(use.segment);
  SegmentContent& content = footer.content;
  const std::size_t bytes = footer_bytes(content.schemas.size(), content.namespaces.size(), content.descriptors.size());
  if (bytes / kPageBytes + footer.trailer.data_pages > flash_.segment_pages()) return false;
  footer.usage.resize(content.namespaces.size());
  for (const Descriptor& d : content.descriptors) {
    footer.trailer.put_seq_max = std::max(footer.trailer.put_seq_max, d.put_seq);
    if (d.tombstone()) continue;
    footer.usage[d.name_space].records += 1;
    footer.usage[d.name_space].bytes += d.length;
  }
  footer.trailer.boot_epoch = device.volume.boot_epoch();
  const AlignedBuffer area(bytes);
  encode_footer(area.span(), device.volume.seeds(), footer.trailer, content, footer.usage);
  const std::uint64_t end = device.offset_of(use.segment) + flash_.segment_bytes();
  // Without it the next start scans again; nothing is lost.
  const auto written = disk_of(device).write(end - bytes, area.span());
  if (!written)
    flash_.log.warn(
        fmt::format("store: the footer of segment {} was not written: {}", use.segment, error_text(written.error())));
  return written.has_value();
}

// ---- Into memory ----

// Enters what a segment holds; false when a record had to be left out: the index has no room, or its schema is not the
// one that counts.
bool Recovery::absorb(const Use& use, const Footer& footer) {
  const SegmentContent& content = footer.content;
  FlashDevice& device = flash_.device_of(use.segment);
  bool all = true;
  std::uint64_t disagreeing = 0;
  std::unordered_map<std::uint32_t, Namespaces::Told> told;  // of a namespace with a schema: few, or one a record
  std::vector<Entering> entering;
  entering.reserve(kEnteredAtOnce);
  for (std::size_t i = 0; i < content.descriptors.size(); ++i) {
    const Descriptor& d = content.descriptors[i];
    if (i % kTurnRecords == kTurnRecords - 1 && !go_on()) stopped_ = true;
    flash_.put_seq_next = std::max(flash_.put_seq_next, d.put_seq + 1);
    if (!servable(d, content, footer.trailer.data_pages)) {
      ++report_.dropped;
      continue;
    }
    const auto [known, is_new] = told.try_emplace(std::uint32_t{d.name_space} << 16 | d.schema);
    const auto& [ns, agrees] = known->second;
    if (is_new) {
      known->second = flash_.namespaces.learn(content.namespaces[d.name_space], content.schemas[d.schema]);
      flash_.hold_namespace(use.segment, ns);
    }
    const RecordKey key = flash_.namespaces.key_of(ns, {d.key(), d.shard, content.schemas[d.schema].group});
    if (d.tombstone()) {
      device.tombstones.lie_in(use.segment, 1);
      if (d.offset >= device.segments.count()) continue;
      if (meanwhile_) flash_.hide(key.hash);
      part_of(key).push_back({key, d.put_seq, device.numbered(d.offset), d.checksum, use.segment, use.generation});
      ++report_.tombstones;
    } else if (!agrees) {
      ++disagreeing;
    } else if (!use.refused) {
      flash_.index.prefetch(key.hash);
      entering.push_back({&d, key});
      if (entering.size() == kEnteredAtOnce) all = enter(use, entering) && all;
    }
  }
  all = enter(use, entering) && all;
  if (disagreeing == 0) return all;
  report_.dropped += disagreeing;
  flash_.log.warn(
      fmt::format("store: {} records of segment {} have another schema than newer ones of their namespace: "
                  "they are dropped, and the segment is given up",
                  disagreeing, use.segment));
  return false;
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
  if (untold_.contains(hash)) return set_aside(hash, {use.segment, use.generation}), true;
  const auto other = flash_.index.find(hash);
  if (other && other->segment != use.segment) {
    const Segment& segment = flash_.segments.at(other->segment);
    auto newer = seqs_.newer(d.put_seq, other->segment, other->offset);
    // What was opened before the other one's segment has nothing newer.
    if (!newer &&
        (segment.unopened > use.generation || &flash_.device_of(other->segment) == &flash_.device_of(use.segment)))
      newer = false;
    if (!newer) {
      flash_.leave(key, other->segment, other->offset);
      set_aside(hash, {other->segment, segment.generation});
      return set_aside(hash, {use.segment, use.generation}), true;
    }
    if (!*newer) {
      const auto seq = seqs_.at(other->segment, other->offset).value_or(d.put_seq + 1);  // it is no lower
      if (seq > d.put_seq)
        part_of(key).push_back({key, seq, use.segment, use.generation, other->segment, segment.generation});
      return true;
    }
    part_of(key).push_back({key, d.put_seq, other->segment, segment.generation, use.segment, use.generation});
  } else if (!other && flash_.index.size() >= flash_.index.records_max()) {
    return false;
  }
  return flash_.enter(key, {use.segment, d.offset, d.length / 4096, 0, static_cast<std::uint32_t>(d.checksum)});
}

// A copy that no index has.
void Recovery::note_stray(std::uint64_t hash, const ReplacedPlace& place) {
  if (!flash_.device_of(place.segment).strays.add(hash, place)) flash_.note_half_known(place.segment);
}

void Recovery::set_aside(std::uint64_t hash, const ReplacedPlace& place) {
  note_stray(hash, place);
  untold_[hash].push_back(place);
}

// ---- Tombstones, when all segments are known ----

// Does `work` with the parts, as many in a turn of the loop as have some tombstones together.
bool Recovery::each_part(const std::function<void(Part&)>& work) {
  std::size_t turn = 0;
  for (Part& part : tombstones_) {
    turn += part.size();
    work(part);
    if (turn < kTurnTombstones) continue;
    turn = 0;
    if (!go_on()) return false;
  }
  return true;
}

bool Recovery::apply_tombstones() {
  std::vector<bool> needed(flash_.segments.count());
  const bool applied = each_part([&](Part& part) {
    apply(part);
    sort_alike(part, {}, flash_.segments);
    note_needed(part, needed);
  });
  if (!applied) return false;
  const auto last = segments_of_copies(needed);
  return each_part([&](Part& part) { restore(part, last); });
}

// Takes what they remove out of the index.
void Recovery::apply(Part& part) {
  for (std::size_t i = 0, end = part.size(); i < end; ++i) {
    const Tombstone t = part[i];
    // What it ends in another segment than the one that it names may outlive that one.
    const auto ends = [&](const ReplacedPlace& copy) {
      if (copy.segment != t.segment)
        part.push_back({t.key, t.put_seq, copy.segment, copy.generation, t.holder, t.holder_generation});
    };
    if (const auto untold = untold_.find(t.key.hash); untold != untold_.end())
      for (const ReplacedPlace& copy : untold->second) ends(copy);
    const auto entry = flash_.index.find(t.key.hash);
    if (!entry) continue;
    const auto newer = seqs_.newer(t.put_seq, entry->segment, entry->offset);
    if (newer && !*newer) continue;
    // A removal of it would name its segment: what lies there and names another one is what it says itself, or older.
    if (!newer && t.holder == entry->segment && t.segment != entry->segment) continue;
    const ReplacedPlace copy{entry->segment, flash_.segments.at(entry->segment).generation};
    ends(copy);
    if (!newer) note_stray(t.key.hash, copy);  // it may be newer than that
    flash_.leave(t.key, entry->segment, entry->offset);
  }
}

// Which segments hold a tombstone that no other one holds and that names something; `part` is sorted.
void Recovery::note_needed(const Part& part, std::vector<bool>& needed) const {
  for (std::size_t i = 0, end = 0; i < part.size(); i = end) {
    const Tombstone& t = part[i];  // one that lies on its device, where there is one
    std::size_t held = 0;
    for (end = i; end < part.size() && same(t, part[end]); ++end)
      held += is_elsewhere(part[end], flash_.segments) ? 0 : 1;
    const bool names_something = t.segment != t.holder && t.generation == flash_.segments.at(t.segment).generation;
    if (held == 1 && names_something) needed[t.holder] = true;
  }
}

// Of each device the youngest segment whose tombstones are all in others, too, or name nothing any more.
std::vector<std::uint32_t> Recovery::segments_of_copies(const std::vector<bool>& needed) const {
  std::vector<std::uint32_t> all;
  for (const auto& device : flash_.devices) {
    std::optional<std::uint32_t> youngest;
    for (std::uint32_t s = device->segments.first(); s < device->segments.end(); ++s)
      if (!needed[s] && flash_.segments.at(s).state == SegmentState::kSealed &&
          (!youngest || flash_.segments.at(s).generation > flash_.segments.at(*youngest).generation))
        youngest = s;
    if (youngest) all.push_back(*youngest);
  }
  return all;
}

// A crash while tombstones were carried over leaves two copies. One is enough, and not the one in a segment of which
// all are elsewhere, too (`last`): that may be all that is free to be given up, so it must have nothing to carry. What
// only another device tells is written to the one that it means, so that each is right alone.
void Recovery::restore(Part& part, const std::vector<std::uint32_t>& last) {
  sort_alike(part, last, flash_.segments);
  const auto rest = std::ranges::unique(part, same);
  part.erase(rest.begin(), rest.end());
  for (const Tombstone& tombstone : part) {
    flash_.hold_namespace(tombstone.segment, tombstone.key.ns);
    Tombstones& own = flash_.device_of(tombstone.segment).tombstones;
    if (!is_elsewhere(tombstone, flash_.segments)) own.restore(tombstone);
    if (is_elsewhere(tombstone, flash_.segments))
      own.add({.key = tombstone.key,
               .put_seq = tombstone.put_seq,
               .segment = tombstone.segment,
               .generation = tombstone.generation,
               .told_by = tombstone.holder});
  }
  part = {};
}

}  // namespace kvd::store
