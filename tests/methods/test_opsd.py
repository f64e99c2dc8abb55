"""OPSD (arXiv:2601.18734): how much is distilled where, and which term it is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Opsd, Sdpo, Shuffled, Uniform
from gear_rl.tensor.distill import distillation_terms
from gear_rl.tensor.logits import Head
from gear_rl.traits import Distillation, distillation_of, is_additive
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, rollouts

MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
A = torch.tensor([2.0, -1.0, 3.0])

both = pytest.mark.parametrize("cls", [Opsd, Sdpo])
"""SDPO differs from OPSD in the term alone."""


@both
@pytest.mark.parametrize(
    ("strength", "advantage", "weight"),
    [
        # all of it is distilled, nothing of the advantage is left
        (1.0, [[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 1], [1, 1, 0], [0, 0, 0]]),
        # 3/4 of A: 1.5 and -0.75
        (0.25, [[1.5, 0, 1.5], [-0.75, -0.75, 0], [0, 0, 0]], [[0.25, 0, 0.25], [0.25, 0.25, 0], [0, 0, 0]]),
        (0.0, [[2, 0, 2], [-1, -1, 0], [0, 0, 0]], None),
    ],
)
def test_worked_by_hand(cls, strength, advantage, weight):
    credit = cls(strength=strength)(A, TokenSignals(mask=MASK))
    assert credit.advantage.tolist() == advantage
    assert (credit.distill_weight if weight is None else credit.distill_weight.tolist()) == weight
    assert credit.segment_id.tolist() == [[0, -1, 0], [0, 0, -1], [-1, -1, -1]]


@both
@PROPERTY
@given(signals=rollouts(), strength=st.sampled_from([0.0, 0.25, 0.6, 1.0]))
def test_advantage_and_distillation_share_each_token(cls, signals, strength):
    """The loop that defines it: 1 - strength of the advantage, strength of the term, 0 on masked tokens."""
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    credit = cls(strength=strength)(advantage_B, signals)
    for b, row in enumerate(signals.mask.tolist()):
        for t, counts in enumerate(row):
            expected = (1 - strength) * advantage_B[b].item() if counts else 0.0
            assert credit.advantage[b, t].item() == pytest.approx(expected)
            weight = 0.0 if credit.distill_weight is None else credit.distill_weight[b, t].item()
            assert weight == pytest.approx(strength if counts else 0.0)


@both
def test_switched_off_it_asks_for_no_teacher_and_is_grpo(cls):
    off = cls(strength=0.0)
    assert off.distillation is None and distillation_of(off) is None and not is_additive(off)
    credit = off(A, TokenSignals(mask=MASK))
    assert torch.equal(credit.advantage, Uniform()(A, TokenSignals(mask=MASK)).advantage)


@both
def test_a_method_that_distils_is_additive_and_its_shuffle_is(cls):
    assert is_additive(cls()) and cls().needs == ()
    shuffled = Shuffled(of=cls(strength=0.5))
    assert distillation_of(shuffled) == cls().distillation
    credit = shuffled(A, TokenSignals(mask=MASK, token_id=MASK.long()))
    assert credit.distill_weight.tolist() == [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0, 0]]


def test_the_released_term():
    assert Opsd().distillation == Distillation(beta=0.5, temperature=1.1, top_k=None, tail=False)


def test_the_options_of_the_released_code():
    found = Opsd(beta=0.0, top_k=50, temperature=1.0).distillation
    assert found == Distillation(beta=0.0, top_k=50, top_k_of="teacher", tail=False)


def test_the_divergence_at_the_released_temperature_by_hand():
    """p = (8/9, 1/9) and q even at temperature 1.1; m = (25/36, 11/36).

    1/2 (1/2 ln(18/25) + 1/2 ln(18/11)) + 1/2 (8/9 ln(32/25) + 1/9 ln(4/11))
    """
    term = Opsd().distillation
    student = torch.tensor([[math.log(8) * 1.1, 0.0]])
    found, _ = distillation_terms(
        student,
        torch.zeros(1, 2),
        torch.tensor([0]),
        Head(weight_VD=torch.eye(2)),
        beta=term.beta,
        top_k=term.top_k,
        tail=term.tail,
        temperature=term.temperature,
        max_nats=term.max_nats,
    )
    teacher = (math.log(18 / 25) + math.log(18 / 11)) / 2
    own = 8 / 9 * math.log(32 / 25) + math.log(4 / 11) / 9
    assert found.item() == pytest.approx((teacher + own) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -0.1}, "strength: -0.1 is not a share"),
        ({"strength": 1.5}, "strength: 1.5 is not a share"),
        ({"beta": 2.0}, "beta: 2.0 must be 0"),
        ({"temperature": 0.0}, "temperature: 0.0 must be a finite number above 0"),
        ({"top_k": 0}, "top_k: 0; give 1 or more"),
        ({"top_k": 0, "strength": 0.0}, "top_k: 0; give 1 or more"),
    ],
)
def test_a_setting_outside_its_range_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Opsd(**settings)
