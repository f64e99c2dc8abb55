"""gear compare on the user's own run: its settings, its data, its reward, its held-out rows."""

import json
from types import SimpleNamespace

import pytest

from gear_rl.errors import InputError
from gear_rl.lab.compare import compared
from gear_rl.lab.own import plan_of_run
from gear_rl.lab.training import OwnTask, run_cell
from gear_rl.runs.config import load_config
from support.commands import untouched

RUN = {
    "model": "arena/chain", "dataset": "rows.jsonl", "reward": "rewards:digits", "held_out": 12, "max_steps": 1,
    "max_completion_length": 6, "per_device_train_batch_size": 8, "num_generations": 8, "temperature": 0.5,
    "success_reward": 0.5,
}  # fmt: skip
REWARDS = """
def digits(completions, **_):
    return [sum(c.isdigit() for c in m[-1]["content"]) / 10 for m in completions]
"""


@pytest.fixture
def folder(tmp_path):
    """The user's folder: rows and a reward of their own."""
    rows = [{"prompt": f"{n} + 1", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    with untouched(tmp_path):
        yield tmp_path


def plan_with(methods=(), seeds=1, samples=1, **more):
    words = [w for k, v in (RUN | more).items() for w in (f"--{k}", json.dumps(v).strip('"'))]
    return plan_of_run(load_config(None, words), methods, seeds=seeds, samples=samples)


def test_the_methods_share_all_but_themselves(folder):
    methods = ["gear", "live=gear:teacher_model_kind=live"]
    plan = plan_with(methods, 2, max_steps=3, learning_rate=2e-5, teacher_model_kind="ema", seed=7)
    assert (plan.rate, plan.steps, plan.rollouts, plan.n_eval, plan.ceiling) == (2e-5, 3, 8, 9, None)
    specs = {spec.name: spec for spec in plan.reported()}
    assert {name: spec.engine["teacher_model_kind"] for name, spec in specs.items()} == {
        "uniform": "ema", "gear": "ema", "live": "live",
    }  # fmt: skip
    assert specs["gear"].run["trainer"]["temperature"] == 0.5
    assert not {"seed", "max_steps", "learning_rate"} & set(specs["gear"].run["trainer"])
    tuned = plan.tuning("gear", [2e-5])[0]
    assert (tuned.first, tuned.n_eval) == (9, 3), "the last quarter tunes"


def test_other_data_are_another_comparison(folder):
    first, same = (plan_with() for _ in range(2))
    rows = (folder / "rows.jsonl").read_text().replace('"answer": "8"', '"answer": "9"')
    (folder / "rows.jsonl").write_text(rows)
    files = [plan.reported()[0].file for plan in (first, same, plan_with())]
    assert files[0] == files[1] != files[2]


def test_a_cell_trains_and_is_judged_by_the_run_itself(folder):
    plan = plan_with(samples=2)
    [spec] = plan.reported()
    row = run_cell(spec, folder / "cells")
    assert row["error"] is None, row["error"]
    assert len(row["curves"]["reward"]) == 1 and len(row["accuracies_after"]) == 2
    assert all(share * 9 == pytest.approx(round(share * 9)) for share in row["accuracies_after"])
    again = run_cell(spec, folder / "other")
    assert {**again, "seconds": None} == {**row, "seconds": None}
    found = compared(plan, [row], {}, command="")
    assert found["title"] == "Does it help? arena/chain on rows.jsonl, for reporting"


def test_a_rollout_with_the_reward_of_a_success_is_right():
    rewards = [0.5, 0.49, None, 0.75]
    trainer = SimpleNamespace(solve=lambda rows, *, seed: [rewards[row] for row in rows])
    assert OwnTask(0.5).solve(trainer, range(4), seed=0) == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("more", "methods", "message"),
    [
        ({"max_steps": 0}, [], "--steps: missing"),
        ({"reward": "rewards:digit"}, [], "did you mean digits?"),
        ({"columns": {"unused": "answer"}}, ["gear"], "gear: train_dataset: method 'gear' compares"),
        ({"top_p": 0.9}, ["oracle"], "top_p: 0.9; 'oracle' samples from the whole vocabulary"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_model_is_loaded(folder, more, methods, message):
    with pytest.raises(InputError) as refused:
        plan_with(methods, **more)
    assert message in str(refused.value)
