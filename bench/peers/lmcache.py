"""LMCache in its multi-process mode, three ways: L1 in shared memory, the `fs` back end, and Redis.

The in-process connector has no branch for CPUs (each request then waits about 3 s for look-ups that time out), and
with the server's default transfer mode the multi-process connector hangs on a CPU: hence `--supported-transfer-mode
auto` with a shared-memory name. For `fs` and Redis its L1 is emptied between write and read, so that what is read comes
from there; its counters of hits by level show that it does. (A restart would do too, but engines that were connected
before it never get anything from the new server.)
"""

from __future__ import annotations

import json
import shutil
import time

from bench.harness import BenchError, Unavailable
from bench.peers import Peer, layered_env
from bench.service import Service, free_port, http_text, prometheus_sum

VERSION = "0.5.6"
PACKAGES = (f"lmcache=={VERSION}", "aiofile", "caio", "aiofiles", "nvtx", "opentelemetry-exporter-prometheus", "redis",
            "sortedcontainers")
L1_SHARE_USED = 0.7     # LRU eviction starts at a watermark of 0.8
DRAIN_DEADLINE_S = 120.0
DRAIN_QUIET_S = 1.5


class LmcacheServer(Peer):
    """What the three have in common: one server process, vLLM's LMCacheMPConnector."""

    second_level: dict | None = None

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.port, self.http_port = free_port(), free_port()
        self.server: Service | None = None

    def prepare(self) -> None:
        self.python = layered_env.ensure(self.build, "lmcache", PACKAGES, self.python,
                                         "lmcache.v1.multiprocess.server", self.progress)

    def start(self) -> None:
        gigabytes = -(-self.bytes_max // int(1e9 * L1_SHARE_USED))
        command = [self.python, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", self.port,
                   "--http-host", "127.0.0.1", "--http-port", self.http_port, "--supported-transfer-mode", "auto",
                   "--shm-name", f"kvdepot-bench-{self.port}", "--eviction-policy", "LRU", "--l1-size-gb", gigabytes]
        if self.second_level is not None:
            command += ["--l2-adapter", json.dumps(self.second_level)]
        self.server = Service(f"LMCache server ({self.name})", command, self.work / "server.log",
                              {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"})
        self.server.wait_for_port(self.port)
        self.server.wait_for("answer over HTTP", lambda: http_text(self.http_port) is not None)

    def connector(self) -> dict:
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}}

    def hits(self) -> float | None:
        """Tokens found, by the tier they were found in, as the server counts them."""
        level = "l1" if self.second_level is None else "l2"
        return prometheus_sum(self._metrics(), f"lmcache_mp_lookup_hit_{level}_tokens_total") or 0.0

    def stop(self) -> None:
        if self.server:
            self.server.stop()
            self.server = None

    def _metrics(self) -> str:
        text = http_text(self.http_port)
        if text is None:
            raise BenchError(f"the LMCache server does not answer on port {self.http_port}")
        return text

    def _empty_first_level(self) -> None:
        """Waits until all is written to the second level, then empties L1 through the server's own interface."""
        end = time.monotonic() + DRAIN_DEADLINE_S
        done, quiet_since = -1.0, time.monotonic()
        while time.monotonic() - quiet_since < DRAIN_QUIET_S:
            if time.monotonic() > end:
                raise BenchError(f"LMCache still writes to its second level after {DRAIN_DEADLINE_S:.0f} s")
            text = self._metrics()
            asked, now = (prometheus_sum(text, f"lmcache_mp_l2_store_{what}_requests_total") or 0.0
                          for what in ("submitted", "completed"))
            if now != done or now < asked:
                done, quiet_since = now, time.monotonic()
            time.sleep(0.1)
        if http_text(self.http_port, "/cache/clear", post=b'{"tier": "l1"}') is None:
            raise BenchError("the LMCache server does not empty its L1")


class SharedMemory(LmcacheServer):
    name = "lmcache_shm"
    title = f"LMCache {VERSION} MP, L1 in shared memory"
    tier = "DRAM, pooled"


class Files(LmcacheServer):
    name = "lmcache_fs"
    title = f"LMCache {VERSION} MP, fs back end, L1 emptied before"
    tier = "files in the page cache, written"

    def start(self) -> None:
        (self.work / "kv").mkdir(parents=True, exist_ok=True)
        self.second_level = {"type": "fs", "base_path": str(self.work / "kv")}
        super().start()

    def before_read(self) -> None:
        self._empty_first_level()


class Redis(LmcacheServer):
    name = "lmcache_redis"
    title = f"LMCache {VERSION} MP, Redis back end, L1 emptied before"
    tier = "DRAM of redis-server, pooled"

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.redis: Service | None = None

    def prepare(self) -> None:
        if shutil.which("redis-server") is None:
            raise Unavailable("redis-server is not installed (Debian package redis-server)")
        super().prepare()

    def start(self) -> None:
        port = free_port()
        self.redis = Service("redis-server", [
            shutil.which("redis-server"), "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
            "--dir", self.work, "--maxmemory", self.bytes_max * 2, "--maxmemory-policy", "allkeys-lru"],
                             self.work / "redis.log")
        self.redis.wait_for_port(port)
        self.second_level = {"type": "resp", "host": "127.0.0.1", "port": port}
        super().start()

    def before_read(self) -> None:
        self._empty_first_level()

    def stop(self) -> None:
        super().stop()
        if self.redis:
            self.redis.stop()
            self.redis = None
