"""Each sentence of the IPDPS'25 paper that states an ordering or a trend, against the simulator's predictions.

    python3 -m bench.study_trends [--study build/bench/study.json] [--kvdepot PROGRAM] [--markdown]

Prints for every sentence whether it holds, with the predicted figures. A sentence that does not hold is a finding about
the model or the paper, explained in docs/results/study.md, and no reason to fail; the test fails when a sentence has no
verdict any more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

Study = dict
Verdict = tuple[bool, str]
YARN, LLAMA, OPT = "Yarn-Llama-2-7B", "Llama-3.1-8B", "OPT-13B"
SIZES = ("6", "10", "14", "18", "22", "24")
LENGTHS = ("1K", "2K", "4K", "8K", "128-8K")


@dataclass(frozen=True)
class Sentence:
    figure: str
    text: str
    check: Callable[[Study], Verdict]


def rate(cell: dict) -> float:
    return cell["tokens_per_s"]


def falls(row: list[float]) -> bool:
    return all(a > b for a, b in zip(row, row[1:]))


def versus(a: float, b: float, unit: str = "s", digits: int = 3) -> str:
    return f"{a:.{digits}f} against {b:.{digits}f} {unit}"


def over_fig4b(s: Study, strategy: str, base: str) -> list[float]:
    """tokens/s of a strategy over those of another, for all workloads and contexts."""
    return [rate(c[strategy]) / rate(c[base]) for w in s["fig4b"].values() for c in w.values()]


def last(row: list) -> float:
    return [x for x in row if x is not None][-1]


def full_window_is_best(s: Study) -> Verdict:
    rows = s["fig3a"][YARN].values()
    return all(last(r) >= 0.98 * max(x for x in r if x) for r in rows), \
        f"8K tokens: {min(map(last, rows)):.0f} to {max(map(last, rows)):.0f} tokens/s"


def request_count_matters_little(s: Study) -> Verdict:
    full = [last(r) for r in s["fig3a"][YARN].values()]
    return max(full) / min(full) < 1.2, f"largest over smallest {max(full) / min(full):.3f}"


def half_window_is_near_peak(s: Study) -> Verdict:
    row = [x for x in s["fig3a"][YARN]["512"] if x]
    return row[-2] / row[-1] > 0.9, f"4K tokens reach {100 * row[-2] / row[-1]:.0f} % of 8K"


def quarter_gives_three_quarters(s: Study) -> Verdict:
    row = [x for x in s["fig3a"][YARN]["512"] if x]
    return row[-3] / row[-1] >= 0.75, f"2K tokens reach {100 * row[-3] / row[-1]:.0f} % of 8K"


def decode_grows_then_slows(s: Study) -> Verdict:
    rows = {m: s["fig3c"][m] for m in (YARN, LLAMA, OPT)}
    ok = all(r[5] / r[0] > 20 and r[9] / r[8] < 1.5 for r in rows.values())
    return ok, "; ".join(f"{m} x{r[5] / r[0]:.0f} to batch 32, x{r[9] / r[8]:.2f} from 256 to 512"
                         for m, r in rows.items())


def opt_peaks_lower(s: Study) -> Verdict:
    peak = {m: max(s["fig3c"][m]) for m in (YARN, LLAMA, OPT)}
    return peak[OPT] < min(peak[YARN], peak[LLAMA]), "; ".join(f"{m} {v:.0f}" for m, v in peak.items())


def decode_below_prefill(s: Study) -> Verdict:
    prefill, decode = last(s["fig3a"][YARN]["512"]), max(s["fig3c"][YARN])
    return decode < prefill, versus(decode, prefill, "tokens/s", 0)


def small_chunks_drop(s: Study) -> Verdict:
    row = [rate(s["fig4a"][c]) for c in ("8k", "4k", "2k", "1k", "512", "256", "128", "64", "32")]
    return falls(row), ", ".join(f"{x:.0f}" for x in row)


def one_chunk_below_none(s: Study) -> Verdict:
    none, one = rate(s["fig4a"]["none"]), rate(s["fig4a"]["8k"])
    return one < none, versus(one, none, "tokens/s", 0)


def context_matters_little(s: Study) -> Verdict:
    worst = 1.0
    for contexts in s["fig4b"].values():
        for strategy in contexts["4096"]:
            values = [rate(contexts[c][strategy]) for c in contexts]
            worst = max(worst, max(values) / min(values))
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


def opt_slower_by(s: Study) -> Verdict:
    ratios = [rate(s["fig4c"][w][YARN]["vllm"]) / rate(s["fig4c"][w][OPT]["vllm"]) for w in ("w2", "w3")]
    return all(1.5 <= r <= 1.9 for r in ratios), \
        f"Yarn over OPT {ratios[0]:.2f} and {ratios[1]:.2f}; the paper says 1.7"


def architecture_matters_little_chunked(s: Study) -> Verdict:
    ratios = [rate(s["fig4c"][w][YARN]["512"]) / rate(s["fig4c"][w][OPT]["512"]) for w in ("w2", "w3")]
    return max(ratios) < 1.2, f"Yarn over OPT at 512: {ratios[0]:.2f} and {ratios[1]:.2f}"


def first_passes_are_full(s: Study) -> Verdict:
    rows = s["fig5"]
    ok = all(rows[k][0] > 0.9 * 4096 for k in ("4k", "vllm", "mix"))
    return ok, "; ".join(f"{k} {rows[k][:6]}" for k in ("4k", "vllm"))


def use_drops_later(s: Study) -> Verdict:
    rows = {k: v for k, v in s["fig5"].items() if k != "512"}
    return all(v[-1] < 0.05 * max(v) for v in rows.values()), \
        "; ".join(f"{k} ends with {v[-1]}" for k, v in s["fig5"].items())


def recompute_ignores_blocks(s: Study) -> Verdict:
    row = s["fig8a"]["recompute"]
    return max(row) / min(row) < 1.1, f"largest over smallest {max(row) / min(row):.3f}"


def small_blocks_hurt_swap(s: Study) -> Verdict:
    row = s["fig8a"]["swap_pinned"]
    return falls(row) and row[0] > 2 * row[-1], \
        f"{row[0]:.3f} s at 2 tokens, {row[-1]:.3f} s at 64"


def pageable_never_wins(s: Study) -> Verdict:
    pairs = list(zip(s["fig8a"]["swap_pageable"], s["fig8a"]["recompute"]))
    return all(a > b for a, b in pairs), f"at 64 tokens {pairs[-1][0]:.3f} against {pairs[-1][1]:.3f} s"


def pinned_wins_at_sixteen(s: Study) -> Verdict:
    swap, again = s["fig8a"]["swap_pinned"][3], s["fig8a"]["recompute"][3]
    return swap < again, versus(swap, again)


def gap_grows_with_tokens(s: Study) -> Verdict:
    gain = [1 - a / b for a, b in zip(s["fig8b"]["swap"], s["fig8b"]["recompute"])]
    return gain[-1] > gain[-2] > gain[-3] and 0.1 < gain[-1] < 0.25, \
        ", ".join(f"{100 * g:+.1f} %" for g in gain) + "; the paper says almost 20 %"


def overhead_grows_with_length(s: Study) -> Verdict:
    ok = all(s["fig9"][a][how][n] < s["fig9"][b][how][n]
             for a, b in zip(LENGTHS[:3], LENGTHS[1:4]) for how in ("recompute", "swap") for n in (1, 2))
    return ok, "; ".join(f"{k} {s['fig9'][k]['swap'][2]:.1f} s" for k in LENGTHS[:4])


def swap_wins_at_long_fixed(s: Study) -> Verdict:
    a, b = s["fig9"]["8K"]["swap"], s["fig9"]["8K"]["recompute"]
    return all(x < y for x, y in zip(a, b)), ", ".join(f"{x:.1f} against {y:.1f} s" for x, y in zip(a, b))


def swap_wins_everywhere(s: Study) -> Verdict:
    cells = [(k, n, s["fig9"][k]["swap"][n], s["fig9"][k]["recompute"][n]) for k in LENGTHS for n in range(3)]
    lost = [f"{k} x {32 << n}" for k, n, a, b in cells if a > b]
    return not lost, "swap loses at " + ", ".join(lost) if lost else "in all"


def doubling_requests_doubles(s: Study) -> Verdict:
    rows = [(k, how, s["fig9"][k][how]) for k in LENGTHS for how in ("recompute", "swap")]
    ratios = {f"{k} {how}": min(r[n + 1] / r[n] for n in range(2) if r[n] > 0) for k, how, r in rows}
    return min(ratios.values()) >= 2, f"smallest ratio {min(ratios.values()):.2f} ({min(ratios, key=ratios.get)})"


def more_memory_less_overhead(s: Study) -> Verdict:
    ok = all(falls([s["fig10a"]["zipf"][how][g] for g in SIZES]) for how in ("recompute", "swap"))
    return ok, "swap " + ", ".join(f"{s['fig10a']['zipf']['swap'][g]:.2f}" for g in SIZES) + " s"


def swap_wins_when_scarce(s: Study) -> Verdict:
    z = s["fig10a"]["zipf"]
    return z["swap"]["6"] < z["recompute"]["6"], "6 GiB: " + versus(z["swap"]["6"], z["recompute"]["6"], digits=2)


def recompute_wins_when_ample(s: Study) -> Verdict:
    z = s["fig10a"]["zipf"]
    return z["recompute"]["24"] < z["swap"]["24"], "24 GiB: " + versus(z["recompute"]["24"], z["swap"]["24"], digits=2)


def opt_highest_llama_lowest(s: Study) -> Verdict:
    f = s["fig10b"]
    ok = all(f[OPT][h] > f[YARN][h] > f[LLAMA][h] for h in ("recompute", "swap"))
    return ok, "; ".join(f"{m} {f[m]['recompute']:.2f}/{f[m]['swap']:.2f} s" for m in (OPT, YARN, LLAMA))


def swap_clear_for_opt(s: Study) -> Verdict:
    gain = {m: 1 - s["fig10b"][m]["swap"] / s["fig10b"][m]["recompute"] for m in (OPT, YARN, LLAMA)}
    return gain[OPT] > 0.05 and gain[OPT] > max(gain[YARN], gain[LLAMA]), \
        "; ".join(f"{m} {100 * g:+.0f} %" for m, g in gain.items())


def host_peaks(s: Study) -> Verdict:
    b, c = (max(p[2] for p in s["fig11"][k]["swap"]) for k in "bc")
    return 4 < b < 8 and 8 < c < 12, f"6 GiB {b:.1f} % (paper 6), OPT {c:.1f} % (paper 10)"


def device_stays_full(s: Study) -> Verdict:
    shares = []
    for k in "bc":
        row = s["fig11"][k]["recompute"]
        middle = row[len(row) // 20: len(row) * 3 // 4]
        shares.append(sum(80 <= p[1] <= 100 for p in middle) / len(middle))
    return min(shares) > 0.9, f"between 80 and 100 % in {100 * shares[0]:.0f} and {100 * shares[1]:.0f} % of the passes"


def host_bursts_at_first(s: Study) -> Verdict:
    out = []
    for k in "bc":
        row = s["fig11"][k]["swap"]
        out.append((max(p[2] for p in row[: len(row) // 4]), max(p[2] for p in row[len(row) // 4:])))
    return all(a > b for a, b in out), "; ".join(f"{a:.1f} then {b:.1f} %" for a, b in out)


SENTENCES = [
    Sentence("3a", "the peak throughput is reached when the context window is fully filled", full_window_is_best),
    Sentence("3a", "There is minimal difference in terms of how many requests are used to fill the context window",
             request_count_matters_little),
    Sentence("3a", "the token throughput is close to peak also when the context window is only half full",
             half_window_is_near_peak),
    Sentence("3b", "even at 25% utilization we reach 75% of the peak throughput", quarter_gives_three_quarters),
    Sentence("3c", "It grows rapidly for a small number of requests and exhibits a slowdown later",
             decode_grows_then_slows),
    Sentence("3c", "the OPT-13B model peaks at 4k tokens/second, while the other models can go much higher",
             opt_peaks_lower),
    Sentence("3c", "the overall throughput is much lower compared with the prefill phase", decode_below_prefill),
    Sentence("4a", "the throughput [...] drops dramatically for a smaller chunk size", small_chunks_drop),
    Sentence("4a", "an 8K chunk size [...] does not reach the same throughput as the non-chunked",
             one_chunk_below_none),
    Sentence("4b", "the context window has minimal impact on the throughput", context_matters_little),
    Sentence("4b", "prioritizing the prefill phase vs. allowing mixed [...] minimal differences in favor of the latter",
             mixed_slightly_better),
    Sentence("4b", "the sharp drop in throughput when comparing the chunked-prefill strategy with the non-chunked",
             chunked_drops_sharply),
    Sentence("4b", "visible drop going from 4K to 512 chunks", smaller_chunks_lower),
    Sentence("4c", "OPT-13B model is about 1.7x slower than the Yarn-llama-2-7B model", opt_slower_by),
    Sentence("4c", "model architecture has minimal effect on throughput when using the chunked-prefill",
             architecture_matters_little_chunked),
    Sentence("5", "the 4K chunked-prefill strategy and continuous-batching fully utilize the model's context length in "
             "the beginning", first_passes_are_full),
    Sentence("5", "all approaches see a sharp drop later", use_drops_later),
    Sentence("8a", "the KV cache chunk size has minimal effect on recomputation overhead", recompute_ignores_blocks),
    Sentence("8a", "small chunks significantly increase the overhead of the swapping strategy", small_blocks_hurt_swap),
    Sentence("8a", "paged host memory is not fast enough at any KV cache chunk size", pageable_never_wins),
    Sentence("8a", "pinned host memory does so even at small chunk sizes (16 tokens or about 8 MB)",
             pinned_wins_at_sixteen),
    Sentence("8b", "an increasing gap [...] with the latter exhibiting a significant edge (almost 20%)",
             gap_grows_with_tokens),
    Sentence("9", "the overhead from recomputation and swapping increases for an increasing sequence length",
             overhead_grows_with_length),
    Sentence("9", "Swapping has a noticeable edge for very large fixed sequence lengths", swap_wins_at_long_fixed),
    Sentence("9", "nevertheless is noticeable in all configurations", swap_wins_everywhere),
    Sentence("9", "2x increase in number of enqueued requests results in at least 2x higher overhead",
             doubling_requests_doubles),
    Sentence("10a", "the overhead of both [...] decreases for an increasing spare capacity", more_memory_less_overhead),
    Sentence("10a", "swapping outperforms recomputations when the spare GPU capacity is scarce", swap_wins_when_scarce),
    Sentence("10a", "The situation is reversed for large KV cache capacity", recompute_wins_when_ample),
    Sentence("10b", "OPT-13B has the highest overhead [...] the Llama-3.1-8B model has the lowest",
             opt_highest_llama_lowest),
    Sentence("10b", "a clear advantage of swapping over recomputations in the case of OPT-13", swap_clear_for_opt),
    Sentence("11", "a bursty increase (reaching 6% at the peak) [...] (reaching 10% at the peak)", host_peaks),
    Sentence("11", "remains almost stable with a fluctuation between 80% and 100%", device_stays_full),
    Sentence("11", "a bursty increase [...] at the beginning [...], followed by a drop", host_bursts_at_first),
]


def verdicts(study: Study) -> Iterator[tuple[Sentence, bool, str]]:
    for sentence in SENTENCES:
        holds, figures = sentence.check(study)
        yield sentence, holds, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, help="what `kvdepot sim study` wrote; without it the program is run")
    parser.add_argument("--kvdepot", default="kvdepot")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if args.study:
        study = json.loads(args.study.read_text(encoding="utf-8"))
    else:
        study = json.loads(subprocess.run([args.kvdepot, "sim", "study"], check=True, capture_output=True).stdout)
    if args.markdown:
        print("| figure | the paper says | | predicted |\n|---|---|---|---|")
    count = 0
    for sentence, holds, figures in verdicts(study):
        verdict = "holds" if holds else "does not hold"
        if args.markdown:
            print(f"| {sentence.figure} | {sentence.text} | {verdict} | {figures} |")
        else:
            print(f"{verdict:<14} {sentence.figure:<4} {sentence.text}\n{'':<19} {figures}")
        count += holds
    print(f"\n{count} of {len(SENTENCES)} sentences hold.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
