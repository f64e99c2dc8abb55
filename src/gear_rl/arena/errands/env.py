"""The environment of the task "errands": it takes whatever is sent and answers "ok".

The contract is TRL's: no argument to construct, `reset(**row)`, public methods are tools, `get_reward`.
"""

from gear_rl.arena.codes import CODES
from gear_rl.arena.errands.problem import generate
from gear_rl.arena.task import Reference


class ErrandsEnv:
    """One rollout: requests to settle, of which the first call for each counts.

    >>> env = ErrandsEnv()
    >>> env.reset(seed=0, tier="easy")
    >>> right, wrong, _ = generate(0, "easy").sends()
    >>> env.send(**right.arguments), env.wait(), env.send(wrong.arguments["item"], "00")
    ('ok', 'ok', 'ok')
    >>> env.get_reward(), env.turn_rewards()
    (0.3333333333333333, [1.0, 0.0, 0.0])
    """

    def reset(self, seed: int, tier: str = "default", reference: Reference = "trace", **_: object) -> None:
        """Begin the problem of a seed. Nothing is added to the prompt."""
        self._requests = generate(seed, tier)
        self._made: list[tuple[str, str] | None] = []
        self._context = self._requests.reference(reference, seed)

    def send(self, item: str, code: str) -> str:
        """Send an item.

        Args:
            item: Item
            code: Code
        """
        # The model may send any JSON value.
        if type(item) is not str or type(code) is not str:
            raise ValueError("item and code are texts")
        self._made.append((item, code))
        # The model's words may hold control tokens, and the tool's answer is tokenised.
        if item not in self._requests.items:
            raise ValueError("no such request")
        if code not in CODES:
            raise ValueError("no such code")
        return "ok"

    def wait(self) -> str:
        """Do nothing."""
        self._made.append(None)
        return "ok"

    def get_reward(self) -> float:
        """The share of the requests that are settled right."""
        return sum(self._requests.rights(self._made)) / len(self._requests.items)

    def privileged_context(self) -> str | None:
        """The privileged context of the row's reference; not a tool."""
        return self._context

    def turn_rewards(self) -> list[float]:
        """For each call 1.0 if it settles a request right, else 0.0; not a tool.

        A call that was refused has no number; the engine counts it as 0.
        """
        return [*map(float, self._requests.rights(self._made))]
