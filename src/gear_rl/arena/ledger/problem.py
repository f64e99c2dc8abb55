"""The task "ledger": look people up, step by step, then move money between two of them.

A problem is a small world of people, their balances and relations, and one payment whose payer and payee are
paraphrased: "pay 37 from the head of the owner of lamp to bob". Each relation has a plain word, which is also the
name of its tool, and an alias ("head" for boss). Pure Python: knows no database, model, tokenizer or trainer.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.calls import Call, call_text
from gear_rl.arena.ledger.tiers import TIERS, LedgerTier
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT, Reference, is_held_out, seeds_of

ANSWER_PATTERN = r'"name": "pay", "arguments": (\{[^}]*\})'
"""What a rollout's answer is: whom the payment goes from and to. The last text is always the same."""

PERSONS = (
    *("ada", "ben", "bob", "dan", "eve", "fay", "gus", "ida", "ivy", "jan", "jim", "kim"),
    *("leo", "max", "mia", "ola", "pam", "roy", "sam", "ted", "tom", "una", "vic", "zoe"),
)
ITEMS = (
    *("lamp", "drum", "kite", "boat", "bell", "coin", "vase", "harp"),
    *("sled", "tent", "clock", "globe", "piano", "mask", "wand", "flute"),
)
PERSON_RELATIONS = ("boss", "deputy", "friend")
ITEM_RELATIONS = ("owner", "keeper")
RELATIONS = (*ITEM_RELATIONS, *PERSON_RELATIONS)
ALIASES: Mapping[str, str] = {
    "head": "boss",
    "second": "deputy",
    "pal": "friend",
    "holder": "owner",
    "warden": "keeper",
}
"""The other word of each relation: the only place where a careless reader goes wrong often."""
DONE = "done"
"""What the assistant says when the payment is made."""

NUM_PERSONS, NUM_ITEMS = 10, 4


@dataclass(frozen=True, slots=True)
class World:
    """Who there is, what they have, and how they are related.

    >>> world = World({"bob": 50, "eve": 20}, {("owner", "lamp"): "bob", ("boss", "bob"): "eve"})
    >>> resolve(world, "lamp", ("owner", "boss"))
    'eve'
    """

    balances: Mapping[str, int]
    related: Mapping[tuple[str, str], str]
    """(relation, person or item) -> person."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A person, paraphrased: a person or an item, and the words of the relations to follow from there.

    >>> head = Expression("lamp", ("owner", "head"))
    >>> head.text, head.relations
    ('the head of the owner of lamp', ('owner', 'boss'))
    """

    base: str
    words: tuple[str, ...] = ()
    """In the order of the look-ups, the innermost first."""

    @property
    def text(self) -> str:
        """How the instruction says it."""
        return "".join(f"the {word} of " for word in reversed(self.words)) + self.base

    @property
    def relations(self) -> tuple[str, ...]:
        """What the words mean."""
        return tuple(ALIASES.get(word, word) for word in self.words)


@dataclass(frozen=True, slots=True)
class Problem:
    """One payment in one world.

    >>> world = World({"bob": 50, "eve": 20}, {("boss", "bob"): "eve"})
    >>> problem = Problem(world, source=Expression("bob"), target=Expression("bob", ("head",)), amount=None)
    >>> problem.text, problem.expected
    ('pay all from bob to the head of bob', {'bob': 0, 'eve': 70})
    """

    world: World
    source: Expression
    target: Expression
    amount: int | None
    """None for all that the source has."""

    @property
    def text(self) -> str:
        """The prompt of the problem."""
        amount = "all" if self.amount is None else str(self.amount)
        return f"pay {amount} from {self.source.text} to {self.target.text}"

    @property
    def expected(self) -> dict[str, int]:
        """The balances after the payment."""
        source = resolve(self.world, self.source.base, self.source.relations)
        target = resolve(self.world, self.target.base, self.target.relations)
        amount = self.world.balances[source] if self.amount is None else self.amount
        after = dict(self.world.balances)
        after[source] -= amount
        after[target] += amount
        return after


@dataclass(frozen=True, slots=True)
class Plan:
    """Which relation to follow at each step, right or wrong, and whether payer and payee are mixed up.

    >>> problem = generate(0)
    >>> [call.name for call in calls(problem, Plan(("keeper",), ()))]
    ['keeper', 'pay']
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    swapped: bool = False


def resolve(world: World, base: str, relations: Sequence[str]) -> str:
    """The person at the end of the relations.

    >>> resolve(World({}, {("owner", "lamp"): "bob"}), "lamp", ("owner",))
    'bob'
    """
    for relation in relations:
        base = world.related[relation, base]
    return base


def confusable(relation: str) -> tuple[str, ...]:
    """The other relations of the same kind.

    >>> confusable("boss"), confusable("owner")
    (('deputy', 'friend'), ('keeper',))
    """
    kind = ITEM_RELATIONS if relation in ITEM_RELATIONS else PERSON_RELATIONS
    return tuple(other for other in kind if other != relation)


def right_plan(problem: Problem) -> Plan:
    """What the instruction means.

    >>> right_plan(generate(0))
    Plan(source=('keeper', 'friend', 'deputy'), target=(), swapped=False)
    """
    return Plan(problem.source.relations, problem.target.relations)


def calls(problem: Problem, plan: Plan | None = None) -> list[Call]:
    """The calls of a plan, by default the right one; each uses what the tools answered before it.

    First the payer is looked up, then the payee, then the balance if all of it is to be paid.

    >>> [call.name for call in calls(generate(0))]
    ['keeper', 'friend', 'deputy', 'pay']
    """
    plan = right_plan(problem) if plan is None else plan
    made: list[Call] = []
    ends: list[str] = []
    for base, relations in ((problem.source.base, plan.source), (problem.target.base, plan.target)):
        for relation in relations:
            made.append(Call(relation, {"item" if relation in ITEM_RELATIONS else "person": base}))
            base = problem.world.related[relation, base]
        ends.append(base)
    source, target = reversed(ends) if plan.swapped else ends
    amount = problem.amount
    if amount is None:
        made.append(Call("balance", {"person": ends[0]}))
        amount = problem.world.balances[ends[0]]
    return [*made, Call("pay", {"source": source, "target": target, "amount": amount})]


def generate(seed: int, tier: str | LedgerTier = "default") -> Problem:
    """The problem of a seed; seeds in `HELD_OUT` never share an instruction with any other seed.

    >>> generate(0) == generate(0), generate(0).text
    (True, 'pay 32 from the deputy of the pal of the keeper of piano to ben')
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    rng = random.Random(seed)
    while True:
        problem = _problem(rng, _shape(rng, settings))
        if is_held_out(problem.text) == (seed in HELD_OUT):
            return problem


@dataclass(frozen=True, slots=True)
class _Shape:
    """What two problems have in common when only their words differ."""

    from_item: tuple[bool, bool]
    """Whether payer and payee are looked up from an item."""
    aliased: tuple[tuple[bool, ...], tuple[bool, ...]]
    """For payer and payee, at each step: whether the alias stands there."""
    everything: bool
    """Whether all that the payer has is paid."""


def _shape(rng: random.Random, tier: LedgerTier) -> _Shape:
    size = rng.randint(*tier.hops)
    fewest, most = tier.aliases
    placed = set(rng.sample(range(size), rng.randint(min(fewest, size), min(most, size))))
    flags = tuple(i in placed for i in range(size))
    cut = rng.randint(0, size)
    aliased = (flags[:cut], flags[cut:])
    from_item = (bool(aliased[0]) and rng.random() < 0.5, bool(aliased[1]) and rng.random() < 0.5)
    return _Shape(from_item, aliased, everything=rng.random() < 0.3)


def _problem(rng: random.Random, shape: _Shape) -> Problem:
    world = _world(rng)
    alias_of = {relation: alias for alias, relation in ALIASES.items()}
    while True:
        ends: list[Expression] = []
        for from_item, aliased in zip(shape.from_item, shape.aliased, strict=True):
            base = rng.choice(_items_of(world) if from_item else sorted(world.balances))
            words: list[str] = []
            for alias in aliased:
                relation = rng.choice(ITEM_RELATIONS if from_item and not words else PERSON_RELATIONS)
                words.append(alias_of[relation] if alias else relation)
            ends.append(Expression(base, tuple(words)))
        source, target = (resolve(world, end.base, end.relations) for end in ends)
        if source != target:
            amount = None if shape.everything else rng.randint(10, world.balances[source])
            return Problem(world, ends[0], ends[1], amount)


def _world(rng: random.Random) -> World:
    persons = rng.sample(PERSONS, NUM_PERSONS)
    related: dict[tuple[str, str], str] = {}
    # Different relations lead to different people, so that a wrong look-up always shows.
    for person in persons:
        others = rng.sample([other for other in persons if other != person], len(PERSON_RELATIONS))
        related.update({(kind, person): other for kind, other in zip(PERSON_RELATIONS, others, strict=True)})
    for item in rng.sample(ITEMS, NUM_ITEMS):
        holders = rng.sample(persons, len(ITEM_RELATIONS))
        related.update({(kind, item): other for kind, other in zip(ITEM_RELATIONS, holders, strict=True)})
    return World({person: rng.randint(10, 99) for person in persons}, related)


def _items_of(world: World) -> list[str]:
    return [subject for relation, subject in world.related if relation == ITEM_RELATIONS[0]]


def privileged_context(problem: Problem, reference: Reference = "trace", seed: int = 0) -> str | None:
    """What only the teacher sees, in the surface form of the completion; None for "none".

    "shuffled" is the calls of another problem of the same shape, drawn with `seed`: it informs nobody, so no
    method may gain from it.

    >>> privileged_context(generate(0), "answer")
    'ada 32 ben 52'
    """
    match reference:
        case "none":
            return None
        case "trace":
            return call_text(calls(problem))
        case "answer":
            before = problem.world.balances
            changed = [(name, after) for name, after in problem.expected.items() if after != before[name]]
            return " ".join(f"{name} {after}" for name, after in changed)
        case "shuffled":
            return call_text(calls(_another(problem, random.Random(seed))))


def _another(problem: Problem, rng: random.Random) -> Problem:
    """A problem of the same shape that begins elsewhere."""
    source, target = problem.source, problem.target
    shape = _Shape(
        from_item=(source.base in ITEMS, target.base in ITEMS),
        aliased=(_aliased(source), _aliased(target)),
        everything=problem.amount is None,
    )
    mine = {source.base, target.base}
    while True:
        other = _problem(rng, shape)
        if not mine & {other.source.base, other.target.base}:
            return other


def _aliased(expression: Expression) -> tuple[bool, ...]:
    return tuple(word in ALIASES for word in expression.words)


def rows(
    tier: str = "default",
    *,
    num: int,
    reference: Reference = "trace",
    first_seed: int = FIRST_TRAIN_SEED,
) -> list[dict[str, Any]]:
    """Data set rows of consecutive seeds: prompt, seed, tier and reference. `first_seed=0` is held out.

    A row holds no privileged context: the environment makes world, reward and context again from the seed.
    Raises ValueError where held-out problems and training problems would mix.

    >>> sorted(rows("easy", num=1)[0])
    ['prompt', 'reference', 'seed', 'tier']
    """
    return [
        {
            "prompt": [{"role": "user", "content": generate(seed, tier).text}],
            "seed": seed,
            "tier": tier,
            "reference": reference,
        }
        for seed in seeds_of(num, first_seed)
    ]


def fingerprint(tier: str | LedgerTier = "default", num: int = len(HELD_OUT)) -> str:
    """The sha256 of the first held-out instructions and gold calls; equal ones make two reports comparable.

    >>> fingerprint("easy", 8)[:8]
    '9e83a108'
    """
    digest = hashlib.sha256()
    for seed in HELD_OUT[:num]:
        problem = generate(seed, tier)
        digest.update(f"{problem.text} -> {call_text(calls(problem))}\n".encode())
    return digest.hexdigest()
