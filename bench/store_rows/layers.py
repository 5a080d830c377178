"""One request for 54 records of SmolLM2-135M, in layer order against record by record."""

from __future__ import annotations

import statistics

from bench.harness import Bench, alternate
from bench.store_lab import SMOLLM, Run, StoreLab

ORDER = "layer_order_over_whole"
FIRST = "layer_0_share_of_time"
NAMES = (ORDER, FIRST)
RECORDS = 54    # 6,912 tokens


def run(lab: StoreLab, bench: Bench) -> None:
    if not bench.wants(*NAMES):
        return
    with bench.part(*NAMES):
        store = lab.filled(SMOLLM)
        layered: list[Run] = []

        def measure(what: str, index: int) -> Run:
            # Other records each time, so that nothing about their place is learnt.
            first = (2 * index + (what == "whole")) * RECORDS % (store.records - RECORDS)
            return lab.store_run(what, store.folder, SMOLLM, first=first, count=RECORDS)

        def in_layers(index: int) -> float:
            layered.append(measure("layers", index))
            return layered[-1].gb_per_s

        arms = {"layers": in_layers, "whole": lambda index: measure("whole", index).gb_per_s}
        rounds = bench.close_rounds()
        figures = alternate(arms, rounds, warmup=1, progress=bench.progress)
        lab.drop(SMOLLM)
        command = f"kvd_store_driver layers|whole --layers {SMOLLM.layers} --slab {SMOLLM.slab} --count {RECORDS}"
        bench.ratio(ORDER, ours=figures["layers"], theirs=figures["whole"], unit="GB/s", form="ours/theirs",
                    better="higher", goal=0.9, peer="whole records", tier="flash, verified", command=command)
        shares = [run.first_layer_seconds / run.seconds for run in layered[-rounds:]]
        bench.value(FIRST, statistics.median(shares), "share", better="lower", goal=0.25, ours=shares, command=command)
