"""The task "chain": sums modulo 100, one after the other, where the first wrong step is known exactly.

Pure Python: knows no model, no tokenizer and no trainer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.chain.tiers import OPERATIONS, TIERS, Tier
from gear_rl.arena.task import (
    FIRST_TRAIN_SEED,
    HELD_OUT,
    TEMPLATE,
    Reference,
    fingerprint_of,
    is_held_out,
    seeds_of,
    texts_of,
)

ANSWER_PATTERN = r"ans (\d\d)"
"""Where the completion's final answer stands."""

_ANSWER = re.compile(r"ans (\d\d)\Z")
_OPERATION = re.compile(r" (skip )?([-+x]\d)")
_PROBLEM = re.compile(rf"\d\d(?:{_OPERATION.pattern})+")
_STEP = re.compile(r"(\d\d) ([-+x]\d) = (\d\d)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A start value and the operations to apply, in order.

    >>> problem = Problem(37, ("+8", "x2", "x3"), (False, True, False))
    >>> problem.text, problem.live
    ('37 +8 skip x2 x3', ('+8', 'x3'))
    """

    start: int
    operations: tuple[str, ...]
    cancelled: tuple[bool, ...]
    """Which operations are to be skipped."""
    modulus: int = 100

    @property
    def text(self) -> str:
        """The prompt of the problem."""
        parts = (
            (" skip " if skip else " ") + op for op, skip in zip(self.operations, self.cancelled, strict=True)
        )
        return f"{self.start:02d}" + "".join(parts)

    @property
    def live(self) -> tuple[str, ...]:
        """The operations that count."""
        return tuple(op for op, skip in zip(self.operations, self.cancelled, strict=True) if not skip)


@dataclass(frozen=True, slots=True)
class Solution:
    """The worked solution of a problem.

    >>> solve(Problem(37, ("+8", "x3"), (False, False)))
    Solution(trace='37 +8 = 45 ; 45 x3 = 35 ; ans 35', answer='35', values=(37, 45, 35))
    """

    trace: str
    answer: str
    values: tuple[int, ...]
    """The start value, then the result of each step."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A completion with exactly one wrong step; what follows is computed consistently from its result."""

    completion: str
    answer: str
    """The right answer, which the completion misses."""
    step: int
    """The wrong step, from 0."""
    char: int
    """Where the wrong result, two digits, begins in the completion."""
    token: int
    """Which token of the completion it is, with the arena's tokenizer."""


def apply(value: int, operation: str, modulus: int = 100) -> int:
    """The result of one step.

    >>> apply(95, "+8"), apply(3, "-5"), apply(45, "x3")
    (3, 98, 35)
    """
    amount = int(operation[1:])
    match operation[0]:
        case "+":
            return (value + amount) % modulus
        case "-":
            return (value - amount) % modulus
        case "x":
            return (value * amount) % modulus
        case sign:
            raise ValueError(f"unknown operation {sign!r}")


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed; seeds in `HELD_OUT` never share a problem with any other seed.

    The split is by content (a checksum of the prompt), not by seed alone: in a small tier two seeds
    often draw the same problem.

    >>> generate(0) == generate(0), generate(0).text
    (True, '18 -9 -6 +3')
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    rng = random.Random(seed)
    while True:
        num_cancelled = rng.randint(*settings.cancelled)
        size = rng.randint(*settings.steps) + num_cancelled
        skipped = set(rng.sample(range(size), num_cancelled))
        problem = Problem(
            start=rng.randrange(settings.modulus),
            operations=tuple(rng.sample(settings.operations, size)),
            cancelled=tuple(i in skipped for i in range(size)),
            modulus=settings.modulus,
        )
        if is_held_out(problem.text) == (seed in HELD_OUT):
            return problem


def write(problem: Problem, values: Sequence[int]) -> str:
    """The completion that states these results, right or wrong.

    >>> write(Problem(37, ("+8", "x3"), (False, False)), (37, 45, 35))
    '37 +8 = 45 ; 45 x3 = 35 ; ans 35'
    """
    steps = zip(values, problem.live, values[1:], strict=False)
    return "".join(f"{left:02d} {op} = {right:02d} ; " for left, op, right in steps) + f"ans {values[-1]:02d}"


def read(text: str) -> Problem:
    """The problem of a prompt, with modulus 100. Raises ValueError where `text` is none.

    >>> read("37 +8 skip x2 x3") == Problem(37, ("+8", "x2", "x3"), (False, True, False))
    True
    >>> read("37 8")
    Traceback (most recent call last):
    ValueError: not a chain: '37 8'
    """
    if not _PROBLEM.fullmatch(text):
        raise ValueError(f"not a chain: {text!r}")
    found = [(bool(skip), op) for skip, op in _OPERATION.findall(text)]
    return Problem(int(text[:2]), tuple(op for _, op in found), tuple(skip for skip, _ in found))


def solve(problem: Problem) -> Solution:
    """The only right completion of a problem, its answer and its intermediate values.

    >>> solve(Problem(37, ("+8",), (False,))).trace
    '37 +8 = 45 ; ans 45'
    """
    values = [problem.start]
    for op in problem.live:
        values.append(apply(values[-1], op, problem.modulus))
    return Solution(trace=write(problem, values), answer=f"{values[-1]:02d}", values=tuple(values))


def slip(value: int, modulus: int, rng: random.Random) -> int:
    """Any result but the right one, each as likely.

    >>> slip(45, 100, random.Random(0)) == 45
    False
    """
    return (value + rng.randrange(1, modulus)) % modulus


def slipped(problem: Problem, rng: random.Random, rate: float) -> str:
    """A completion in which each result is wrong with probability `rate` and the rest follows consistently.

    >>> problem = Problem(37, ("+8", "x3"), (False, False))
    >>> slipped(problem, random.Random(0), rate=0.0) == solve(problem).trace
    True
    """
    values = [problem.start]
    for op in problem.live:
        right = apply(values[-1], op, problem.modulus)
        values.append(slip(right, problem.modulus, rng) if rng.random() < rate else right)
    return write(problem, values)


def plant(problem: Problem, seed: int) -> Planted:
    """A completion with one wrong step, whose place is known; the final answer is wrong too.

    A wrong result can heal (off by fifty, then doubled), so slips are drawn until the answer is missed.

    >>> plant(Problem(37, ("+8", "x3"), (False, False)), seed=1)
    Planted(completion='37 +8 = 18 ; 18 x3 = 54 ; ans 54', answer='35', step=0, char=8, token=2)
    """
    rng = random.Random(seed)
    right = solve(problem)
    while True:
        step = rng.randrange(len(problem.live))
        values = list(right.values[: step + 1])
        for i, op in enumerate(problem.live[step:], start=step):
            result = apply(values[-1], op, problem.modulus)
            values.append(slip(result, problem.modulus, rng) if i == step else result)
        if values[-1] != right.values[-1]:
            # A step is "37 +8 = 45 ; ": thirteen characters, four tokens, the result is the third.
            return Planted(write(problem, values), right.answer, step, char=13 * step + 8, token=4 * step + 2)


def privileged_context(problem: Problem, reference: Reference = "trace", seed: int = 0) -> str | None:
    """What only the teacher sees, in the surface form of the completion; None for "none".

    "shuffled" is the solution of another problem of the same shape, drawn with `seed`: it informs nobody,
    so no method may gain from it.

    >>> problem = Problem(37, ("+8", "x3"), (False, False))
    >>> [privileged_context(problem, reference) for reference in ("none", "trace", "answer")]
    [None, '37 +8 = 45 ; 45 x3 = 35 ; ans 35', 'ans 35']
    """
    match reference:
        case "none":
            return None
        case "trace":
            return solve(problem).trace
        case "answer":
            return f"ans {solve(problem).answer}"
        case "shuffled":
            rng = random.Random(seed)
            start = (problem.start + rng.randrange(1, problem.modulus)) % problem.modulus
            known = sorted({*OPERATIONS, *problem.operations})
            operations = tuple(rng.sample(known, len(problem.operations)))
            return solve(Problem(start, operations, problem.cancelled, problem.modulus)).trace


def render(problem: Problem, reference: Reference = "none", seed: int = 0) -> list[dict[str, str]]:
    """The chat messages of a prompt, with the privileged context in the user message if there is one.

    >>> render(Problem(37, ("+8", "x3"), (False, False)), "answer")
    [{'role': 'user', 'content': '37 +8 x3\\nref ans 35'}]
    """
    context = privileged_context(problem, reference, seed)
    content = (
        problem.text if context is None else TEMPLATE.format(prompt=problem.text, privileged_context=context)
    )
    return [{"role": "user", "content": content}]


def rows(
    tier: str | Tier = "default",
    *,
    num: int,
    reference: Reference = "trace",
    first_seed: int = FIRST_TRAIN_SEED,
) -> list[dict[str, Any]]:
    """Data set rows of consecutive seeds: prompt, privileged_context and answer. `first_seed=0` is held out.

    The prompt never contains the privileged context; joining them is the teacher's business.

    >>> rows("easy", num=1, reference="answer", first_seed=0)[0]["privileged_context"]
    'ans 06'
    """
    seeds = seeds_of(num, first_seed)
    problems = [generate(seed, tier) for seed in seeds]
    return [
        {
            "prompt": render(problem),
            "privileged_context": privileged_context(problem, reference, seed),
            "answer": solve(problem).answer,
        }
        for seed, problem in zip(seeds, problems, strict=True)
    ]


def correct(completion: str, answer: str) -> bool:
    """Whether the completion ends with exactly the right final answer. Model text is matched, never evaluated.

    >>> correct("37 +8 = 45 ; ans 45", "45"), correct("ans 45 ; ans 54", "45"), correct("45", "45")
    (True, False, False)
    """
    stated = _ANSWER.search(completion.strip())
    return stated is not None and stated[1] == answer


def chain_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 for a right final answer, else 0.0; the signature of a TRL reward function.

    Completions are strings or lists of chat messages.

    >>> chain_reward([[{"role": "assistant", "content": "ans 45"}], "ans 46"], answer=["45", "45"])
    [1.0, 0.0]
    """
    return [float(correct(text, gold)) for text, gold in zip(texts_of(completions), answer, strict=True)]


def steps_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """The share of a completion's steps whose result is right, whatever the final answer; 0.0 without a step.

    A second reward, for methods that treat several of them apart.

    >>> steps_reward(["37 +8 = 45 ; 45 x3 = 36 ; ans 36", "ans 45"])
    [0.5, 0.0]
    """
    steps_of = [_STEP.findall(text) for text in texts_of(completions)]
    return [sum(apply(int(a), op) == int(b) for a, op, b in steps) / max(1, len(steps)) for steps in steps_of]


def fingerprint(tier: str | Tier = "default", num: int = len(HELD_OUT)) -> str:
    """The sha256 of the first held-out problems and answers: two reports with the same one are comparable.

    >>> fingerprint("easy", 8)[:8]
    '7a07eccb'
    """
    problems = (generate(seed, tier) for seed in HELD_OUT[:num])
    return fingerprint_of((problem.text, solve(problem).answer) for problem in problems)
