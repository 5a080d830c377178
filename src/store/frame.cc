#include "store/frame.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::store {

OpenSegment::OpenSegment(std::uint32_t pages_in, std::size_t records) : pages(pages_in) {
  in_flight.reserve(kFramesMax);
  content.reserve(records);
  usage.reserve(content.namespaces.capacity());
  schema_at[0] = 0;
  namespace_at[0] = 0;
  reset(0, 0);
}

void OpenSegment::reset(std::uint32_t id_in, std::uint64_t generation_in) {
  KVD_CHECK(in_flight.empty());
  id = id_in;
  generation = generation_in;
  next_page = completed_page = 1;
  frame_seq = frames_completed = 0;
  records_appended = 0;
  put_seq_max = 0;
  content.clear();
  usage.clear();
  schema_at.clear();
  namespace_at.clear();
  broken = frames_failed = closed = false;
}

bool OpenSegment::fits(std::uint32_t frame_pages, std::size_t new_schemas, std::size_t new_namespaces,
                       std::size_t new_records, bool tombstones_only) const noexcept {
  const std::size_t footer = footer_bytes(content.schemas.size() + new_schemas,
                                          content.namespaces.size() + new_namespaces, records_appended + new_records);
  const std::uint64_t reserve = tombstones_only ? 0 : reserve_pages();
  return next_page + std::uint64_t{frame_pages} + reserve + footer / kPageBytes <= pages;
}

Frame::Frame() : area_(kDescriptorAreaMax) {
  buffers_.reserve(kFrameRecordsMax + 1);
  records_.reserve(kFrameRecordsMax);
  descriptors_.reserve(kFrameRecordsMax);
}

void Frame::reset(OpenSegment& segment, const Namespaces& namespaces, const FlashDevice& device) {
  segment_ = &segment;
  namespaces_ = &namespaces;
  device_ = &device;
  records_.clear();
  tombstones_.clear();
  descriptors_.clear();
  buffers_.clear();
  new_namespaces_.clear();
  first_schema_ = segment.content.schemas.size();
  first_namespace_ = segment.content.namespaces.size();
  payload_pages_ = 0;
  done = false;
  status = {};
}

bool Frame::add(PoolRecord& record) {
  Descriptor descriptor;
  descriptor.length = static_cast<std::uint32_t>(record.bytes());
  descriptor.checksum = record.own_checksum;
  descriptor.put_seq = record.put_seq;
  if (!add(descriptor, record.key, record.pages)) return false;
  records_.push_back(&record);
  return true;
}

bool Frame::add(const Tombstone& tombstone) {
  KVD_CHECK(records_.empty());
  Descriptor descriptor;
  descriptor.flags = Descriptor::kTombstone;
  descriptor.offset = device_->local(tombstone.segment);
  descriptor.checksum = tombstone.generation;
  descriptor.put_seq = tombstone.put_seq;
  if (!add(descriptor, tombstone.key, 0)) return false;
  tombstones_.push_back(tombstone);
  return true;
}

bool Frame::add(Descriptor descriptor, const RecordKey& key, std::uint32_t image_pages) {
  const NamespaceInfo& info = namespaces_->at(key.ns);
  const GroupInfo* group = info.group(key.id.group);
  KVD_CHECK(group != nullptr);
  SegmentContent& content = segment_->content;
  const std::uint64_t schema_hash = group->foreign.schema_hash;
  const bool new_schema = !segment_->schema_at.contains(schema_hash);
  const bool new_namespace = !segment_->namespace_at.contains(key.ns);

  const std::size_t area = descriptor_area_bytes(content.schemas.size() - first_schema_ + (new_schema ? 1 : 0),
                                                 content.namespaces.size() - first_namespace_ + (new_namespace ? 1 : 0),
                                                 descriptors_.size() + 1);
  const auto frame_pages =
      static_cast<std::uint32_t>(align_up(area, kPageBytes) / kPageBytes) + payload_pages_ + image_pages;
  const bool tables_full = (new_schema && content.schemas.size() == UINT16_MAX) ||
                           (new_namespace && content.namespaces.size() == UINT16_MAX);
  if (area > kDescriptorAreaMax || descriptors_.size() == kFrameRecordsMax || tables_full ||
      !segment_->fits(frame_pages, new_schema ? 1 : 0, new_namespace ? 1 : 0, descriptors_.size() + 1,
                      payload_pages_ + image_pages == 0))
    return false;

  if (new_schema) {
    segment_->schema_at[schema_hash] = static_cast<std::uint16_t>(content.schemas.size());
    content.schemas.push_back(group->schema);
  }
  if (new_namespace) {
    segment_->namespace_at[key.ns] = static_cast<std::uint16_t>(content.namespaces.size());
    content.add_namespace(info.name.tenant, info.name.fingerprint);
    segment_->usage.emplace_back();
    new_namespaces_.push_back(key.ns);
  }
  descriptor.key_hi = key.id.key.hi;
  descriptor.key_lo = key.id.key.lo;
  descriptor.schema = segment_->schema_at[schema_hash];
  descriptor.shard = key.id.shard;
  descriptor.name_space = segment_->namespace_at[key.ns];
  descriptors_.push_back(descriptor);
  payload_pages_ += image_pages;
  return true;
}

void Frame::lay_out() {
  KVD_CHECK(!descriptors_.empty());
  const auto schemas = std::span(segment_->content.schemas).subspan(first_schema_);
  const auto namespaces = std::span(segment_->content.namespaces).subspan(first_namespace_);
  FrameHead head;
  head.generation = segment_->generation;
  head.boot_epoch = device_->volume.boot_epoch();
  head.segment = device_->local(segment_->id);
  head.frame_seq = segment_->frame_seq++;
  head.payload_pages = payload_pages_;
  head.descriptor_bytes = static_cast<std::uint32_t>(
      align_up(descriptor_area_bytes(schemas.size(), namespaces.size(), descriptors_.size()), kPageBytes));

  buffers_.push_back({area_.data(), head.descriptor_bytes});
  std::uint32_t page = segment_->next_page + head.descriptor_bytes / 4096;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    descriptors_[tombstones_.size() + i].offset = page;
    buffers_.push_back({records_[i]->image, records_[i]->bytes()});
    page += records_[i]->pages;
  }
  encode_frame(area_.first(head.descriptor_bytes), device_->volume.seeds(), head, schemas, namespaces, descriptors_);

  op.kind = io::DiskOp::Kind::kWrite;
  op.offset = device_->offset_of(segment_->id, segment_->next_page);
  op.buffers = buffers_;
  segment_->next_page = end_page_ = page;
  segment_->records_appended += descriptors_.size();
  for (const auto& descriptor : descriptors_)
    segment_->put_seq_max = std::max(segment_->put_seq_max, descriptor.put_seq);
}

FlashPlace Frame::place(std::size_t i) const noexcept {
  const Descriptor& descriptor = descriptors_[tombstones_.size() + i];
  return {segment_->id, descriptor.offset, segment_->generation, static_cast<std::uint32_t>(descriptor.checksum)};
}

void Frame::enter_content() const {
  auto& all = segment_->content.descriptors;
  all.insert(all.end(), descriptors_.begin(), descriptors_.end());
  for (const auto& descriptor : descriptors_) {
    if (descriptor.tombstone()) continue;
    NamespaceUsage& usage = segment_->usage[descriptor.name_space];
    usage.records += 1;
    usage.bytes += descriptor.length;
  }
  segment_->frames_completed += 1;
  segment_->completed_page = end_page_;
}

}  // namespace kvd::store
