// LentView: the View that a borrow ends with: where each slab lies, what keeps it there, and for a borrow that was not
// verified what its slabs are to be. Constant; any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "client/loan.h"
#include "kvdepot/view.h"

namespace kvd::client {

class LentView final : public View {
 public:
  struct Slabs {
    std::vector<const std::byte*> places;  // [layer][key]; null: the key has failed
    std::size_t keys = 0;
    std::uint16_t layer_first = 0;
    std::uint32_t slab_bytes = 0;
    // Of slabs that were not verified where they lie; empty when all were.
    std::vector<std::uint64_t> checksums;  // [layer][key]
    std::vector<std::uint64_t> seeds;      // block::record_seed of each key
    // Whose slabs they are, for the depot.
    std::uint32_t ns = 0;
    std::uint16_t shard = 0;
    std::uint16_t group = 0;
    std::vector<std::byte> key_bytes;
    bool native = false;
  };
  // `copies` is where slabs lie that came as bytes; may be null. Owners of the loans: this, and who ends them in time.
  LentView(Slabs slabs, std::unique_ptr<std::byte[]> copies, std::vector<std::shared_ptr<Loan>> loans)
      : slabs_(std::move(slabs)), copies_(std::move(copies)), loans_(std::move(loans)) {}

  [[nodiscard]] std::span<const std::byte> slab(std::size_t key, std::uint16_t layer) const noexcept override {
    const std::byte* const place = place_of(key, layer);
    return {place, place == nullptr ? 0 : slabs_.slab_bytes};
  }
  [[nodiscard]] bool verify(std::size_t key, std::uint16_t layer) const noexcept override;
  [[nodiscard]] bool borrowed() const noexcept override {
    return std::ranges::any_of(loans_, [](const auto& loan) { return loan->held(); });
  }

 private:
  // Null: there is none.
  [[nodiscard]] const std::byte* place_of(std::size_t key, std::uint16_t layer) const noexcept {
    if (key >= slabs_.keys || layer < slabs_.layer_first) return nullptr;
    const std::size_t at = std::size_t{layer} - slabs_.layer_first;
    return at < slabs_.places.size() / slabs_.keys ? slabs_.places[at * slabs_.keys + key] : nullptr;
  }
  [[nodiscard]] bool is_copy(const std::byte* place) const noexcept;
  void report(std::size_t key) const;

  Slabs slabs_;
  std::unique_ptr<std::byte[]> copies_;
  std::vector<std::shared_ptr<Loan>> loans_;
};

}  // namespace kvd::client
