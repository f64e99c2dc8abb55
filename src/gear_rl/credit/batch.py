"""What the credit step reads of a batch of rollouts, and what it requests of an engine. Knows no trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.signals.score import Completions, Prompts
from gear_rl.tensor.lists import int_list


def _no_call_failed(rollout: int, message: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The rollouts of one process, padded, with everything that the credit step reads of them.

    Lists have one entry for each of the ``B`` rollouts. Rollouts are numbered over all processes in the order of
    their ranks; those of this process are consecutive and begin at ``first``, of ``num_rollouts``. Raises
    ``ValueError`` that names the field where lengths disagree.

    Two answers to "1+1=", one token each:

    >>> import torch
    >>> ids, rewards_B = torch.tensor([[2], [3]]), torch.tensor([1.0, 0.0])
    >>> batch = RolloutBatch(
    ...     step=0, completions=Completions(ids=ids, attention=ids.sign(), mask=ids > 0),
    ...     student=Prompts(ids_BP=torch.tensor([[1, 4, 1, 5]] * 2), attention_BP=torch.ones(2, 4).long()),
    ...     prompts=["1+1="] * 2, rows=[{"answer": "2"}] * 2, messages=["2", "3"], group=[0, 0],
    ...     rewards=rewards_B.tolist(), rewards_BR=rewards_B[:, None], advantage_B=rewards_B - 0.5,
    ...     first=0, num_rollouts=2,
    ... )
    >>> batch.take(torch.tensor([1])).messages
    ['3']
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
    """The completion's advantage, as the engine computed it."""
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
    feedback: Sequence[Any] | None = None
    """What a reward function logged as "feedback"; None where none did, and the tools' answers serve."""
    turn_rewards: Sequence[Any] | None = None
    """What a reward function logged as "turn_rewards"; None where none did."""
    call_failed: Callable[[int, Mapping[str, Any]], bool] = _no_call_failed
    """Whether the tool call of rollout ``b`` that a tool message answers has failed."""
    tool_counts: Sequence[Mapping[str, int]] | None = None
    """How many tools a rollout called, and how many calls failed of which kind; None without tools."""
    truncated: Sequence[bool] = ()
    """Whether the completion was cut off before it ended."""
    trained: Bool[Tensor, "B T"] | None = None
    """False on the tokens that the engine's loss leaves out, though they were sampled: they belong to their turn
    and have signals as every other, but no advantage. None where the loss leaves out none of the mask."""
    true_advantage: Float[Tensor, "B T"] | None = None
    """What each token is worth, where a laboratory says it; the signal of that name."""

    def __post_init__(self) -> None:
        count = len(self.completions.mask)
        for name in (
            "student",
            "prompts",
            "rows",
            "messages",
            "advantage_B",
            "rewards",
            "rewards_BR",
            "group",
        ):
            value: Any = getattr(self, name)
            entries = len(value.ids_BP if name == "student" else value)
            if entries != count:
                raise ValueError(f"{name}: {entries} entries for {count} completions; give one for each")
        if self.group and not 0 <= min(self.group) <= max(self.group) < self.num_rollouts:
            raise ValueError(
                f"group: {min(self.group)} to {max(self.group)}; number prompts from 0, below num_rollouts "
                f"({self.num_rollouts})"
            )

    def take(self, rows: Int[Tensor, " N"]) -> "RolloutBatch":
        """The same of some rollouts, in the given order; ``first`` and ``num_rollouts`` stay as they are."""
        numbers = int_list(rows)

        def of(values: Sequence[Any] | None) -> Any:
            return None if values is None else [values[b] for b in numbers]

        def call_failed(b: int, message: Mapping[str, Any]) -> bool:
            return self.call_failed(numbers[b], message)

        return replace(
            self,
            completions=self.completions.take(rows),
            student=self.student.take(rows),
            advantage_B=self.advantage_B[rows],
            rewards_BR=self.rewards_BR[rows],
            call_failed=call_failed,
            **{
                name: of(getattr(self, name))
                for name in ("prompts", "rows", "messages", "rewards", "group", "environments", "feedback")
            },
            **{name: of(getattr(self, name)) for name in ("turn_rewards", "tool_counts")},
            truncated=of(self.truncated) if self.truncated else (),
            trained=None if self.trained is None else self.trained[rows],
            true_advantage=None if self.true_advantage is None else self.true_advantage[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRequest:
    """Which signals an engine should compute by forward passes, and from what."""

    needs: tuple[str, ...]
    """Names of signals, each of which costs a forward pass (``Signal.costs_passes``)."""
    step: int
    completions: Completions
    student: Prompts
    teachers: Sequence[Prompts]
    """The teacher's prompts, and with a contrast those with the wrong context; empty without a teacher."""
    scored_B: Bool[Tensor, " B"]
    """True on the completions whose signals will be read; the others hold 0."""
    answer_region: Int[Tensor, "B T"] | None = None
    """Where the completion's answer is: for signals made by ``saliency``."""
    answers: Sequence[Sequence[int]] = ()
    """The ids of each ground truth as the student would write it: for ``answer_confidence``."""
    group_B: Int[Tensor, " B"] | None = None
    """For ``transport_distance``: which completions are compared; a completion that nobody judged is alone."""
    succeeded_B: Bool[Tensor, " B"] | None = None
    """For ``transport_distance``: which of them came out right."""
