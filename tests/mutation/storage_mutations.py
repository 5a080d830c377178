#!/usr/bin/env python3
"""Proves that the enumeration of crash states can fail: takes one safeguard at a time out of a copy of the store's
sources, links the enumeration against each copy, and expects it to find something wrong within three minutes (that it
finds nothing in the unchanged store is a test of its own). Skipped (exit 77) where there is no build with a ninja file.

    tests/mutation/storage_mutations.py build/release
"""

from __future__ import annotations

import subprocess
import sys

from pathlib import Path

from mutants import Mutant, command_line, hunt

PROGRAM = "kvd_crash_states"
SECONDS = 180

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
     "{kFlush, 0, 1, kFlush, 2, 3, kFlush}", "{kFlush, 0, 1, 2, 3, kFlush}"),
    ("a new header does not wait for the tombstones that its segment holds", "src/store/evictor.cc",
     "  if (device_.tombstones.carried(task.segment) > 0) return;", ""),
    ("`synced` is acknowledged without a flush", "src/store/demoter_acks.cc",
     "      log_of(record.place).syncs.request(std::move(ack.on_ack));",
     "      due_.emplace_back(std::move(ack.on_ack), Status{});"),
    ("recovery does not apply tombstones", "src/store/recovery.cc",
     "    if (!entry || !seqs_.newer(t.put_seq, entry->segment, entry->offset, true)) continue;",
     "    if (!entry || seqs_.newer(t.put_seq, entry->segment, entry->offset, true)) continue;"),
    ("recovery does not see that a record replaces another", "src/store/recovery.cc",
     "      if (seq && *seq > d.put_seq)", "      if (seq && *seq < d.put_seq)"),
    ("what a tombstone may mean is given out while the store recovers", "src/store/recovery.cc",
     "      if (meanwhile_) flash_.hide(key.hash);\n", ""),
    ("generations are taken for the order in which segments were opened", "src/store/recovery.cc",
     "    if (use.unopened <= generation) return false;\n", "    if (use.generation <= generation) return false;\n"),
    ("what a replaced record held is removed before the new one is written", "src/store/store_impl.cc",
     "  if (old != nullptr) pool_->detach(*old);\n}",
     "  if (old != nullptr) pool_->detach(*old);\n  if (tier_ != nullptr) tier_->flash.bury_replaced(record);\n}"),
]


def finds_something(program: Path) -> tuple[bool, str]:
    done = subprocess.run([str(program), "--seconds", str(SECONDS)], capture_output=True, text=True,
                          timeout=SECONDS * 4, check=False)
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    return done.returncode != 0, wrong[0] if wrong else (done.stderr.strip().splitlines() or ["nothing"])[-1]


def main() -> int:
    return hunt(command_line(__doc__), [Mutant(*mutation, PROGRAM, finds_something) for mutation in MUTATIONS])


if __name__ == "__main__":
    sys.exit(main())
