"""What a method may declare beside its credit: a schedule, a distillation term, additive credit, engine settings.

An engine reads a trait through these functions and never compares names. Knows no model, no trainer, no method.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from gear_rl.types import CreditAssigner


@runtime_checkable
class Scheduled(Protocol):
    """What a method has besides, if its settings change in the course of a training.

    A method has no step counter; the engine has one, and calls this before each batch.

    >>> from gear_rl.methods.rlsd import Rlsd
    >>> isinstance(Rlsd(), Scheduled), Rlsd().at_step(0).strength, Rlsd().at_step(25).strength
    (True, 0.5, 0.25)
    """

    def at_step(self, step: int) -> CreditAssigner:
        """The method as it is at optimizer step ``step``, counted from 0; the method itself stays as it was."""
        ...


Anchor = Literal["none", "urkl", "ufkl", "rkl", "fkl"]
TopKOf = Literal["student", "teacher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Which term an engine adds to its loss for a method that also distils; ``Credit`` says how much of it where.

    The term of a token is a divergence of the student's next-token distribution ``p`` and the teacher's ``q``,
    with gradient through the student only: ``beta KL(q || m) + (1 - beta) KL(p || m)``, ``m = beta q + (1 - beta)
    p``, and by convention KL(q || p) at ``beta=0`` (forward) and KL(p || q) at ``beta=1`` (reverse), as in OPSD
    (arXiv:2601.18734) and TRL. Raises ``ValueError`` for a setting outside its range.

    >>> Distillation(beta=2.0)
    Traceback (most recent call last):
    ValueError: beta: 2.0 must be 0 (forward KL) to 1 (reverse KL)
    """

    beta: float = 1.0
    """0 forward KL, 1 reverse KL, between them the generalised Jensen-Shannon divergence."""
    top_k: int | None = None
    """Only so many tokens are compared, the likeliest of ``top_k_of``; None for the whole vocabulary."""
    top_k_of: TopKOf = "teacher"
    """Whose likeliest tokens: the ``student``'s (SDPO) or the ``teacher``'s (OPSD). The choice is a constant."""
    tail: bool = True
    """With ``top_k``: all other tokens are one more outcome. If not, the ``top_k`` are normalised to 1."""
    temperature: float = 1.0
    """Divides the logits of both, beside the sampling temperature."""
    ratio_clip: float | None = None
    """Each token's term is multiplied by its importance ratio, up to this; None for no factor."""
    max_nats: float | None = None
    """The term of a token is at most this; None for no limit."""
    anchor: Anchor = "none"
    """The penalty that holds the policy to its first weights, of ``r = log pi - log pi_ref``: ``urkl`` r^2 / 2,
    ``ufkl`` exp(-r) + r, ``rkl`` (r + 1)^2 / 2, ``fkl`` exp(-r) (SDPG, arXiv:2606.04036)."""
    anchor_weight: float = 0.0
    """Coefficient of the anchor on every trained token."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta: {self.beta} must be 0 (forward KL) to 1 (reverse KL)")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: {self.top_k}; give 1 or more, or None for the whole vocabulary")
        if self.top_k_of not in get_args(TopKOf):
            raise ValueError(f"top_k_of: {self.top_k_of!r} is not one of {', '.join(get_args(TopKOf))}")
        for field in ("temperature", "ratio_clip", "max_nats"):
            value: float | None = getattr(self, field)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{field}: {value} must be a finite number above 0")
        if self.anchor not in get_args(Anchor):
            raise ValueError(f"anchor: {self.anchor!r} is not one of {', '.join(get_args(Anchor))}")
        if not 0.0 <= self.anchor_weight < math.inf:
            raise ValueError(f"anchor_weight: {self.anchor_weight} must be a finite number, 0 or more")


class Traits:
    """What a method may declare of itself, by a class attribute or a property; the default where it does not."""

    distillation: Distillation | None = None
    """The term of the loss that its ``Credit.distill_weight`` weighs; None where nothing is distilled."""
    additive: bool = False
    """It may give credit where the completion's advantage is 0, or of the other sign: an engine then computes its
    signals for every completion."""
    per_completion: bool = False
    """It gives a completion the same credit whatever others it is called with: an engine may then request the
    credit of some at a time. What draws at random by the last bits of a signal must not say so."""
    makes_segments: bool = False
    """Segments of two tokens and more are what it is for: an engine warns where a run has next to none."""
    even: bool = False
    """All tokens of a completion get the same advantage, in whatever setting: nothing is lost in a loss with one
    ratio for the completion. A class that inherits it may spread the credit, and has to say so by itself."""
    engine_settings: Mapping[str, Any] = {}
    """The engine's settings in its paper or released code; an engine applies each that the user did not set."""


def distillation_of(method: CreditAssigner) -> Distillation | None:
    """What the method distils, or None."""
    return getattr(method, "distillation", None)


def is_additive(method: CreditAssigner) -> bool:
    """Whether the method is ``additive``, or distils: its term does not depend on the advantage.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("gear", "gigpo", "opsd") if is_additive(METHODS[name]())]
    ['gigpo', 'opsd']
    """
    return bool(getattr(method, "additive", False)) or distillation_of(method) is not None


def is_per_completion(method: CreditAssigner) -> bool:
    """``Traits.per_completion`` of the method."""
    return bool(getattr(method, "per_completion", False))


def is_even(method: CreditAssigner) -> bool:
    """``Traits.even`` of the method's own class.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in METHODS if is_even(METHODS[name]())]
    ['uniform', 'crpo', 'opsd', 'sdpo', 'sdpg']
    """
    return bool(vars(type(method)).get("even", False))


def engine_settings_of(method: CreditAssigner) -> dict[str, Any]:
    """``Traits.engine_settings`` of the method; ``ValueError`` if it is no mapping of names."""
    settings: Any = getattr(method, "engine_settings", {})
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in cast(Any, settings)):
        raise ValueError(
            f"credit: engine_settings of {method.name!r} is {settings!r}; give a mapping from names of settings "
            "to values"
        )
    return dict(cast(Mapping[str, Any], settings))


def method_settings(method: CreditAssigner) -> dict[str, Any]:
    """Name and settings of a method, as a run's ``credit`` has them; a method inside it likewise.

    Of an object that is no dataclass only the name; a field that ``repr`` leaves out is no setting.

    >>> from gear_rl.methods import Shuffled
    >>> settings = method_settings(Shuffled())
    >>> settings["name"], settings["of"]["name"]
    ('shuffled', 'gear')
    """
    found: dict[str, Any] = {"name": method.name}
    if is_dataclass(method) and not isinstance(method, type):
        for field in filter(lambda field: field.repr, fields(method)):
            value = getattr(method, field.name)
            found[field.name] = method_settings(value) if isinstance(value, CreditAssigner) else value
    return found
