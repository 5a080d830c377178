#include "store/store_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"
#include "store/directory.h"

namespace kvd::store {
namespace {

// A device that was looked for somewhere.
struct Candidate {
  std::string dir;
  std::optional<StoreReader> reader;
  Error error{};
  std::string why;
};

class Opening {
 public:
  Opening(const std::string& dir, std::span<const std::string> elsewhere, std::string& why)
      : dir_(dir), elsewhere_(elsewhere), why_(why) {}

  Result<StoreFiles> open() {
    files_.path = list_path_in(dir_);
    io::UniqueFd list(::open(files_.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!list.ok() && errno == ENOENT) return open_alone();
    if (!list.ok()) {
      const int error = errno;
      why_ = fmt::format("{}: cannot be read: {}{}", files_.path, error_text(error),
                         error == EACCES ? ": run this as the owner of the store" : "");
      return fail(Code::kIo, "opening the list of devices", error);
    }
    if (auto read = read_list(list.get()); !read) return fail(read.error());
    look();
    if (auto known = check_elsewhere(); !known) return fail(known.error());
    for (const ListedDevice& listed : files_.list->devices) place(listed);
    if (!files_.readers.empty() || damaged_) return std::move(files_);
    why_ = files_.devices.empty()
               ? fmt::format("{}: names no device that counts", files_.path)
               : fmt::format("{}: no device of it is there: {}", files_.path, files_.devices.front().missing);
    return fail(Code::kNotFound, "no device of the store is there");
  }

 private:
  Result<StoreFiles> open_alone() {
    auto reader = StoreReader::open(dir_, why_);
    if (!reader) return fail(reader.error());
    files_.path = reader->path();
    files_.readers.push_back(std::move(*reader));
    return std::move(files_);
  }

  Status read_list(int file) {
    struct stat info{};
    if (::fstat(file, &info) != 0) {
      const int error = errno;
      why_ = fmt::format("{}: cannot be read: {}", files_.path, error_text(error));
      return fail(Code::kIo, "reading the list of devices", error);
    }
    const auto read = [file](std::uint64_t offset, MutableBytes page) -> Status {
      if (::pread(file, page.data(), page.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(page.size()))
        return {};
      return fail(Code::kIo, "reading the list of devices", errno);
    };
    const auto copies =
        scan_copies<DeviceTableScan>(static_cast<std::uint64_t>(info.st_size), kDeviceTableStride, read);
    const auto verdict = copies.verdict();
    for (std::uint32_t i = 0; i < kSuperblockCopies; ++i)
      if (!copies.copy(i))
        files_.findings.push_back(
            {true, Finding::kWholeStore, fmt::format("list of devices, copy {}: {}", i, copies.copy(i).error().what)});
    files_.list_copies = verdict.copies;
    switch (verdict.kind) {
      case CopiesKind::kValid:
        files_.list = verdict.in_force;
        std::erase_if(files_.list->devices, [](const ListedDevice& device) { return device.confirmed == kStruck; });
        return {};
      case CopiesKind::kUnreadable:
        why_ = fmt::format("{}: cannot be read: {}", files_.path, error_text(copies.read_error()));
        return fail(copies.read_error());
      case CopiesKind::kNewer:
        why_ = fmt::format("{}: was written by a newer version of kvdepot: look at it with that version", files_.path);
        return fail(Code::kStale, "the list was written by a newer version");
      case CopiesKind::kForeign:
        why_ = fmt::format("{}: is not a kvdepot store", files_.path);
        return fail(Code::kInvalid, "the list is not a store's");
      default: break;
    }
    why_ = fmt::format("{}: no copy is valid: the list of devices is lost, a depot would start empty", files_.path);
    return fail(Code::kCorrupt, "no copy of the list is valid");
  }

  // Everywhere where a device may be, once each: first where it was named.
  void look() {
    for (const std::string& dir : elsewhere_) look_in(dir);
    named_ = candidates_.size();
    for (const ListedDevice& listed : files_.list->devices) look_in(listed.path);
    look_in(dir_);
  }

  void look_in(const std::string& dir) {
    if (std::ranges::find(candidates_, dir, &Candidate::dir) != candidates_.end()) return;
    Candidate& candidate = candidates_.emplace_back();
    candidate.dir = dir;
    auto reader = StoreReader::open(dir, candidate.why);
    if (reader) {
      candidate.reader = std::move(*reader);
    } else {
      candidate.error = reader.error();
    }
  }

  // Who names a directory means a device of this store.
  Status check_elsewhere() {
    for (std::size_t i = 0; i < named_; ++i) {
      const Candidate& candidate = candidates_[i];
      if (!candidate.reader) {
        why_ = candidate.why;
        return fail(candidate.error);
      }
      const Uuid& uuid = candidate.reader->superblock().uuid;
      if (std::ranges::find(files_.list->devices, uuid, &ListedDevice::uuid) != files_.list->devices.end()) continue;
      why_ = fmt::format("{}: holds no device of this store: leave it out", candidate.dir);
      return fail(Code::kInvalid, "not a device of this store");
    }
    return {};
  }

  // As a depot takes them: by identity, and not one from before.
  void place(const ListedDevice& listed) {
    StoreFile& file = files_.devices.emplace_back();
    file.listed = listed;
    const std::string name = fmt::format("device {} (last at {})", uuid_text(listed.uuid), listed.path);
    for (Candidate& candidate : candidates_) {
      if (!candidate.reader || candidate.reader->superblock().uuid != listed.uuid) continue;
      const Superblock& block = candidate.reader->superblock();
      if (block.member() ? block.boot_epoch < listed.confirmed : listed.confirmed > 0) {
        file.missing = fmt::format("{}: {} is a copy from before the store's last openings", name, candidate.dir);
        return;
      }
      file.reader = files_.readers.size();
      files_.readers.push_back(std::move(*candidate.reader));
      candidate.reader.reset();
      return;
    }
    const auto there = std::ranges::find(candidates_, listed.path, &Candidate::dir);
    const std::string what = there->why.empty() ? listed.path + " holds another device" : there->why;
    file.missing = fmt::format("{} is missing: {}", name, what);
    file.damaged = there->error.code == Code::kCorrupt;
    damaged_ = damaged_ || file.damaged;
  }

  const std::string dir_;
  const std::span<const std::string> elsewhere_;
  std::string& why_;
  StoreFiles files_;
  std::vector<Candidate> candidates_;
  std::size_t named_ = 0;  // the first of these
  bool damaged_ = false;
};

}  // namespace

bool StoreFiles::in_use() const noexcept { return std::ranges::any_of(readers, &StoreReader::in_use); }

std::string StoreFiles::holder() const {
  const auto used = std::ranges::find_if(readers, &StoreReader::in_use);
  return used == readers.end() ? std::string() : used->holder();
}

std::uint64_t StoreFiles::segments() const noexcept {
  std::uint64_t sum = 0;
  for (const StoreReader& reader : readers) sum += reader.segments();
  return sum;
}

std::uint64_t StoreFiles::file_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const StoreReader& reader : readers) sum += reader.file_bytes();
  return sum;
}

std::uint64_t StoreFiles::segment_bytes() const noexcept {
  return list ? list->segment_bytes : readers.front().segment_bytes();
}

std::uint64_t StoreFiles::boot_epoch() const noexcept {
  return list ? list->boot_epoch : readers.front().superblock().boot_epoch;
}

const Uuid& StoreFiles::uuid() const noexcept { return list ? list->store : readers.front().superblock().uuid; }

Result<StoreFiles> StoreFiles::open(const std::string& dir, std::span<const std::string> elsewhere, std::string& why) {
  return Opening(dir, elsewhere, why).open();
}

}  // namespace kvd::store
