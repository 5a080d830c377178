#!/usr/bin/env python3
"""Proves that the schedulers' property tests can fail: puts bugs into copies of the schedulers, one at a time, builds
the test against each copy, and expects it to fail. Skipped (exit 77) where there is no C++ compiler.

    tests/mutation/scheduler_mutations.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mutants import ROOT, SKIPPED, Mutant, NoVerdict, Trial, misplaced, run_tool, verdict

BASE = ("src/base/check.cc", "src/base/random.cc")


@dataclass(frozen=True)
class Bug:
    """`old` must occur exactly once in the file and becomes `new`."""

    file: str
    what: str
    old: str
    new: str


@dataclass(frozen=True)
class Subject:
    """A property test, the sources that it is linked with, and the bugs that it has to catch."""

    test: str
    sources: tuple[str, ...]
    bugs: tuple[Bug, ...]


SCHEDULER = "src/sched/scheduler.cc"
V1 = "src/sched/v1_engine.cc"
CACHE = "src/sched/prefix_cache.cc"

SUBJECTS = (
    Subject("src/sched/scheduler_property_test.cc", (SCHEDULER, "src/sched/block_pool.cc"), (
        Bug(SCHEDULER, "finished requests keep a block",
            "  for (; !r.blocks.empty(); r.blocks.pop_back()) pool_.give(r.blocks.back(), id);\n"
            "  host_used_ -= r.host_blocks;",
            "  for (; r.blocks.size() > 1; r.blocks.pop_back()) pool_.give(r.blocks.back(), id);\n"
            "  host_used_ -= r.host_blocks;"),
        Bug(SCHEDULER, "a swapped request gives its place on the host back twice",
            "  insert_by_arrival(running_, id);\n  host_used_ -= r.host_blocks;",
            "  insert_by_arrival(running_, id);\n  host_used_ -= 2 * r.host_blocks;"),
        Bug(SCHEDULER, "recomputation keeps what was computed",
            "    r.computed = std::min(r.computed, static_cast<std::uint32_t>(r.blocks.size()) * "
            "config_.block_tokens);", ""),
        Bug(SCHEDULER, "preempted requests queue behind new ones", "waiting_.push_front(id)", "waiting_.push_back(id)"),
        Bug(SCHEDULER, "the first running request is the victim",
            "    const RequestId victim = running_.back();\n    preempt(victim);",
            "    std::swap(running_.front(), running_.back());\n    const RequestId victim = running_.back();\n"
            "    preempt(victim);"),
        Bug(SCHEDULER, "the adaptive choice brings swapped requests back before earlier ones",
            "  while (!swapped_.empty() && !recomputed_first()) {", "  while (!swapped_.empty()) {"),
        Bug(SCHEDULER, "the adaptive choice recomputes requests before earlier ones that are swapped out",
            "    if (swapped_first(id)) break;\n", ""),
        Bug(SCHEDULER, "blocks are given away before they are copied out",
            "    copy_out(id, blocks);\n    return;", "    copy_out(id, blocks);"),
        Bug(SCHEDULER, "a request runs before its blocks are copied in",
            "    insert_by_arrival(arriving_, id);\n",
            "    insert_by_arrival(arriving_, id);\n    put(id, 1, false);\n"),
        Bug(SCHEDULER, "a copy frees one block too few",
            "  for (std::uint32_t i = 0; i < copy.blocks; ++i) {",
            "  for (std::uint32_t i = 1; i < copy.blocks; ++i) {"),
    )),
    Subject("src/sched/v1_property_test.cc", (V1, CACHE), (
        Bug(V1, "a request that ends keeps a private block",
            "  cache_.release(r.held, r.private_blocks);",
            "  cache_.release(r.held, r.private_blocks - (r.private_blocks > 1 ? 1 : 0));"),
        Bug(V1, "preempted requests queue behind new ones", "waiting_.push_front(id)", "waiting_.push_back(id)"),
        Bug(V1, "the sequence that was admitted first is the victim", "std::ranges::max_element(decodes_",
            "std::ranges::min_element(decodes_"),
        Bug(V1, "decodes take their block a step late", "cache_.take(crossings_[phase(step_)])",
            "cache_.take(crossings_[phase(step_ + config_.block_tokens - 1)])"),
        Bug(V1, "chunks do not count against the pass", "  budget -= tokens;\n", ""),
        Bug(V1, "a pass that preempts admits others", "  if (!preempted_) admit(pass, budget);",
            "  admit(pass, budget);"),
        Bug(V1, "the context of a sequence that leaves stays in the sum", "  context_ -= r.computed;\n", ""),
        Bug(CACHE, "blocks in use can be evicted", "  unlink(node);\n  used_ += nodes_[node].have;",
            "  used_ += nodes_[node].have;"),
        Bug(CACHE, "the head of a prompt goes before its tail",
            "  for (std::uint32_t node = held.last; node != kNone; node = nodes_[node].parent) {",
            "  std::vector<std::uint32_t> path;\n"
            "  for (auto n = held.last; n != kNone; n = nodes_[n].parent) path.insert(path.begin(), n);\n"
            "  for (const std::uint32_t node : path) {"),
        Bug(CACHE, "the table keeps the tail of a run that is split", "    table_[slot_with(node)].node = head;\n", ""),
        Bug(CACHE, "a request goes on in a run that others hold", "  return n.refs == 1 && n.child",
            "  return n.child"),
        Bug(CACHE, "what lies behind a place in the table that becomes free is lost",
            "    if (((slot - home) & mask) >= ((slot - hole) & mask)) {", "    if (home == mask + 1) {"),
        Bug(CACHE, "only a run's first successor is found", "  return p.hashed > 0 ? find(parent, unit) : kNone;",
            "  return kNone;"),
    )),
)


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++-19")


class Workshop:
    """Compiles in one folder; sources without a bug once."""

    def __init__(self, folder: Path, cxx: str) -> None:
        self.folder = folder
        self.cxx = cxx
        self.objects: dict[str, Path] = {}

    def compile(self, source: Path, name: str) -> Path:
        made = self.folder / f"{name}.o"
        run_tool(self.folder, [self.cxx, "-std=c++23", "-O1", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-c",
                               str(source), "-o", str(made)])
        return made

    def object_of(self, source: str) -> Path:
        if source not in self.objects:
            self.objects[source] = self.compile(ROOT / source, Path(source).stem)
        return self.objects[source]

    def goes_wrong(self, subject: Subject, bug: Bug | None) -> tuple[bool, str]:
        """Whether the subject's test fails with the bug (without one), and how. Raises NoVerdict."""
        objects = [self.object_of(s) for s in (subject.test, *subject.sources, *BASE) if bug is None or s != bug.file]
        program = self.folder / "test"
        program.unlink(missing_ok=True)
        if bug is not None:
            broken = self.folder / "broken.cc"
            broken.write_text(mutant_of(bug).text(), encoding="utf-8")
            objects.append(self.compile(broken, "broken"))
        run_tool(self.folder, [self.cxx, *map(str, objects), "-lgtest", "-lgtest_main", "-lpthread", "-o",
                               str(program)])
        return verdict([str(program)], 120)


def mutant_of(bug: Bug) -> Mutant:
    return Mutant(bug.what, bug.file, bug.old, bug.new, "", Trial((), ()))


MUTANTS = [mutant_of(bug) for subject in SUBJECTS for bug in subject.bugs]


def main() -> int:
    cxx = compiler()
    if cxx is None:
        print("skipped: no C++ compiler")
        return SKIPPED
    wrong = misplaced(MUTANTS)
    if wrong:
        print("\n".join(wrong))
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        workshop = Workshop(Path(name), cxx)
        for subject in SUBJECTS:
            fails, how = workshop.goes_wrong(subject, None)
            if fails:
                print(f"{subject.test}: fails without a bug, too: {how}")
                return 1
            for bug in subject.bugs:
                try:
                    fails, how = workshop.goes_wrong(subject, bug)
                    what = "caught" if fails else "NOT CAUGHT"
                except NoVerdict as why:
                    what, how = "NO VERDICT", str(why)
                print(f"{what:<11} {Path(bug.file).name}: {bug.what}: {how}", flush=True)
                failed += what != "caught"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
