"""The ceiling of a comparison: true advantages, by a task's formula or estimated by branching rollouts.

A control of the laboratory, not a method to train with: it needs the truth, or many rollouts per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, prod
from statistics import fmean
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.arena.task import TruthOf
from gear_rl.arena.token_truth import Truth
from gear_rl.engine import Engine, ForwardRequest
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.signal import STUDENT_LOGPROB, BatchSignal
from gear_rl.tensor.lists import float_list, int_list
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, Signal, TokenSignals

ORACLE = {"name": f"{__name__}:Oracle"}
"""Its settings, for a run's ``credit``."""
Estimate = Callable[[RolloutBatch, Engine], Float[Tensor, "B T"]]
"""The true advantages of a batch's tokens."""


@dataclass(frozen=True)
class TrueAdvantage(BatchSignal):
    """The expected reward after a token less that before it, under the current policy."""

    name = "true_advantage"

    estimate: Estimate | None = None

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        if self.estimate is None:
            raise ValueError(
                "credit: the signal 'true_advantage' comes from the laboratory; run the method in gear compare, "
                "as oracle"
            )
        return torch.where(batch.completions.mask, self.estimate(batch, engine), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Every token gets its own true advantage in place of the completion's.

    That is the expected reward after it less that before it, under the current policy: exact where the task has
    a formula (`Truth`), elsewhere estimated by branching rollouts (VinePPO, arXiv:2410.01679). In units of the
    reward, not in standard deviations of the group: AdamW is invariant to such a factor.

    >>> signals = TokenSignals(mask=torch.tensor([[True, True]]), true_advantage=torch.tensor([[0.5, -0.25]]))
    >>> Oracle()(torch.tensor([1.0]), signals).advantage
    tensor([[ 0.5000, -0.2500]])
    """

    name: ClassVar[str] = "oracle"
    source: ClassVar[str] = "control (ours); arXiv:2410.01679"
    additive: ClassVar[bool] = True
    branches: int = 4
    """Continuations of each place where rollouts branch off; 4 train as well as the formula
    (docs/decisions/0013)."""
    estimate: Estimate | None = field(default=None, repr=False)
    """Set by the laboratory."""

    def __post_init__(self) -> None:
        if self.branches < 1:
            raise ValueError(f"branches: {self.branches}; give 1 or more")

    @property
    def needs(self) -> tuple[Signal, ...]:
        return (TrueAdvantage(self.estimate),)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        advantage = torch.where(signals.mask, signals.get("true_advantage"), 0.0)
        return Credit(advantage=advantage, segment_id=masked_rank(signals.mask))


def estimate_of(trainer: Any, truth_of: TruthOf | None) -> Estimate:
    """The true advantages of a trainer's rollouts: by a task's formula, else by branching rollouts."""
    if truth_of is not None:
        return by_formula(truth_of)
    from gear_rl.lab.branching import branched_advantages

    return branched_advantages(trainer, trainer.credit.branches)


def by_formula(truth_of: TruthOf) -> Estimate:
    """True advantages by a task's formula, from the probability of the right token at every decision."""

    def estimate(batch: RolloutBatch, engine: Engine) -> Tensor:
        completions = batch.completions
        pairs = zip(map(int_list, completions.ids), batch.rows, strict=True)
        truths = [truth_of(ids, row, engine.tokenizer) for ids, row in pairs]
        right = torch.tensor([truth.right_id for truth in truths], device=completions.ids.device)
        request = ForwardRequest(
            needs=(STUDENT_LOGPROB,),
            step=batch.step,
            completions=replace(completions, target_ids=torch.where(right < 0, completions.ids, right)),
            student=batch.student,
            teachers=(),
            scored_B=completions.mask.any(-1),
        )
        chances = [*map(float_list, engine.forward(request)["student_logprob"].exp())]
        expected = expected_of_prompts(truths, chances, batch.group)
        values = [true_advantages(*row) for row in zip(truths, chances, expected, strict=True)]
        return torch.tensor(values, device=completions.ids.device)

    return estimate


def expected_of_prompts(
    truths: Sequence[Truth], chances: Sequence[Sequence[float]], groups: Sequence[int]
) -> list[list[float]]:
    """The probability that the policy takes each decision of a completion's prompt rightly.

    That is the mean over the siblings that reached the decision; where none did, over all decisions of the batch.

    >>> one = Truth(decision=(0,), right=(True,), right_id=(7,), lost=((),), num_decisions=2, exact=False)
    >>> expected_of_prompts([one, one], [[0.5], [0.75]], [0, 0])
    [[0.625, 0.625], [0.625, 0.625]]
    """
    of_group: dict[tuple[int, int], list[float]] = {}
    for truth, chance, group in zip(truths, chances, groups, strict=True):
        for number, t in _places(truth).items():
            of_group.setdefault((group, number), []).append(chance[t])
    mean = fmean([value for values in of_group.values() for value in values]) if of_group else 0.0
    return [
        [fmean(of_group.get((group, number), [mean])) for number in range(truth.num_decisions)]
        for truth, group in zip(truths, groups, strict=True)
    ]


def _places(truth: Truth) -> dict[int, int]:
    """Decision to the first of its tokens: it was decided there."""
    return {number: t for t, number in reversed([*enumerate(truth.decision)]) if number >= 0}


def true_advantages(truth: Truth, chance: Sequence[float], expected: Sequence[float]) -> list[float]:
    """The true advantage of every token, from the policy's probability of the right one in each place, and its
    expected probability of each decision.

    >>> shown = {"decision": (-1, 0, 1), "right_id": (-1, 7, 8), "lost": ((), (), ()), "num_decisions": 2}
    >>> true_advantages(Truth(right=(False, True, False), exact=False, **shown), [1.0, 0.5, 0.75], [0.5, 0.75])
    [0.0, 0.25, -0.375]
    >>> true_advantages(Truth(right=(False, True, False), exact=True, **shown), [1.0, 0.5, 0.75], [0.5, 0.75])
    [0.0, 0.375, -0.75]
    """
    values, place = [0.0] * len(chance), _places(truth)
    means = [chance[place[n]] if n in place else expected[n] for n in range(truth.num_decisions)]
    for t, (number, lost) in enumerate(zip(truth.decision, truth.lost, strict=True)):
        if place.get(number) != t and not lost:
            continue
        if truth.exact:
            # Worth something only if nothing is wrong so far; then all later decisions have to be right.
            done = [n for n, other in place.items() if other < t]
            right = all(truth.right[place[n]] for n in done)
            worth = prod(means[n] for n in range(truth.num_decisions) if n not in (*done, number)) * right
        else:
            worth = fsum(means[n] for n in lost) if lost else 1.0
            worth /= truth.num_decisions
        values[t] = (float(truth.right[t]) - chance[t]) * worth
    return values
