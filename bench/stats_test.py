import unittest

from bench import stats


class Ratios(unittest.TestCase):
    def test_pairs_are_divided_round_by_round(self):
        self.assertEqual(stats.pair_ratios([2.0, 9.0], [1.0, 3.0]), [2.0, 3.0])

    def test_lists_that_make_no_pairs_are_refused(self):
        for numerators, denominators in (([], []), ([1.0], [1.0, 2.0])):
            with self.assertRaises(ValueError):
                stats.pair_ratios(numerators, denominators)


class Interval(unittest.TestCase):
    def test_holds_the_median_and_lies_within_the_values(self):
        values = [1.0, 1.1, 0.9, 1.05, 1.02, 0.98, 1.01, 1.3]
        low, high = stats.median_interval(values)
        self.assertLessEqual(low, 1.015)
        self.assertGreaterEqual(high, 1.015)
        self.assertGreaterEqual(low, 0.9)
        self.assertLessEqual(high, 1.3)

    def test_is_the_same_for_the_same_values(self):
        values = [3.0, 1.0, 2.0, 5.0]
        self.assertEqual(stats.median_interval(values), stats.median_interval(values))

    def test_more_pairs_make_it_narrower(self):
        few = [0.9, 1.1, 1.0, 0.95, 1.05]
        low_few, high_few = stats.median_interval(few)
        low_many, high_many = stats.median_interval(few * 20)
        self.assertLess(high_many - low_many, high_few - low_few)

    def test_two_values_say_nothing(self):
        self.assertIsNone(stats.median_interval([1.0, 2.0]))

    def test_covers_the_true_median_about_as_often_as_it_says(self):
        import random

        rng = random.Random(7)
        hits = 0
        for seed in range(100):
            low, high = stats.median_interval([rng.gauss(1.0, 0.1) for _ in range(20)], seed=seed)
            hits += low <= 1.0 <= high
        self.assertGreaterEqual(hits, 85)


class Percentile(unittest.TestCase):
    def test_nearest_rank(self):
        values = list(range(1, 101))
        self.assertEqual(stats.percentile(values, 0.99), 99)
        self.assertEqual(stats.percentile(values, 0.5), 50)
        self.assertEqual(stats.percentile([7.0], 0.99), 7.0)
        self.assertEqual(stats.percentile([1.0, 2.0], 1.0), 2.0)

    def test_nothing_has_none(self):
        with self.assertRaises(ValueError):
            stats.percentile([], 0.5)


if __name__ == "__main__":
    unittest.main()
