"""The table of sentences notices what changes, and some checks answer both ways."""

import unittest

from bench import study_checks, study_trends
from bench.study_sentences import SENTENCES, Sentence


def found(*verdicts: str) -> list:
    return [(Sentence(str(i), f"sentence {i}", None), verdict, "1.0 s") for i, verdict in enumerate(verdicts)]


class Page(unittest.TestCase):
    def setUp(self):
        self.table = study_trends.table(found("holds", "does not hold", "not simulated"))
        self.page = ["# Title", "", *self.table, "", "Why one does not hold."]

    def test_counts_what_is_simulated(self):
        self.assertEqual(self.table[-1], "1 of 2 sentences hold; 1 are not simulated.")

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

    def test_every_figure_of_the_paper_is_cited(self):
        cited = {sentence.figure for sentence in SENTENCES}
        self.assertLessEqual({"3a", "3b", "3c", "4a", "4b", "4c", "5", "6a", "6b", "8a", "8b", "9", "10a", "10b", "11a",
                              "11b", "11c"}, cited)


if __name__ == "__main__":
    unittest.main()
