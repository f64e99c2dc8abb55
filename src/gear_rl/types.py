"""The three central types: what a method reads, what it returns, and the method itself; and the table of signals.

Shapes, once for the whole package: ``B`` completions, ``T`` completion tokens, ``V`` vocabulary, ``S`` prompt
plus completion, ``D`` width, ``N`` tokens gathered from a mask. ``(B, T)`` is the default and bears no suffix.
Every ``(B, T)`` tensor is indexed by the token that was *emitted*: ``x[b, t]`` speaks of completion token
``t``, never of the position that predicted it.

Knows no model, no trainer and no method.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Source = Literal["passes", "reference", "saliency", "confidence", "transport", "text", "turns", "rollout"]
"""What a signal is made from: the student's and teacher's forward passes; a pass at the first weights; passes
for the model's answer (saliency, confidence); hidden states of siblings (transport); the completion's text; its
turns; or what a rollout has without any pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """How a signal is made and shaped: one entry of the table ``SIGNALS``.

    >>> Signal(made_by="passes", teacher=True).costs_passes, Signal(made_by="text").costs_passes
    (True, False)
    """

    made_by: Source
    student: bool = False
    """Whether it needs the student's pass (of ``passes`` only)."""
    teacher: bool = False
    """Whether it needs a teacher, and so a privileged context."""
    late: bool = False
    """Whether it is the same whatever other completions it is computed with, so that an engine may compute it for
    some completions at a time, inside the loss."""
    per: Literal["token", "completion", "reward"] = "token"
    """Shape: (B, T), (B,), or (B, R) with one number for each reward function."""

    @property
    def costs_passes(self) -> bool:
        """Whether a forward pass of the model is needed."""
        return self.made_by in ("passes", "reference", "saliency", "confidence", "transport")


def _signal(made_by: Source, **kind: Any) -> Any:
    """A field of ``TokenSignals`` that is None unless it was computed; the arguments are its ``Signal``."""
    return field(default=None, metadata={"signal": Signal(made_by=made_by, **kind)})


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
    student_logprob: Float[Tensor, "B T"] | None = _signal("passes", student=True, late=True)
    """log pi(y_t | x, y_<t), nats."""
    teacher_logprob: Float[Tensor, "B T"] | None = _signal("passes", teacher=True, late=True)
    """log pi(y_t | x, privileged context, y_<t), nats."""
    student_entropy: Float[Tensor, "B T"] | None = _signal("passes", student=True, late=True)
    """Entropy of the student's next-token distribution before y_t was drawn, nats."""
    divergence: Float[Tensor, "B T"] | None = _signal("passes", student=True, teacher=True, late=True)
    """KL(student || teacher) over the vocabulary at y_t (reverse KL), nats."""
    forward_divergence: Float[Tensor, "B T"] | None = _signal(
        made_by="passes", student=True, teacher=True, late=True
    )
    """KL(teacher || student) over the vocabulary at y_t (forward KL), nats."""
    js_divergence: Float[Tensor, "B T"] | None = _signal(
        made_by="passes", student=True, teacher=True, late=True
    )
    """Jensen-Shannon divergence of student and teacher at y_t, nats, at most log 2."""
    teacher_entropy: Float[Tensor, "B T"] | None = _signal("passes", teacher=True, late=True)
    """Entropy of the teacher's next-token distribution before y_t, nats."""
    student_varentropy: Float[Tensor, "B T"] | None = _signal("passes", student=True, late=True)
    """Variance of -log p under the student's next-token distribution before y_t, nats squared."""
    reference_logprob: Float[Tensor, "B T"] | None = _signal("reference")
    """log pi_ref(y_t | x, y_<t) at the weights that the run began with, nats."""

    # What the student's own answer depends on.
    answer_region: Int[Tensor, "B T"] | None = _signal("text")
    """0 before the completion's final answer, 1 on the answer's content, 2 on its delimiters and after it; -1
    where the mask is False. A row without a 1 has no answer."""
    answer_occlusion: Float[Tensor, "B T"] | None = _signal("saliency")
    """How far the student's answer distribution moves (KL, nats) when y_t is replaced by padding; 0 outside
    region 0."""
    answer_gradient: Float[Tensor, "B T"] | None = _signal("saliency")
    """|<gradient of the answer's change under noise, embedding>| at y_t's own embedding; 0 outside region 0."""
    answer_activation: Float[Tensor, "B T"] | None = _signal("saliency")
    """Length of (gradient of the answer's loss * activation) at the position that predicts y_t."""

    # Completions of a group beside each other.
    group_B: Int[Tensor, " B"] | None = _signal("rollout", per="completion")
    """Which prompt's group the completion belongs to; only for methods that compare siblings. A completion that
    falls back, or that nobody judged where rewards are read, has no siblings: its number is no prompt's."""
    reward_B: Float[Tensor, " B"] | None = _signal("rollout", per="completion")
    """The completion's reward, as the trainer weighs and sums it; 0 where nobody judged."""
    rewards_BR: Float[Tensor, "B R"] | None = _signal("rollout", per="reward")
    """What each reward function gave, times its weight; 0 where it abstained."""
    transport_distance: Float[Tensor, "B T"] | None = _signal("transport")
    """How far (Wasserstein) the hidden states around y_t are from those of the group's completions with the
    opposite outcome, in mean lengths of a hidden state; 0 where there is none."""

    # What only a laboratory has.
    true_advantage: Float[Tensor, "B T"] | None = _signal("rollout")
    """What y_t is worth under the current policy: the expected reward after it less that before it. No pass of a
    model gives it: it is for the laboratory's controls."""

    # Turns and text.
    token_id: Int[Tensor, "B T"] | None = _signal("rollout", late=True)
    """The sampled token's number in the vocabulary; -1 where the mask is False. The same on every processor, so
    placebos draw their places from it."""
    turn_reward: Float[Tensor, "B T"] | None = _signal("turns")
    """The environment's reward for the turn that emitted y_t, on every token of the turn; the completion's own
    reward is not among them."""
    anchor_id: Int[Tensor, "B T"] | None = _signal("turns")
    """Which state the turn of y_t began in: turns of a group that began alike share the number; -1 outside."""
    answer_confidence: Float[Tensor, "B T"] | None = _signal("confidence")
    """Geometric mean of the student's probabilities of the ground truth's tokens, had it to answer before the
    turn of y_t; from 0 to 1, the same on every token of the turn."""
    sentence_id: Int[Tensor, "B T"] | None = _signal("text", late=True)
    """Which sentence of the completion y_t belongs to: 0, 1, 2, ...; -1 where the mask is False."""
    line_id: Int[Tensor, "B T"] | None = _signal("text", late=True)
    """Which line of the completion y_t belongs to: 0, 1, 2, ...; -1 where the mask is False."""

    def __post_init__(self) -> None:
        for name in ("turn_id", *SIGNAL_NAMES):
            value: Tensor | None = getattr(self, name)
            if value is None:
                continue
            per = SIGNALS[name].per if name in SIGNALS else "token"
            per_row = per != "token"
            expected = self.mask.shape[:1] if per_row else self.mask.shape
            num_dims = 1 if per == "completion" else 2
            if value.shape[: len(expected)] != expected or value.dim() != num_dims:
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
        signal_of(name)
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(
                f"signal {name!r} was not computed; list it in `needs`, or give TokenSignals({name}=...)"
            )
        return value


SIGNALS: dict[str, Signal] = {f.name: f.metadata["signal"] for f in fields(TokenSignals) if f.metadata}
"""The table of all signals that a method may name in ``needs``: how each is made, and its shape. No other file
lists them: an engine, a check or a metric that concerns some of them selects them here."""
SIGNAL_NAMES: tuple[str, ...] = tuple(SIGNALS)
"""Every signal's name."""


def signal_of(name: str) -> Signal:
    """The entry of the table; ``ValueError`` that lists the signals if there is none of that name.

    >>> signal_of("divergence").teacher, signal_of("token_id").costs_passes
    (True, False)
    """
    if name not in SIGNALS:
        raise ValueError(f"no signal is called {name!r}; the signals are {', '.join(SIGNALS)}")
    return SIGNALS[name]


def signals_where(select: Callable[[Signal], bool]) -> tuple[str, ...]:
    """The names of the signals that ``select`` is True for, in the order of the table.

    >>> signals_where(lambda signal: signal.made_by == "saliency")
    ('answer_occlusion', 'answer_gradient', 'answer_activation')
    """
    return tuple(name for name, signal in SIGNALS.items() if select(signal))


ROW_SIGNALS: tuple[str, ...] = signals_where(lambda signal: signal.per != "token")
"""The signals with one entry per completion instead of one per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a method hands to the loss. Raises ``ValueError`` where shapes disagree or one carries a gradient.

    >>> credit = Credit(advantage=torch.tensor([[2.0, 6.0]]), segment_id=torch.tensor([[0, 1]]))
    >>> every, mask = torch.tensor([True]), torch.tensor([[True, True]])
    >>> back = credit.falling_back(every, torch.tensor([4.0]), mask)
    >>> back.advantage, back.segment_id
    (tensor([[4., 4.]]), tensor([[0, 0]]))
    """

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

    Implementations are frozen dataclasses whose fields are the settings and whose defaults are the published
    ones. What else a method may declare, such as settings of the engine: ``traits``.

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
    def needs(self) -> tuple[str, ...]:
        """The ``TokenSignals`` fields that are read; nothing else may be. May depend on the settings."""
        ...

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """Spread each completion's advantage over its tokens. No I/O, no global randomness, no gradient."""
        ...
