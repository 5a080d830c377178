"""The other stores that vLLM can use without a GPU, as arms of the engine suite: one file each.

A peer installs what it needs into a Python environment of its own that lies over the engine's (so both arms run the
same vLLM and torch), runs with the settings its documentation gives for such a machine, and proves its hits by a
counter of its own. What can't be had raises `Unavailable` with the reason.
"""

from __future__ import annotations

from pathlib import Path

from bench.harness import Progress


class Peer:
    """One store. The suite calls prepare, start, then per round before_read and hits, at last stop."""

    name = ""       # as in result names: P_over_depot_<tokens>
    title = ""      # product, version, transport
    tier = ""       # where the bytes lie when they are read, and what a write is worth when it is acknowledged

    def __init__(self, build: Path, work: Path, engine_python: Path, bytes_max: int, progress: Progress) -> None:
        """`bytes_max`: what has to fit into the store. `work` is the peer's own folder, empty at start."""
        self.build = build
        self.work = work
        self.python = engine_python
        self.bytes_max = bytes_max
        self.progress = progress

    def prepare(self) -> None:
        """Installs what is missing. Raises Unavailable."""

    def start(self) -> None:
        """Starts the peer's servers."""

    def connector(self) -> dict:
        """vLLM's kv_transfer_config."""
        raise NotImplementedError

    def engine_env(self) -> dict[str, str]:
        return {}

    def before_read(self) -> None:
        """Between the write in one engine and the read in another: brings the bytes to the tier that is measured."""

    def hits(self) -> float | None:
        """A counter of the peer that grows when it delivers; None where it has none, then the engine's is used."""
        return None

    def stop(self) -> None:
        """Ends the servers. May be called at any time, more than once."""


def all_peers() -> list[type[Peer]]:
    from bench.peers import example, lmcache, mooncake

    return [example.Example, lmcache.SharedMemory, lmcache.Files, lmcache.Redis, mooncake.Mooncake]
