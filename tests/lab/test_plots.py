"""The plots of a comparison."""

import pytest

from gear_rl.lab.plots import over_seeds


def test_a_curve_over_seeds_by_hand():
    rows = [[(0, 0.2), (5, 0.7), (9, 1.0)], [(0, 0.2), (5, 0.8)], [(0, 0.2), (5, 0.9), (7, 0.1)]]
    (first, second) = over_seeds(rows)
    assert first == (0, pytest.approx(0.2), pytest.approx((0.2, 0.2)))
    assert second == (5, pytest.approx(0.8), pytest.approx((0.5515862, 1.0484138), abs=1e-6))
