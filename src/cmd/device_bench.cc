#include "cmd/device_bench.h"

#include <algorithm>

#include "base/random.h"
#include "cmd/stopwatch.h"
#include "store/aligned_buffer.h"

namespace kvd::cmd {

Result<std::unique_ptr<DeviceBench>> DeviceBench::open(Log& log, const std::string& path, std::uint64_t bytes) {
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  io::DiskOptions options;
  options.bytes = bytes;
  auto disk = io::open_disk(**loop, log, path, options);
  if (!disk) return fail(disk.error());
  return std::unique_ptr<DeviceBench>(new DeviceBench(std::move(*loop), std::move(*disk)));
}

Result<RunFigures> DeviceBench::run(io::DiskOp::Kind kind, const std::vector<std::uint64_t>& offsets,
                                    std::uint64_t piece, std::uint32_t depth) {
  struct Slot {
    store::AlignedBuffer buffer;
    iovec part{};
    io::DiskOp op;
  };
  std::vector<Slot> slots(std::min<std::size_t>(depth, offsets.size()));
  Random random(1);
  for (Slot& slot : slots) {
    slot.buffer = store::AlignedBuffer(piece);
    // Not zeros: a device may store those without writing them.
    for (std::size_t at = 0; at + 8 <= piece; at += 8) save(slot.buffer.data() + at, random.next());
    slot.part = {slot.buffer.data(), piece};
  }
  std::size_t next = 0, done = 0;
  Status worst;
  std::move_only_function<void(Slot&)> submit = [&](Slot& slot) {
    slot.op.kind = kind;
    slot.op.offset = offsets[next++];
    slot.op.buffers = {&slot.part, 1};
    slot.op.on_done = [&](Status status) {
      ++done;
      if (!status) worst = status;
      if (next < offsets.size() && worst) submit(slot);
    };
    if (auto submitted = disk_->submit(slot.op); !submitted) {
      ++done;
      worst = submitted;
    }
  };
  const Stopwatch watch(*loop_);
  for (Slot& slot : slots) submit(slot);
  while (done < next) loop_->run_once(Duration::max());
  if (!worst) return fail(worst.error());
  return watch.finish(offsets.size() * piece);
}

Result<RunFigures> DeviceBench::read(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth, Order order,
                                     std::uint64_t seed) {
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t at = 0; at + piece <= disk_->size(); at += piece) offsets.push_back(at);
  Random random(seed);
  if (order == Order::kRandom)
    for (std::size_t i = offsets.size(); i > 1; --i) std::swap(offsets[i - 1], offsets[random.below(i)]);
  offsets.resize(std::min<std::size_t>(offsets.size(), std::max<std::uint64_t>(1, bytes / piece)));
  return run(io::DiskOp::Kind::kRead, offsets, piece, depth);
}

Result<RunFigures> DeviceBench::write(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth) {
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t at = 0; at + piece <= std::min(bytes, disk_->size()); at += piece) offsets.push_back(at);
  return run(io::DiskOp::Kind::kWrite, offsets, piece, depth);
}

}  // namespace kvd::cmd
