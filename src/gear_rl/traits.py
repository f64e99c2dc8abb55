"""What a method may declare beside its credit: a schedule, a distillation term, additive credit, engine settings.

An engine reads a trait through these functions and never compares names.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Protocol, cast, runtime_checkable

from gear_rl.settings import Count, NotNegative, Positive, Share, settings_class
from gear_rl.types import CreditAssigner


@runtime_checkable
class Scheduled(Protocol):
    """A method whose settings change during training; the engine calls ``at_step`` before each batch.

    >>> from gear_rl.methods.rlsd import Rlsd
    >>> isinstance(Rlsd(), Scheduled), Rlsd().at_step(0).strength, Rlsd().at_step(25).strength
    (True, 0.5, 0.25)
    """

    def at_step(self, step: int) -> CreditAssigner:
        """The method at optimizer step ``step``, counted from 0; the method itself does not change."""
        ...


MeanOf = Callable[[str], float | None]
"""The mean of a signal that the method needs, over the scored tokens of all processes; None without any."""


@runtime_checkable
class Stateful(Protocol):
    """A method that remembers something from batch to batch, in a mapping that the engine keeps and saves.

    >>> from gear_rl.methods import AntiSd
    >>> state, method = {}, AntiSd(warmup_steps=1)
    >>> isinstance(method, Stateful), method.with_state(state, lambda name: 2.0).strength, state
    (True, 1.0, {'gate': [2.0]})
    """

    def with_state(self, state: dict[str, Any], mean_of: MeanOf) -> CreditAssigner:
        """The method for a batch; changes ``state``, which is empty at first and is saved as JSON.

        Every process calls it, and ``mean_of`` equally often. The last number of each list is logged as
        ``gear/NAME``.
        """
        ...


Anchor = Literal["none", "urkl", "ufkl", "rkl", "fkl"]
TopKOf = Literal["student", "teacher"]


@settings_class
class Distillation:
    """The term that an engine adds to its loss for a method that also distils, with ``Credit.distill_weight``.

    The term of a token is a divergence of the student's next-token distribution ``p`` and the teacher's ``q``,
    with gradient through the student only: ``beta KL(q || m) + (1 - beta) KL(p || m)``, ``m = beta q + (1 - beta)
    p``, and by convention KL(q || p) at ``beta=0`` (forward) and KL(p || q) at ``beta=1`` (reverse), as in OPSD
    (arXiv:2601.18734) and TRL. Raises ``ValueError`` for a setting outside its range.

    >>> Distillation(beta=2.0)
    Traceback (most recent call last):
    ValueError: beta: 2.0; give a number from 0 to 1
    """

    beta: Share = 1.0
    """0 forward KL, 1 reverse KL, between them the generalised Jensen-Shannon divergence."""
    top_k: Count | None = None
    """Number of tokens that are compared, the likeliest of ``top_k_of``; None for the whole vocabulary."""
    top_k_of: TopKOf = "teacher"
    """Whose likeliest tokens: the ``student``'s (SDPO) or the ``teacher``'s (OPSD), without gradient."""
    tail: bool = True
    """With ``top_k``: all other tokens are one more outcome; else the ``top_k`` are normalised to 1."""
    temperature: Positive = 1.0
    """Divides the logits of both, beside the sampling temperature."""
    ratio_clip: Positive | None = None
    """Each token's term is multiplied by its importance ratio, up to this; None for no factor."""
    max_nats: Positive | None = None
    """The term of a token is at most this; None for no limit."""
    anchor: Anchor = "none"
    """The penalty that keeps the policy near its first weights, of ``r = log pi - log pi_ref``: ``urkl`` r^2 / 2,
    ``ufkl`` exp(-r) + r, ``rkl`` (r + 1)^2 / 2, ``fkl`` exp(-r) (SDPG, arXiv:2606.04036)."""
    anchor_weight: NotNegative = 0.0
    """Coefficient of the anchor on every trained token."""


def check_sampled(method: Any, **form: Any) -> None:
    """Raise ``ValueError`` for a setting of the term that ``sampled=True`` does not read.

    ``form`` is the term that the sampled tokens estimate. The method's own default passes too, since an engine's
    configuration may hold every default.

    >>> from gear_rl.methods import Opsd
    >>> Opsd(sampled=True, beta=0.0)
    Traceback (most recent call last):
    ValueError: beta: 0.0 is not read with sampled=True, which stands for beta=1.0; leave it out
    """
    for field in fields(method):
        value = getattr(method, field.name)
        if method.sampled and field.name in form and value not in (form[field.name], field.default):
            raise ValueError(
                f"{field.name}: {value!r} is not read with sampled=True, which stands for "
                f"{field.name}={form[field.name]!r}; leave it out"
            )


class Traits:
    """What a method may declare by a class attribute or a property, with the defaults."""

    distillation: Distillation | None = None
    """The term of the loss that ``Credit.distill_weight`` weighs; None where nothing is distilled."""
    additive: bool = False
    """Credit may be nonzero where the completion's advantage is 0, or of the other sign: an engine computes the
    signals of every completion."""
    whole_batch: bool = False
    """The credit depends on the completions of other processes, too. So it does wherever a signal with one entry
    per completion is read."""
    makes_segments: bool = False
    """The method should find segments of two tokens or more: an engine warns where a run has next to none."""
    even: bool = False
    """All tokens of a completion get the same advantage, so that a loss with one ratio for the completion loses
    nothing. Not inherited: a subclass declares it again."""
    engine_settings: Mapping[str, Any] = {}
    """Settings of the engine that belong to the method; an engine applies each that the user did not set."""


def at_step(method: CreditAssigner, step: int) -> CreditAssigner:
    """The method at optimizer step ``step``, counted from 0; itself if it has no schedule."""
    return method.at_step(step) if isinstance(method, Scheduled) else method


def with_state(method: CreditAssigner, state: dict[str, Any], mean_of: MeanOf) -> CreditAssigner:
    """The method for a batch; itself if it remembers nothing."""
    return method.with_state(state, mean_of) if isinstance(method, Stateful) else method


def distillation_of(method: CreditAssigner) -> Distillation | None:
    """The method's distillation term, or None."""
    return getattr(method, "distillation", None)


def is_additive(method: CreditAssigner) -> bool:
    """Whether the method is ``additive`` or distils, since that term does not depend on the advantage.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("gear", "gigpo", "opsd") if is_additive(METHODS[name]())]
    ['gigpo', 'opsd']
    """
    return bool(getattr(method, "additive", False)) or distillation_of(method) is not None


def is_whole_batch(method: CreditAssigner) -> bool:
    """``Traits.whole_batch`` of the method."""
    return bool(getattr(method, "whole_batch", False))


def is_even(method: CreditAssigner) -> bool:
    """``Traits.even`` of the method's own class.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in METHODS if is_even(METHODS[name]())]
    ['uniform', 'crpo', 'opsd', 'sdpo', 'sdpg', 'raft']
    """
    return "even" in vars(type(method)) and bool(cast(Any, method).even)


def engine_settings_of(method: CreditAssigner) -> dict[str, Any]:
    """``Traits.engine_settings`` of the method; ``ValueError`` if it is no mapping with names as keys."""
    settings: Any = getattr(method, "engine_settings", {})
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in cast(Any, settings)):
        raise ValueError(
            f"credit: engine_settings of {method.name!r} is {settings!r}; give a mapping from names of settings "
            "to values"
        )
    return dict(cast(Mapping[str, Any], settings))


def method_settings(method: CreditAssigner) -> dict[str, Any]:
    """Name and settings of a method, in the form of a run's ``credit``; a method inside it likewise.

    An object that is no dataclass gives only its name. A field with ``repr=False`` is no setting.

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
