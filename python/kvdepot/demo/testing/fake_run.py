"""The whole demo with fake_worker.py and fake_depot.py in place of engine and depot, for tests:

    python -m kvdepot.demo.testing.fake_run BUILD_DIR [--worker-fault F] [--depot-fault F] [--only PARTS] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvdepot.demo import __main__ as demo
from kvdepot.demo import lab


def encode(text: str) -> list[int]:
    """Pieces of four characters as tokens; line breaks are tokens of their own."""
    pieces = [part[i:i + 4] for part in text.replace("\n", "\0\n\0").split("\0") for i in range(0, len(part), 4)]
    return [int.from_bytes(piece.encode(), "big") % 50_000 for piece in pieces]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--worker-fault", default="none")
    parser.add_argument("--depot-fault", default="none")
    parser.add_argument("--only", default="reuse,crash,sweep")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    here = Path(__file__).parent
    settings = lab.Settings(
        arguments.build, arguments.build / "no-model", "kvdepot", arguments.only.split(","), arguments.quick,
        engine_command=(sys.executable, str(here / "fake_worker.py"), arguments.worker_fault),
        depot_command=(sys.executable, str(here / "fake_depot.py"), "--fault", arguments.depot_fault))
    return demo.guarded(lambda terminal: demo.run(settings, terminal, False, encode))


if __name__ == "__main__":
    sys.exit(main())
