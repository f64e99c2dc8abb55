"""SC-GRPO as inferred: weights by hand, and the context that it asks for."""

import torch

from gear_rl.methods import ScGrpo
from gear_rl.types import TokenSignals


def test_each_token_has_the_weight_of_its_own_divergence():
    mask = torch.tensor([[True, True, False, True]])
    signals = TokenSignals(
        mask=mask,
        divergence=torch.tensor([[0.2, 1.2, 9.0, 0.7]]),
        student_logprob=torch.tensor([[-1.0, -1.0, 0.0, -1.0]]),
        teacher_logprob=torch.tensor([[-0.9, -0.1, 0.0, -0.2]]),
    )
    # z is 0, 1 and 0.5, a weight 1 + 4 z, and their mean 3; all agree with the reward, so none is an aftermath.
    credit = ScGrpo()(torch.tensor([3.0]), signals)
    assert torch.allclose(credit.advantage, torch.tensor([[1.0, 5.0, 0.0, 3.0]]))
    assert credit.segment_id.tolist() == [[0, 1, -1, 2]], "no segment"
