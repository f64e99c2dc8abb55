"""The ``gear/*`` metrics of one credit step: sums that processes can add up, and what is logged of them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.credit.plan import FALLBACKS
from gear_rl.tensor.masked import masked_mean
from gear_rl.tensor.segments import segment_lengths, segment_starts
from gear_rl.types import Credit, CreditAssigner, TokenSignals

logger = logging.getLogger(__name__)

TURNS = 8
"""First turns of the model whose mean weight is logged, where completions have several."""
BATCHES_TO_JUDGE = 20
"""Batches of rollouts after which a run warns that it has next to no segments."""
LEAST_IN_SEGMENTS = 0.1
"""Share of the tokens. SmolLM2 has .01 to .09 on questions and answers, the arena's tasks .08 to .34."""
NO_SEGMENTS = (
    "%s makes next to no segments: %.1f %% of the trained tokens of %d batches are in one of two tokens or more, "
    "so its credit is token by token. Where nearly every token has more entropy than GEAR's end_threshold, as on "
    "natural text, a segment ends at once. If single tokens are meant, take gear:tokens; for longer segments set "
    "end_rule to sentence, line or turn"
)


def weights(
    credit: Credit, advantage_B: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Each token's advantage over its completion's, or over its mean size where that is 0; 0 on masked tokens.

    1 on a completion without any.

    >>> credit = Credit(advantage=torch.tensor([[1.0, 3.0]]), segment_id=torch.tensor([[0, 1]]))
    >>> weights(credit, torch.tensor([2.0]), torch.ones(1, 2, dtype=torch.bool))
    tensor([[0.5000, 1.5000]])
    """
    base, size = advantage_B[:, None], masked_mean(credit.advantage.abs(), mask)
    base = torch.where(base == 0, size, base)
    weight = torch.where(base == 0, 1.0, credit.advantage / torch.where(base == 0, 1.0, base))
    return torch.where(mask, weight, 0.0)


def metric_sums(
    credit: Credit,
    signals: TokenSignals,
    advantage_B: Float[Tensor, " B"],
    scored_B: Bool[Tensor, " B"],
    fallback_B: Mapping[str, Bool[Tensor, " B"]],
) -> tuple[dict[str, Tensor], Tensor]:
    """Sums over this process's completions that were scored and did not fall back, and the largest weight.

    Only segments of two tokens or more are counted.

    >>> credit = Credit(advantage=torch.tensor([[1.0, 1.0, 4.0]]), segment_id=torch.tensor([[0, 0, 1]]))
    >>> signals, no = TokenSignals(mask=torch.ones(1, 3, dtype=torch.bool)), torch.tensor([False])
    >>> sums, largest = metric_sums(credit, signals, torch.tensor([2.0]), ~no, dict.fromkeys(FALLBACKS, no))
    >>> sums["segments"].item(), sums["segment_tokens"].item(), largest.item()
    (1.0, 2.0, 2.0)
    """
    trusted = scored_B & ~torch.stack(list(fallback_B.values())).any(0)
    mask = signals.mask & trusted[:, None]
    weight = weights(credit, advantage_B, mask)
    length = torch.where(mask, segment_lengths(credit.segment_id), 0)
    opens = segment_starts(credit.segment_id) & (length > 1)
    sums = {
        "completions": trusted.sum(),
        "tokens": mask.sum(),
        "segments": opens.sum(),
        "segment_tokens": (length > 1).sum(),
        "deviation": torch.where(mask, (weight - 1.0).abs(), 0.0).sum(),
        "scored": scored_B.sum(),
        **{f"fallback/{name}": fallback_B[name].sum() for name in FALLBACKS},
    }
    for name in ("divergence", "student_entropy"):
        if name in signals:
            sums[name] = torch.where(mask, signals.get(name), 0.0).sum()
    for turn in range(TURNS):
        inside = mask & (signals.turn_id == turn)
        sums |= {f"turn/{turn}/tokens": inside.sum(), f"turn/{turn}/weight": weight[inside].sum()}
    largest = weight.max() if weight.numel() else weight.sum()
    return {name: value.float() for name, value in sums.items()}, largest


def step_metrics(sums: dict[str, float], largest_weight: float, seconds: float) -> dict[str, float]:
    """The metrics of one credit step, from sums over all processes; a mean over nothing is left out.

    >>> step_metrics({"completions": 2.0, "tokens": 8.0, "segments": 1.0, "segment_tokens": 3.0,
    ...           "scored": 2.0, "deviation": 4.0}, 1.5, 0.1)["gear/weight/deviation"]
    0.5
    """
    metrics = {f"gear/fallback/{name}": sums.get(f"fallback/{name}", 0.0) for name in FALLBACKS}
    metrics["gear/fallbacks"] = sum(metrics.values())
    metrics["gear/scored"] = sums["scored"]
    metrics["gear/credit_seconds"] = seconds
    if sums["tokens"]:
        if "divergence" in sums:
            metrics["gear/divergence/mean"] = sums["divergence"] / sums["tokens"]
        if "student_entropy" in sums:
            metrics["gear/entropy/mean"] = sums["student_entropy"] / sums["tokens"]
        metrics["gear/segments/per_completion"] = sums["segments"] / sums["completions"]
        metrics["gear/segments/token_share"] = sums["segment_tokens"] / sums["tokens"]
        metrics["gear/weight/max"] = largest_weight
        metrics["gear/weight/deviation"] = sums["deviation"] / sums["tokens"]
    if sums.get("turn/1/tokens"):
        for turn in range(TURNS):
            if tokens := sums[f"turn/{turn}/tokens"]:
                metrics[f"gear/weight/turn_{turn + 1}"] = sums[f"turn/{turn}/weight"] / tokens
    return metrics


@dataclass
class SegmentCheck:
    """Warns once, after ``BATCHES_TO_JUDGE`` batches, if a method that makes segments makes next to none."""

    shares: list[float] = field(default_factory=list[float])
    """The share of tokens in segments, for each batch with a scored token."""

    def __call__(self, method: CreditAssigner, metrics: Mapping[str, float], rank: int) -> None:
        """Add the metrics of a batch over all processes (``step_metrics``)."""
        if "gear/segments/token_share" not in metrics or not getattr(method, "makes_segments", False):
            return
        self.shares.append(metrics["gear/segments/token_share"])
        share = sum(self.shares) / len(self.shares)
        if len(self.shares) == BATCHES_TO_JUDGE and share < LEAST_IN_SEGMENTS and rank == 0:
            logger.warning(NO_SEGMENTS, method.name, 100 * share, BATCHES_TO_JUDGE)
