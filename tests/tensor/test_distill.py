"""Distillation terms in tiles: the definition is the full distributions in float64, and autograd."""

import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor import distill
from gear_rl.tensor.distill import distillation_terms, token_logprobs
from gear_rl.tensor.logits import Head
from tensor.tables import PROPERTY
from tensor.test_logits import full_log_softmax, seeded

WIDTH = 5


def naive_divergence(p, q, *, beta, top_k, top_k_of, tail):
    """Written from the formulas, in probabilities over all outcomes at once."""
    if top_k is not None and top_k < p.shape[-1]:
        order = (p if top_k_of == "student" else q).argsort(-1, descending=True)
        p, q = (x.gather(-1, order) for x in (p, q))
        rest = [x[:, top_k:].sum(-1, keepdim=True) for x in (p, q)]
        p, q = p[:, :top_k], q[:, :top_k]
        if tail:
            p, q = (torch.cat(pair, -1) for pair in zip((p, q), rest, strict=True))
        else:
            p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    if beta in (0.0, 1.0):
        a, b = (q, p) if beta == 0.0 else (p, q)
        return (a * (a / b).log()).sum(-1)
    m = beta * q + (1 - beta) * p
    return (beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()).sum(-1)


def naive_terms(student, teacher, token, head, teacher_head, *, temperature, **settings):
    logprob = full_log_softmax(student, head).gather(-1, token[:, None])[:, 0]
    pairs = ((student, head), (teacher, teacher_head))
    p, q = (full_log_softmax(x, replace(h, temperature=h.temperature * temperature)).exp() for x, h in pairs)
    return naive_divergence(p, q, **settings), logprob


def drawn(seed, num_tokens=6, vocab=11, biased=False, **settings):
    """Hidden states of both, tokens, and a head."""
    g = seeded(seed)
    student, teacher = torch.randn(2, num_tokens, WIDTH, generator=g)
    token = torch.randint(vocab, (num_tokens,), generator=g)
    weight = torch.randn(vocab, WIDTH, generator=g)
    bias = torch.randn(vocab, generator=g) if biased else None
    return student, teacher, token, Head(weight_VD=weight, bias_V=bias, **settings)


def trained(head, dtype=torch.float32):
    """The head with leaves of its own, and these."""
    leaves = [
        x.detach().to(dtype, copy=True).requires_grad_()
        for x in (head.weight_VD, head.bias_V)
        if x is not None
    ]
    return replace(head, weight_VD=leaves[0], bias_V=leaves[1] if leaves[1:] else None), leaves


def in_tiles(function, *args, tile_elements, **more):
    with patch.object(distill, "TILE_ELEMENTS", tile_elements):
        return function(*args, **more)


terms_of = st.fixed_dictionaries(
    {
        "beta": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "top_k": st.sampled_from([None, 1, 3, 6, 10, 11, 50]),
        "top_k_of": st.sampled_from(["student", "teacher"]),
        "tail": st.booleans(),
        "temperature": st.sampled_from([0.7, 1.0, 1.1]),
    }
)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    settings=terms_of,
    scale=st.sampled_from([0.5, 1.0]),
    softcap=st.sampled_from([None, 3.0]),
    head_temperature=st.sampled_from([1.0, 0.8]),
    biased=st.booleans(),
    rows_per_tile=st.sampled_from([1, 4, 100]),
)
def test_values_and_gradients_are_those_of_the_loop(
    seed, settings, scale, softcap, head_temperature, biased, rows_per_tile
):
    of_head = {"scale": scale, "softcap": softcap, "temperature": head_temperature}
    student, teacher, token, plain = drawn(seed, biased=biased, **of_head)
    # Any upstream gradient, another for each token and for each of the two outputs.
    up = torch.randn(2, len(token), generator=seeded(seed + 1))

    exact_student = student.double().requires_grad_()
    head, leaves = trained(plain, torch.float64)
    exact = naive_terms(exact_student, teacher, token, head, plain, **settings)
    expected = torch.autograd.grad(
        (exact[0] * up[0]).sum() + (exact[1] * up[1]).sum(), [exact_student, *leaves]
    )

    student.requires_grad_()
    head, leaves = trained(plain)
    found = in_tiles(
        distillation_terms, student, teacher, token, head, plain, tile_elements=11 * rows_per_tile, **settings
    )
    gradients = torch.autograd.grad((found[0] * up[0]).sum() + (found[1] * up[1]).sum(), [student, *leaves])
    for mine, other in zip((*found, *gradients), (*exact, *expected), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), other.detach(), rtol=1e-3, atol=3e-5)
    assert (found[0] >= 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_goes_in_and_float32_comes_out(dtype):
    """The products are exact in float32, and gradients of tiles are summed before they are rounded."""
    student, teacher, token, plain = drawn(2, num_tokens=64)
    low = [x.to(dtype) for x in (student, teacher, plain.weight_VD)]
    found = []
    for student, teacher, weight in (low, [x.float() for x in low]):
        leaves = student.detach().requires_grad_(), weight.detach().requires_grad_()
        head = Head(weight_VD=leaves[1])
        terms, logprob = in_tiles(distillation_terms, leaves[0], teacher, token, head, tile_elements=11)
        assert terms.dtype == logprob.dtype == torch.float32
        found.append((terms.detach(), *torch.autograd.grad(terms.sum(), leaves)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other.to(mine.dtype), rtol=0, atol=0)


# what is not finite


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("top_k", "top_k_of"), [(None, "teacher"), (3, "teacher"), (3, "student")])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_own_token(beta, top_k, top_k_of, bad):
    chosen = {"beta": beta, "top_k": top_k, "top_k_of": top_k_of}
    student, teacher, token, plain = drawn(7)
    student[1, 2], teacher[4, 0] = bad, bad
    head, (weight,) = trained(plain)
    student.requires_grad_()
    terms, logprob = distillation_terms(student, teacher, token, head, plain, **chosen)
    assert terms.isfinite().tolist() == [True, False, True, True, False, True]
    assert logprob.isfinite().tolist() == [True, False, True, True, True, True]
    loss = sum(torch.where(x.isfinite(), x, 0.0).sum() for x in (terms, logprob))
    gradient, of_weight = torch.autograd.grad(loss, (student, weight))

    # A teacher that is not finite takes the term away, and leaves the log-prob its gradient.
    sound, half = [0, 2, 3, 5], [0, 2, 3, 4, 5]
    again, (weight,) = trained(plain)
    clean = student.detach().clone().requires_grad_()
    good, _ = distillation_terms(clean[sound], teacher[sound], token[sound], again, plain, **chosen)
    loss = good.sum() + token_logprobs(clean[half], token[half], again).sum()
    expected, expected_weight = torch.autograd.grad(loss, (clean, weight))
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(of_weight, expected_weight)
    assert (gradient[1] == 0).all() and gradient[4].any()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_token_that_both_find_impossible_adds_nothing(beta):
    """A padded vocabulary: a bias of -inf in the last two rows."""
    student, teacher, token, plain = drawn(8, biased=True)
    token = token.clamp(max=8)
    short = plain.slice(0, 9)
    short = replace(short, bias_V=short.bias_V.clone())
    plain.bias_V[9:] = -math.inf
    results = []
    for head in (plain, short):
        s = student.clone().requires_grad_()
        terms, logprob = distillation_terms(s, teacher, token, head, beta=beta)
        results.append((terms.detach(), *torch.autograd.grad(terms.sum() + logprob.sum(), s)))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_an_infinite_term_is_limited_and_pulls_at_nothing():
    """The teacher finds a token impossible and the student does not: KL(p || q) is infinite."""
    student, teacher, token, plain = drawn(9, biased=True)
    taught = plain.clone()
    taught.bias_V[0] = -math.inf
    student.requires_grad_()
    assert distillation_terms(student, teacher, token, plain, taught)[0].tolist() == [math.inf] * 6
    terms = distillation_terms(student, teacher, token, plain, taught, max_nats=20.0)[0]
    assert terms.tolist() == [20.0] * 6
    assert (torch.autograd.grad(terms.sum(), student)[0] == 0).all()


def test_peaked_distributions_keep_a_tail():
    """All mass on one token in float32: the tail is the others' 2 e^-60, not 1 - 1."""
    head = Head(weight_VD=torch.eye(3))
    student = torch.tensor([[60.0, 0.0, 0.0], [0.0, 60.0, 0.0]]).requires_grad_()
    teacher = torch.tensor([[60.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    terms, _ = distillation_terms(student, teacher, torch.tensor([0, 0]), head, top_k=1, beta=1.0)
    # Agreement, then log(1 / 2 e^-60): the student's tail holds 1.
    assert terms.tolist() == pytest.approx([0.0, 60 - math.log(2)], rel=1e-6)
    assert torch.autograd.grad(terms.sum(), student)[0].isfinite().all()


def test_no_token_is_an_empty_term_that_still_has_a_gradient():
    student, teacher, token, plain = drawn(0)
    student.requires_grad_()
    terms, logprob = distillation_terms(student[:0], teacher[:0], token[:0], plain)
    assert terms.shape == logprob.shape == token_logprobs(student[:0], token[:0], plain).shape == (0,)
    (terms.sum() + logprob.sum()).backward()
    assert (student.grad == 0).all()


@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_autograd_saves_no_logits(beta, top_k):
    """Only the states and the token, whatever the vocabulary; the tiles are computed again."""
    student, teacher, token, plain = drawn(0, num_tokens=40, vocab=500)
    student.requires_grad_()
    given, options = (student, teacher, token, plain), {"beta": beta, "top_k": top_k}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        in_tiles(distillation_terms, *given, tile_elements=500 * 7, **options)
    assert sum(saved) <= 40 * (2 * WIDTH + 1)
