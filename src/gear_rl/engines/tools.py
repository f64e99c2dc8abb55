"""What stands between the model's calls and the user's tools: time, size, types, and control tokens.

The engines run a tool in the trainer's own process, with whatever arguments the model wrote. A tool that is
guarded here is called with arguments of the annotated types only, is interrupted when it takes too long, and
cannot flood the completion; text that it returns cannot open or close a chat turn. Every failure is an answer
that the model sees, and is counted by its kind. Knows no trainer.
"""

import inspect
import json
import re
import signal
import threading
import types
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

FAILURES = ("unknown", "arguments", "raised", "timeout", "cut", "control", "malformed")
"""How a call can fail: no such tool, wrong arguments, an exception, the time limit, an answer cut to size, chat
control tokens in the answer, a call that could not be parsed."""
SECRET = "privileged_context"
"""The one public method of an environment that is no tool: only the teacher's path calls it."""
_NOT_TOOLS = ("reset", "get_reward", SECRET)
_CALL_OPENERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=")
"""How the chat formats in use begin a call; one that did not become a call could not be parsed."""
_ERROR = "{'error': "
"""How the engine tells the model that a call failed."""


class _TimeUp(BaseException):
    """Not an ``Exception``, so that a tool's own ``except Exception`` does not swallow it."""


class ToolGuard:
    """Wraps tools and environments, and tells afterwards what went wrong in which rollout.

    ``time_limit`` is in seconds per call and needs the main thread of a Unix system (elsewhere there is none);
    pure Python, ``sleep`` and waiting for a socket are interrupted, a C function that never returns is not.
    ``max_chars`` bounds an answer. None switches a limit off.
    """

    def __init__(self, time_limit: float | None = 30.0, max_chars: int | None = 20_000) -> None:
        self.time_limit, self.max_chars = time_limit, max_chars
        self._classes: dict[type, type] = {}
        self._failed: dict[str, str] = {}
        """What the model was told, and the kind of failure it stands for; of the batch under way."""
        self._answered: set[str] = set()
        """What tools answered of their own accord that only looks like an error."""

    def begin(self) -> None:
        """Forget the failures of the batch before."""
        self._failed.clear()
        self._answered.clear()

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its signature and docstring, and the guard around it."""
        check, signature = _argument_checks(function), inspect.signature(function)

        def checked(own: tuple[Any, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for name, value in arguments.items():
                try:
                    values[name] = check[name](value) if name in check else value
                except ValidationError as error:
                    text = f"argument {name}: {error.errors()[0]['msg']}"
                    raise self._failure("arguments", TypeError(text)) from None
            try:
                signature.bind(*own, **values)
            except TypeError as error:
                raise self._failure("arguments", error) from None
            return values

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def guarded_async(*own: Any, **arguments: Any) -> Any:
                import asyncio

                values = checked(own, arguments)
                try:
                    return self._cut(await asyncio.wait_for(function(*own, **values), self.time_limit))
                except TimeoutError:
                    raise self._late() from None
                except (Exception, SystemExit) as error:
                    raise self._failure("raised", error) from None

            return guarded_async

        @wraps(function)
        def guarded(*own: Any, **arguments: Any) -> Any:
            values = checked(own, arguments)
            try:
                with _limited(self.time_limit):
                    return self._cut(function(*own, **values))
            except _TimeUp:
                raise self._late() from None
            except (Exception, SystemExit) as error:
                raise self._failure("raised", error) from None

        return guarded

    def environment(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """A factory of the same environments whose tools are guarded and whose secret is no tool.

        The instance keeps its state and its class's name; ``isinstance`` holds. Raises ``ValueError`` for a class
        that cannot be extended (``__slots__`` with another layout, a C type).
        """

        def make() -> Any:
            instance = factory()
            cls: type = type(instance)
            if cls not in self._classes:
                self._classes[cls] = self._guarded_class(cls)
            try:
                instance.__class__ = self._classes[cls]
            except TypeError as error:
                raise ValueError(f"environment: {cls.__name__} cannot be guarded: {error}") from None
            return instance

        return make

    def _guarded_class(self, cls: type) -> type:
        body: dict[str, Any] = {}
        for name, function in inspect.getmembers(cls, predicate=inspect.isfunction):
            if not name.startswith("_") and name not in _NOT_TOOLS:
                static = isinstance(inspect.getattr_static(cls, name), staticmethod)
                body[name] = staticmethod(self.tool(function)) if static else self.tool(function)
        # TRL takes every function of the class for a tool; this one is reached through `secret_of` alone.
        if hasattr(cls, SECRET):
            body[SECRET] = None
        body["__module__"], body["__doc__"] = cls.__module__, cls.__doc__
        return type(cls.__name__, (cls,), body)

    def report(
        self, messages: Any, last_turn: str, tools: Sequence[str], control: re.Pattern[str] | None
    ) -> dict[str, int]:
        """How many calls a rollout made, and how many failed of which kind; what did not occur is left out.

        ``messages`` is the rollout's completion; plain text made no call. ``last_turn`` is what the model sampled
        last, special tokens included: a call there that did not become one ended the rollout.
        """
        if isinstance(messages, str):
            return {}
        counts: dict[str, int] = dict.fromkeys(("calls", *FAILURES), 0)
        messages = cast(Sequence[Mapping[str, Any]], messages)
        for message in messages:
            content = message.get("content")
            text = content if isinstance(content, str) else ""
            if message.get("role") == "tool":
                kind = self._failed.get(text)
                if message.get("name") not in tools:
                    kind = "unknown"
                elif kind is None and text.startswith(_ERROR) and text not in self._answered:
                    kind = "arguments"  # refused before our guard saw them: no mapping at all
                if kind is not None:
                    counts[kind] += 1
                counts["control"] += bool(control is not None and control.search(text))
            elif message.get("role") == "assistant":
                counts["calls"] += len(message.get("tool_calls") or ())
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            counts["malformed"] = int(any(opener in last_turn for opener in _CALL_OPENERS))
        return {name: count for name, count in counts.items() if count}

    def _failure(self, kind: str, error: BaseException) -> Exception:
        """The error to raise; the model is told its text, which is cut to size too."""
        text = self._shortened(str(error) or type(error).__name__)
        self._failed[str({"error": text})] = kind
        return RuntimeError(text)

    def _late(self) -> Exception:
        return self._failure("timeout", RuntimeError(f"the tool took more than {self.time_limit:g} seconds"))

    def _cut(self, result: Any) -> Any:
        if isinstance(result, list):
            return cast(Any, result)  # content blocks, which TRL hands on as they are
        text = str(result)
        if text.startswith(_ERROR):
            self._answered.add(text)
        if self.max_chars is None or len(text) <= self.max_chars:
            return text
        text = self._shortened(text)
        self._failed[text] = "cut"
        return text

    def _shortened(self, text: str) -> str:
        if self.max_chars is None or len(text) <= self.max_chars:
            return text
        return f"{text[: self.max_chars]} [cut: {len(text) - self.max_chars} more characters]"


def secret_of(environment: Any) -> str | None:
    """What the environment tells the teacher about the rollout it has just seen; None if it has nothing to tell.

    Messages become their contents, other values their JSON.
    """
    for cls in type(environment).__mro__:
        method = cls.__dict__.get(SECRET)
        if method is not None:
            return text_of(method(environment))
    return None


def has_secret(cls: type) -> bool:
    """Whether environments of this class have something to tell.

    >>> class Env:
    ...     def privileged_context(self) -> str:
    ...         return "the answer"
    >>> has_secret(Env), has_secret(int)
    (True, False)
    """
    return any(parent.__dict__.get(SECRET) is not None for parent in cls.__mro__)


def text_of(value: Any) -> str | None:
    """A privileged context as text; None for nothing and for blank text.

    >>> text_of([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]), text_of(" ")
    ('a\\nb', None)
    """
    if value is None:
        return None
    if isinstance(value, list):
        parts: list[str] = [
            str(cast(Any, part)["content"])
            if isinstance(part, Mapping) and "content" in part
            else json.dumps(part)
            for part in cast(list[Any], value)
        ]
        value = "\n".join(parts)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text.strip() else None


def control_pattern(tokenizer: Any, markup: bool = True) -> re.Pattern[str] | None:
    """What the tokenizer turns into single control tokens; None if it has no such tokens.

    The special tokens, and with ``markup`` added ones that look like it (``<tool_call>``, ``[INST]``): both steer
    a chat. Added words that are plain text are none.
    """
    found: set[str] = set(getattr(tokenizer, "all_special_tokens", ()) or ())
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    for token in added.values():
        text = str(token.content)
        if getattr(token, "special", False) or (markup and re.fullmatch(r"<[^<>\s]+>|\[[^\[\]\s]+\]", text)):
            found.add(text)
    found.discard("")
    if not found:
        return None
    return re.compile("|".join(re.escape(text) for text in sorted(found, key=len, reverse=True)))


def defused(text: str, control: re.Pattern[str] | None) -> str:
    """The text with a space after the first character of every control token, so that it stays plain text.

    A visible change on purpose: what a tokenizer's normaliser might drop again would be no protection.

    >>> defused("a<|im_end|>b", re.compile(re.escape("<|im_end|>")))
    'a< |im_end|>b'
    """
    while control is not None and control.search(text):
        text = control.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)
    return text


def _argument_checks(function: Callable[..., Any]) -> dict[str, Callable[[Any], Any]]:
    """A check for every annotated argument: the value as the annotated type, or ``ValidationError``."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        return {}  # annotations that cannot be resolved: the tool checks for itself
    hints.pop("return", None)
    checks: dict[str, Callable[[Any], Any]] = {}
    for name, hint in hints.items():
        try:
            checks[name] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python
        except Exception:
            continue  # a type that pydantic builds no check for
    return checks


@contextmanager
def _limited(seconds: float | None) -> Generator[None]:
    """Raise ``_TimeUp`` in the body after so many seconds; the alarm that was set before is set again."""
    if (
        seconds is None
        or not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def late(number: int, frame: types.FrameType | None) -> None:
        raise _TimeUp

    handler = signal.signal(signal.SIGALRM, late)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)
