#!/usr/bin/env python3
"""Proves that the tests of borrowed views (docs/decisions/0007-borrowed-views.md) can fail: takes one safeguard at a
time out of a copy of the sources and expects the rooms' unit tests to go wrong. Takes some ten minutes, so it is among
the long tests. Skipped (exit 77) where there is no build with a ninja file.

    tests/mutation/view_mutations.py build/release [--only WORDS]
"""

from __future__ import annotations

import sys

from mutants import Mutant, command_line, hunt, tests_fail

# What is taken out, the source, what is replaced, by what, the program and its tests. Each text must occur exactly once
# in its source.
MUTATIONS = [
    ("what is copied for a borrow is not verified", "src/client/get_flow.cc",
     "  stays_ = false;", "  stays_ = true;", "kvd_client_test", "CoreBorrow.*"),
    ("a reader's verification says yes", "src/client/lent_view.cc",
     "  if (slabs_.checksums.empty() ||", "  if (!slabs_.checksums.empty() ||", "kvd_client_test", "CoreBorrow.*"),
    ("the depot does not hear of what a reader finds damaged", "src/client/loan.cc",
     "  damaged_.push_back(std::move(damaged));", "  static_cast<void>(damaged);", "kvd_client_test", "CoreBorrow.*"),
    ("a view's end holds up the loop", "src/client/core_views.cc",
     "kLoanBytesPerTurn = std::size_t{2} << 20", "kLoanBytesPerTurn = std::size_t{2} << 40",
     "kvd_client_test", "CoreBorrow.*"),
    ("the memory of a view whose time is over is given back under its reader", "src/client/loan.cc",
     "    if (const Status cut = mapping_->cut_loose(some); !cut) return fail(cut.error());", "",
     "kvd_client_test", "CoreBorrow.*"),
    ("later gets read copies where the depot's memory was", "src/client/core_views.cc",
     "    if (!data_.channel.renew_memory()) return later;\n    prefault_.start(data_.channel.memory());\n", "",
     "kvd_client_test", "CoreBorrow.*"),
    ("the next request does not take views along", "src/client/core.cc",
     "  if (desk_->has_returned()) take_back();", "", "kvd_client_test", "CoreBorrow.*"),
    ("views that come back soon are never found", "src/client/core_views.cc",
     "void Core::look_for_returns() {\n  take_back();", "void Core::look_for_returns() {",
     "kvd_client_test", "CoreBorrow.*"),
    ("views that come back late are never found", "src/client/loan.cc",
     "  if (loop_->now() - lent_at >= kSoon) wake();", "  static_cast<void>(lent_at);",
     "kvd_client_test", "CoreBorrow.*"),
    ("views are told of in messages of their own", "src/client/core.cc",
     "  if (is_data(*running.channel)) queue_releases();", "", "kvd_client_test", "CoreBorrow.*:CoreViews.*"),
    ("many views are kept back", "src/client/core_views.cc",
     "  if (releases_.size() >= kReleasesMax) return", "  if (releases_.size() >= kReleasesMax * 1000) return",
     "kvd_client_test", "CoreViews.*"),
    ("what is kept stays in the window of what is on its way", "src/node/get_op.cc",
     "  if (request_.keep && carried != nullptr) window_bytes_ -= std::exchange(carried->bytes, 0);", "",
     "kvd_node_test", "GetOp.*"),
    ("bytes for a client that would keep them come in one message", "src/node/get_op.cc",
     "failed_.left() > 0 ? message_end(kAnyBytes) : 0);",
     "failed_.left() == 0 ? 0 : request_.keep ? kept_end() : message_end(kAnyBytes));",
     "kvd_node_test", "SessionKeepTest.*"),
    ("what is kept counts against the client's other gets", "src/node/session_view.cc",
     "  get.op->leave_connection();", "", "kvd_node_test", "SessionKeepTest.*"),
    ("any number of bytes may be kept", "src/node/session_view.cc",
     "!op.streams() && bytes <= kept_max && kept_.has_room(bytes) &&", "!op.streams() && bytes / 2 <= kept_max &&",
     "kvd_node_test", "SessionKeepTest.*"),
    ("kept views end with their connection", "src/node/leavers.cc",
     "  if (holdings->views.kept() == 0 ||", "  if (holdings != nullptr ||", "kvd_node_test", "SessionKeepTest.*"),
    ("kept views outlast the client", "src/node/keeper_pipe.cc",
     "  if (on_end) std::exchange(on_end, nullptr)();", "", "kvd_node_test", "SessionKeepTest.*:KeeperPipe.*"),
    ("a keeper is given whose end nobody would hear of", "src/node/keeper_pipe.cc",
     "io::Watch::kRead); !watched) {", "io::Watch::kRead); !watched && !held()) {", "kvd_node_test", "KeeperPipe.*"),
    ("every credential is lent the pool", "src/node/session_memory.cc",
     "return owns(auth::Right::kRead) && owns(auth::Right::kPool);", "return owns(auth::Right::kRead);",
     "kvd_node_test", "SessionMemoryTest.*"),
    ("who may not read is lent the pool", "src/node/session_memory.cc",
     "return owns(auth::Right::kRead) && owns(auth::Right::kPool);", "return owns(auth::Right::kPool);",
     "kvd_node_test", "SessionMemoryTest.*"),
    ("who has lost the right to the pool keeps its connection", "src/node/session_auth.cc",
     "  if (!shares_memory_ || may_see_pool()) return;", "  return;", "kvd_node_test", "SessionMemoryTest.*"),
    ("a part without memory for a copy counts as cut loose", "src/net/shared_memory.cc",
     "  if (copied == 0 || why == EINVAL) return {};", "  if (copied == 0 || why != 0) return {};",
     "kvd_net_test", "SharedMemory.*"),
    ("what is cut loose goes on showing the file", "src/net/shared_memory.cc",
     "io::Mapping::kPrivate", "io::Mapping::kShared", "kvd_net_test", "SharedMemory.*"),
]
MUTANTS = [Mutant(*place, tests_fail(tests)) for *place, tests in MUTATIONS]


def main() -> int:
    return hunt(command_line(__doc__), MUTANTS)


if __name__ == "__main__":
    sys.exit(main())
