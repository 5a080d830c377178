"""The worker's loop against an engine that answers at once: no vLLM needed."""

import io
import json
import unittest
from types import SimpleNamespace

from bench import engine_worker


class FakeEngine:
    """Gives every running request one token a step; counts what is asked of it."""

    def __init__(self):
        self.running = {}
        self.max_running = 0

    def add_request(self, name, prompt, limit):
        self.running[name] = (prompt["prompt_token_ids"], limit, [])
        self.max_running = max(self.max_running, len(self.running))

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
    made.llm = SimpleNamespace(get_metrics=lambda: [
        SimpleNamespace(name="vllm:kvdepot_blocks_failed", value=2 * made.count)])
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


if __name__ == "__main__":
    unittest.main()
