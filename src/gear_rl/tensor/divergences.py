"""Divergences other than the reverse KL, and the spread of each distribution, in tiles over the vocabulary.

What ``tensor/logits.py`` computes in its one pass is not computed again here. Two passes: the first finds the
normalisers, the second sums terms that are 0 or more each, so that a small result is never the difference of
large numbers. Knows no model, no trainer and no method.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.tensor.fold import MASS, OWN, TOP, empty_sums, fold
from gear_rl.tensor.logits import Head, TiledHead, bfloat16_products, tile_shape

STUDENT_SPREAD, TEACHER_SPREAD = "student_varentropy", "teacher_entropy"
DIVERGENCES = ("forward_divergence", "js_divergence", TEACHER_SPREAD, STUDENT_SPREAD)
"""What can be computed, by the names of the signals."""


@torch.no_grad()
def divergences(
    student_ND: Float[Tensor, "N D"] | None,
    head: Head,
    teacher_ND: Float[Tensor, "N E"] | None = None,
    teacher_head: Head | None = None,
    *,
    names: Sequence[str],
    token_tile: int | None = None,
    vocab_tile: int | None = None,
) -> dict[str, Float[Tensor, " N"]]:
    """The divergences of every token that ``names`` lists, by name, float32, exact over the whole vocabulary.

    With ``p`` the student's distribution and ``q`` the teacher's: ``forward_divergence`` is KL(q || p);
    ``js_divergence`` is half KL(p || m) plus half KL(q || m), ``m = (p + q) / 2``, at most log 2;
    ``teacher_entropy`` is ``-sum q log q``; ``student_varentropy`` the variance of ``-log p`` under ``p``, in
    nats squared. The first two are summed in a form whose terms cannot be negative, with ``r = log p - log q``:
    ``q (exp(r) - 1 - r)``, as ``sum (p - q)`` is 0, and ``m (h tanh h - log cosh h)`` with ``h = r / 2``. A
    teacher that is the student gives exactly 0.

    The student's hidden states are read by all but the teacher's entropy, the teacher's by all but the student's
    varentropy; the other may be None. Memory is a few tiles of ``token_tile * vocab_tile`` floats, whatever N and
    V are; None for either is the size that ``token_statistics`` takes. The teacher's head is the student's unless
    it has one of its own, of any width, over the same vocabulary and at the same temperature. A non-finite hidden
    state gives non-finite values in its own row only.
    Raises ``ValueError`` for a name that is not known, for hidden states that are missing, and for a head that
    does not fit.

    >>> head = Head(weight_VD=torch.eye(2))
    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()  # probabilities 4/5 and 1/5
    >>> even = torch.zeros(1, 2)  # one half each
    >>> divergences(hidden, head, even, names=["forward_divergence"])  # 0.5 log(0.625) + 0.5 log(2.5)
    {'forward_divergence': tensor([0.2231])}
    """
    teacher_head = head.for_teacher(teacher_head)
    _check(names, student_ND is not None, teacher_ND is not None)
    if set(names) <= {TEACHER_SPREAD}:
        student_ND = None
    if set(names) <= {STUDENT_SPREAD}:
        teacher_ND = None
    states = student_ND if student_ND is not None else teacher_ND
    if states is None:
        return {}
    rows, columns = tile_shape(states, head, teacher_head, token_tile, vocab_tile)
    student_tiles = TiledHead(head)
    teacher_tiles = student_tiles if teacher_head is head else TiledHead(teacher_head)
    buffers = [torch.empty(rows * columns, device=states.device) for _ in range(4)]
    tiles: list[dict[str, Tensor]] = []
    with bfloat16_products(student_ND, teacher_ND, head.weight_VD, teacher_head.weight_VD):
        for i in range(0, max(len(states), 1), rows):
            student = None if student_ND is None else student_tiles.operand(student_ND[i : i + rows])
            teacher = None if teacher_ND is None else teacher_tiles.operand(teacher_ND[i : i + rows])
            tiles.append(
                _tile_divergences(student, student_tiles, teacher, teacher_tiles, names, columns, buffers)
            )
    return {name: torch.cat([tile[name] for tile in tiles]) for name in names}


def _tile_divergences(
    student: Tensor | None,
    student_tiles: TiledHead,
    teacher: Tensor | None,
    teacher_tiles: TiledHead,
    names: Sequence[str],
    columns: int,
    buffers: Sequence[Tensor],
) -> dict[str, Tensor]:
    vocab = student_tiles.head.weight_VD.shape[0]
    steps = [(begin, min(begin + columns, vocab)) for begin in range(0, vocab, columns)]
    sums: dict[str, Tensor] = {}
    own = None if student is None else _normalisers(student, student_tiles, steps, buffers)
    taught = None if teacher is None else _normalisers(teacher, teacher_tiles, steps, buffers)
    if TEACHER_SPREAD in names and taught is not None:
        _, log_mass, mean = taught
        sums[TEACHER_SPREAD] = (log_mass - mean).float()
    compares = "forward_divergence" in names or "js_divergence" in names
    if student is None or own is None:
        return sums
    top, log_mass, mean = (x.float() for x in own)
    top_t, log_mass_t = (x.float() for x in taught[:2]) if taught is not None else (None, None)
    sums |= {name: torch.zeros_like(top) for name in names if name != TEACHER_SPREAD}
    for begin, end in steps:
        centred = student_tiles.logits(buffers[0], student, begin, end).sub_(top[:, None])
        spare, other = (buffer[: centred.numel()].view_as(centred) for buffer in buffers[2:])
        if STUDENT_SPREAD in names:
            p = torch.sub(centred, log_mass[:, None], out=spare).exp_()
            apart = torch.sub(centred, mean[:, None], out=other).square_()
            sums[STUDENT_SPREAD] += apart.mul_(p).sum(-1)
        if not compares or teacher is None or top_t is None or log_mass_t is None:
            continue
        log_p = centred.sub_(log_mass[:, None])
        log_q = teacher_tiles.logits(buffers[1], teacher, begin, end).sub_(top_t[:, None])
        log_q = log_q.sub_(log_mass_t[:, None])
        ratio = torch.sub(log_p, log_q, out=spare)
        p, q = log_p.exp_(), log_q.exp_()
        if "forward_divergence" in names:
            sums["forward_divergence"] += _forward_terms(p, q, ratio).sum(-1)
        if "js_divergence" in names:
            sums["js_divergence"] += _js_share(ratio).mul_(p.add_(q)).sum(-1) / 2
    # Jensen-Shannon may round past log 2, and where a device's expm1 is an ulp short a term may be below 0.
    if "forward_divergence" in sums:
        sums["forward_divergence"].clamp_(min=0)
    if "js_divergence" in sums:
        sums["js_divergence"].clamp_(min=0, max=math.log(2))
    return sums


def _normalisers(
    hidden: Tensor, tiles: TiledHead, steps: Sequence[tuple[int, int]], buffers: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit, the log of the sum of exp(logit - largest), and the mean of logit - largest; float64.

    ``log p`` is then ``(logit - largest) - log sum``: one subtraction from a number of the logit's own size
    would lose what is small.
    """
    sums = empty_sums(len(hidden), hidden.device)
    for begin, end in steps:
        logits = tiles.logits(buffers[0], hidden, begin, end)
        fold(sums, logits, None, buffers[1][: logits.numel()].view_as(logits))
    return sums[TOP], sums[MASS].log(), sums[OWN] / sums[MASS]


def _forward_terms(p: Tensor, q: Tensor, ratio: Tensor) -> Tensor:
    # Far from 0 exp(ratio) may overflow where q is 0 in float32, and p - q loses nothing.
    near = q * (ratio.expm1() - ratio)
    return torch.where(ratio.abs() < 1, near, p - q - q * ratio)


def _js_share(ratio: Tensor) -> Tensor:
    """``h tanh h - log cosh h`` of ``h = ratio / 2``: from 0, where the two agree, to log 2."""
    h = ratio.abs() / 2
    tanh = h.tanh()
    near = h * tanh + (-tanh.square()).log1p() / 2
    small = (-2 * h).exp()
    far = math.log(2) - small.log1p() - 2 * h * small / (1 + small)
    return torch.where(h < 1, near, far)


def _check(names: Sequence[str], student: bool, teacher: bool) -> None:
    for name in names:
        if name not in DIVERGENCES:
            raise ValueError(f"names: {name!r} is not one of {', '.join(DIVERGENCES)}")
        for who, given, alone in (("student", student, TEACHER_SPREAD), ("teacher", teacher, STUDENT_SPREAD)):
            if not given and name != alone:
                raise ValueError(f"{who}_ND: {name!r} needs the {who}'s hidden states, and none were given")
