"""Problems of the task "errands": things to send one after the other, each with a code that has to be known.

Requests do not depend on each other, the tools' answers are empty, and the reward is the share that is settled
right. Pure Python: knows no model, no tokenizer and no trainer.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gear_rl.arena.codes import CODES, Belief, beliefs_of, right_codes, with_mistake
from gear_rl.arena.task import Completion, Reference, problem_of

ANSWER_PATTERN = r'"name": "send", "arguments": (\{[^}]*\})'
"""A rollout's answer: an item and its code. The last text is always the same."""
ITEMS = (
    *("lamp", "drum", "kite", "boat", "bell", "coin", "vase", "harp"),
    *("sled", "tent", "clock", "globe", "piano", "mask", "wand", "flute"),
    *("crown", "wheel", "brush", "candle", "ladder", "mirror", "basket", "helmet"),
    *("ribbon", "carpet", "anchor", "trumpet", "violin", "button", "bottle", "blanket"),
    *("saddle", "compass", "lantern", "hammer", "needle", "pillow", "barrel", "feather"),
    *("kettle", "shovel", "whistle", "puppet", "marble", "locket", "goblet", "sickle"),
)
RIGHT: dict[str, str] = right_codes(ITEMS, "codes of the errands")
"""The code of each item; no two share one."""
BELIEFS: dict[str, Belief] = beliefs_of(RIGHT, "habits of the agent")
"""The shipped student's probabilities of codes for each item, without a reference."""
SEND, WAIT = "send", "wait"
"""The tool that settles a request, and one that does nothing."""
DONE = "done"
"""The assistant's last text."""
Made = Sequence[tuple[str, str] | None]
"""Calls in their order: the model's item and code for send, None for wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How many requests an agent has to settle."""

    requests: int
    """24 at most: as many of the 48 items must be left for the reference of another problem."""

    @property
    def calls(self) -> int:
        """How many calls count: one to settle each request, and as many to waste."""
        return 2 * self.requests


TIERS: dict[str, Tier] = {"easy": Tier(requests=3), "default": Tier(requests=6), "hard": Tier(requests=10)}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    >>> Call(SEND, {"item": "lamp", "code": "17"}).text
    '<tool_call>\\n{"name": "send", "arguments": {"item": "lamp", "code": "17"}}\\n</tool_call>'
    """

    name: str
    arguments: Mapping[str, str | int]

    @property
    def text(self) -> str:
        """The call as Qwen3 writes it."""
        arguments = json.dumps(dict(self.arguments))
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {arguments}}}\n</tool_call>'


def play_calls(calls: Sequence[Call]) -> Completion:
    """The completion in which an agent makes these calls, each in a turn of its own, and is done.

    >>> play_calls([Call(WAIT, {})])[1:]
    ('ok', 'done')
    """
    return (*chain.from_iterable((call.text, "ok") for call in calls), DONE)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be sent.

    >>> Problem(("lamp", "kite")).text
    'send lamp kite'
    """

    items: tuple[str, ...]

    @property
    def text(self) -> str:
        """The prompt."""
        return " ".join([SEND, *self.items])

    @property
    def answer(self) -> str:
        """The right calls, one under the other."""
        return "\n".join(call.text for call in self.sends())

    def sends(self, codes: Sequence[str] | None = None) -> list[Call]:
        """The calls that send each item with these codes, by default with the right ones.

        >>> Problem(("lamp",)).sends(["17"])[0].arguments
        {'item': 'lamp', 'code': '17'}
        """
        given = [RIGHT[item] for item in self.items] if codes is None else codes
        pairs = zip(self.items, given, strict=True)
        return [Call(SEND, {"item": item, "code": code}) for item, code in pairs]

    def solve(self) -> Completion:
        """The right calls in their order."""
        return play_calls(self.sends())

    def plant(self, seed: int) -> Completion:
        """The right calls but for one code, drawn as the student errs."""
        return play_calls(self.sends(with_mistake([BELIEFS[item] for item in self.items], seed)))

    def reference(self, kind: Reference, seed: int = 0) -> str | None:
        """What only the teacher sees; "answer" is the right codes without their items.

        "shuffled" is the calls for as many other items, so no method may gain from it.

        >>> Problem(("lamp",)).reference("answer") == RIGHT["lamp"]
        True
        """
        match kind:
            case "none":
                return None
            case "trace":
                return self.answer
            case "answer":
                return " ".join(RIGHT[item] for item in self.items)
            case "shuffled":
                others = [item for item in ITEMS if item not in self.items]
                return Problem(tuple(random.Random(seed).sample(others, len(self.items)))).answer

    def settled(self, made: Made) -> dict[int, int]:
        """The number of each call that counts, and the request that it settles.

        The first call for an item counts, right or wrong. A call for an item that was not requested, with no
        code, or after the tier's number of calls settles nothing.

        >>> calls = [None, ("kite", "17"), ("kite", "08"), ("lamp", "9"), ("lamp", "99")]
        >>> Problem(("lamp", "kite")).settled(calls)
        {1: 1}
        """
        taken: dict[int, int] = {}
        for number, call in enumerate(made[: Tier(requests=len(self.items)).calls]):
            if call is not None and call[0] in self.items and call[1] in CODES:
                request = self.items.index(call[0])
                if request not in taken.values():
                    taken[number] = request
        return taken

    def rights(self, made: Made) -> list[bool]:
        """For each call whether it settles a request right.

        >>> Problem(("lamp", "kite")).rights([None, ("lamp", RIGHT["lamp"]), ("lamp", RIGHT["lamp"])])
        [False, True, False]
        """
        gold = [(item, RIGHT[item]) for item in self.items]
        taken = self.settled(made)
        return [number in taken and call == gold[taken[number]] for number, call in enumerate(made)]


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed.

    >>> len(generate(0, "easy").items)
    3
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    return problem_of(seed, lambda rng: Problem(tuple(rng.sample(ITEMS, settings.requests))))
