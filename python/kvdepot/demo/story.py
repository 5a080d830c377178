"""The main job, step by step: A computes and stores, B loads, the depot is killed, C loads from flash.

All three engines are processes of their own. C is connected when the depot is killed, as engines of a real depot are.

What is compared: answers to the same questions behind the same document, with the same number of tokens cached, from
A's own prefix cache (its KV never left A) and from the depot in B and C. Greedy decoding, so equal KV gives equal
tokens. Before each question B and C forget what they hold themselves. Each step leaves figures and checks in the
result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from . import document
from .depot import signal_name
from .engine import Answer
from .lab import Lab

KILLS = 3
FASTER_MIN = 10.0           # what the demo claims; `make bench-engine` measures how much it is


@dataclass
class Story:
    """What the steps hand to each other."""

    lab: Lab
    encode: document.Encode
    document: list[int] = field(default_factory=list)
    questions: dict[str, list[int]] = field(default_factory=dict)
    own: dict[str, Answer] = field(default_factory=dict)        # A's answers from its own prefix cache
    loaded: dict[str, Answer] = field(default_factory=dict)     # B's
    revived: dict[str, Answer] = field(default_factory=dict)    # C's
    records: dict[str, int] = field(default_factory=dict)       # that the depot sent to each engine for them
    failed: dict[str, int] = field(default_factory=dict)        # blocks of them that did not come
    lent: dict[str, int] = field(default_factory=dict)          # bytes that each read in the depot's memory

    def __post_init__(self) -> None:
        texts = [text for text, _ in document.QUESTIONS]
        if self.lab.settings.quick:
            texts = texts[:2]
        self.document = document.document(self.encode)
        self.questions = {text: document.question(self.encode, text) for text in texts}

    @property
    def blocks(self) -> int:
        return len(self.document) // document.BLOCK_TOKENS

    def ask(self, engine: str, question: str) -> Answer:
        return self.lab.ask(engine, self.document + self.questions[question])

    def ask_loading(self, engine: str, question: str) -> tuple[Answer, int]:
        """Also the bytes that the depot read from flash meanwhile. Adds up records sent, blocks that failed and bytes
        lent."""
        before, failed = self.lab.depot.stats(), self.lab.blocks_failed(engine)
        answer = self.ask(engine, question)
        after = self.lab.depot.stats()
        self.failed[engine] = self.failed.get(engine, 0) + self.lab.blocks_failed(engine) - failed
        self.records[engine] = self.records.get(engine, 0) + int(after["keys_got"] - before["keys_got"])
        self.lent[engine] = self.lent.get(engine, 0) + int(after["bytes_lent"] - before["bytes_lent"])
        return answer, int(after["flash_bytes_read"] - before["flash_bytes_read"])


def start_depot(lab: Lab) -> None:
    lab.depot.start()


def read_cold(story: Story) -> None:
    """Engine A computes the whole document; the depot gets it behind the computation."""
    lab, result = story.lab, story.lab.result
    first = next(iter(story.questions))
    before = lab.depot.stats()
    lab.progress.detail("engine A computes all of it")
    answer = story.ask("A", first)
    after = lab.depot.wait_until("lacks blocks of the document", _stored(before, story.blocks), 30.0)
    stored = after["bytes_put"] - before["bytes_put"]
    result.add_ttft("cold", "A", answer.cached, [answer.first_s])
    result.data["document"] = {"tokens": len(story.document), "blocks": story.blocks,
                               "question_tokens": document.QUESTION_TOKENS, "kv_bytes": int(stored)}
    result.check("engine A computed all of the document", answer.cached == 0, f"{answer.cached} tokens were cached")
    result.check("the depot holds it", after["puts"] - before["puts"] == story.blocks,
                 f"{after['puts'] - before['puts']:.0f} of {story.blocks} blocks, {stored / 1e6:.1f} MB")


def _stored(before: dict, blocks: int) -> Callable[[dict], bool]:
    return lambda now: now["puts"] - before["puts"] >= blocks and now["unfinished_puts"] == 0


def ask_own_cache(story: Story) -> None:
    """What the best case costs: the document is in A's own memory."""
    lab = story.lab
    for number, question in enumerate(story.questions, 1):
        lab.progress.detail(f"question {number} of {len(story.questions)}")
        story.own[question] = story.ask("A", question)
    cached = min(answer.cached for answer in story.own.values())
    lab.result.add_ttft("prefix_cache", "A", cached, [a.first_s for a in story.own.values()])
    lab.result.check("engine A's own prefix cache held the document", cached == len(story.document),
                     f"{cached} of {len(story.document)} tokens")


def ask_depot(story: Story) -> None:
    """Engine B has never seen the document."""
    lab = story.lab
    for number, question in enumerate(story.questions, 1):
        lab.progress.detail(f"question {number} of {len(story.questions)}")
        lab.engines["B"].reset()
        story.loaded[question], _ = story.ask_loading("B", question)
    judge_loads(story, "depot", "B", story.loaded)


def judge_loads(story: Story, name: str, engine: str, answers: dict[str, Answer]) -> None:
    """Figures and claims that B and C have in common.

    vLLM calls tokens cached that a connector promised, even if their load failed and they were computed in the end;
    hence the records that the depot sent and the blocks that the connector counts as failed.
    """
    result = story.lab.result
    cached = min(answer.cached for answer in answers.values())
    result.add_ttft(name, engine, cached, [answer.first_s for answer in answers.values()])
    lent, kv_bytes = story.lent[engine], result.data["document"]["kv_bytes"] * len(answers)
    result.data["lent"][engine] = {"bytes": lent, "of": kv_bytes}
    result.add_ratios()
    sent, expected, failed = story.records[engine], story.blocks * len(answers), story.failed[engine]
    result.check(f"engine {engine} got the document from the depot",
                 cached == len(story.document) and sent == expected and not failed,
                 f"{cached} of {len(story.document)} tokens in each of {len(answers)} requests; the depot sent {sent} "
                 f"of {expected} blocks, {failed} failed")
    result.check(f"engine {engine} read it in the depot's memory", lent >= kv_bytes,
                 f"the depot lent {lent / 1e6:.1f} of {kv_bytes / 1e6:.1f} MB")
    same = sum(answer.tokens == story.own[question].tokens for question, answer in answers.items())
    result.check(f"engine {engine}'s answers are those of an engine with its own cache", same == len(answers),
                 f"{same} of {len(answers)} token for token")
    faster = result.median_s("cold") / statistics.median(a.first_s for a in answers.values())
    result.check(f"engine {engine} was at least {FASTER_MIN:.0f} times faster than computing", faster >= FASTER_MIN,
                 f"{faster:.0f} times")


def kill_and_restart(story: Story) -> None:
    """With nothing waiting to be written, so that everything must survive."""
    lab = story.lab
    lab.progress.detail("until nothing waits to be written")
    dirty = int(lab.depot.wait_clean()["dirty_bytes"])
    lab.progress.detail("SIGKILL")
    status = lab.depot.kill()
    start = lab.depot.start()
    crash = lab.result.data["crash"] = lab.result.data["crash"] or {
        "kills": 0, "dirty_bytes": [], "exit": [], "restart_s": [], "recovery_ms": [], "recovered_records": [],
        "flash_bytes_read": []}
    crash["kills"] += 1
    crash["dirty_bytes"].append(dirty)
    crash["exit"].append(signal_name(status))
    crash["restart_s"].append(start.listening_s)
    crash["recovery_ms"].append(start.recovery_ms)
    crash["recovered_records"].append(start.recovered_records)


def ask_after_kill(story: Story) -> None:
    """Engine C asks after each kill."""
    lab = story.lab
    kills = 1 if lab.settings.quick else KILLS
    for number, question in enumerate(list(story.questions)[:kills], 1):
        kill_and_restart(story)
        lab.wake_up("C", story.encode)
        lab.progress.detail(f"question {number} of {kills}")
        story.revived[question], read = story.ask_loading("C", question)
        lab.result.data["crash"]["flash_bytes_read"].append(read)
    judge_loads(story, "depot_after_kill", "C", story.revived)
    judge_crash(story)


def judge_crash(story: Story) -> None:
    result, crash = story.lab.result, story.lab.result.data["crash"]
    kv_bytes = result.data["document"]["kv_bytes"]
    result.check("the depot was killed with SIGKILL while nothing waited to be written",
                 set(crash["exit"]) == {"SIGKILL"} and not any(crash["dirty_bytes"]),
                 f"{crash['kills']} times; {sum(crash['dirty_bytes'])} bytes were waiting")
    result.check("each restart found the document", min(crash["recovered_records"]) >= story.blocks,
                 f"at least {min(crash['recovered_records'])} records; recovery took at most "
                 f"{max(crash['recovery_ms']):.0f} ms")
    result.check("after each restart it was read from flash", min(crash["flash_bytes_read"]) >= kv_bytes,
                 f"at least {min(crash['flash_bytes_read']) / 1e6:.1f} MB each time")


def keep_answers(story: Story) -> None:
    """What the engines said, side by side."""
    for question, expected in document.QUESTIONS:
        if question in story.own:
            answers = {"prefix_cache": story.own[question], "depot": story.loaded.get(question),
                       "depot_after_kill": story.revived.get(question)}
            given = [answer.tokens for answer in answers.values() if answer]
            story.lab.result.data["answers"].append(
                {"question": question, "expected": expected, "tokens_identical": len(set(given)) == 1,
                 **{k: answer and document.first_sentence(answer.text) for k, answer in answers.items()}})


def judge_depot(lab: Lab) -> None:
    """Counters of all lives of the depot. Called when its last life has ended or is about to."""
    totals = lab.depot.totals
    lab.result.check("the depot found no damaged record", totals.corrupt == 0 and totals.io_errors == 0,
                     f"{totals.corrupt} corrupt, {totals.io_errors} I/O errors")
