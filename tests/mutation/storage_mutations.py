#!/usr/bin/env python3
"""Proves that the enumeration of crash states can fail: takes one safeguard at a time out of a copy of the store's
sources, links the enumeration against each copy, and expects it to find something wrong within three minutes (that it
finds nothing in the unchanged store is a test of its own). Skipped (exit 77) where there is no build with a ninja file.

    tests/mutation/storage_mutations.py build/release
"""

from __future__ import annotations

import sys

from mutants import Mutant, Trial, command_line, hunt

PROGRAM = "kvd_crash_states"
SECONDS = 180
TRIAL = Trial(("--seconds", str(SECONDS)), ("--seconds", "3"), limit_s=4 * SECONDS)

# What is taken out, the source, what is replaced, by what. Each text must occur exactly once in its source.
MUTATIONS = [
    ("a new use of a segment keeps the generation of its header", "src/store/evictor.cc",
     "  task.new_generation = flash_.generation_next++;",
     "  task.new_generation = task.evicts ? flash_.segments.at(task.segment).generation : flash_.generation_next++;"),
    ("no flush between a new header and the first frame behind it", "src/store/evictor.cc",
     "    syncs_.request([this, &task](Status synced) { synced ? header_durable(task) : retry(task); });",
     "    header_durable(task);"),
    ("no flush between frames and the footer that lists them", "src/store/log_writer.cc",
     "  syncs_.request([this, &closing](const Status& status) {\n"
     "    status && !without_footer(*closing.segment) ? write_footer(closing) : sealed(closing, status);\n  });",
     "  write_footer(closing);"),
    ("what a segment held is discarded before its new header is durable", "src/store/evictor.cc",
     "    syncs_.request([this, &task](Status synced) { synced ? header_durable(task) : retry(task); });",
     "           if (discards_ && task.evicts) {\n"
     "  io::DiskOp* op = new io::DiskOp;\n"
     "  op->kind = io::DiskOp::Kind::kDiscard;\n"
     "  op->offset = device_.offset_of(task.segment) + kPageBytes;\n"
     "  op->discard_bytes = flash_.segment_bytes() - kPageBytes;\n"
     "  op->on_done = [op](Status) { delete op; };\n  device_.submit(*op);\n"
     "           }\n"
     "           syncs_.request([this, &task](Status synced) { synced ? finish(task) : retry(task); });"),
    ("a segment is written again while it is discarded", "src/store/evictor.cc",
     "  task.discard_at = kPageBytes;  // the new header stays\n  discard_next();",
     "  io::DiskOp* op = new io::DiskOp;\n"
     "  op->kind = io::DiskOp::Kind::kDiscard;\n"
     "  op->offset = device_.offset_of(task.segment) + kPageBytes;\n"
     "  op->discard_bytes = flash_.segment_bytes() - kPageBytes;\n"
     "  op->on_done = [op](Status) { delete op; };\n  device_.submit(*op);\n  finish(task);"),
    ("the key is not in the seed of the checksums", "src/block/checksum.cc",
     "sizeof shape.schema_hash, hash_record(id));", "sizeof shape.schema_hash, 0 * hash_record(id));"),
    ("no flush between the two pairs of superblock copies", "src/store/copies_writer.cc",
     "kWrite, kWrite, kFlush, kWrite, kWrite, kFlush}", "kWrite, kWrite, kWrite, kWrite, kFlush}"),
    ("a new header does not wait for the tombstones that its segment holds", "src/store/evictor.cc",
     "  return device_.tombstones.carried(task.segment) > 0 || flash_.tells_others(task.segment);",
     "  return flash_.tells_others(task.segment);"),
    ("`synced` is acknowledged without a flush", "src/store/demoter_acks.cc",
     "      log_of(record.place).syncs.request(std::move(ack.on_ack));",
     "      due_.emplace_back(std::move(ack.on_ack), Status{});"),
    ("recovery does not apply tombstones", "src/store/recovery.cc",
     "    if (newer && !*newer) continue;", "    if (newer && *newer) continue;"),
    ("recovery does not see that a record replaces another", "src/store/recovery.cc",
     "      if (seq > d.put_seq)", "      if (seq < d.put_seq)"),
    ("what a tombstone may mean is given out while the store recovers", "src/store/recovery.cc",
     "      if (meanwhile_) flash_.hide(key.hash);\n", ""),
    ("generations are taken for the order in which segments were opened", "src/store/recovery.cc",
     "    if (use.unopened <= generation) return false;\n", "    if (use.generation <= generation) return false;\n"),
    ("a header is written before the map of changes tells of it", "src/store/evictor.cc",
     "  changes_.mark(task.segment, [this, &task](const Status& marked) {\n"
     "    if (!marked) return retry(task);\n"
     "    if (task.evicts && has_to_wait(task)) return hold(task);\n"
     "    write_header(task);\n"
     "  });",
     "  changes_.mark(task.segment, [](const Status&) {});\n  write_header(task);"),
    ("a new map of changes forgets headers that are on their way", "src/store/change_map.cc",
     "  since_ = unsettled_;", "  since_.assign(since_.size(), 0);"),
    ("a map of changes is forgotten by the start behind a kill", "src/store/use_table.cc",
     "  return Left{std::move(list->uses), std::move(changes->changed)};",
     "  return Left{std::move(list->uses), SegmentBits(segment_words(segments))};"),
    ("what a replaced record held is removed before the new one is written", "src/store/store_impl.cc",
     "  if (old != nullptr) pool_->detach(*old);\n}",
     "  if (old != nullptr) pool_->detach(*old);\n  if (tier_ != nullptr) tier_->flash.bury_replaced(record);\n}"),
    ("an older copy on another device ends before the newer is durable", "src/store/demoter.cc",
     "    const bool noted = flash_.device_of(copy.segment).note_stray(copy);", "    const bool noted = false;"),
    ("the first list of an opening says that all devices have it behind them", "src/store/store_devices.cc",
     "  list.boot_epoch = std::max(list.boot_epoch, epoch_max_) + 1;",
     "  list.boot_epoch = std::max(list.boot_epoch, epoch_max_) + 1;\n"
     "  for (ListedDevice& device : list.devices) device.confirmed = list.boot_epoch;"),
]
MUTANTS = [Mutant(*mutation, PROGRAM, TRIAL) for mutation in MUTATIONS]


def main() -> int:
    return hunt(command_line(__doc__), MUTANTS)


if __name__ == "__main__":
    sys.exit(main())
