"""The sums of the distillation term and the anchor, by hand."""

import math

import pytest
import torch

from engines import tiny
from gear_rl.credit.distillation import DistilledBatch, distillation_sums
from gear_rl.signals.batch import Prompts
from gear_rl.traits import Distillation

PENALTIES = {
    "urkl": lambda r: r * r / 2,
    "rkl": lambda r: (r + 1) ** 2 / 2,
    "ufkl": lambda r: math.exp(-r) + r,
    "fkl": lambda r: math.exp(-r),
}


@pytest.mark.parametrize("anchor", PENALTIES)
def test_the_anchor_sums_the_penalties_of_log_pi_minus_log_ref(anchor):
    torch.manual_seed(0)
    model, ids = tiny.model(len(tiny.tokenizer())), torch.tensor([[5, 6, 7], [8, 9, 0]])
    hidden = torch.randn(2, 3, model.config.hidden_size)
    weight = model.get_output_embeddings().weight
    logprob = (hidden @ weight.T).float().log_softmax(-1).gather(-1, ids[..., None])[..., 0].detach()
    reference = logprob + torch.tensor([[0.5, -1.0, torch.nan], [-torch.inf, 0.25, 9.0]])
    batch = DistilledBatch(
        distillation=Distillation(anchor=anchor, anchor_weight=0.5),
        ids=ids,
        attention=ids.sign(),
        mask=ids > 0,
        weight=torch.zeros(2, 3),
        teacher=Prompts(ids_BP=ids, attention_BP=ids.sign()),
        old_logprob=None,
        reference=reference,
    )
    distilled, anchored, counts = distillation_sums(batch, hidden, hidden, model, None, None, 1.0)
    # r is log pi - log pi_ref; NaN was not computed, and what is not finite is left out and counted.
    assert anchored.item() == pytest.approx(0.5 * sum(map(PENALTIES[anchor], (-0.5, 1.0, -0.25))), rel=1e-5)
    assert distilled.item() == 0.0 and counts.tolist() == [0.0, 0.0, 1.0]
