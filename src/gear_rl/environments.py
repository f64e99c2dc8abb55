"""The optional methods of an environment beside its tools. Imports nothing heavy."""

from collections.abc import Mapping
from typing import Any, cast

PRIVILEGED_CONTEXT = "privileged_context"
"""The teacher's privileged context for the rollout that has just ended; never shown to the student."""
TURN_REWARDS = "turn_rewards"
"""The reward of each call of that rollout that reached the environment."""
ANCHOR_STATES = "anchor_states"
"""The state before each of those calls and after the last, as text."""
RESERVED_METHODS: tuple[str, ...] = ("reset", "get_reward", PRIVILEGED_CONTEXT, TURN_REWARDS, ANCHOR_STATES)
"""Public methods of an environment that are no tools; every other public method is a tool of the model."""

TOOL_FAILURES = ("unknown", "arguments", "raised", "timeout", "cut", "control", "malformed")
"""How a tool call can fail: no such tool, wrong arguments, an exception, the time limit, an answer cut to size,
chat control tokens in the answer, a call that could not be parsed."""
NEVER_RUN = ("unknown", "arguments")
"""Those of calls that never reached a tool."""


_MEDIA = ("image", "image_url", "video", "audio", "input_audio")


def value_of(environment: object, name: str) -> Any:
    """The result of the environment's method ``name`` for the rollout that has just ended; None without it.

    Finds the method also where an engine has hidden it from the model in a subclass.

    >>> class Env:
    ...     def turn_rewards(self) -> list[float]:
    ...         return [1.0, 0.0]
    >>> value_of(Env(), TURN_REWARDS), value_of(Env(), ANCHOR_STATES)
    ([1.0, 0.0], None)
    """
    method = _declared_method(type(environment), name)
    bound = None if method is None else method.__get__(environment, type(environment))
    return bound() if callable(bound) else None


def has_privileged_context(cls: type) -> bool:
    """Whether environments of this class have a ``privileged_context`` method.

    >>> class Env:
    ...     def privileged_context(self) -> str:
    ...         return "the answer"
    >>> has_privileged_context(Env), has_privileged_context(int)
    (True, False)
    """
    return _declared_method(cls, PRIVILEGED_CONTEXT) is not None


def _declared_method(cls: type, name: str) -> Any:
    found = (parent.__dict__.get(name) for parent in cls.__mro__)
    return next((method for method in found if hasattr(method, "__get__")), None)


def texts_of(content: Any) -> list[str]:
    """The texts of a message's content, which is a string or a list of blocks.

    >>> texts_of("a"), texts_of([{"type": "text", "text": "b"}, {"type": "image", "image": ...}]), texts_of(None)
    (['a'], ['b'], [])
    """
    if isinstance(content, str):
        return [content]
    if not is_blocks(content):
        return []
    return [str(block["text"]) for block in content if block["type"] == "text"]


def is_blocks(content: Any) -> bool:
    """Whether it is a message's content in blocks: a list of mappings with text or media, and nothing else.

    A search hit has a type too, but more than the block of that type holds.

    >>> is_blocks([{"type": "text", "text": "a"}]), is_blocks([{"type": "image", "image": ...}]), is_blocks([])
    (True, True, False)
    >>> is_blocks([{"type": "page", "title": "a"}]), is_blocks([{"type": "image", "title": "a", "url": "b"}])
    (False, False)
    """
    blocks = cast(list[Any], content) if isinstance(content, list) else []
    return bool(blocks) and all(map(_is_block, blocks))


def _is_block(block: Any) -> bool:
    if not isinstance(block, Mapping):
        return False
    given = {key: value for key, value in cast(Mapping[str, Any], block).items() if value is not None}
    kind = given.get("type")
    if kind == "text":
        return isinstance(given.get("text"), str)
    return kind in _MEDIA and given.keys() <= {"type", kind, "url", "path", "base64"}
