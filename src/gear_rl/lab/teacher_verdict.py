"""Is the teacher informed? From log-probs under three contexts to a verdict. Pure: numbers in, words out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gear_rl.lab.statistics import LEVEL, Interval, mean_interval
from gear_rl.rollouts import succeeds

Word = Literal["informed", "weak", "not informed"]
_RANK: tuple[Word, ...] = ("not informed", "weak", "informed")

TWO_QUESTIONS = (1 + LEVEL) / 2
"""Level of the intervals of `reads` and `likelier`: either one alone may show that a teacher is informed."""
CLEARLY = 0.65
"""Share from which a difference is more than weak; 0.5 is chance."""
DECIDING_PROMPTS = 8
"""Prompts with right and wrong completions from which the reward decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A completion's mean log-prob per token, in nats, under three prompts, and its reward."""

    prompt: int
    own: float
    """With its row's privileged context."""
    other: float
    """With other rows' contexts, on average."""
    none: float
    """Without context: the student's."""
    stands_out: float
    """Share of the comparisons in which its own context is farther from another than two others are."""
    likelier: float
    """Share of the other contexts under which it is less likely than under its own."""
    reward: float | None = None


class Share(NamedTuple):
    """A share with its interval over prompts; None without a prompt."""

    share: float | None
    interval: Interval | None
    prompts: int


class Verdict(NamedTuple):
    """The result for a teacher."""

    word: Word
    reads: Share
    """Of the comparisons, those in which the own context changed the log-probs more than another row's did. Any
    context changes them; only one that the teacher reads stands out."""
    likelier: Share
    """Of the other rows' contexts, those under which a completion is less likely than under its own. One half
    where none is read; a smaller share is a sign of reading too, as where most completions are wrong."""
    knows: Share
    """Of the pairs of a right and a wrong completion of one prompt, those in which the right one gains more from
    its own context, over prompts that have both."""
    gain: float
    """Mean log-prob per token under the own context less that under others', nats; below 0 if many are wrong."""
    shift: float
    """Mean log-prob per token under the own context less that without context, nats."""


def verdict(scored: Sequence[Scored], success: float = 1.0) -> Verdict:
    """The shares with Student's intervals over prompts, and the word for them.

    Where enough prompts have right and wrong completions, the reward decides: *informed* if the right ones
    clearly gain more, *weak* if they gain a little more or the teacher at least reads its context. Elsewhere the
    stronger of the two other comparisons decides. A result within chance is *not informed*.

    >>> rows = [Scored(prompt=i, own=-1.0, other=-1.5, none=-1.2, stands_out=1.0, likelier=1.0) for i in range(9)]
    >>> verdict(rows).word, verdict(rows).reads.share
    ('informed', 1.0)
    """
    by_prompt: dict[int, list[Scored]] = {}
    for one in scored:
        by_prompt.setdefault(one.prompt, []).append(one)
    groups = by_prompt.values()
    reads = _share([[one.stands_out for one in group] for group in groups], TWO_QUESTIONS)
    likelier = _share([[one.likelier for one in group] for group in groups], TWO_QUESTIONS)
    unlikelier = _share([[1 - one.likelier for one in group] for group in groups], TWO_QUESTIONS)
    knows = _share([pairs for group in groups if (pairs := _pairs(group, success))])
    words = _word(reads), _word(likelier), _word(unlikelier)
    word = max(words, key=_RANK.index)
    if knows.prompts >= DECIDING_PROMPTS:
        known = _word(knows)
        word = "weak" if known == "not informed" and word != "not informed" else known
    gain = math.fsum(one.own - one.other for one in scored) / len(scored)
    shift = math.fsum(one.own - one.none for one in scored) / len(scored)
    return Verdict(word, reads, likelier, knows, gain, shift)


def sentences(found: Verdict) -> list[str]:
    """The verdict in words, and what usually helps where it is not *informed*."""
    lines = [
        f"the teacher is {found.word}",
        f"its own context stands out from other rows' in {_percent(found.reads)} of the comparisons; chance is "
        f"50 % ({found.reads.prompts} prompts)",
        f"it makes what was written likelier than they do in {_percent(found.likelier)} of them; chance is 50 %",
    ]
    if found.knows.share is not None:
        weak = "" if found.knows.prompts >= DECIDING_PROMPTS else ", too few to decide"
        lines.append(
            f"in {_percent(found.knows)} of the pairs of a right and a wrong completion the right one gains more "
            f"from its own context ({found.knows.prompts} prompts have both{weak})"
        )
    few = found.reads.interval is None or found.reads.interval.high >= CLEARLY
    if found.word == "not informed" and few and found.knows.prompts < DECIDING_PROMPTS:
        lines.append(f"{found.reads.prompts} prompts are too few to tell; give more (--n)")
    elif found.word != "informed":
        lines.append(
            "what usually helps: worked solutions in place of answers alone (privileged_column), another wording "
            "around them (teacher_prompt_template), or a teacher with other weights (teacher_model)"
        )
    return lines


def as_dict(found: Verdict) -> dict[str, Any]:
    """The verdict, ready for JSON."""
    document: dict[str, Any] = {"verdict": found.word}
    for name in ("reads", "likelier", "knows"):
        share, interval, prompts = getattr(found, name)
        document[name] = {
            "share": None if share is None else round(share, 4),
            "interval": None if interval is None else [round(end, 4) for end in interval],
            "prompts": prompts,
        }
    return document | {"gain": round(found.gain, 4), "shift": round(found.shift, 4)}


def _pairs(group: Sequence[Scored], success: float) -> list[float]:
    """For each right and wrong completion of a prompt whether the right one gains more from its own context."""
    judged = [(one.own - one.other, succeeds(one.reward, success)) for one in group if one.reward is not None]
    right, wrong = ([gain for gain, is_right in judged if is_right is one] for one in (True, False))
    return [0.5 if r == w else float(r > w) for r in right for w in wrong]


def _share(groups: Sequence[Sequence[float]], level: float = LEVEL) -> Share:
    """The mean over prompts of each prompt's mean; its deviation is at least that of half a completion."""
    if not groups:
        return Share(None, None, 0)
    means = [math.fsum(group) / len(group) for group in groups]
    ends = mean_interval(means, level, least_spread=0.5 / max(len(group) for group in groups))
    within = None if ends is None else Interval(max(0.0, ends.low), min(1.0, ends.high))
    return Share(math.fsum(means) / len(means), within, len(means))


def _word(share: Share) -> Word:
    if share.share is None or share.interval is None or share.interval.low <= 0.5:
        return "not informed"
    return "informed" if share.share >= CLEARLY else "weak"


def _percent(share: Share) -> str:
    percent = f"{100 * (share.share or 0.0):.0f} %"
    if share.interval is None:
        return f"{percent} (too few for an interval)"
    return f"{percent} ({100 * share.interval.low:.0f} to {100 * share.interval.high:.0f})"
