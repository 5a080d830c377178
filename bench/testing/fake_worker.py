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


def main() -> None:
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
            reason = "abort" if model == "aborts" else "length"
            lost = 1 if model == "lossy" else 0
            reply = {"ok": True, "wall_s": 0.5, "lost_blocks": lost, "requests": [
                {"times": [0.25, 0.5], "tokens": request["ids"][:2], "cached": len(request["ids"]) - 1,
                 "reason": reason} for request in command["requests"]]}
        elif command["op"] == "counters":
            reply = {"ok": True, "counters": {"vllm:external_prefix_cache_hits": 3}}
        else:
            reply = {"ok": False, "error": "ValueError: not now"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
