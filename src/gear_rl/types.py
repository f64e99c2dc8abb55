"""The three nouns of the house: what a method reads, what it returns, and the method itself.

Shapes, once for the whole package: ``B`` completions, ``T`` completion tokens, ``V`` vocabulary, ``S`` prompt
plus completion, ``D`` width, ``N`` tokens gathered from a mask. ``(B, T)`` is the default and bears no suffix.
Every ``(B, T)`` tensor is indexed by the token that was *emitted*: ``x[b, t]`` speaks of completion token
``t``, never of the position that predicted it.

Knows no model, no trainer and no method.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, cast, get_args, runtime_checkable

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

    # One forward pass of the student, and one of the teacher where the name says so or two are compared.
    student_logprob: Float[Tensor, "B T"] | None = None
    """log pi(y_t | x, y_<t), nats."""
    teacher_logprob: Float[Tensor, "B T"] | None = None
    """log pi(y_t | x, privileged context, y_<t), nats."""
    student_entropy: Float[Tensor, "B T"] | None = None
    """Entropy of the student's next-token distribution before y_t was drawn, nats."""
    divergence: Float[Tensor, "B T"] | None = None
    """KL(student || teacher) over the vocabulary at y_t (reverse KL), nats."""
    forward_divergence: Float[Tensor, "B T"] | None = None
    """KL(teacher || student) over the vocabulary at y_t (forward KL), nats."""
    js_divergence: Float[Tensor, "B T"] | None = None
    """Jensen-Shannon divergence of student and teacher at y_t, nats, at most log 2."""
    teacher_entropy: Float[Tensor, "B T"] | None = None
    """Entropy of the teacher's next-token distribution before y_t, nats."""
    student_varentropy: Float[Tensor, "B T"] | None = None
    """Variance of -log p under the student's next-token distribution before y_t, nats squared."""
    reference_logprob: Float[Tensor, "B T"] | None = None
    """log pi_ref(y_t | x, y_<t) at the weights that the run began with, nats."""

    # What the student's own answer hangs on.
    answer_region: Int[Tensor, "B T"] | None = None
    """0 before the completion's final answer, 1 on the answer's content, 2 on its delimiters and after it; -1
    where the mask is False. A row without a 1 has no answer that was found."""
    answer_occlusion: Float[Tensor, "B T"] | None = None
    """How far the student's answer distribution moves (KL, nats) when y_t is replaced by padding; 0 outside
    region 0."""
    answer_gradient: Float[Tensor, "B T"] | None = None
    """|<gradient of the answer's change under noise, embedding>| at y_t's own embedding; 0 outside region 0."""
    answer_activation: Float[Tensor, "B T"] | None = None
    """Length of (gradient of the answer's loss * activation) at the position that predicts y_t."""

    # Completions of a group beside each other.
    group_B: Int[Tensor, " B"] | None = None
    """Which prompt's group the completion belongs to; only for methods that compare siblings. A completion that
    falls back, or that nobody judged where rewards are read, has no siblings: its number is no prompt's."""
    reward_B: Float[Tensor, " B"] | None = None
    """The completion's reward, as the trainer weighs and sums it; 0 where nobody judged."""
    rewards_BR: Float[Tensor, "B R"] | None = None
    """What each reward function gave, times its weight; 0 where it abstained."""
    transport_distance: Float[Tensor, "B T"] | None = None
    """How far (Wasserstein) the hidden states around y_t are from those of the group's completions with the
    opposite outcome, in mean lengths of a hidden state; 0 where there is none."""

    # Turns and text.
    token_id: Int[Tensor, "B T"] | None = None
    """The sampled token's number in the vocabulary; -1 where the mask is False. The same on every processor, so
    placebos draw their places from it."""
    turn_reward: Float[Tensor, "B T"] | None = None
    """The environment's reward for the turn that emitted y_t, on every token of the turn; the completion's own
    reward is not among them."""
    anchor_id: Int[Tensor, "B T"] | None = None
    """Which state the turn of y_t began in: turns of a group that began alike share the number; -1 outside."""
    answer_confidence: Float[Tensor, "B T"] | None = None
    """Geometric mean of the student's probabilities of the ground truth's tokens, had it to answer before the
    turn of y_t; from 0 to 1, the same on every token of the turn."""
    sentence_id: Int[Tensor, "B T"] | None = None
    """Which sentence of the completion y_t belongs to: 0, 1, 2, ...; -1 where the mask is False."""
    line_id: Int[Tensor, "B T"] | None = None
    """Which line of the completion y_t belongs to: 0, 1, 2, ...; -1 where the mask is False."""

    def __post_init__(self) -> None:
        for name in ("turn_id", *SIGNAL_NAMES):
            value: Tensor | None = getattr(self, name)
            if value is None:
                continue
            per_row = name in ROW_SIGNALS
            expected = self.mask.shape[:1] if per_row else self.mask.shape
            if value.shape[: len(expected)] != expected or value.dim() != (
                2 if name in _WIDE else len(expected)
            ):
                raise ValueError(
                    f"{name}: shape {tuple(value.shape)}, but mask has shape {tuple(self.mask.shape)}; "
                    f"give one number per {'completion' if per_row else 'completion token'}"
                )
            if value.requires_grad:
                raise ValueError(f"{name} carries a gradient; detach it: signals are constants of the loss")

    def get(self, name: str) -> Tensor:
        """The signal ``name``; ``ValueError`` if it is not there.

        >>> TokenSignals(mask=torch.ones(1, 1, dtype=torch.bool)).get("divergence")
        Traceback (most recent call last):
        ValueError: signal 'divergence' was not computed; list it in `needs`, or give TokenSignals(divergence=...)
        """
        if name not in SIGNAL_NAMES:
            raise ValueError(f"no signal is called {name!r}; the signals are {', '.join(SIGNAL_NAMES)}")
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(
                f"signal {name!r} was not computed; list it in `needs`, or give TokenSignals({name}=...)"
            )
        return value


SIGNAL_NAMES: tuple[str, ...] = tuple(
    f.name for f in fields(TokenSignals) if f.name not in ("mask", "turn_id")
)
"""Every signal that a method may name in ``needs``."""
ROW_SIGNALS: tuple[str, ...] = tuple(name for name in SIGNAL_NAMES if name.endswith(("_B", "_BR")))
"""The signals with one entry per completion instead of one per token."""
_WIDE = ("rewards_BR",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a method hands to the loss. Raises ``ValueError`` where the shapes disagree or a gradient hangs on."""

    advantage: Float[Tensor, "B T"]
    """Per-token advantage; exactly 0 where the mask is False."""
    segment_id: Int[Tensor, "B T"]
    """Which segment a token belongs to, 0, 1, 2, ... along each row; -1 where the mask is False."""
    distill_weight: Float[Tensor, "B T"] | None = None
    """Coefficient of the method's ``distillation`` in the loss, for methods that also distil (OPSD, SDPO,
    SDPG); 0 or more, and exactly 0 where the mask is False."""

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
        """Distillation in place of the advantage: ``strength`` of the one, ``1 - strength`` of the other.

        One segment per completion; without ``distill_weight``, and the advantage as it was, at ``strength=0``.

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
    and the class is its own config: there is no second place to declare them. What the paper or its code sets in
    the engine (whose weights the teacher has, what it sees) may stand beside them: ``engine_settings_of``.
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
    """What a method has besides, if its credit may carry ``distill_weight``."""

    @property
    def distillation(self) -> Distillation | None:
        """The term of the loss; None where the settings leave nothing to distil."""
        ...


def distillation_of(method: CreditAssigner) -> Distillation | None:
    """What the method distils, or None."""
    return method.distillation if isinstance(method, Distilling) else None


def is_additive(method: CreditAssigner) -> bool:
    """Whether the method may give credit where the completion's advantage is 0, or of the other sign.

    A method says so by an attribute ``additive = True``; an engine then computes its signals for every
    completion. Reweighting methods, which have no such attribute, cost nothing where the advantage is 0. A method
    that distils is treated as additive: its term does not hang on the advantage.
    """
    return bool(getattr(method, "additive", False)) or distillation_of(method) is not None


def is_per_completion(method: CreditAssigner) -> bool:
    """Whether the method gives every completion the same credit whatever other completions it is called with.

    A method says so by an attribute ``per_completion = True``, or a property where it depends on the settings. An
    engine may then ask for the credit of some completions at a time, with signals out of other forwards, which
    differ in their last bits: what draws at random by these bits must not say so.
    """
    return bool(getattr(method, "per_completion", False))


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
    found: Any = getattr(method, "engine_settings", {})
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in cast(Any, found)):
        raise ValueError(
            f"credit: engine_settings of {method.name!r} is {found!r}; give a mapping from names of settings to "
            "values"
        )
    return dict(cast(Mapping[str, Any], found))
