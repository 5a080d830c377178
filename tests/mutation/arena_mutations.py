#!/usr/bin/env python3
"""Proves that the tests of arenas (docs/decisions/0009-arena.md) can fail: takes one safeguard at a time out of a copy
of the sources and expects the rooms' unit tests to go wrong. Takes some ten minutes, so it is among the long tests.
Skipped (exit 77) where there is no build with a ninja file.

    tests/mutation/arena_mutations.py build/release [--only WORDS]
"""

from __future__ import annotations

import sys

from mutants import Mutant, command_line, hunt, tests_fail

NODE = ("kvd_node_test", "*ArenaTest.*")
CLIENT = ("kvd_client_test", "CoreArena.*:ArenaRoom.*:FlowTest.*")
# What is taken out, the source, what is replaced, by what, the program and its tests. Each text must occur exactly once
# in its source.
MUTATIONS = [
    ("what is taken is published unverified", "src/node/put_op.cc",
     "    if (record.handle) judge_slab(key, layer, hasher_->finish());", "", *NODE),
    ("the arena is read again for the checksum", "src/node/put_op.cc",
     "      block::copy_and_hash(*hasher_, from.first(n), slab.subspan(slab_landed_, n), past_cache);",
     "      static_cast<void>(past_cache);\n"
     "      std::ranges::copy(from.first(n), slab.data() + slab_landed_);\n"
     "      if (slab_landed_ + n == slab_bytes) hasher_->add(Bytes(from.data() - slab_landed_, slab_bytes));", *NODE),
    ("what is verified is not what is published", "src/node/put_op.cc",
     "      block::copy_and_hash(*hasher_, from.first(n), slab.subspan(slab_landed_, n), past_cache);",
     "      static_cast<void>(past_cache);\n"
     "      hasher_->add(from.first(n));\n"
     "      if (slab_landed_ + n == slab_bytes)\n"
     "        std::ranges::copy(Bytes(from.data() - slab_landed_, slab_bytes), slab.data());",
     *NODE),
    ("slabs may lie beyond the arena", "src/node/session_arena.cc",
     "    if (Status checked = wire::check_arena_place(*data, slab_bytes, arena_->size()); !checked) return checked;\n",
     "", "kvd_node_test", "SessionArenaTest.WhatASane*"),
    ("the end of the arena is off by the slabs", "src/wire/decode.cc",
     "  if (bytes > arena_bytes || data.offset > arena_bytes - bytes) return malformed();",
     "  if (bytes > arena_bytes || data.offset > arena_bytes) return malformed();", "kvd_wire_test", "WireMessage.*"),
    ("a connection without an arena has one", "src/node/session_arena.cc",
     '  if (arena_ == nullptr) return fail(Code::kCorrupt, "a PUT through an arena where none was given");', "", *NODE),
    ("all of a message is taken in one turn", "src/node/session_arena.cc",
     "kTakenAtOnce = std::size_t{1} << 20", "kTakenAtOnce = std::size_t{1} << 40", *NODE),
    ("the next message does not wait for the slices", "src/node/session_arena.cc",
     "    connection_->hold();\n", "", *NODE),
    ("behind slices nothing is taken any more", "src/node/session_arena.cc",
     "  connection_->resume();\n", "", *NODE),
    ("what is taken is told of a moment later only", "src/node/session_arena.cc",
     "  if (arena_untold_bytes_ >= std::min(arena_->size() / 16, kUntoldMax)) tell_taken();", "", *NODE),
    ("of a large arena more is taken before that is told", "src/node/session_arena.cc",
     "std::min(arena_->size() / 16, kUntoldMax)", "arena_->size() / 16", *NODE),
    ("who waits for room is not told of little", "src/node/session_arena.cc",
     "  if (arena_told_ != arena_taken_ && !taken_timer_.armed()) taken_timer_.arm_in(kToldLater);", "", *NODE),
    ("what is taken is not told of when a PUT is cancelled", "src/node/session_body.cc",
     "  tell_taken();\n  static_cast<void>(refuse(", "  static_cast<void>(refuse(", *NODE),
    ("what is taken is not told of when a PUT ends", "src/node/session_body.cc",
     "  tell_taken();\n  connection_->send(", "  connection_->send(", *NODE),
    ("messages of PUTs that have ended are not counted", "src/node/session_arena.cc",
     "  ++arena_taken_;", "  if (found != puts_.end()) ++arena_taken_;", *NODE),
    ("any number of arenas", "src/node/session_memory.cc",
     "arena_share_ ? net::Arena::create(bytes) : fail(Code::kBusy, \"there are no more arenas\")",
     "net::Arena::create(bytes)", *NODE),
    ("the first arena may be larger than all of them", "src/node/session_memory.cc",
     "context_.arenas.bytes_max() < bytes)", "context_.arenas.bytes_max() == 0)", *NODE),
    ("an arena's size can be changed", "src/net/memory_file.cc",
     "F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL", "F_SEAL_GROW", "kvd_net_test", "Arena.*:Ring*"),
    ("an arena that could shrink is taken", "src/net/memory_file.cc",
     "(seals & kWanted) != kWanted", "(seals & kWanted) == 0", "kvd_net_test", "Arena.*:Ring*"),
    ("a file of another size is taken", "src/net/memory_file.cc",
     "static_cast<std::uint64_t>(status.st_size) != bytes", "status.st_size < 0", "kvd_net_test", "Arena.*:Ring*"),
    ("stretches that are under way are given again", "src/client/arena_room.cc",
     "before_oldest && at + bytes > oldest", "before_oldest && at + bytes > oldest && at > limit", *CLIENT),
    ("the depot takes what was not sent", "src/client/arena_room.cc",
     "  if (messages < taken_ || messages - taken_ > sent_.size()) {",
     "  messages = std::clamp<std::uint64_t>(messages, taken_, taken_ + sent_.size());\n  if (false) {", *CLIENT),
    ("what a put has begun stays when it ends", "src/client/put_flow.cc",
     "  if (arena_ != nullptr && preparing()) arena_->drop();", "", *CLIENT),
    ("nobody goes on when there is room", "src/client/core_puts.cc",
     "  if (Status taken = channel.arena()->taken(told->messages); !taken) return taken;\n  pump_puts();",
     "  if (Status taken = channel.arena()->taken(told->messages); !taken) return taken;", *CLIENT),
    ("slabs larger than a quarter of the arena go there", "src/client/put_flow.cc",
     "op.request.layout.slab_bytes() <= arena->stretch_max()", "op.request.layout.slab_bytes() > 0", *CLIENT),
    ("a part may be larger than what a small arena takes", "src/client/put_flow.cc",
     "arena_ == nullptr ? kPartBytes : std::min(kArenaPartBytes, arena_->stretch_max())",
     "arena_ == nullptr ? kPartBytes : kArenaPartBytes", *CLIENT),
    ("an arena that cannot be mapped is asked for again and again", "src/client/channel.cc",
     "  options_.arena = false;\n", "", *CLIENT),
]
MUTANTS = [Mutant(*place, tests_fail(tests)) for *place, tests in MUTATIONS]


def main() -> int:
    return hunt(command_line(__doc__), MUTANTS)


if __name__ == "__main__":
    sys.exit(main())
