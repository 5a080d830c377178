"""Does the depot change what an engine says? Prompts of mixed length, one at a time, greedy.

The oracle is the engine's own prefix-cache hit with the same number of cached tokens, not the cold run: another batch
shape rounds differently, and greedy tokens then differ where two are almost equally likely, without any fault.

The engines of this row also write digests of every block, in engine memory, before it is stored and after it was
loaded; a burst of requests that share prefixes is loaded for them as well.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from bench.depot import Depot
from bench.engine_lab import BLOCK, Lab, ask_depot, expect_all_loaded, expect_cached, expect_cold, ours
from bench.engine_process import Engine
from bench.engine_rows.batch import PREFIX, PREFIXES, shared_prefixes
from bench.harness import Bench, BenchError

PROMPTS = 200
PROMPTS_QUICK = 10
LENGTHS = (140, 900)    # tokens; cold they cost 1.2 s on average on two AVX2 cores
LONG_EACH = 20          # one in so many is long: it is computed and stored in chunks
LONG = (4200, 6000)
ANSWER = 32
NAME, DIGESTS = "tokens_identical", "kv_digests_equal"


def run(lab: Lab, bench: Bench, depot: Depot, plain: Engine) -> None:
    if not bench.wants(NAME, DIGESTS) or not bench.has_time(150.0, NAME, DIGESTS):
        return
    logs = {half: bench.work / f"digests.{half}" for half in ("writer", "reader")}
    writer, reader = lab.engines(*(
        lab.spec(f"digest-{half}", ours(depot, digest_log=str(log))) for half, log in logs.items()))
    count = bench.number(PROMPTS, PROMPTS_QUICK)
    same, differing, blocks = 0, [], 0
    for index in range(count):
        bench.progress.tick(f"tokens: prompt {index + 1} of {count}, {len(differing)} differ")
        prompt = prompt_of(lab, index)
        blocks += len(prompt) // BLOCK
        if one(depot, writer, reader, plain, prompt, index):
            same += 1
        else:
            differing.append(index)
    blocks += burst(lab, depot, writer, reader)
    if depot.corrupt():
        raise BenchError(f"the depot counted {depot.corrupt():.0f} corrupt records")
    loaded, equal = compare(logs["writer"], logs["reader"])
    if loaded < blocks:
        raise BenchError(f"digests of {loaded} loaded blocks, {blocks} expected")
    bench.value(DIGESTS, equal / loaded, "ratio", better="higher", goal=1.0, command=depot.command, blocks=loaded)
    bench.value(NAME, same / count, "ratio", better="higher", goal=1.0, command=depot.command,
                peer="vLLM's own prefix cache, same number of cached tokens", prompts=count, differing=differing)


def burst(lab: Lab, depot: Depot, writer: Engine, reader: Engine) -> int:
    """The burst of the makespan row once more; here only its digests count. Returns the blocks to be loaded."""
    prefixes, requests = shared_prefixes(lab, "digest burst")
    for prefix in prefixes:
        writer.ask(prefix)
    lab.settle(depot)
    reader.generate(requests)
    expect_all_loaded(reader, "digest burst")
    return PREFIXES * (PREFIX // BLOCK)


def compare(stored: Path, loaded: Path) -> tuple[int, int]:
    """Blocks loaded by one engine that the other one stored, and those of them with a digest that it stored. What a
    third engine has stored (the prompt that every engine warms up with) is in no log."""
    digests: dict[str, set[str]] = {}
    for event in events(stored):
        if event["event"] == "store":
            digests.setdefault(event["key"], set()).add(event["digest"])
    loads = [event for event in events(loaded) if event["event"] == "load"]
    if not loads:
        raise BenchError(f"{loaded} tells of no loaded block")
    known = [event for event in loads if event["key"] in digests]
    return len(known), sum(event["digest"] in digests[event["key"]] for event in known)


def events(log: Path) -> list[dict]:
    try:
        return [json.loads(line) for line in log.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BenchError(f"{log} can't be read: {error}") from None


def prompt_of(lab: Lab, index: int) -> list[int]:
    lengths = LONG if index % LONG_EACH == LONG_EACH - 1 else LENGTHS
    length = random.Random(f"tokens {index}").randrange(*lengths)
    if length % BLOCK == 0:     # an asynchronous hit would cover the last block, the own cache never does
        length += 1
    return lab.prompt(f"tokens {index}", length)


def one(depot: Depot, writer: Engine, reader: Engine, plain: Engine, prompt: list[int], index: int) -> bool:
    """Whether the 32 tokens after a depot hit are those after an own hit."""
    full = len(prompt) // BLOCK * BLOCK
    writer.ask(prompt)
    expect_cold(plain.ask(prompt), "plain engine")
    own = expect_cached(plain.ask(prompt, ANSWER), full, "own prefix cache")
    depot.wait_stored()
    hit = ask_depot(depot, reader, prompt, full, "depot", ANSWER)
    if own.cached != hit.cached:
        raise BenchError(f"prompt {index}: {own.cached} tokens from the own cache, {hit.cached} from the depot")
    return own.tokens == hit.tokens
