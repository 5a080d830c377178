"""The sentences of the IPDPS'25 paper that state an ordering or a trend, in the paper's order, each with its check.

A sentence that the paper repeats in its introduction, key observations or conclusions is cited once; what it says of
other people's systems and measurements (sections I and III) is left out. Sentences that are cited and have no check
say why they are not simulated, those whose check has its answer before anything is simulated what it follows from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import study_checks as checks
from bench import study_pass_checks as passes
from bench.study_checks import Study, Verdict


@dataclass(frozen=True)
class Sentence:
    figure: str  # or section
    text: str
    check: Callable[[Study], Verdict] | None  # None: not simulated
    why_not: str = ""
    given: str = ""  # what the check's answer follows from, where it can't depend on what is simulated: no evidence


# Of checks whose answer is there before anything is simulated.
TABLE_1 = "from table I and the measured runs' blocks alone"
BLOCK_COUNTS = "from counted blocks alone"
LINEAR = "the step model is linear in cached tokens, so that only their sum counts"
ONE_OF_32 = "a 32nd of any time is less than the rest of it"

INSIDE = "the step model knows how long a pass reads the cache, not when inside it"

SENTENCES = [
    Sentence("I", "GPU memory is primarily consumed by model weights and the remainder is used by the KV cache",
             passes.weights_take_most, given=TABLE_1),
    Sentence("I", "running a full forward pass to generate a single token [...] under-utilizes the potential of modern "
             "GPUs", passes.one_token_wastes_the_device),
    Sentence("I", "GPU memory is much faster than host memory", passes.device_memory_is_faster),
    Sentence("I", "the space needed by KV pairs grows linearly with sequence length and batch sizes",
             passes.cache_grows_with_tokens),
    Sentence("II", "The access patterns shift from write-intensive during the prefill phase to read-intensive (with "
             "occasional writes) during the decode phase", passes.writes_then_reads),
    Sentence("II", "if the number of tokens in the prompt is small, this would also lead to GPU under-utilization",
             passes.short_prompts_waste_the_device),
    Sentence("II", "Some strategies prioritize the prefill phases [...] at the expense of potential imbalance during "
             "the prefill phases", passes.prefill_first_is_imbalanced),
    Sentence("II", "Other strategies mix [...] the prefill phases may stretch over more forward passes",
             passes.mixed_takes_more_prompt_passes),
    Sentence("II", "increasing the risk of stragglers that slow down some forward passes",
             passes.mixed_has_longer_passes),
    Sentence("II", "on the upside, the load balancing of the initial forward passes may be better",
             passes.mixed_balances),
    Sentence("II", "[chunking] results in better load balancing when batching prefill phases together",
             passes.chunks_balance),
    Sentence("II", "at the expense of stretching the prefill phases over more forward passes",
             passes.chunks_take_more_passes),
    Sentence("II", "the better the load balancing is, the more concurrent accesses to the KV cache", None, INSIDE),
    Sentence("II", "under certain circumstances, it may be faster to recompute some K^T and V matrices instead of "
             "using swapping", passes.recompute_can_be_faster),
    Sentence("V-C", "using GQA wherein 4 attention heads share a key-value head to save KV cache memory",
             passes.shared_heads_save_memory, given=TABLE_1),
    Sentence("3a", "the peak throughput is reached when the context window is fully filled",
             checks.full_window_is_best),
    Sentence("3a", "There is minimal difference in terms of how many requests are used to fill the context window",
             checks.request_count_matters_little),
    Sentence("3a", "the token throughput is close to peak also when the context window is only half full",
             checks.half_window_is_near_peak),
    Sentence("3b", "the total number of tokens is the most impactful factor that determines the throughput",
             checks.tokens_decide),
    Sentence("3b", "even at 25% utilization we reach 75% of the peak throughput", checks.quarter_gives_three_quarters),
    Sentence("3b", "the same observations hold for other models", checks.others_follow_tokens),
    Sentence("3c", "there is no difference between fixed-sized requests and variable-sized inference requests",
             passes.decode_ignores_the_mix, given=LINEAR),
    Sentence("3c", "the throughput is solely affected by the batch size", checks.batch_alone_decides),
    Sentence("3c", "It grows rapidly for a small number of requests and exhibits a slowdown later",
             checks.decode_grows_then_slows),
    Sentence("3c", "the OPT-13B model peaks at 4k tokens/second, while the other models can go much higher",
             checks.opt_peaks_lower),
    Sentence("3c", "the overall throughput is much lower compared with the prefill phase", checks.decode_below_prefill),
    Sentence("3c", "close to peak [...] even when the context window of the forward pass is significantly "
             "under-utilized [...] A similar observation holds for the decode phase", checks.decode_saturates_early),
    Sentence("3", "KV caching performance is not affected by such differences", None,
             "the paper has no measure of it beside the throughput"),
    Sentence("4a", "With a smaller chunk size, the number of forward passes increases",
             checks.smaller_chunks_more_passes),
    Sentence("4a", "the throughput [...] drops dramatically for a smaller chunk size", checks.small_chunks_drop),
    Sentence("4a", "an 8K chunk size [...] does not reach the same throughput as the non-chunked",
             checks.one_chunk_below_none),
    Sentence("4a", "the more efficient FlashAttention2 algorithm [...] for processing non-chunked requests, while "
             "chunked-prefill requests are limited to a less efficient implementation", passes.other_kernel_is_slower),
    Sentence("4b", "the context window has minimal impact on the throughput", checks.context_matters_little),
    Sentence("4b", "prioritizing the prefill phase vs. allowing mixed [...] minimal differences in favor of the "
             "latter", checks.mixed_slightly_better),
    Sentence("4b", "the sharp drop in throughput when comparing the chunked-prefill strategy with the non-chunked",
             checks.chunked_drops_sharply),
    Sentence("4b", "visible drop going from 4K to 512 chunks", checks.smaller_chunks_lower),
    Sentence("4b", "more important is the impact of the flash-attention optimizations",
             checks.kernel_matters_more_than_passes),
    Sentence("4c", "model architecture impacts the throughput when using continuous-batching approach",
             checks.architecture_matters_continuous),
    Sentence("4c", "OPT-13B model is about 1.7x slower than the Yarn-llama-2-7B model", checks.opt_slower_by),
    Sentence("4c", "model architecture has minimal effect on throughput when using the chunked-prefill",
             checks.architecture_matters_little_chunked),
    Sentence("4c", "chunking of the prefill phase has a significant negative impact on inference throughput "
             "especially when the forward pass is fast", checks.fast_models_lose_more),
    Sentence("5", "the 4K chunked-prefill strategy and continuous-batching fully utilize the model's context length "
             "in the beginning", checks.first_passes_are_full),
    Sentence("5", "all approaches see a sharp drop later", checks.use_drops_later),
    Sentence("5", "the unnecessary overhead of using chunking strategies (even with optimal attention implementations) "
             "when the decode phases dominate the forward passes", passes.chunking_costs_decodes),
    Sentence("6a", "most of the writes happen in the prefill phase in parallel", passes.most_writes_in_prefill),
    Sentence("6a", "during the decode phases, incremental computations on a single token result in much less write "
             "pressure overall, but still under concurrency", passes.decodes_write_little),
    Sentence("6a", "there are significant periods of no KV cache accesses even outside of the gaps",
             passes.cache_is_mostly_idle),
    Sentence("6b", "no read accesses happen during the prefill phase", passes.prefill_reads_nothing),
    Sentence("6b", "the read pattern repeats not only from one forward pass to another", passes.reads_repeat),
    Sentence("6b", "but is also highly predictable within each forward pass", None, INSIDE),
    Sentence("6b", "each inference request accesses the cache blocks in increasing order of IDs", passes.blocks_ascend),
    Sentence("6b", "never switches back and forth between different cache chunks", None, INSIDE),
    Sentence("6b", "there is less read parallelism within the same inference request compared with the write pattern",
             None, INSIDE),
    Sentence("6b", "there is full parallelism across different inference requests", passes.all_requests_read_together),
    Sentence("6b", "there is a significant lag between the K accesses and V accesses", None, INSIDE),
    Sentence("6b", "Each decode step needs to read all the previously computed keys and tokens for each request",
             passes.decodes_read_all_that_is_cached),
    Sentence("6b", "the time cost of a decode step is about 25ms, which is long enough for [prefetching] the KV cache "
             "of the next step in advance", passes.prefetch_fits_in_a_pass),
    Sentence("6", "even larger periods of inactivity are observed between the phases of the same block",
             passes.longer_gaps_between_phases, given=ONE_OF_32),
    Sentence("6", "the cache chunks are immutable for long periods of time", passes.blocks_stay_as_they_are),
    Sentence("7", "current implementations handle cache evictions at the granularity of a full request. This is "
             "suboptimal if the inference requests chosen to continue overflow the KV cache capacity only by a small "
             "amount", passes.partial_evictions_help),
    Sentence("VI-C", "many small GPU-host transfers achieve a lower I/O throughput compared with fewer larger "
             "transfers", passes.small_copies_are_slower),
    Sentence("VI-C", "[pageable] provides slower I/O transfer throughput [...] [pinned] allows faster I/O transfers",
             passes.pinned_is_faster),
    Sentence("8a", "the KV cache [...] chunk size has minimal effect on recomputation overhead",
             checks.recompute_ignores_blocks),
    Sentence("8a", "small chunks significantly increase the overhead of the swapping strategy",
             checks.small_blocks_hurt_swap),
    Sentence("8a", "both pageable and pinned host memory suffer from similar decrease in performance for decreasing "
             "chunk sizes", checks.pinned_and_pageable_suffer_alike),
    Sentence("8a", "paged host memory is not fast enough at any KV cache chunk size", checks.pageable_never_wins),
    Sentence("8a", "pinned host memory does so even at small chunk sizes (16 tokens or about 8 MB)",
             checks.pinned_wins_at_sixteen),
    Sentence("8b", "both strategies experience an increasing slowdown for an increasing quantity of cached data "
             "being evicted", checks.slower_with_more_evicted),
    Sentence("8b", "an increasing gap [...] with the latter exhibiting a significant edge (almost 20%)",
             checks.gap_grows_with_tokens),
    Sentence("9", "the overhead from recomputation and swapping increases for an increasing sequence length",
             checks.overhead_grows_with_length),
    Sentence("9", "regardless of whether the requests are fixed-length or variable-length",
             checks.variable_lengths_follow_too),
    Sentence("9", "Swapping has a noticeable edge for very large fixed sequence lengths",
             checks.swap_wins_at_long_fixed),
    Sentence("9", "This edge diminishes in the case of variable sequence lengths", checks.edge_diminishes_for_variable),
    Sentence("9", "thanks to less recomputation overheads", passes.variable_lengths_recompute_less),
    Sentence("9", "nevertheless is noticeable in all configurations", checks.swap_wins_everywhere),
    Sentence("9", "an increasing overhead for an increasing number of enqueued requests",
             checks.overhead_grows_with_requests),
    Sentence("9", "an increasing number of evictions during batching", checks.evictions_grow_with_requests),
    Sentence("9", "2x increase in number of enqueued requests results in at least 2x higher overhead",
             checks.doubling_requests_doubles),
    Sentence("9", "Again, swapping has a slight edge due to accumulated small differences in overheads",
             checks.swap_has_a_slight_edge),
    Sentence("10a", "the overhead of both [...] decreases for an increasing spare capacity",
             checks.more_memory_less_overhead),
    Sentence("10a", "which is expected due to less evictions", checks.more_memory_fewer_evictions),
    Sentence("10a", "swapping outperforms recomputations when the spare GPU capacity is scarce",
             checks.swap_wins_when_scarce),
    Sentence("10a", "The situation is reversed for large KV cache capacity", checks.recompute_wins_when_ample),
    Sentence("10b", "the transformer architecture has an impact not only on the sizes of the KV cache chunks [...] but "
             "also on the duration of the forward passes", passes.architecture_changes_blocks_and_passes),
    Sentence("10b", "OPT-13B has the highest overhead [...] the Llama-3.1-8B model has the lowest",
             checks.opt_highest_llama_lowest),
    Sentence("10b", "OPT-13B is the larger model and therefore has higher computational complexity and longer forward "
             "passes", passes.opt_has_longer_passes),
    Sentence("10b", "it triggers more frequent evictions compared with the other two LLMs", checks.opt_evicts_most),
    Sentence("10b", "a clear advantage of swapping over recomputations in the case of OPT-13",
             checks.swap_clear_for_opt),
    Sentence("10b", "its advantage over recomputations is significantly diminished for the other two LLMs",
             checks.swap_slight_for_the_others),
    Sentence("8-10", "Small KV cache chunk sizes result in many simultaneous evictions, especially for large inference "
             "requests", passes.small_blocks_are_many_copies, given=BLOCK_COUNTS),
    Sentence("8-10", "large cache chunk sizes may result in under-utilization", passes.large_blocks_are_used_less,
             given=BLOCK_COUNTS),
    Sentence("8-10", "Swapping keeps an edge over recomputations for most other variable parameters",
             checks.swap_wins_in_most),
    Sentence("11a", "the GPU KV cache utilization rapidly increases to 95% within about 1.2 seconds",
             checks.prefill_fills_in_11a),
    Sentence("11a", "then slowly increases over time until the KV cache eviction is triggered",
             checks.grows_slowly_in_11a),
    Sentence("11a", "the GPU KV cache utilization significantly decreases for both recomputations and swapping",
             checks.falls_in_11a),
    Sentence("11a", "the GPU KV cache utilization increases for both recomputations and swapping, while the host "
             "cache utilization decreases for swapping", checks.rises_again_in_11a),
    Sentence("11a", "swapping interrupts the inference process during both eviction and resumption [...] "
             "recomputations only interrupt the inference process during resumption", checks.swap_interrupts_twice),
    Sentence("11b", "starts at nearly 100% and remains almost stable [...] with a fluctuation between 80% and 100% "
             "until the end for both", partial(checks.device_stays_full, case="b")),
    Sentence("11b", "a bursty increase (reaching 6% at the peak) at the beginning (within the first 20 seconds), "
             "followed by a drop to almost 0", partial(checks.host_bursts, case="b", begin_s=20, paper=6)),
    Sentence("11b", "After the first 20 seconds, the host cache repeats a pattern of utilization between 0% to 2%",
             partial(checks.host_is_little_used_later, case="b", begin_s=20, most=2)),
    Sentence("11c", "starts with nearly 100% utilization and remains almost stable with a fluctuation between 80% "
             "and 100% until the end for both", partial(checks.device_stays_full, case="c")),
    Sentence("11c", "a bursty increase (reaching 10% at the peak) in the beginning (within the first 31 seconds), "
             "followed by a drop to almost 0", partial(checks.host_bursts, case="c", begin_s=31, paper=10)),
    Sentence("11c", "after the first 31 seconds, the host cache utilization frequently increases and decreases "
             "within a range between 0% and 4%",
             partial(checks.host_is_little_used_later, case="c", begin_s=31, most=4)),
    Sentence("11c", "the amount of data transferred between GPU and host memory is significantly smaller than in the "
             "initial stage", checks.transfers_shrink),
    Sentence("11", "large data movements in the beginning that gradually become smaller later",
             checks.movements_become_smaller),
]
