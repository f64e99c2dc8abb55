"""Adapters of reasoning-gym, verifiers and OpenEnv: rows, rewards and tools."""

from collections.abc import Callable, Mapping
from inspect import Signature
from typing import Any


def as_tool(
    function: Any, name: str, text: str, signature: Signature, arguments: Mapping[str, str | None]
) -> Callable[..., Any]:
    """The function as a tool that transformers can make a schema of: a docstring that describes each argument."""
    if arguments and "Args:" not in text:
        lines = [f"    {key}: {about or f'The {key}.'.replace('_', ' ')}" for key, about in arguments.items()]
        text += "\n\nArgs:\n" + "\n".join(lines)
    function.__name__, function.__doc__, function.__signature__ = name, text, signature
    return function
