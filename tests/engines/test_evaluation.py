"""Success at the first try and at one of k, with intervals; the training does not notice."""

import itertools
import math
import random

import pytest
import torch
from transformers import TrainerCallback

from engines import tiny
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


def test_wilsons_interval_by_hand():
    """8 of 10: centre (p + z^2/2n) / (1 + z^2/n), half width z sqrt(p q / n + z^2 / 4 n^2) / (1 + z^2 / n)."""
    z, n, p = 1.959964, 10, 0.8
    scale = 1 + z * z / n
    centre, half = (
        (p + z * z / (2 * n)) / scale,
        z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale,
    )
    low, high = interval([1.0] * 8 + [0.0] * 2)
    assert (low, high) == (pytest.approx(centre - half, abs=1e-5), pytest.approx(centre + half, abs=1e-5))
    low, high = interval([1.0] * 8)
    assert high == 1.0
    assert 0.6 < low < 0.7
    assert interval([0.5, 0.5]) == (0.5, 0.5)
    assert all(math.isnan(end) for end in interval([]))


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(100):  # thirds of 40 problems, mean 0.5
        low, high = interval([rng.randrange(4) / 3 for _ in range(40)])
        covered += low <= 0.5 <= high
    assert covered >= 88  # 95 nominal; 88 is three deviations below


def test_abstentions_are_left_out():
    metrics = success_metrics([[1.0, None, 0.0], [None, None, None], [0.0, 2.0], [0.0, None]], 1.0, "eval")
    assert metrics["eval_problems"] == 3
    assert metrics["eval_pass@1"] == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert metrics["eval_pass@2"] == 1.0, "of the problems with two judged tries"
    assert success_metrics([], 1.0, "eval") == {"eval_problems": 0.0}


def even(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def trainer_of(folder, model, **changes):
    settings = tiny.settings(folder, num_generations_eval=2, per_device_eval_batch_size=4, **changes)
    rows = tiny.rows()
    held_out = {"small": rows.select(range(6)), "large": rows.select(range(6, 11))}
    return GEARTrainer(model, even, GEARConfig(**settings), rows, eval_dataset=held_out, credit=Gear())


def test_evaluation_per_tier_sampled_and_greedy(tiny_model, tmp_path):
    trainer = trainer_of(tmp_path, tiny_model, max_steps=2, eval_strategy="steps", eval_steps=1)
    seen = []

    class Watch(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics=None, **kw):
            seen.append(sorted(metrics))

    trainer.add_callback(Watch())
    trainer.train()
    entries = [e for e in trainer.state.log_history if "eval_small_pass@1" in e]
    assert len(entries) == 2
    for entry in entries:
        for name in ("pass@1", "pass@2", "greedy"):
            low, value, high = (entry[f"eval_small_{name}{end}"] for end in ("_low", "", "_high"))
            assert 0.0 <= low <= value <= high <= 1.0
        assert entry["eval_small_pass@1"] <= entry["eval_small_pass@2"]
        assert entry["eval_small_problems"] == 6
    assert [e["eval_large_problems"] for e in trainer.state.log_history if "eval_large_greedy" in e] == [5, 5]
    assert len(seen) == 4


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_evaluation_leaves_the_training_as_it_was(tiny_model, tmp_path):
    runs = []
    for often in ("no", "steps"):
        (tmp_path / often).mkdir()
        trainer = trainer_of(tmp_path / often, tiny_model, max_steps=3, eval_strategy=often, eval_steps=1)
        trainer.train()
        losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
        runs.append((weights(trainer), losses))
    assert any(loss != 0.0 for loss in runs[0][1]), "else nothing was trained"
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_solve_gives_each_row_its_own_reward(tiny_model, tmp_path):
    trainer = trainer_of(tmp_path, tiny_model)
    rows = list(tiny.rows(11))
    before = torch.random.get_rng_state(), {k: list(v) for k, v in trainer._metrics["train"].items()}

    def one_of_three(completions, answer, **_):
        return [None if int(a) % 3 == 2 else float(int(a) % 3) for a in answer]

    trainer.reward_funcs[:] = [one_of_three]
    steps = []
    found = trainer.solve(rows, advance=steps.append)
    assert found == [None if int(r["answer"]) % 3 == 2 else float(int(r["answer"]) % 3) for r in rows]
    assert steps == [4, 4, 3]
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert {k: list(v) for k, v in trainer._metrics["train"].items()} == before[1]
    trainer.reward_funcs[:] = [lambda completion_ids, **_: [float(sum(ids)) for ids in completion_ids]]
    sampled = [trainer.solve(rows, seed=s) for s in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert trainer.solve(rows) == trainer.solve(rows, seed=trainer.args.seed) != sampled[0], "the run's own"
    greedy = [trainer.solve(rows, seed=s, greedy=True) for s in (0, 1)]
    assert greedy[0] == greedy[1] != sampled[0]
