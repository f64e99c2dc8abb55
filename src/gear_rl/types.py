"""The central types: what a method reads, what it returns, and the method itself.

Shapes in the whole package: ``B`` completions, ``T`` completion tokens, ``V`` vocabulary, ``S`` prompt plus
completion, ``D`` width, ``N`` tokens gathered from a mask. A name without suffix has shape ``(B, T)``, indexed by
the token that was *emitted*: ``x[b, t]`` is about completion token ``t``, not the position that predicted it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.tensor.segments import turn_ids


class Signal:
    """The name of a signal and what it is made from; subclasses in ``gear_rl.signals`` compute one.

    A method lists it in ``needs``, by name or as an object with settings.
    """

    name: str
    """The shape is (B, T), or one entry per completion where the name ends in ``_B`` or ``_BR``."""
    teacher: bool = False
    """Whether it needs the teacher's pass, and so a privileged context."""
    context: bool = False
    """Whether it reads the privileged context as text."""
    whole_groups: bool = False
    """Whether the completions of a group must be in one process."""


def is_per_row(name: str) -> bool:
    """Whether a signal has one entry per completion instead of one per token.

    >>> is_per_row("rewards_BR"), is_per_row("divergence")
    (True, False)
    """
    return name.rpartition("_")[2] in ("B", "BR")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class TokenSignals:
    """The signals that a method reads, without gradient: ``mask``, and those that its ``needs`` lists.

    Raises ``ValueError`` for a signal whose shape does not fit the mask's or that carries a gradient.

    >>> signals = TokenSignals(mask=torch.ones(1, 2, dtype=torch.bool), divergence=torch.tensor([[0.5, 0.0]]))
    >>> signals.divergence, "student_entropy" in signals
    (tensor([[0.5000, 0.0000]]), False)
    """

    mask: Bool[Tensor, "B T"]
    """True on tokens the policy sampled and is trained on; False on tool output and padding."""
    turn_id: Int[Tensor, "B T"]
    """Number of the turn that emitted the token; -1 where the mask is False. Never listed in ``needs``. Unless
    given, a turn is a maximal run of the mask."""
    values: Mapping[str, Tensor]
    """The signals by name."""

    def __init__(
        self,
        *,
        mask: Bool[Tensor, "B T"],
        turn_id: Int[Tensor, "B T"] | None = None,
        values: Mapping[str, Tensor] | None = None,
        **signals: Tensor | None,
    ) -> None:
        named = {name: value for name, value in {**(values or {}), **signals}.items() if value is not None}
        turn_id = turn_ids(mask) if turn_id is None else turn_id
        for name, value in (("turn_id", turn_id), *named.items()):
            _check_signal(name, value, mask)
        for name, value in (("mask", mask), ("turn_id", turn_id), ("values", named)):
            object.__setattr__(self, name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Tensor:
        """The signal ``name``; ``ValueError`` if it is missing.

        >>> TokenSignals(mask=torch.ones(1, 1, dtype=torch.bool)).get("divergence")
        Traceback (most recent call last):
        ValueError: signal 'divergence' was not computed; list it in `needs`, or give TokenSignals(divergence=...)
        """
        if name not in self.values:
            raise ValueError(_absent_message(name))
        return self.values[name]

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name == "values" or name not in self.values:
            raise AttributeError(_absent_message(name))
        return self.values[name]


def _absent_message(name: str) -> str:
    return f"signal {name!r} was not computed; list it in `needs`, or give TokenSignals({name}=...)"


def _check_signal(name: str, value: Tensor, mask: Tensor) -> None:
    per_row = is_per_row(name)
    expected = mask.shape[:1] if per_row else mask.shape
    num_dims = len(name.rpartition("_")[2]) if per_row else 2
    if value.shape[: len(expected)] != expected or value.dim() != num_dims:
        raise ValueError(
            f"{name}: shape {tuple(value.shape)}, but mask has shape {tuple(mask.shape)}; "
            f"give one number per {'completion' if per_row else 'completion token'}"
        )
    if value.requires_grad:
        raise ValueError(f"{name} carries a gradient; detach it: signals are constants of the loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The result of a method. Raises ``ValueError`` where shapes disagree or the advantage carries a gradient.

    >>> credit = Credit(advantage=torch.tensor([[2.0, 6.0]]), segment_id=torch.tensor([[0, 1]]))
    >>> every, mask = torch.tensor([True]), torch.tensor([[True, True]])
    >>> back = credit.falling_back(every, torch.tensor([4.0]), mask)
    >>> back.advantage, back.segment_id
    (tensor([[4., 4.]]), tensor([[0, 0]]))
    """

    advantage: Float[Tensor, "B T"]
    """Per-token advantage; exactly 0 where the mask is False."""
    segment_id: Int[Tensor, "B T"]
    """Number of the token's segment, from 0 along each row; -1 where the mask is False."""
    distill_weight: Float[Tensor, "B T"] | None = None
    """Coefficient of the method's ``distillation`` in the loss, 0 or more; exactly 0 where the mask is False."""

    def __post_init__(self) -> None:
        for name, value in (("segment_id", self.segment_id), ("distill_weight", self.distill_weight)):
            if value is not None and value.shape != self.advantage.shape:
                raise ValueError(
                    f"{name}: shape {tuple(value.shape)}, but advantage has shape "
                    f"{tuple(self.advantage.shape)}; give one number per completion token"
                )
        if self.advantage.requires_grad:
            raise ValueError("advantage carries a gradient; detach it: credit is a constant of the loss")

    @classmethod
    def from_weights(
        cls,
        advantage_B: Float[Tensor, " B"],
        weight: Float[Tensor, "B T"],
        segment_id: Int[Tensor, "B T"],
    ) -> "Credit":
        """Reweighting: ``A_{i,t} = A_i * w_{i,t}`` on the tokens that belong to a segment, exactly 0 elsewhere.

        >>> one = torch.tensor([[0, 0, -1]])
        >>> Credit.from_weights(torch.tensor([2.0]), torch.tensor([[0.5, 1.5, 9.0]]), one).advantage
        tensor([[1., 3., 0.]])
        """
        advantage = torch.where(segment_id >= 0, advantage_B[:, None] * weight, 0.0)
        return cls(advantage=advantage, segment_id=segment_id)

    @classmethod
    def distilling(
        cls, advantage_B: Float[Tensor, " B"], mask: Bool[Tensor, "B T"], strength: float
    ) -> "Credit":
        """``strength`` times distillation plus ``1 - strength`` times the advantage, one segment per completion.

        At ``strength=0`` the advantage is unchanged and there is no ``distill_weight``.

        >>> credit = Credit.distilling(torch.tensor([2.0]), torch.tensor([[True, False]]), strength=0.75)
        >>> credit.advantage, credit.distill_weight
        (tensor([[0.5000, 0.0000]]), tensor([[0.7500, 0.0000]]))
        """
        return cls(
            advantage=torch.where(mask, ((1.0 - strength) * advantage_B)[:, None], 0.0),
            segment_id=torch.where(mask, 0, -1),
            distill_weight=torch.where(mask, strength, 0.0) if strength > 0 else None,
        )

    def falling_back(
        self, row_B: Bool[Tensor, " B"], advantage_B: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]
    ) -> "Credit":
        """The same credit, with the GRPO advantage and one segment in the rows where ``row_B`` is True."""
        row = row_B[:, None]
        advantage = torch.where(mask, advantage_B[:, None], 0.0)
        distill = self.distill_weight
        return Credit(
            advantage=torch.where(row, advantage, self.advantage),
            segment_id=torch.where(row, torch.where(mask, 0, -1), self.segment_id),
            distill_weight=None if distill is None else torch.where(row, 0.0, distill),
        )


@runtime_checkable
class CreditAssigner(Protocol):
    """A credit-assignment method: a pure function with settings.

    Implementations are frozen dataclasses (``settings_class``) whose fields are the settings. What else a method
    may declare: ``gear_rl.traits.Traits``.

    >>> class Doubled:
    ...     name, source, needs = "doubled", "an example", ()
    ...     def __call__(self, advantage_B, signals):
    ...         return Credit.from_weights(advantage_B, 2.0 * signals.mask, torch.where(signals.mask, 0, -1))
    >>> isinstance(Doubled(), CreditAssigner)
    True
    >>> Doubled()(torch.tensor([0.5]), TokenSignals(mask=torch.tensor([[True, False]]))).advantage
    tensor([[1., 0.]])
    """

    name: ClassVar[str]
    """The name in configs, tables and on the command line."""
    source: ClassVar[str]
    """Where the method comes from: an arXiv id, or what it is a control for."""

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        """The signals that the method reads, by name or as objects. May depend on the settings."""
        ...

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """Spread each completion's advantage over its tokens. No I/O, no global randomness, no gradient."""
        ...
