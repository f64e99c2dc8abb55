"""OPSD, SDPO and SDPG with ``sampled=True``: the log-ratio of the sampled token as an additive advantage."""

import dataclasses

import pytest
import torch

from gear_rl.methods import Opsd, Sdpg, Sdpo
from gear_rl.tensor.distill import distillation_terms
from gear_rl.tensor.logits import Head
from gear_rl.traits import is_additive, is_even
from gear_rl.types import TokenSignals

# The teacher finds the first token of each row less likely by half a nat, the second more by two.
SIGNALS = TokenSignals(
    mask=torch.tensor([[True, True, False], [True, True, False]]),
    student_logprob=torch.tensor([[-1.0, -3.0, 0.0]]).expand(2, 3),
    teacher_logprob=torch.tensor([[-1.5, -1.0, 0.0]]).expand(2, 3),
)
A = torch.tensor([2.0, -1.0])
SAMPLED = [
    Opsd(sampled=True, strength=0.25),
    Sdpo(sampled=True),
    Sdpg(sampled=True, weight=0.5, anchor="none"),
]

every = pytest.mark.parametrize("method", SAMPLED, ids=lambda method: method.name)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # 3/4 A + 1/4 (-0.5, 2)
        (SAMPLED[0], [[1.375, 2.0, 0], [-0.875, -0.25, 0]]),
        # nothing of A is left
        (SAMPLED[1], [[-0.5, 2.0, 0], [-0.5, 2.0, 0]]),
        # A + 1/2 (-0.5, 2), then at most one nat, then only where A > 0
        (SAMPLED[2], [[1.75, 3.0, 0], [-1.25, 0.0, 0]]),
        (dataclasses.replace(SAMPLED[2], max_nats=1.0), [[1.75, 2.5, 0], [-1.25, -0.5, 0]]),
        (dataclasses.replace(SAMPLED[2], positive_only=True), [[1.75, 3.0, 0], [-1, -1, 0]]),
    ],
)
def test_worked_by_hand(method, expected):
    credit = method(A, SIGNALS)
    assert credit.advantage.tolist() == expected and credit.distill_weight is None
    assert credit.segment_id.tolist() == [[0, 1, -1], [0, 1, -1]]


@every
def test_its_expected_gradient_is_that_of_the_term_in_the_loss(method):
    """Over every token that could be sampled; the base advantage cancels, as any constant does."""
    student, teacher = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    logits = student.clone().requires_grad_()
    log_p = logits.log_softmax(-1)
    each = TokenSignals(
        mask=torch.ones(5, 1, dtype=torch.bool),
        student_logprob=log_p.detach()[:, None],
        teacher_logprob=teacher.log_softmax(-1)[:, None],
    )
    advantage = method(torch.full((5,), 2.0), each).advantage[:, 0]
    (-log_p.detach().exp() * advantage * log_p).sum().backward()

    term = {"beta": 1.0, "temperature": 1.0, "top_k": None, "ratio_clip": None}
    names = {field.name for field in dataclasses.fields(method)}
    exact = dataclasses.replace(method, sampled=False, **{k: v for k, v in term.items() if k in names})
    weight, given = exact(A[:1], TokenSignals(mask=each.mask[:1])).distill_weight, exact.distillation
    hidden = student[None].clone().requires_grad_()
    terms, _ = distillation_terms(
        hidden, teacher[None], torch.tensor([0]), Head(weight_VD=torch.eye(5)),
        beta=given.beta, temperature=given.temperature, top_k=given.top_k, max_nats=given.max_nats,
    )  # fmt: skip
    (weight * terms).sum().backward()
    assert hidden.grad is not None and logits.grad is not None and hidden.grad.abs().max() > 0.01
    torch.testing.assert_close(logits.grad, hidden.grad[0])


@every
def test_it_is_additive_and_not_even_and_leaves_the_loss_alone(method):
    assert is_additive(method) and not is_even(method) and method.distillation is None
    assert method.needs == ("student_logprob", "teacher_logprob")
    off = dataclasses.replace(method, **{"weight" if method.name == "sdpg" else "strength": 0.0})
    assert not is_additive(off) and is_even(off) and off.needs == () and off.distillation is None
    assert off(A, SIGNALS).advantage.tolist() == [[2, 2, 0], [-1, -1, 0]]


def test_the_anchor_stays_a_term_of_the_loss():
    method = Sdpg(sampled=True, weight=0.5)
    assert method.distillation == Sdpg(weight=0.5).distillation and "reference_logprob" in method.needs
    credit = method(A, dataclasses.replace(SIGNALS, reference_logprob=torch.zeros(2, 3)))
    assert credit.advantage.tolist() == [[1.75, 3.0, 0], [-1.25, 0.0, 0]]
    assert credit.distill_weight is not None and not credit.distill_weight.any()


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Opsd, {"beta": 0.0}, "beta: 0.0 is not read with sampled=True, which stands for beta=1.0; leave it"),
        (Opsd, {"temperature": 2.0}, "temperature: 2.0 is not read"),
        (Opsd, {"top_k": 50}, "top_k: 50 is not read with sampled=True, which stands for top_k=None"),
        (Sdpo, {"ratio_clip": 3.0}, "ratio_clip: 3.0 is not read"),
        (Sdpg, {"beta": 0.5}, "beta: 0.5 is not read"),
    ],
)
def test_a_setting_that_it_does_not_read_is_refused(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(sampled=True, **settings)
    cls(**settings)
    cls(sampled=True, beta=1.0)
