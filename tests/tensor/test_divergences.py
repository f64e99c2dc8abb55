"""Divergences over the vocabulary in tiles: the definition is the full log-softmax in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.divergences import DIVERGENCES, divergences
from gear_rl.tensor.logits import Head
from tensor.tables import PROPERTY, tiled
from tensor.test_logits import LargestTensor, full_log_softmax, large, seeded, small

OF_BOTH = ("forward_divergence", "js_divergence")


def naive(student, head, teacher, teacher_head=None):
    """Each by its definition: KL(q || p), Jensen-Shannon, -sum q log q, the variance of -log p."""
    log_p, log_q = full_log_softmax(student, head), full_log_softmax(teacher, teacher_head or head)
    p, q = log_p.exp(), log_q.exp()
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    surprise = -(p * log_p).sum(-1, keepdim=True)
    return {
        "forward_divergence": (q * (log_q - log_p)).sum(-1),
        "js_divergence": ((p * (log_p - log_m)).sum(-1) + (q * (log_q - log_m)).sum(-1)) / 2,
        "teacher_entropy": -(q * log_q).sum(-1),
        "student_varentropy": (p * (-log_p - surprise).square()).sum(-1),
    }


def agrees(found, expected, atol=2e-6, rtol=1e-6):
    for name, value in found.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected[name], rtol=rtol, atol=atol, msg=name)


def test_by_hand():
    """p = 0.9, 0.1 and q = 0.5, 0.5, so m = 0.7, 0.3; -log p is 0.105 or 2.303."""
    student, teacher = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    found = divergences(student, Head(weight_VD=torch.eye(2)), teacher, names=DIVERGENCES)
    expected = {
        "forward_divergence": 0.5 * math.log(5 / 9) + 0.5 * math.log(5),  # 0.511; the reverse is 0.368
        "js_divergence": (
            0.9 * math.log(9 / 7) + 0.1 * math.log(1 / 3) + 0.5 * math.log(5 / 7) + 0.5 * math.log(5 / 3)
        )
        / 2,
        "teacher_entropy": math.log(2),
        "student_varentropy": 0.9 * 0.1 * math.log(9) ** 2,  # two values log 9 apart: p (1 - p) distance^2
    }
    assert list(found) == list(DIVERGENCES)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, abs=1e-6), name


def test_two_that_share_nothing():
    """p is on the first token, q on the second: log 2 between them, and the gap of the logits forwards."""
    student, teacher = torch.tensor([[200.0, 0.0]]), torch.tensor([[0.0, 200.0]])
    found = divergences(student, Head(weight_VD=torch.eye(2)), teacher, names=DIVERGENCES)
    assert found["js_divergence"].item() == torch.tensor(math.log(2)).item()
    assert found["forward_divergence"].item() == pytest.approx(200.0)
    assert found["teacher_entropy"].item() == found["student_varentropy"].item() == 0.0


@pytest.mark.parametrize("vocab_tile", [1, 3, 5, 10, 11, 12, 100])  # 11 tokens: none but 1 and 11 divide
@pytest.mark.parametrize("token_tile", [1, 2, 7, 100])
def test_every_tile_size_gives_the_definition(token_tile, vocab_tile):
    student, teacher, _, weight = small()
    head = Head(weight_VD=weight)
    found = tiled(
        divergences, student, head, teacher, names=DIVERGENCES, token_tile=token_tile, vocab_tile=vocab_tile
    )
    agrees(found, naive(student, head, teacher), atol=5e-6)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
    softcap=st.sampled_from([None, 2.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    biased=st.booleans(),
)
def test_every_kind_of_head_gives_the_definition(seed, scale, softcap, temperature, biased):
    student, teacher, _, weight = small(seed=seed)
    bias = torch.randn(11, generator=seeded(seed + 1)) if biased else None
    head = Head(weight_VD=weight, bias_V=bias, scale=scale, softcap=softcap, temperature=temperature)
    found = tiled(divergences, student, head, teacher, names=DIVERGENCES, token_tile=3, vocab_tile=4)
    agrees(found, naive(student, head, teacher), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_values_are_not_differences_of_large_ones(dtype):
    """Over 50,000 tokens; a divergence of 1e-9 nats is still right in two digits."""
    student, teacher, _, head = large(dtype)
    found, expected = divergences(student, head, teacher, names=DIVERGENCES), naive(student, head, teacher)
    for name in OF_BOTH:
        assert expected[name].min() < 1e-13 and expected[name].max() > 0.04
        torch.testing.assert_close(found[name].double(), expected[name], rtol=3e-3, atol=1e-13)
    for name, gate in (
        ("forward_divergence", 5e-6),
        ("js_divergence", 1e-6),
        ("teacher_entropy", 1.2e-5),
        ("student_varentropy", 3e-5),
    ):
        assert (found[name] - expected[name]).abs().max() <= gate, name
    torch.testing.assert_close(
        found["student_varentropy"].double(), expected["student_varentropy"], rtol=2e-5, atol=0
    )


@PROPERTY
@given(seed=st.integers(0, 10_000), nudge=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 1.0, 30.0]))
def test_the_bounds_hold(seed, nudge):
    student, noise, _, weight = small(num_tokens=5, vocab=13, seed=seed)
    found = tiled(
        divergences,
        student,
        Head(weight_VD=weight * 3),
        student + nudge * noise,
        names=DIVERGENCES,
        vocab_tile=4,
    )
    for values in found.values():
        assert (values >= 0).all()
    if nudge == 0.0:
        assert not found["forward_divergence"].any() and not found["js_divergence"].any()
    assert (found["js_divergence"] <= math.log(2)).all()
    assert (found["teacher_entropy"] <= math.log(13) + 1e-6).all()


def test_a_sum_that_rounds_past_log_two_is_held_there():
    """A thousand tokens in two halves that share nothing: unclamped, some of these rows reach 0.693148."""
    halves = torch.cat([torch.eye(2)] * 500) + 0.01 * torch.randn(1000, 2, generator=seeded())
    student = torch.tensor([[200.0, 0.0]]) + torch.rand(50, 2, generator=seeded(1))
    found = divergences(student, Head(weight_VD=halves), student.flip(1), names=["js_divergence"])
    limit = torch.tensor(math.log(2))
    assert (found["js_divergence"] <= limit).all() and (found["js_divergence"] > limit - 1e-5).all()


@pytest.mark.parametrize(
    "names", [[], *([name] for name in DIVERGENCES), list(OF_BOTH), list(DIVERGENCES[2:])]
)
def test_only_the_requested_names_come_back_and_they_are_the_same(names):
    student, teacher, _, weight = small()
    head = Head(weight_VD=weight)
    every = tiled(divergences, student, head, teacher, names=DIVERGENCES, vocab_tile=4)
    # A side that no name needs may be missing.
    student = None if names == ["teacher_entropy"] else student
    teacher = None if names == ["student_varentropy"] else teacher
    found = tiled(divergences, student, head, teacher, names=names, vocab_tile=4)
    assert list(found) == names
    assert all(torch.equal(found[name], every[name]) for name in names)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_hidden_state_that_is_not_finite_spoils_its_own_row_only(value, whose):
    student, teacher, _, weight = small()
    head = Head(weight_VD=weight)
    clean = tiled(divergences, student, head, teacher, names=DIVERGENCES, token_tile=4, vocab_tile=3)
    broken = (student if whose == "student" else teacher).clone()
    broken[2, 1] = value
    pair = (broken, teacher) if whose == "student" else (student, broken)
    found = tiled(divergences, pair[0], head, pair[1], names=DIVERGENCES, token_tile=4, vocab_tile=3)
    others = torch.arange(7) != 2
    spared = "teacher_entropy" if whose == "student" else "student_varentropy"
    for name in DIVERGENCES:
        assert torch.equal(found[name][others], clean[name][others])
        assert found[name][2].isfinite() == (name == spared)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_no_tensor_of_tokens_by_vocabulary_ever_exists(softcap):
    student, teacher, _, weight = small(70, 900, 3)
    head = Head(weight_VD=weight, softcap=softcap, temperature=0.9)
    with LargestTensor() as largest:
        tiled(divergences, student, head, teacher, names=DIVERGENCES, token_tile=20, vocab_tile=150)
    assert largest.numel == 20 * 150
