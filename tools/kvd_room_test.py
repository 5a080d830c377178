"""Tests of cmake/kvd_room.cmake: which rooms may depend on which, and what it says about mistakes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

MODULES = Path(__file__).resolve().parent.parent / "cmake"

# No language, so that configuring takes a tenth of a second; rooms without sources are interface libraries.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(rooms LANGUAGES NONE)
set(KVD_TESTS OFF)
add_library(kvd_flags INTERFACE)
add_library(kvd::flags ALIAS kvd_flags)
include({modules}/kvd_room.cmake)
kvd_room(base LEVEL 0)
kvd_room(wire LEVEL 2 DEPS base)
{rooms}
"""


@unittest.skipUnless(shutil.which("cmake"), "cmake is not installed")
class KvdRoomTest(unittest.TestCase):
    def configure(self, rooms: str) -> tuple[bool, str]:
        """Configures base, wire and these rooms. Returns whether CMake agreed, and its words on one line."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "CMakeLists.txt").write_text(PROJECT.format(modules=MODULES, rooms=rooms))
            done = subprocess.run(["cmake", "-S", folder, "-B", f"{folder}/build", "-G", "Ninja"],
                                  capture_output=True, text=True, check=False)
            return done.returncode == 0, " ".join((done.stdout + done.stderr).split())

    def assert_refused(self, rooms: str, words: str) -> None:
        agreed, said = self.configure(rooms)
        self.assertFalse(agreed)
        self.assertIn(words, said)

    def test_dependencies_downwards_are_accepted_by_either_name(self) -> None:
        agreed, said = self.configure("kvd_room(node LEVEL 4 DEPS kvd::wire base)")
        self.assertTrue(agreed, said)

    def test_dependency_sideways_is_refused(self) -> None:
        self.assert_refused("kvd_room(http LEVEL 2 DEPS wire)", "may not use room wire (level 2)")

    def test_dependency_upwards_is_refused(self) -> None:
        self.assert_refused("kvd_room(block LEVEL 1 DEPS wire)", "may not use room wire (level 2)")

    def test_unknown_room_is_refused(self) -> None:
        self.assert_refused("kvd_room(node LEVEL 4 DEPS stor)", "room node needs room stor, which is not built")

    def test_missing_level_is_refused(self) -> None:
        self.assert_refused("kvd_room(node DEPS base)", "LEVEL <number> is missing")

    def test_misspelt_keyword_is_refused(self) -> None:
        self.assert_refused("kvd_room(node LEVEL 4 DEP base)", "unknown arguments")


if __name__ == "__main__":
    unittest.main()
