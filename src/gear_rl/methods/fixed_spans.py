"""GEAR's control for where segments begin and end: spans no signal drew, weighted by mean divergence."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.errors import check_settings
from gear_rl.tensor.masked import masked_mean
from gear_rl.tensor.segments import segment_starts, turn_ids
from gear_rl.types import Credit, TokenSignals

Unit = Literal["tokens", "sentence", "line", "turn"]
_SIGNALS = {"sentence": "sentence_id", "line": "line_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSpans:
    """Every turn is cut into spans of one length or of its text, and a span weighs its mean divergence.

    The control between GEAR and a token method (ours): with ``m_t`` the mean divergence of the span that holds
    token ``t`` and ``m`` that of the whole completion, ``w_t = (1 - strength) + strength * m_t / m`` and
    ``A_t = A * w_t``; the mean weight is 1. ``strength=0`` gives GRPO bit for bit; sentences and lines are then
    not known.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool), divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0, 3.0]])
    ... )
    >>> credit = FixedSpans(span_tokens=2)(torch.tensor([1.0]), signals)
    >>> credit.segment_id
    tensor([[0, 0, 1, 1, 2]])
    >>> credit.advantage  # means 1, 0 and 3 over 1
    tensor([[1.0000, 1.0000, 0.5000, 0.5000, 2.0000]])
    """

    name: ClassVar[str] = "fixed_spans"
    source: ClassVar[str] = "control of gear (ours)"
    per_completion: ClassVar[bool] = True

    unit: Unit = "tokens"
    """What a span is: ``span_tokens`` tokens, a ``sentence``, a ``line`` (a step of reasoning), or a whole
    ``turn``."""
    span_tokens: int = 16
    """Tokens in a span; only ``unit="tokens"`` reads it."""
    strength: float = 0.5
    """Share of the advantage that the divergence moves; 0 gives GRPO back."""

    def __post_init__(self) -> None:
        check_settings(self, shares=["strength"])
        if self.span_tokens < 1:
            raise ValueError(f"span_tokens: {self.span_tokens}; a span has at least 1 token")

    @property
    def needs(self) -> tuple[str, ...]:
        if self.strength == 0:
            return ()
        return ("divergence", _SIGNALS[self.unit]) if self.unit in _SIGNALS else ("divergence",)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        span_id = self._spans(signals)
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            divergence = torch.where(mask, signals.get("divergence"), 0.0)
            mean = masked_mean(divergence, mask)
            share = _span_means(divergence, span_id) / torch.where(mean > 0, mean, 1.0)
            # 1 + strength * (share - 1): exactly 1 where there is no divergence to share out.
            weight = torch.where(mean > 0, 1.0 + self.strength * (share - 1.0), 1.0)
        return Credit.from_weights(advantage_B, weight, span_id)

    def _spans(self, signals: TokenSignals) -> Int[Tensor, "B T"]:
        turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
        starts = segment_starts(turn_id)
        if starts.shape[-1] == 0:
            return turn_id
        if self.unit == "tokens":
            column = torch.arange(starts.shape[-1], device=starts.device).expand(starts.shape)
            since = column - torch.where(starts, column, 0).cummax(-1).values
            opens = signals.mask & (since % self.span_tokens == 0)
        elif self.unit in _SIGNALS and self.strength > 0:
            opens = signals.mask & (starts | segment_starts(signals.get(_SIGNALS[self.unit])))
        else:
            opens = starts
        return torch.where(signals.mask, opens.cumsum(-1) - 1, -1)


def _span_means(x: Float[Tensor, "B T"], span_id: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The mean of ``x`` over the span of each token; ``x`` is 0 outside the spans."""
    # The tokens outside share a bin at the end.
    bin_of = torch.where(span_id >= 0, span_id, span_id.shape[-1])
    empty = x.new_zeros(x.shape[0], x.shape[-1] + 1)
    sums = empty.scatter_add(-1, bin_of, x)
    counts = empty.scatter_add(-1, bin_of, torch.ones_like(x))
    return (sums / counts.clamp(min=1)).gather(-1, bin_of)
