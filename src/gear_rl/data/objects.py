"""The user's own functions and classes: imported by name, with their errors reported in one line."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sized
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, cast

from gear_rl.errors import InputError, did_you_mean, raised

Fault = Callable[[Any, Mapping[str, Any]], str | None]
"""What is wrong with a function's result, given its keyword arguments; None if nothing is."""


def import_object(path: str, where: str) -> Any:
    """The object ``package.module:object``; the current folder is searched too.

    >>> import_object("math:sqrt", "reward")(9)
    3.0
    >>> import_object("math:zz", "reward")
    Traceback (most recent call last):
    gear_rl.errors.InputError: reward: 'math' has no 'zz'; choose from acos, acosh, ...
    >>> import_object("rewards.py:short", "reward")
    Traceback (most recent call last):
    gear_rl.errors.InputError: reward: 'rewards.py:short' names no object; write package.module:object
    """
    module_name, _, attribute = path.partition(":")
    if not attribute or not all(module_name.split(".")) or module_name.endswith(".py"):
        raise InputError(f"{where}: {path!r} names no object; write package.module:object")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{where}: cannot import {module_name!r} ({error}); check the name and the folder"
        ) from None
    except Exception as error:
        raise InputError(f"{where}: importing {module_name!r} fails: {raised(error)}") from error
    if not hasattr(module, attribute):
        public = [name for name in dir(module) if not name.startswith("_")]
        raise InputError(f"{where}: {module_name!r} has no {attribute!r}; {did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def code_of(values: Any) -> bytes:
    """The source files of all objects that the values name as ``package.module:object``; not what they import.

    >>> code_of({"reward": ["math", "gear_rl.data.objects:code_of"]}) == Path(__file__).read_bytes()
    True
    """
    if isinstance(values, Mapping):
        values = [*values.values()]
    if isinstance(values, list):
        return b"".join(map(code_of, values))
    module, colon, _ = values.partition(":") if isinstance(values, str) else ("", "", "")
    file = getattr(sys.modules.get(module), "__file__", None) if colon else None
    return Path(file).read_bytes() if file else b""


def guarded(function: Callable[..., Any], where: str, name: str, fault: Fault) -> Callable[..., Any]:
    """The function, raising ``InputError`` with its name for its own exceptions and for a faulty result.

    A reward model is returned unchanged.

    >>> guarded(lambda row: row["hint"], "privileged", "mine:hint", context_fault)({})
    Traceback (most recent call last):
    gear_rl.errors.InputError: privileged: mine:hint raised KeyError: 'hint'
    """
    if hasattr(function, "state_dict"):
        return function

    @contextmanager
    def reported(given: Mapping[str, Any]) -> Generator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            columns = ""
            if fault is reward_fault and isinstance(error, KeyError | TypeError):  # maybe of a missing column
                columns = f"; it was given {', '.join(given)}"
            raise InputError(f"{where}: {name} raised {raised(error)}{columns}") from error

    def checked(value: Any, given: Mapping[str, Any]) -> Any:
        why = fault(value, given)
        if why is not None:
            raise InputError(f"{where}: {name} gave {why}")
        return value

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        with reported(given):
            value = function(*args, **given)
        return checked(value, given)

    @wraps(function)
    async def call_later(*args: Any, **given: Any) -> Any:
        with reported(given):
            value = await function(*args, **given)
        return checked(value, given)

    chosen = call_later if inspect.iscoroutinefunction(function) else call
    chosen.__name__ = getattr(function, "__name__", name.rpartition(":")[2])  # an object has none
    return chosen


def context_fault(value: Any, given: Mapping[str, Any]) -> str | None:
    """What is wrong with a privileged context."""
    if value is None or isinstance(value, str):
        return None
    return f"{type(value).__name__}; return text, or None where there is nothing to show"


def rollouts_fault(value: Any, given: Mapping[str, Any]) -> str | None:
    """What is wrong with the result of a ``rollout_func``; TRL reports a missing key."""
    for i, ids in enumerate(value.get("completion_ids", ())):
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
