"""Nothing that the demo starts may outlive it. Each test runs a program of its own, because the code under test kills
all descendants of the process it runs in."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from kvdepot.demo import processes

PACKAGES = Path(processes.__file__).parents[2]
DEADLINE_S = 20.0
PRELUDE = """
import signal, sys, time
from pathlib import Path
from kvdepot.demo.processes import *
log = Path(sys.argv[1]) / "log"
"""


def gone(pid):
    end = time.monotonic() + DEADLINE_S
    while processes.living([pid]):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Nets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, body):
        child = subprocess.Popen([sys.executable, "-c", PRELUDE + body, self.folder], stdout=subprocess.PIPE, text=True,
                                 env={"PYTHONPATH": str(PACKAGES), "PATH": os.defpath})
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.kill)
        return child

    def test_leaving_the_context_ends_children_and_what_left_their_group(self):
        child = self.start("""
with Children() as children:
    inner = "import subprocess, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True); " \
            "print(p.pid, flush=True); time.sleep(600)"
    first = children.start("first", [sys.executable, "-c", inner], log, pipes=True)
    print(first.pid, first.stdout.readline().decode().strip(), flush=True)
""")
        pids = [int(word) for word in child.stdout.readline().split()]
        self.assertEqual(len(pids), 2)
        self.assertEqual(child.wait(DEADLINE_S), 0)
        self.assertTrue(all(gone(pid) for pid in pids))

    def test_a_child_that_ignores_sigterm_is_killed(self):
        child = self.start("""
import kvdepot.demo.processes as module
module.STOP_DEADLINE_S = 0.3
with Children() as children:
    stubborn = children.start("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], log,
                              pipes=True)
    stubborn.stdout.readline()
    print(stubborn.pid, flush=True)
""")
        pid = int(child.stdout.readline())
        self.assertEqual(child.wait(DEADLINE_S), 0)
        self.assertTrue(gone(pid))

    def test_children_end_when_their_parent_is_killed(self):
        child = self.start("""
children = Children()
print(children.start("sleeper", ["sleep", "600"], log).pid, flush=True)
time.sleep(600)
""")
        pid = int(child.stdout.readline())
        self.wait_for_program(pid, "sleep")
        child.send_signal(signal.SIGKILL)
        child.wait(DEADLINE_S)
        self.assertTrue(gone(pid))

    def wait_for_program(self, pid, name):
        """The launcher has asked the kernel for its signal before it becomes the program."""
        end = time.monotonic() + DEADLINE_S
        while Path(f"/proc/{pid}/comm").read_text().strip() != name and time.monotonic() < end:
            time.sleep(0.01)

    def test_signals_become_an_exception_that_ends_everything(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number=number):
                child = self.start("""
raise_on_signals()
try:
    with Children() as children:
        print(children.start("sleeper", ["sleep", "600"], log).pid, flush=True)
        time.sleep(600)
except Interrupted as seen:
    sys.exit(3)
""")
                pid = int(child.stdout.readline())
                child.send_signal(number)
                self.assertEqual(child.wait(DEADLINE_S), 3)
                self.assertTrue(gone(pid))

    def test_a_program_that_is_not_there_is_told_in_its_log(self):
        child = self.start("""
with Children() as children:
    absent = children.start("absent", ["/no/such/program"], log)
    absent.wait(10)
    print(absent.status(), absent.last_words())
""")
        self.assertEqual(child.stdout.readline().strip(), "1 : /no/such/program: No such file or directory")

    def test_children_see_only_a_small_environment(self):
        child = self.start("""
with Children() as children:
    printer = children.start("printer", ["env"], log, {"KEPT": "1"})
    printer.wait(10)
print(sorted(line.split("=")[0] for line in log.read_text().splitlines()))
""")
        self.assertEqual(child.stdout.readline().strip(), "['HOME', 'KEPT', 'LANG', 'PATH', 'TMPDIR']")


if __name__ == "__main__":
    unittest.main()
