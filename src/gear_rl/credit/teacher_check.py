"""Whether the teacher reads its own privileged context, or any context moves it alike.

Completions are scored under their own context and those of two other rows. For a teacher that reads no context,
each of two comparisons holds half of the time:

- The own context is farther from another one than the others are from each other. Holds for a teacher that
  ignores contexts of other problems.
- The completion is likelier under its own context than under another. Holds for a teacher that copies.

An informed teacher makes right tokens likelier and wrong ones less likely, so the second alone has no clear sign.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.plan import CreditPlan
from gear_rl.credit.teacher_prompts import teacher_prompts
from gear_rl.engine import Engine, ForwardRequest
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.signal import TEACHER_LOGPROB
from gear_rl.tensor.lists import float_list, int_list

logger = logging.getLogger(__name__)

PROMPTS_PER_CHECK = 8
"""Prompts of a process in one check, with one completion each."""
PROMPTS_TO_JUDGE = 24
"""Prompts after which a run may warn: two standard errors are then 0.2 at most."""
POOL = 16
"""Contexts of earlier checks that are kept, for steps with too few prompts."""
NOT_INFORMED = (
    "the teacher does not seem to read its privileged context: among %d completions the own context stands out "
    "from other rows' in %.0f %% of the comparisons and makes the completion likelier in %.0f %%; chance is 50. "
    "Use worked solutions in place of answers, another teacher_prompt_template, or another teacher_model; "
    "`gear teacher` measures it before a run"
)


def context_logprob(
    batch: RolloutBatch,
    engine: Engine,
    config: CreditConfig,
    contexts: Sequence[str | None],
    scored_B: Bool[Tensor, " B"],
) -> Float[Tensor, "B T"]:
    """The teacher's log-probs of the completions' tokens with these contexts, in nats; 0 in rows not to score.

    Every process must call this.
    """
    request = ForwardRequest(
        needs=(TEACHER_LOGPROB,),
        step=batch.step,
        completions=batch.completions,
        student=batch.student,
        teachers=[teacher_prompts(batch, engine, config, contexts)[0]],
        scored_B=scored_B,
        skip_first_tokens=config.teacher_skip_first_tokens,
    )
    return engine.forward(request)["teacher_logprob"]


def stands_out(
    own: Float[Tensor, "B T"], second: Float[Tensor, "B T"], third: Float[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """The share of two comparisons in which the own context is farther from another one than they are apart.

    0, 0.5 or 1; a tie counts half. Distance is the difference of the tokens' probabilities, summed over tokens.
    By symmetry the mean is 0.5 where the own context is like any other.

    >>> own, second, third = (torch.tensor([[value, -1.0]]) for value in (-0.1, -2.0, -2.5))
    >>> stands_out(own, second, third), stands_out(second, own, third)
    (tensor([1.]), tensor([0.]))
    """

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() - y.exp()).abs().sum(-1)  # log-probs would let the unlikeliest tokens decide

    among = distance(second, third)
    ahead = (distance(own, second) - among).sign() + (distance(own, third) - among).sign()
    return (ahead + 2) / 4


def share_less_likely(
    own: Float[Tensor, "B T"], second: Float[Tensor, "B T"], third: Float[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """The share of two other contexts under which the completion is less likely than under its own.

    0, 0.5 or 1; a tie counts half. Compares sums of the tokens' probabilities. By symmetry the mean is 0.5 where
    the own context is like any other.

    >>> own, second, third = (torch.tensor([[value, -1.0]]) for value in (-0.3, -2.0, -0.1))
    >>> share_less_likely(own, second, third)
    tensor([0.5000])
    """
    ours, one, other = (x.exp().sum(-1) for x in (own, second, third))
    return ((ours - one).sign() + (ours - other).sign() + 2) / 4


def two_others(contexts: Sequence[str | None], pool: Sequence[str] = ()) -> list[tuple[str, str] | None]:
    """For each context the next two other texts, cyclically and then in ``pool``; None without or for no text.

    >>> two_others(["4", "4", "5", "6"])
    [('5', '6'), ('5', '6'), ('6', '4'), ('4', '5')]
    >>> two_others(["4", None], pool=["7", "8"])
    [('7', '8'), None]
    """
    pairs: list[tuple[str, str] | None] = []
    for i, own in enumerate(contexts):
        around = (*contexts[i + 1 :], *contexts[:i], *pool)
        others = list(dict.fromkeys(text for text in around if text and text != own))
        pairs.append((others[0], others[1]) if own and len(others) > 1 else None)
    return pairs


@dataclass
class TeacherCheck:
    """Every few steps of a run, checks whether some completions depend on their own privileged context.

    Logs the means of ``stands_out`` and ``share_less_likely``, as ``gear/teacher/informed`` and
    ``gear/teacher/likelier``.
    Warns once, when enough prompts were seen and neither is clearly other than chance. Costs three passes of at
    most ``PROMPTS_PER_CHECK`` completions. Only for methods that read a teacher.
    """

    every: int
    """Steps between two checks; 0 for none."""
    values: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """``stands_out`` and ``share_less_likely`` of each prompt so far."""
    pool: list[str] = field(default_factory=list[str])
    warned: bool = False
    seen: int | None = None
    """Step of the last batch."""

    def __call__(self, plan: CreditPlan, engine: Engine) -> None:
        """Check a batch, if its step is due; every process must call this."""
        batch, own = plan.batch, list(plan.teacher.contexts)
        if not self.is_due(batch.step) or not any(signal.teacher for signal in plan.signals):
            return
        everywhere = engine.gather_objects(own)
        pairs = two_others(everywhere, self.pool)[batch.first : batch.first + len(own)]
        known = dict.fromkeys(text for text in (*everywhere, *self.pool) if text is not None)
        self.pool = list(known)[:POOL]
        chosen_B = _one_per_prompt(batch, pairs)
        shown = [own] + [[pair and pair[k] for pair in pairs] for k in (0, 1)]
        scored = [context_logprob(batch, engine, plan.config, texts, chosen_B) for texts in shown]
        out_B, likelier_B = (engine.gather(compare(*scored)) for compare in (stands_out, share_less_likely))
        chosen_B = engine.gather(chosen_B)
        if not chosen_B.any():
            return
        found = list(zip(float_list(out_B[chosen_B]), float_list(likelier_B[chosen_B]), strict=True))
        self.values += found
        informed, likely = (math.fsum(values) / len(found) for values in zip(*found, strict=True))
        engine.log({"gear/teacher/informed": informed, "gear/teacher/likelier": likely})
        out, more = zip(*self.values, strict=True)
        count = len(self.values)
        if self.warned or count < PROMPTS_TO_JUDGE or is_above_chance(out) or not is_chance(more):
            return
        self.warned = True
        if engine.rank == 0:
            logger.warning(NOT_INFORMED, count, *(100 * math.fsum(values) / count for values in (out, more)))

    def is_due(self, step: int) -> bool:
        """Whether the step reaches a multiple of ``every``, or one came after the last batch.

        >>> check = TeacherCheck(every=5)  # rollouts that serve five steps
        >>> [step for step in range(0, 16, 5) if check.is_due(step)]
        [5, 10, 15]
        """
        before = step if self.seen is None else self.seen + 1
        self.seen = step
        return self.every > 0 and (step + 1) // self.every > before // self.every


def is_above_chance(values: Sequence[float]) -> bool:
    """Whether the mean of values from 0 to 1 is more than 2.24 standard errors above 0.5.

    Two such tests together err in one case of twenty.

    >>> is_above_chance([1.0] * 9 + [0.0]), is_above_chance([1.0, 0.0, 1.0, 1.0])
    (True, False)
    """
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return mean - 2.24 * math.sqrt(square / len(values)) > 0.5


def is_chance(values: Sequence[float]) -> bool:
    """Whether the mean of values from 0 to 1 is within 2.24 standard errors of 0.5.

    >>> is_chance([1.0, 0.0, 1.0, 1.0]), is_chance([0.0] * 9 + [1.0])
    (True, False)
    """
    return not is_above_chance(values) and not is_above_chance([1 - value for value in values])


def _one_per_prompt(batch: RolloutBatch, pairs: Sequence[object | None]) -> Bool[Tensor, " B"]:
    """The first usable completion of each of the first prompts."""
    seen, chosen = set[int](), list[bool]()
    written = int_list(batch.completions.mask.any(-1))
    for group, pair, tokens in zip(batch.group, pairs, written, strict=True):
        usable = bool(tokens) and pair is not None and group not in seen
        chosen.append(usable and len(seen) < PROMPTS_PER_CHECK)
        if chosen[-1]:
            seen.add(group)
    return torch.tensor(chosen, dtype=torch.bool, device=batch.completions.mask.device)
