"""The guard around tools and environments: typed arguments, a time limit, answers of bounded size.

Every failure is an answer that the model sees, counted by its kind. Knows no trainer.
"""

import asyncio
import inspect
import re
import signal
import threading
import types
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gear_rl.environments import (
    ANCHOR_STATES,
    PRIVILEGED_CONTEXT,
    RESERVED_METHODS,
    TOOL_FAILURES,
    TURN_REWARDS,
    is_blocks,
    texts_of,
)
from gear_rl.errors import InputError, error_text

_CALL_OPENERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=")
"""How chat formats begin a call."""
_ERROR = "{'error': "
"""How an engine's answer to a call that failed begins."""
_INSIDE: ContextVar[bool] = ContextVar("_INSIDE", default=False)
"""Whether a tool is being run: what it calls of its own environment is no call of the model's."""


class _TimeUp(BaseException):
    """Not an ``Exception``, so that a tool's own ``except Exception`` does not swallow it."""


class ToolGuard:
    """Wraps tools and environments, and reports afterwards what went wrong in which rollout.

    ``time_limit`` is in seconds per call and needs the main thread of a Unix system; a C function that never
    returns is not interrupted. ``max_chars`` bounds an answer. None switches a limit off. Only calls made while
    ``serving`` are guarded: ``reset``, reward functions and the tools themselves call the plain methods.

    >>> def double(x: int) -> int:
    ...     return 2 * x
    >>> guard = ToolGuard(time_limit=None)
    >>> with guard.serving():
    ...     guard.tool(double)(x="3")
    '6'
    >>> guard.failure_of({"role": "tool", "name": "triple", "content": ""}, tools=["double"])
    'unknown'
    """

    def __init__(self, time_limit: float | None = 30.0, max_chars: int | None = 20_000) -> None:
        self.time_limit, self.max_chars = time_limit, max_chars
        self.answers: dict[str, str | None] = {}
        """Kind of failure by answer in this batch; None for a tool's own answer that starts like an error."""
        self._classes: dict[type, type] = {}
        self._serving = False

    @contextmanager
    def serving(self) -> Generator[None]:
        """While the model's calls are carried out."""
        self._serving = True
        try:
            yield
        finally:
            self._serving = False

    def guard_options(self, options: dict[str, Any]) -> None:
        """Guard ``tools`` and ``environment_factory`` (one, or one for each name) among a trainer's options."""
        tools, factory = options.get("tools"), options.get("environment_factory")
        if tools:
            options["tools"] = [self.tool(tool) for tool in tools]
        if isinstance(factory, dict):
            options["environment_factory"] = {name: self.environment(f) for name, f in factory.items()}
        elif factory is not None:
            options["environment_factory"] = self.environment(factory)

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its signature and docstring, and the guard around it."""
        check, signature = _argument_checks(function), inspect.signature(function)

        def checked_arguments(own: tuple[Any, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
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
                if not self._serving or _INSIDE.get():
                    return await function(*own, **arguments)
                values, limit = checked_arguments(own, arguments), asyncio.timeout(self.time_limit)
                with self._failures(asyncio.CancelledError):
                    try:
                        async with limit:
                            return self._cut(await function(*own, **values))
                    except TimeoutError:
                        if limit.expired():
                            raise _TimeUp from None
                        raise  # the tool's own

            return guarded_async

        @wraps(function)
        def guarded_tool(*own: Any, **arguments: Any) -> Any:
            if not self._serving or _INSIDE.get():
                return function(*own, **arguments)
            values = checked_arguments(own, arguments)
            with self._failures(), _time_limit(self.time_limit):
                return self._cut(function(*own, **values))

        return guarded_tool

    def environment(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """A factory of the same environments with guarded tools, whose privileged context is no tool.

        ``isinstance`` holds. ``ValueError`` for a class that cannot be extended (a type written in C).
        """

        def make() -> Any:
            instance = factory()
            cls = type(instance)
            try:
                if cls not in self._classes:
                    self._classes[cls] = self._guarded_class(cls)
                # Engines list the tools of type(instance) and users test isinstance: only a subclass serves both.
                object.__setattr__(instance, "__class__", self._classes[cls])
            except Exception as error:
                raise ValueError(f"environment: {cls.__name__} cannot be guarded: {error}") from None
            return instance

        return make

    def _guarded_class(self, cls: type) -> type:
        body: dict[str, Any] = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__}
        for name, function in tool_functions(cls).items():
            static = isinstance(inspect.getattr_static(cls, name), staticmethod)
            body[name] = staticmethod(self.tool(function)) if static else self.tool(function)
        # TRL takes every function of the class for a tool, but no property; `value_of` reaches the context.
        for name in (TURN_REWARDS, ANCHOR_STATES):
            if inspect.isfunction(getattr(cls, name, None)):
                body[name] = property(inspect.getattr_static(cls, name).__get__)
        for name in ("reset", "get_reward"):
            if inspect.isfunction(method := inspect.getattr_static(cls, name, None)):
                body[name] = _reporting_method(method, f"environment: {cls.__name__}.{name}()")
        guarded = type(cls.__name__, (cls,), body)
        if hasattr(cls, PRIVILEGED_CONTEXT):
            setattr(guarded, PRIVILEGED_CONTEXT, None)  # pydantic would take it for a field in the body
        return guarded

    def report(
        self, messages: Any, last_turn: str, tools: Sequence[str], control: re.Pattern[str] | None
    ) -> dict[str, int]:
        """The number of calls of a completion, and of its failures by kind; kinds without any are left out.

        ``last_turn`` is what the model sampled last, special tokens included: a call there that could not be
        parsed ended the rollout.
        """
        if isinstance(messages, str):
            return {}
        counts: dict[str, int] = dict.fromkeys(("calls", *TOOL_FAILURES), 0)
        for message in messages:
            if message.get("role") == "tool":
                kind = self.failure_of(message, tools)
                if kind is not None:
                    counts[kind] += 1
                text = "\n".join(texts_of(message.get("content")))
                counts["control"] += bool(control is not None and control.search(text))
            elif message.get("role") == "assistant":
                counts["calls"] += len(message.get("tool_calls") or ())
        last: Mapping[str, Any] = messages[-1] if messages else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            counts["malformed"] = int(any(opener in last_turn for opener in _CALL_OPENERS))
        return {name: count for name, count in counts.items() if count}

    def failure_of(self, message: Mapping[str, Any], tools: Sequence[str]) -> str | None:
        """As which kind the call that this message of the batch answers failed; None if it did not."""
        text = "\n".join(texts_of(message.get("content")))
        if message.get("name") not in tools:
            return "unknown"
        if text.startswith(_ERROR) and text not in self.answers:
            return "arguments"  # refused before our guard saw them: no mapping at all
        return self.answers.get(text)

    @contextmanager
    def _failures(self, *passing: type[BaseException]) -> Generator[None]:
        """What is raised inside, but ``passing``, becomes an answer."""
        inside = _INSIDE.set(True)
        try:
            yield
        except _TimeUp:
            late = RuntimeError(f"the tool took more than {self.time_limit:g} seconds")
            raise self._failure("timeout", late) from None
        except (KeyboardInterrupt, *passing):
            raise
        except BaseException as error:  # SystemExit, and panics of libraries written in Rust
            raise self._failure("raised", error) from None
        finally:
            _INSIDE.reset(inside)

    def _failure(self, kind: str, error: BaseException) -> Exception:
        """The error to raise; the model is shown its text, which is cut to size too."""
        text = self._shortened(str(error) or type(error).__name__)
        self.answers[str({"error": text})] = kind
        return RuntimeError(text)

    def _cut(self, result: Any) -> Any:
        if is_blocks(result):
            blocks: list[Mapping[str, Any]] = result
            media = [block for block in blocks if block["type"] != "text"]
            if not media:
                result = "\n".join(texts_of(blocks))
            elif all(block.get(block["type"]) is not None for block in media):
                return blocks  # images, which TRL hands on as they are
        text = str(result)  # of other lists too: TRL would take their items for content blocks
        short = self._shortened(text)
        if short != text:
            self.answers[short] = "cut"
        elif text.startswith(_ERROR):
            self.answers.setdefault(text, None)
        return short

    def _shortened(self, text: str) -> str:
        if self.max_chars is None or len(text) <= self.max_chars:
            return text
        return f"{text[: self.max_chars]} [cut: {len(text) - self.max_chars} more characters]"


def _reporting_method(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method of the environment, whose errors are one line each."""
    signature = inspect.signature(method)

    @contextmanager
    def report_errors(own: tuple[Any, ...], row: Mapping[str, Any]) -> Generator[None]:
        try:
            signature.bind(*own, **row)
        except TypeError as error:
            given = ", ".join(row) or "no column"
            raise InputError(f"{name}: {error}; the row has {given}; end its arguments with **row") from None
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{name} raised {error_text(error)}") from error

    def checked_result(value: Any) -> Any:
        if method.__name__ == "get_reward" and value is not None:
            try:
                float(value + 0)
            except (TypeError, ValueError):
                raise InputError(f"{name} gave {value!r:.40}; return a number or None") from None
        return value

    @wraps(method)
    def call(*own: Any, **row: Any) -> Any:
        with report_errors(own, row):
            return checked_result(method(*own, **row))

    @wraps(method)
    async def call_later(*own: Any, **row: Any) -> Any:
        with report_errors(own, row):
            return checked_result(await method(*own, **row))

    return call_later if inspect.iscoroutinefunction(method) else call


def tool_functions(cls: type) -> dict[str, Callable[..., Any]]:
    """The functions of an environment's class that the model may call: the public ones that are not reserved."""
    members = dict(inspect.getmembers(cls, predicate=inspect.isfunction))
    return {name: f for name, f in members.items() if name[0] != "_" and name not in RESERVED_METHODS}


def _argument_checks(function: Callable[..., Any]) -> dict[str, Callable[[Any], Any]]:
    """A check for every annotated argument: the value as the annotated type, or ``ValidationError``."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        return {}  # annotations that cannot be resolved: the tool checks for itself
    hints.pop("return", None)
    checks: dict[str, Callable[[Any], Any]] = {}
    parameters = inspect.signature(function).parameters
    for name, hint in hints.items():
        optional = name in parameters and parameters[name].default is None
        # Models, data classes and typed dictionaries take no configuration but their own.
        for config in (ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True), None):
            with suppress(Exception):  # a type that pydantic builds no check for
                checks[name] = TypeAdapter(hint | None if optional else hint, config=config).validate_python
                break
    return checks


@contextmanager
def _time_limit(seconds: float | None) -> Generator[None]:
    """Raise ``_TimeUp`` in the body after so many seconds, and again after as many if the body swallows it."""
    on_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not on_main or not hasattr(signal, "setitimer"):
        yield
        return
    running = True

    def end_late_body(number: int, frame: types.FrameType | None) -> None:
        if running:
            raise _TimeUp

    handler = signal.signal(signal.SIGALRM, end_late_body)
    before = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        try:
            yield
        finally:
            running = False  # an alarm between here and the next lines must not stop them
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # None: a handler that was not set from Python cannot be set again from here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        signal.setitimer(signal.ITIMER_REAL, *before)
