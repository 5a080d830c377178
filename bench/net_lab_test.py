"""The net suite without a network: what iperf3 and the drivers print, and what the rows make of it."""

import argparse
import json
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench import harness, net_lab
from bench.net_client import NetClient
from bench.net_lab import Side
from bench.net_rows import limits, lookups, mooncake, peers, shm

FAKE = Path(__file__).parent / "testing" / "fake_net_driver.py"
IPERF = {"end": {"sum_received": {"bits_per_second": 32e9},
                 "cpu_utilization_percent": {"host_total": 40.0, "remote_total": 80.0}}}


class Iperf(unittest.TestCase):
    def test_rate_and_processor_time_of_both_ends_are_read(self):
        rate, client, server = net_lab.parse_iperf(json.dumps(IPERF))
        self.assertAlmostEqual(rate, 4.0)
        self.assertAlmostEqual(client, 0.1)
        self.assertAlmostEqual(server, 0.2)

    def test_a_congestion_control_that_was_asked_for_is_proved(self):
        sent = {"end": IPERF["end"] | {"sender_tcp_congestion": "reno"}}
        self.assertAlmostEqual(net_lab.parse_iperf(json.dumps(sent), "reno")[0], 4.0)
        for other in (IPERF, {"end": IPERF["end"] | {"sender_tcp_congestion": "bbr"}}):
            with self.assertRaisesRegex(harness.BenchError, "not reno"):
                net_lab.parse_iperf(json.dumps(other), "reno")

    def test_the_rate_of_a_cipher_is_read(self):
        text = "+DT:aes-128-gcm:1:16384\n+R:250000:aes-128-gcm:1.000000\n+H:16384\n+F:22:AES-128-GCM:4096000000.00\n"
        self.assertAlmostEqual(net_lab.parse_openssl_speed(text), 4.096)
        with self.assertRaises(harness.BenchError):
            net_lab.parse_openssl_speed("")

    def test_what_is_no_figure_is_an_error(self):
        for text in ("", json.dumps({"error": "refused"}),
                     json.dumps({"end": IPERF["end"] | {"sum_received": {"bits_per_second": 0}}})):
            with self.assertRaises(harness.BenchError):
                net_lab.parse_iperf(text)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def client(self, kind: str) -> NetClient:
        made = NetClient(kind, [sys.executable, FAKE, kind], self.folder / "log")
        self.addCleanup(made.close)
        return made


class Clients(Folder):
    def test_a_command_gives_figures(self):
        run = self.client("other").run("get", 1, 8, 1)
        self.assertAlmostEqual(run.gb_per_s, 1.0)
        self.assertAlmostEqual(run.per_gb(run.cpu_seconds), 0.25)

    def test_an_error_is_told_and_ends_the_client(self):
        client = self.client("broken")
        with self.assertRaisesRegex(harness.BenchError, "client broken: a value is not what was put"):
            client.records(1, 1)
        self.assertFalse(client.alive())

    def test_silence_ends_by_its_deadline(self):
        client = self.client("silent")
        with self.assertRaisesRegex(harness.BenchError, "did not answer within 0 s"):
            client.run("get", 1, 1, 0, deadline_s=0.05)
        self.assertFalse(client.alive())

    def test_a_client_that_is_not_built_is_named(self):
        with self.assertRaisesRegex(harness.BenchError, "kvd_net_bench"):
            NetClient("none", [self.folder / "nothing"], self.folder / "log")


class FakeDepot:
    """As much of bench.depot.Depot as the rows use."""

    address = "tcp://127.0.0.1:1"
    pid = 0
    lent = 0.0
    scraped = 0.0

    def metric(self, name: str) -> float:
        self.lent += 1e12
        return self.lent if "lent" in name else 5.0

    def metrics(self) -> str:
        self.scraped += 1
        lines = [("0.000128", 10 * self.scraped), ("0.000256", 100 * self.scraped), ("+Inf", 100 * self.scraped)]
        return "".join(f'kvdepot_match_residence_seconds_bucket{{le="{bound}"}} {count}\n' for bound, count in lines)

    def stop(self) -> None:
        pass


class Rows(Folder):
    """The rows on clients that only print."""

    def lab(self, **options) -> net_lab.NetLab:
        programs = self.folder / "release" / "bin"
        programs.mkdir(parents=True)
        for name, kind in (("kvd_net_driver", ""), ("kvd_hiredis_driver", "hiredis")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} {kind} "$@"\n')
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        given = {"build_dir": str(self.folder), "quick": True, "runs": 3, "only": [], "keep": False} | options
        self.bench = harness.Bench("net", argparse.Namespace(**given))
        self.bench.work.mkdir(parents=True)
        lab = net_lab.NetLab(self.bench)
        depot = FakeDepot()
        for name, fake in (("depot", lambda *_: depot), ("drop_depot", lambda *_: None),
                           ("iperf_version", lambda: "iperf 3"),
                           ("iperf", lambda congestion=None: (8.0 if congestion else 4.0, 0.1, 0.2)),
                           ("ring_trips", lambda: {f"{what}_{q}_ns": 1500 for q in ("p50", "p99")
                                                   for what in ("get", "ping", "get_idle", "ping_idle")}),
                           ("_redis_server", lambda: (1, 0)), ("_start_memcached", lambda: self.fake("memcached")),
                           ("_start_mooncake", lambda: self.fake("mooncake"))):
            setattr(lab, name, fake)
        lab.redis_title = "Redis"
        self.addCleanup(lab.close)
        patched = mock.patch.object(net_lab, "cpu_seconds", side_effect=iter(range(1, 10**6)))
        patched.start()
        self.addCleanup(patched.stop)
        return lab

    def fake(self, name: str) -> Side:
        return Side(name, name, self.client(name), (1,))

    def results(self) -> dict[str, dict]:
        return {result["name"]: result for result in self.bench.results}

    def test_every_name_has_a_figure(self):
        lab = self.lab(runs=1)
        with mock.patch.object(net_lab, "WORKING_BYTES", 64 * net_lab.MIB):
            for module in (limits, lookups, shm, mooncake, peers):
                module.run(lab, self.bench)
        results = self.results()
        self.assertEqual(set(results), {name for module in (limits, lookups, shm, mooncake, peers)
                                        for name in module.NAMES})
        self.assertTrue(all(result["value"] is not None for result in results.values()))
        self.assertAlmostEqual(results["tcp_get_1MiB_over_iperf3"]["value"], 0.5)
        self.assertAlmostEqual(results["tcp_get_1MiB_over_iperf3_reno"]["value"], 0.25)
        self.assertAlmostEqual(results["tcp_get_1MiB_over_rawloop"]["value"], 2.0)
        self.assertAlmostEqual(results["tcp_put_4MiB_over_redis"]["value"], 2.0)
        self.assertAlmostEqual(results["tcp_get_64KiB_server_cpu_over_memcached"]["value"], 0.5)
        self.assertAlmostEqual(results["shm_borrow_1MiB_over_xxh3"]["value"], 1.0)
        self.assertAlmostEqual(results["shm_get_ns"]["value"], 1500.0)
        self.assertAlmostEqual(results["match_prefix_512_rtt_us"]["value"], 20.0)
        self.assertAlmostEqual(results["match_residence_at_full_rate_p99_us"]["value"], 256.0)

    def test_a_peer_that_is_missing_is_skipped_and_the_others_are_measured(self):
        lab = self.lab(only=["tcp_get_1MiB_over_*"])
        (self.folder / "release/bin/kvd_hiredis_driver").unlink()
        peers.run(lab, self.bench)
        self.assertIn("libhiredis-dev", self.results()["tcp_get_1MiB_over_redis"]["skipped"])
        self.assertIsNotNone(self.results()["tcp_get_1MiB_over_memcached"]["value"])

    def test_a_peer_that_returns_wrong_bytes_fails_its_row(self):
        lab = self.lab(only=["tcp_get_1MiB_over_mooncake", "tcp_get_1MiB_over_iperf3"])
        lab._start_mooncake = lambda: Side("mooncake", "mooncake", self.client("broken"), ())
        mooncake.run(lab, self.bench)
        limits.run(lab, self.bench)
        self.assertIn("not what was put", self.results()["tcp_get_1MiB_over_mooncake"]["failed"])
        self.assertIsNotNone(self.results()["tcp_get_1MiB_over_iperf3"]["value"])

    def test_memory_that_was_not_lent_fails_the_row(self):
        lab = self.lab(only=["shm_get_1MiB_over_memcpy"])
        with mock.patch.object(FakeDepot, "metric", return_value=0.0):
            shm.run(lab, self.bench)
        self.assertIn("shared memory", self.results()["shm_get_1MiB_over_memcpy"]["failed"])

    def test_a_program_that_is_not_installed_is_unavailable(self):
        with mock.patch("shutil.which", return_value=None), self.assertRaisesRegex(harness.Unavailable, "memcached"):
            net_lab.version_of(["memcached", "--version"], "memcached")


class Figures(unittest.TestCase):
    def test_a_histogram_is_read_by_its_bounds(self):
        self.assertEqual(lookups.buckets('a_bucket{le="0.5"} 3\na_bucket{le="+Inf"} 4\n', "a"),
                         {0.5: 3.0, float("inf"): 4.0})
        with self.assertRaises(harness.BenchError):
            lookups.buckets("", "a")

    def residence(self, *texts: str) -> lookups.Histogram:
        lab = mock.Mock()
        lab.depot().metrics.side_effect = ["".join(f'a_bucket{{le="{bound}"}} {count}\n' for bound, count in text)
                                           for text in texts]
        return lookups.Histogram(lab, "a")

    def test_a_quantile_is_of_all_requests_that_were_made(self):
        before, after = [("0.5", 1), ("+Inf", 1)], [("0.5", 100), ("+Inf", 101)]
        self.assertAlmostEqual(self.residence(before, after).quantile_us(0.99, 100), 5e5)
        with self.assertRaisesRegex(harness.BenchError, "has counted 100 of 101 requests"):
            self.residence(before, after).quantile_us(0.99, 101)
        with self.assertRaisesRegex(harness.BenchError, "has counted 0 of 0"):
            self.residence(before, before).quantile_us(0.99, 0)

    def test_a_quantile_beyond_the_last_bound_is_an_error(self):
        with self.assertRaisesRegex(harness.BenchError, "no bound"):
            self.residence([("0.5", 0), ("+Inf", 0)], [("0.5", 98), ("+Inf", 100)]).quantile_us(0.99, 100)

    def test_processor_time_of_this_process_grows(self):
        import os
        self.assertGreater(net_lab.cpu_seconds(os.getpid()), 0.0)


if __name__ == "__main__":
    unittest.main()
