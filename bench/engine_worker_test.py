"""The worker's loop against an engine that answers at once: no vLLM needed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from types import SimpleNamespace

from bench import engine_worker, harness


class FakeEngine:
    """Gives every running request one token a step; counts what is asked of it."""

    def __init__(self):
        self.running = {}
        self.max_running = 0

    def add_request(self, name, prompt, limit):
        self.running[name] = (prompt["prompt_token_ids"], limit, [])
        self.max_running = max(self.max_running, len(self.running))

    def abort_request(self, names):
        for name in names:
            del self.running[name]

    def step(self):
        outputs = []
        for name, (ids, limit, tokens) in list(self.running.items()):
            tokens.append(sum(ids) + len(tokens))
            finished = len(tokens) == limit
            outputs.append(SimpleNamespace(
                request_id=name, finished=finished, num_cached_tokens=len(ids) - 1,
                outputs=[SimpleNamespace(token_ids=list(tokens), finish_reason="length" if finished else None)]))
            if finished:
                del self.running[name]
        return outputs


def worker():
    made = object.__new__(engine_worker.Worker)
    made.sampling = lambda max_tokens: max_tokens
    made.engine = FakeEngine()
    made.count = 0
    made.running, made.submitted = {}, {}
    made.llm = SimpleNamespace(
        get_metrics=lambda: [SimpleNamespace(name="vllm:kvdepot_blocks_failed", value=2 * made.count)],
        reset_prefix_cache=lambda reset_connector: not made.running)
    return made


class Generate(unittest.TestCase):
    def test_answers_come_in_the_order_of_the_requests(self):
        reply = worker().generate([{"ids": [5], "max_tokens": 3}, {"ids": [100, 1], "max_tokens": 1}])
        first, second = reply["requests"]
        self.assertEqual((first["tokens"], second["tokens"]), ([5, 6, 7], [101]))
        self.assertEqual((len(first["times"]), len(second["times"])), (3, 1))
        self.assertEqual((first["cached"], second["cached"]), (0, 1))
        self.assertEqual(first["reason"], "length")
        self.assertEqual(reply["lost_blocks"], 4)      # since the call, not in all
        self.assertEqual(first["times"], sorted(first["times"]))
        self.assertGreaterEqual(reply["wall_s"], first["times"][-1])

    def test_a_later_request_joins_those_that_run(self):
        made = worker()
        made.count = 5
        reply = made.generate([{"ids": [1], "max_tokens": 1, "at": 0.01}, {"ids": [2], "max_tokens": 200_000 // 4000}])
        self.assertEqual([len(r["tokens"]) for r in reply["requests"]], [1, 50])
        self.assertGreaterEqual(reply["wall_s"], 0.01)
        self.assertEqual(reply["lost_blocks"], 4)


class Submitted(unittest.TestCase):
    """Requests that run on while other commands are carried out."""

    def test_requests_are_collected_in_the_order_of_their_names(self):
        made = worker()
        names = made.submit([{"ids": [5], "max_tokens": 3}, {"ids": [7], "max_tokens": 1}])["names"]
        self.assertEqual([r["tokens"] for r in made.collect(names[::-1])["requests"]], [[7], [5, 6, 7]])
        self.assertEqual((made.running, made.submitted), ({}, {}))

    def test_generate_waits_for_its_own_requests_only(self):
        made = worker()
        (name,) = made.submit([{"ids": [5], "max_tokens": 30}])["names"]
        self.assertEqual(made.generate([{"ids": [9], "max_tokens": 2}])["requests"][0]["tokens"], [9, 10])
        self.assertEqual(list(made.running), [name])
        self.assertEqual(len(made.collect([name])["requests"][0]["tokens"]), 30)

    def test_an_aborted_request_is_forgotten_and_the_others_go_on(self):
        made = worker()
        gone, stays = made.submit([{"ids": [5], "max_tokens": 3}, {"ids": [7], "max_tokens": 2}])["names"]
        made.abort([gone])
        self.assertEqual(made.engine.running.keys(), {stays})
        self.assertEqual([r["tokens"] for r in made.collect([stays])["requests"]], [[7, 8]])
        with self.assertRaises(KeyError):
            made.collect([gone])

    def test_late_output_of_an_aborted_request_is_dropped(self):
        made = worker()
        gone, stays = made.submit([{"ids": [5], "max_tokens": 3}, {"ids": [7], "max_tokens": 2}])["names"]
        made.engine.abort_request = lambda names: None      # it has not heard of it yet
        made.abort([gone])
        self.assertEqual([r["tokens"] for r in made.collect([stays])["requests"]], [[7, 8]])

    def test_a_reset_is_given_up_after_its_patience(self):
        made = worker()
        (name,) = made.submit([{"ids": [5], "max_tokens": 3}])["names"]
        self.assertEqual(made.reset_prefix_cache(patience_s=0.01), {"reset": False})
        made.collect([name])
        self.assertEqual(made.reset_prefix_cache(patience_s=0.01), {"reset": True})


class Serve(unittest.TestCase):
    def replies(self, *commands):
        out = io.StringIO()
        engine_worker.serve(worker(), io.StringIO("".join(json.dumps(c) + "\n" for c in commands)), out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_each_command_gets_one_reply(self):
        first, second = self.replies({"op": "generate", "requests": [{"ids": [1]}]}, {"op": "no such thing"},
                                     {"op": "quit"}, {"op": "generate", "requests": []})
        self.assertTrue(first["ok"])
        self.assertFalse(second["ok"])
        self.assertIn("no such thing", second["error"])


class End(unittest.TestCase):
    def test_a_process_that_ignores_sigterm_does_not_outlive_its_engine(self):
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); " \
                   "time.sleep(60)"
        leader = f"""
import signal, subprocess, sys
from bench import engine_worker
engine_worker.END_S = 0.05
signal.signal(signal.SIGTERM, engine_worker.end_group)
child = subprocess.Popen([sys.executable, "-c", {stubborn!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("ready", flush=True)
child.wait()
"""
        with subprocess.Popen([sys.executable, "-c", leader], stdout=subprocess.PIPE, text=True, cwd=harness.ROOT,
                              start_new_session=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.terminate()
            self.assertEqual(process.wait(30), -signal.SIGKILL)
        with self.assertRaises(ProcessLookupError):
            for _ in range(1000):           # until init has reaped it
                os.killpg(process.pid, 0)
                time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
