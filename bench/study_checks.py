"""Checks of the IPDPS'25 paper's orderings and trends on the predicted study, for study_sentences.py; those on single
passes, memory and transfers are in study_pass_checks.py.

A check takes study.json (docs/sim.md has the layout; `evictions` is what `kvdepot sim study --figure evictions` prints)
and answers whether the sentence holds, with the predicted figures. Thresholds stand for the paper's words ("minimal",
"sharp", "close to"), not for its measurements.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate, combinations
from statistics import mean, median

from bench.harness import ROOT

Study = dict
Verdict = tuple[bool, str]
YARN, LLAMA, OPT = "Yarn-Llama-2-7B", "Llama-3.1-8B", "OPT-13B"
MODELS = (YARN, LLAMA, OPT)
SIZES = ("6", "10", "14", "18", "22", "24")
FIXED = ("1K", "2K", "4K", "8K")
VARIABLE = "128-8K"
LENGTHS = (*FIXED, VARIABLE)
COUNTS = (32, 64, 128)
STRATEGIES = ("recompute", "swap")


@cache
def inputs() -> dict:
    return json.loads((ROOT / "data/ipdps25/workloads.json").read_text(encoding="utf-8"))


def rate(cell: dict) -> float:
    return cell["tokens_per_s"]


def rises(row: list[float]) -> bool:
    return all(a < b for a, b in zip(row, row[1:]))


def falls(row: list[float]) -> bool:
    return rises(row[::-1])


def spread(values: list[float]) -> float:
    return max(values) / min(values)


def versus(a: float, b: float, unit: str = "s", digits: int = 3) -> str:
    return f"{a:.{digits}f} against {b:.{digits}f} {unit}"


def seconds(row: list[float], digits: int = 2) -> str:
    return ", ".join(f"{x:.{digits}f}" for x in row) + " s"


def over_fig4b(s: Study, strategy: str, base: str) -> list[float]:
    """tokens/s of a strategy over those of another, for all workloads and contexts."""
    return [rate(c[strategy]) / rate(c[base]) for w in s["fig4b"].values() for c in w.values()]


def last(row: list) -> float:
    return [x for x in row if x is not None][-1]


def gain(swap: float, recompute: float) -> float:
    """The share of recomputation's overhead that swapping spares."""
    return 1 - swap / recompute


def percent(share: float) -> str:
    return f"{100 * share:+.0f} %"


# --- 3: prefill-only and decode-only passes

def full_window_is_best(s: Study) -> Verdict:
    rows = s["fig3a"][YARN].values()
    return all(last(r) >= 0.98 * max(x for x in r if x) for r in rows), \
        f"8K tokens: {min(map(last, rows)):.0f} to {max(map(last, rows)):.0f} tokens/s"


def request_count_matters_little(s: Study) -> Verdict:
    full = [last(r) for r in s["fig3a"][YARN].values()]
    return spread(full) < 1.2, f"largest over smallest {spread(full):.3f}"


def half_window_is_near_peak(s: Study) -> Verdict:
    row = [x for x in s["fig3a"][YARN]["512"] if x]
    return row[-2] / row[-1] > 0.9, f"4K tokens reach {100 * row[-2] / row[-1]:.0f} % of 8K"


def joined(s: Study) -> dict[str, list[tuple[int, float]]]:
    """Figure 3b's orders: tokens of the pass and its tokens/s, with ever more prompts."""
    lengths = inputs()["fig3b_prompt_lengths_in_order_of_joining"]
    return {order: list(zip(accumulate(lengths[order]), row)) for order, row in s["fig3b"].items()}


def tokens_decide(s: Study) -> Verdict:
    same_count = same_tokens = 1.0
    for one, other in combinations(joined(s).values(), 2):
        same_count = max(same_count, *(spread([a[1], b[1]]) for a, b in zip(one, other)))
        same_tokens = max(same_tokens, *(spread([a[1], b[1]]) for a in one for b in other
                                         if abs(a[0] - b[0]) <= 0.02 * max(a[0], b[0])))
    return same_tokens < 1.1 and same_tokens < same_count, \
        f"orders differ by x{same_count:.2f} at the same number of requests, x{same_tokens:.2f} at the same tokens"


def quarter_gives_three_quarters(s: Study) -> Verdict:
    shares = {order: min(x for tokens, x in row if tokens >= 2048) / max(x for _, x in row)
              for order, row in joined(s).items()}
    return min(shares.values()) >= 0.75, \
        "from 2K tokens on at least " + ", ".join(f"{100 * x:.0f} %" for x in shares.values()) + " of the peak"


def others_follow_tokens(s: Study) -> Verdict:
    ok, out = True, []
    for model in (OPT, LLAMA):
        by_tokens: dict[int, list[float]] = {}
        for length, row in s["fig3a"][model].items():
            for i, x in enumerate(row):
                if x:
                    by_tokens.setdefault(int(length) << i, []).append(x)
        window, peak = max(by_tokens), max(map(max, by_tokens.values()))
        widest, quarter = max(map(spread, by_tokens.values())), min(by_tokens[window // 4]) / peak
        ok &= widest < 1.2 and quarter >= 0.75
        out.append(f"{model}: x{widest:.2f} at most at the same tokens, a quarter of the window reaches "
                   f"{100 * quarter:.0f} %")
    return ok, "; ".join(out)


def batch_alone_decides(s: Study) -> Verdict:
    row = s["fig11"]["a"]["recompute"]  # two requests that decode behind 16K tokens
    short, long = s["fig3c"][YARN][1], 2 / (row[2][0] - row[1][0])
    return spread([short, long]) < 1.1, \
        f"batch 2: {short:.0f} tokens/s at contexts below 98 tokens, {long:.0f} at 16K together (11a)"


def decode_grows_then_slows(s: Study) -> Verdict:
    rows = s["fig3c"]
    ok = all(rows[m][5] / rows[m][0] > 20 and rows[m][9] / rows[m][8] < 1.5 for m in MODELS)
    return ok, "; ".join(f"{m} x{rows[m][5] / rows[m][0]:.0f} to batch 32, x{rows[m][9] / rows[m][8]:.2f} from 256 to "
                         "512" for m in MODELS)


def opt_peaks_lower(s: Study) -> Verdict:
    peak = {m: max(s["fig3c"][m]) for m in MODELS}
    return peak[OPT] < min(peak[YARN], peak[LLAMA]), "; ".join(f"{m} {v:.0f}" for m, v in peak.items())


def decode_below_prefill(s: Study) -> Verdict:
    prefill, decode = last(s["fig3a"][YARN]["512"]), max(s["fig3c"][YARN])
    return decode < 0.75 * prefill, versus(decode, prefill, "tokens/s", 0)


def decode_saturates_early(s: Study) -> Verdict:
    shares = {m: s["fig3c"][m][7] / s["fig3c"][m][9] for m in MODELS}
    return min(shares.values()) >= 0.75, \
        "a quarter of 512 requests reaches " + ", ".join(f"{100 * x:.0f} % ({m})" for m, x in shares.items())


# --- 4 and 5: batching

CHUNKS = ("8k", "4k", "2k", "1k", "512", "256", "128", "64", "32")


def smaller_chunks_more_passes(s: Study) -> Verdict:
    row = [s["fig4a"][c]["passes"] for c in CHUNKS]
    return rises(row), ", ".join(map(str, row))


def small_chunks_drop(s: Study) -> Verdict:
    row = [rate(s["fig4a"][c]) for c in CHUNKS]
    return falls(row) and row[-1] < 0.25 * row[0], ", ".join(f"{x:.0f}" for x in row)


def one_chunk_below_none(s: Study) -> Verdict:
    none, one = rate(s["fig4a"]["none"]), rate(s["fig4a"]["8k"])
    return one < none, versus(one, none, "tokens/s", 0)


def context_matters_little(s: Study) -> Verdict:
    worst = max(spread([rate(contexts[c][strategy]) for c in contexts])
                for contexts in s["fig4b"].values() for strategy in contexts["4096"])
    return worst < 1.1, f"largest ratio over contexts {worst:.3f}"


def mixed_slightly_better(s: Study) -> Verdict:
    gains = over_fig4b(s, "mix", "vllm")
    return mean(gains) > 1 and max(gains) < 1.1, f"mix over vllm {min(gains):.3f} to {max(gains):.3f}"


def chunked_drops_sharply(s: Study) -> Verdict:
    drops = over_fig4b(s, "4k", "vllm")
    return mean(drops) < 0.8, f"4k over vllm {min(drops):.3f} to {max(drops):.3f}"


def smaller_chunks_lower(s: Study) -> Verdict:
    drops = over_fig4b(s, "512", "4k")
    return max(drops) < 1, f"512 over 4k {mean(drops):.3f}"


def kernel_matters_more_than_passes(s: Study) -> Verdict:
    kernel, passes = 1 - mean(over_fig4b(s, "4k", "vllm")), 1 - mean(over_fig4b(s, "512", "4k"))
    return kernel > passes, f"another kernel (vllm to 4k) costs {100 * kernel:.1f} %, more passes (4k to 512) " \
                            f"{100 * passes:.1f} %"


def fast_models_lose_more(s: Study) -> Verdict:
    loss = {m: 1 - mean(rate(c[m]["512"]) / rate(c[m]["vllm"]) for c in s["fig4c"].values()) for m in MODELS}
    return min(loss.values()) > 0.05 and loss[OPT] < min(loss[YARN], loss[LLAMA]), \
        "chunks of 512 cost " + ", ".join(f"{m} {100 * x:.0f} %" for m, x in loss.items())


def architecture_matters(s: Study, strategy: str) -> tuple[list[float], str]:
    ratios = [spread([rate(c[m][strategy]) for m in MODELS]) for c in s["fig4c"].values()]
    return ratios, f"fastest over slowest model with {strategy}: " + " and ".join(f"{r:.2f}" for r in ratios)


def architecture_matters_continuous(s: Study) -> Verdict:
    ratios, text = architecture_matters(s, "vllm")
    return min(ratios) > 1.2, text


def architecture_matters_little_chunked(s: Study) -> Verdict:
    ratios, text = architecture_matters(s, "512")
    return max(ratios) < 1.2, text


def opt_slower_by(s: Study) -> Verdict:
    ratios = [rate(s["fig4c"][w][YARN]["vllm"]) / rate(s["fig4c"][w][OPT]["vllm"]) for w in ("w2", "w3")]
    return all(1.5 <= r <= 1.9 for r in ratios), \
        f"Yarn over OPT {ratios[0]:.2f} and {ratios[1]:.2f}; the paper says 1.7"


def first_passes_are_full(s: Study) -> Verdict:
    rows = s["fig5"]
    ok = all(rows[k][0] > 0.9 * 4096 for k in ("4k", "vllm", "mix"))
    return ok, "; ".join(f"{k} {rows[k][:6]}" for k in ("4k", "vllm", "mix"))


def use_drops_later(s: Study) -> Verdict:
    return all(v[-1] < 0.05 * max(v) for v in s["fig5"].values()), \
        "; ".join(f"{k} ends with {v[-1]}" for k, v in s["fig5"].items())


# --- 8: one eviction

def recompute_ignores_blocks(s: Study) -> Verdict:
    row = s["fig8a"]["recompute"]
    return spread(row) < 1.1, f"largest over smallest {spread(row):.3f}"


def small_blocks_hurt_swap(s: Study) -> Verdict:
    row = s["fig8a"]["swap_pinned"]
    return falls(row) and row[0] > 2 * row[-1], \
        f"{row[0]:.3f} s at 2 tokens, {row[-1]:.3f} s at 64"


def pinned_and_pageable_suffer_alike(s: Study) -> Verdict:
    pinned, pageable = (s["fig8a"][k][0] / s["fig8a"][k][-1] for k in ("swap_pinned", "swap_pageable"))
    return spread([pinned, pageable]) < 1.5, f"from 64 to 2 tokens x{pinned:.2f} pinned, x{pageable:.2f} pageable"


def pageable_never_wins(s: Study) -> Verdict:
    pairs = list(zip(s["fig8a"]["swap_pageable"], s["fig8a"]["recompute"]))
    return all(a > b for a, b in pairs), f"at 64 tokens {pairs[-1][0]:.3f} against {pairs[-1][1]:.3f} s"


def pinned_wins_at_sixteen(s: Study) -> Verdict:
    swap, again = s["fig8a"]["swap_pinned"][3], s["fig8a"]["recompute"][3]
    return swap < again, versus(swap, again)


def slower_with_more_evicted(s: Study) -> Verdict:
    rows = s["fig8b"]
    return all(rises(rows[how]) for how in STRATEGIES), \
        "; ".join(f"{how} {seconds(rows[how])}" for how in STRATEGIES)


def gap_grows_with_tokens(s: Study) -> Verdict:
    gains = [gain(a, b) for a, b in zip(s["fig8b"]["swap"], s["fig8b"]["recompute"])]
    return rises(gains) and 0.1 < gains[-1] < 0.25, \
        ", ".join(f"{100 * g:+.1f} %" for g in gains) + "; the paper says almost 20 %"


# --- 9 and 10: many evictions

def overhead_grows_with_length(s: Study) -> Verdict:
    ok = all(rises([s["fig9"][k][how][n] for k in FIXED]) for how in STRATEGIES for n in range(3))
    return ok, "128 requests, swap: " + "; ".join(f"{k} {s['fig9'][k]['swap'][2]:.1f} s" for k in FIXED)


def variable_lengths_follow_too(s: Study) -> Verdict:
    """The one variable-length set, by its mean length between the fixed lengths around it."""
    requests = inputs()["zipf_128_8192_ratio_0.5"]
    ok, out = True, []
    for n, count in enumerate(COUNTS):
        tokens = mean(sum(r) for r in requests[:count])
        below = max((k for k in FIXED if 1024 * int(k[0]) <= tokens), key=FIXED.index)
        above = FIXED[FIXED.index(below) + 1]
        for how in STRATEGIES:
            row = [s["fig9"][k][how][n] for k in (below, VARIABLE, above)]
            ok &= rises(row)
            out.append(f"{count} {how}: {below} {row[0]:.1f}, mean {tokens:.0f} {row[1]:.1f}, {above} {row[2]:.1f} s")
    return ok, "; ".join(out)


def swap_wins_at_long_fixed(s: Study) -> Verdict:
    a, b = s["fig9"]["8K"]["swap"], s["fig9"]["8K"]["recompute"]
    return all(x < y for x, y in zip(a, b)), ", ".join(f"{x:.1f} against {y:.1f} s" for x, y in zip(a, b))


def gains_of_fig9(s: Study, length: str) -> list[float | None]:
    """Swapping's gain with 32, 64 and 128 requests; None where nothing was evicted."""
    cell = s["fig9"][length]
    return [gain(a, b) if b > 0 else None for a, b in zip(cell["swap"], cell["recompute"])]


def edge_diminishes_for_variable(s: Study) -> Verdict:
    fixed, variable = gains_of_fig9(s, "8K"), gains_of_fig9(s, VARIABLE)
    return all(a is not None and b is not None and b < a for a, b in zip(fixed, variable)), \
        f"8K {', '.join(map(percent, fixed))}; {VARIABLE} {', '.join(map(percent, variable))}"


def swap_wins_everywhere(s: Study) -> Verdict:
    lost = [f"{k} x {count} ({percent(g)})" for k in LENGTHS for count, g in zip(COUNTS, gains_of_fig9(s, k))
            if g is not None and g < 0]
    return not lost, "swap loses at " + ", ".join(lost) if lost else "in all"


def overhead_grows_with_requests(s: Study) -> Verdict:
    ok = all(rises(s["fig9"][k][how]) for k in LENGTHS for how in STRATEGIES)
    return ok, "; ".join(f"{k} recompute {seconds(s['fig9'][k]['recompute'], 1)}" for k in LENGTHS)


def evictions_grow_with_requests(s: Study) -> Verdict:
    counts = s["evictions"]["fig9"]
    ok = all(rises(counts[k][how]) for k in LENGTHS for how in STRATEGIES)
    return ok, "; ".join(f"{k} swap {', '.join(map(str, counts[k]['swap']))}" for k in LENGTHS)


def doubling_requests_doubles(s: Study) -> Verdict:
    rows = [(k, how, s["fig9"][k][how]) for k in LENGTHS for how in STRATEGIES]
    ratios = {f"{k} {how}": min(r[n + 1] / r[n] for n in range(2) if r[n] > 0) for k, how, r in rows if r[1] > 0}
    return min(ratios.values()) >= 2, f"smallest ratio {min(ratios.values()):.2f} ({min(ratios, key=ratios.get)})"


def swap_has_a_slight_edge(s: Study) -> Verdict:
    means = [mean(g for k in LENGTHS if (g := gains_of_fig9(s, k)[n]) is not None) for n in range(3)]
    return all(g > 0 for g in means), \
        "mean over lengths: " + ", ".join(f"{percent(g)} at {count}" for count, g in zip(COUNTS, means))


def swap_wins_in_most(s: Study) -> Verdict:
    gains = [gain(a, b) for a, b in zip(s["fig8b"]["swap"], s["fig8b"]["recompute"])]
    gains += [g for k in LENGTHS for g in gains_of_fig9(s, k) if g is not None]
    won = sum(g > 0 for g in gains)
    return won > len(gains) / 2, f"in {won} of {len(gains)} settings of 8b and 9"


def more_memory_less_overhead(s: Study) -> Verdict:
    z = s["fig10a"]["zipf"]
    ok = all(falls([z[how][g] for g in SIZES]) for how in STRATEGIES)
    return ok, "; ".join(f"{how} {seconds([z[how][g] for g in SIZES])}" for how in STRATEGIES)


def more_memory_fewer_evictions(s: Study) -> Verdict:
    z = s["evictions"]["fig10a"]["zipf"]
    ok = all(falls([z[how][g] for g in SIZES]) for how in STRATEGIES)
    return ok, "; ".join(f"{how} {', '.join(str(z[how][g]) for g in SIZES)}" for how in STRATEGIES)


def swap_wins_when_scarce(s: Study) -> Verdict:
    z = s["fig10a"]["zipf"]
    return z["swap"]["6"] < z["recompute"]["6"], "6 GiB: " + versus(z["swap"]["6"], z["recompute"]["6"], digits=2)


def recompute_wins_when_ample(s: Study) -> Verdict:
    z = s["fig10a"]["zipf"]
    return z["recompute"]["24"] < z["swap"]["24"], "24 GiB: " + versus(z["recompute"]["24"], z["swap"]["24"], digits=2)


def opt_highest_llama_lowest(s: Study) -> Verdict:
    f = s["fig10b"]
    ok = all(f[OPT][h] > f[YARN][h] > f[LLAMA][h] for h in STRATEGIES)
    return ok, "; ".join(f"{m} {f[m]['recompute']:.2f}/{f[m]['swap']:.2f} s" for m in (OPT, YARN, LLAMA)) + \
        "; the paper says OPT 10.4/7.2, Llama 0.38/0.34"


def opt_evicts_most(s: Study) -> Verdict:
    f = s["evictions"]["fig10b"]
    ok = all(f[OPT][h] > max(f[YARN][h], f[LLAMA][h]) for h in STRATEGIES)
    return ok, "; ".join(f"{m} {f[m]['recompute']}/{f[m]['swap']}" for m in (OPT, YARN, LLAMA))


def gains_of_10b(s: Study) -> dict[str, float]:
    return {m: gain(s["fig10b"][m]["swap"], s["fig10b"][m]["recompute"]) for m in (OPT, YARN, LLAMA)}


def swap_clear_for_opt(s: Study) -> Verdict:
    gains = gains_of_10b(s)
    return gains[OPT] > 0.05 and gains[OPT] > max(gains[YARN], gains[LLAMA]), \
        "; ".join(f"{m} {percent(g)}" for m, g in gains.items()) + "; the paper's OPT +31 %"


def swap_slight_for_the_others(s: Study) -> Verdict:
    gains = gains_of_10b(s)
    return all(0 < gains[m] < gains[OPT] / 2 for m in (YARN, LLAMA)), \
        "; ".join(f"{m} {percent(gains[m])}" for m in (YARN, LLAMA)) + "; the paper's Llama +11 %"


# --- 11: use of the device and the host over time; rows are [s, device %, host %] after each pass

def eviction_in_11a(row: list) -> tuple[int, int]:
    """The passes behind the one eviction and behind the request's return."""
    out = min(range(1, len(row)), key=lambda i: row[i][1] - row[i - 1][1])
    return out, max(range(out + 1, len(row)), key=lambda i: row[i][1] - row[i - 1][1])


def prefill_fills_in_11a(s: Study) -> Verdict:
    row = s["fig11"]["a"]["swap"]
    return 90 <= row[0][1] < 100 and row[0][0] < 2, f"{row[0][1]:.1f} % after {row[0][0]:.2f} s"


def grows_slowly_in_11a(s: Study) -> Verdict:
    ok, out = True, []
    for how in STRATEGIES:
        row = s["fig11"]["a"][how]
        before = [p[1] for p in row[: eviction_in_11a(row)[0]]]
        ok &= all(a <= b for a, b in zip(before, before[1:])) and 0 < before[-1] - before[0] < 10
        out.append(f"{how} {before[0]:.1f} to {before[-1]:.1f} %")
    return ok, "; ".join(out)


def falls_in_11a(s: Study) -> Verdict:
    ok, out = True, []
    for how in STRATEGIES:
        row = s["fig11"]["a"][how]
        at = eviction_in_11a(row)[0]
        ok &= row[at - 1][1] - row[at][1] > 50
        out.append(f"{how} {row[at - 1][1]:.0f} to {row[at][1]:.0f} % at {row[at - 1][0]:.1f} s")
    return ok, "; ".join(out) + "; the paper's at 15 s"


def rises_again_in_11a(s: Study) -> Verdict:
    ok, out = True, []
    for how in STRATEGIES:
        row = s["fig11"]["a"][how]
        at = eviction_in_11a(row)[1]
        ok &= row[at][1] - row[at - 1][1] > 50 and (how == "recompute" or row[at][2] < row[at - 1][2])
        out.append(f"{how} at {row[at - 1][0]:.1f} s, host {row[at - 1][2]:.1f} to {row[at][2]:.1f} %")
    return ok, "; ".join(out) + "; the paper's at 24.5 s"


def swap_interrupts_twice(s: Study) -> Verdict:
    pauses = {}
    for how in STRATEGIES:
        times = [p[0] for p in s["fig11"]["a"][how]]
        steps = [b - a for a, b in zip(times, times[1:])]
        pauses[how] = [steps[i - 1] / median(steps) for i in eviction_in_11a(s["fig11"]["a"][how])]
    ok = min(pauses["swap"]) > 5 and pauses["recompute"][0] < 2 and pauses["recompute"][1] > 5
    return ok, "; ".join(f"{how} x{out:.1f} and x{back:.1f} of a pass" for how, (out, back) in pauses.items())


def device_stays_full(s: Study, case: str) -> Verdict:
    ok, out = True, []
    for how in STRATEGIES:
        row = s["fig11"][case][how]
        start = next((i for i, p in enumerate(row) if p[1] >= 95), None)
        if start is None:
            return False, f"{how} at most {max(p[1] for p in row):.0f} %"
        low = next((p for p in row[start:] if p[1] < 80), None)
        ok &= row[start][0] < 0.02 * row[-1][0] and low is None
        out.append(f"{how} 80 to 100 % from {row[start][0]:.1f} s " +
                   (f"until {low[0]:.1f} of {row[-1][0]:.1f} s, {row[-1][1]:.0f} % at the end" if low else "on"))
    return ok, "; ".join(out)


def host_bursts(s: Study, case: str, begin_s: float, paper: float) -> Verdict:
    row = s["fig11"][case]["swap"]
    top = max(row, key=lambda p: p[2])
    empty = next((p[0] for p in row if p[0] > top[0] and p[2] < 0.5), float("inf"))
    return top[0] <= begin_s and abs(top[2] - paper) < paper / 3 and empty <= 1.5 * begin_s, \
        f"{top[2]:.1f} % at {top[0]:.1f} s, below 0.5 % at {empty:.1f} s"


def host_is_little_used_later(s: Study, case: str, begin_s: float, most: float) -> Verdict:
    row = s["fig11"][case]["swap"]
    later = max(p[2] for p in row if p[0] > begin_s)
    top = max(row, key=lambda p: p[2])
    burst = next((i for i, p in enumerate(row) if p[0] > top[0] and p[2] < 0.5), None)
    over = "the burst is never over" if burst is None else \
        f"{max(p[2] for p in row[burst:]):.1f} % once the burst is over at {row[burst][0]:.1f} s"
    return later <= most, f"up to {later:.1f} %; {over}"


def host_fills(row: list, begin_s: float, end_s: float) -> float:
    """Points of the host's use that are copied out a second, between two times."""
    grown = sum(max(0.0, b[2] - a[2]) for a, b in zip(row, row[1:]) if begin_s < b[0] <= end_s)
    return grown / (end_s - begin_s)


def transfers_shrink(s: Study) -> Verdict:
    row = s["fig11"]["c"]["swap"]
    first, later = host_fills(row, 0, 31), host_fills(row, 31, row[-1][0])
    return later < first / 2, f"{first:.2f} % of the host a second copied out in the first 31 s, {later:.2f} after that"


def movements_become_smaller(s: Study) -> Verdict:
    ok, out = True, []
    for case in "bc":
        row = s["fig11"][case]["swap"]
        thirds = [host_fills(row, row[-1][0] * i / 3, row[-1][0] * (i + 1) / 3) for i in range(3)]
        ok &= falls(thirds)
        out.append(f"11{case} " + ", ".join(f"{x:.2f}" for x in thirds))
    return ok, "% of the host a second by thirds of the run: " + "; ".join(out)
