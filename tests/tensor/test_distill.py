"""Distillation terms in tiles: the definition is a loop over the full distributions in float64, and autograd."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor import distill
from gear_rl.tensor.distill import distillation_terms, token_logprobs
from gear_rl.tensor.logits import Head
from tensor.rows import PROPERTY

WIDTH = 5


def distribution(hidden, head, temperature):
    """The definition of the head, float64."""
    logits = head["weight"] @ hidden
    if head["bias"] is not None:
        logits = logits + head["bias"]
    logits = logits * head["scale"]
    if head["softcap"] is not None:
        logits = head["softcap"] * torch.tanh(logits / head["softcap"])
    return torch.softmax(logits / head["temperature"] / temperature, 0)


def slow_terms(student, teacher, token, head, taught, *, beta, top_k, tail, temperature, top_k_of="teacher"):
    """One token after the other, written from the formulas; outcome by outcome, in probabilities."""
    terms, logprobs = [], []
    for h, g, y in zip(student, teacher, token.tolist(), strict=True):
        logprobs.append(distribution(h, head, 1.0)[y].log())
        p, q = distribution(h, head, temperature), distribution(g, taught, temperature)
        outcomes, others = list(range(len(p))), []
        if top_k is not None and top_k < len(p):
            likely = p if top_k_of == "student" else q
            outcomes = sorted(outcomes, key=lambda v: -likely[v].item())
            outcomes, others = outcomes[:top_k], outcomes[top_k:]
        ps, qs = [p[v] for v in outcomes], [q[v] for v in outcomes]
        if others:
            if tail:
                ps, qs = [*ps, sum(p[v] for v in others)], [*qs, sum(q[v] for v in others)]
            else:
                ps, qs = [x / sum(ps) for x in ps], [x / sum(qs) for x in qs]
        term = torch.zeros((), dtype=torch.float64)
        for a, b in zip(ps, qs, strict=True):
            m = beta * b + (1 - beta) * a
            if beta == 0:
                term = term + b * (b / a).log()
            elif beta == 1:
                term = term + a * (a / b).log()
            else:
                term = term + beta * b * (b / m).log() + (1 - beta) * a * (a / m).log()
        terms.append(term)
    return torch.stack(terms), torch.stack(logprobs)


def drawn(seed, num_tokens=6, vocab=11, biased=False, **settings):
    """Hidden states of both, tokens, and a head as a dictionary of float32 leaves."""
    g = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, num_tokens, WIDTH, generator=g)
    token = torch.randint(vocab, (num_tokens,), generator=g)
    head = {"scale": 1.0, "softcap": None, "temperature": 1.0} | settings
    head["weight"] = torch.randn(vocab, WIDTH, generator=g)
    head["bias"] = torch.randn(vocab, generator=g) if biased else None
    return student, teacher, token, head


def in_tiles(function, *args, tile_elements, **more):
    with patch.object(distill, "TILE_ELEMENTS", tile_elements):
        return function(*args, **more)


def as_head(head):
    return Head(
        weight_VD=head["weight"],
        bias_V=head["bias"],
        scale=head["scale"],
        softcap=head["softcap"],
        temperature=head["temperature"],
    )


def doubled(head, trained=True):
    copy = dict(head)
    for name in ("weight", "bias"):
        if head[name] is not None:
            copy[name] = head[name].double().detach().requires_grad_(trained)
    return copy


def trained(head):
    copy = dict(head)
    for name in ("weight", "bias"):
        if head[name] is not None:
            copy[name] = head[name].clone().requires_grad_()
    return copy


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
    given_=terms_of,
    scale=st.sampled_from([0.5, 1.0]),
    softcap=st.sampled_from([None, 3.0]),
    head_temperature=st.sampled_from([1.0, 0.8]),
    biased=st.booleans(),
    rows_per_tile=st.sampled_from([1, 4, 100]),
)
def test_values_and_gradients_are_those_of_the_loop(
    seed, given_, scale, softcap, head_temperature, biased, rows_per_tile
):
    settings = {"scale": scale, "softcap": softcap, "temperature": head_temperature}
    student, teacher, token, plain = drawn(seed, biased=biased, **settings)
    # Any upstream gradient, another for each token and for each of the two outputs.
    up = torch.randn(2, len(token), generator=torch.Generator().manual_seed(seed + 1))

    wide = doubled(plain)
    exact_student = student.double().requires_grad_()
    exact = slow_terms(exact_student, teacher.double(), token, wide, doubled(plain, False), **given_)
    leaves = [exact_student, wide["weight"], *([wide["bias"]] if biased else [])]
    expected = torch.autograd.grad((exact[0] * up[0]).sum() + (exact[1] * up[1]).sum(), leaves)

    head = trained(plain)
    student.requires_grad_()
    found = in_tiles(
        distillation_terms,
        student,
        teacher,
        token,
        as_head(head),
        as_head(plain),
        tile_elements=11 * rows_per_tile,
        **given_,
    )
    leaves = [student, head["weight"], *([head["bias"]] if biased else [])]
    gradients = torch.autograd.grad((found[0] * up[0]).sum() + (found[1] * up[1]).sum(), leaves)
    for mine, other in zip((*found, *gradients), (*exact, *expected), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), other.detach(), rtol=1e-3, atol=3e-5)
    assert (found[0] >= 0).all()


LN2 = math.log(2)
HALF = Head(weight_VD=torch.eye(4))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # p = (1/2, 1/4, 1/8, 1/8), q = (1/4, 1/2, 1/8, 1/8)
        # KL(p || q) = 1/2 ln 2 - 1/4 ln 2; KL(q || p) is the same by symmetry
        ({"beta": 1.0}, LN2 / 4),
        ({"beta": 0.0}, LN2 / 4),
        # m = (3/8, 3/8, 1/8, 1/8): 1/2 ln(4/3) + 1/4 ln(2/3), and the same for q
        ({"beta": 0.5}, math.log(4 / 3) / 2 + math.log(2 / 3) / 4),
        # m = 1/4 q + 3/4 p = (7/16, 5/16, ..): 1/4 (1/4 ln(4/7) + 1/2 ln(8/5)) + 3/4 (1/2 ln(8/7) + 1/4 ln(4/5))
        (
            {"beta": 0.25},
            (math.log(4 / 7) / 4 + math.log(8 / 5) / 2) / 4
            + (math.log(8 / 7) / 2 + math.log(4 / 5) / 4) * 3 / 4,
        ),
        # The teacher's likeliest is the second token: (1/4, 3/4) against (1/2, 1/2)
        ({"beta": 1.0, "top_k": 1}, math.log(1 / 2) / 4 + math.log(3 / 2) * 3 / 4),
        ({"beta": 0.0, "top_k": 1}, math.log(2) / 2 + math.log(2 / 3) / 2),
        # Normalised to 1 over one token, everybody agrees
        ({"beta": 1.0, "top_k": 1, "tail": False}, 0.0),
        # Over the first two: (2/3, 1/3) against (1/3, 2/3)
        ({"beta": 1.0, "top_k": 2, "tail": False}, LN2 / 3),
        # The rest is 1/4 in both and adds nothing
        ({"beta": 1.0, "top_k": 2}, LN2 / 4),
        ({"beta": 1.0, "max_nats": 0.1}, 0.1),
        # The square roots of the probabilities, normalised: 1 / (sqrt(1/2) + 1/2 + 2 sqrt(1/8)) = Z
        (
            {"beta": 1.0, "temperature": 2.0},
            (math.sqrt(1 / 2) - 1 / 2) / (math.sqrt(1 / 2) + 1 / 2 + 2 * math.sqrt(1 / 8)) * LN2 / 2,
        ),
    ],
)
def test_worked_by_hand(settings, expected):
    student = torch.tensor([[1 / 2, 1 / 4, 1 / 8, 1 / 8]]).log()
    teacher = torch.tensor([[1 / 4, 1 / 2, 1 / 8, 1 / 8]]).log()
    terms, logprob = distillation_terms(student, teacher, torch.tensor([2]), HALF, **settings)
    assert terms.item() == pytest.approx(expected, abs=1e-6)
    # The temperature of the term is not the policy's: log(1/8) stays.
    assert logprob.item() == pytest.approx(-3 * LN2, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The student's likeliest is the first token: p' = (1/2, 1/2), q' = (1/8, 7/8)
        ({"top_k_of": "student", "beta": 1.0}, math.log(4) / 2 + math.log(4 / 7) / 2),
        ({"top_k_of": "student", "beta": 0.0}, math.log(1 / 4) / 8 + math.log(7 / 4) * 7 / 8),
        # The teacher's is the last: p' = (1/8, 7/8), q' = (5/8, 3/8)
        ({"top_k_of": "teacher", "beta": 1.0}, math.log(1 / 5) / 8 + math.log(7 / 3) * 7 / 8),
        ({"beta": 1.0}, math.log(1 / 5) / 8 + math.log(7 / 3) * 7 / 8),
    ],
)
def test_whose_likeliest_tokens_are_compared(settings, expected):
    """p = (1/2, 1/4, 1/8, 1/8), q = (1/8, 1/8, 1/8, 5/8), one token and the rest."""
    student = torch.tensor([[1 / 2, 1 / 4, 1 / 8, 1 / 8]]).log()
    teacher = torch.tensor([[1 / 8, 1 / 8, 1 / 8, 5 / 8]]).log()
    found, _ = distillation_terms(student, teacher, torch.tensor([0]), HALF, top_k=1, **settings)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_the_gradient_takes_the_students_choice_as_a_constant():
    """KL(p' || q'), p' = (a, 1 - a), a = p_0: d/dx_v = (ln(a / b) - ln((1 - a) / (1 - b))) a (1[v = 0] - p_v).

    a = 1/2, b = 1/8: the bracket is ln 7.
    """
    student = torch.tensor([[1 / 2, 1 / 4, 1 / 8, 1 / 8]]).log().requires_grad_()
    teacher = torch.tensor([[1 / 8, 1 / 8, 1 / 8, 5 / 8]]).log()
    terms, _ = distillation_terms(
        student, teacher, torch.tensor([0]), HALF, top_k=1, top_k_of="student", beta=1.0
    )
    terms.sum().backward()
    expected = torch.tensor([[1 / 4, -1 / 8, -1 / 16, -1 / 16]]) * math.log(7)
    torch.testing.assert_close(student.grad, expected, atol=1e-6, rtol=1e-5)


def test_which_of_two_different_directions_is_which():
    """p = (9/10, 1/10), q even: reverse 0.9 ln 1.8 + 0.1 ln 0.2, forward (ln 5/9 + ln 5) / 2."""
    student, teacher = torch.tensor([[0.9, 0.1]]).log(), torch.zeros(1, 2)
    head, token = Head(weight_VD=torch.eye(2)), torch.tensor([0])
    reverse = distillation_terms(student, teacher, token, head, beta=1.0)[0].item()
    forward = distillation_terms(student, teacher, token, head, beta=0.0)[0].item()
    assert reverse == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), abs=1e-6)
    assert forward == pytest.approx((math.log(5 / 9) + math.log(5)) / 2, abs=1e-6)


@PROPERTY
@given(seed=st.integers(0, 10_000), given_=terms_of, nudge=st.sampled_from([0.0, 1e-7, 1e-4]))
def test_no_term_is_negative_and_agreement_costs_nothing(seed, given_, nudge):
    student, noise, token, head = drawn(seed)
    head["weight"] *= 4
    found = distillation_terms(student, student + nudge * noise, token, as_head(head), **given_)[0]
    assert (found >= 0).all()
    if nudge == 0.0:
        assert found.max() <= 1e-6


def test_a_teacher_of_another_width_with_a_head_of_its_own():
    student, _, token, plain = drawn(3)
    taught = drawn(4, softcap=2.0)[3]
    taught["weight"] = torch.randn(11, 3, generator=torch.Generator().manual_seed(5))
    teacher = torch.randn(6, 3, generator=torch.Generator().manual_seed(6))
    found = distillation_terms(student, teacher, token, as_head(plain), as_head(taught), beta=0.5)[0]
    settings = {"beta": 0.5, "top_k": None, "tail": True, "temperature": 1.0}
    exact, _ = slow_terms(
        student.double(), teacher.double(), token, doubled(plain), doubled(taught), **settings
    )
    torch.testing.assert_close(found.double(), exact.detach(), rtol=1e-4, atol=1e-6)


def test_the_teacher_is_a_constant():
    student, teacher, token, plain = drawn(0)
    taught = trained(plain)
    teacher.requires_grad_()
    student.requires_grad_()
    terms, _ = distillation_terms(student, teacher, token, as_head(plain), as_head(taught))
    terms.sum().backward()
    assert student.grad is not None and teacher.grad is None and taught["weight"].grad is None


def test_tied_weights_gather_the_gradient_of_both_uses():
    """The embedding that made the hidden state is the head: both paths count, the teacher's does not."""
    _, teacher, token, plain = drawn(1)
    weight = plain["weight"].clone().requires_grad_()
    terms, _ = distillation_terms(weight[token], teacher, token, Head(weight_VD=weight), beta=0.5)
    terms.sum().backward()
    exact = plain["weight"].double().requires_grad_()
    settings = {"beta": 0.5, "top_k": None, "tail": True, "temperature": 1.0}
    head = dict(plain) | {"weight": exact}
    slow, _ = slow_terms(exact[token], teacher.double(), token, head, doubled(plain, False), **settings)
    slow.sum().backward()
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_goes_in_and_float32_comes_out(dtype):
    """The products are exact in float32, and gradients of tiles are summed before they are rounded."""
    student, teacher, token, plain = drawn(2, num_tokens=64)
    low = {name: x.to(dtype) for name, x in (("s", student), ("t", teacher), ("w", plain["weight"]))}
    grads = []
    for scale_up in (False, True):
        s = (low["s"].float() if scale_up else low["s"]).detach().requires_grad_()
        w = (low["w"].float() if scale_up else low["w"]).detach().requires_grad_()
        t = low["t"].float() if scale_up else low["t"]
        terms, logprob = in_tiles(distillation_terms, s, t, token, Head(weight_VD=w), tile_elements=11)
        assert terms.dtype == logprob.dtype == torch.float32
        grads.append((terms.detach(), *torch.autograd.grad(terms.sum(), (s, w))))
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other.to(mine.dtype), rtol=0, atol=0)


# what is not finite


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("top_k", "top_k_of"), [(None, "teacher"), (3, "teacher"), (3, "student")])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_own_token(beta, top_k, top_k_of, bad):
    chosen = {"beta": beta, "top_k": top_k, "top_k_of": top_k_of}
    student, teacher, token, plain = drawn(7)
    student[1, 2], teacher[4, 0] = bad, bad
    head = trained(plain)
    student.requires_grad_()
    terms, logprob = distillation_terms(student, teacher, token, as_head(head), as_head(plain), **chosen)
    assert terms.isfinite().tolist() == [True, False, True, True, False, True]
    assert logprob.isfinite().tolist() == [True, False, True, True, True, True]
    loss = (
        torch.where(terms.isfinite(), terms, 0.0).sum() + torch.where(logprob.isfinite(), logprob, 0.0).sum()
    )
    gradient, weight = torch.autograd.grad(loss, (student, head["weight"]))

    sound, half = [0, 2, 3, 5], [0, 2, 3, 4, 5]
    again = trained(plain)
    clean = student.detach().clone().requires_grad_()
    good = distillation_terms(
        clean[sound], teacher[sound], token[sound], as_head(again), as_head(plain), **chosen
    )[0]
    # A teacher that is not finite takes the term away, and leaves the log-prob its gradient.
    loss = good.sum() + token_logprobs(clean[half], token[half], as_head(again)).sum()
    expected, expected_weight = torch.autograd.grad(loss, (clean, again["weight"]))
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(weight, expected_weight)
    assert (gradient[1] == 0).all() and gradient[4].any()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_token_that_both_find_impossible_adds_nothing(beta):
    """A padded vocabulary: a bias of -inf in the last two rows."""
    student, teacher, token, plain = drawn(8, biased=True)
    token = token.clamp(max=8)
    short = dict(plain) | {"weight": plain["weight"][:9], "bias": plain["bias"][:9]}
    plain["bias"][9:] = -math.inf
    results = []
    for head in (plain, short):
        s = student.clone().requires_grad_()
        terms, logprob = distillation_terms(s, teacher, token, as_head(head), beta=beta)
        results.append((terms.detach(), *torch.autograd.grad(terms.sum() + logprob.sum(), s)))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_an_infinite_term_is_limited_and_pulls_at_nothing():
    """What the teacher finds impossible and the student does not: KL(p || q) is infinite."""
    student, teacher, token, plain = drawn(9, biased=True)
    taught = dict(plain) | {"bias": plain["bias"].clone()}
    taught["bias"][0] = -math.inf
    student.requires_grad_()
    terms = distillation_terms(student, teacher, token, as_head(plain), as_head(taught))[0]
    assert terms.tolist() == [math.inf] * 6
    terms = distillation_terms(student, teacher, token, as_head(plain), as_head(taught), max_nats=20.0)[0]
    assert terms.tolist() == [20.0] * 6
    assert (torch.autograd.grad(terms.sum(), student)[0] == 0).all()


def test_peaked_distributions_keep_a_tail():
    """All mass on one token in float32: the tail is the others' 2 e^-60, not 1 - 1."""
    head = Head(weight_VD=torch.eye(3))
    student = torch.tensor([[60.0, 0.0, 0.0], [0.0, 60.0, 0.0]]).requires_grad_()
    teacher = torch.tensor([[60.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    terms, _ = distillation_terms(student, teacher, torch.tensor([0, 0]), head, top_k=1, beta=1.0)
    # Agreement, then log(1 / 2 e^-60): the student's tail holds 1.
    assert terms.tolist() == pytest.approx([0.0, 60 - LN2], rel=1e-6)
    assert torch.autograd.grad(terms.sum(), student)[0].isfinite().all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("top_k_of", ["student", "teacher"])
@pytest.mark.parametrize("sharp", [5.0, 10.0, 30.0])
def test_the_tail_of_sharp_distributions_is_that_of_float64(sharp, top_k_of, beta):
    g = torch.Generator().manual_seed(0)
    student, teacher = sharp * torch.randn(2, 200, 50, generator=g)
    token, plain = torch.zeros(200, dtype=torch.long), drawn(0)[3] | {"weight": torch.eye(50)}
    given_ = {"beta": beta, "top_k": 10, "top_k_of": top_k_of, "tail": True, "temperature": 1.0}
    student, exact_student = student.requires_grad_(), student.double().requires_grad_()
    found = distillation_terms(student, teacher, token, as_head(plain), **given_)[0]
    wide = doubled(plain, False)
    exact = slow_terms(exact_student, teacher.double(), token, wide, wide, **given_)[0]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(x.sum(), s)[0] for x, s in ((found, student), (exact, exact_student))]
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("empty_for", ["both", "student", "teacher"])
def test_a_tail_that_is_impossible(empty_for, beta):
    """A bias of -inf on all but the two tokens that are chosen: what both find impossible adds nothing."""
    student, teacher, token, plain = drawn(8, biased=True)
    plain["bias"][:2] += 9.0
    two = dict(plain) | {"bias": plain["bias"].clone()}
    two["bias"][2:] = -math.inf
    heads = [two if empty_for in ("both", whose) else plain for whose in ("student", "teacher")]
    student.requires_grad_()
    terms = distillation_terms(student, teacher, token, *map(as_head, heads), beta=beta, top_k=2)[0]
    gradient = torch.autograd.grad(terms.sum(), student)[0]
    infinite = (empty_for, beta) in (("student", 0.0), ("teacher", 1.0))
    assert terms.isinf().all() if infinite else terms.isfinite().all()
    assert gradient.isfinite().all() and gradient.any() == (not infinite)


def test_no_token_is_an_empty_term_that_still_has_a_gradient():
    student, teacher, token, plain = drawn(0)
    student.requires_grad_()
    terms, logprob = distillation_terms(student[:0], teacher[:0], token[:0], as_head(plain))
    assert (
        terms.shape == logprob.shape == token_logprobs(student[:0], token[:0], as_head(plain)).shape == (0,)
    )
    (terms.sum() + logprob.sum()).backward()
    assert (student.grad == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rows": 10}, "vocabulary 10, but the student has 11"), ({"temperature": 0.5}, "temperature 0.5")],
)
def test_a_teacher_that_cannot_be_compared_is_refused(change, message):
    student, teacher, token, plain = drawn(0)
    taught = dict(plain) | {"temperature": change.get("temperature", 1.0)}
    taught["weight"] = plain["weight"][: change.get("rows", 11)]
    with pytest.raises(ValueError, match=f"teacher_head: {message}"):
        distillation_terms(student, teacher, token, as_head(plain), as_head(taught))


# memory


@pytest.mark.parametrize(("top_k", "top_k_of"), [(None, "teacher"), (5, "teacher"), (5, "student")])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_vocabulary(beta, top_k, top_k_of):
    """Elements saved by autograd: a few numbers per token and no logits, whatever the vocabulary."""
    counts = {}
    for num_tokens in (40, 80):
        for vocab in (50, 500):
            student, teacher, token, plain = drawn(0, num_tokens=num_tokens, vocab=vocab)
            student.requires_grad_()
            saved = []

            def pack(x, saved=saved):
                saved.append(x.numel())
                return x

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                terms, logprob = in_tiles(
                    distillation_terms,
                    student,
                    teacher,
                    token,
                    as_head(plain),
                    beta=beta,
                    top_k=top_k,
                    top_k_of=top_k_of,
                    tile_elements=vocab * 7,
                )
            counts[num_tokens, vocab] = sum(saved)
            (terms.sum() + logprob.sum()).backward()  # the tiles are computed again
            assert student.grad.any()
    assert counts[80, 500] <= 80 * (2 * WIDTH + 1)  # the states and the token
    assert counts[80, 50] == counts[80, 500] <= 2 * counts[40, 50]


@pytest.mark.parametrize("backward", [False, True])
def test_one_tile_of_logits_lives_at_a_time(backward, monkeypatch):
    """How many rows of logits are alive at once, forward and backward: those of one tile, for any N."""
    import gc
    import weakref

    alive, most = weakref.WeakSet(), []
    original = Head.logits
    gc.collect()
    gc.freeze()  # of what the other tests of this process left, nothing is looked at again and again

    def watched(self, hidden, *more):
        gc.collect()
        most.append(sum(len(x) for x in alive) + len(hidden))
        logits = original(self, hidden, *more)
        alive.add(logits)
        return logits

    monkeypatch.setattr(Head, "logits", watched)
    student, teacher, token, plain = drawn(0, num_tokens=30)
    student.requires_grad_()
    terms, _ = in_tiles(distillation_terms, student, teacher, token, as_head(plain), tile_elements=11 * 3)
    if backward:
        most.clear()
        terms.sum().backward()
        assert len(most) == 20, "ten tiles, student and teacher, once more"
    gc.unfreeze()
    assert max(most) <= 2 * 3


def test_the_log_prob_alone_is_that_beside_the_term():
    student, teacher, token, plain = drawn(5, biased=True, softcap=3.0, temperature=0.7)
    student.requires_grad_()
    both = in_tiles(
        distillation_terms, student, teacher, token, as_head(plain), temperature=1.3, tile_elements=22
    )[1]
    alone = in_tiles(token_logprobs, student, token, as_head(plain), tile_elements=22)
    assert torch.equal(both, alone)
    gradients = [torch.autograd.grad(x.sum(), student, retain_graph=True)[0] for x in (both, alone)]
    assert torch.equal(*gradients)
