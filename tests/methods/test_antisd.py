"""AntiSD (arXiv:2605.11609): the bonus by hand, the gate step by step, and a run that is resumed with it."""

import copy
import math

import pytest
import torch

from engines import running
from engines.tiny import rows
from gear_rl.methods import AntiSd, Gear, Mixed, Shuffled, Uniform
from gear_rl.types import TokenSignals


def test_what_the_teacher_likes_gets_less():
    ratios = [0.0, 3.0, -3.0, 40.0, -90.0]
    signals = TokenSignals(
        mask=torch.ones(1, 5, dtype=torch.bool),
        student_logprob=torch.full((1, 5), -100.0),
        teacher_logprob=torch.tensor([ratios]) - 100.0,
        teacher_entropy=torch.zeros(1, 5),
    )
    expected = [0.5 - 2.0 * 0.5 * (math.log1p(math.exp(u)) - math.log(2.0)) for u in ratios]
    assert AntiSd(strength=2.0)(torch.tensor([0.5]), signals).advantage[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("means", "closed"),
    [
        ([2.0], False),
        ([2.0, 0.1], False),  # the warm-up
        ([2.0, 2.0, 1.87], False),
        ([2.0, 2.0, 1.85], True),
        ([2.0, 2.0, 1.85, 1.99], True),  # not yet back
        ([2.0, 2.0, 1.85, 2.0], False),
        ([2.0, 2.0, 1.85, 2.0, 1.9], False),
    ],
)
def test_the_gate_closes_below_a_share_and_opens_at_the_whole(means, closed):
    method = AntiSd(warmup_steps=2)
    assert (method.after(means).strength == 0.0) == closed
    assert AntiSd(warmup_steps=2, close_below=0.0).after(means).strength == 1.0
    state = {"gate": means[:-1]}
    mixed, shuffled = Mixed(first=Uniform(), second=method, how="sum"), Shuffled(of=method)
    kept = mixed.with_state({"second": copy.deepcopy(state)}, {"teacher_entropy": means[-1]}.get)
    assert (kept.second.strength == 0.0) == closed
    kept = shuffled.with_state(state, {"teacher_entropy": means[-1]}.get)
    assert (kept.of.strength == 0.0) == closed and state == {"gate": means}
    assert Shuffled(of=Gear()).with_state({}, {}.get) == Shuffled(of=Gear())


def test_a_resumed_run_remembers_the_means(tmp_path, tiny_model):
    """Means of every batch are in the checkpoint, so the gate is where it was."""
    method = AntiSd(warmup_steps=1, close_below=1.0)
    options = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "rows": rows(12),
        "learning_rate": 0.02,
    }
    whole = running.trained(tmp_path, tiny_model, method, **options)
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text("{}")  # so the first is taken
    resumed = running.trained(tmp_path, tiny_model, method, resume=True, **options)
    means = whole.run_state["method"]["gate"]
    assert resumed.run_state["method"]["gate"] == means and len(means) == 4
    logged = [entry["gear/gate"] for entry in whole.state.log_history if "gear/gate" in entry]
    assert logged == pytest.approx(means)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
