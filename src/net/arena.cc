#include "net/arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <utility>

#include "base/check.h"
#include "net/memory_file.h"

namespace kvd::net {

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t bytes) {
  KVD_CHECK(bytes >= kBytesMin && bytes <= kBytesMax);
  Result<io::PrivateFd> file = make_memory_file("kvdepot-arena", bytes);
  if (!file) return fail(file.error());
  const Result<std::byte*> base = map_memory_file(*file, bytes, PROT_READ);
  if (!base) return fail(base.error());
  return std::unique_ptr<Arena>(new Arena(std::move(*file), *base, bytes, false));
}

Result<std::unique_ptr<Arena>> Arena::map(io::PrivateFd file, std::uint64_t bytes) {
  if (bytes < kBytesMin || bytes > kBytesMax) return fail(Code::kInvalid, "an arena has another size");
  if (const Status checked = check_memory_file(file, bytes); !checked) return fail(checked.error());
  const Result<std::byte*> base = map_memory_file(file, bytes, PROT_READ | PROT_WRITE);
  if (!base) return fail(base.error());
  return std::unique_ptr<Arena>(new Arena({}, *base, bytes, true));
}

Arena::Arena(io::PrivateFd file, std::byte* base, std::uint64_t size, bool writable)
    : file_(std::move(file)), base_(base), size_(size), writable_(writable) {}

Arena::~Arena() {
  ::munmap(base_, size_);
  if (!writable_) ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_));
}

MutableBytes Arena::writable() const noexcept {
  KVD_CHECK(writable_);
  return {base_, size_};
}

}  // namespace kvd::net
