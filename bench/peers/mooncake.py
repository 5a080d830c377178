"""Mooncake Store over TCP: a master, a process that holds the memory, and vLLM's MooncakeStoreConnector."""

from __future__ import annotations

import json
import platform
from ctypes.util import find_library

from bench.harness import BenchError, Unavailable
from bench.peers import Peer, layered_env
from bench.service import Service, free_port, http_text, prometheus_sum

VERSION = "0.3.13.post1"
PACKAGES = (f"mooncake-transfer-engine-non-cuda=={VERSION}", "msgpack")
SEGMENT_SHARE_USED = 0.7    # the master starts to evict at 0.9


class Mooncake(Peer):
    name = "mooncake"
    title = f"Mooncake Store {VERSION}, TCP"
    tier = "DRAM of another process, pooled"

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.master_port, self.metrics_port, self.client_port = free_port(), free_port(), free_port()
        self.services: list[Service] = []

    def check_machine(self) -> None:
        if platform.machine() != "x86_64":
            raise Unavailable(f"no Mooncake wheel for {platform.machine()}")
        if find_library("ibverbs") is None:
            raise Unavailable("libibverbs is not installed (Debian package libibverbs1)")

    def prepare(self) -> None:
        self.check_machine()
        self.python = layered_env.ensure(self.build, "mooncake", PACKAGES, self.python, "mooncake.store",
                                         self.progress)

    def start(self) -> None:
        programs = self.python.parent
        master = Service("mooncake_master", [
            programs / "mooncake_master", f"--rpc_port={self.master_port}", "--rpc_address=127.0.0.1",
            f"--metrics_port={self.metrics_port}", "--metrics_host=127.0.0.1"], self.work / "master.log")
        self.services.append(master)
        master.wait_for_port(self.master_port)
        holder = Service("mooncake_client", [
            programs / "mooncake_client", "--host=127.0.0.1", f"--port={self.client_port}", "--protocol=tcp",
            "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{self.master_port}",
            f"--global_segment_size={int(self.bytes_max / SEGMENT_SHARE_USED)}"], self.work / "holder.log")
        self.services.append(holder)
        holder.wait_for("mounted segment", lambda: (self._counter("master_total_capacity_bytes") or 0) > 0)
        (self.work / "engine.json").write_text(json.dumps({
            "mode": "standalone-store", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "device_name": "",
            "master_server_address": f"127.0.0.1:{self.master_port}", "global_segment_size": 0}))

    def connector(self) -> dict:
        return {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}

    def engine_env(self) -> dict[str, str]:
        return {"MOONCAKE_CONFIG_PATH": str(self.work / "engine.json")}

    def hits(self) -> float | None:
        """Replica look-ups the master answered for reads."""
        value = self._counter("master_batch_get_replica_list_requests_total")
        if value is None:
            raise BenchError("the Mooncake master's metrics lack the counter of reads")
        return value

    def stop(self) -> None:
        while self.services:
            self.services.pop().stop()

    def _counter(self, name: str) -> float | None:
        text = http_text(self.metrics_port)
        return None if text is None else prometheus_sum(text, name)
