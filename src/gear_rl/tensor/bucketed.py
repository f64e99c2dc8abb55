"""KL(student || teacher) where the teacher gives the log-probabilities of a few tokens only, as a server does."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.tensor.logits import Head


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
    for begin in range(0, max(1, len(student_ND)), rows := max(1, 2**24 // len(head.weight_VD))):
        part, token = slice(begin, begin + rows), token_NK[begin : begin + rows]
        log_p = head.logits(student_ND[part]).log_softmax(-1).gather(-1, token.clamp(min=0))
        known, log_q = token >= 0, teacher_NK[part]
        terms = torch.where(known, log_p.exp() * (log_p - log_q), 0.0).sum(-1)
        rest_p, rest_q = (
            (1 - torch.where(known, value.exp(), 0.0).sum(-1)).clamp(min=1e-9) for value in (log_p, log_q)
        )
        parts.append((terms + rest_p * (rest_p / rest_q).log()).clamp(min=0))
    return torch.cat(parts)
