#include "cmd/device_bench.h"

#include <algorithm>

#include "base/random.h"
#include "cmd/stopwatch.h"
#include "store/aligned_buffer.h"

namespace kvd::cmd {

Result<std::unique_ptr<DeviceBench>> DeviceBench::open(Log& log, const std::vector<std::string>& paths,
                                                       std::uint64_t bytes) {
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  auto bench = std::unique_ptr<DeviceBench>(new DeviceBench(std::move(*loop)));
  io::DiskOptions options;
  options.bytes = bytes;
  for (const std::string& path : paths) {
    auto disk = io::open_disk(*bench->loop_, log, path, options);
    if (!disk) return fail(disk.error());
    bench->disks_.push_back(std::move(*disk));
  }
  return bench;
}

Result<RunFigures> DeviceBench::run(io::DiskOp::Kind kind, const Offsets& offsets, std::uint64_t pieces,
                                    std::uint64_t piece, std::uint32_t depth) {
  struct Slot {
    std::size_t disk = 0;
    store::AlignedBuffer buffer;
    iovec part{};
    io::DiskOp op;
  };
  std::vector<Slot> slots(std::min<std::size_t>(depth, pieces) * disks_.size());
  Random random(1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    slot.disk = i % disks_.size();
    slot.buffer = store::AlignedBuffer(piece);
    // Not zeros: a device may store those without writing them.
    for (std::size_t at = 0; at + 8 <= piece; at += 8) save(slot.buffer.data() + at, random.next());
    slot.part = {slot.buffer.data(), piece};
  }
  std::vector<std::size_t> next(disks_.size());
  std::uint64_t begun = 0, done = 0;
  Status worst;
  std::move_only_function<void(Slot&)> submit = [&](Slot& slot) {
    if (begun == pieces || next[slot.disk] == offsets[slot.disk].size() || !worst) return;
    ++begun;
    slot.op.kind = kind;
    slot.op.offset = offsets[slot.disk][next[slot.disk]++];
    slot.op.buffers = {&slot.part, 1};
    slot.op.on_done = [&](Status status) {
      ++done;
      if (!status) worst = status;
      submit(slot);
    };
    if (auto submitted = disks_[slot.disk]->submit(slot.op); !submitted) {
      ++done;
      worst = submitted;
    }
  };
  const Stopwatch watch(*loop_);
  for (Slot& slot : slots) submit(slot);
  while (done < begun) loop_->run_once(Duration::max());
  if (!worst) return fail(worst.error());
  return watch.finish(done * piece);
}

Result<RunFigures> DeviceBench::read(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth, Order order,
                                     std::uint64_t seed) {
  Offsets all(disks_.size());
  Random random(seed);
  for (std::size_t disk = 0; disk < disks_.size(); ++disk) {
    std::vector<std::uint64_t>& offsets = all[disk];
    for (std::uint64_t at = 0; at + piece <= disks_[disk]->size(); at += piece) offsets.push_back(at);
    if (order == Order::kRandom)
      for (std::size_t i = offsets.size(); i > 1; --i) std::swap(offsets[i - 1], offsets[random.below(i)]);
  }
  return run(io::DiskOp::Kind::kRead, all, std::max<std::uint64_t>(1, bytes / piece) * disks_.size(), piece, depth);
}

Result<RunFigures> DeviceBench::write(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth) {
  Offsets all(disks_.size());
  for (std::size_t disk = 0; disk < disks_.size(); ++disk)
    for (std::uint64_t at = 0; at + piece <= disks_[disk]->size(); at += piece) all[disk].push_back(at);
  return run(io::DiskOp::Kind::kWrite, all, std::min(bytes, disks_.front()->size()) / piece * disks_.size(), piece,
             depth);
}

}  // namespace kvd::cmd
