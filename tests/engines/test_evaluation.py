"""Success at the first try and at one of k, with intervals; the training stays as it was."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer

from engines import tiny
from engines.running import history, same, weights
from engines.scripted import END, Desk, scripted
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.engines.trl.evaluation import interval, pass_at_k, success_metrics


@pytest.mark.parametrize("tries", [1, 3, 5])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_one(tries):
    for right in range(tries + 1):
        outcome = [True] * right + [False] * (tries - right)
        for k in range(1, tries + 1):
            subsets = list(itertools.combinations(outcome, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(tries, right, k) == pytest.approx(share)


def test_intervals_by_hand():
    """Wilson's of 8 of 10: (p + z^2/2n +- z sqrt(p q / n + z^2 / 4 n^2)) / (1 + z^2/n)."""
    z, n, p = 1.959964, 10, 0.8
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    ends = [(centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)]
    assert interval([1.0] * 8 + [0.0] * 2) == pytest.approx(ends, abs=1e-5)
    assert interval([0.5, 0.5]) == (0.5, 0.5)
    assert all(math.isnan(end) for end in interval([]))


def test_abstentions_are_left_out():
    metrics = success_metrics([[1.0, None, 0.0], [None, None, None], [0.0, 2.0], [0.0, None]], 1.0, "eval")
    assert metrics["eval_problems"] == 3
    assert metrics["eval_pass@1"] == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert metrics["eval_pass@2"] == 1.0, "of the problems with two judged tries"
    assert success_metrics([], 1.0, "eval") == {"eval_problems": 0.0}


def even(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def trainer_of(folder, model, **changes):
    rows = tiny.rows()
    args = GEARConfig(
        **tiny.settings(folder, num_generations_eval=2, per_device_eval_batch_size=4, **changes)
    )
    held_out = {"small": rows.select(range(6)), "large": rows.select(range(6, 11))}
    return GEARTrainer(model, even, args, rows, eval_dataset=held_out, credit=Gear())


def test_evaluation_leaves_the_training_as_it_was(tiny_model, tmp_path):
    runs = []
    for often in ("no", "steps"):
        changes = {"max_steps": 2, "eval_strategy": often, "eval_steps": 1}
        trainer = trainer_of(tmp_path / often, tiny_model, **changes)
        trainer.train()
        runs.append((weights(trainer), history(trainer, "loss"), history(trainer, "reward")))
    assert any(loss != 0.0 for loss in runs[0][1]), "else nothing was trained"
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]
    for name in ("pass@1", "pass@2", "greedy"):
        ends = [history(trainer, f"eval_small_{name}{end}") for end in ("_low", "", "_high")]
        assert all(0.0 <= low <= value <= high <= 1.0 for low, value, high in zip(*ends, strict=True))
    assert history(trainer, "eval_small_problems") == [6.0, 6.0]
    assert history(trainer, "eval_large_problems") == [5.0, 5.0]


def test_evaluation_calls_no_privileged_context_and_logs_once(tiny_model, tmp_path):
    called = []

    class Quiet(Desk):
        def privileged_context(self) -> str:
            called.append(1)
            return "privileged"

    rows = tiny.rows().remove_columns(["privileged_context", "answer"])
    changes = {"num_generations_eval": 2, "per_device_eval_batch_size": 4, "max_completion_length": 99}
    settings = tiny.settings(tmp_path, max_steps=1, gradient_accumulation_steps=1, **changes)
    scripts = [[f"{word}{END}"] for word in ("one", "two", "three", "four")]
    options = {"environment_factory": Quiet, "eval_dataset": rows.select(range(3))}
    trainer = scripted(tiny_model, rows, settings, scripts, credit=Gear(), **options)
    metrics = trainer.evaluate()
    assert called == []
    assert len(trainer.state.log_history) == 1, "else the completions' table is written twice"
    assert metrics["eval_problems"] == 3.0
    assert metrics["eval_pass@1"] == metrics["eval_greedy"] == 0.0
    trainer.train()
    assert len(called) == 4


def test_solve_gives_each_row_its_own_reward(tiny_model, tmp_path):
    trainer = trainer_of(tmp_path, tiny_model)
    rows = tiny.rows(11)
    before, python = torch.random.get_rng_state(), random.getstate()

    def one_of_three(completions, answer, **_):
        random.random()
        return [None if int(a) % 3 == 2 else float(int(a) % 3) for a in answer]

    trainer.reward_funcs[:] = [one_of_three]
    found = trainer.solve(rows)
    assert found == [None if int(r["answer"]) % 3 == 2 else float(int(r["answer"]) % 3) for r in rows]
    assert torch.equal(torch.random.get_rng_state(), before) and random.getstate() == python
    trainer.reward_funcs[:] = [even]
    sampled = [trainer.solve(rows, seed=s) for s in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]
    greedy = [trainer.solve(rows, seed=s, greedy=True) for s in (0, 1)]
    assert greedy[0] == greedy[1] != sampled[0]


def test_problems_that_are_repeated_to_fill_a_batch_do_not_count(tiny_model, tmp_path, monkeypatch):
    """Several processes repeat the last problems, as TRL's loop does here."""

    def repeating(self, dataloader, **_):
        self.rollouts.evaluated += [[1.0], [0.0], [0.0], [1.0]]
        return SimpleNamespace(metrics={})

    monkeypatch.setattr(GRPOTrainer, "evaluation_loop", repeating, raising=False)
    trainer = trainer_of(tmp_path, tiny_model, eval_greedy=False)
    found = trainer.evaluation_loop(SimpleNamespace(dataset=[{}] * 3)).metrics
    assert (found["eval_problems"], found["eval_pass@1"]) == (3.0, pytest.approx(1 / 3))
