"""Rewards of ``gear train`` in the signature of verl's ``reward.custom_reward_function``."""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.rollouts import LOGGED


def scorer(
    names: Sequence[str], *, dataset: str, weights: Sequence[float] | None = None
) -> Callable[..., float | dict[str, Any]]:
    """verl's ``compute_score`` for the rewards that a configuration names.

    A reward gets the arguments that TRL gives it; ``extra_info`` has the row's columns. For one reward the result
    is a number, for several the weighted sum under ``score`` and each under its name. None counts as 0. What a
    reward logs for the credit (``LOGGED``) is in the result too.

    >>> score = scorer(["arena"], dataset="arena/chain/easy")
    >>> score(data_source="arena", solution_str="ans 45", ground_truth="45", extra_info={"answer": "45"})
    1.0
    """
    functions = [load_reward(name, dataset) for name in names]
    factors = [1.0] * len(functions) if weights is None else list(weights)

    def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> float | dict[str, Any]:
        logged: dict[str, Any] = {}
        values = [_value(function, solution_str, dict(extra_info or {}), logged) for function in functions]
        applied = [(factor, value) for factor, value in zip(factors, values, strict=True) if value == value]
        total = sum(factor * value for factor, value in applied)
        if len(values) == 1 and not logged:
            return total
        # The same keys for every row, or verl's table of them would have holes.
        each = dict(zip(names, values, strict=True)) if len(values) > 1 else {}
        return {"score": total, "acc": total, **each, **logged}

    return compute_score


def _value(function: Callable[..., Any], text: str, row: Mapping[str, Any], logged: dict[str, Any]) -> float:
    """The reward of one completion; NaN for None. Puts what it logs for the credit into ``logged``."""

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if column in LOGGED:
            # As text: verl averages the numbers of a validation, and lists have many lengths.
            logged[column] = values[0] if isinstance(values[0], str) else json.dumps(values[0])

    columns = {k: [v] for k, v in row.items() if k not in ("prompt", "completion", "completion_ids")}
    result = function(
        prompts=[row.get("prompt")],
        completions=[[{"role": "assistant", "content": text}]],
        completion_ids=[None],
        log_extra=log_extra,
        log_metric=_log_nothing,
        **columns,
    )
    [value] = asyncio.run(result) if inspect.iscoroutine(result) else result
    return math.nan if value is None else float(value)


def _log_nothing(*words: Any) -> None:
    """In place of TRL's ``log_metric``: verl logs only what a reward returns."""
