"""Checks of the IPDPS'25 paper's orderings and trends on single passes, memory and transfers: its sections I, II and V,
figure 6, and remarks beside other figures. The others are in study_checks.py.

They take, beside study.json, what `kvdepot sim study --figure accesses` (makespans, prompt_passes) and `kvdepot sim
calibrate --json` print (docs/sim.md). Within a pass the step model knows how long the cache is read, not when.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil
from statistics import mean, pstdev
from typing import NamedTuple

from bench.study_checks import (FIXED, LENGTHS, LLAMA, MODELS, OPT, SIZES, STRATEGIES, VARIABLE, YARN, Study, Verdict,
                                falls, inputs, rate, rises, seconds, spread)

WORKLOADS = ("w1", "w2", "w3")
BLOCK_TOKENS = 16
BLOCK_SIZES = (2, 4, 8, 16, 32, 64)


class Shape(NamedTuple):
    """A row of the paper's table I, and the blocks that the device had in the measured runs at a context of 2K."""
    weights_gb: float
    layers: int
    kv_hidden: int
    blocks: int

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_hidden * 2


SHAPES = {YARN: Shape(14, 32, 4096, 3083), LLAMA: Shape(16, 32, 1024, 10697), OPT: Shape(26, 40, 5120, 1014)}
TOKEN_BYTES = SHAPES[YARN].token_bytes
COPIES_PER_BLOCK = 2 * SHAPES[YARN].layers  # one for K and one for V in each layer


def by_workload(figures: list[str]) -> str:
    return "; ".join(f"{w} {text}" for w, text in zip(WORKLOADS, figures))


def read_seconds_per_token(s: Study, model: str = YARN) -> float:
    return s["constants"][model]["context_token_s"]


# --- memory and its speed

def weights_take_most(s: Study) -> Verdict:
    cache = {m: shape.blocks * BLOCK_TOKENS * shape.token_bytes / 1e9 for m, shape in SHAPES.items()}
    return all(SHAPES[m].weights_gb > cache[m] for m in MODELS), \
        "; ".join(f"{m} weights {SHAPES[m].weights_gb} GB, KV {cache[m]:.1f} GB" for m in MODELS)


def cache_grows_with_tokens(s: Study) -> Verdict:
    """Bytes of the blocks in use for each cached token, over passes of ten to five thousand tokens."""
    each = [p["blocks"] * BLOCK_TOKENS * TOKEN_BYTES / cached for w in WORKLOADS
            for p, cached in zip(s["accesses"][w], accumulate(p["written_tokens"] for p in s["accesses"][w]))]
    return spread(each) < 1.05, f"{min(each) / 1024:.0f} to {max(each) / 1024:.0f} KiB a cached token, blocks of 16"


def device_memory_is_faster(s: Study) -> Verdict:
    device = {m: SHAPES[m].token_bytes / read_seconds_per_token(s, m) for m in MODELS}
    host = s["constants"]["swap_pinned"]["bytes_per_s"]
    return min(device.values()) > host, \
        f"KV is read at {min(device.values()) / 1e9:.0f} GB/s on the device, copied at {host / 1e9:.1f} GB/s"


def shared_heads_save_memory(s: Study) -> Verdict:
    return SHAPES[LLAMA].token_bytes * 4 == TOKEN_BYTES, \
        f"{SHAPES[LLAMA].token_bytes // 1024} KiB of KV a token against {TOKEN_BYTES // 1024} KiB (Yarn)"


def pinned_is_faster(s: Study) -> Verdict:
    pinned, pageable = (s["constants"][k]["bytes_per_s"] / 1e9 for k in ("swap_pinned", "swap_pageable"))
    return pinned > pageable, f"{pinned:.1f} against {pageable:.1f} GB/s, fitted to both ways together; the paper " \
                              "measured 24.5 and 26.1 against 19 and 12"


def small_copies_are_slower(s: Study) -> Verdict:
    pinned = s["constants"]["swap_pinned"]
    sizes = [n * TOKEN_BYTES / COPIES_PER_BLOCK for n in BLOCK_SIZES]
    rates = [size / (pinned["copy_s"] + size / pinned["bytes_per_s"]) for size in sizes]
    return rises(rates), "pinned, blocks of 2 to 64 tokens: " + ", ".join(f"{r / 1e9:.1f}" for r in rates) + " GB/s"


def small_blocks_are_many_copies(s: Study) -> Verdict:
    copies = {tokens: [tokens // n * COPIES_PER_BLOCK for n in BLOCK_SIZES] for tokens in (1024, 16384)}
    return all(map(falls, copies.values())) and all(a < b for a, b in zip(*copies.values())), \
        "; ".join(f"{tokens} tokens: {row[0]} copies out in blocks of 2, {row[-1]} of 64"
                  for tokens, row in copies.items())


def large_blocks_are_used_less(s: Study) -> Verdict:
    """Of the tokens that a request's blocks can hold, those that it has at its end."""
    requests = [sum(r) for r in inputs()["zipf_512_2048_ratio_0.5"]]
    used = [sum(requests) / sum(ceil(n / size) * size for n in requests) for size in BLOCK_SIZES]
    return falls(used), "10a's requests, blocks of 2 to 64 tokens: " + ", ".join(f"{100 * u:.1f}" for u in used) + \
        " % of their room"


# --- parallelism and batching

def one_token_wastes_the_device(s: Study) -> Verdict:
    shares = {m: s["fig3c"][m][0] / max(s["fig3c"][m]) for m in MODELS}
    return max(shares.values()) < 0.1, \
        "a batch of one reaches " + ", ".join(f"{100 * x:.1f} % ({m})" for m, x in shares.items()) + " of the best"


def short_prompts_waste_the_device(s: Study) -> Verdict:
    shares = {m: s["fig3a"][m]["16"][0] / max(x for row in s["fig3a"][m].values() for x in row if x) for m in MODELS}
    return max(shares.values()) < 0.5, \
        "one prompt of 16 tokens reaches " + ", ".join(f"{100 * x:.0f} % ({m})" for m, x in shares.items()) + \
        " of the best"


def decode_ignores_the_mix(s: Study) -> Verdict:
    """A decode pass of w3's requests behind their prompts, against as many requests of their mean length."""
    prompts = [prompt for prompt, _ in inputs()["w3"]]
    decode = s["constants"][YARN]
    batch = decode_batch_seconds(decode, len(prompts))
    mixed, fixed = (batch + decode["context_token_s"] * sum(row)
                    for row in (prompts, [mean(prompts)] * len(prompts)))
    return spread([mixed, fixed]) < 1.01, \
        f"w3's {len(prompts)} requests of {min(prompts)} to {max(prompts)} tokens {1e3 * mixed:.2f} ms, of " \
        f"{mean(prompts):.0f} each {1e3 * fixed:.2f} ms"


def decode_batch_seconds(constants: dict, batch: float) -> float:
    points = list(zip(constants["decode_batch"], constants["decode_batch_s"]))
    for (a, x), (b, y) in pairwise(points):
        if batch <= b or b == points[-1][0]:
            return x + (y - x) * (batch - a) / (b - a)
    return points[0][1]


def prompt_passes(s: Study, workload: str, strategy: str) -> list[float]:
    return [row[0] for row in s["prompt_passes"][workload][strategy]]


def imbalance(row: list[float]) -> float:
    """Standard deviation of the passes' durations over their mean."""
    return pstdev(row) / mean(row)


def compared(s: Study, measure, strategies: tuple[str, str], form: str) -> tuple[list[tuple[float, float]], str]:
    pairs = [tuple(measure(prompt_passes(s, w, k)) for k in strategies) for w in WORKLOADS]
    return pairs, f"{strategies[0]} against {strategies[1]}: " + \
        by_workload([f"{a:{form}} against {b:{form}}" for a, b in pairs])


def prefill_first_is_imbalanced(s: Study) -> Verdict:
    rows = [prompt_passes(s, w, "vllm") for w in WORKLOADS]
    return all(spread(r) > 1.5 for r in rows), by_workload([seconds(r) for r in rows])


def mixed_takes_more_prompt_passes(s: Study) -> Verdict:
    pairs, text = compared(s, len, ("mix", "vllm"), "d")
    return any(a > b for a, b in pairs) and all(a >= b for a, b in pairs), text + " passes with prompts"


def mixed_has_longer_passes(s: Study) -> Verdict:
    pairs, text = compared(s, max, ("mix", "vllm"), ".3f")
    return all(a > b for a, b in pairs), text + " s at most"


def mixed_balances(s: Study) -> Verdict:
    pairs, text = compared(s, imbalance, ("mix", "vllm"), ".2f")
    return all(a < b for a, b in pairs), text + " (deviation over mean of their seconds)"


def chunks_balance(s: Study) -> Verdict:
    pairs, text = compared(s, imbalance, ("512", "vllm"), ".2f")
    return all(a < b for a, b in pairs), text + " (deviation over mean of their seconds)"


def chunks_take_more_passes(s: Study) -> Verdict:
    pairs, text = compared(s, len, ("512", "vllm"), "d")
    return all(a > b for a, b in pairs), text + " passes with prompts"


def other_kernel_is_slower(s: Study) -> Verdict:
    c = s["constants"][YARN]
    return c["chunked_pair_s"] > c["pair_s"] and c["chunked_floor_s"] > c["floor_s"], \
        f"at least {1e3 * c['chunked_floor_s']:.0f} against {1e3 * c['floor_s']:.0f} ms a pass, " \
        f"{1e9 * c['chunked_pair_s']:.2f} against {1e9 * c['pair_s']:.2f} ns a pair of tokens"


def chunking_costs_decodes(s: Study) -> Verdict:
    """What 118 more tokens of output take, 20 requests of 1,024 tokens: chunks of 512 against vLLM's default."""
    took = {o: {k: [20 * (1024 + int(o)) / rate(s["fig4c_fixed"][o][m][k]) for m in MODELS] for k in ("vllm", "512")}
            for o in ("10", "128")}
    more = {k: [b - a for a, b in zip(took["10"][k], took["128"][k])] for k in ("vllm", "512")}
    ratios = [a / b for a, b in zip(more["512"], more["vllm"])]
    return min(ratios) > 1.02, "118 more decodes take " + \
        "; ".join(f"{m} {b:.2f} s in chunks, {a:.2f} s without" for m, a, b in zip(MODELS, more["vllm"], more["512"]))


def opt_has_longer_passes(s: Study) -> Verdict:
    ok = all(s["fig3c"][OPT][i] < min(s["fig3c"][YARN][i], s["fig3c"][LLAMA][i]) for i in range(10))
    prefill = {m: 2048 / s["fig3a"][m]["2048"][0] for m in MODELS}
    return ok and prefill[OPT] > max(prefill[YARN], prefill[LLAMA]), \
        "; ".join(f"{m} 2K of prompt {prefill[m]:.3f} s, 32 decodes {32e3 / s['fig3c'][m][5]:.1f} ms" for m in MODELS)


# --- 6: five passes of four requests

def passes_of(s: Study, workload: str) -> tuple[list[dict], list[dict]]:
    """With prompts, and without."""
    rows = s["accesses"][workload]
    return [p for p in rows if p["prompt_tokens"] > 0], [p for p in rows if p["prompt_tokens"] == 0]


def over_workloads(s: Study, see) -> Verdict:
    """see(passes with prompts, passes without) answers for one workload."""
    found = [see(*passes_of(s, w)) for w in WORKLOADS]
    return all(ok for ok, _ in found), by_workload([text for _, text in found])


def written_mib(row: list[dict]) -> float:
    return sum(p["written_tokens"] for p in row) * TOKEN_BYTES / 2**20


def most_writes_in_prefill(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        return written_mib(first) > written_mib(later), \
            f"{written_mib(first):.1f} MiB in {len(first)} prefill, {written_mib(later):.1f} in {len(later)} decodes"
    return over_workloads(s, see)


def decodes_write_little(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        pressure = [written_mib(row) / 1024 / sum(p["seconds"] for p in row) for row in (first, later)]
        together = all(p["written_tokens"] == p["requests"] > 1 for p in later)
        return pressure[1] < pressure[0] / 10 and together, \
            f"{pressure[0]:.2f} against {pressure[1]:.2f} GiB/s, {later[0]['requests']} requests a pass"
    return over_workloads(s, see)


def cache_is_mostly_idle(s: Study) -> Verdict:
    """At the rate at which decodes read KV."""
    def see(first: list[dict], later: list[dict]) -> Verdict:
        shares = [max((p["written_tokens"] + p["read_tokens"]) * read_seconds_per_token(s) / p["seconds"] for p in row)
                  for row in (first, later)]
        return max(shares) < 0.5, f"{100 * shares[0]:.1f} and {100 * shares[1]:.1f} % of a pass"
    ok, text = over_workloads(s, see)
    return ok, f"accesses take in prefill and decode at most: {text}"


def writes_then_reads(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        (w0, r0), (w1, r1) = ([sum(p[k] for p in row) for k in ("written_tokens", "read_tokens")]
                              for row in (first, later))
        return w0 > r0 and r1 > w1, f"writes over reads {w0} over {r0} tokens, then {w1} over {r1}"
    return over_workloads(s, see)


def prefill_reads_nothing(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        read = sum(p["read_tokens"] for p in first)
        return read == 0, f"{read} cached tokens in prefill, {sum(p['read_tokens'] for p in later)} in decodes"
    return over_workloads(s, see)


def reads_repeat(s: Study) -> Verdict:
    def see(_: list[dict], later: list[dict]) -> Verdict:
        more = [b["read_tokens"] - a["read_tokens"] for a, b in pairwise(later)]
        return all(x == p["requests"] for x, p in zip(more, later)), \
            f"{later[0]['read_tokens']} tokens, then {', '.join(map(str, more))} more"
    return over_workloads(s, see)


def blocks_ascend(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        row = first + later
        return all(p["requests_with_ascending_blocks"] == p["requests"] for p in row), \
            f"{min(p['requests_with_ascending_blocks'] for p in row)} of {max(p['requests'] for p in row)}"
    ok, text = over_workloads(s, see)
    return ok, f"requests whose blocks ascend in the order of their tokens: {text}"


def all_requests_read_together(s: Study) -> Verdict:
    def see(_: list[dict], later: list[dict]) -> Verdict:
        least = min(p["requests"] for p in later)
        return least == 4, f"{least} of 4 requests in each of {len(later)} decode passes"
    return over_workloads(s, see)


def decodes_read_all_that_is_cached(s: Study) -> Verdict:
    def see(first: list[dict], later: list[dict]) -> Verdict:
        cached = list(accumulate(p["written_tokens"] for p in first + later))[len(first) - 1:]
        return all(p["read_tokens"] == before for p, before in zip(later, cached)), \
            f"{later[-1]['read_tokens']} of {cached[-2]} tokens in the last pass"
    return over_workloads(s, see)


def prefetch_fits_in_a_pass(s: Study) -> Verdict:
    pinned = s["constants"]["swap_pinned"]

    def see(_: list[dict], later: list[dict]) -> Verdict:
        blocks, took = later[-1]["blocks"], later[-2]["seconds"]
        block_s = COPIES_PER_BLOCK * pinned["copy_s"] + BLOCK_TOKENS * TOKEN_BYTES / pinned["bytes_per_s"]
        return blocks * block_s < took, f"{1e3 * took:.1f} ms a pass, {1e3 * blocks * block_s:.0f} ms for all " \
                                        f"{blocks} blocks ({took / block_s:.0f} fit)"
    return over_workloads(s, see)


def longer_gaps_between_phases(s: Study) -> Verdict:
    """The layers are equal and run one after the other: block 0 is at work for one part of a pass of as many."""
    layers = SHAPES[YARN].layers

    def see(first: list[dict], later: list[dict]) -> Verdict:
        within, between = ([1e3 * p["seconds"] * share for p in (first[-1], later[0])]
                           for share in (1 / layers, 1 - 1 / layers))
        return all(a < b for a, b in zip(within, between)), \
            f"at most {within[0]:.1f} and {within[1]:.1f} ms within, {between[0]:.0f} and {between[1]:.0f} ms between"
    ok, text = over_workloads(s, see)
    return ok, f"prefill and decode: {text}"


def blocks_stay_as_they_are(s: Study) -> Verdict:
    def see(_: list[dict], later: list[dict]) -> Verdict:
        shares = [p["written_blocks"] / p["blocks"] for p in later]
        return max(shares) < 0.1, f"{later[0]['written_blocks']} of {later[0]['blocks']} blocks"
    ok, text = over_workloads(s, see)
    return ok, f"a decode writes to: {text}"


# --- evictions

def partial_evictions_help(s: Study) -> Verdict:
    """Where anybody is evicted: makespan when only the blocks that are needed go, against whole requests."""
    def cells(study: dict, how: str) -> list[float]:
        return [*(x for k in LENGTHS for x in study["fig9"][k][how]),
                *(study["fig10a"]["zipf"][how][g] for g in SIZES), *(study["fig10b"][m][how] for m in MODELS)]
    gains = {how: [1 - b / a for a, b, n in zip(cells(s["makespans"]["whole"], how),
                                               cells(s["makespans"]["partial"], how), cells(s["evictions"], how))
                   if n > 0] for how in STRATEGIES}
    won = {how: sum(g > 0 for g in row) for how, row in gains.items()}
    return all(won[how] > len(row) / 2 and mean(row) > 0 for how, row in gains.items()), \
        "; ".join(f"{how}: makespan shorter in {won[how]} of {len(row)} settings, {100 * mean(row):+.2f} % on average"
                  for how, row in gains.items())


def variable_lengths_recompute_less(s: Study) -> Verdict:
    fixed, variable = s["fig9"][FIXED[-1]]["recompute"], s["fig9"][VARIABLE]["recompute"]
    return all(b < a for a, b in zip(fixed, variable)), f"8K {seconds(fixed, 1)}; {VARIABLE} {seconds(variable, 1)}"


def recompute_can_be_faster(s: Study) -> Verdict:
    rows = s["fig8b"]
    won = [1 << i for i in range(5) if rows["recompute"][i] < rows["swap"][i]]
    return bool(won), f"8b at {', '.join(f'{k}K' for k in won)}" if won else "nowhere in 8b"


def architecture_changes_blocks_and_passes(s: Study) -> Verdict:
    blocks = {m: SHAPES[m].token_bytes * BLOCK_TOKENS / 2**20 for m in MODELS}
    passes = {m: 32e3 / s["fig3c"][m][5] for m in MODELS}
    return spread(list(blocks.values())) > 1.1 and spread(list(passes.values())) > 1.1, \
        "; ".join(f"{m} {blocks[m]:g} MiB a block of 16, {passes[m]:.1f} ms for 32 decodes" for m in MODELS)
