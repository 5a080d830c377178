"""The table of sentences notices what changes, and some checks answer both ways."""

import unittest
import unittest.mock

from bench import study_checks, study_pass_checks, study_trends
from bench.study_sentences import SENTENCES, Sentence


def found(*verdicts: str) -> list:
    return [(Sentence(str(i), f"sentence {i}", None), verdict, "1.0 s") for i, verdict in enumerate(verdicts)]


class Page(unittest.TestCase):
    def setUp(self):
        self.table = study_trends.table(found("holds", "does not hold", "not simulated"))
        self.page = ["# Title", "", *self.table, "", "Why one does not hold."]

    def test_counts_what_is_simulated(self):
        self.assertEqual(self.table[-1], "1 of 2 sentences hold; 0 more are decided by construction, and 1 are not "
                                         "simulated.")

    def test_what_is_decided_by_construction_is_no_evidence(self):
        table = study_trends.table(found("holds", "holds by construction", "does not hold by construction"))
        self.assertTrue(table[-1].startswith("1 of 1 sentences hold; 2 more are decided by construction, "))

    def test_the_same_table_is_no_difference(self):
        self.assertEqual(study_trends.differences(self.page, self.table), [])

    def test_a_changed_verdict_and_a_changed_figure_are_seen(self):
        changed = study_trends.table(found("does not hold", "does not hold", "not simulated"))
        self.assertTrue(any("does not hold" in line for line in study_trends.differences(self.page, changed)))
        self.assertTrue(study_trends.differences(self.page, [line.replace("1.0", "1.1") for line in self.table]))

    def test_an_update_replaces_the_table_only(self):
        changed = study_trends.table(found("holds", "holds"))
        after = study_trends.updated(self.page, changed)
        self.assertEqual(study_trends.differences(after, changed), [])
        self.assertEqual((after[0], after[-1]), (self.page[0], self.page[-1]))

    def test_a_page_without_the_table_is_refused(self):
        with self.assertRaises(SystemExit):
            study_trends.differences(["# Title"], self.table)


class Checks(unittest.TestCase):
    def test_a_use_that_does_not_drop_counts(self):
        rows = {"vllm": [4000, 20], "512": [512, 20]}
        self.assertTrue(study_checks.use_drops_later({"fig5": rows})[0])
        self.assertFalse(study_checks.use_drops_later({"fig5": rows | {"512": [512, 512]}})[0])

    def test_the_kernel_is_compared_with_the_passes(self):
        def study(vllm: float, large: float, small: float) -> dict:
            return {"fig4b": {"w1": {"4096": {k: {"tokens_per_s": v} for k, v in
                                              (("vllm", vllm), ("4k", large), ("512", small))}}}}
        self.assertTrue(study_checks.kernel_matters_more_than_passes(study(100, 60, 50))[0])
        self.assertFalse(study_checks.kernel_matters_more_than_passes(study(100, 98, 90))[0])

    def test_a_device_that_empties_before_the_end_counts(self):
        full = [[0.1, 97, 0], [5.0, 85, 0], [9.0, 99, 0]]
        for end, holds in ((88, True), (30, False)):
            study = {"fig11": {"b": dict.fromkeys(("recompute", "swap"), [*full, [10.0, end, 0]])}}
            self.assertEqual(study_checks.device_stays_full(study, "b")[0], holds)

    def test_an_edge_that_is_a_loss_is_none(self):
        def study(llama_swap: float) -> dict:
            swap = {study_checks.OPT: 6.0, study_checks.YARN: 9.0, study_checks.LLAMA: llama_swap}
            return {"fig10b": {m: {"recompute": 10.0, "swap": s} for m, s in swap.items()}}
        self.assertTrue(study_checks.swap_slight_for_the_others(study(9.5))[0])
        self.assertFalse(study_checks.swap_slight_for_the_others(study(10.5))[0])

    def test_a_check_that_nothing_simulated_decides_says_so(self):
        """Such a check needs no study, or answers alike whatever is in it."""
        def constants(context: float, batches: list) -> dict:
            return {"constants": {study_checks.YARN: {"context_token_s": context, "decode_batch": [1, 4, 512],
                                                      "decode_batch_s": batches}}}
        def seconds(row: list) -> dict:
            passes = [{"prompt_tokens": 4 if i == 0 else 0, "seconds": x} for i, x in enumerate(row)]
            return {"accesses": dict.fromkeys(study_pass_checks.WORKLOADS, passes)}
        changing = {study_pass_checks.decode_ignores_the_mix: (constants(1e-9, [1, 2, 3]), constants(1.0, [3, 2, 1])),
                    study_pass_checks.longer_gaps_between_phases: (seconds([1, 1e-9]), seconds([1e-9, 1]))}

        def decided(check) -> bool:
            try:
                check({})
            except KeyError:
                return check in changing and all(check(study)[0] for study in changing[check])
            return True
        checked = [s for s in SENTENCES if s.check is not None]
        self.assertEqual([s.text for s in checked if decided(s.check)], [s.text for s in checked if s.given])
        self.assertEqual(sum(bool(s.given) for s in checked), 6)

    def test_a_verdict_by_construction_is_marked_and_says_why(self):
        shared = next(s for s in SENTENCES if s.check is study_pass_checks.shared_heads_save_memory)
        with unittest.mock.patch.object(study_trends, "SENTENCES", [shared]):
            (_, verdict, figures), = study_trends.verdicts({})
        self.assertEqual(verdict, "holds by construction")
        self.assertTrue(figures.endswith(f"({shared.given})"))

    def test_a_sentence_without_a_check_says_why(self):
        for sentence in SENTENCES:
            self.assertEqual(sentence.check is None, bool(sentence.why_not), sentence.text)

    def test_no_sentence_is_cited_twice(self):
        texts = [(sentence.figure, sentence.text) for sentence in SENTENCES]
        self.assertEqual(len(texts), len(set(texts)))

    def test_every_figure_of_the_paper_is_cited(self):
        cited = {sentence.figure for sentence in SENTENCES}
        self.assertLessEqual({"3a", "3b", "3c", "4a", "4b", "4c", "5", "6a", "6b", "7", "8a", "8b", "9", "10a", "10b",
                              "11a", "11b", "11c"}, cited)


def five_passes(**changed) -> dict:
    """Four requests of 50 tokens each: a prefill and four decodes, in each workload."""
    blocks = {"blocks": 16, "requests": 4, "requests_with_ascending_blocks": 4}
    rows = [{"seconds": 0.1, "prompt_tokens": 200, "written_tokens": 200, "read_tokens": 0, "written_blocks": 16,
             **blocks}]
    rows += [{"seconds": 0.04, "prompt_tokens": 0, "written_tokens": 4, "read_tokens": 200 + 4 * i, "written_blocks": 1,
              **blocks, **changed} for i in range(4)]
    return {"accesses": dict.fromkeys(study_pass_checks.WORKLOADS, rows),
            "constants": {study_checks.YARN: {"context_token_s": 1e-6},
                          "swap_pinned": {"copy_s": 1e-6, "bytes_per_s": 24e9}}}


class PassChecks(unittest.TestCase):
    def answers(self, check, holds: dict, not_: dict):
        self.assertTrue(check(five_passes(**holds))[0])
        self.assertFalse(check(five_passes(**not_))[0])

    def test_accesses_are_compared_pass_by_pass(self):
        for check, changed in ((study_pass_checks.most_writes_in_prefill, {"written_tokens": 100}),
                               (study_pass_checks.decodes_write_little, {"written_tokens": 100}),
                               (study_pass_checks.writes_then_reads, {"read_tokens": 2}),
                               (study_pass_checks.cache_is_mostly_idle, {"read_tokens": 40_000}),
                               (study_pass_checks.reads_repeat, {"read_tokens": 200}),
                               (study_pass_checks.decodes_read_all_that_is_cached, {"read_tokens": 200}),
                               (study_pass_checks.blocks_ascend, {"requests_with_ascending_blocks": 3}),
                               (study_pass_checks.all_requests_read_together, {"requests": 3}),
                               (study_pass_checks.prefetch_fits_in_a_pass, {"blocks": 1000}),
                               (study_pass_checks.blocks_stay_as_they_are, {"written_blocks": 8})):
            with self.subTest(check.__name__):
                self.answers(check, {}, changed)

    def test_a_prefill_that_reads_is_seen(self):
        study = five_passes()
        self.assertTrue(study_pass_checks.prefill_reads_nothing(study)[0])
        study["accesses"]["w1"][0]["read_tokens"] = 1
        self.assertFalse(study_pass_checks.prefill_reads_nothing(study)[0])

    def test_small_copies_cost_their_start(self):
        study = {"constants": {"swap_pinned": {"copy_s": 1e-6, "bytes_per_s": 24e9}}}
        self.assertTrue(study_pass_checks.small_copies_are_slower(study)[0])
        study["constants"]["swap_pinned"]["copy_s"] = 0
        self.assertFalse(study_pass_checks.small_copies_are_slower(study)[0])

    def test_passes_with_prompts_are_counted_and_compared(self):
        def study(mix: list, chunks: list) -> dict:
            rows = {"vllm": [0.3, 0.1], "mix": mix, "512": chunks}
            rows = {k: [[x, 512, 512] for x in v] for k, v in rows.items()}
            return {"prompt_passes": dict.fromkeys(study_pass_checks.WORKLOADS, rows)}
        more, fewer = study([0.25, 0.2, 0.1], [0.1] * 4), study([0.5], [0.4, 0.01])
        for check in (study_pass_checks.mixed_takes_more_prompt_passes, study_pass_checks.chunks_balance,
                      study_pass_checks.chunks_take_more_passes):
            self.assertTrue(check(more)[0], check.__name__)
            self.assertFalse(check(fewer)[0], check.__name__)
        self.assertFalse(study_pass_checks.mixed_has_longer_passes(more)[0])
        self.assertTrue(study_pass_checks.mixed_has_longer_passes(fewer)[0])

    def test_decodes_that_chunking_slows_down_are_seen(self):
        def study(seconds: float) -> dict:
            def row(output: int, took: dict) -> dict:
                return dict.fromkeys(study_checks.MODELS, {k: {"tokens_per_s": 20 * (1024 + output) / v}
                                                           for k, v in took.items()})
            return {"fig4c_fixed": {"10": row(10, {"vllm": 1.0, "512": 2.0}),
                                    "128": row(128, {"vllm": 4.0, "512": 5.0 + seconds})}}
        self.assertFalse(study_pass_checks.chunking_costs_decodes(study(0))[0])
        self.assertTrue(study_pass_checks.chunking_costs_decodes(study(0.3))[0])

    def test_partial_evictions_count_where_somebody_is_evicted(self):
        def runs(value) -> dict:
            def both(x):
                return dict.fromkeys(study_checks.STRATEGIES, x)
            return {"fig9": dict.fromkeys(study_checks.LENGTHS, both([value] * 3)),
                    "fig10a": {"zipf": both(dict.fromkeys(study_checks.SIZES, value))},
                    "fig10b": dict.fromkeys(study_checks.MODELS, both(value))}
        study = {"evictions": runs(5), "makespans": {"whole": runs(10.0), "partial": runs(9.0)}}
        holds, text = study_pass_checks.partial_evictions_help(study)
        self.assertTrue(holds)
        self.assertIn("24 of 24 settings, +10.00 %", text)
        study["makespans"]["partial"] = runs(10.5)
        self.assertFalse(study_pass_checks.partial_evictions_help(study)[0])


if __name__ == "__main__":
    unittest.main()
