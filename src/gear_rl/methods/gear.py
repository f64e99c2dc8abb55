"""A variant of GEAR, reconstructed: divergence from the teacher opens segments of credit."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.settings import AroundOne, Count, NotNegative, Share, Whole, settings_class
from gear_rl.tensor.masked import masked_max, masked_mean, masked_minmax, masked_quantile
from gear_rl.tensor.segments import at_segment_start, local_maxima, segment_ids, segment_starts
from gear_rl.tensor.trust import prefix_trust
from gear_rl.types import Credit, TokenSignals

Estimator = Literal["full", "k3", "abs_k1"]
Normaliser = Literal["minmax", "max", "log1p_minmax", "robust", "none"]
EntropyNormaliser = Literal["minmax", "max", "log1p_minmax", "robust", "log_vocab", "none"]
OnsetSignal = Literal["divergence", "entropy"]
Departures = Literal["all", "with_reward"]
OnsetRule = Literal["peak", "threshold", "quantile", "local_max", "never"]
EndRule = Literal["next_fork", "entropy_drop", "fixed_length", "turn", "sentence", "line"]
EndSignal = Literal["student_entropy", "teacher_entropy"]
Aligned = Literal["own", "one"]
WeightFunction = Literal["linear", "exp"]
SignMode = Literal["agnostic", "aware", "neg_only"]
Renormalise = Literal["mean", "none", "geomean"]


NOISE_NATS = 1e-5
"""Below this a completion has no pattern: divergences are wrong by up to 7e-6 nats (docs/benchmarks.md)."""


@settings_class
class Gear:
    """A token where the teacher diverges opens a segment of credit, weighted by its divergence.

    Our variant of GEAR (arXiv:2605.11853): ``z_t`` is the reverse KL, normalised over the completion. It
    counts where the teacher's log-ratio has the sign of ``A``, and less after a mistake. A peak opens a
    segment, which ends where student entropy rises and takes the peak's ``z``. ``A_t = A w_t``, with
    ``w_t = 1 + alpha z_t`` scaled to mean 1.

    ``gear:plain`` is our reconstruction from abstract and captions, with guessed numbers.
    ``gear:tokens`` has no segments.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0, 1.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 0.1, 1.0, 0.1]]),
    ...     student_logprob=torch.tensor([[-0.1, -0.5, 0.0, -1.0, -0.5]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -5.0, 0.0, -1.0, -2.0]]),
    ... )
    >>> credit = Gear()(torch.tensor([-1.0]), signals)
    >>> credit.segment_id
    tensor([[0, 1, 1, 2, 3]])
    >>> credit.advantage  # the second divergence is discounted
    tensor([[-0.3824, -1.9120, -1.9120, -0.3824, -0.4112]])
    """

    name: ClassVar[str] = "gear"
    source: ClassVar[str] = "arXiv:2605.11853 (variant of a reconstruction)"
    engine_settings: ClassVar[Mapping[str, Any]] = {"teacher_model_kind": "base"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "plain": {"departures": "all", "aftermath": 0.0, "end_threshold": 0.5, "alpha": 1.0},
        "tokens": {"onset_rule": "never"},
    }
    """Settings that a name stands for, as in ``gear:tokens``."""

    estimator: Estimator = "full"
    """Of the reverse KL. ``full``: exact, over the vocabulary. ``k3``, ``exp(r) - 1 - r``, and ``abs_k1``,
    ``|r|``: estimates from the sampled token's log-ratio ``r``, cheaper and noisier."""
    divergence_norm: Normaliser = "minmax"
    """Scale within a completion: ``minmax``; ``max``, d / max; ``log1p_minmax``; ``robust``, d / 99th percentile,
    at most 1; ``none``, nats."""
    entropy_norm: EntropyNormaliser = "minmax"
    """The same for the end signal; ``log_vocab`` divides an entropy by ``log(vocab_size)``."""
    vocab_size: Whole = 0
    """Size of the vocabulary, for ``entropy_norm="log_vocab"``."""
    departures: Departures = "with_reward"
    """Divergences that count: ``all``, or those ``with_reward``, where the teacher's log-ratio at the sampled
    token has the sign of the advantage."""
    aftermath: Share = 0.9
    """Discounts what follows a mistake: a divergence counts by ``exp(-u_t)``, with
    ``u_t = aftermath (u_{t-1} + max(0, log p(y_{t-1}) - log q(y_{t-1})))``. 0 counts all in full."""
    onset_signal: OnsetSignal = "divergence"
    """Signal whose peaks are onsets: ``divergence``, or the student's ``entropy``, which ignores ``departures``
    and ``aftermath``. The weight is always the onset's divergence."""
    onset_rule: OnsetRule = "peak"
    """Onsets: ``peak``, local maxima of a turn at or above the threshold; ``threshold``, all tokens at or above
    it; ``quantile``, all at or above that quantile; ``local_max``, all local maxima; ``never``, none, for weights
    per token."""
    onset_threshold: NotNegative = 0.5
    """On the normalised scale; with ``quantile`` a level from 0 to 1."""
    onset_floor_nats: NotNegative = 0.01
    """A token whose signal is smaller is no onset; a completion whose divergences are all smaller has weights of
    1."""
    end_rule: EndRule = "next_fork"
    """A segment ends at the next onset or turn, or by this rule: ``next_fork``, end signal at or above the
    threshold; ``entropy_drop``, below it; ``fixed_length``, after ``max_segment_tokens``; end of the ``turn``,
    ``sentence`` or ``line``."""
    end_signal: EndSignal = "student_entropy"
    """Read by ``next_fork`` and ``entropy_drop``: ``student_entropy`` or ``teacher_entropy``."""
    end_threshold: NotNegative = 0.05
    """On the normalised scale of the end signal."""
    max_segment_tokens: Count | None = None
    """Longest segment that an onset opens; None for no limit."""
    aligned: Aligned = "own"
    """Weight of a token outside every segment: from its ``own`` divergence, or ``one``."""
    weight_function: WeightFunction = "linear"
    """``linear``, 1 + alpha z; ``exp``, exp(alpha z)."""
    alpha: NotNegative = 4.0
    """Strength; 0 gives GRPO."""
    sign_mode: SignMode = "agnostic"
    """``agnostic``: the same weight for both signs; ``aware``: exp(-sign(A) alpha z); ``neg_only``: weight 1
    unless the advantage is negative."""
    clip: AroundOne | None = None
    """Least and greatest weight before it is renormalised; None for no clip."""
    renormalise: Renormalise = "mean"
    """Scale the completion's weights to arithmetic ``mean`` 1, geometric mean 1 (``geomean``), or ``none``."""

    def __post_init__(self) -> None:
        if self.onset_rule == "quantile" and self.onset_threshold > 1:
            raise ValueError(f"onset_threshold: {self.onset_threshold} is a quantile here; give at most 1")
        if self.end_rule == "fixed_length" and self.max_segment_tokens is None:
            raise ValueError("max_segment_tokens: end_rule='fixed_length' needs a length, for example 8")
        if self.entropy_norm == "log_vocab" and self.vocab_size < 2:
            raise ValueError(
                f"vocab_size: {self.vocab_size}; entropy_norm='log_vocab' needs the number of tokens"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        signals = ("divergence",) if self.estimator == "full" else _LOGPROBS
        if self.departures != "all" or self.aftermath > 0:
            signals += _LOGPROBS
        if self._end_reads is not None:
            signals += (self._end_reads,)
        if self._onsets_from_entropy:
            signals += ("student_entropy",)
        return tuple(dict.fromkeys(signals))

    @property
    def makes_segments(self) -> bool:
        """Unless every token is one by itself."""
        return self.onset_rule != "never" and self.max_segment_tokens != 1

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        return self.spread(advantage_B, signals, *self.onsets(advantage_B, signals))

    def onsets(
        self, advantage_B: Float[Tensor, " B"], signals: TokenSignals
    ) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """The normalised divergence of every token, and the tokens that open a segment.

        Only the signs of the advantages are read, and only by ``departures="with_reward"``.

        >>> Gear(departures="all", aftermath=0.0).onsets(torch.tensor([1.0]), TokenSignals(
        ...     mask=torch.ones(1, 3, dtype=torch.bool), divergence=torch.tensor([[1.0, 3.0, 2.0]])
        ... ))
        (tensor([[0.0000, 1.0000, 0.5000]]), tensor([[False,  True, False]]))
        """
        mask = signals.mask
        nats = self._divergence(signals) * self._counts(advantage_B, signals)
        noise = masked_max(nats, mask) < NOISE_NATS
        # A NaN is below nothing: it stays, so that an engine sees it.
        quiet = masked_max(nats, mask) < max(NOISE_NATS, self.onset_floor_nats)
        height = level = _normalised_signal(torch.where(quiet, 0.0, nats), mask, self.divergence_norm)
        if self._onsets_from_entropy:
            nats = signals.get("student_entropy")
            noise = masked_max(nats, mask) < NOISE_NATS
            level = _normalised_signal(nats, mask, self.divergence_norm)
        match self.onset_rule:
            case "peak":
                onset = local_maxima(level, signals.turn_id) & (level >= self.onset_threshold)
            case "threshold":
                onset = level >= self.onset_threshold
            case "quantile":
                onset = level >= masked_quantile(level, mask, self.onset_threshold)
            case "local_max":
                onset = local_maxima(level, signals.turn_id)
            case "never":
                onset = torch.zeros_like(mask)
        return height, onset & mask & (nats >= self.onset_floor_nats) & ~noise

    def spread(
        self,
        advantage_B: Float[Tensor, " B"],
        signals: TokenSignals,
        height: Float[Tensor, "B T"],
        onset: Bool[Tensor, "B T"],
    ) -> Credit:
        """The credit of given onsets: their segments, the weights, the renormalisation.

        >>> signals = TokenSignals(
        ...     mask=torch.ones(1, 3, dtype=torch.bool), student_entropy=torch.tensor([[0.0, 0.0, 1.0]])
        ... )
        >>> height, onset = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, False, False]])
        >>> Gear().spread(torch.tensor([1.0]), signals, height, onset).advantage
        tensor([[1.3636, 1.3636, 0.2727]])
        """
        mask = signals.mask
        new_turn = segment_starts(signals.turn_id)
        segment_id = segment_ids(
            onset, new_turn | self._ends(signals), mask, max_tokens=self.max_segment_tokens
        )
        at_start = at_segment_start(height, segment_id)
        if self.aligned == "one":
            opened = at_segment_start(onset.to(height.dtype), segment_id) > 0
            at_start = torch.where(opened, at_start, 0.0)
        weight = self._weight(at_start, advantage_B)
        return Credit.from_weights(advantage_B, self._renormalised(weight, mask), segment_id)

    @property
    def _end_reads(self) -> str | None:
        """The signal that says where a segment ends, if one does."""
        if self.onset_rule == "never":
            return None
        if self.end_rule in ("next_fork", "entropy_drop"):
            return self.end_signal
        return {"sentence": "sentence_id", "line": "line_id"}.get(self.end_rule)

    @property
    def _onsets_from_entropy(self) -> bool:
        """Whether the student's entropy is searched for onsets."""
        return self.onset_rule != "never" and self.onset_signal == "entropy"

    def _divergence(self, signals: TokenSignals) -> Float[Tensor, "B T"]:
        if self.estimator == "full":
            # None is negative but by rounding, and a weight of less than 1 would be made of that.
            return signals.get("divergence").clamp(min=0.0)
        log_ratio = _log_ratio(signals)
        if self.estimator == "abs_k1":
            return log_ratio.abs()
        # Clamped from above, too: a lone token must not overflow.
        return (log_ratio.clamp(max=20.0).expm1() - log_ratio).clamp(min=0.0)

    def _counts(
        self, advantage_B: Float[Tensor, " B"], signals: TokenSignals
    ) -> Float[Tensor, "B T"] | float:
        """How much of a token's divergence counts, 0 to 1."""
        counts: Float[Tensor, "B T"] | float = 1.0
        if self.aftermath > 0:
            counts = prefix_trust(_log_ratio(signals), signals.mask, self.aftermath)
        if self.departures == "with_reward":
            counts = counts * (_log_ratio(signals) * advantage_B.sign()[:, None] > 0)
        return counts

    def _ends(self, signals: TokenSignals) -> Bool[Tensor, "B T"]:
        if self._end_reads is None:
            return torch.zeros_like(signals.mask)
        read = signals.get(self._end_reads)
        if self.end_rule in ("sentence", "line"):
            return segment_starts(read)
        if self.entropy_norm == "log_vocab":
            level = read / math.log(self.vocab_size)
        else:
            level = _normalised_signal(read, signals.mask, self.entropy_norm)
        return level >= self.end_threshold if self.end_rule == "next_fork" else level < self.end_threshold

    def _weight(self, z: Float[Tensor, "B T"], advantage_B: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
        if self.sign_mode == "aware":
            weight = _exp(-advantage_B.sign()[:, None] * self.alpha * z)
        elif self.weight_function == "linear":
            weight = 1.0 + self.alpha * z
        else:
            weight = _exp(self.alpha * z)
        if self.sign_mode == "neg_only":
            weight = torch.where(advantage_B[:, None] < 0, weight, 1.0)
        return weight if self.clip is None else weight.clamp(*self.clip)

    def _renormalised(self, weight: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        match self.renormalise:
            case "mean":
                mean = masked_mean(weight, mask)
            case "geomean":
                mean = masked_mean(weight.log(), mask).exp()
            case "none":
                return weight
        return weight / torch.where(mean > 0, mean, 1.0)  # an empty row has mean 0


def _exp(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    # On the scale of nats an exponent can be large; e^60 times any number of tokens still fits in float32.
    return x.clamp(-60.0, 60.0).exp()


def _log_ratio(signals: TokenSignals) -> Float[Tensor, "B T"]:
    """Teacher over student, of the sampled token, in nats."""
    return signals.get("teacher_logprob") - signals.get("student_logprob")


_LOGPROBS = ("student_logprob", "teacher_logprob")


def _normalised_signal(
    x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], how: EntropyNormaliser
) -> Float[Tensor, "B T"]:
    """``x`` on the scale that ``how`` names, row by row; 0 on masked tokens."""
    match how:
        case "minmax":
            return masked_minmax(x, mask)
        case "log1p_minmax":
            return masked_minmax(x.clamp(min=0).log1p(), mask)
        case "max":
            scale = masked_max(x, mask)
        case "robust":
            scale = masked_quantile(x, mask, 0.99)
            scale = torch.where(scale > 0, scale, masked_max(x, mask))  # fewer than 1 % of the tokens count
        case _:
            return torch.where(mask, x, 0.0)
    scaled = torch.where(scale > 0, x / torch.where(scale > 0, scale, 1.0), 0.0).clamp(max=1.0)
    return torch.where(mask, scaled, 0.0)
