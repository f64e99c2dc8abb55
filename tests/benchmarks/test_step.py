"""python -m benchmarks step: two trainers take turns, and the parts of their steps add up."""

import json
import threading

import pytest
from rich.console import Console

from benchmarks import step as bench
from benchmarks.methods_page import methods_page
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
    assert measured["grpo_cpu_seconds_per_step"] > 0
    shares = measured["shares_of_grpo_step"]
    assert set(shares) == set(bench.PARTS)
    assert 0 < sum(row["grpo"] for row in shares.values()) <= 1.001  # parts of the whole, and never twice
    for part in ("generation", "loss", "backward"):
        assert shares[part]["grpo"] > 0 and shares[part]["gear"] > 0
    for part in ("student", "teacher", "head"):
        assert shares[part]["grpo"] == 0.0, "GRPO has none"
    assert shares["credit"]["grpo"] < 0.05, "it hands on the advantages that it got"
    assert shares["student"]["gear"] == 0.0, "it is TRL's own"
    for part in ("teacher", "head", "credit"):
        assert shares[part]["gear"] > 0


def test_a_part_inside_another_is_counted_once(monkeypatch):
    now = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr(bench.time, "process_time", lambda: next(now))
    clock = bench._Clock(counts=True)
    inner = clock.timed("teacher", lambda: None)
    clock.timed("credit", inner)()
    assert clock.parts["teacher"] == 4.0 and clock.parts["credit"] == 2.0


def test_a_trainer_that_fails_lets_the_other_end_and_is_reported(monkeypatch):
    def broken(*args):
        raise KeyError("no reward today")

    monkeypatch.setattr("gear_rl.engines.trl.late.LateCredit._assign", broken)
    before = threading.active_count()
    with untouched(None), pytest.raises(KeyError, match="no reward today"):
        bench.bench_step(
            "gear", task="chain", tier="easy", steps=2, repeats=1, rollouts=8, console=Console(quiet=True)
        )
    assert threading.active_count() == before


def test_a_run_of_the_users_is_measured_with_its_own_rollouts(tmp_path, monkeypatch):
    file, seen = tmp_path / "mine.yaml", []
    file.write_text(
        "model: arena\ndataset: arena/chain/easy\nreward: arena\nper_device_train_batch_size: 4\n"
        "gradient_accumulation_steps: 2\nnum_generations: 4\nmax_completion_length: 24\nlearning_rate: 1.0e-4\n"
        f"record_file: {tmp_path / 'records.jsonl'}\n"
    )
    make = bench.make_trainer
    monkeypatch.setattr(bench, "make_trainer", lambda config: seen.append(config) or make(config))
    words = [
        "--method",
        "gear:alpha=2.0",
        "--student-pass",
        "own",
        "--steps",
        "2",
        "--repeats",
        "1",
        "--json",
    ]
    done = benchmark("step", "--config", str(file), *words, "--out", str(tmp_path / "step.json"))
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert json.loads((tmp_path / "step.json").read_text()) == measured
    assert measured["shares_of_grpo_step"]["student"]["gear"] > 0, "a pass of its own"
    assert (measured["task"], measured["tier"]) == ("arena/chain/easy", "arena")
    assert measured["rollouts_per_step"] == 8 and measured["shares_of_grpo_step"]["teacher"]["gear"] > 0
    assert [config.credit for config in seen] == ["uniform", {"name": "gear", "alpha": 2.0}]
    assert {config.trainer["learning_rate"] for config in seen} == {1e-4}
    assert not (tmp_path / "records.jsonl").exists()


def test_methods_divides_every_method_by_grpo(tmp_path):
    file = tmp_path / "costs.json"
    sizes = ("--tier", "easy", "--steps", "2", "--repeats", "1", "--rollouts", "8")
    done = benchmark("methods", "--method", "entropy_forks", *sizes, "--out", str(file))
    assert done.returncode == 0 and "entropy_forks" in done.stdout
    costs = json.loads(file.read_text())
    assert list(costs["methods"]) == ["uniform", "entropy_forks"]
    row = costs["methods"]["entropy_forks"]
    assert 0 < row["credit_share"] < 1 and row["seconds_per_step"] > 0
    shown = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
    assert shown in methods_page("<!-- made: costs -->\n<!-- made: entropy_forks -->\n<!-- end -->\n", costs)
