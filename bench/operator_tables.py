"""Efficiencies of GPUs and all-reduces over NVLink, from operator timings that the Vidur project published.

    python3 -m bench.operator_tables                  # what data/catalogue has of them, and how it was derived
    python3 -m bench.operator_tables --compact DIR    # makes data/vidur from Vidur's data/profiling tables in DIR

An efficiency is what the matrix products of one layer would take at the data sheet's peak over what all the operators
of the table take: projections, norms, rotary embedding, activation, residual. Attention and collectives are not in
the tables. FLOP/s over passes of at least 1,024 tokens, bytes/s (each weight read once) over those of at most 8; median
over the models at one and two GPUs, which keep matrices large.

All-reduces: the latency is the lowest decile of messages up to 256 KiB. The others are up to six times as long at the
same size: they were launched one by one from the CPU, and the first GPU's kernel waits for the other's launch, which
an engine that replays graphs does not. The bandwidth is the slope of a line through messages of 8 MiB and more.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from bench import harness

DATA = harness.ROOT / "data/vidur"
PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
OTHERS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")
ELEMENT_BYTES = 2       # the tables' precision: 16 bits
FEW_TOKENS = (1, 2, 4, 8)
MANY_TOKENS = range(1024, 4097, 512)
FEW_GPUS = (1, 2)
SMALL_BYTES = 256 * 1024
LARGE_BYTES = 8 * 1024 * 1024
# Data sheets, as in data/catalogue/devices.toml: FLOP/s in 16 bits, bytes/s.
PEAKS = {"h100": (989e12, 3.35e12), "a100": (312e12, 2.039e12)}

Row = dict[str, str]


def read(name: str) -> list[Row]:
    with open(DATA / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def layer_parameters(row: Row) -> float:
    """Of the four matrix products of a layer, one GPU's share."""
    width, heads, kv_heads = float(row["width"]), float(row["heads"]), float(row["kv_heads"])
    attention = width * width * (2 + 2 * kv_heads / heads)
    return (attention + 3 * width * float(row["feed_width"])) / float(row["gpus"])


def layer_s(row: Row, *, products_only: bool = False) -> float:
    return 1e-3 * (float(row["products_ms"]) + (0 if products_only else float(row["others_ms"])))


def compute_share(row: Row, **how: bool) -> float:
    flops = 2 * layer_parameters(row) * int(row["tokens"])
    return flops / layer_s(row, **how) / PEAKS[row["device"]][0]


def memory_share(row: Row, **how: bool) -> float:
    return ELEMENT_BYTES * layer_parameters(row) / layer_s(row, **how) / PEAKS[row["device"]][1]


def chosen(rows: Iterable[Row], device: str, tokens: Iterable[int], gpus: Iterable[int]) -> list[Row]:
    return [r for r in rows if r["device"] == device and int(r["tokens"]) in tokens and int(r["gpus"]) in gpus]


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * len(ordered))]


def efficiencies(device: str) -> dict[str, float]:
    """Medians, and the 95th percentile of the deviation from them at one to eight GPUs."""
    rows = read("operators")
    found: dict[str, float] = {}
    for name, share, tokens in (("compute", compute_share, MANY_TOKENS), ("memory", memory_share, FEW_TOKENS)):
        few = chosen(rows, device, tokens, FEW_GPUS)
        found[name] = statistics.median(map(share, few))
        found[f"{name} of products"] = statistics.median(share(r, products_only=True) for r in few)
        every = chosen(rows, device, tokens, (1, 2, 4, 8))
        found[f"{name} error"] = percentile((abs(share(r) / found[name] - 1) for r in every), 0.95)
    return found


def points(device: str, gpus: int) -> list[tuple[float, float]]:
    """Bytes and seconds of the all-reduces between so many GPUs of one machine."""
    return [(float(r["bytes"]), 1e-3 * float(r["median_ms"])) for r in read("all_reduce")
            if r["device"] == device and int(r["gpus"]) == gpus]


def all_reduce(device: str, gpus: int = 2) -> dict[str, float]:
    """Latency in seconds, and bytes/s of a message between so many GPUs."""
    known = points(device, gpus)
    large = [(b, s) for b, s in known if b >= LARGE_BYTES]
    slope = statistics.linear_regression([b for b, _ in large], [s for _, s in large]).slope
    small = [s for b, s in known if b <= SMALL_BYTES]
    return {"latency_s": percentile(small, 0.1), "bytes_per_s": 1 / slope, "small median s": statistics.median(small)}


def predicted_s(link: dict[str, float], gpus: int, size: float) -> float:
    """A ring of so many GPUs on a link that was measured between two: each sends 2 (n-1)/n of the message."""
    return link["latency_s"] + 2 * (gpus - 1) / gpus * size / link["bytes_per_s"]


def compact(folder: Path) -> None:
    """Vidur's tables as data/vidur keeps them: the token counts and sizes that are used here, medians only."""
    operators = []
    for path in sorted(folder.glob("mlp_*.csv.gz")):
        device, model = re.fullmatch(r"mlp_([a-z0-9]+)_(.+)\.csv\.gz", path.name).groups()
        with gzip.open(path, "rt") as file:
            for r in csv.DictReader(file):
                if int(r["num_tokens"]) not in (*FEW_TOKENS, *MANY_TOKENS):
                    continue
                ms = [sum(float(r[f"time_stats.{name}.median"]) for name in names) for names in (PRODUCTS, OTHERS)]
                operators.append([device, model, r["n_head"], r["n_kv_head"], r["n_embd"], r["n_expanded_embd"],
                                  r["num_tensor_parallel_workers"], r["num_tokens"], *(f"{t:.4f}" for t in ms)])
    reduces = []
    for path in sorted(folder.glob("all_reduce_*_dgx.csv.gz")):
        device = path.name.split("_")[2]
        with gzip.open(path, "rt") as file:
            rows = [r for r in csv.DictReader(file) if r["num_workers"] == r["devices_per_node"]]
        for gpus in sorted({int(r["num_workers"]) for r in rows}):
            mine = sorted((int(r["size"]), r["time_stats.all_reduce.median"]) for r in rows
                          if int(r["num_workers"]) == gpus)
            kept = [m for i, m in enumerate(mine) if m[0] <= SMALL_BYTES or i % 8 == 0]
            reduces += [[device, gpus, size, f"{float(ms):.4f}"] for size, ms in kept]
    for name, header, rows in (
            ("operators", "device,model,heads,kv_heads,width,feed_width,gpus,tokens,products_ms,others_ms", operators),
            ("all_reduce", "device,gpus,bytes,median_ms", reduces)):
        with open(DATA / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            file.write(header + "\n")
            csv.writer(file, lineterminator="\n").writerows(rows)


def report() -> None:
    print("| device | of | median | matrix products alone | 95th percentile of the deviation, 1 to 8 GPUs |\n"
          "|---|---|---|---|---|")
    for device in PEAKS:
        found = efficiencies(device)
        for name, unit in (("compute", "FLOP/s"), ("memory", "bytes/s")):
            print(f"| {device} | {unit} | {found[name]:.3f} | {found[f'{name} of products']:.3f} | "
                  f"{100 * found[f'{name} error']:.0f} % |")
    print("\n| device | GPUs | latency us | median of small ones us | GB/s | by the link of two: large ones off by |\n"
          "|---|---|---|---|---|---|")
    for device in PEAKS:
        two = all_reduce(device)
        for gpus in (2, 4, 8):
            found = all_reduce(device, gpus)
            off = statistics.median(predicted_s(two, gpus, b) / s - 1 for b, s in points(device, gpus)
                                    if b >= LARGE_BYTES)
            print(f"| {device} | {gpus} | {1e6 * found['latency_s']:.0f} | {1e6 * found['small median s']:.0f} | "
                  f"{1e-9 * found['bytes_per_s']:.0f} | {100 * off:+.0f} % |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compact", type=Path, metavar="DIR", help="Vidur's mlp_*.csv.gz and all_reduce_*.csv.gz")
    args = parser.parse_args()
    if args.compact:
        compact(args.compact)
    report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
