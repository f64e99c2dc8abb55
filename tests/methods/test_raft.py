"""RAFT (arXiv:2304.06767): who is imitated, by hand."""

import torch

from gear_rl.methods import Raft
from gear_rl.types import TokenSignals


def test_the_best_of_a_group_are_imitated_and_nobody_where_all_are_alike():
    signals = TokenSignals(
        mask=torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [0, 0]]).bool(),
        group_B=torch.tensor([7, 7, 7, 2, 2, 7]),
        reward_B=torch.tensor([-1.0, 0.5, 0.5, 3.0, 3.0, 0.0]),
    )
    credit = Raft()(torch.zeros(6), signals)
    assert credit.advantage.tolist() == [[0, 0], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]]
    assert credit.segment_id.tolist() == [[0, 0], [0, -1], [0, 0], [0, 0], [0, 0], [-1, -1]]
