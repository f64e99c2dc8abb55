"""The three nouns of the house: what a method reads, what it returns, and the method itself.

Shapes, once for the whole package: ``B`` completions, ``T`` completion tokens, ``V`` vocabulary, ``S`` prompt
plus completion, ``D`` width, ``N`` tokens gathered from a mask. ``(B, T)`` is the default and bears no suffix.
Every ``(B, T)`` tensor is indexed by the token that was *emitted*: ``x[b, t]`` speaks of completion token
``t``, never of the position that predicted it.

Knows no model, no trainer and no method.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSignals:
    """What the forward passes saw, one number per emitted token. Float32, detached.

    Only ``mask`` is always there. A method names the others in ``needs``; an engine computes no signal that
    nobody needs. Raises ``ValueError`` for a signal whose shape is not the mask's or that carries a gradient.

    >>> mask = torch.ones(1, 2, dtype=torch.bool)
    >>> TokenSignals(mask=mask, divergence=torch.zeros(1, 2, requires_grad=True))
    Traceback (most recent call last):
    ValueError: divergence carries a gradient; detach it: signals are constants of the loss
    """

    mask: Bool[Tensor, "B T"]
    """True on tokens the policy sampled and is trained on; False on tool output and padding."""
    turn_id: Int[Tensor, "B T"] | None = None
    """Which turn of the rollout emitted the token: 0, 1, 2, ...; -1 where the mask is False. It belongs to the
    mask, not to a forward pass, so no method names it in ``needs``; None means the maximal runs of the mask."""
    student_logprob: Float[Tensor, "B T"] | None = None
    """log pi(y_t | x, y_<t), nats."""
    teacher_logprob: Float[Tensor, "B T"] | None = None
    """log pi(y_t | x, privileged context, y_<t), nats."""
    student_entropy: Float[Tensor, "B T"] | None = None
    """Entropy of the student's next-token distribution before y_t was drawn, nats."""
    divergence: Float[Tensor, "B T"] | None = None
    """KL(student || teacher) over the vocabulary at y_t (reverse KL), nats."""
    group_B: Int[Tensor, " B"] | None = None
    """Which prompt's group the completion belongs to; only for methods that compare siblings."""

    def __post_init__(self) -> None:
        for name in ("turn_id", *SIGNAL_NAMES):
            value: Tensor | None = getattr(self, name)
            if value is None:
                continue
            expected = self.mask.shape[:1] if name == "group_B" else self.mask.shape
            if value.shape != expected:
                raise ValueError(
                    f"{name}: shape {tuple(value.shape)}, but mask has shape {tuple(self.mask.shape)}; "
                    f"give one number per {'completion' if name == 'group_B' else 'completion token'}"
                )
            if value.requires_grad:
                raise ValueError(f"{name} carries a gradient; detach it: signals are constants of the loss")

    def get(self, name: str) -> Tensor:
        """The signal ``name``; ``ValueError`` if the engine was not asked to compute it.

        >>> TokenSignals(mask=torch.ones(1, 1, dtype=torch.bool)).get("divergence")
        Traceback (most recent call last):
        ValueError: signal 'divergence' was not computed; list it in the method's `needs`
        """
        if name not in SIGNAL_NAMES:
            raise ValueError(f"no signal is called {name!r}; the signals are {', '.join(SIGNAL_NAMES)}")
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"signal {name!r} was not computed; list it in the method's `needs`")
        return value


SIGNAL_NAMES: tuple[str, ...] = tuple(
    f.name for f in fields(TokenSignals) if f.name not in ("mask", "turn_id")
)
"""Every signal that a method may name in ``needs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a method hands to the loss. Raises ``ValueError`` where the shapes disagree or a gradient hangs on."""

    advantage: Float[Tensor, "B T"]
    """Per-token advantage; exactly 0 where the mask is False."""
    segment_id: Int[Tensor, "B T"]
    """Which segment a token belongs to, 0, 1, 2, ... along each row; -1 where the mask is False."""
    distill_weight: Float[Tensor, "B T"] | None = None
    """Coefficient of KL(student || teacher) in the loss, for methods that also distil (OPSD, SDPO, SDPG)."""

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

    def falling_back(
        self, row_B: Bool[Tensor, " B"], advantage_B: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]
    ) -> "Credit":
        """The same credit with weight 1 and one segment in the rows where ``row_B`` is True.

        This is how a completion whose signals cannot be trusted gets its GRPO advantage back.
        """
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
    """A credit-assignment method: a pure function with its settings attached.

    Implementations are frozen dataclasses. The fields are the settings, the defaults are the published ones,
    and the class is its own config: there is no second place to declare them.
    """

    name: ClassVar[str]
    """The name in configs, tables and on the command line."""
    source: ClassVar[str]
    """Where the method comes from: an arXiv id, or what it is a control for."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The ``TokenSignals`` fields that are read; nothing else may be. May depend on the settings."""
        ...

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """Spread each completion's advantage over its tokens. No I/O, no global randomness, no gradient."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """What a method has besides, if its settings change in the course of a training.

    A method has no step counter; the engine has one, and asks before each call.
    """

    def at_step(self, step: int) -> CreditAssigner:
        """The method as it is at optimizer step ``step``, counted from 0; the method itself stays as it was."""
        ...
