"""The same prompt in a second engine process: each peer's time to first token over ours.

Per peer and round, with content that nobody has seen: our writer and the peer's writer compute and store it, then our
reader and the peer's reader, other processes, get it back. Ours are told of the depot's port and read its memory, as
engines on the depot's own host do by themselves; the peers as they recommend it. All four engines run the same vLLM
with the same arguments; a batch of 8,192 tokens, because ExampleConnector can't take a prompt in chunks.

What a reader says first must be what its writer said, who computed all of it, in more than half of the rounds, or the
row fails: bytes that are wrong would not say it. It need not be so in each, as another batch shape rounds differently.
"""

from __future__ import annotations

import time

from bench.depot import BYTES_LENT
from bench.engine_lab import BLOCK, GIB, Lab, ask_depot, expect_cached, expect_cold, expect_lent, ours
from bench.engine_process import Answer, Engine
from bench.harness import Bench, BenchError
from bench.peers import Peer, all_peers

SIZES = (512, 2048, 4096, 7000)
SIZES_QUICK = (512, 2048)
CHUNK_MAX = 256         # the coarsest chunk of a peer: a hit may be that much shorter than the prompt
KEPT = 12               # prompts of the largest size that fit into a store: all of five rounds, so that none evicts
COUNTER_DEADLINE_S = 5.0
QUICK_S = 90.0          # a peer with --quick on two AVX2 cores
BATCH = {"max_num_batched_tokens": 8192}


def run(lab: Lab, bench: Bench) -> None:
    peers = [peer for peer in all_peers() if bench.wants(*names(peer))]
    if peers:
        Comparison(lab, bench).measure(peers)


def names(peer: type[Peer]) -> list[str]:
    return [f"{peer.name}_over_depot_{tokens}" for tokens in SIZES]


def all_names() -> list[str]:
    return [name for peer in all_peers() for name in names(peer)]


class Comparison:
    """Our pair of engines stays for all peers."""

    def __init__(self, lab: Lab, bench: Bench) -> None:
        self.lab, self.bench = lab, bench
        self.sizes = SIZES_QUICK if bench.quick else SIZES
        self.rounds = bench.rounds(quick=1)
        # What each store has room for, ours as theirs: a prompt is read right after it was written.
        self.bytes_max = KEPT * max(self.sizes) * lab.model.kv_bytes_per_token
        self.depot = lab.depot("peers", pool_bytes=-(-self.bytes_max // GIB) * GIB)
        self.writer, self.reader = lab.engines(lab.spec("our-writer", ours(self.depot), engine=BATCH),
                                               lab.spec("our-reader", ours(self.depot), engine=BATCH))

    def measure(self, peers: list[type[Peer]]) -> None:
        for kind in peers:
            if not self.bench.has_time(QUICK_S, *names(kind)):
                continue
            work = self.bench.work / kind.name
            work.mkdir(parents=True)
            peer = kind(self.bench.build, work, self.lab.model.python, self.bytes_max, self.bench.progress)
            with self.bench.part(*names(kind), peer=kind.title):
                try:
                    peer.prepare()
                    peer.start()
                    with self.lab.scope():      # engines end before what they talk to
                        self._against(peer)
                finally:
                    peer.stop()

    def _against(self, peer: Peer) -> None:
        spec = {"python": peer.python, "env": peer.engine_env(), "engine": BATCH}
        theirs = self.lab.engines(self.lab.spec(f"{peer.name}-writer", peer.connector(), **spec),
                                  self.lab.spec(f"{peer.name}-reader", peer.connector(), **spec))
        for tokens in SIZES:
            name = f"{peer.name}_over_depot_{tokens}"
            if not self.bench.wants(name):
                continue
            if tokens not in self.sizes:
                self.bench.skip(name, "not measured with --quick", peer.title)
                continue
            with self.bench.part(name, peer=peer.title):
                self._size(name, peer, theirs, tokens)

    def _size(self, name: str, peer: Peer, theirs: list[Engine], tokens: int) -> None:
        mine, other, cold = [], [], {"depot": [], peer.name: []}
        right = {"depot": 0, peer.name: 0}
        for index in range(0 if tokens == min(self.sizes) else 1, self.rounds + 1):     # round 0 is the warm-up
            self.bench.progress.tick(f"{peer.name}: {tokens} tokens, round {index} of {self.rounds}")
            prompt = self.lab.prompt(f"{peer.name} {tokens} {index}", tokens)
            our_cold = expect_cold(self.writer.ask(prompt), "our writer")
            self.lab.settle(self.depot)
            their_cold = expect_cold(theirs[0].ask(prompt), f"writer of {peer.name}")
            self.lab.settle()
            peer.before_read()
            turns = [lambda: self._ours(prompt), lambda: self._theirs(peer, theirs[1], prompt)]
            answers: dict[int, Answer] = {}
            for turn in (0, 1) if index % 2 == 0 else (1, 0):
                answers[turn] = turns[turn]()
            if index:
                mine.append(answers[0].first_s)
                other.append(answers[1].first_s)
                cold["depot"].append(our_cold.first_s)
                cold[peer.name].append(their_cold.first_s)
                right["depot"] += answers[0].tokens == our_cold.tokens
                right[peer.name] += answers[1].tokens == their_cold.tokens
        for arm, count in right.items():
            if self.rounds > 1 and count * 2 <= self.rounds:
                raise BenchError(f"{arm}: the first token was the computed one in {count} of {self.rounds} rounds")
        self.bench.ratio(name, ours=mine, theirs=other, unit="s", form="theirs/ours", better="higher", goal=1.0,
                         peer=peer.title, command=self.depot.command, our_tier="pool (DRAM), pooled",
                         their_tier=peer.tier, cold_s=cold, right_tokens=right)

    def _ours(self, prompt: list[int]) -> Answer:
        self.lab.settle()
        blocks, lent = len(prompt) // BLOCK, self.depot.metric(BYTES_LENT)
        answer = ask_depot(self.depot, self.reader, prompt, blocks * BLOCK - 1, "depot")
        expect_lent(self.lab, self.depot, lent, blocks * BLOCK)
        return answer

    def _theirs(self, peer: Peer, reader: Engine, prompt: list[int]) -> Answer:
        """A hit counts when the engine got the tokens from outside and, where the peer has one, its own counter has
        grown."""
        before = reader.external_hits(), peer.hits()
        self.lab.settle()
        answer = expect_cached(reader.ask(prompt), len(prompt) - CHUNK_MAX, peer.name)
        grown = reader.external_hits() - before[0]
        if grown < len(prompt) - CHUNK_MAX:
            raise BenchError(f"{peer.name}: {grown:.0f} tokens of {len(prompt)} came from it")
        if before[1] is not None:
            end = time.monotonic() + COUNTER_DEADLINE_S     # counters may lag behind a little
            while not peer.hits() > before[1]:
                if time.monotonic() > end:
                    raise BenchError(f"{peer.name}: its own counter of hits has not moved")
                time.sleep(0.1)
        return answer
