"""The user's own functions, with their errors reported in one line."""

import inspect
from collections.abc import Callable, Collection, Generator, Mapping, Sized
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from gear_rl.errors import InputError, error_text

Fault = Callable[[Any, Mapping[str, Any]], str | None]
"""What is wrong with a function's result, given its keyword arguments; None if nothing is."""


def guard_function(function: Callable[..., Any], where: str, name: str, fault: Fault) -> Callable[..., Any]:
    """The function, raising ``InputError`` with its name for its own exceptions and for a faulty result.

    A reward model is returned unchanged.

    >>> guard_function(lambda row: row["hint"], "privileged", "mine:hint", context_fault)({})
    Traceback (most recent call last):
    gear_rl.errors.InputError: privileged: mine:hint raised KeyError: 'hint'
    """
    if hasattr(function, "state_dict"):
        return function

    @contextmanager
    def report_errors(given: Mapping[str, Any]) -> Generator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            hint = ""
            if fault is reward_fault:
                if isinstance(error, KeyError | TypeError):  # maybe of a missing column
                    hint = f"; it was given {', '.join(given)}"
                if isinstance(error, AttributeError | TypeError) and _are_messages(given):
                    hint += "; a completion is a list of messages, its text completion[-1]['content']"
            raise InputError(f"{where}: {name} raised {error_text(error)}{hint}") from error

    def checked_value(value: Any, given: Mapping[str, Any]) -> Any:
        why = fault(value, given)
        if why is not None:
            raise InputError(f"{where}: {name} gave {why}")
        return value

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        with report_errors(given):
            value = function(*args, **given)
        return checked_value(value, given)

    @wraps(function)
    async def call_later(*args: Any, **given: Any) -> Any:
        with report_errors(given):
            value = await function(*args, **given)
        return checked_value(value, given)

    chosen = call_later if inspect.iscoroutinefunction(function) else call
    chosen.__name__ = getattr(function, "__name__", name.rpartition(":")[2])  # an object has none
    return chosen


def _are_messages(given: Mapping[str, Any]) -> bool:
    return any(isinstance(completion, list) for completion in given.get("completions", ()))


def context_fault(value: Any, given: Mapping[str, Any]) -> str | None:
    """What is wrong with a privileged context."""
    if value is None or isinstance(value, str):
        return None
    return f"{type(value).__name__}; return text, or None where there is nothing to show"


def rollouts_fault(value: Any, given: Mapping[str, Any]) -> str | None:
    """What is wrong with the result of a ``rollout_func``; TRL reports a missing key."""
    if not isinstance(value, Mapping):
        return f"{type(value).__name__}; return a dict with prompt_ids and completion_ids"
    for i, ids in enumerate(cast(Mapping[str, Any], value).get("completion_ids", ())):
        if not len(ids):
            return f"no token for completion {i}; give at least one, such as the end of the sequence"
    return None


def reward_fault(values: Any, given: Mapping[str, Any]) -> str | None:
    """What is wrong with the rewards of ``given["completions"]``."""
    try:
        if isinstance(values, dict | set | frozenset) or not isinstance(values, Sized):
            raise TypeError
        count = len([value is None or float(value + 0) for value in cast(Collection[Any], values)])
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return f"{str(values)[:40]!r}; return a list with a number or None for each completion"
    wanted = len(given.get("completions", values))
    if count == wanted:
        return None
    return f"{count} values for {wanted} completions; return one for each, or None"
