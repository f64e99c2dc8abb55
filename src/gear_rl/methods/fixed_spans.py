"""GEAR's control: spans of fixed length, weighted by their mean divergence."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.settings import Count, Share, settings_class
from gear_rl.tensor.masked import masked_mean
from gear_rl.tensor.segments import segment_starts, since_segment_start
from gear_rl.types import Credit, TokenSignals

Unit = Literal["tokens", "sentence", "line", "turn"]
_SIGNALS = {"sentence": "sentence_id", "line": "line_id"}


@settings_class
class FixedSpans:
    """Each turn is cut into spans, by length or by text, and a span is weighted by its mean divergence.

    Ours, the control between GEAR and a method per token: ``A_t = A ((1 - strength) + strength m_t / m)``, with
    ``m_t`` the mean divergence of the token's span and ``m`` that of the completion. The mean weight is 1, and no
    span crosses a turn.

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

    unit: Unit = "tokens"
    """A span is ``span_tokens`` ``tokens``, a ``sentence``, a ``line`` or a whole ``turn``."""
    span_tokens: Count = 16
    """Length of a span with ``unit="tokens"``; the last one of a turn may be shorter."""
    strength: Share = 0.5
    """Share of the advantage that the divergence moves; 0 gives GRPO."""

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
            divergence = signals.get("divergence")
            mean = masked_mean(divergence, mask)
            share = _span_means(divergence, span_id) / torch.where(mean > 0, mean, 1.0)
            # 1 + strength * (share - 1): exactly 1 where there is no divergence to share out.
            weight = torch.where(mean > 0, 1.0 + self.strength * (share - 1.0), 1.0)
        return Credit.from_weights(advantage_B, weight, span_id)

    def _spans(self, signals: TokenSignals) -> Int[Tensor, "B T"]:
        turn_id = signals.turn_id
        opens = segment_starts(turn_id)
        if self.unit == "tokens":
            opens = signals.mask & (since_segment_start(turn_id) % self.span_tokens == 0)
        elif self.unit in _SIGNALS and self.strength > 0:
            opens = signals.mask & (opens | segment_starts(signals.get(_SIGNALS[self.unit])))
        return torch.where(signals.mask, opens.cumsum(-1) - 1, -1)


def _span_means(x: Float[Tensor, "B T"], span_id: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The mean of ``x`` over the span of each token; anything outside the spans."""
    # The tokens outside share a bin at the end.
    bin_of = torch.where(span_id >= 0, span_id, span_id.shape[-1])
    empty = x.new_zeros(x.shape[0], x.shape[-1] + 1)
    sums = empty.scatter_add(-1, bin_of, x)
    counts = empty.scatter_add(-1, bin_of, torch.ones_like(x))
    return (sums / counts.clamp(min=1)).gather(-1, bin_of)
