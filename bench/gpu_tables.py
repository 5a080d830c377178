"""What was recorded on an H100 (data/h100), beside what the step model expects: the tables of docs/results/gpu.md.

    python3 -m bench.gpu_tables [--device h100] [--catalogue FILE]

`fleet` is how `kvdepot sim run` and `plan`'s decode step count a pass: weights read once, launches, each token's and
each pair's FLOP/s, each cached token's bytes, all added (src/model/catalogue_engine.cc). `plan` is a prompt's time
there: tokens and pairs alone (src/model/deployment.cc). Both from the catalogue's entry of the device.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import harness

DATA = harness.ROOT / "data/h100"
DEVICES = harness.ROOT / "data/catalogue/devices.toml"
MODELS = ("llama-3-8b", "llama-1b")
ELEMENT_BYTES = 2       # of weights and KV
PEAK = 989e12           # FLOP/s of an H100's data sheet, bf16

Row = dict[str, str]


def read(name: str) -> list[Row]:
    with open(DATA / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Cost:
    """Of a model, as the catalogue counts it."""

    layers: int
    parameters: float           # what a token uses: all; a tied embedding counts once
    looked_up: float            # of these, the embedding, of which a token uses a row
    head: float                 # that of the logits: a pass needs it for a sequence's last token
    pair_flops: float
    kv_token_bytes: float

    @classmethod
    def of(cls, path: Path) -> Cost:
        c = json.loads(path.read_text(encoding="utf-8"))
        width, heads, size = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        layers, kv_heads = c["num_hidden_layers"], c["num_key_value_heads"]
        table = c["vocab_size"] * width
        layer = width * size * (2 * heads + 2 * kv_heads) + 3 * width * c["intermediate_size"]
        untied = 0 if c["tie_word_embeddings"] else table
        return cls(layers, layers * layer + table + untied, untied, table, 4 * layers * heads * size,
                   2 * layers * kv_heads * size * ELEMENT_BYTES)


@dataclass(frozen=True)
class Pass:
    """A line of a recording."""

    seconds: float
    tokens: float
    cached: float
    pairs: float
    decodes: float
    context: float

    @classmethod
    def of(cls, row: Row) -> Pass:
        return cls(*(float(row[name]) for name in ("seconds", "prefill_tokens", "cached_tokens", "pairs", "decodes",
                                                   "context_tokens")))

    @property
    def kind(self) -> str:
        if self.decodes:
            return "decode"
        if self.tokens < 1024:
            return "prefill of 256 or 512" if not self.cached else "64 or 256 behind a prefix"
        return "prefill of 1,024 and more" if not self.cached else "1,024 and more behind a prefix"


def device_entry(name: str, files: Iterable[Path]) -> dict:
    for path in files:
        with open(path, "rb") as file:
            for entry in tomllib.load(file)["device"]:
                if name in (entry["name"], *entry.get("aliases", ())):
                    return entry
    raise harness.BenchError(f"no device {name} in {', '.join(map(str, files))}")


class Expected:
    """Seconds of passes of one model on one device."""

    def __init__(self, cost: Cost, device: dict) -> None:
        flops = device["flops_per_s"]["bf16"] * device["compute_efficiency"]
        bandwidth = device["memory_bytes_per_s"] * device["memory_efficiency"]
        self.base = (cost.parameters * ELEMENT_BYTES / bandwidth + device["layer_s"] * cost.layers + device["step_s"])
        self.token = 2 * cost.parameters / flops
        self.pair = cost.pair_flops / flops
        self.context = cost.kv_token_bytes / bandwidth
        self.seq = device.get("seq_s", 0.0)

    def plan(self, p: Pass) -> float:
        """Of a prompt; decodes as `fleet`."""
        return self.token * p.tokens + self.pair * p.pairs if p.tokens else self.fleet(p)

    def fleet(self, p: Pass) -> float:
        return (self.base + self.token * p.tokens + self.pair * p.pairs + self.seq * p.decodes +
                self.context * p.context)

    def root(self, p: Pass) -> float:
        """As `kvdepot sim calibrate` adds weights and compute: the root of their squares."""
        return math.hypot(self.base, self.plan(p)) if p.tokens else self.fleet(p)


def passes(model: str) -> list[Pass]:
    """Of both recordings, each pass by the mean of the two."""
    both = zip(*(map(Pass.of, read(f"passes-{model}-{number}")) for number in (1, 2)), strict=True)
    return [Pass((a.seconds + b.seconds) / 2, a.tokens, a.cached, a.pairs, a.decodes, a.context) for a, b in both]


def errors(found: Iterable[Pass], expected: Callable[[Pass], float]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for p in found:
        out.setdefault(p.kind, []).append(expected(p) / p.seconds - 1)
    return out


def drift(model: str) -> list[float]:
    """The second recording over the first, less one."""
    return [float(b["seconds"]) / float(a["seconds"]) - 1
            for a, b in zip(read(f"passes-{model}-1"), read(f"passes-{model}-2"), strict=True)]


def flops_share(cost: Cost, p: Pass, peak: float) -> float:
    """Of a device's FLOP/s: what a prefill pass needs (logits of one token, no embedding) over what it took."""
    needed = 2 * (cost.parameters - cost.looked_up - cost.head) * p.tokens + 2 * cost.head + cost.pair_flops * p.pairs
    return needed / p.seconds / peak


def percent(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{100 * statistics.median(ordered):+.0f} % ({100 * ordered[0]:+.0f} to {100 * ordered[-1]:+.0f})"


def error_lines(device: dict) -> list[str]:
    """Expected over measured."""
    out = ["| model | passes | number | `plan` | fleet | root of the squares |", "|---|---|---|---|---|---|"]
    for model in MODELS:
        expected = Expected(Cost.of(DATA / f"{model}.json"), device)
        columns = [errors(passes(model), rule) for rule in (expected.plan, expected.fleet, expected.root)]
        out += [f"| {model} | {kind} | {len(columns[0][kind])} | " +
                " | ".join(percent(column[kind]) for column in columns) + " |" for kind in columns[0]]
    return out


def pass_lines(device: dict) -> list[str]:
    out = ["| model | pass | ms in the two recordings | `plan` ms | fleet ms | share of 989 TFLOP/s |",
           "|---|---|---|---|---|---|"]
    for model in MODELS:
        cost = Cost.of(DATA / f"{model}.json")
        expected = Expected(cost, device)
        for p, a, b in zip(passes(model), read(f"passes-{model}-1"), read(f"passes-{model}-2"), strict=True):
            what = (f"{p.decodes:.0f} x decode at {p.context / p.decodes:,.0f}" if p.decodes else
                    f"{p.tokens:,.0f} tokens" + (f" behind {p.cached:,.0f}" if p.cached else ""))
            share = "" if p.decodes else f"{flops_share(cost, p, PEAK):.2f}"
            out.append(f"| {model} | {what} | {1e3 * float(a['seconds']):.2f}, {1e3 * float(b['seconds']):.2f} | "
                       f"{1e3 * expected.plan(p):.2f} | {1e3 * expected.fleet(p):.2f} | {share} |")
    return out


@dataclass(frozen=True)
class Load:
    """A line of data/h100/loads-*.csv."""

    kind: str
    transport: str
    clients: int
    block_tokens: int
    tokens: int
    size: float
    first: float
    median: float
    low: float
    high: float
    host: float
    depot_cpu: float
    client_cpu: float

    @property
    def gb_per_s(self) -> float:
        return 1e-9 * self.size / self.median


def loads(number: int) -> list[Load]:
    return [Load(r["kind"], r["transport"], int(r["clients"]), int(r["block_tokens"]), int(r["tokens"]),
                 *(float(r[name]) for name in ("bytes", "first", "median", "low", "high", "host", "depot_cpu",
                                               "client_cpu"))) for r in read(f"loads-{number}")]


def prefill_s(found: Iterable[Load]) -> dict[int, float]:
    return {row.tokens: row.median for row in found if row.kind == "prefill"}


def load_lines(number: int, kind: str) -> list[str]:
    """`kind` by prefix: ms, GB/s, and how many times as long computing the prefix takes."""
    found = loads(number)
    computed = prefill_s(found)
    out = ["| transport | clients | block | " + " | ".join(f"{tokens:,} tokens" for tokens in computed) + " |",
           "|---|---|---|" + "---|" * len(computed)]
    cells: dict[tuple, list[str]] = {}
    for row in found:
        if row.kind == kind:
            cells.setdefault((row.transport, row.clients, row.block_tokens), []).append(
                f"{1e3 * row.median:.1f} ({1e3 * row.low:.1f}-{1e3 * row.high:.1f}), {row.gb_per_s:.1f} GB/s, "
                f"{computed[row.tokens] / row.median:.2f}x")
    return out + ["| " + " | ".join([*map(str, arm), *row]) + " |" for arm, row in cells.items()]


def gpu_lines(number: int) -> list[str]:
    """What has no depot in it."""
    found = loads(number)
    out = ["| prefix | computed, ms | copied from pinned memory, ms | 64 tokens behind it, ms |", "|---|---|---|---|"]
    for tokens in prefill_s(found):
        row = {r.kind: r for r in found if r.tokens == tokens and r.kind in ("prefill", "copy", "suffix")}
        out.append(f"| {tokens:,} | " + " | ".join(
            f"{1e3 * row[kind].median:.1f} ({1e3 * row[kind].low:.1f}-{1e3 * row[kind].high:.1f})"
            for kind in ("prefill", "copy", "suffix")) + " |")
    return out


def tables(device: dict) -> list[list[str]]:
    """Those that the page has."""
    return [error_lines(device), pass_lines(device), gpu_lines(1), load_lines(1, "load"), load_lines(1, "pipeline"),
            load_lines(1, "serial"), load_lines(2, "load")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="h100", help="of the catalogue [h100]")
    parser.add_argument("--catalogue", type=Path, help="a file with entries of your own")
    args = parser.parse_args()
    files = [DEVICES] if args.catalogue is None else [args.catalogue, DEVICES]
    for table in tables(device_entry(args.device, files)):
        print("\n".join(table), end="\n\n")
    for model in MODELS:
        print(f"second recording over the first, {model}: {percent(drift(model))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
