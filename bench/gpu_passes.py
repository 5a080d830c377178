"""Times passes of a Llama-shaped model with random weights on this GPU: prefill, also behind cached tokens, and decode.

    python3 -m bench.gpu_passes data/h100/llama-3-8b.json --out passes.csv [--launched] [--quick]

Needs PyTorch with CUDA; cases that do not fit into the GPU's memory are left out. Each pass is one CUDA graph, so that
the time of launches is not in it (an engine replays graphs for decodes; long prefills hide launches behind compute).
With --launched a few passes are launched kernel by kernel instead, to see what that costs. A line of the CSV: median,
10th and 90th percentile in seconds, then what the pass held, as `kvdepot sim calibrate` counts it: prefill tokens,
pairs of attention, decodes, cached tokens that the decodes read. bench/gpu_tables.py compares the lines with what
`kvdepot plan` and `kvdepot sim` expect.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path

COLUMNS = ("seconds", "low", "high", "runs", "prefill_tokens", "cached_tokens", "pairs", "decodes", "context_tokens",
           "attention")
PREFILLS = ((256, 0), (512, 0), (1024, 0), (2048, 0), (4096, 0), (8192, 0),
            (64, 1024), (64, 4096), (64, 16384), (64, 32768), (256, 1024), (256, 4096), (256, 8192), (256, 16384),
            (1024, 1024), (1024, 4096), (1024, 8192), (4096, 4096), (4096, 8192),
            (8192, 8192), (8192, 16384), (8192, 24576))
DECODES = tuple((batch, context) for context in (1024, 4096, 8192) for batch in (1, 8, 32, 128)) + ((128, 2048),)
LAUNCHED = ((1, 1, 1024), (32, 1, 1024), (1, 256, 0), (1, 1024, 0))     # sequences, tokens, cached: kernel by kernel
QUICK = (((256, 0), (64, 128)), ((1, 128), (4, 128)))
LEFT_FREE_BYTES = 6 << 30       # of the GPU's memory, for a pass's own tensors


def pairs(tokens: int, cached: int) -> int:
    """(query, key) pairs of causal attention."""
    return tokens * cached + tokens * (tokens + 1) // 2


def line(timing, sequences: int, tokens: int, cached: int, attention: str) -> list[str]:
    decodes, context = (sequences, cached) if tokens == 1 else (0, 0)
    if tokens == 1:
        tokens, cached = 0, 0
    count = pairs(tokens, cached)
    return [*(f"{s:.6g}" for s in (timing.median, timing.low, timing.high)), str(timing.runs), str(tokens), str(cached),
            str(count), str(decodes), str(decodes * context), attention]


def fits(shape, sequences: int, tokens: int) -> bool:
    import torch

    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 1 << 40
    return sequences * tokens * shape.kv_token_bytes + LEFT_FREE_BYTES < free


def best_attention(model, usable: dict[str, list[str]], sequences: int, tokens: int, cached: int) -> str:
    """The fastest for one layer of such a pass."""
    import torch

    from bench import gpu_model

    names = usable[gpu_model.attention_kind(tokens, cached)]
    if len(names) == 1:
        return names[0]
    s = model.shape
    q = torch.randn(sequences, tokens, s.heads, s.head_dim, device=model.device, dtype=torch.bfloat16).transpose(1, 2)
    if tokens == 1:
        q = q.reshape(sequences, s.kv_heads, -1, s.head_dim)
    kv = torch.randn(2, sequences, cached + tokens, s.kv_heads, s.head_dim, device=model.device, dtype=torch.bfloat16)
    args = (q, kv[0].transpose(1, 2), kv[1].transpose(1, 2), tokens > 1)
    took = {name: gpu_model.timed(lambda name=name: gpu_model.ATTENTIONS[name](*args), 0.02, (3, 10)).median
            for name in names}
    return min(took, key=took.get)


def one(model, usable: dict[str, list[str]], sequences: int, tokens: int, cached: int, launched: bool):
    """(time, attention) of a pass."""
    from bench import gpu_model

    kv = model.memory(sequences, cached + tokens)
    ids = model.tokens(sequences, tokens)
    attention = best_attention(model, usable, sequences, tokens, cached)

    def run() -> None:
        model.run(ids, kv, cached, attention)

    if model.device == "cpu":
        began = time.perf_counter()
        run()
        took = time.perf_counter() - began
        return gpu_model.Timing(took, took, took, 1), attention
    return gpu_model.timed(run if launched else gpu_model.captured(run)), attention


def lines(model, usable: dict[str, list[str]], cases, launched: bool) -> Iterator[list[str]]:
    import torch

    for sequences, tokens, cached in cases:
        what = f"  {sequences} x {tokens} behind {cached}"
        if not fits(model.shape, sequences, cached + tokens):
            print(f"{what}: does not fit", flush=True)
            continue
        with torch.inference_mode():
            timing, attention = one(model, usable, sequences, tokens, cached, launched)
        print(f"{what}: {1e3 * timing.median:.3f} ms ({1e3 * timing.low:.3f}-{1e3 * timing.high:.3f}), {attention}",
              flush=True)
        yield line(timing, sequences, tokens, cached, attention)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a Hugging Face config.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="few small passes; also without a GPU, to try it")
    parser.add_argument("--launched", action="store_true", help="a few passes, without CUDA graphs")
    parser.add_argument("--plain-pieces", action="store_true", help="no torch.compile")
    args = parser.parse_args()
    import torch

    from bench import gpu_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.quick:
        parser.error("there is no GPU here: only --quick works")
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'no GPU'}, PyTorch {torch.__version__}", flush=True)
    shape = gpu_model.Shape.read(args.config)
    model = gpu_model.Model(shape, gpu_model.Pieces(not args.plain_pieces), device)
    usable = gpu_model.usable_attentions(shape, device)
    prefills, decodes = QUICK if args.quick else (PREFILLS, DECODES)
    cases = [(1, *prefill) for prefill in prefills] + [(batch, 1, context) for batch, context in decodes]
    if args.launched:
        cases = LAUNCHED
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in lines(model, usable, cases, args.launched):
            writer.writerow(row)
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
