// The keys of one operation: their bytes, kept for as long as the operation lives, and the records they name.
#pragma once

#include "block/key.h"
#include "kvdepot/types.h"
#include "node/few.h"

namespace kvd::node {

class OpKeys {
 public:
  OpKeys(const block::NamespaceHash& ns, const KeyList& keys, std::uint16_t shard, std::uint16_t group)
      : bytes_(keys.bytes.begin(), keys.bytes.end()), key_bytes_(keys.key_bytes), native_(keys.native) {
    ids_.reserve(keys.count());
    for (std::size_t i = 0; i < keys.count(); ++i) ids_.push_back({block::key_at(ns, keys, i), shard, group});
  }
  OpKeys(const OpKeys&) = delete;
  OpKeys& operator=(const OpKeys&) = delete;

  [[nodiscard]] std::size_t count() const noexcept { return ids_.size(); }
  [[nodiscard]] const block::RecordId& id(std::size_t i) const noexcept { return ids_[i]; }
  // The bytes that tell two foreign keys with one hash apart. Valid as long as this; empty for native keys.
  [[nodiscard]] Bytes foreign(std::size_t i) const noexcept {
    return native_ ? Bytes{} : Bytes(bytes_.data() + i * key_bytes_, key_bytes_);
  }
  [[nodiscard]] bool native() const noexcept { return native_; }

 private:
  Few<std::byte, 4 * sizeof(Key)> bytes_;
  std::uint16_t key_bytes_;
  bool native_;
  Few<block::RecordId, 4> ids_;
};

// Which keys of an operation have failed: a bitmap that only grows.
class FailedKeys {
 public:
  explicit FailedKeys(std::size_t count) : bits_((count + 7) / 8), count_(count) {}
  [[nodiscard]] bool has(std::size_t i) const noexcept {
    return (std::to_integer<unsigned>(bits_[i / 8]) >> (i % 8) & 1U) != 0;
  }
  // Returns whether it is new.
  bool add(std::size_t i) noexcept {
    if (has(i)) return false;
    bits_[i / 8] |= std::byte{1} << (i % 8);
    ++failed_;
    return true;
  }
  // How many have failed, how many are alive.
  [[nodiscard]] std::size_t failed() const noexcept { return failed_; }
  [[nodiscard]] std::size_t left() const noexcept { return count_ - failed_; }
  [[nodiscard]] Bytes bitmap() const noexcept { return {bits_.data(), bits_.size()}; }

 private:
  Few<std::byte, 16> bits_;
  std::size_t count_;
  std::size_t failed_ = 0;
};

}  // namespace kvd::node
