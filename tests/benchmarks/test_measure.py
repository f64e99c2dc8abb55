"""Clocks, peaks and fits: what is counted, and that what cannot be counted is refused."""

import pytest
import torch

from benchmarks import measure
from benchmarks.measure import can_measure_peaks, exponent, interleaved, peak_extra_mb, ratio

PEAKS = pytest.mark.skipif(not can_measure_peaks(), reason="the system does not tell a process its peak")


@pytest.mark.parametrize("power", [0.0, 1.0, 1.3, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    sizes = [1, 2, 4, 8, 16]
    assert exponent(sizes, [0.3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_the_exponent_is_the_least_squares_slope():
    # Logarithms to base 2: x = 0, 1, 2 and y = 0, 2, 1. Slope = sum((x - 1)(y - 1)) / 2 = 1 / 2.
    assert exponent([1, 2, 4], [1, 4, 2]) == pytest.approx(0.5)


@pytest.mark.parametrize(("sizes", "seconds"), [([4], [1.0]), ([4, 4], [1.0, 2.0]), ([1, 2], [1.0, 0.0])])
def test_no_exponent_without_two_sizes_and_positive_times(sizes, seconds):
    with pytest.raises(ValueError, match="give two sizes or more, all positive"):
        exponent(sizes, seconds)


def test_everything_runs_in_every_repeat_and_the_first_place_moves():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = interleaved(runs, repeats=3)
    assert order == list("abc" + "bca" + "cab")
    assert {name: len(each) for name, each in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    with pytest.raises(ValueError, match="repeats: 0; give 1 or more"):
        interleaved(runs, repeats=0)


def test_seconds_are_those_of_the_processor_and_not_of_the_wall(monkeypatch):
    ticks = iter([1.0, 3.5])
    monkeypatch.setattr(measure.time, "process_time", lambda: next(ticks))
    assert measure.seconds_of(lambda: None) == 2.5


def test_the_ratio_is_of_the_least_and_its_spread_of_single_repeats():
    found = {"ratio": 2.0, "least": 1.0, "median": 3.0, "most": 3.0}
    assert ratio([6.0, 4.0, 9.0], [2.0, 4.0, 3.0]) == found
    assert ratio([6.0, 4.0, 9.0], [2.0, 4.0, 3.0, 0.1]) == found, "a luckier repeat that had no rival"


@PEAKS
def test_the_peak_is_what_was_held_at_once_and_not_what_is_left():
    def two_at_once():
        held = [torch.ones(8 << 20) for _ in range(2)]  # 32 MiB each
        del held

    def one_after_the_other():
        for _ in range(4):
            torch.ones(8 << 20)

    one_after_the_other()
    assert 60 < peak_extra_mb(two_at_once) < 72
    assert 28 < peak_extra_mb(one_after_the_other) < 40


def test_a_system_without_peaks_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "none")
    assert not can_measure_peaks()
    with pytest.raises(
        ValueError, match=r"no /proc/self/clear_refs .* measure on Linux, or with device cuda"
    ):
        peak_extra_mb(lambda: None)
