import unittest

from kvdepot.demo import curves


class FitCompute(unittest.TestCase):
    def test_finds_the_curve_that_points_were_taken_from(self):
        def true(a):
            return 0.05 + 2.0 * (1 - a) + 5.0 * (1 - a * a)
        fitted = curves.fit_compute([(a, true(a)) for a in (0.0, 0.5, 0.75, 1.0)])
        for a in (0.0, 0.1, 0.6, 0.9, 1.0):
            self.assertAlmostEqual(fitted(a), true(a), places=6)

    def test_two_points_are_joined_by_a_line(self):
        fitted = curves.fit_compute([(0.0, 4.0), (1.0, 0.0)])
        self.assertAlmostEqual(fitted(0.25), 3.0)

    def test_is_never_negative(self):
        fitted = curves.fit_compute([(0.0, 4.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0)])
        self.assertTrue(all(fitted(i / 20) >= 0 for i in range(21)))


class Crossover(unittest.TestCase):
    def test_of_straight_lines_is_e_over_one_plus_e(self):
        for e in (1.0, 3.0, 9.0):
            curve = curves.model(10.0 / e, 0.0, lambda a: 10.0 * (1 - a))
            self.assertAlmostEqual(curves.crossover(curve), e / (1 + e), places=2)

    def test_is_absent_where_loading_never_takes_longer(self):
        self.assertIsNone(curves.crossover(curves.model(0.1, 0.0, lambda a: 1.0)))


class Parts(unittest.TestCase):
    def test_overlapped_is_the_longest_and_one_by_one_the_sum(self):
        parts = {"load_s": 2.0, "store_s": 0.5, "compute_s": 3.0}
        self.assertEqual(curves.overlapped_s(parts), 3.0)
        self.assertEqual(curves.one_by_one_s(parts), 5.5)
