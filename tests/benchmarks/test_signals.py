"""python -m benchmarks signals: the competitors compute the same numbers, and a ratio is of what it says."""

import json

import pytest
import torch

from benchmarks import measure, page, signals
from benchmarks.measure import interleaved, ratio
from benchmarks.peers import COMPETITORS, errors, exact, operands
from support.commands import benchmark

HERE = operands(tokens=37, hidden=16, vocab=501)
TRUE = exact(HERE)
SIZES = ("--tokens", "8", "--hidden", "4", "--vocab", "64", "--repeats", "1")


@pytest.mark.parametrize("name", [name for name in COMPETITORS if name != "bare"])
@torch.no_grad()
def test_every_competitor_is_right(name):
    found = COMPETITORS[name].run(HERE)
    assert found and max(errors(found, TRUE).values()) < 2e-5
    assert COMPETITORS[name].heads >= (2 if "kl" in found else 1)


def test_everything_runs_in_every_repeat_and_the_first_place_moves(monkeypatch):
    order, ticks = [], iter(range(100))
    monkeypatch.setattr(measure.time, "process_time", lambda: next(ticks) * 2.5)
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = interleaved(runs, 3, "cpu", lambda name: None)
    assert order == list("abc" + "bca" + "cab")
    assert seconds == {name: [2.5] * 3 for name in "abc"}


def test_the_ratio_is_of_the_least_and_its_spread_of_single_repeats():
    found = {"ratio": 2.0, "least": 1.0, "median": 3.0, "most": 3.0}
    assert ratio([6.0, 4.0, 9.0], [2.0, 4.0, 3.0]) == found
    assert ratio([6.0, 4.0, 9.0], [2.0, 4.0, 3.0, 0.1]) == found  # a luckier repeat without a rival


def test_the_limit_is_the_fastest_tile_and_timed_as_often_as_ours(monkeypatch, tmp_path):
    calls = []

    def clock(runs, repeats, device, say):
        calls.append((list(runs), repeats))
        cost = {"bare": 1.0, "eager": 2.0, "8x64": 1.0}
        return {name: [cost.get(name, 4.0)] * repeats for name in runs}

    monkeypatch.setattr(signals, "interleaved", clock)
    monkeypatch.setattr(signals, "fresh_peak", lambda name, *rest: 3.0)
    monkeypatch.setattr(signals, "TILES", ((2, 16), (512, 1024), (4, 32)))
    file = tmp_path / "bench_signals.json"
    done = benchmark("signals", *SIZES, "--out", str(file))
    found = json.loads(file.read_text())
    assert done.returncode == 0 and found["best_tile"] == found["tile"] == "8x64"
    assert found["competitors"]["eager"]["ratio"] == 2.0 and found["competitors"]["naive"]["ratio"] == 4.0
    assert all(0 < error < 1e-5 for error in found["error_of_products"].values())
    assert calls[1:] == [(list(COMPETITORS), 1), (["bare", "eager"], signals.OFTEN - 1)]
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    text = page.renewed("a\n<!-- signals -->\nold\n<!-- /signals -->\nb")
    assert "old" not in text and "| 2.00 (2.00 to 2.00) | 3 |" in text and found["command"] in text
    assert page.renewed(text) == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["signals", *SIZES, "--dtype", "half"], "dtype: 'half' is not one of float32, bfloat16"),
        (["methods", "--method", "gaer"], "no method 'gaer'; did you mean gear?"),
        (["rates", "--rates", "a,b"], "--rates: a,b; give numbers with commas between them"),
        (["step", "--steps", "1"], "give 2 steps or more"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = benchmark(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
