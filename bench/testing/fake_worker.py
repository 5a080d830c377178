"""Speaks the protocol of bench/engine_worker.py without an engine. Its "model" says how it behaves:

    echo     one token a request, each prompt counts as cached but for one token
    stubborn reads commands and never answers, nor ends when asked to
    broken   ends at once with an error on standard error
    lossy    as echo, but says that one block which was promised was computed after all
    aborts   ends each request for another reason than its length
"""

import json
import signal
import sys
import time


def answers(model: str, requests: list[dict]) -> list[dict]:
    reason = "abort" if model == "aborts" else "length"
    return [{"times": [0.25, 0.5], "tokens": request["ids"][:2], "cached": len(request["ids"]) - 1, "reason": reason}
            for request in requests]


def main() -> None:
    submitted: dict[str, dict] = {}
    model = json.loads(sys.argv[1])["engine"]["model"]
    if model == "broken":
        print("RuntimeError: no such model", file=sys.stderr)
        sys.exit(1)
    print(json.dumps({"ok": True, "facts": {"block_tokens": 128}}), flush=True)
    if model == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "quit":
            return
        if command["op"] == "generate":
            lost = 1 if model == "lossy" else 0
            reply = {"ok": True, "wall_s": 0.5, "lost_blocks": lost, "requests": answers(model, command["requests"])}
        elif command["op"] == "submit":
            submitted = {f"fake-{i}": request for i, request in enumerate(command["requests"])}
            reply = {"ok": True, "names": list(submitted)}
        elif command["op"] == "collect":
            reply = {"ok": True, "requests": answers(model, [submitted.pop(name) for name in command["names"]])}
        elif command["op"] == "abort":
            for name in command["names"]:
                del submitted[name]
            reply = {"ok": True}
        elif command["op"] == "reset_prefix_cache" and command["connector"]:
            reply = {"ok": True, "reset": not submitted}
        elif command["op"] == "counters":
            reply = {"ok": True, "counters": {"vllm:external_prefix_cache_hits": 3}}
        else:
            reply = {"ok": False, "error": "ValueError: not now"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
