"""The environment of the task "ledger": an SQLite database in memory, and tools that read and change it.

The contract is TRL's: no argument to construct, `reset(**row)`, public methods are tools, `get_reward`. The
reward compares the balances in the database with the expected ones: never the path, never a text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from gear_rl.arena.calls import tools_of
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.tiers import TIERS, LedgerTier
from gear_rl.arena.task import Reference

_SCHEMA = """
create table account (person text primary key, balance integer not null check (balance >= 0));
create table related (relation text, subject text, person text not null, primary key (relation, subject));
"""


class LedgerEnv:
    """One rollout: a world that the tools look into, and one payment to make.

    >>> env = LedgerEnv()
    >>> env.reset(seed=0, tier="easy")
    >>> for call in ledger.calls(ledger.generate(0, "easy")):
    ...     print(call.name, getattr(env, call.name)(**call.arguments))
    deputy zoe
    balance 70
    pay ok
    >>> env.get_reward(), env.turn_rewards()
    (1.0, [1.0, 1.0, 1.0])
    """

    def __init__(self) -> None:
        self._db: sqlite3.Connection | None = None
        self._problem: ledger.Problem | None = None
        self._seed = 0
        self._reference: Reference = "none"
        self._irreversible = False
        self._paid = False
        self._made: list[tuple[str, dict[str, Any]]] = []

    def reset(
        self, seed: int, tier: str | LedgerTier = "default", reference: Reference = "trace", **_: Any
    ) -> None:
        """Begin the problem of a seed. Nothing is added to the prompt."""
        settings = TIERS[tier] if isinstance(tier, str) else tier
        self._begin(ledger.generate(seed, settings), settings.irreversible)
        self._seed, self._reference = seed, reference

    def owner(self, item: str) -> str:
        """Owner of an item.

        Args:
            item: Item
        """
        return self._related("owner", "item", item)

    def keeper(self, item: str) -> str:
        """Keeper of an item.

        Args:
            item: Item
        """
        return self._related("keeper", "item", item)

    def boss(self, person: str) -> str:
        """Boss of a person.

        Args:
            person: Person
        """
        return self._related("boss", "person", person)

    def deputy(self, person: str) -> str:
        """Deputy of a person.

        Args:
            person: Person
        """
        return self._related("deputy", "person", person)

    def friend(self, person: str) -> str:
        """Friend of a person.

        Args:
            person: Person
        """
        return self._related("friend", "person", person)

    def balance(self, person: str) -> int:
        """Money of a person.

        Args:
            person: Person
        """
        self._note("balance", person=person)
        return self._balance(person)

    def pay(self, source: str, target: str, amount: int) -> str:
        """Move money.

        Args:
            source: Payer
            target: Payee
            amount: How much
        """
        self._note("pay", source=source, target=target, amount=amount)
        if type(amount) is not int or amount < 1:
            raise ValueError("amount is not a positive integer")
        if self._irreversible and self._paid:
            raise ValueError("only one payment is allowed")
        available = self._balance(source)
        self._balance(target)
        if source == target:
            raise ValueError(f"{source} cannot pay {target}")
        if available < amount:
            raise ValueError(f"{source} has only {available}")
        with self._connection as db:  # both or neither
            db.execute("update account set balance = balance - ? where person = ?", (amount, source))
            db.execute("update account set balance = balance + ? where person = ?", (amount, target))
        self._paid = True
        return "ok"

    def get_reward(self) -> float:
        """1.0 if every balance is as expected, else 0.0."""
        if self._problem is None:
            raise ValueError("the environment holds no problem; call reset first")
        balances = dict(self._connection.execute("select person, balance from account").fetchall())
        return float(balances == self._problem.expected)

    def privileged_context(self) -> str | None:
        """What only the teacher may see, by the row's reference; not a tool."""
        if self._problem is None:
            raise ValueError("the environment holds no problem; call reset first")
        return ledger.privileged_context(self._problem, self._reference, self._seed)

    def turn_rewards(self) -> list[float]:
        """For each call in its order: 1.0 if it is the call that a right solution makes there; not a tool.

        A model of this task makes one call in a turn. Where it makes none, or one that never reaches a tool, the
        numbers do not fit the turns, and the engine gives the method none for that rollout.
        """
        if self._problem is None:
            raise ValueError("the environment holds no problem; call reset first")
        gold = [(call.name, dict(call.arguments)) for call in ledger.calls(self._problem)]
        return [float(k < len(gold) and call == gold[k]) for k, call in enumerate(self._made)]

    def _note(self, tool: str, **arguments: Any) -> None:
        self._made.append((tool, arguments))  # arguments as sent: the model may send anything

    def _begin(self, problem: ledger.Problem, irreversible: bool = False) -> None:
        self._close()
        # TRL may call tools from another thread than the one that made the environment.
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level="DEFERRED")
        self._db.executescript(_SCHEMA)
        world = problem.world
        with self._db as db:
            db.executemany("insert into account values (?, ?)", world.balances.items())
            db.executemany(
                "insert into related values (?, ?, ?)", [(*k, v) for k, v in world.related.items()]
            )
        self._problem, self._irreversible, self._paid, self._made = problem, irreversible, False, []

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise ValueError("the environment holds no problem; call reset first")
        return self._db

    def _related(self, relation: str, kind: str, subject: Any) -> str:
        self._note(relation, **{kind: subject})
        query = "select person from related where relation = ? and subject = ?"
        return str(self._one(query, (relation, _text(subject)), kind))

    def _balance(self, person: Any) -> int:
        return int(self._one("select balance from account where person = ?", (_text(person),), "person"))

    def _one(self, query: str, values: tuple[str, ...], kind: str) -> Any:
        row = self._connection.execute(query, values).fetchone()
        if row is None:
            # Without the name: what the model sent may hold control tokens, and the tool's answer is tokenised.
            raise ValueError(f"no such {kind}")
        return row[0]

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def __del__(self) -> None:
        if hasattr(self, "_db"):
            self._close()


def _text(value: Any) -> str:
    """The value if it is text: the model may send anything that JSON can hold."""
    if not isinstance(value, str):
        raise ValueError("not a name")
    return value


class LedgerEnvGreet(LedgerEnv):
    """With a tool that is of no use.

    >>> env = LedgerEnvGreet()
    >>> env.reset(seed=0)
    >>> env.greet("ben"), env.get_reward()
    ('hello', 0.0)
    """

    def greet(self, person: str) -> str:
        """Say hello.

        Args:
            person: Person
        """
        self._note("greet", person=person)
        self._balance(person)
        return "hello"


class LedgerEnvGreetRate(LedgerEnvGreet):
    """With two tools that are of no use.

    >>> LedgerEnvGreetRate().rate("euro")
    10
    """

    def rate(self, currency: str) -> int:
        """Price of a currency.

        Args:
            currency: Currency
        """
        self._note("rate", currency=currency)
        if not _text(currency):
            raise ValueError("no currency")
        return 10


_BY_DISTRACTORS: tuple[type[LedgerEnv], ...] = (LedgerEnv, LedgerEnvGreet, LedgerEnvGreetRate)


def environment(tier: str | LedgerTier = "default") -> type[LedgerEnv]:
    """The environment class with the tier's tools.

    >>> environment("easy").__name__, environment("hard").__name__
    ('LedgerEnv', 'LedgerEnvGreetRate')
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    return _BY_DISTRACTORS[settings.distractors]


def tools(tier: str | LedgerTier = "default") -> list[Callable[..., Any]]:
    """The tools of a tier in the order in which TRL lists them: the public functions of the class, by name.

    >>> [tool.__name__ for tool in tools("easy")]
    ['balance', 'boss', 'deputy', 'friend', 'keeper', 'owner', 'pay']
    """
    return tools_of(environment(tier)())
