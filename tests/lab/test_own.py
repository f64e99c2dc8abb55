"""gear compare on the user's own run: its settings, its data, its reward, its held-out rows."""

import json
import tempfile
from dataclasses import replace

import pytest
import torch

from gear_rl.errors import InputError
from gear_rl.lab.compare import compared
from gear_rl.lab.own import OwnTask, plan_of_run
from gear_rl.lab.training import cell_trainer, run_cell
from gear_rl.runs.config import load_config
from support.commands import gear, untouched

RUN = {
    "model": "arena/chain",
    "reward": "rewards:digits",
    "held_out": 12,
    "max_completion_length": 6,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "temperature": 0.5,
    "success_reward": 0.5,
}
REWARDS = """
def digits(completions, **_):
    return [sum(c.isdigit() for c in m[-1]["content"]) / 10 for m in completions]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder: rows and a reward of their own."""
    rows = [{"prompt": f"{n} + 1", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    with untouched(tmp_path):
        yield tmp_path


def config(**more):
    return load_config(
        None, [w for k, v in (RUN | more).items() for w in (f"--{k}", json.dumps(v).strip('"'))]
    )


def test_the_methods_share_all_but_themselves(folder):
    run = config(dataset="rows.jsonl", max_steps=3, learning_rate=2e-5, teacher_model_kind="ema", seed=7)
    plan = plan_of_run(run, ["gear", "live=gear:teacher_model_kind=live"], seeds=2)
    assert (plan.rate, plan.steps, plan.rollouts, plan.n_eval, plan.ceiling) == (2e-5, 3, 8, 9, None)
    specs = {spec.name: spec for spec in plan.reported()}
    assert {name: spec.engine["teacher_model_kind"] for name, spec in specs.items()} == {
        "uniform": "ema", "gear": "ema", "live": "live",
    }  # fmt: skip
    assert specs["gear"].run["trainer"]["temperature"] == 0.5
    assert not {"seed", "max_steps", "learning_rate"} & set(specs["gear"].run["trainer"])
    tuned = plan.tuning("gear", [2e-5])[0]
    assert (tuned.first, tuned.n_eval) == (9, 3), "the last quarter tunes"
    assert plan.place == "arena/chain on rows.jsonl"


def test_other_data_are_another_comparison(folder):
    first, same = (plan_of_run(config(dataset="rows.jsonl"), [], seeds=1, steps=1) for _ in range(2))
    rows = (folder / "rows.jsonl").read_text().replace('"answer": "8"', '"answer": "9"')
    (folder / "rows.jsonl").write_text(rows)
    other = plan_of_run(config(dataset="rows.jsonl"), [], seeds=1, steps=1)
    files = [plan.reported()[0].file for plan in (first, same, other)]
    assert files[0] == files[1] != files[2]


def test_a_cell_trains_and_is_judged_by_the_run_itself(folder):
    plan = plan_of_run(config(dataset="rows.jsonl"), [], seeds=1, steps=1, samples=2)
    [spec] = plan.reported()
    cells = folder / "cells"
    row = run_cell(spec, cells)
    assert row["error"] is None, row["error"]
    assert len(row["curves"]["reward"]) == 1 and len(row["accuracies_after"]) == 2
    assert all(share * 9 == pytest.approx(round(share * 9)) for share in row["accuracies_after"])
    again = run_cell(spec, folder / "other")
    assert {**again, "seconds": None} == {**row, "seconds": None}
    found = compared(plan, [row], {}, command="")
    assert found["title"] == "Does it help? arena/chain on rows.jsonl, for reporting"
    assert found["settings"]["run"]["reward"] == "rewards:digits"


def test_the_ceiling_comes_where_it_is_asked_for(folder):
    """Branching rollouts, judged by the run's own reward: digits are worth something, all else is not."""
    plan = plan_of_run(config(dataset="rows.jsonl"), ["oracle"], seeds=1, steps=1)
    assert plan.ceiling == "oracle"
    [_, spec] = plan.reported()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = cell_trainer(spec, scratch)
        told, seen = trainer.credit.tell, []

        def kept(batch, engine):
            logged = dict(trainer.rollouts.logged)
            seen.append((batch, told(batch, engine)))
            assert trainer.rollouts.messages == batch.messages and trainer.rollouts.logged == logged
            return seen[-1][1]

        trainer.credit = replace(trainer.credit, tell=kept)
        trainer.train()
    [[batch, worth]] = seen
    # Advantages of a completion add up to its reward less that of the prompt, which siblings share.
    of_prompt = torch.tensor(batch.rewards) - worth.sum(-1)
    assert set(batch.group) == {0} and worth.any() and worth.sum(-1).std() > 0.01
    assert torch.allclose(of_prompt, of_prompt[:1], atol=1e-5) and 0.0 < of_prompt[0] < 1.2


class Trainer:
    """Four rows, and the rewards that their rollouts have."""

    eval_dataset = [{"prompt": n} for n in range(4)]  # noqa: RUF012

    def solve(self, rows, *, seed):
        return [[0.5, 0.49, None, 0.75][row["prompt"]] for row in rows]


def test_right_is_what_has_the_reward_of_a_success():
    task = OwnTask(Trainer(), 0.5)
    rows = task.rows("", num=3, first_seed=1)
    assert [row["prompt"] for row in rows] == [1, 2, 3]
    assert task.solve(Trainer(), task.rows("", num=4, first_seed=0), seed=0) == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("more", "methods", "message"),
    [
        ({"held_out": 5, "max_steps": 1}, [], "held_out: 5 rows; a comparison needs 8 at least"),
        ({"max_steps": 0}, [], "--steps: missing"),
        (
            {"resume_from_checkpoint": "latest", "max_steps": 1},
            [],
            "resume_from_checkpoint: a comparison begins",
        ),
        ({"max_steps": 1, "reward": "rewards:digit"}, [], "did you mean digits?"),
        (
            {"max_steps": 1, "columns": {"unused": "answer"}},
            ["gear"],
            "gear: train_dataset: method 'gear' compares",
        ),
        (
            {"max_steps": 1, "environment": "arena", "dataset": "arena/errands/easy"},
            ["oracle"],
            "--methods: 'oracle' goes on from the middle of rollouts",
        ),
        (
            {"max_steps": 1, "top_p": 0.9},
            ["oracle"],
            "top_p: 0.9; 'oracle' among the methods samples from all words",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_model_is_loaded(folder, more, methods, message):
    with pytest.raises(InputError) as refused:
        plan_of_run(config(**{"dataset": "rows.jsonl", **more}), methods, seeds=1)
    assert message in str(refused.value)


def test_the_options_of_a_task_do_not_go_with_a_run_of_ones_own():
    words = ("--model", "arena", "--dataset", "arena/chain/easy", "--reward", "arena", "--max_steps", "1")
    done = gear("compare", *words, "--tier", "easy")
    assert done.returncode == 2 and "--tier: is for the arena's tasks" in done.stderr
    done = gear("compare", "--taks", "chain")
    assert done.returncode == 2 and "--taks: no such option; did you mean --task" in done.stderr
