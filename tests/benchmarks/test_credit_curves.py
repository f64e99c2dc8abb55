"""``benchmarks curves``: which comparisons it makes, what it keeps, and that half of it is worth something."""

import json

import pytest

from benchmarks import curves
from gear_rl.lab.cells import Cell, Score
from support.commands import benchmark

GAINS = {"uniform": 0.0, "oracle": 0.2, "gear": 0.15, "shuffled": -0.05}


def trained(plan, rates):
    """Cells as a comparison has them: gains above 0.5 that grow with the rate, and a little with the seed."""
    for spec in rates:
        after = 0.6 + GAINS[spec.name] + 0.01 * spec.seed
        yield Cell(
            task=spec.task, tier=spec.tier, method=spec.name, seed=spec.seed, steps=spec.steps, rate=spec.rate,
            n_eval=spec.n_eval, samples=spec.samples, before=Score(step=0, rewards=(0.5,)),
            after=Score(step=spec.steps, rewards=(after,)), seconds=1.0,
        )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """The plans that were run; nothing is trained."""
    plans = []

    def run(plan, folder, *, jobs, console):
        plans.append((plan, folder))
        return list(trained(plan, plan.reported_specs())), {}

    monkeypatch.setattr(curves, "run_plan_with_bar", run)
    return plans


def test_every_comparison_has_the_same_budget_of_rollouts(asked, tmp_path):
    done = benchmark(
        "curves", "--methods", "gear", "--seeds", "3", "--runs", str(tmp_path / "a" / "b"), "--json"
    )
    assert done.returncode == 0, done.stderr
    assert {plan.steps * plan.rollouts for plan, _ in asked} == {640}
    assert {(plan.tier, plan.rollouts) for plan, _ in asked} == {
        ("easy", 16), ("k8", 16), ("default", 16), ("k16", 16), ("hard", 16), ("k32", 16),
        ("default", 8), ("default", 32), ("default", 64), ("default", 128),
    }  # fmt: skip
    assert len({folder for _, folder in asked}) == 10
    found = json.loads(done.stdout)
    assert [p["decisions"] for p in curves.curve(found, "decisions")] == [4, 8, 12, 16, 24, 32]
    assert [p["rollouts"] for p in curves.curve(found, "rollouts")] == [8, 16, 32, 64, 128]
    gains = {v["method"]: v["difference"] for v in found["points"][0]["verdicts"]}
    assert gains == {"uniform": None, "oracle": pytest.approx(0.2), "gear": pytest.approx(0.15)}
    assert "cells" not in found["points"][0] and found["points"][0]["use"] == "choosing"
