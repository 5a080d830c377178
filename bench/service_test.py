import http.server
import socket
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from bench import service
from bench.harness import BenchError


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "log"

    def start(self, script):
        made = service.Service("toy", [sys.executable, "-c", script], self.log)
        self.addCleanup(made.stop)
        return made

    def test_waits_for_a_line(self):
        toy = self.start("print('listening on tcp://127.0.0.1:99', flush=True); import time; time.sleep(60)")
        self.assertEqual(toy.wait_for_line(r"tcp://\S+:(\d+)").group(1), "99")
        self.assertTrue(toy.alive())
        self.assertGreaterEqual(toy.cpu_seconds(), 0.0)

    def test_an_end_before_the_line_is_an_error_with_the_last_words(self):
        toy = self.start("raise SystemExit('Error: port in use')")
        with self.assertRaisesRegex(BenchError, "toy has ended: Error: port in use"):
            toy.wait_for_line("listening")

    def test_a_deadline_ends_the_wait(self):
        toy = self.start("import time; time.sleep(60)")
        with self.assertRaisesRegex(BenchError, "no such thing after 0 s"):
            toy.wait_for("such thing", lambda: False, 0.05)

    def test_stop_may_be_repeated(self):
        toy = self.start("import time; time.sleep(60)")
        toy.stop()
        toy.stop()
        self.assertFalse(toy.alive())

    def test_a_program_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(BenchError, "/no/program is not there"):
            service.Service("toy", ["/no/program"], self.log)


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"up 1\n" if self.path == "/metrics" else b""
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_):
        pass


class Http(unittest.TestCase):
    def setUp(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.port = server.server_port

    def test_get_and_post(self):
        self.assertEqual(service.http_text(self.port), "up 1\n")
        self.assertEqual(service.http_text(self.port, "/clear", post=b"{}"), "{}")
        self.assertIsNone(service.http_text(self.port, "/other"))
        self.assertTrue(service.port_open(self.port))

    def test_nobody_there_is_none(self):
        port = service.free_port()
        self.assertIsNone(service.http_text(port))
        self.assertFalse(service.port_open(port))

    def test_a_free_port_can_be_bound(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", service.free_port()))


class Prometheus(unittest.TestCase):
    TEXT = ('# TYPE hits counter\nhits_total{tier="pool"} 3\nhits_total{tier="flash",a="b"} 4.5\n'
            "hits_total_other 100\nbytes 1e+06 1700000000\n")

    def test_sums_over_labels_and_takes_whole_names_only(self):
        self.assertEqual(service.prometheus_sum(self.TEXT, "hits_total"), 7.5)
        self.assertEqual(service.prometheus_sum(self.TEXT, "bytes"), 1e6)
        self.assertIsNone(service.prometheus_sum(self.TEXT, "hits"))


if __name__ == "__main__":
    unittest.main()
