#include "io/disk.h"

#include <fcntl.h>

#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"
#include "io/discard_disk.h"
#include "io/disk_file.h"
#include "io/thread_disk.h"
#include "io/uring.h"
#include "io/uring_disk.h"

namespace kvd::io {
namespace {

Result<std::unique_ptr<Disk>> make_disk(Loop& loop, Log& log, const std::string& path, const DiskOptions& options,
                                        DiskFile file) {
  const char* cache = file.direct ? "direct" : "buffered";
  const double gib = static_cast<double>(file.bytes) / (1u << 30);
  if (!options.force_threads) {
    Result<Uring> ring = Uring::create(file.fd.get(), options.depth_max);
    if (ring) {
      log.info(fmt::format("disk {}: {:.2f} GiB, {}, io_uring ({}), depth {}", path, gib, cache, ring->mode(),
                           options.depth_max));
      return make_uring_disk(loop, log, std::move(file), std::move(*ring), options.depth_max);
    }
    log.warn(
        fmt::format("disk {}: no io_uring ({}), so a pool of threads does its work", path, error_text(ring.error())));
  }
  log.info(fmt::format("disk {}: {:.2f} GiB, {}, threads, depth {}", path, gib, cache, options.depth_max));
  return make_thread_disk(loop, std::move(file), options.depth_max);
}

}  // namespace

Result<std::unique_ptr<Disk>> open_disk(Loop& loop, Log& log, const std::string& path, const DiskOptions& options) {
  Result<DiskFile> file = open_disk_file(log, path, options);
  if (!file) return fail(file.error());
  if (!file->discards) return make_disk(loop, log, path, options, std::move(*file));
  // The engine owns its file; discards have a descriptor of their own.
  UniqueFd fd(::fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 0));
  auto disk = make_disk(loop, log, path, options, std::move(*file));
  if (!disk || !fd.ok()) return disk;
  log.info(fmt::format("disk {}: the device is told of bytes that are not needed any more", path));
  return make_discard_disk(loop, std::move(*disk), device_discard(std::move(fd)));
}

}  // namespace kvd::io
