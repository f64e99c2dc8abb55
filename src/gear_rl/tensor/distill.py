"""Divergence of student and teacher at each token as a loss with gradient, in tiles of tokens.

A backward pass needs the logits again: each tile is a checkpoint that recomputes them, so the logits of one tile
exist at a time and (N, V) never does.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from gear_rl.tensor.logits import Head

TILE_ELEMENTS = 2**25
"""Logits of a tile: 128 MiB in float32. The backward pass holds about eight tensors of this size."""


def distillation_terms(
    student_ND: Float[Tensor, "N D"],
    teacher_ND: Float[Tensor, "N E"],
    token_N: Int[Tensor, " N"],
    head: Head,
    teacher_head: Head | None = None,
    *,
    beta: float = 1.0,
    top_k: int | None = None,
    top_k_of: Literal["student", "teacher"] = "teacher",
    tail: bool = True,
    temperature: float = 1.0,
    max_nats: float | None = None,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Divergence of student and teacher at every token, in nats up to ``max_nats``, and the token's log-prob.

    ``beta KL(q || m) + (1 - beta) KL(p || m)`` with ``m = beta q + (1 - beta) p``, ``p`` the student's and ``q``
    the teacher's distribution (OPSD, arXiv:2601.18734): KL(q || p) at ``beta=0``, KL(p || q) at 1. With ``top_k``
    the outcomes are the likeliest tokens of ``top_k_of`` and, with ``tail``, all others as one
    (arXiv:2601.20802). ``temperature`` divides the logits of the divergence, not of the log-prob.

    The gradient reaches the student's states and head; it is 0 for a term that is not finite.

    >>> student = torch.tensor([[3.0, 0.0]]).log1p().requires_grad_()  # probabilities 4/5 and 1/5
    >>> even, head = torch.zeros(1, 2), Head(weight_VD=torch.eye(2))
    >>> terms, logprob = distillation_terms(student, even, torch.tensor([0]), head)
    >>> terms.detach(), logprob.detach()  # 0.8 log(1.6) + 0.2 log(0.4);  log(0.8)
    (tensor([0.1927]), tensor([-0.2231]))
    >>> terms.sum().backward()
    >>> student.grad  # p (log p/q - KL)
    tensor([[ 0.2218, -0.2218]])
    """
    teacher_head = head.for_teacher(teacher_head)
    if top_k is not None and top_k >= len(head.weight_VD):
        top_k = None  # nothing is left over, so there is no tail either
    head = _float32_head(head)

    def tile(student: Tensor, teacher: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        logits, finite = _logits(head, student)
        logprob = _at_token(logits, token, finite)
        # A view, so that the guard below stands before the divergence and not before the log-prob.
        guarded = logits.view_as(logits) if temperature == 1.0 else logits / temperature
        with torch.no_grad():
            taught = teacher_head.logits(teacher) / temperature
        log_p, log_q = _outcomes(guarded, taught, top_k, top_k_of, tail)
        terms = torch.where(finite, _divergence(log_p, log_q, beta), torch.nan)
        sound = terms.detach().isfinite()
        if guarded.requires_grad:

            def guard(gradient: Tensor) -> Tensor:
                return torch.where(sound[:, None], gradient, 0.0)

            guarded.register_hook(guard)  # pyright: ignore[reportUnknownMemberType]
        return terms.clamp(min=0.0, max=max_nats), logprob

    terms, logprob = _over_tiles(tile, head, student_ND, teacher_ND, token_N)
    return terms, logprob


def token_logprobs(
    student_ND: Float[Tensor, "N D"],
    token_N: Int[Tensor, " N"],
    head: Head,
) -> Float[Tensor, " N"]:
    """The student's log-prob of every token, with gradient: ``distillation_terms`` where there is no teacher.

    NaN, with a gradient of 0, where the hidden state is not finite.

    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()
    >>> token_logprobs(hidden, torch.tensor([1]), Head(weight_VD=torch.eye(2)))  # log(0.2)
    tensor([-1.6094])
    """
    head = _float32_head(head)

    def tile(student: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        logits, finite = _logits(head, student)
        return (_at_token(logits, token, finite),)

    return _over_tiles(tile, head, student_ND, token_N)[0]


def _over_tiles(tile: Callable[..., tuple[Tensor, ...]], head: Head, *columns: Tensor) -> tuple[Tensor, ...]:
    """``tile`` over so many rows of the columns at a time that their logits fit, forgotten until backward."""
    rows = max(1, TILE_ELEMENTS // len(head.weight_VD))
    parts: list[tuple[Tensor, ...]] = []
    # One empty tile where there is no token: the result still belongs to the student's graph.
    for begin in range(0, max(1, len(columns[0])), rows):
        part = [column[begin : begin + rows] for column in columns]
        # torch leaves this function untyped.
        made = cast(Any, checkpoint)(tile, *part, use_reentrant=False, preserve_rng_state=False)
        parts.append(cast(tuple[Tensor, ...], made))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _float32_head(head: Head) -> Head:
    """The head in float32, cast once: gradients of tiles are summed before they are rounded.

    The product of low precision into float32 that ``Head.logits`` would take on a GPU has no derivative.
    """
    bias = None if head.bias_V is None else head.bias_V.float()
    return replace(head, weight_VD=head.weight_VD.float(), bias_V=bias)


def _logits(head: Head, student: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and which rows came from finite states; the others are taken as 0, which has a gradient of 0."""
    finite = student.detach().isfinite().all(-1)
    return head.logits(torch.where(finite[:, None], student, 0.0).float()), finite


def _at_token(logits: Tensor, token: Tensor, finite: Tensor) -> Tensor:
    logprob = logits.gather(-1, token[:, None])[:, 0] - logits.logsumexp(-1)
    return torch.where(finite, logprob, torch.nan)


def _outcomes(
    logits: Tensor, taught: Tensor, top_k: int | None, top_k_of: str, tail: bool
) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K"]]:
    """The log-probabilities that are compared: of every token, or of the likeliest of one side and the rest."""
    if top_k is None:
        return logits.log_softmax(-1), taught.log_softmax(-1)
    places = (logits.detach() if top_k_of == "student" else taught).topk(top_k, dim=-1).indices
    log_p, log_q = (_logits_at(x, places, tail).log_softmax(-1) for x in (logits, taught))
    return log_p, log_q


def _logits_at(logits: Tensor, places: Int[Tensor, "N K"], tail: bool) -> Float[Tensor, "N L"]:
    """The logits in these places and, with ``tail``, the log-sum-exp of all others as one more."""
    chosen = logits.gather(-1, places)
    if not tail:
        return chosen
    rest = logits.scatter(-1, places, -math.inf)
    # Where all others are impossible, too (a padded vocabulary), log-sum-exp has a gradient of NaN.
    empty = rest.detach().amax(-1, keepdim=True) == -math.inf
    others = rest.masked_fill_(empty, 0.0).logsumexp(-1, keepdim=True)
    return torch.cat([chosen, others.masked_fill(empty, -math.inf)], -1)


def _divergence(log_p: Float[Tensor, "N K"], log_q: Float[Tensor, "N K"], beta: float) -> Float[Tensor, " N"]:
    p, q = log_p.exp(), log_q.exp()
    if beta == 0.0:
        return _mean_of(q, log_q, log_p)
    if beta == 1.0:
        return _mean_of(p, log_p, log_q)
    # An outcome that both find impossible (a padded vocabulary): the log of their mean has no gradient there.
    dead = (p == 0) & (q == 0)
    log_p, log_q = torch.where(dead, 0.0, log_p), torch.where(dead, 0.0, log_q)
    log_m = torch.logaddexp(log_q + math.log(beta), log_p + math.log1p(-beta))
    return beta * _mean_of(q, log_q, log_m) + (1.0 - beta) * _mean_of(p, log_p, log_m)


def _mean_of(weight: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    """Sum of ``weight * (log_a - log_b)``, where 0 * (-inf - -inf) is 0, as is its gradient."""
    return (weight * torch.where(weight > 0, log_a - log_b, 0.0)).sum(-1)
