import re
import unittest

from bench import step_model


def ranges(workloads):
    """(shortest, longest prompt) and batch size of each workload."""
    found = [re.fullmatch(r"(\d+)-(\d+):\d+-\d+:(\d+)x\d+", text) for text in workloads]
    return [(int(m[1]), int(m[2])) for m in found], [int(m[3]) for m in found]


class Workloads(unittest.TestCase):
    def test_what_is_predicted_has_other_lengths_and_batch_sizes(self):
        fitted, fitted_batches = ranges(step_model.FITTED)
        predicted, batches = ranges(step_model.PREDICTED)
        for low, high in predicted:
            for other_low, other_high in fitted:
                self.assertTrue(high < other_low or low > other_high, (low, high, other_low, other_high))
        self.assertFalse(set(batches) & set(fitted_batches))

    def test_nothing_is_predicted_beyond_what_was_measured(self):
        fitted, fitted_batches = ranges(step_model.FITTED)
        predicted, batches = ranges(step_model.PREDICTED)
        self.assertLess(max(high for _, high in predicted), max(high for _, high in fitted))
        self.assertGreater(min(low for low, _ in predicted), min(low for low, _ in fitted))
        self.assertLess(max(batches), max(fitted_batches))


class EndToEnd(unittest.TestCase):
    def test_time_between_passes_is_what_is_in_none(self):
        self.assertAlmostEqual(step_model.between_passes_s(10.0, [2.0, 3.0, 4.0, 0.5]), 0.125)

    def test_the_report_names_every_kind_of_pass_that_there_was(self):
        result = {"passes_left_out": 30, "left_out_decode_passes": 30, "wall_s": 4.0, "between_passes_s": 0.01,
                  "predicted_wall_s": 4.2, "left_out_predicted_s": 3.9, "left_out_measured_s": 3.7}
        for name in ("left_out", "left_out_decode"):
            result |= {f"{name}_median_error": 0.05, f"{name}_p95_error": 0.1, f"{name}_measured_s": 3.7,
                       f"{name}_predicted_s": 3.9}
        text = step_model.lines(result)
        self.assertIn("decode only", text)
        self.assertNotIn("prefill only", text)
        self.assertIn("predicted 4.20 s (+5.0 %)", text)


if __name__ == "__main__":
    unittest.main()
