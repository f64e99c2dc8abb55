"""The ceiling: true advantages by formula, and the oracle that gives them as credit."""

import pytest
import torch

from gear_rl.arena.token_truth import Truth
from gear_rl.lab.oracle import Oracle, expected_of_prompts, true_advantages
from gear_rl.types import TokenSignals

THREE = {
    "decision": (-1, 0, -1, 1, -1),
    "right": (True, True, False, False, False),
    "right_id": (5, 6, 7, 8, 9),
    "lost": ((0,), (), (1, 2), (), (2,)),
    "num_decisions": 3,
}
CHANCE, EXPECTED = [0.75, 0.5, 0.5, 0.25, 0.5], [0.9, 0.9, 0.125]


def test_a_graded_reward_by_hand() -> None:
    """Form in 0, a right decision in 1, lost form in 2 (that decision 1 came all the same), a wrong one in 3, and
    decision 2 lost for good in 4."""
    worth = true_advantages(Truth(exact=False, **THREE), CHANCE, EXPECTED)
    want = [0.25 * 0.5, 0.5, -0.5 * (0.25 + 0.125), -0.25, -0.5 * 0.125]
    assert worth == pytest.approx([value / 3 for value in want])


def test_an_exact_reward_by_hand() -> None:
    """Worth something as long as nothing is wrong, times the chance that all that is left comes right."""
    worth = true_advantages(Truth(exact=True, **THREE), CHANCE, EXPECTED)
    rest = 0.25 * 0.125
    assert worth == pytest.approx([0.25 * 0.5 * rest, 0.5 * rest, -0.5 * rest, -0.25 * 0.125, 0.0])


def test_lost_decisions_are_expected_from_siblings() -> None:
    shown = Truth(exact=False, **THREE)
    other = Truth(decision=(2,), right=(True,), right_id=(7,), lost=((),), num_decisions=3, exact=False)
    expected = expected_of_prompts([shown, other], [CHANCE, [0.75]], [0, 0])
    assert expected == [[0.5, 0.25, 0.75]] * 2
    apart = expected_of_prompts([shown, other], [CHANCE, [0.75]], [0, 1])
    assert apart[0] == [0.5, 0.25, 0.5], "no sibling reached it: the mean of all"


def test_every_token_gets_its_own_and_the_advantage_is_not_read() -> None:
    mask = torch.tensor([[True, True, False]])
    signals = TokenSignals(mask=mask, true_advantage=torch.tensor([[0.5, -0.25, 9.0]]))
    for advantage in (0.0, -3.0):
        credit = Oracle()(torch.tensor([advantage]), signals)
        assert credit.advantage.tolist() == [[0.5, -0.25, 0.0]]
        assert credit.segment_id.tolist() == [[0, 1, -1]]
