#include "net/window.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/memory_file.h"

namespace kvd::net {
namespace {

constexpr std::uint64_t kAlign = 64;  // a line of the cache: no two stretches share one

}  // namespace

Result<std::unique_ptr<Window>> Window::create(std::uint64_t bytes) {
  KVD_CHECK(bytes >= kBytesMin && bytes <= kBytesMax);
  Result<io::PrivateFd> file = make_memory_file("kvdepot-window", bytes);
  if (!file) return fail(file.error());
  const Result<std::byte*> base = map_memory_file(*file, bytes, PROT_READ | PROT_WRITE);
  if (!base) return fail(base.error());
  return std::unique_ptr<Window>(new Window(std::move(*file), *base, bytes));
}

Window::Window(io::PrivateFd file, std::byte* base, std::uint64_t size) noexcept
    : file_(std::move(file)), base_(base), size_(size) {}

Window::~Window() {
  ::munmap(base_, size_);
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_));
}

std::optional<Window::Stretch> Window::take(std::uint64_t bytes) {
  KVD_CHECK(bytes > 0);
  if (bytes > size_) return std::nullopt;
  bytes = std::min(bytes + (kAlign - bytes % kAlign) % kAlign, size_);
  std::uint64_t begin = 0;
  if (!taken_.empty()) {
    const std::uint64_t oldest = taken_.front().begin;
    begin = taken_.back().end;
    const bool wrapped = taken_.back().begin < oldest;
    if (!wrapped && size_ - begin < bytes) begin = 0;
    const std::uint64_t end = wrapped || begin == 0 ? oldest : size_;
    if (end - begin < bytes) return std::nullopt;
  }
  taken_.push_back({.begin = begin, .end = begin + bytes});
  return Stretch{.id = first_id_ + taken_.size() - 1, .offset = begin, .bytes = {base_ + begin, bytes}};
}

void Window::give_back(std::uint64_t id) {
  KVD_CHECK(id >= first_id_ && id - first_id_ < taken_.size());
  Taken& stretch = taken_[id - first_id_];
  KVD_CHECK(!std::exchange(stretch.free, true));
  for (; !taken_.empty() && taken_.front().free; taken_.pop_front()) ++first_id_;
}

}  // namespace kvd::net
