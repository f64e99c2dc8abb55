"""What ``GEARTrainer`` carries from one of TRL's hooks to the next, in one object."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gear_rl.tensor.lists import float_list, int_list

if TYPE_CHECKING:
    from gear_rl.engines.trl.hooks import StudentPass
    from gear_rl.engines.trl.late import LateCredit
else:
    StudentPass = LateCredit = Any  # importing them would go round in a circle


@dataclass
class RolloutState:
    """The batch of rollouts under way, as TRL's hooks show it piece by piece.

    >>> state, no = RolloutState(), torch.nan
    >>> state.judge(torch.tensor([[1.0, no], [no, no]]), weights=torch.tensor([0.5, 1.0]), num_tries=1)
    >>> state.rewards
    [0.5, None]
    """

    prompts: list[Any] = field(default_factory=list[Any])
    """The final prompts; an environment's ``reset()`` may have changed them."""
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The whole dataset rows, with the columns that ``reset()`` must not see."""
    messages: list[Any] = field(default_factory=list[Any])
    """The completions as reward functions see them."""
    ids: list[list[int]] = field(default_factory=list[list[int]])
    rewards: list[float | None] = field(default_factory=list[float | None])
    """The weighted sums of the rewards of all processes; None where no function judged."""
    rewards_each: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """(rollouts, functions), of all processes; 0 where a function abstained."""
    logged: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """What reward functions logged for each rollout, by name."""
    evaluated: list[list[float | None]] | None = None
    """During an evaluation: the rewards of every problem's tries."""

    fetches: bool = False
    """Whether TRL itself fetches these rollouts to train on them: only then they surely go through its loss."""
    late: LateCredit | None = None
    """The credit that is computed in the losses of these rollouts."""
    on_student_pass: Callable[[StudentPass | None], None] | None = None
    """Who waits for the hidden states of TRL's next forward of the student."""
    old_pass: StudentPass | None = None
    """The student's forward in which TRL computed its old log-probabilities."""

    warned_of_positions: bool = False
    warned_of_rewards: bool = False

    def begin(self, rows: list[dict[str, Any]]) -> None:
        """A new batch of rollouts of these rows."""
        self.rows, self.logged = rows, {}

    def keep_old_pass(self, student: StudentPass | None) -> None:
        """TRL's pass for its old log-probabilities went by."""
        self.old_pass = student

    def judge(self, per_function: Tensor, weights: Tensor, num_tries: int) -> None:
        """Keep the rewards of a batch, (rollouts, functions); NaN is a function that abstained.

        In an evaluation they are the rewards of ``num_tries`` rollouts for each problem.
        """
        each = per_function * weights.to(per_function.device)
        sums = float_list(each.nansum(1))  # as TRL sums them
        self.rewards_each = torch.where(each.isnan(), 0.0, each)  # as in `nansum`; an infinite one stays
        judged = int_list(~per_function.isnan().all(1))
        self.rewards = [value if judge else None for value, judge in zip(sums, judged, strict=True)]
        if self.evaluated is not None:
            for begin in range(0, len(self.rewards), num_tries):
                self.evaluated.append(self.rewards[begin : begin + num_tries])

    def whole_rows(self, shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows that TRL hands to reward functions, with every column: they may read what ``reset()`` must
        not."""
        return [{**row, **own} for row, own in zip(self.rows, shown, strict=True)]
