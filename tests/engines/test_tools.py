"""The guard around tools and environments, call by call."""

import asyncio
import inspect
import re
import signal
import time
from typing import Any

import pytest

from gear_rl.credit.contexts import context_text
from gear_rl.credit.control_tokens import defused_message
from gear_rl.engines.tools import ToolGuard
from gear_rl.environments import (
    ANCHOR_STATES,
    PRIVILEGED_CONTEXT,
    TURN_REWARDS,
    value_of,
)
from gear_rl.errors import InputError


class Panic(BaseException):
    """As libraries written in Rust raise it."""


class Store:
    """Tools that use each other, and answer other things than text."""

    def reset(self, **row: Any) -> None:
        self.rows = self.names()

    def names(self) -> list[str]:
        return ["a", "b"]

    def count(self) -> int:
        return len(self.names()) + 1

    def find(self, key: str) -> str:
        raise KeyError(key)

    def search(self, key: str) -> str:
        try:
            return self.find(key)
        except KeyError:
            return "nothing there"

    def stubborn(self) -> str:
        """Swallow the alarm, three times."""
        stopped = 0
        for _ in range(3):
            try:
                time.sleep(5)
            except BaseException:
                stopped += 1
        return f"stopped {stopped} times"

    def hang(self) -> str:
        time.sleep(60)
        return ""

    def panic(self) -> str:
        raise Panic("index out of range")

    def silent(self) -> str:
        raise ValueError

    def get_reward(self) -> float:
        return float(len(self.names()) + self.count())

    @staticmethod
    def privileged_context() -> str:
        return "of the class"


def store(**limits: Any) -> tuple[ToolGuard, Store]:
    guard = ToolGuard(**limits)
    return guard, guard.environment(Store)()


def failure(guard: ToolGuard, tool: Any, **arguments: Any) -> tuple[str, dict[str, int]]:
    """What the model is shown, and what the report counts for it."""
    with guard.serving(), pytest.raises(RuntimeError) as caught:
        tool(**arguments)
    answer = {"role": "tool", "name": tool.__name__, "content": str({"error": str(caught.value)})}
    return str(caught.value), guard.report([answer], "", [tool.__name__], None)


def test_only_the_models_own_calls_are_guarded():
    guard, shop = store(max_chars=20)
    shop.reset()
    assert shop.rows == ["a", "b"], "reset() gets what the method returns"
    assert shop.get_reward() == 5.0
    with pytest.raises(KeyError):
        shop.find("k")
    with guard.serving():
        assert shop.count() == "3", "tools use each other's values, not the texts for the model"
        assert shop.search(key="k") == "nothing there", "and each other's exceptions"
        with pytest.raises(RuntimeError, match="'k'"):
            shop.find(key="k")
        assert shop.count() == "3", "a failure leaves the guard as it was"


@pytest.mark.parametrize(
    "hits",
    [
        [{"type": "page", "title": "a"}, {"type": "page", "title": "b"}],
        [{"type": "image", "url": "u", "title": "a"}],
        [{"type": "image"}],
        [{"type": "text", "text": None}],
        [{"type": "text", "text": "a"}, {"type": "page"}],
    ],
)
def test_search_hits_with_a_type_are_text(hits):
    guard = ToolGuard()
    with guard.serving():
        assert guard.tool(lambda: hits)() == str(hits)


def test_arguments_are_taken_where_the_tool_takes_them():
    def find(code: str, limit: int = None, tags: list[str] = (), exact: bool = None) -> str:  # noqa: RUF013
        return f"{code!r} {limit!r} {tags!r} {exact!r}"

    guard = ToolGuard()
    tool = guard.tool(find)
    with guard.serving():
        assert tool(code=12345, limit=None, tags=[1, "a"], exact=None) == "'12345' None ['1', 'a'] None"
        for unusable in (lambda x=None: x, lambda x: x):
            unusable.__annotations__ = {"x": any}
            assert guard.tool(unusable)(x=[1, 2]) == "[1, 2]"
    for wrong in ({"code": None}, {"code": "a", "limit": "many"}, {"code": ["a"]}):
        assert failure(guard, tool, **wrong)[1] == {"arguments": 1}


def test_lists_are_text_unless_they_are_content_blocks():
    guard = ToolGuard()
    image = [{"type": "image", "image": object()}, {"type": "text", "text": "a<e>"}]
    with guard.serving():
        assert guard.tool(lambda: ["a", "b"])() == "['a', 'b']"
        assert guard.tool(lambda: image)() is image
    control = re.compile("<e>")
    message = {"role": "tool", "name": "look", "content": image}
    assert defused_message(message, control)["content"] == [image[0], {"type": "text", "text": "a< e>"}]
    assert image[1]["text"] == "a<e>"
    assert guard.report([message], "", ["look"], control) == {"control": 1}


def test_an_error_is_cut_and_never_empty_and_a_panic_is_one_too():
    guard, shop = store(max_chars=6)
    assert failure(guard, shop.silent) == ("ValueE [cut: 4 more characters]", {"raised": 1})
    assert failure(guard, shop.panic) == ("index  [cut: 12 more characters]", {"raised": 1})

    def stop() -> str:
        raise KeyboardInterrupt

    with guard.serving(), pytest.raises(KeyboardInterrupt):
        guard.tool(stop)()


@pytest.mark.parametrize("tool", ["stubborn", "hang"])
def test_the_alarm_is_as_before_whatever_the_tool_did(tool):
    """Also one that swallows the first alarm is stopped by the next."""

    def mine(number: int, frame: Any) -> None:
        raise AssertionError("this alarm was not due")

    guard, shop = store(time_limit=0.05)
    handler = signal.signal(signal.SIGALRM, mine)
    timer = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with guard.serving():
            try:
                assert getattr(shop, tool)() == "stopped 3 times"
            except RuntimeError as error:
                assert "more than 0.05" in str(error) and tool == "hang"
        assert signal.getsignal(signal.SIGALRM) is mine
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def test_a_timeout_of_an_async_tools_own_is_not_the_limits():
    async def fetch(seconds: float) -> list[str]:
        if seconds < 0:
            raise TimeoutError("the server did not answer")
        await asyncio.sleep(seconds)
        return ["page"]

    guard = ToolGuard(time_limit=0.05)
    tool = guard.tool(fetch)

    with guard.serving():
        assert asyncio.run(tool(seconds=0.0)) == "['page']"
        for seconds, message in ((-1.0, "the server did not answer"), (60.0, "took more than 0.05 seconds")):
            with pytest.raises(RuntimeError, match=message):
                asyncio.run(tool(seconds=seconds))
    assert asyncio.run(tool(seconds=0.0)) == ["page"], "outside of a rollout nothing is changed"


# --- environments -----------------------------------------------------------------------------------------------


class Marked(Store):
    """Has values and states of its turns; uses both itself."""

    def reset(self, **row: Any) -> None:
        self.worth = [0.5, 1.0]

    def turn_rewards(self) -> list[float]:
        return self.worth

    @staticmethod
    def anchor_states() -> list[str]:
        return ["hall", "attic"]

    def get_reward(self) -> float:
        return sum(self.turn_rewards()) + len(self.anchor_states())


def tools_of_trl(instance: Any) -> set[str]:
    """The names that TRL takes for tools."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    return {name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")}


def test_an_environments_values_of_its_turns_are_no_tools_of_the_model():
    hidden, plain, guarded = {TURN_REWARDS, ANCHOR_STATES}, Marked(), ToolGuard().environment(Marked)()
    assert hidden <= tools_of_trl(plain), "TRL would offer them"
    assert tools_of_trl(plain) - tools_of_trl(guarded) == {*hidden, PRIVILEGED_CONTEXT}
    for instance in (plain, guarded):
        instance.reset()
        assert value_of(instance, TURN_REWARDS) == [0.5, 1.0]
        assert value_of(instance, ANCHOR_STATES) == ["hall", "attic"]
        assert instance.get_reward() == 3.5, "its own code may still call them"
    assert context_text(value_of(guarded, PRIVILEGED_CONTEXT)) == "of the class"


class Narrow:
    """Takes one column; its reward is what the test sets."""

    reward: Any = 1.0

    def reset(self, code: int) -> None:
        if code < 0:
            raise LookupError("no such vault")

    def get_reward(self) -> Any:
        if self.reward == "raise":
            raise LookupError("never opened")
        return self.reward


class NarrowLater(Narrow):
    async def get_reward(self) -> Any:
        return super().get_reward()


@pytest.mark.parametrize("kind", [Narrow, NarrowLater])
def test_an_environments_faults_are_one_line(kind):
    environment, name = ToolGuard().environment(kind)(), f"environment: {kind.__name__}"

    def reward_of(value: Any) -> Any:
        environment.reward = value
        result = environment.get_reward()
        return asyncio.run(result) if inspect.isawaitable(result) else result

    environment.reset(code=1)
    assert [reward_of(value) for value in (1.0, None, True)] == [1.0, None, True]
    with pytest.raises(
        InputError, match=r"reset\(\): .*'prompt'; the row has prompt, code; end its arguments with \*\*row"
    ):
        environment.reset(prompt="a", code=1)
    with pytest.raises(
        InputError, match=r"reset\(\): missing a required argument: 'code'; the row has no column"
    ):
        environment.reset()
    with pytest.raises(
        InputError, match=r"reset\(\) raised LookupError: no such vault \(test_tools.py, line"
    ):
        environment.reset(code=-1)
    for value in ((1.0, "why"), "1", [1.0], {"reward": 1}):
        with pytest.raises(
            InputError, match=re.escape(f"{name}.get_reward() gave {value!r}; return a number or None")
        ):
            reward_of(value)
    with pytest.raises(InputError, match=rf"{name}.get_reward\(\) raised LookupError: never opened"):
        reward_of("raise")
