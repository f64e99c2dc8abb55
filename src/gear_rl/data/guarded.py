"""Functions of the user's own, whose faults are told as theirs: what raised where, and what came back instead."""

import inspect
from collections.abc import Callable, Sized
from functools import wraps
from typing import Any, cast

from gear_rl.errors import InputError, raised


def guarded(
    function: Callable[..., Any],
    where: str,
    name: str,
    fault: Callable[[Any], str | None] = lambda value: None,
) -> Callable[..., Any]:
    """The function; what it raises becomes an ``InputError`` that names it, the error and its line.

    ``fault`` says what is wrong with a result, or None.

    >>> guarded(lambda row: row["hint"], "privileged", "mine:hint")({})
    Traceback (most recent call last):
    gear_rl.errors.InputError: privileged: mine:hint raised KeyError: 'hint' (...)
    """

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            value = function(*args, **given)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{where}: {name} raised {raised(error)}") from error
        why = fault(value)
        if why is not None:
            raise InputError(f"{where}: {name} gave {why}")
        return value

    return call


def context_fault(value: Any) -> str | None:
    """What is wrong with what a function for the source "function" returned.

    >>> context_fault("a hint"), context_fault(7)
    (None, 'int; return text, or None where there is nothing to show')
    """
    right = value is None or isinstance(value, str)
    return None if right else f"{type(value).__name__}; return text, or None where there is nothing to show"


def rollouts_fault(value: Any) -> str | None:
    """What is wrong with what a ``rollout_func`` returned.

    >>> rollouts_fault({"prompt_ids": [[1]], "completion_ids": [[]], "logprobs": [[]]})
    'no token for completion 0; give at least one, such as the end of the sequence'
    """
    kind = type(value).__name__
    found = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    for key in ("prompt_ids", "completion_ids", "logprobs"):
        if key not in found:
            return f"{kind} without {key!r}; return prompt_ids, completion_ids and logprobs"
    for i, ids in enumerate(found["completion_ids"]):
        if not len(ids):
            return f"no token for completion {i}; give at least one, such as the end of the sequence"
    return None


def guarded_reward(reward: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same for a reward function, whose result is looked at too: one number or None for each completion.

    Anything else than a plain function (a coroutine, a model) is returned as it is.

    >>> def stars(completions, **_): return ["***" for _ in completions]
    >>> guarded_reward(stars, "mine:stars")(completions=["a"])
    Traceback (most recent call last):
    gear_rl.errors.InputError: reward: mine:stars gave '***' for completion 0; return a number, or None ...
    """
    if not inspect.isfunction(reward) or inspect.iscoroutinefunction(reward):
        return reward
    call = guarded(reward, "reward", name)

    @wraps(reward)
    def checked(*args: Any, **given: Any) -> Any:
        values = call(*args, **given)
        expected = given.get("completions")
        fault = None if expected is None else _fault(values, len(expected))
        if fault is not None:
            raise InputError(f"reward: {name} gave {fault}")
        return values

    return checked


def _fault(values: Any, count: int) -> str | None:
    if isinstance(values, str | dict) or not isinstance(values, Sized):
        return f"{type(cast(Any, values)).__name__}; return a list with a number or None for each completion"
    if len(values) != count:
        return (
            f"{len(values)} values for {count} completions; return one for each, None where it does not apply"
        )
    for i, value in enumerate(cast(Any, values)):
        try:
            right = not isinstance(value, str | bytes)
            if value is not None:
                float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            right = False
        if not right:
            return f"{str(value)[:40]!r} for completion {i}; return a number, or None where it does not apply"
    return None
