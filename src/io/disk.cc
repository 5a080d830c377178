#include "io/disk.h"

#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"
#include "io/disk_file.h"
#include "io/thread_disk.h"
#include "io/uring.h"
#include "io/uring_disk.h"

namespace kvd::io {

Result<std::unique_ptr<Disk>> open_disk(Loop& loop, Log& log, const std::string& path, const DiskOptions& options) {
  Result<DiskFile> file = open_disk_file(log, path, options);
  if (!file) return fail(file.error());
  const char* cache = file->direct ? "direct" : "buffered";
  const double gib = static_cast<double>(file->bytes) / (1u << 30);

  if (!options.force_threads) {
    Result<Uring> ring = Uring::create(file->fd.get(), options.depth_max);
    if (ring) {
      log.info(fmt::format("disk {}: {:.2f} GiB, {}, io_uring ({}), depth {}", path, gib, cache, ring->mode(),
                           options.depth_max));
      return make_uring_disk(loop, log, std::move(*file), std::move(*ring), options.depth_max);
    }
    log.warn(
        fmt::format("disk {}: no io_uring ({}), so a pool of threads does its work", path, error_text(ring.error())));
  }
  log.info(fmt::format("disk {}: {:.2f} GiB, {}, threads, depth {}", path, gib, cache, options.depth_max));
  return make_thread_disk(loop, std::move(*file), options.depth_max);
}

}  // namespace kvd::io
