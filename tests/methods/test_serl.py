"""SERL: RLSD's numbers on answered turns, GRPO's elsewhere, by hand from arXiv:2605.19447."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Rlsd, Serl, Shuffled, Uniform
from gear_rl.tensor.segments import turn_ids
from gear_rl.traits import Scheduled
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, written

LOG = math.log
THREE_TURNS = TokenSignals(
    mask=torch.tensor([[True, True, False, True, True, True, False, True, True, False]]),
    # teacher over student: 1.1, 0.9 | 2, 1/4, 1.1 | 2, 0.9
    student_logprob=torch.tensor(
        [[LOG(0.5), LOG(0.5), 0, LOG(0.4), LOG(0.8), LOG(0.5), 0, LOG(0.4), LOG(0.5), 0]]
    ),
    teacher_logprob=torch.tensor(
        [[LOG(0.55), LOG(0.45), 9, LOG(0.8), LOG(0.2), LOG(0.55), 9, LOG(0.8), LOG(0.45), 9]]
    ),
)


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        # RLSD: 2 * (1/2 + 1/2 * w) with w = 1.1, 0.9 | 1.2 (of 2), 0.8 (of 1/4), 1.1; the last turn had no answer
        (Serl(), 2.0, [2.1, 1.9, 0, 2.2, 1.8, 2.1, 0, 2, 2, 0]),
        # the sign turns the ratio over: 10/11, 10/9 | 0.8 (of 1/2), 1.2 (of 4), 10/11
        (Serl(), -2.0, [-21 / 11, -19 / 9, 0, -1.8, -2.2, -21 / 11, 0, -2, -2, 0]),
        (Serl(answered_only=False), 2.0, [2.1, 1.9, 0, 2.2, 1.8, 2.1, 0, 2.2, 1.9, 0]),
        (Serl(action_tokens=1), 2.0, [2, 1.9, 0, 2, 2, 2.1, 0, 2, 2, 0]),
        (Serl(action_tokens=2), 2.0, [2.1, 1.9, 0, 2, 1.8, 2.1, 0, 2, 2, 0]),
        (Serl(action_tokens=1, answered_only=False), 2.0, [2, 1.9, 0, 2, 2, 2.1, 0, 2, 1.9, 0]),
        (Serl(of=Rlsd(strength=1.0)), 2.0, [2.2, 1.8, 0, 2.4, 1.6, 2.2, 0, 2, 2, 0]),
        (Serl(of=Rlsd(negative_only=True)), 2.0, [2, 2, 0, 2, 2, 2, 0, 2, 2, 0]),
        (Serl(), 0.0, [0] * 10),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), THREE_TURNS)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]).float(), atol=1e-6, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3, 4, -1, 5, 6, -1]]


serls = st.builds(
    Serl,
    of=st.builds(Rlsd, strength=st.sampled_from([0.0, 0.5, 1.0]), clip_width=st.sampled_from([0.2, 0.9])),
    action_tokens=st.sampled_from([None, 1, 2, 5]),
    answered_only=st.booleans(),
)


def actions_by_the_loop(turns: list[int], method: Serl) -> list[bool]:
    """Which tokens of a completion count as actions, from the turns of its tokens (-1: masked)."""
    found = []
    for t, turn in enumerate(turns):
        after = turns[t + 1 :]
        answered = any(other not in (-1, turn) for other in after)
        to_the_end = sum(other == turn for other in after)
        last = method.action_tokens is None or to_the_end < method.action_tokens
        found.append(turn >= 0 and last and (answered or not method.answered_only))
    return found


@PROPERTY
@given(written(), serls)
def test_agrees_with_the_loop(signals, method):
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
    action = torch.tensor([actions_by_the_loop(row.tolist(), method) for row in turn_id])
    rlsd, grpo = (m(advantage_B, signals).advantage for m in (method.of, Uniform()))
    assert torch.equal(method(advantage_B, signals).advantage, torch.where(action, rlsd, grpo))


def test_the_strength_decays_over_fifty_steps():
    assert isinstance(Serl(), Scheduled)
    found = [Serl(action_tokens=3).at_step(step) for step in (0, 25, 50)]
    assert [method.of.strength for method in found] == [0.5, 0.25, 0.0]
    assert {method.action_tokens for method in found} == {3} and found[-1].needs == ()
    assert Shuffled(of=Serl()).at_step(25) == Shuffled(of=Serl().at_step(25), step=25)
