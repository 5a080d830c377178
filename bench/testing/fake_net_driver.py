"""Speaks the lines of bench/net_driver/arm.h without a server: python fake_net_driver.py KIND [WHERE]

    raw-server  says a port and waits
    silent      takes lines and never answers
    broken      answers the first line with an error
    other       figures of a second in which the kind's own rate went over (1 GB/s but for the depot's 2)
"""

import json
import sys
import time

FIGURES = {"seconds": 1.0, "cpu_seconds": 0.25, "requests": 10, "p50_us": 20.0, "p99_us": 40.0}


def answer(kind: str, line: str) -> dict:
    verb, *words = line.split()
    if verb == "records":
        return {"records": int(words[1])}
    return {"bytes": (2 if kind.startswith("depot") else 1) * 10**9, **FIGURES}


def main() -> int:
    kind = sys.argv[1]
    if kind == "raw-server":
        print("listening on port 4711", flush=True)
        time.sleep(60)
    for line in sys.stdin:
        if kind == "silent":
            continue
        if kind == "broken":
            print(json.dumps({"error": "a value is not what was put"}), flush=True)
            return 1
        print(json.dumps(answer(kind, line)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
