"""The user's own functions and classes, imported by name."""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gear_rl.errors import InputError, did_you_mean, error_text


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
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{where}: {module_name!r} imports {error.name!r}, which cannot be found"
            ) from None
        raise InputError(
            f"{where}: cannot import {module_name!r} ({error}); check the name and the folder"
        ) from None
    except Exception as error:
        raise InputError(f"{where}: importing {module_name!r} fails: {error_text(error)}") from error
    if not hasattr(module, attribute):
        public = [name for name in dir(module) if not name.startswith("_")]
        raise InputError(f"{where}: {module_name!r} has no {attribute!r}; {did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def code_of(values: Any) -> bytes:
    """The source files of all objects that the values name as ``package.module:object``; not what they import.

    >>> code_of({"reward": ["math", "gear_rl.user_objects:code_of"]}) == Path(__file__).read_bytes()
    True
    """
    if isinstance(values, Mapping):
        values = [*cast(Mapping[str, Any], values).values()]
    if isinstance(values, list):
        return b"".join(map(code_of, cast(list[Any], values)))
    module, colon, _ = values.partition(":") if isinstance(values, str) else ("", "", "")
    file = getattr(sys.modules.get(module), "__file__", None) if colon else None
    return Path(file).read_bytes() if file else b""
