"""``benchmarks forms``: many short look-ups in one prompt, one reward for all: a task for a pretrained model.

A prompt asks for ``FIELDS`` fields of seven families, and the reward is the share that is right. As the truth of
every field is known, perfect credit needs no branching: ``FieldTruth`` is told which decisions are right. A form
that is cut off counts as one that ends there. A model is warmed up with other items than those of training;
held-out prompts ask the items of training in other company.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.data.rewards.text import Completion, final_texts
from gear_rl.signals.steps import StepId, StepScore
from gear_rl.tensor.masked import masked_mean, masked_rank
from gear_rl.types import Credit, TokenSignals

FIELDS = 24
"""Of a prompt."""
PARTS = {"warm": (0.0, 0.4), "train": (0.4, 1.0), "test": (0.4, 1.0)}
"""The share of a family's shuffled items that each part draws from.

Held-out prompts ask the items of training anew: a fact that was never rewarded cannot be learnt from rewards.
"""
FALSE_SHARE = 0.25
"""Share of the fields that are false in the column ``quarter_false``."""
_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_CAPITALS = """France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, China Beijing, Russia
Moscow, Egypt Cairo, Greece Athens, Portugal Lisbon, Austria Vienna, Poland Warsaw, Hungary Budapest, Norway
Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen, Ireland Dublin, Belgium Brussels, Canada Ottawa,
Cuba Havana, Peru Lima, Chile Santiago, Kenya Nairobi, India Delhi, Iran Tehran, Iraq Baghdad, Turkey Ankara,
Thailand Bangkok, Vietnam Hanoi, Australia Canberra, Ukraine Kyiv, Romania Bucharest, Bulgaria Sofia, Serbia
Belgrade, Croatia Zagreb, Lebanon Beirut, Syria Damascus, Jordan Amman, Nepal Kathmandu, Cambodia Phnom,
Indonesia Jakarta, Philippines Manila, Afghanistan Kabul, Ghana Accra, Senegal Dakar, Uganda Kampala, Zimbabwe
Harare, Libya Tripoli, Tunisia Tunis, Morocco Rabat, Ethiopia Addis, Colombia Bogota, Venezuela Caracas,
Ecuador Quito, Jamaica Kingston, Iceland Reykjavik, Latvia Riga, Estonia Tallinn, Lithuania Vilnius"""
_SYMBOLS = """hydrogen H, helium He, lithium Li, carbon C, nitrogen N, oxygen O, fluorine F, neon Ne, sodium
Na, magnesium Mg, aluminum Al, silicon Si, phosphorus P, sulfur S, chlorine Cl, argon Ar, potassium K, calcium
Ca, titanium Ti, chromium Cr, manganese Mn, iron Fe, cobalt Co, nickel Ni, copper Cu, zinc Zn, arsenic As,
selenium Se, bromine Br, krypton Kr, silver Ag, tin Sn, iodine I, xenon Xe, barium Ba, tungsten W, platinum
Pt, gold Au, mercury Hg, lead Pb, uranium U, radium Ra, boron B, beryllium Be, bismuth Bi, radon Rn, cesium
Cs, plutonium Pu"""
_OPPOSITES = """hot cold, big small, up down, left right, open closed, day night, black white, good bad, happy
sad, fast slow, high low, old new, rich poor, hard soft, full empty, light dark, long short, wet dry, early
late, loud quiet, strong weak, thick thin, clean dirty, near far, first last, true false, love hate, war
peace, win lose, buy sell, push pull, give take, begin end, inside outside, above below, more less, always
never, young old, wide narrow, deep shallow, sweet sour, sharp dull, rough smooth, heavy light, brave afraid,
alive dead, tall short, east west, north south, before after, accept reject, arrive depart, ask answer"""
_PASTS = """go went, see saw, eat ate, run ran, give gave, take took, come came, know knew, think thought,
write wrote, sing sang, drink drank, swim swam, begin began, break broke, speak spoke, drive drove, ride rode,
fall fell, feel felt, keep kept, sleep slept, leave left, meet met, buy bought, bring brought, catch caught,
teach taught, fight fought, find found, stand stood, hold held, tell told, sell sold, make made, say said, pay
paid, lose lost, shoot shot, win won, hear heard, build built, send sent, spend spent, fly flew, grow grew,
draw drew, throw threw, blow blew, wear wore, choose chose, freeze froze, steal stole, forget forgot, rise
rose"""
_PLURALS = """mouse mice, man men, woman women, child children, foot feet, tooth teeth, goose geese, person
people, ox oxen, leaf leaves, knife knives, wife wives, life lives, wolf wolves, half halves, shelf shelves,
thief thieves, loaf loaves, city cities, baby babies, lady ladies, story stories, party parties, box boxes,
bus buses, dish dishes, watch watches, fox foxes, church churches, potato potatoes, hero heroes, cat cats, dog
dogs, book books, car cars, day days, boy boys, key keys, country countries, family families, brush brushes,
glass glasses, class classes, peach peaches, tomato tomatoes, army armies, fly flies, berry berries, calf
calves, elf elves"""


_LINE = re.compile(r"(?m)^([^:\n]*):(.*)")
"""A field of a completion: its key and its value."""


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(key, value) for key, value in (part.split() for part in text.split(","))]


def _number(n: int) -> str:
    """In words.

    >>> _number(7), _number(40), _number(99)
    ('seven', 'forty', 'ninety-nine')
    """
    ones, tens = _ONES.split(), _TENS.split()
    return ones[n] if n < 20 else tens[n // 10 - 2] + (f"-{ones[n % 10]}" if n % 10 else "")


def _roman(n: int) -> str:
    """The numeral of a number below 100.

    >>> _roman(4), _roman(49), _roman(90)
    ('IV', 'XLIX', 'XC')
    """
    tens, ones = divmod(n, 10)
    digits = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
    return digits[tens].translate(str.maketrans("IVX", "XLC")) + digits[ones]


FAMILIES: dict[str, list[tuple[str, str]]] = {
    "capital": _pairs(_CAPITALS),
    "symbol": _pairs(_SYMBOLS),
    "opposite": _pairs(_OPPOSITES),
    "past": _pairs(_PASTS),
    "plural": _pairs(_PLURALS),
    "digits": [(_number(n), str(n)) for n in range(11, 100)],
    "roman": [(str(n), _roman(n)) for n in range(2, 50)],
}
"""What a field asks, and its answer, by family."""


def rows(part: str, num: int, filler: int = 0, items: int | None = None) -> list[dict[str, Any]]:
    """Rows with ``prompt``, ``solution`` and two other contexts: ``quarter_false``, ``sentences``.

    ``part`` is one of ``PARTS``. ``filler`` puts that many lines of one word between two fields of the solution,
    which nothing pays. ``items`` keeps that many items of each family: fewer steps see each of them often.

    >>> [row] = rows("train", 1)
    >>> row["prompt"].splitlines()[:3]
    ['Fill in the form.', 'past hold', 'past grow']
    >>> row["solution"].splitlines()[:2]
    ['hold: held', 'grow: grew']
    """
    begin, end = PARTS[part]
    pool: dict[str, list[tuple[str, str]]] = {}
    for family, pairs in FAMILIES.items():
        shuffled = random.Random(family).sample(pairs, len(pairs))
        pool[family] = shuffled[round(begin * len(pairs)) : round(end * len(pairs))][:items]
    draw, made = random.Random(f"forms {part}"), list[dict[str, Any]]()
    for _ in range(num):
        asked: dict[str, tuple[str, str]] = {}  # no key twice
        while len(asked) < FIELDS:
            family = draw.choice(list(pool))
            key, value = draw.choice(pool[family])
            asked.setdefault(key, (family, value))
        listed = [(family, key, value) for key, (family, value) in asked.items()]
        false = set(draw.sample(range(FIELDS), round(FALSE_SHARE * FIELDS)))
        others = [draw.choice([v for _, v in pool[f] if v != value]) for f, _, value in listed]
        between = "".join(f"{word}\n" for word in ["next"] * filler)
        made.append(
            {
                "prompt": "\n".join(["Fill in the form.", *(f"{f} {key}" for f, key, _ in listed)]),
                "solution": f"\n{between}".join(f"{key}: {value}" for _, key, value in listed),
                "quarter_false": "\n".join(
                    f"{key}: {others[n] if n in false else value}" for n, (_, key, value) in enumerate(listed)
                ),
                "sentences": " ".join(f"The {f} of {key} is {value}." for f, key, value in listed),
            }
        )
    return made


def _asked(solution: str) -> dict[str, str]:
    """The value of each key; filler has no colon."""
    return dict(line.split(": ") for line in solution.split("\n") if ":" in line)


def decisions(text: str, solution: str) -> tuple[list[tuple[int, int, bool]], int]:
    """Where each decision of a completion stands, and whether it is right; and the number of right fields.

    A field is a line with a colon. Its key, with the line break before it, is wrong if it skips a key that no
    line answers. The end is wrong if such keys remain. A line whose key was not asked, or was answered before, is
    wrong as a whole; it takes the place of a skipped key if that one is next.

    >>> decisions("cat: cats\\nfox: foxes\\nox: oxes", "mouse: mice\\ncat: cats\\nox: oxen")
    ([(0, 4, False), (4, 9, True), (9, 20, False), (20, 24, True), (24, 29, False), (28, 30, True)], 1)
    """
    wanted = _asked(solution)
    lines = [*_LINE.finditer(text)]
    order, left_out = list(wanted), wanted.keys() - {line[1].strip() for line in lines}
    found, right, place = list[tuple[int, int, bool]](), 0, 0
    for line in lines:
        key, begin, colon = line[1].strip(), max(line.start() - 1, 0), line.start(2)
        due = wanted.pop(key, None)
        if due is None:
            found.append((begin, line.end(), False))
            place += not left_out.isdisjoint(order[place : place + 1])
            continue
        own, same = order.index(key), line[2].strip() == due
        found.append((begin, colon, left_out.isdisjoint(order[place:own])))
        found.append((colon, max(line.end(), colon + 1), same))  # without a value, the line break decides
        right, place = right + same, max(place, own + 1)
    # The token that ends a completion has no character, so its span lies around the end of the text.
    is_whole = left_out.isdisjoint(order[place:]) and not text.endswith(":")
    found.append((max(len(text) - 1, 0), len(text) + 1, is_whole))
    return found, right


def values(text: str, solution: str) -> list[tuple[int, int, bool]]:
    """The characters of each asked value as far as it is right, and the first that is wrong.

    >>> values("cat: cats\\nox: oxes", "cat: cats\\nox: oxen")
    [(4, 9, True), (13, 17, True), (17, 18, False)]
    """
    wanted, found = _asked(solution), list[tuple[int, int, bool]]()
    for line in _LINE.finditer(text):
        due = wanted.pop(line[1].strip(), None)
        if due is None:
            continue
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(line[2], f" {due}", strict=False))
        wrong = line.start(2) + len([*same])
        found.append((line.start(2), wrong, True))
        if line[2].strip() != due:
            found.append((wrong, wrong + 1, False))
    return found


def right_tokens(places: Sequence[range], found: Sequence[tuple[int, int, bool]]) -> dict[int, bool]:
    """Which tokens hold characters of ``values``, and whether all of these are right.

    >>> right_tokens([range(3), range(3, 5), range(5, 9)], [(3, 7, True), (7, 8, False)])
    {1: True, 2: False}
    """
    return {  # what is wrong in a token comes last, and counts
        t: right
        for begin, end, right in found
        for t, own in enumerate(places)
        if own.start < end and begin < own.stop
    }


def reward(
    completions: Sequence[Completion],
    solution: Sequence[str],
    log_extra: Callable[[str, list[Any]], object] = lambda name, values: None,
    **columns: Any,
) -> list[float]:
    """The share of the asked fields that are right; the signature of a TRL reward.

    Logs which decisions are right as ``step_scores``, which ``FieldTruth`` alone reads.

    >>> reward(["a: 1\\nb: 3", "", "b: 2\\na: 1\\nc: 9"], solution=["a: 1\\nb: 2"] * 3)
    [0.5, 0.0, 1.0]
    """
    found = [decisions(*pair) for pair in zip(final_texts(completions, columns), solution, strict=True)]
    log_extra(
        "step_scores", [[[begin, end, float(right)] for begin, end, right in each] for each, _ in found]
    )
    return [right / len(_asked(text)) for (_, right), text in zip(found, solution, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTruth:
    """Perfect credit: right decisions take the praise of a completion, wrong ones its blame.

    It knows which decisions are right, not what each is worth. A completion without a decision of its kind keeps
    its GRPO advantage.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     step_id=torch.tensor([[0, 0, 1]]), step_score=torch.tensor([[1.0, 1.0, 0.0]]),
    ... )
    >>> FieldTruth()(torch.tensor([-1.0]), signals).advantage
    tensor([[-0., -0., -3.]])
    """

    name: ClassVar[str] = "field_truth"
    source: ClassVar[str] = "control (ours)"
    needs: ClassVar[tuple[Any, ...]] = (StepId("spans"), StepScore("spans"))

    blind: bool = False
    """Credit right and wrong decisions alike: the control that knows where decisions are."""

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        right = signals.get("step_score") > 0.5
        inside = signals.get("step_id") >= 0
        counts = ((right == (advantage_B > 0)[:, None]) | self.blind) & inside & signals.mask
        counts = torch.where(counts.any(-1, keepdim=True), counts, signals.mask).to(advantage_B.dtype)
        weight = counts / masked_mean(counts, signals.mask).clamp(min=1e-6)
        return Credit.from_weights(advantage_B, weight, masked_rank(signals.mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class LowLogprob:
    """Placebo without a teacher: a constant extra weight on the fifth of tokens with the lowest log-probability.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool), student_logprob=torch.tensor([[-0.1, -3.0, -0.2, -0.1, 0.0]])
    ... )
    >>> LowLogprob()(torch.tensor([1.8]), signals).advantage
    tensor([[1., 5., 1., 1., 1.]])
    """

    name: ClassVar[str] = "low_logprob"
    source: ClassVar[str] = "placebo (ours)"
    needs: ClassVar[tuple[str, ...]] = ("student_logprob",)

    share: float = 0.2
    """Of a completion's tokens."""
    extra: float = 4.0
    """Added to the weight 1, before the weights are scaled to mean 1."""

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        order = (
            torch.where(mask, signals.get("student_logprob"), torch.inf)
            .argsort(dim=-1, stable=True)
            .argsort(-1)
        )
        low = order < (self.share * mask.sum(-1, keepdim=True)).round()
        weight = 1 + self.extra * low.to(advantage_B.dtype)
        return Credit.from_weights(
            advantage_B, weight / masked_mean(weight, mask).clamp(min=1), masked_rank(mask)
        )


def write_rows(
    folder: Path, items: int | None = None, rows_of: Callable[..., list[dict[str, Any]]] = rows
) -> None:
    """``warm.jsonl``, ``train.jsonl`` and ``test.jsonl`` in the folder; ``items`` is of the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, num in {"warm": 512, "train": 512, "test": 192}.items():
        kept = None if part == "warm" else items
        lines = (json.dumps(row) + "\n" for row in rows_of(part, num, items=kept))
        (folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
