"""Is the teacher informed? From log-probs under three contexts to a verdict. Pure: numbers alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gear_rl.lab.statistics import LEVEL, Interval, mean_interval

Word = Literal["informed", "weak", "not informed"]
_RANK: tuple[Word, ...] = ("not informed", "weak", "informed")

TWO_QUESTIONS = (1 + LEVEL) / 2
"""Level of the intervals of the two comparisons without a reward: either may say that a teacher reads."""
CLEARLY = 0.65
"""Share from which a difference is more than faint; 0.5 is chance."""
DECIDING_PROMPTS = 8
"""Prompts with right and wrong completions from which the reward has a say in the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A completion's mean log-prob per token, in nats, under three prompts, and its reward."""

    prompt: int
    own: float
    """With its row's privileged context."""
    other: float
    """With other rows', on average."""
    none: float
    """Without: the student's."""
    stands_out: float
    """In how many comparisons, 0 to 1, its own context lies farther from another than two others do."""
    likelier: float
    """Under how many other contexts, 0 to 1, it is less likely than under its own."""
    reward: float | None = None


class Share(NamedTuple):
    """A share with its interval over prompts; None without a prompt."""

    share: float | None
    interval: Interval | None
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the numbers say."""

    word: Word
    reads: Share
    """Of the comparisons, those in which the own context moved the log-probs farther from another row's than a
    third row's did. Any context moves them; only one that is read, and says something of its row, stands out."""
    likelier: Share
    """Of the other rows' contexts, those under which a completion is less likely than under its own. Half of them
    where none is read; less too is a sign of reading, as where most completions are wrong."""
    knows: Share
    """Of the pairs of a right and a wrong completion of one prompt, those in which the right one gains more from
    its own context (against another's); over prompts that have both."""
    gain: float
    """Mean log-prob per token under the own context less that under others', nats; below 0 if many are wrong."""
    shift: float
    """The same less that without context: what a context costs or brings at all."""


def verdict(scored: Sequence[Scored], success: float = 1.0) -> Verdict:
    """The shares with Student's intervals over prompts, and the word for them.

    Where enough prompts have right and wrong completions the reward decides: *informed* if the right ones clearly
    gain more, *weak* if they do at all or if the teacher at least reads its context. Elsewhere whichever of the
    two comparisons says more decides. What lies within chance is *not informed*.

    >>> rows = [Scored(prompt=i, own=-1.0, other=-1.5, none=-1.2, stands_out=1.0, likelier=1.0) for i in range(9)]
    >>> verdict(rows).word, verdict(rows).reads.share
    ('informed', 1.0)
    """
    groups: dict[int, list[Scored]] = {}
    for one in scored:
        groups.setdefault(one.prompt, []).append(one)
    reads = _share([[one.stands_out for one in group] for group in groups.values()], TWO_QUESTIONS)
    likelier = _share([[one.likelier for one in group] for group in groups.values()], TWO_QUESTIONS)
    knows = _share([pairs for group in groups.values() if (pairs := _pairs(group, success))])
    word = max((_word(reads), _word(_away_from_half(likelier))), key=_RANK.index)
    if knows.prompts >= DECIDING_PROMPTS:
        known = _word(knows)
        word = known if known != "not informed" or word == "not informed" else "weak"
    return Verdict(
        word=word,
        reads=reads,
        likelier=likelier,
        knows=knows,
        gain=math.fsum(one.own - one.other for one in scored) / len(scored),
        shift=math.fsum(one.own - one.none for one in scored) / len(scored),
    )


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
    if found.word != "informed":
        lines.append(
            "what usually helps: worked solutions in place of answers alone (privileged_column), another wording "
            "around them (teacher_prompt_template), or a teacher with other weights (teacher_model)"
        )
    return lines


def as_dict(found: Verdict) -> dict[str, Any]:
    """The same, ready for JSON."""
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
    gains = [(one.own - one.other, one.reward >= success) for one in group if one.reward is not None]
    right, wrong = ([gain for gain, is_right in gains if is_right is one] for one in (True, False))
    return [0.5 if r == w else float(r > w) for r in right for w in wrong]


def _share(groups: Sequence[Sequence[float]], level: float = LEVEL) -> Share:
    """The mean over prompts of each prompt's mean.

    Prompts that all agree would give a point as interval: the spread is taken as at least what half a completion
    of a prompt makes.
    """
    means = [math.fsum(group) / len(group) for group in groups]
    if not means:
        return Share(None, None, 0)
    ends = mean_interval(means, level, least_spread=0.5 / max(len(group) for group in groups))
    within = None if ends is None else Interval(max(0.0, ends.low), min(1.0, ends.high))
    return Share(math.fsum(means) / len(means), within, len(means))


def _word(share: Share) -> Word:
    if share.share is None or share.interval is None or share.interval.low <= 0.5:
        return "not informed"
    return "informed" if share.share >= CLEARLY else "weak"


def _away_from_half(share: Share) -> Share:
    """The same share, or its complement where it lies below one half."""
    if share.share is None or share.interval is None or share.share >= 0.5:
        return share
    return Share(1 - share.share, Interval(1 - share.interval.high, 1 - share.interval.low), share.prompts)


def _percent(share: Share) -> str:
    if share.share is None:
        return "-"
    if share.interval is None:
        return f"{100 * share.share:.0f} % (too few for an interval)"
    low, high = share.interval
    return f"{100 * share.share:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
