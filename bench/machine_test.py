import contextlib
import itertools
import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench import machine

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu avx2 avx512f sse2\n"


class Parsing(unittest.TestCase):
    def test_cpu_and_vector_extensions(self):
        self.assertEqual(machine.cpu_model(CPUINFO), "AMD EPYC 7B13")
        self.assertEqual(machine.vector_extensions(CPUINFO), "avx512f avx2")

    def test_memory(self):
        self.assertEqual(machine.memory_gib("MemTotal:       25165824 kB\n"), 24.0)

    def test_the_mount_of_a_device_number(self):
        text = ("22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
                "23 22 0:21 / /proc rw - proc proc rw\n")
        self.assertEqual(machine.mount_of(text, "254:0"), ("/dev/vda", "ext4"))
        self.assertEqual(machine.mount_of(text, "8:1"), ("", ""))

    def test_what_is_missing_reads_unknown_and_does_not_fail(self):
        self.assertEqual(machine.cpu_model(""), machine.UNKNOWN)
        self.assertEqual(machine.vector_extensions(""), machine.UNKNOWN)
        self.assertEqual(machine.memory_gib(""), 0.0)
        self.assertEqual(machine.disk(Path("/no/such/path")), machine.UNKNOWN)


class ThisMachine(unittest.TestCase):
    def test_has_all_facts(self):
        facts = machine.facts(Path("/"))
        self.assertEqual(facts["cores"], len(os.sched_getaffinity(0)))
        self.assertLessEqual({"cpu", "cores", "kernel", "disk", "tcp_congestion_control"}, facts.keys())

    def test_time_that_the_host_gave_to_others(self):
        ticks = os.sysconf("SC_CLK_TCK")
        stat = f"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 {3 * ticks} 9 10\ncpu1 1 2 3 4 5 6 7 0 9 10\nintr 5\n"
        self.assertEqual(machine.stolen_s(stat), [3.0, 0.0])
        self.assertEqual(machine.stolen_s(""), [])

    def test_lost_time_is_what_the_host_kept_or_for_how_long_nobody_was_woken(self):
        with mock.patch.object(machine, "stolen_s", side_effect=[[9.0, 10.0], [9.2, 10.5], [], []]), \
                mock.patch.object(machine.Lost, "watch", SimpleNamespace(late_s=1.0)) as watch:
            self.assertEqual(machine.Lost().seconds(), 0.5)
            lost = machine.Lost()
            watch.late_s = 3.0
            self.assertEqual(lost.seconds(), 2.0)

    def test_the_watch_sees_its_own_thread_held_up(self):
        sleeps = iter([0.01, 0.5, 0.01])
        times = itertools.accumulate([0.0, 0.01, 0.5, 0.01])
        watch = machine.Watch.__new__(machine.Watch)
        watch.late_s = 0.0
        with mock.patch.object(machine.time, "monotonic", lambda: next(times)), \
                mock.patch.object(machine.time, "sleep", lambda _: next(sleeps)), contextlib.suppress(StopIteration):
            watch.run()
        self.assertAlmostEqual(watch.late_s, 0.49)

    def test_a_folder_without_git_has_no_version(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(machine.version(Path(folder)), machine.UNKNOWN)


if __name__ == "__main__":
    unittest.main()
