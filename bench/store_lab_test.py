"""The store suite without a store: what fio prints, what a driver prints, and what the rows make of it."""

import argparse
import json
import stat
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench import harness, store_lab
from bench.store_rows import bounds, large, layers, pool, reads, writes

FIO = {"jobs": [{"error": 0, "usr_cpu": 2.0, "sys_cpu": 8.0,
                 "read": {"io_bytes": 3_000_000_000, "runtime": 1500},
                 "write": {"io_bytes": 0, "runtime": 0}}]}


MATCHED = {"records": 4096, "match_us": 20.5, "match_p99_us": 30.0, "peak_kib": 9000}
BOUNDS = {"seconds": 10, "memory_over_configured_MiB": 40.5, "disk_over_configured_bytes": 0,
          "allocations_after_start": 0, "segments_evicted": 9, "puts": 1, "gets": 2, "pool_hits": 1, "flash_hits": 1,
          "failed": 0, "wrong": 0}
RECOVERED = {"records": 4096, "open_s": 1.5, "first_hit_s": 1.25, "served_s": 1.5}


class Fio(unittest.TestCase):
    def test_bytes_time_and_processor_are_read(self):
        run = store_lab.parse_fio("note: a warning\n" + json.dumps(FIO), "read")
        self.assertAlmostEqual(run.gb_per_s, 2.0)
        self.assertAlmostEqual(run.cpu_seconds, 0.15)

    def test_a_run_that_moved_nothing_or_failed_is_no_figure(self):
        with self.assertRaises(harness.BenchError):
            store_lab.parse_fio(json.dumps(FIO), "write")
        with self.assertRaises(harness.BenchError):
            store_lab.parse_fio(json.dumps({"jobs": [FIO["jobs"][0] | {"error": 5}]}), "read")


class Rows(unittest.TestCase):
    """The whole suite on programs that only print."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        programs = self.build / "release" / "bin"
        programs.mkdir(parents=True)
        figures = {"bytes": 1 << 30, "seconds": 0.5, "cpu_seconds": 0.2, "first_layer_seconds": 0.05,
                   "device_bytes": (1 << 30) + (1 << 22), "segments_evicted": 3}
        script = ("#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in --dir) mkdir -p $2; : > $2/flash.kvd;; "
                  f"room) echo '{{\"records\": 2000}}'; exit;; sparse) echo '{{\"records\": 4096}}'; exit;; "
                  f"match) echo '{json.dumps(MATCHED)}'; exit;; recover) echo '{json.dumps(RECOVERED)}'; exit;; "
                  f"esac; shift; done\necho '{json.dumps(figures)}'\n")
        self.program(programs / "kvd_store_driver", script)
        self.program(programs / "kvd_store_bounds", f"#!/bin/sh\necho '{json.dumps(BOUNDS)}'\n")
        self.program(programs / "kvd_blobdb_driver", script.replace("0.5", "1.0").replace(
            ', "first_layer_seconds": 0.05, "device_bytes": 1077936128, "segments_evicted": 3', ""))
        fio = {"jobs": [FIO["jobs"][0] | {kind: {"io_bytes": 1 << 30, "runtime": 500} for kind in ("read", "write")}]}
        self.program(self.build / "fio", f"#!/bin/sh\ncat <<'END'\n{json.dumps(fio)}\nEND\n")

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_suite(self) -> dict[str, dict]:
        options = argparse.Namespace(build_dir=str(self.build), quick=True, runs=3, only=[], keep=False)
        bench = harness.Bench("store", options)
        bench.work.mkdir(parents=True)
        lab = store_lab.StoreLab(bench)
        for module in (bounds, large, layers, reads, pool, writes):
            module.run(lab, bench)
        return {result["name"]: result for result in bench.results}

    def test_every_name_has_a_figure(self):
        with mock.patch("shutil.which", return_value=str(self.build / "fio")):
            results = self.run_suite()
        names = {*bounds.NAMES, *large.NAMES, *layers.NAMES, *reads.NAMES, *pool.NAMES, *writes.NAMES}
        self.assertEqual(set(results), names)
        self.assertTrue(all(result["value"] is not None for result in results.values()))
        self.assertAlmostEqual(results["read_1MiB_over_fio"]["value"], 1.0)
        self.assertAlmostEqual(results["write_4MiB_over_blobdb"]["value"], 2.0)
        self.assertAlmostEqual(results["write_amplification"]["value"], 1 + 1 / 256)
        self.assertAlmostEqual(results["memory_over_configured_MiB"]["value"], 40.5)
        self.assertAlmostEqual(results["match_prefix_512_us"]["value"], 20.5)
        self.assertAlmostEqual(results["recovery_4TB_first_hit_s"]["value"], 1.25)
        self.assertAlmostEqual(results["index_bytes_per_record"]["value"], 0, msg="both processes are as large")
        self.assertAlmostEqual(results["layer_0_share_of_time"]["value"], 0.1)

    def test_recovery_is_judged_by_the_slowest_run(self):
        lab, bench = mock.Mock(), mock.Mock()
        bench.rounds.return_value = 3
        runs = iter([{"served_s": 9.5, "first_hit_s": 9.0},
                     {"served_s": 3.25, "first_hit_s": 0.9}, {"served_s": 0.9, "first_hit_s": 3.0},
                     {"served_s": 0.8, "first_hit_s": 0.8}, {"served_s": 9.0, "first_hit_s": 9.0},
                     {"served_s": 0.7, "first_hit_s": 0.3}, {"served_s": 0.6, "first_hit_s": 0.4},
                     {"served_s": 0.5, "first_hit_s": 0.2}])
        lab.large_run.side_effect = lambda what, *_, **__: {"records": 1} if what == "sparse" else next(runs)
        bench.work = self.build
        large.recovery(lab, bench)
        self.assertEqual([call.args[:2] for call in bench.value.call_args_list],
                         [("recovery_4TB_all_headers_s", 9.5), ("recovery_4TB_all_headers_first_hit_s", 9.0),
                          ("recovery_4TB_s", 3.25), ("recovery_4TB_first_hit_s", 3.0),
                          ("recovery_4TB_behind_an_orderly_end_s", 0.7),
                          ("recovery_4TB_behind_an_orderly_end_first_hit_s", 0.4)])
        drained = ["--drain" in call.args for call in lab.large_run.call_args_list]
        self.assertEqual(drained, [False] * 5 + [True] * 4, "a run that leaves the first table is not judged")

    def test_bounds_of_a_load_with_wrong_bytes_are_no_figures(self):
        program = self.build / "release/bin/kvd_store_bounds"
        program.write_text(program.read_text().replace('"wrong": 0', '"wrong": 1'))
        with mock.patch("shutil.which", return_value=str(self.build / "fio")):
            results = self.run_suite()
        self.assertIn("1 wrong gets", results["allocations_after_start"]["failed"])
        self.assertIsNone(results["memory_over_configured_MiB"]["value"])

    def test_what_is_not_installed_is_skipped_with_the_reason(self):
        (self.build / "release/bin/kvd_blobdb_driver").unlink()
        with mock.patch("shutil.which", return_value=None):
            results = self.run_suite()
        self.assertIn("fio is not installed", results["read_64KiB_over_fio"]["skipped"])
        self.assertIn("librocksdb-dev", results["read_64KiB_over_blobdb"]["skipped"])
        self.assertIsNotNone(results["layer_order_over_whole"]["value"])

    def test_a_store_that_was_not_full_fails_its_row(self):
        driver = self.build / "release/bin/kvd_store_driver"
        driver.write_text(driver.read_text().replace('"segments_evicted": 3', '"segments_evicted": 0'))
        with mock.patch("shutil.which", return_value=str(self.build / "fio")):
            results = self.run_suite()
        self.assertIn("was not full", results["write_1MiB_over_fio"]["failed"])
        self.assertIsNotNone(results["read_1MiB_over_fio"]["value"])


if __name__ == "__main__":
    unittest.main()
