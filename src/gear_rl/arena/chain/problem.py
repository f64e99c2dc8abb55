"""Problems of the task "chain", their worked solutions, slips and rewards, and the truth about every token.

Pure Python: knows no model and no trainer.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.task import Completion, Reference, problem_of, texts_of
from gear_rl.arena.token_truth import Truth, only_right

OPERATIONS: tuple[str, ...] = (*(f"+{n}" for n in range(1, 10)), *(f"-{n}" for n in range(1, 10)), "x2", "x3")
ANSWER_PATTERN = r"ans (\d\d)"
"""The completion's final answer."""

_ANSWER = re.compile(r"ans (\d\d)\Z")
_OPERATION = re.compile(r" (skip )?([-+x]\d)")
_PROBLEM = re.compile(rf"\d\d(?:{_OPERATION.pattern})+")
_STEP = re.compile(r"(\d\d) ([-+x]\d) = (\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The size of a problem. Each of `OPERATIONS` occurs at most once."""

    steps: tuple[int, int]
    """Fewest and most steps."""
    cancelled: tuple[int, int] = (0, 0)
    """Fewest and most operations of the prompt that are cancelled."""


TIERS: dict[str, Tier] = {
    "easy": Tier(steps=(2, 3)),
    "default": Tier(steps=(3, 5)),
    "hard": Tier(steps=(10, 14), cancelled=(0, 2)),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A start value and the operations to apply, in order.

    >>> problem = Problem(37, ("+8", "x2", "x3"), (False, True, False))
    >>> problem.text, problem.live, problem.values
    ('37 +8 skip x2 x3', ('+8', 'x3'), (37, 45, 35))
    """

    start: int
    operations: tuple[str, ...]
    cancelled: tuple[bool, ...]
    """Which operations are to be skipped."""

    @property
    def text(self) -> str:
        """The prompt."""
        pairs = zip(self.operations, self.cancelled, strict=True)
        return f"{self.start:02d}" + "".join((" skip " if skip else " ") + op for op, skip in pairs)

    @property
    def live(self) -> tuple[str, ...]:
        """The operations that count."""
        return tuple(op for op, skip in zip(self.operations, self.cancelled, strict=True) if not skip)

    @property
    def values(self) -> tuple[int, ...]:
        """The start value, then the result of each step."""
        values = [self.start]
        for op in self.live:
            values.append(apply(values[-1], op))
        return tuple(values)

    @property
    def answer(self) -> str:
        """The last result."""
        return f"{self.values[-1]:02d}"

    def write(self, values: Sequence[int]) -> str:
        """The completion that states these results, right or wrong.

        >>> Problem(37, ("+8", "x3"), (False, False)).write((37, 45, 35))
        '37 +8 = 45 ; 45 x3 = 35 ; ans 35'
        """
        steps = zip(values, self.live, values[1:], strict=False)
        lines = "".join(f"{left:02d} {op} = {right:02d} ; " for left, op, right in steps)
        return f"{lines}ans {values[-1]:02d}"

    def solve(self) -> Completion:
        """The worked solution, the only right completion."""
        return (self.write(self.values),)

    def plant(self, seed: int) -> Completion:
        """A completion with one wrong step, from which the rest follows; the final answer is wrong too.

        >>> Problem(37, ("+8", "x3"), (False, False)).plant(seed=1)
        ('37 +8 = 18 ; 18 x3 = 54 ; ans 54',)
        """
        rng = random.Random(seed)
        while True:  # a wrong result can heal (off by fifty, then doubled)
            step = rng.randrange(len(self.live))
            values = [*self.values[: step + 1]]
            for i, op in enumerate(self.live[step:], start=step):
                result = apply(values[-1], op)
                values.append(slip(result, rng) if i == step else result)
            if values[-1] != self.values[-1]:
                return (self.write(values),)

    def reference(self, kind: Reference, seed: int = 0) -> str | None:
        """What only the teacher sees, in the form of the completion; "shuffled" is of another problem.

        >>> problem = Problem(37, ("+8", "x3"), (False, False))
        >>> [problem.reference(kind) for kind in ("none", "trace", "answer")]
        [None, '37 +8 = 45 ; 45 x3 = 35 ; ans 35', 'ans 35']
        """
        match kind:
            case "none":
                return None
            case "trace":
                return self.write(self.values)
            case "answer":
                return f"ans {self.answer}"
            case "shuffled":
                rng = random.Random(seed)
                start = (self.start + rng.randrange(1, 100)) % 100
                operations = tuple(rng.sample(sorted(OPERATIONS), len(self.operations)))
                return Problem(start, operations, self.cancelled).reference("trace")


def apply(value: int, operation: str) -> int:
    """The result of one step.

    >>> apply(95, "+8"), apply(3, "-5"), apply(45, "x3")
    (3, 98, 35)
    """
    amount = int(operation[1:])
    match operation[0]:
        case "+":
            return (value + amount) % 100
        case "-":
            return (value - amount) % 100
        case _:
            return value * amount % 100


def slip(value: int, rng: random.Random) -> int:
    """Any result but the right one, each as likely.

    >>> slip(45, random.Random(0)) == 45
    False
    """
    return (value + rng.randrange(1, 100)) % 100


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed.

    >>> generate(0).text
    '18 -9 -6 +3'
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier

    def draw(rng: random.Random) -> Problem:
        num_cancelled = rng.randint(*settings.cancelled)
        size = rng.randint(*settings.steps) + num_cancelled
        skipped = set(rng.sample(range(size), num_cancelled))
        start, operations = rng.randrange(100), tuple(rng.sample(OPERATIONS, size))
        return Problem(start, operations, tuple(i in skipped for i in range(size)))

    return problem_of(seed, draw)


def read(text: str) -> Problem:
    """The problem of a prompt. Raises ValueError where `text` is none.

    >>> read("37 +8 skip x2 x3") == Problem(37, ("+8", "x2", "x3"), (False, True, False))
    True
    """
    if not _PROBLEM.fullmatch(text):
        raise ValueError(f"not a chain: {text!r}")
    found = [(bool(skip), op) for skip, op in _OPERATION.findall(text)]
    return Problem(int(text[:2]), tuple(op for _, op in found), tuple(skip for skip, _ in found))


def chain_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 for exactly the right final answer at the end, else 0.0; the signature of a TRL reward function.

    Completions are strings or lists of chat messages; model text is matched, never evaluated.

    >>> chain_reward([[{"role": "assistant", "content": "ans 45"}], "ans 45 ; ans 54"], answer=["45", "45"])
    [1.0, 0.0]
    """
    stated = [_ANSWER.search(text.strip()) for text in texts_of(completions)]
    return [float(one is not None and one[1] == gold) for one, gold in zip(stated, answer, strict=True)]


def steps_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """The share of a completion's steps whose result is right, whatever the final answer; 0.0 without a step.

    A second reward, for methods that treat several of them apart.

    >>> steps_reward(["37 +8 = 45 ; 45 x3 = 36 ; ans 36", "ans 45"])
    [0.5, 0.0]
    """
    steps_of = [_STEP.findall(text) for text in texts_of(completions)]
    return [sum(apply(int(a), op) == int(b) for a, op, b in steps) / max(1, len(steps)) for steps in steps_of]


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """Every token of the worked solution is a decision, its closing token too; reads the row's `prompt`.

    A reward after another token is luck: a later step corrects a wrong sum, or the last number is guessed. Raises
    ValueError for a prompt that is no chain.
    """
    [trace] = read(str(row["prompt"][-1]["content"])).solve()
    return only_right(ids, [*tokenizer(trace)["input_ids"], int(tokenizer.eos_token_id)])
