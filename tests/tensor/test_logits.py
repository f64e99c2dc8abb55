"""Statistics over the vocabulary in tiles: the definition is the full log-softmax in float64."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gear_rl.tensor.distill import distillation_terms
from gear_rl.tensor.logits import Head, predicting_positions, tile_shape, token_statistics
from tensor.tables import PROPERTY, tiled


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def full_log_softmax(hidden, head):
    """The definition: the whole vocabulary at once, float64."""
    logits = hidden.double() @ head.weight_VD.double().T
    if head.bias_V is not None:
        logits = logits + head.bias_V.double()
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return torch.log_softmax(logits / head.temperature, -1)


OF_STUDENT = ("student_logprob", "student_entropy")
EVERY = (*OF_STUDENT, "teacher_logprob", "divergence")


def naive(student, token, head, teacher, teacher_head=None):
    """Each signal by its definition, over the whole vocabulary."""
    log_p, log_q = full_log_softmax(student, head), full_log_softmax(teacher, teacher_head or head)
    p = log_p.exp()
    return {
        "student_logprob": log_p.gather(-1, token[:, None])[:, 0],
        "student_entropy": -(p * log_p).sum(-1),
        "teacher_logprob": log_q.gather(-1, token[:, None])[:, 0],
        "divergence": (p * (log_p - log_q)).sum(-1),
    }


def all_of(student, token, head, teacher=None, teacher_head=None):
    """Its values by name; without a teacher those of the student alone."""
    found = token_statistics(student, token, head, teacher, teacher_head)
    return {name: value for name in EVERY if (value := getattr(found, name)) is not None}


def agrees(found, expected, names, atol):
    assert [*found] == [*names]
    for name, value in found.items():
        assert value.dtype == torch.float32 and not value.requires_grad
        torch.testing.assert_close(value.double(), expected[name], msg=name, atol=atol, rtol=1e-6)


def small(num_tokens=7, vocab=11, width=5, seed=0):
    g = seeded(seed)
    student, teacher = torch.randn(2, num_tokens, width, generator=g)
    token = torch.randint(vocab, (num_tokens,), generator=g)
    return student, teacher, token, torch.randn(vocab, width, generator=g)


def large(dtype=torch.float32):
    """Forty distributions over 50,000 tokens, from open to near certain, and teachers near and far."""
    g = seeded(3)
    weight = torch.randn(50_000, 64, generator=g) / 8
    token = torch.randint(50_000, (40,), generator=g)
    sharp = torch.linspace(1.5, 4.5, 20)[:, None] * torch.randn(20, 64, generator=g)
    peaked = torch.linspace(18, 34, 20)[:, None] * weight[token[20:]]
    student = torch.cat([sharp, peaked])
    # From hardly any divergence to a large one.
    teacher = student + torch.logspace(-4, 0.55, 40)[torch.randperm(40, generator=g), None] * torch.randn(
        40, 64, generator=g
    )
    return student.to(dtype), teacher.to(dtype), token, Head(weight_VD=weight.to(dtype))


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return result


@pytest.mark.parametrize("vocab_tile", [1, 3, 5, 10, 11, 12, 100])  # 11 tokens: none but 1 and 11 divide
@pytest.mark.parametrize("token_tile", [1, 2, 7, 100])
def test_every_tile_size_gives_the_full_log_softmax(token_tile, vocab_tile):
    student, teacher, token, weight = small()
    given = student, token, Head(weight_VD=weight), teacher
    leaves = [x.clone().requires_grad_() for x in (student, weight, teacher)]
    found = tiled(
        all_of,
        leaves[0],
        token,
        Head(weight_VD=leaves[1]),
        leaves[2],
        token_tile=token_tile,
        vocab_tile=vocab_tile,
    )
    agrees(found, naive(*given), EVERY, 2e-6)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
    softcap=st.sampled_from([None, 2.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    biased=st.booleans(),
    taught=st.sampled_from(["no", "by the student's head", "by a head of another width"]),
)
def test_every_kind_of_head_gives_the_full_log_softmax(seed, scale, softcap, temperature, biased, taught):
    student, teacher, token, weight = small(seed=seed)
    bias = torch.randn(11, generator=seeded(seed + 1)) if biased else None
    head = Head(weight_VD=weight, bias_V=bias, scale=scale, softcap=softcap, temperature=temperature)
    other = None
    if taught == "by a head of another width":
        teacher = teacher[:, :3]
        other = Head(weight_VD=weight[:, 2:], softcap=2.0, scale=0.7, temperature=temperature)
    pair = (None, None) if taught == "no" else (teacher, other)
    found = tiled(all_of, student, token, head, *pair, token_tile=3, vocab_tile=4)
    # Rounding grows with the logits: without AVX a divergence of 48 nats was wrong by 6e-5.
    atol = 1e-5 * max(1.0, scale / temperature)
    names = OF_STUDENT if taught == "no" else EVERY
    agrees(found, naive(student, token, head, teacher, other), names, atol)


@pytest.mark.parametrize("tile", [2, 3, 11])
@pytest.mark.parametrize("taught", ["by the student's head", "by a head of its own"])
def test_what_both_find_impossible_adds_nothing(taught, tile):
    """A padded vocabulary: a bias of -inf on tokens at its begin, where a whole tile may be so, and its end."""
    student, teacher, token, weight = small()
    pad = torch.tensor([True] * 3 + [False] * 6 + [True] * 2)
    bias = torch.randn(11, generator=seeded(3))
    full = Head(weight_VD=weight, bias_V=bias.masked_fill(pad, -math.inf))
    short = Head(weight_VD=weight[3:9], bias_V=bias[3:9])
    others = None, None
    if taught == "by a head of its own":
        others = (replace(head, weight_VD=1.5 * head.weight_VD) for head in (full, short))
    token = token.clamp(3, 8)
    found, expected = (
        tiled(all_of, student, tokens, head, teacher, other, token_tile=4, vocab_tile=tile)
        for tokens, head, other in zip((token, token - 3), (full, short), others, strict=True)
    )
    for name in EVERY:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-5)


def test_what_one_alone_finds_impossible():
    """The student's probabilities are 3/4, 1/4, 0, the teacher's 1/2, 0, 1/2."""
    student, teacher = torch.tensor([[3.0, 1.0, 1.0]]).log(), torch.zeros(1, 3)
    cut = [
        Head(weight_VD=torch.eye(3), bias_V=torch.tensor(row))
        for row in ([0, 0, -math.inf], [0, -math.inf, 0])
    ]
    found = all_of(student, torch.tensor([0]), cut[0], teacher, cut[1])
    assert found["divergence"].item() == math.inf
    found = all_of(student, torch.tensor([0]), Head(weight_VD=torch.eye(3)), teacher, cut[1])
    assert found["divergence"].item() == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_hidden_state_that_is_not_finite_spoils_its_own_row_only(value, whose):
    student, teacher, token, weight = small()
    states = {"student": student, "teacher": teacher}
    broken = states | {whose: states[whose].clone()}
    broken[whose][2, 1] = value
    clean, found = (
        tiled(all_of, x["student"], token, Head(weight_VD=weight), x["teacher"], token_tile=4, vocab_tile=3)
        for x in (states, broken)
    )
    others = torch.arange(7) != 2
    for name in EVERY:
        assert torch.equal(found[name][others], clean[name][others])
        spared = name in OF_STUDENT if whose == "teacher" else name == "teacher_logprob"
        assert found[name][2].isfinite() == spared


@PROPERTY
@given(seed=st.integers(0, 10_000), nudge=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 1.0, 30.0]))
def test_no_divergence_is_negative_and_that_of_a_teacher_who_agrees_is_exactly_zero(seed, nudge):
    student, noise, token, weight = small(num_tokens=5, vocab=13, seed=seed)
    for head in (Head(weight_VD=weight * 5, softcap=9.0, temperature=0.7), Head(weight_VD=weight * 3)):
        found = tiled(all_of, student, token, head, student + nudge * noise, vocab_tile=4)
        assert all((value >= 0).all() for name, value in found.items() if "logprob" not in name)
        assert (found["student_entropy"] <= math.log(13) + 1e-6).all()
        if nudge == 0.0:
            assert not found["divergence"].any()
            assert torch.equal(found["student_logprob"], found["teacher_logprob"])


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_no_tensor_of_tokens_by_vocabulary_ever_exists(softcap):
    student, teacher, token, weight = small(num_tokens=70, vocab=900, width=3)
    head = Head(weight_VD=weight, softcap=softcap, temperature=0.9)
    with LargestTensor() as largest:
        tiled(token_statistics, student, token, head, teacher, token_tile=20, vocab_tile=150)
    assert largest.numel == 20 * 150  # and not 70 * 900, nor 20 * 900, nor 70 * 150


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_stay_below_the_gates(dtype):
    """With bfloat16 operands too: their products are exact in float32, and so must the logits be."""
    student, teacher, token, head = large(dtype)
    found, expected = all_of(student, token, head, teacher), naive(student, token, head, teacher)
    assert expected["student_entropy"].min() < 3e-4 and expected["student_entropy"].max() > 9
    assert expected["divergence"].min() < 1e-7 and expected["divergence"].max() > 0.2
    for name in EVERY:
        gate = 1e-5 if name == "student_entropy" else 5e-6
        assert (found[name] - expected[name]).abs().max() <= gate, name


@PROPERTY
@given(
    num_tokens=st.sampled_from([0, 1, 9, 511, 512, 513, 5000]),
    vocab=st.sampled_from([1, 2, 150, 1024, 151_936]),
    width=st.sampled_from([1, 64, 1024, 8192, 2_000_000]),
)
def test_tiles_and_their_weights_are_small_whatever_the_shape(num_tokens, vocab, width):
    weight = torch.empty(1, 1).expand(vocab, width)
    rows, columns = tile_shape(num_tokens, Head(weight_VD=weight))
    assert 1 <= rows <= max(1, num_tokens) and 1 <= columns <= vocab
    assert rows * columns <= 2**19
    assert columns * width <= max(2**21, width)


def test_a_teacher_over_another_distribution_is_refused():
    student, teacher, token, weight = small()
    head, other = Head(weight_VD=weight), Head(weight_VD=torch.ones(12, 5))
    for call in (
        lambda: token_statistics(student, token, head, teacher, other),
        lambda: distillation_terms(student, teacher, token, head, other),
    ):
        with pytest.raises(ValueError, match="teacher_head: vocabulary"):
            call()


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 6])
def test_the_state_before_a_token_predicts_it(num_tokens):
    """The state at position s holds the number s + 1, the position that it predicts."""
    hidden_BSD = torch.arange(1.0, 8.0).view(1, 7, 1) + torch.tensor([0.0, 100.0]).view(2, 1, 1)
    found = predicting_positions(hidden_BSD, num_tokens)[:, :, 0]
    emitted = list(range(7 - num_tokens, 7))
    assert found.tolist() == [emitted, [100 + s for s in emitted]]
