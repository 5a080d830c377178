"""A decoder of Llama's shape with random weights in PyTorch, for timing passes on a GPU: bench/gpu_passes.py and
bench/gpu_load.py. One thread.

Layers are what engines run: fused QKV, rotary embedding, grouped attention over a KV cache, SwiGLU; logits of each
sequence's last token only. The pieces between matrix products are fused by torch.compile. KV lies as an engine's does,
[token, kv_head, head_dim] bf16, K and V apart.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

WARM_RUNS = 3
SECONDS_A_CASE = 0.4
RUNS = (7, 30)      # least and most
FIRST_TOKENS_SEED = 1


@dataclass(frozen=True)
class Shape:
    """What a Hugging Face config.json says of a model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed: int
    vocabulary: int
    tied: bool

    @classmethod
    def read(cls, path: Path) -> Shape:
        config = json.loads(path.read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return cls(path.stem, config["num_hidden_layers"], config["hidden_size"], heads, config["num_key_value_heads"],
                   config.get("head_dim", config["hidden_size"] // heads), config["intermediate_size"],
                   config["vocab_size"], config.get("tie_word_embeddings", False))

    @property
    def kv_token_bytes(self) -> int:
        """K and V of all layers in 16 bits."""
        return self.layers * self.layer_kv_token_bytes

    @property
    def layer_kv_token_bytes(self) -> int:
        return 2 * self.kv_heads * self.head_dim * 2


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return norm(total, weight), total


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [sequence, token, head, dim]; cos and sin: [token, dim / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def gate(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


class Pieces:
    """The functions above, compiled where that works."""

    def __init__(self, compiled: bool = True) -> None:
        torch._dynamo.config.cache_size_limit = 64      # batches of one and others, two models
        wrap = (lambda f: torch.compile(f, dynamic=True)) if compiled else (lambda f: f)
        self.norm, self.add_norm, self.rotate, self.gate = map(wrap, (norm, add_norm, rotate, gate))


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """FlashAttention 2 of PyTorch: its causal mask ends with the last key, so cached tokens come before. All
    [sequence, head, token, dim]; fewer KV heads than query heads."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def cudnn_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
    return found[0], found[1].reshape(q.shape[:3])


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """cuDNN's attention. Its causal mask begins with the first key: what is cached is attended to apart, without a
    mask, and the two are added by their weights."""
    cached = k.shape[2] - q.shape[2]
    if not causal or cached == 0:
        return cudnn_one(q, k, v, causal)[0]
    old, old_weight = cudnn_one(q, k[:, :, :cached], v[:, :, :cached], False)
    new, new_weight = cudnn_one(q, k[:, :, cached:], v[:, :, cached:], True)
    share = torch.sigmoid(old_weight - new_weight).unsqueeze(-1)
    return (old * share + new * (1 - share)).to(q.dtype)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """In fp32, for comparison, and where there is no GPU."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.float().repeat_interleave(groups, dim=1) for t in (k, v))
    scores = q.float() @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if causal:
        n, m = q.shape[2], k.shape[2]
        scores += torch.full((n, m), float("-inf"), device=q.device).triu(m - n + 1)
    return (scores.softmax(-1) @ v).to(q.dtype)


ATTENTIONS: dict[str, Callable[..., torch.Tensor]] = {"flash": flash, "cudnn": cudnn, "plain": plain}
# Cached tokens, new ones, whether masked.
ATTENTION_CASES = {"whole": (0, 192, True), "behind": (320, 192, True), "decode": (512, 4, False)}


def usable_attentions(shape: Shape, device: str) -> dict[str, list[str]]:
    """Those that give what `plain` gives: for whole prompts, for tokens behind cached ones, and for decodes."""
    if device == "cpu":
        return {kind: ["plain"] for kind in ATTENTION_CASES}
    good: dict[str, list[str]] = {}
    for kind, (cached, new, causal) in ATTENTION_CASES.items():
        q = torch.randn(2, new, shape.heads, shape.head_dim, device=device, dtype=torch.bfloat16)
        kv = torch.randn(2, 2, cached + new, shape.kv_heads, shape.head_dim, device=device, dtype=torch.bfloat16)
        args = (q.transpose(1, 2), kv[0].transpose(1, 2), kv[1].transpose(1, 2), causal)
        right = plain(*args).float()
        for name in ("flash", "cudnn"):
            try:
                off = ((ATTENTIONS[name](*args).float() - right).norm() / right.norm()).item()
                print(f"attention {name}, {kind}: differs by {off:.1e} from fp32", flush=True)
                if off < 1e-2:
                    good.setdefault(kind, []).append(name)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                print(f"attention {name}, {kind}: not usable: {str(error).splitlines()[0]}", flush=True)
        if kind not in good:
            raise SystemExit(f"no attention of this PyTorch is right for {kind}")
    return good


def attention_kind(tokens: int, cached: int) -> str:
    return "decode" if tokens == 1 else "behind" if cached else "whole"


class Model:
    """The decoder. Memory of weights: 2 bytes a parameter. `fill` gives layers of KV by itself."""

    def __init__(self, shape: Shape, pieces: Pieces, device: str = "cuda", positions: int = 34_000) -> None:
        self.shape = shape
        self.pieces = pieces
        self.device = device
        torch.manual_seed(FIRST_TOKENS_SEED)
        qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.embedding = self._random(shape.vocabulary, shape.hidden)
        self.head = self.embedding if shape.tied else self._random(shape.vocabulary, shape.hidden)
        self.layers = [(self._random(qkv, shape.hidden), self._random(shape.hidden, shape.heads * shape.head_dim),
                        self._random(2 * shape.feed, shape.hidden), self._random(shape.hidden, shape.feed),
                        self._ones(), self._ones()) for _ in range(shape.layers)]
        self.last_norm = self._ones()
        rates = 500_000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
        angles = torch.arange(positions, device=device).float()[:, None] * rates
        self.cos, self.sin = angles.cos(), angles.sin()

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, device=self.device, dtype=torch.bfloat16) * columns ** -0.5)

    def _ones(self) -> torch.Tensor:
        return torch.ones(self.shape.hidden, device=self.device, dtype=torch.bfloat16)

    def layer(self, number: int, x: torch.Tensor, residual: torch.Tensor | None, kv: torch.Tensor, cached: int,
              attention: str) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [sequence, token, hidden]; kv: [k|v, sequence, token, kv_head, dim], of which `cached` are there."""
        s, (sequences, tokens, _) = self.shape, x.shape
        qkv, out, up, down, norm_in, norm_mid = self.layers[number]
        if residual is None:
            y, residual = self.pieces.norm(x, norm_in), x
        else:
            y, residual = self.pieces.add_norm(x, residual, norm_in)
        q, k, v = F.linear(y, qkv).view(sequences, tokens, -1, s.head_dim).split((s.heads, s.kv_heads, s.kv_heads), 2)
        turned = self.cos[cached:cached + tokens], self.sin[cached:cached + tokens]
        q = self.pieces.rotate(q, *turned)
        kv[0, :, cached:cached + tokens] = self.pieces.rotate(k, *turned)
        kv[1, :, cached:cached + tokens] = v
        keys, values = (kv[i, :, :cached + tokens].transpose(1, 2) for i in (0, 1))
        if tokens == 1:     # a group's query heads as rows of one matrix: the KV of a head is read once
            q = q.reshape(sequences, s.kv_heads, s.heads // s.kv_heads, s.head_dim)
            a = ATTENTIONS[attention](q, keys, values, False).reshape(sequences, 1, -1)
        else:
            a = ATTENTIONS[attention](q.transpose(1, 2), keys, values, True).transpose(1, 2).reshape(
                sequences, tokens, -1)
        y, residual = self.pieces.add_norm(F.linear(a, out), residual, norm_mid)
        return F.linear(self.pieces.gate(F.linear(y, up)), down), residual

    def finish(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The next token of each sequence."""
        y, _ = self.pieces.add_norm(x[:, -1:].contiguous(), residual[:, -1:].contiguous(), self.last_norm)
        return F.linear(y, self.head).argmax(-1)

    def run(self, tokens: torch.Tensor, kv: list[torch.Tensor], cached: int, attention: str) -> torch.Tensor:
        """A pass of [sequence, token] behind `cached` tokens of each; `kv` of each layer."""
        x, residual = F.embedding(tokens, self.embedding), None
        for number, memory in enumerate(kv):
            x, residual = self.layer(number, x, residual, memory, cached, attention)
        return self.finish(x, residual)

    def memory(self, sequences: int, tokens: int) -> list[torch.Tensor]:
        """KV of each layer with random content."""
        s = self.shape
        return [torch.randn(2, sequences, tokens, s.kv_heads, s.head_dim, device=self.device, dtype=torch.bfloat16)
                for _ in range(s.layers)]

    def tokens(self, sequences: int, count: int) -> torch.Tensor:
        return torch.randint(self.shape.vocabulary, (sequences, count), device=self.device)


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """`run` as a CUDA graph: a replay launches all its kernels at once, as engines do. It is run twice before. What it
    reads lives as long as the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keep: object = run) -> None:
        graph.replay()

    return replay


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: median, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))


def timed(run: Callable[[], object], seconds: float = SECONDS_A_CASE, runs: tuple[int, int] = RUNS) -> Timing:
    """By events of the GPU around each run, behind some that are not counted."""
    pairs = []

    def once() -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return 1e-3 * start.elapsed_time(stop)

    for _ in range(WARM_RUNS):
        one = once()
    for _ in range(max(runs[0], min(runs[1], int(seconds / one)))):
        pairs.append(once())
    return Timing.of(pairs)
