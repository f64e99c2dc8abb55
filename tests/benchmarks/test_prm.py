"""The reward model of the codebook learns, and is one that ``step_scores`` takes."""

import torch

from benchmarks.prm import train_prm
from gear_rl.methods import StepScores
from gear_rl.signals.steps import reward_model


def test_it_learns_and_is_loaded(tmp_path):
    train_prm(tmp_path, steps=2, batch=4, symbols=(2, 3))
    method = StepScores(prm=str(tmp_path), steps="tokens")
    [signal] = [one for one in method.needs if not isinstance(one, str) and one.name == "step_score"]
    logits = reward_model(signal.prm, "cpu")(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert logits.shape == (1, 3, 2) and logits.isfinite().all()
