"""The run-time type checker of the tests: beartype, with an int accepted where a float is asked for."""

from typing import Any

from beartype import BeartypeConf, beartype

_beartype: Any = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checker(function: Any) -> Any:
    """Check every call, except of functions inside functions, which would be compiled at each call."""
    return function if "<locals>" in getattr(function, "__qualname__", "") else _beartype(function)
