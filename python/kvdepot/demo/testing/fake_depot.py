"""Stands in for `kvdepot serve` in tests of the demo: the same flags, start lines and /metrics; keeps names of blocks.

Speaks lines of JSON with fake_worker.py: {"put": [...]}, {"get": [...]}, {"match": [...]}, answered with
{"prefix": n, "block_s": s}. "Flash" is a file in the data directory, written at once; the "pool" is forgotten at a
kill. Faults: `--fault forgets` loses all at a start, `--fault corrupt` counts one damaged record, `--fault sends`
lends nothing of its memory, `--fault refuses` does not start.
"""

from __future__ import annotations

import argparse
import http.server
import json
import signal
import socketserver
import sys
import threading
from pathlib import Path

SLAB_BYTES = 1000


class State:
    def __init__(self, directory: Path, fault: str, shape: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "records.json"
        self.shape, self.fault = shape, fault
        kept = self.file.exists() and fault != "forgets"
        self.flash: set[str] = set(json.loads(self.file.read_text())) if kept else set()
        self.pool: set[str] = set()
        self.lock = threading.Lock()
        self.figures = dict.fromkeys(("keys_got", "puts", "bytes_put", "put_corrupt", "io_errors", "flash_bytes_read",
                                      "dirty_bytes", "unfinished_puts", "bytes_lent"), 0)
        self.figures |= {"recovered_records": len(self.flash), "recovery_ms": 1, "corrupt": int(fault == "corrupt")}

    def answer(self, command: dict) -> dict:
        with self.lock:
            if new := [key for key in command.get("put", []) if key not in self.flash]:
                self.flash |= set(new)
                self.pool |= set(new)
                self.figures["puts"] += len(new)
                self.figures["bytes_put"] += SLAB_BYTES * len(new)
                self.file.write_text(json.dumps(sorted(self.flash)))
            for key in command.get("get", []):
                self.figures["keys_got"] += 1
                self.figures["bytes_lent"] += 0 if self.fault == "sends" else SLAB_BYTES
                self.figures["flash_bytes_read"] += 0 if key in self.pool else SLAB_BYTES
                self.pool.add(key)
            prefix = 0
            for key in command.get("match", []):
                if key not in self.flash:
                    break
                prefix += 1
            return {"prefix": prefix, "block_s": SLAB_BYTES / self.shape if self.shape else 0.0}

    def page(self) -> str:
        return "".join(f"# TYPE kvdepot_{k} gauge\nkvdepot_{k} {v}\n" for k, v in self.figures.items())


def handlers(state: State) -> tuple[type, type]:
    class Lines(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(json.dumps(state.answer(json.loads(line))).encode() + b"\n")

    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = state.page().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass
    return Lines, Metrics


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--dir", "--pool", "--flash", "--listen", "--http"):
        parser.add_argument(flag)
    parser.add_argument("--shape-read", type=float, default=0.0)
    parser.add_argument("--fault", default="")
    arguments = parser.parse_args()
    if arguments.fault == "refuses":
        sys.exit("error: the directory is in use by another process")
    lines, metrics = handlers(State(Path(arguments.dir), arguments.fault, arguments.shape_read))
    depot = Server(("127.0.0.1", int(arguments.listen.rsplit(":", 1)[1])), lines)
    web = Server(("127.0.0.1", 0), metrics)
    for server in (depot, web):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening on tcp://127.0.0.1:{depot.server_address[1]}", flush=True)
    print(f"metrics on http://127.0.0.1:{web.server_address[1]}/metrics", flush=True)
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
