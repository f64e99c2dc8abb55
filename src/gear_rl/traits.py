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


@runtime_checkable
class Distilling(Protocol):
    """What a method has besides, if its credit may carry ``distill_weight``.

    >>> from gear_rl.methods.opsd import Opsd
    >>> isinstance(Opsd(), Distilling), Opsd().distillation.top_k_of
    (True, 'teacher')
    """

    @property
    def distillation(self) -> Distillation | None:
        """The term of the loss; None where the settings leave nothing to distil."""
        ...


def distillation_of(method: CreditAssigner) -> Distillation | None:
    """What the method distils, or None.

    >>> from gear_rl.methods.gear import Gear
    >>> distillation_of(Gear())
    """
    return method.distillation if isinstance(method, Distilling) else None


def is_additive(method: CreditAssigner) -> bool:
    """Whether the method may give credit where the completion's advantage is 0, or of the other sign.

    A method says so by an attribute ``additive = True``; an engine then computes its signals for every
    completion. Reweighting methods, which have no such attribute, cost nothing where the advantage is 0. A method
    that distils is treated as additive: its term does not depend on the advantage.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("gear", "gigpo", "opsd") if is_additive(METHODS[name]())]
    ['gigpo', 'opsd']
    """
    return bool(getattr(method, "additive", False)) or distillation_of(method) is not None


def is_per_completion(method: CreditAssigner) -> bool:
    """Whether the method gives every completion the same credit whatever other completions it is called with.

    A method says so by an attribute ``per_completion = True``, or a property where it depends on the settings. An
    engine may then request the credit of some completions at a time, with signals out of other forwards, which
    differ in their last bits: what draws at random by these bits must not say so.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("gear", "gigpo", "rlsd") if is_per_completion(METHODS[name]())]
    ['gear', 'rlsd']
    """
    return bool(getattr(method, "per_completion", False))


def makes_segments(method: CreditAssigner) -> bool:
    """Whether segments of two tokens and more are what the method is for, in its settings.

    A method says so by an attribute ``makes_segments = True``, or a property where it depends on the settings. An
    engine warns where next to no token of a run is in one.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in METHODS if makes_segments(METHODS[name]())]
    ['gear', 'random_onsets']
    """
    return bool(getattr(method, "makes_segments", False))


def is_even(method: CreditAssigner) -> bool:
    """Whether all tokens of a completion get the same advantage, in whatever setting.

    A class says so by an attribute ``even = True`` of its own: one that inherits it may spread the credit. Such a
    method loses nothing where a loss has one ratio, or one advantage, for the whole completion. What it adds to
    the loss by itself, such as a divergence of the teacher, may differ from token to token.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in METHODS if is_even(METHODS[name]())]
    ['uniform', 'crpo', 'opsd', 'sdpo', 'sdpg']
    """
    return bool(vars(type(method)).get("even", False))


def engine_settings_of(method: CreditAssigner) -> dict[str, Any]:
    """The settings of the engine that the method's paper or released code has; empty where it has none.

    A method declares them by an attribute ``engine_settings``, a mapping from the engine's names to values. An
    engine applies each of them unless the user set that key. ``ValueError`` if it is no mapping of names; whether
    the names and values are right is the engine's to check.

    >>> class Synced:
    ...     name, source, needs = "synced", "an example", ("divergence",)
    ...     engine_settings = {"teacher_model_kind": "sync"}
    ...     def __call__(self, advantage_B, signals): ...
    >>> engine_settings_of(Synced())
    {'teacher_model_kind': 'sync'}
    """
    settings: Any = getattr(method, "engine_settings", {})
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in cast(Any, settings)):
        raise ValueError(
            f"credit: engine_settings of {method.name!r} is {settings!r}; give a mapping from names of settings "
            "to values"
        )
    return dict(cast(Mapping[str, Any], settings))


def method_settings(method: CreditAssigner) -> dict[str, Any]:
    """Name and settings of a method, as a run's ``credit`` has them; a method inside it likewise.

    Of an object that is no dataclass only the name: it has no settings that anyone could know.

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
