#include "store/scrubber.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/segment_scan.h"

namespace kvd::store {

Scrubber::Scrubber(Flash& flash, FlashDevice& device, Evictor& evictor, std::uint64_t bytes_per_s)
    : flash_(flash), device_(device), evictor_(evictor), bytes_per_s_(bytes_per_s), timer_(flash.loop, [this] {
        step();
      }) {}

void Scrubber::start(Drop drop) {
  if (bytes_per_s_ == 0) return;
  drop_ = std::move(drop);
  // Multiples of an odd constant reach every residue of the openings, far from each other.
  first_ = static_cast<std::uint32_t>(device_.volume.boot_epoch() * 0x9E3779B97F4A7C15U % device_.segments.count());
  pass_began_ = flash_.loop.now();
  buffer_ = AlignedBuffer(kReadBytes);
  timer_.arm(pass_began_);
}

void Scrubber::resume() {
  if (drop_) timer_.arm(flash_.loop.now());
}

void Scrubber::step() {
  if (!device_.health.on()) return;  // until resume()
  if (in_segment_ && !flash_.segments.holds(segment_, generation_)) end_segment();
  if (!in_segment_) return begin_segment();
  again_.empty() ? read_records() : read_again();
}

void Scrubber::begin_segment() {
  const std::uint32_t count = device_.segments.count();
  while (done_ < count) {
    segment_ = device_.numbered((first_ + done_++) % count);
    if (flash_.segments.at(segment_).state != SegmentState::kSealed) continue;
    generation_ = flash_.segments.at(segment_).generation;
    return read_footer(std::min<std::size_t>(kDescriptorAreaMax, flash_.segment_bytes()));
  }
  flash_.stats.scrub_passes.add();
  done_ = 0;
  pass_began_ = std::max(flash_.loop.now(), after(pass_began_, kPassMin));
  timer_.arm(pass_began_);
}

void Scrubber::read_footer(std::size_t bytes) {
  read(flash_.segment_bytes() - bytes, bytes, [this](Status status) { footer_read(status); });
}

void Scrubber::footer_read(const Status& status) {
  if (!status) return;  // the next segment
  const Bytes area = buffer_.first(io_.iov_len);
  const auto trailer = peek_footer(area, device_.local(segment_), generation_, flash_.segment_bytes());
  if (!trailer) return;
  if (trailer->footer_bytes > area.size()) return read_footer(trailer->footer_bytes);
  if (auto footer = parse_footer(area.last(trailer->footer_bytes), device_.volume.seeds(), *trailer)) {
    take(std::move(*footer));
  }
}

void Scrubber::take(Footer footer) {
  footer_ = std::move(footer);
  const SegmentContent& content = footer_.content;
  std::erase_if(footer_.content.descriptors, [&](const Descriptor& d) {
    return d.tombstone() || !servable(d, content, footer_.trailer.data_pages);
  });
  std::ranges::sort(footer_.content.descriptors, {}, &Descriptor::offset);
  hashes_.clear();
  for (const NamespaceName& name : content.namespaces)
    hashes_.push_back(block::hash_namespace(name.tenant, as_bytes(name.fingerprint)));
  next_ = 0;
  dropped_ = 0;
  in_segment_ = true;
}

void Scrubber::read_records() {
  const std::vector<Descriptor>& all = footer_.content.descriptors;
  while (next_ < all.size() && !live(all[next_])) ++next_;
  if (next_ == all.size()) {
    end_segment();
    return begin_segment();
  }
  const std::size_t first = next_;
  const std::uint64_t begin = std::uint64_t{all[first].offset} * kPageBytes;
  const auto end_of = [&](const Descriptor& d) {
    return std::uint64_t{d.offset} * kPageBytes + align_up(d.length, kPageBytes);
  };
  std::uint64_t end = end_of(all[next_++]);
  while (next_ < all.size() && end_of(all[next_]) - begin <= kReadBytes) end = std::max(end, end_of(all[next_++]));
  read(begin, end - begin, [this, first, last = next_](Status status) { records_read(first, last, status); });
}

void Scrubber::records_read(std::size_t first, std::size_t end, const Status& status) {
  const std::vector<Descriptor>& all = footer_.content.descriptors;
  const std::uint64_t begin = std::uint64_t{all[first].offset} * kPageBytes;
  for (std::size_t i = first; i < end; ++i)
    if (live(all[i]) && !(status && sound(all[i], begin))) again_.push_back(i);
}

void Scrubber::read_again() {
  const Descriptor& d = footer_.content.descriptors[again_.back()];
  const std::uint64_t begin = std::uint64_t{d.offset} * kPageBytes;
  again_.pop_back();
  read(begin, align_up(d.length, kPageBytes), [this, &d, begin](Status status) {
    if (device_.health.on() && live(d) && !(status && sound(d, begin))) drop(d);
  });
}

void Scrubber::end_segment() {
  if (dropped_ > 0) {
    flash_.log.warn(fmt::format("store: segment {}: {} of {} records were damaged and are dropped", segment_, dropped_,
                                footer_.content.descriptors.size()));
  }
  in_segment_ = false;
  again_.clear();
  footer_ = {};
  if (buffer_.size() > kReadBytes) buffer_ = AlignedBuffer(kReadBytes);
}

bool Scrubber::live(const Descriptor& d) const {
  const block::RecordId id{d.key(), d.shard, footer_.content.schemas[d.schema].group};
  const auto entry = flash_.index.find(record_hash(hashes_[d.name_space], id));
  return entry && entry->segment == segment_ && entry->offset == d.offset &&
         flash_.segments.holds(segment_, generation_);
}

bool Scrubber::sound(const Descriptor& d, std::uint64_t read_from) const {
  const std::uint64_t at = std::uint64_t{d.offset} * kPageBytes - read_from;
  return check_record(buffer_.span().subspan(at, d.length), d, footer_.content).has_value();
}

void Scrubber::drop(const Descriptor& d) {
  const SegmentContent& content = footer_.content;
  const NamespaceHandle ns =
      flash_.namespaces.learn(content.namespaces[d.name_space], content.schemas[d.schema]).handle;  // held: it is live
  const RecordKey key = flash_.namespaces.key_of(ns, {d.key(), d.shard, content.schemas[d.schema].group});
  ++dropped_;
  flash_.stats.corrupt.add();
  drop_(key, {segment_, d.offset, generation_, static_cast<std::uint32_t>(d.checksum)});
}

void Scrubber::read(std::uint64_t offset, std::size_t bytes, std::move_only_function<void(Status)> on_done) {
  timer_.disarm();
  if (buffer_.size() < bytes) buffer_ = AlignedBuffer(bytes);
  ++flash_.segments.at(segment_).readers;
  io_ = {buffer_.data(), bytes};
  op_.kind = io::DiskOp::Kind::kRead;
  op_.offset = device_.offset_of(segment_) + offset;
  op_.buffers = {&io_, 1};
  const Time next = after(flash_.loop.now(), std::chrono::nanoseconds(bytes * 1'000'000'000 / bytes_per_s_));
  op_.on_done = [this, next, done = std::move(on_done)](Status status) mutable {
    flash_.stats.scrubbed_bytes.add(io_.iov_len);
    device_.stats.bytes_scrubbed.add(io_.iov_len);
    timer_.arm(std::max(next, flash_.loop.now()));
    const std::uint32_t segment = segment_;
    done(status);
    if (--flash_.segments.at(segment).readers == 0) evictor_.reader_gone(segment);
  };
  device_.submit(op_);
}

}  // namespace kvd::store
