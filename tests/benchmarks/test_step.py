"""python -m benchmarks step: two trainers take turns, and the parts of their steps add up."""

import json

import pytest
from rich.console import Console

from benchmarks import step as bench
from benchmarks.methods_page import costs_table
from gear_rl.runs.machine import quiet_libraries
from support.commands import benchmark, untouched


@pytest.fixture(scope="module")
def found():
    turns = []
    original = bench._Turns.on_step_begin

    def watched(self, args, *more, **kwargs):
        original(self, args, *more, **kwargs)
        turns.append(int(args.output_dir[-1]))

    with untouched(None), pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench._Turns, "on_step_begin", watched)
        quiet_libraries()
        measured = bench.bench_step(
            "gear", task="chain", tier="easy", steps=3, repeats=2, rollouts=8, console=Console(quiet=True)
        )
    return measured, turns


def test_the_trainers_take_turns_and_another_begins_every_time(found):
    assert found[1] == [0, 1] * 3 + [1, 0] * 3


def test_the_ratio_is_of_whole_steps_and_its_parts_are_parts_of_it(found):
    measured = found[0]
    assert 0 < measured["least"] <= measured["ratio"] <= measured["most"]
    assert measured["grpo_seconds_per_step"] > 0
    shares = measured["shares_of_grpo_step"]
    assert set(shares) == set(bench.PARTS)
    assert 0 < sum(row["grpo"] for row in shares.values()) <= 1.001  # parts of the whole, and never twice
    for part in ("generation", "loss", "backward"):
        assert shares[part]["grpo"] > 0 and shares[part]["gear"] > 0
    for part in ("student", "teacher", "head"):
        assert shares[part]["grpo"] == 0.0, "GRPO has none"
    assert shares["credit"]["grpo"] < 0.05, "it hands on the advantages that it got"
    for part in ("student", "teacher", "head", "credit"):
        assert shares[part]["gear"] > 0


def test_a_part_inside_another_is_counted_once(monkeypatch):
    times = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr(bench, "now", lambda device: next(times))
    clock = bench._Clock(counts=True)
    inner = clock.timed("teacher", lambda: None)
    clock.timed("credit", inner)()
    assert clock.parts["teacher"] == 4.0 and clock.parts["credit"] == 2.0


def test_methods_divides_every_method_by_grpo(tmp_path):
    file = tmp_path / "costs.json"
    sizes = ("--tier", "easy", "--steps", "2", "--repeats", "1", "--rollouts", "8")
    done = benchmark("methods", "--method", "entropy_forks", *sizes, "--out", str(file))
    assert done.returncode == 0 and "entropy_forks" in done.stdout
    costs = json.loads(file.read_text())
    assert list(costs["methods"]) == ["uniform", "entropy_forks"]
    row = costs["methods"]["entropy_forks"]
    assert 0 < row["credit_share"] < 1 and row["seconds_per_step"] > 0
    shown = f"{row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
    assert shown in costs_table(costs)
