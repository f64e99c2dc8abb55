"""A batch of rollouts as the credit step sees it. Knows no trainer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LOGGED = ("feedback", "turn_rewards", "step_scores")
"""What the credit step reads of what reward functions log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A padded batch of prompts, padded on the left so that the completion follows at once.

    >>> left_padded([[5], [6, 7]], pad_id=0).take(torch.tensor([0]))
    Prompts(ids_BP=tensor([[0, 5]]), attention_BP=tensor([[0, 1]]))
    """

    ids_BP: Int[Tensor, "B P"]
    attention_BP: Int[Tensor, "B P"]
    """1 on prompt tokens, 0 on padding."""

    def take(self, rows: Int[Tensor, " N"]) -> "Prompts":
        """The same of some rows."""
        return Prompts(ids_BP=self.ids_BP[rows], attention_BP=self.attention_BP[rows])

    def trimmed(self, rows: Int[Tensor, " N"]) -> "Prompts":
        """The same of some rows, without the columns that are padding in all of them."""
        own = self.take(rows)
        begin = int(own.attention_BP.any(0).nonzero().min()) if own.attention_BP.any() else 0
        return Prompts(ids_BP=own.ids_BP[:, begin:], attention_BP=own.attention_BP[:, begin:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """A padded batch of completions, padded on the right.

    >>> ids = torch.tensor([[7, 8], [9, 0]])
    >>> Completions(ids=ids, attention=ids.sign(), mask=ids > 0).mask
    tensor([[ True,  True],
            [ True, False]])
    """

    ids: Int[Tensor, "B T"]
    attention: Int[Tensor, "B T"]
    """1 on tokens, tool output included; 0 on padding."""
    mask: Bool[Tensor, "B T"]
    """True on tokens that are trained."""
    target_ids: Int[Tensor, "B T"] | None = None
    """Token id to score at each position; None for the sampled one."""
    trained: Bool[Tensor, "B T"] | None = None
    """False on the tokens that the engine's loss leaves out, though they were sampled: they belong to their turn
    and have signals as every other, but no advantage. None where the loss leaves out none of the mask."""
    truncated: Sequence[bool] = ()
    """Whether each was cut off before it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What became of the calls of a batch of rollouts."""

    counts: Sequence[Mapping[str, int]]
    """For each rollout the number of its calls, and by kind the number of those that failed."""
    failure_of: Callable[[int, Mapping[str, Any]], str | None]
    """As which of ``TOOL_FAILURES`` the call of rollout ``b`` that a tool message answers failed; None if it did
    not."""


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> Prompts:
    """The ids of some prompts as one batch.

    >>> left_padded([[5], [6, 7]], pad_id=0).ids_BP
    tensor([[0, 5],
            [6, 7]])
    """
    width = max(map(len, prompts), default=0)
    ids = [[pad_id] * (width - len(prompt)) + [*prompt] for prompt in prompts]
    attention = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    shape = (len(prompts), width)
    return Prompts(
        ids_BP=torch.tensor(ids, dtype=torch.long, device=device).view(shape),
        attention_BP=torch.tensor(attention, dtype=torch.long, device=device).view(shape),
    )


def right_padded(
    completions: Sequence[Sequence[int]],
    sampled: Sequence[Sequence[bool]] | None,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> Completions:
    """The ids of some completions as one batch; ``sampled`` marks the tokens to train, None all.

    >>> right_padded([[5], [6, 7]], [[True], [False, True]], pad_id=0).mask
    tensor([[ True, False],
            [False,  True]])
    """
    width = max(map(len, completions), default=0)
    ids = torch.full((len(completions), width), pad_id, device=device)
    attention, mask = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for b, own in enumerate(completions):
        ids[b, : len(own)] = torch.as_tensor(own, device=device)
        attention[b, : len(own)] = 1
        mask[b, : len(own)] = True if sampled is None else torch.as_tensor(sampled[b], device=device)
    return Completions(ids=ids, attention=attention, mask=mask)


def trained_width(mask: Bool[Tensor, "B T"]) -> int:
    """How many columns reach to the last trained token of all rows; those after it predict nothing that is read.

    >>> trained_width(torch.tensor([[True, False, False], [False, True, False]]))
    2
    """
    return int(mask.any(0).nonzero().max()) + 1 if mask.any() else min(1, mask.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The rollouts of one process, padded, with everything that the credit step reads of them.

    Lists have one entry for each of the ``B`` rollouts. Rollouts are numbered over all processes in the order of
    their ranks; those of this process are consecutive and begin at ``first``, of ``num_rollouts``. Raises
    ``ValueError`` that names the field where lengths disagree.

    Two answers to "1+1=", one token each:

    >>> ids, rewards_B = torch.tensor([[2], [3]]), torch.tensor([1.0, 0.0])
    >>> batch = RolloutBatch(
    ...     step=0, completions=Completions(ids=ids, attention=ids.sign(), mask=ids > 0),
    ...     student=Prompts(ids_BP=torch.tensor([[1, 4, 1, 5]] * 2), attention_BP=torch.ones(2, 4).long()),
    ...     prompts=["1+1="] * 2, rows=[{"answer": "2"}] * 2, messages=["2", "3"], group=[0, 0],
    ...     rewards=rewards_B.tolist(), rewards_BR=rewards_B[:, None], advantage_B=rewards_B - 0.5,
    ...     first=0, num_rollouts=2,
    ... )
    >>> batch.has_reward()
    tensor([True, True])
    """

    step: int
    """Optimizer steps that were done when the rollouts were sampled."""
    completions: Completions
    student: Prompts
    """What the student was shown, as ids."""
    prompts: Sequence[Any]
    """What the student was shown before the tokenizer: text or chat messages."""
    rows: Sequence[Mapping[str, Any]]
    """The dataset row of each rollout."""
    messages: Sequence[Any]
    """The completion as a reward function sees it: text, or messages with the tools' answers."""
    advantage_B: Float[Tensor, " B"]
    """The completion's advantage, as the engine computed it; 0 where rewards of a group are equal."""
    rewards: Sequence[float | None]
    """The weighted sum of a rollout's rewards; None where every reward function abstained."""
    rewards_BR: Float[Tensor, "B R"]
    """What each reward function gave, times its weight; 0 where it abstained."""
    group: Sequence[int]
    """Which prompt a rollout answers; siblings share the number, on other processes too. Below
    ``num_rollouts``."""
    first: int
    num_rollouts: int
    environments: Sequence[Any] | None = None
    """The environment that each rollout ran in: their ``privileged_context()``, ``turn_rewards()`` and
    ``anchor_states()`` are called where a method needs them. None where there are none."""
    logged: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """What reward functions logged for each rollout, by name; of ``LOGGED`` the credit step reads."""
    tools: ToolUse | None = None
    """None without tools."""

    def __post_init__(self) -> None:
        count = len(self.completions.mask)
        names = ("prompts", "rows", "messages", "advantage_B", "rewards", "rewards_BR", "group")
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        given |= {"student": self.student.ids_BP}
        given |= {name: values for name, values in self.logged.items() if name in LOGGED}
        for name, value in given.items():
            entries = len(value)
            if entries != count:
                raise ValueError(f"{name}: {entries} entries for {count} completions; give one for each")
        if self.group and not 0 <= min(self.group) <= max(self.group) < self.num_rollouts:
            raise ValueError(
                f"group: {min(self.group)} to {max(self.group)}; number prompts from 0, below num_rollouts "
                f"({self.num_rollouts})"
            )

    def failure_of(self, b: int, message: Mapping[str, Any]) -> str | None:
        """As `ToolUse.failure_of`; None without tools."""
        return None if self.tools is None else self.tools.failure_of(b, message)

    def has_reward(self) -> Bool[Tensor, " B"]:
        """True on the completions to which any reward function gave a reward."""
        return torch.tensor([reward is not None for reward in self.rewards], device=self.advantage_B.device)


def equal_groups(rewards: Sequence[Any], group: Sequence[int]) -> list[bool]:
    """Whether a rollout's group has two or more rewards that are all equal; None is none.

    Their advantage is 0. An engine's is rounding, which a small deviation makes as large as 0.1.

    >>> equal_groups([0.3, 0.3, 0.3, 1.0, 0.3, None, 0.3], [0, 0, 1, 1, 2, 2, 2])
    [True, True, False, False, True, True, True]
    """
    seen: dict[int, list[Any]] = {number: [] for number in group}
    for number, reward in zip(group, rewards, strict=True):
        if reward is not None:
            seen[number].append(reward)
    return [len(seen[number]) > 1 and len({*seen[number]}) == 1 for number in group]


def succeeds(reward: float, success_reward: float) -> bool:
    """Whether a reward is a success; engines keep rewards in float32, where 0.7 is a little less than 0.7.

    >>> succeeds(0.699999988079071, 0.7), succeeds(0.6999, 0.7)
    (True, False)
    """
    return reward >= success_reward or math.isclose(reward, success_reward, rel_tol=1e-6)
