"""Whether the teacher reads its own privileged context, or any context moves it alike.

Completions are scored under their own context and under those of two other rows. If no context is read, the three
could change places, and each of two comparisons holds in half of the cases:

- The own context lies farther from another one than the others from each other: true of a teacher that ignores
  contexts of other problems.
- The completion is likelier under its own context than under another: true of a teacher that copies.

An informed teacher makes right tokens likelier and wrong ones less, so the second alone has no clear sign.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.credit.config import CreditConfig
from gear_rl.credit.contexts import teacher_prompts
from gear_rl.credit.plan import CreditPlan
from gear_rl.signals.batch import ForwardRequest, RolloutBatch
from gear_rl.signals.engine import Engine
from gear_rl.signals.signal import needs_teacher
from gear_rl.tensor.lists import float_list, int_list

logger = logging.getLogger(__name__)

PROMPTS_PER_CHECK = 8
"""Prompts of a process whose context is exchanged in one check, with one completion each."""
PROMPTS_TO_JUDGE = 24
"""Prompts after which a run says that its teacher is not informed: two standard errors are then 0.2 at most."""
POOL = 16
"""Contexts of earlier checks that are kept, for steps whose prompts are too few to be exchanged."""
NOT_INFORMED = (
    "the teacher does not seem to read its privileged context: among %d completions the own context stands out "
    "from other rows' in %.0f %% of the comparisons and makes the completion likelier in %.0f %%; chance is 50. "
    "The credit then follows something else. "
    "What usually helps: worked solutions in place of answers, another wording (teacher_prompt_template), a "
    "teacher with other weights (teacher_model); `gear teacher` measures it before a run"
)


def context_logprob(
    batch: RolloutBatch,
    engine: Engine,
    config: CreditConfig,
    contexts: Sequence[str | None] | None,
    scored_B: Bool[Tensor, " B"],
) -> Float[Tensor, "B T"]:
    """Log-probs of the completions' tokens, in nats: the teacher's with these contexts, else the student's.

    0 in rows that are not scored, and on tokens that are not trained. Every process must call this.
    """
    name = "student_logprob" if contexts is None else "teacher_logprob"
    request = ForwardRequest(
        needs=(name,),
        step=batch.step,
        completions=batch.completions,
        student=batch.student,
        teachers=() if contexts is None else [teacher_prompts(batch, engine, config, contexts)[0]],
        scored_B=scored_B,
    )
    mask = batch.completions.mask & scored_B[:, None]
    return torch.where(mask, engine.forward(request)[name], 0.0)


def stands_out(
    own: Float[Tensor, "B T"], second: Float[Tensor, "B T"], third: Float[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """In how many of two comparisons the own context lies farther from another one than these from each other.

    0, 0.5 or 1, and a tie is half of a comparison. Distance is how much the probabilities of
    what was written differ, summed over tokens.
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


def likelier(
    own: Float[Tensor, "B T"], second: Float[Tensor, "B T"], third: Float[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """Under how many of two other contexts what was written is less likely than under the own one.

    0, 0.5 or 1, and a tie is half of a comparison. Compared are sums of probabilities over tokens, as in
    ``stands_out``. By symmetry the mean is 0.5 where the own context is like any other.

    >>> own, second, third = (torch.tensor([[value, -1.0]]) for value in (-0.3, -2.0, -0.1))
    >>> likelier(own, second, third)
    tensor([0.5000])
    """
    ours, one, other = (x.exp().sum(-1) for x in (own, second, third))
    return ((ours - one).sign() + (ours - other).sign() + 2) / 4


def two_others(contexts: Sequence[str | None], pool: Sequence[str] = ()) -> list[tuple[str, str] | None]:
    """For each context the next two other texts, going round and then through ``pool``; None without.

    >>> two_others(["4", "4", "5", "6"])
    [('5', '6'), ('5', '6'), ('6', '4'), ('4', '5')]
    >>> two_others(["4", None], pool=["7", "8"])
    [('7', '8'), None]
    """
    pairs: list[tuple[str, str] | None] = []
    for i, own in enumerate(contexts):
        around = (*contexts[i + 1 :], *contexts[:i], *pool)
        others = list(dict.fromkeys(text for text in around if text is not None and text != own))
        pairs.append((others[0], others[1]) if own is not None and len(others) > 1 else None)
    return pairs


@dataclass
class TeacherCheck:
    """Every few steps of a run: does the own context of some completions differ from other rows' in kind?

    Logs ``gear/teacher/informed``, the share of the comparisons in which it stands out, and
    ``gear/teacher/likelier``, that in which it makes the completion likelier. Warns once, when enough prompts
    were seen and neither is clearly other than chance. Costs three passes of at most ``PROMPTS_PER_CHECK``
    completions. Only for methods that read a teacher.
    """

    every: int
    """Steps between two checks; 0 for none."""
    values: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """What ``stands_out`` and ``likelier`` gave, for each prompt that was looked at."""
    pool: list[str] = field(default_factory=list[str])
    warned: bool = False

    def __call__(self, plan: CreditPlan, engine: Engine, config: CreditConfig) -> None:
        """Look at a batch, if it is its turn; every process must call this."""
        batch, own = plan.batch, list(plan.batch.contexts)
        if self.every == 0 or (batch.step + 1) % self.every or not needs_teacher(plan.method.needs):
            return
        everywhere = engine.gather_objects(own)
        pairs = two_others(everywhere, self.pool)[batch.first : batch.first + len(own)]
        known = dict.fromkeys(text for text in (*everywhere, *self.pool) if text is not None)
        self.pool = list(known)[:POOL]
        chosen_B = _one_per_prompt(batch, pairs)
        shown = [own] + [[None if pair is None else pair[k] for pair in pairs] for k in (0, 1)]
        scored = [context_logprob(batch, engine, config, texts, chosen_B) for texts in shown]
        shares_B = [engine.gather(compare(*scored)) for compare in (stands_out, likelier)]
        self._take(shares_B, engine.gather(chosen_B), engine)

    def _take(self, shares_B: Sequence[Tensor], chosen_B: Tensor, engine: Engine) -> None:
        out, more = (float_list(value_B[chosen_B]) for value_B in shares_B)
        if not out:
            return
        self.values += zip(out, more, strict=True)
        engine.log(
            {
                "gear/teacher/informed": math.fsum(out) / len(out),
                "gear/teacher/likelier": math.fsum(more) / len(more),
            }
        )
        if self.warned or len(self.values) < PROMPTS_TO_JUDGE:
            return
        both = list(zip(*self.values, strict=True))
        if is_above_chance(both[0]) or not is_chance(both[1]):
            return
        self.warned = True
        if engine.rank == 0:
            count = len(self.values)
            logger.warning(NOT_INFORMED, count, *(100 * math.fsum(shares) / count for shares in both))


def is_above_chance(values: Sequence[float]) -> bool:
    """Whether the mean of values from 0 to 1 lies clearly above 0.5: more than 2.24 standard errors.

    As each of two comparisons may raise a false hope, both together do in one case of twenty.

    >>> is_above_chance([1.0] * 9 + [0.0]), is_above_chance([1.0, 0.0, 1.0, 1.0])
    (True, False)
    """
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return mean - 2.24 * math.sqrt(square / len(values)) > 0.5


def is_chance(values: Sequence[float]) -> bool:
    """Whether the mean of values from 0 to 1 is neither clearly above 0.5 nor clearly below.

    >>> is_chance([1.0, 0.0, 1.0, 1.0]), is_chance([0.0] * 9 + [1.0])
    (True, False)
    """
    return not is_above_chance(values) and not is_above_chance([1 - value for value in values])


def _one_per_prompt(batch: RolloutBatch, pairs: Sequence[object | None]) -> Bool[Tensor, " B"]:
    """The first usable completion of each of the first prompts."""
    seen: set[int] = set()
    chosen: list[bool] = []
    written = int_list(batch.completions.mask.any(-1))
    for group, pair, tokens in zip(batch.group, pairs, written, strict=True):
        chosen.append(
            bool(tokens) and pair is not None and group not in seen and len(seen) < PROMPTS_PER_CHECK
        )
        seen |= {group} if chosen[-1] else set()
    return torch.tensor(chosen, dtype=torch.bool, device=batch.completions.mask.device)
