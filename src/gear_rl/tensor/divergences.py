"""Divergences other than the reverse KL, and the spread of each distribution, in tiles over the vocabulary.

Two passes: the first finds the normalisers, the second sums terms that are 0 or more each, so that a small result
is never the difference of large numbers.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.tensor.fold import MASS, OWN, TOP, empty_sums, fold
from gear_rl.tensor.logits import Head, tile_shape

FORWARD, JENSEN_SHANNON = "forward_divergence", "js_divergence"
STUDENT_SPREAD, TEACHER_SPREAD = "student_varentropy", "teacher_entropy"
DIVERGENCES = (FORWARD, JENSEN_SHANNON, TEACHER_SPREAD, STUDENT_SPREAD)
"""What can be computed, by the names of the signals."""
_FAR = 1e30
"""Stands for infinity where it is multiplied by 0."""


@torch.no_grad()
def divergences(
    student_ND: Float[Tensor, "N D"] | None,
    head: Head,
    teacher_ND: Float[Tensor, "N E"] | None = None,
    teacher_head: Head | None = None,
    *,
    names: Sequence[str],
) -> dict[str, Float[Tensor, " N"]]:
    """The divergences of every token that ``names`` lists, float32, exact over the whole vocabulary.

    With ``p`` the student's distribution, ``q`` the teacher's, ``m`` their mean and ``r = log p - log q``:
    ``forward_divergence`` is KL(q || p), summed as ``q (exp(r) - 1 - r)``; ``js_divergence`` is half KL(p || m)
    plus half KL(q || m), summed as ``m (h tanh h - log cosh h)`` with ``h = r / 2``; ``teacher_entropy`` is
    ``-sum q log q`` and ``student_varentropy`` the variance of ``-log p`` under ``p``. A teacher that is the
    student gives exactly 0. The teacher's entropy alone needs no student, the student's varentropy no teacher;
    memory, heads and non-finite states are as for ``token_statistics``.

    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()  # probabilities 4/5 and 1/5
    >>> even = torch.zeros(1, 2)  # one half each
    >>> divergences(hidden, Head(weight_VD=torch.eye(2)), even, names=["forward_divergence"])
    {'forward_divergence': tensor([0.2231])}
    """
    teacher_head = head.for_teacher(teacher_head)
    both = FORWARD in names or JENSEN_SHANNON in names
    student_ND = student_ND if both or STUDENT_SPREAD in names else None
    teacher_ND = teacher_ND if both or TEACHER_SPREAD in names else None
    hidden_ND = student_ND if student_ND is not None else teacher_ND
    if hidden_ND is None:
        return {}
    rows, columns = tile_shape(len(hidden_ND), head)
    buffers = [hidden_ND.new_empty(rows * columns, dtype=torch.float32) for _ in range(4)]
    result = {name: hidden_ND.new_zeros(len(hidden_ND), dtype=torch.float32) for name in names}
    for first in range(0, len(hidden_ND), rows):
        part = slice(first, first + rows)
        student = None if student_ND is None else student_ND[part]
        teacher = None if teacher_ND is None else teacher_ND[part]
        sums = {name: value[part] for name, value in result.items()}
        _add_divergences(sums, student, head, teacher, teacher_head, columns, buffers)
    # Jensen-Shannon may round past log 2, and where a device's expm1 is an ulp short a term may be below 0.
    for name, most in ((FORWARD, None), (JENSEN_SHANNON, math.log(2))):
        if name in result:
            result[name].clamp_(min=0, max=most)
    return result


def _add_divergences(
    sums: dict[str, Tensor],
    student: Tensor | None,
    head: Head,
    teacher: Tensor | None,
    teacher_head: Head,
    columns: int,
    buffers: Sequence[Tensor],
) -> None:
    """Add the values of some tokens to ``sums``, in place."""
    own = None if student is None else _normalisers(student, head, columns, buffers)
    taught = None if teacher is None else _normalisers(teacher, teacher_head, columns, buffers)
    if TEACHER_SPREAD in sums and taught is not None:
        sums[TEACHER_SPREAD].copy_(taught[1] - taught[2])
    if student is None or own is None:
        return
    top, log_mass, mean = (x.float()[:, None] for x in own)
    padded = head.padded or teacher_head.padded
    for begin in range(0, len(head.weight_VD), columns):
        here = head.slice(begin, begin + columns)
        centred = here.logits(student, buffers[0]).sub_(top)
        spare, other = (buffer[: centred.numel()].view_as(centred) for buffer in buffers[2:])
        if STUDENT_SPREAD in sums:
            p = torch.sub(centred, log_mass, out=spare).exp_()
            apart = torch.sub(centred, mean, out=other).square_()
            if padded:
                apart.masked_fill_(p == 0, 0.0)
            sums[STUDENT_SPREAD] += apart.mul_(p).sum(-1)
        if teacher is None or taught is None or not (FORWARD in sums or JENSEN_SHANNON in sums):
            continue
        top_t, log_mass_t, _ = (x.float()[:, None] for x in taught)
        there = here if teacher_head is head else teacher_head.slice(begin, begin + columns)
        log_p = centred.sub_(log_mass)
        log_q = there.logits(teacher, buffers[1]).sub_(top_t).sub_(log_mass_t)
        ratio = torch.sub(log_p, log_q, out=spare)
        p, q = log_p.exp_(), log_q.exp_()
        if padded:  # What both find impossible adds nothing; a term that q makes infinite has the factor 0.
            ratio.masked_fill_(p + q == 0, 0.0).clamp_(max=_FAR)
        if FORWARD in sums:
            sums[FORWARD] += _forward_terms(p, q, ratio).sum(-1)
        if JENSEN_SHANNON in sums:
            sums[JENSEN_SHANNON] += _js_share(ratio).mul_(p.add_(q)).sum(-1) / 2


def _normalisers(
    hidden: Tensor, head: Head, columns: int, buffers: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit, the log of the sum of exp(logit - largest), and the mean of logit - largest; float64.

    ``log p`` is then ``(logit - largest) - log sum``: one subtraction from a number of the logit's own size
    would lose what is small.
    """
    sums = empty_sums(len(hidden), hidden.device)
    for begin in range(0, len(head.weight_VD), columns):
        logits = head.slice(begin, begin + columns).logits(hidden, buffers[0])
        fold(sums, logits, None, padded=head.padded)
    return sums[TOP], sums[MASS].log(), sums[OWN] / sums[MASS]


def _forward_terms(p: Tensor, q: Tensor, ratio: Tensor) -> Tensor:
    # Far from 0 exp(ratio) may overflow where q is 0 in float32, and p - q loses nothing.
    near = q * (ratio.expm1() - ratio)
    return torch.where(ratio.abs() < 1, near, p - q - q * ratio)


def _js_share(ratio: Tensor) -> Tensor:
    """``h tanh h - log cosh h`` of ``h = ratio / 2``: from 0, where the two agree, to log 2."""
    h = (ratio.abs() / 2).clamp(max=_FAR)
    tanh = h.tanh()
    near = h * tanh + (-tanh.square()).log1p() / 2
    small = (-2 * h).exp()
    far = math.log(2) - small.log1p() - 2 * h * small / (1 + small)
    return torch.where(h < 1, near, far)


@torch.no_grad()
def bucketed_divergence(
    student_ND: Float[Tensor, "N D"],
    head: Head,
    token_NK: Int[Tensor, "N K"],
    teacher_NK: Float[Tensor, "N K"],
) -> Float[Tensor, " N"]:
    """KL(student || teacher) over some tokens and all others as one more, nats: at most the exact one.

    ``teacher_NK`` are the teacher's log-probs of the tokens; an id below 0 is none.

    >>> head = Head(weight_VD=torch.eye(3))
    >>> student = torch.tensor([[0.8, 0.1, 0.1]]).log()
    >>> bucketed_divergence(student, head, torch.tensor([[0, -1]]), torch.tensor([[0.5, 0.0]]).log())
    tensor([0.1927])
    """
    parts = list[Tensor]()
    for begin in range(0, len(student_ND), rows := max(1, 2**24 // len(head.weight_VD))):
        part, token = slice(begin, begin + rows), token_NK[begin : begin + rows]
        log_p = head.logits(student_ND[part]).log_softmax(-1).gather(-1, token.clamp(min=0))
        known, log_q = token >= 0, teacher_NK[part]
        terms = torch.where(known, log_p.exp() * (log_p - log_q), 0.0).sum(-1)
        rest_p, rest_q = (
            (1 - torch.where(known, value.exp(), 0.0).sum(-1)).clamp(min=1e-9) for value in (log_p, log_q)
        )
        parts.append((terms + rest_p * (rest_p / rest_q).log()).clamp(min=0))
    return torch.cat(parts) if parts else student_ND.new_zeros(0)
