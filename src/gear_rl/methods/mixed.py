"""Two methods at once, on one pass of the teacher."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.methods.stare import Stare
from gear_rl.settings import Share, settings_class
from gear_rl.signals.table import needs_context, needs_teacher, signals_of
from gear_rl.tensor.masked import masked_mean
from gear_rl.tensor.segments import segment_ids, segment_starts
from gear_rl.traits import (
    Distillation,
    MeanOf,
    at_step,
    distillation_of,
    engine_settings_of,
    is_additive,
    is_whole_batch,
    with_state,
)
from gear_rl.types import Credit, CreditAssigner, Signal, TokenSignals

How = Literal["product", "sum"]


@settings_class
class Mixed:
    """Two methods at once: the product of their weights, or a weighted sum of their advantages.

    Written ``gear*stare`` or ``uniform+sdpo``, also of three or more. A product takes methods that reweight; a
    completion's weights have the product of the two methods' means, which is 1 for most. A sum takes any, but at
    most one that distils, and ``rlcsd``, which contrasts two teachers, with no other teacher. The methods share
    each model's pass and, unless ``privileged_sources`` is set, the contexts of the first that has any:
    ``gear+cast`` shows CAST's teacher the solution, ``cast+gear`` does not show it to GEAR's.

    >>> from gear_rl.methods import EntropyForks, Uniform
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 2, dtype=torch.bool), student_entropy=torch.tensor([[0.1, 2.0]])
    ... )
    >>> forks = EntropyForks(top_share=0.5, scope="completion")  # its weights are 0 and 1
    >>> Mixed(first=forks, second=Uniform())(torch.tensor([1.0]), signals).advantage
    tensor([[0., 1.]])
    >>> Mixed(first=forks, second=Uniform(), how="sum", share=0.25)(torch.tensor([1.0]), signals).advantage
    tensor([[0.7500, 1.0000]])
    """

    name: ClassVar[str] = "mixed"
    source: ClassVar[str] = "composition (ours)"

    first: CreditAssigner = Gear()
    """The first method."""
    second: CreditAssigner = Stare()
    """The second; for a third, another ``mixed``."""
    how: How = "product"
    """``product`` of weights, or ``sum`` of advantages."""
    share: Share = 0.5
    """Share of the first method in a sum; the second has the rest."""

    def __post_init__(self) -> None:
        for method in (self.first, self.second):
            if self.how == "product" and is_additive(method):
                raise ValueError(
                    f"how: 'product' multiplies weights, and {method.name!r} adds to the advantage; use 'sum'"
                )
        if distillation_of(self.first) is not None and distillation_of(self.second) is not None:
            raise ValueError(
                f"second: {self.second.name!r} distils, and so does {self.first.name!r}; a loss takes one term"
            )
        signals_of(self.needs)  # refuses one signal at two settings
        pair = (self.first, self.second)
        taught = [one for one in pair if needs_teacher(one) or distillation_of(one) is not None]
        if len({engine_settings_of(method).get("teacher_contrast") for method in taught}) > 1:
            raise ValueError(
                f"second: one of {self.first.name!r} and {self.second.name!r} contrasts two teachers, and the "
                "other would read the contrast as its teacher; train with one of them"
            )

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        return tuple(dict.fromkeys((*self.first.needs, *self.second.needs)))

    @property
    def whole_batch(self) -> bool:
        return is_whole_batch(self.first) or is_whole_batch(self.second)

    @property
    def additive(self) -> bool:
        return any(getattr(method, "additive", False) for method in (self.first, self.second))

    @property
    def distillation(self) -> Distillation | None:
        for share, method in ((self.share, self.first), (1.0 - self.share, self.second)):
            term = distillation_of(method)
            if term is not None:
                return replace(term, anchor_weight=share * term.anchor_weight)
        return None

    @property
    def engine_settings(self) -> Mapping[str, Any]:
        own, settings = engine_settings_of(self.first), engine_settings_of(self.second)
        if needs_context(self.first):
            settings.pop("privileged_sources", None)
        return settings | own

    def with_state(self, state: dict[str, Any], mean_of: MeanOf) -> "Mixed":
        """Both methods for a batch, each with a state of its own."""
        first, second = (
            with_state(method, state.setdefault(name, {}), mean_of)
            for name, method in (("first", self.first), ("second", self.second))
        )
        return replace(self, first=first, second=second)

    def at_step(self, step: int) -> "Mixed":
        """Both methods as they are at optimizer step ``step``."""
        return replace(self, first=at_step(self.first, step), second=at_step(self.second, step))

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        one, other = self.first(advantage_B, signals), self.second(advantage_B, signals)
        starts = segment_starts(one.segment_id) | segment_starts(other.segment_id)
        segment_id = segment_ids(starts, torch.zeros_like(mask), mask)
        if self.how == "product":
            base = torch.where(advantage_B == 0, 1.0, advantage_B)[:, None]
            weights = one.advantage / base, other.advantage / base
            own = masked_mean(weights[0], mask) * masked_mean(weights[1], mask)
            weight = weights[0] * weights[1]
            mean = masked_mean(weight, mask)
            scaled = weight * torch.where(mean > 0, own / mean, 1.0)
            return Credit.from_weights(advantage_B, scaled, segment_id)
        terms = [
            share * term.distill_weight
            for share, term in ((self.share, one), (1.0 - self.share, other))
            if term.distill_weight is not None
        ]
        return Credit(
            advantage=self.share * one.advantage + (1.0 - self.share) * other.advantage,
            segment_id=segment_id,
            distill_weight=terms[0] if terms else None,
        )
