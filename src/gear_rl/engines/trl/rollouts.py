"""The batch of rollouts under way: TRL's hooks show it piece by piece, the credit step gets it whole."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gear_rl.engines.tools import ToolGuard
from gear_rl.signals.batch import Completions, Prompts, RolloutBatch
from gear_rl.tensor.lists import float_list, int_list
from gear_rl.tensor.segments import turn_ids


class Rollouts:
    """What TRL shows of the rollouts of this process, and the rewards of all processes.

    >>> rollouts, no = Rollouts(), torch.nan
    >>> rollouts.judge(torch.tensor([[1.0, no], [no, no]]), weights=torch.tensor([0.5, 1.0]), num_tries=1)
    >>> rollouts.rewards
    [0.5, None]
    """

    def __init__(self) -> None:
        self.prompts: list[Any] = []
        """The final prompts; an environment's ``reset()`` may have changed them."""
        self.rows: list[dict[str, Any]] = []
        """The whole dataset rows, with the columns that ``reset()`` must not see."""
        self.messages: list[Any] = []
        """The completions as reward functions see them."""
        self.ids: list[list[int]] = []
        self.rewards: list[float | None] = []
        """The weighted sums of the rewards; None where no function judged."""
        self.rewards_each = torch.zeros(0, 0)
        """(rollouts, functions); 0 where a function abstained."""
        self.logged: dict[str, list[Any]] = {}
        """What reward functions logged for each rollout, by name."""
        self.evaluated: list[list[float | None]] | None = None
        """During an evaluation: the rewards of every problem's tries."""

    def begin(self, rows: list[dict[str, Any]]) -> None:
        """A new batch of rollouts of these rows."""
        self.rows, self.logged = rows, {}

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
        """The rows that TRL hands to reward functions, with the columns that ``reset()`` must not see."""
        return [{**row, **own} for row, own in zip(self.rows, shown, strict=True)]

    def batch(
        self,
        output: Mapping[str, Any],
        *,
        step: int,
        group_size: int,
        rank: int = 0,
        environments: Sequence[Any] | None = None,
        end_ids: Sequence[int] = (),
        **tools: Any,
    ) -> RolloutBatch:
        """What the credit step reads; ``output`` is what ``_generate_and_score_completions`` returned.

        ``tools`` are the batch's ``call_failed`` and ``tool_counts``.
        """
        first = rank * len(self.rows)
        own = slice(first, first + len(self.rows))
        completions = completions_of(output)
        return RolloutBatch(
            step=step,
            completions=completions,
            student=Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
            prompts=self.prompts,
            rows=self.rows,
            messages=self.messages,
            advantage_B=output["advantages"],
            rewards=self.rewards[own],
            rewards_BR=self.rewards_each[own].to(completions.mask.device),
            group=[(first + b) // group_size for b in range(len(self.rows))],
            first=first,
            num_rollouts=len(self.rewards),
            environments=environments or None,
            feedback=self.logged.get("feedback"),
            turn_rewards=self.logged.get("turn_rewards"),
            truncated=[not ids or ids[-1] not in end_ids for ids in self.ids],
            **tools,
        )

    def tool_facts(
        self,
        output: Mapping[str, Any],
        names: Sequence[Sequence[str]],
        guard: ToolGuard,
        tokenizer: Any,
        control: Any,
    ) -> dict[str, Any]:
        """``call_failed`` and ``tool_counts`` of a batch; ``names`` are the tools of each rollout."""
        completions = completions_of(output)
        last = [
            tokenizer.decode(ids[(turn == turn.max()) & (turn >= 0)])
            for ids, turn in zip(completions.ids, turn_ids(completions.mask), strict=True)
        ]

        def call_failed(b: int, message: Mapping[str, Any]) -> bool:
            return guard.failure_of(message, names[b]) is not None

        rollouts = zip(self.messages, last, names, strict=True)
        counts = [guard.report(messages, text, known, control) for messages, text, known in rollouts]
        return {"call_failed": call_failed, "tool_counts": counts}


def completions_of(output: Mapping[str, Any]) -> Completions:
    """The completions of a batch of TRL's, or of a micro-batch."""
    attention: Tensor = output["completion_mask"]
    mask = (attention * output["tool_mask"] if "tool_mask" in output else attention).bool()
    return Completions(ids=output["completion_ids"], attention=attention, mask=mask)
