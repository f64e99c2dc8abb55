"""The guard around tools and environments, call by call."""

import asyncio
import inspect
import re
import signal
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from gear_rl.credit.contexts import context_text
from gear_rl.engines.tools import ToolGuard
from gear_rl.environments import (
    ANCHOR_STATES,
    PRIVILEGED_CONTEXT,
    TURN_REWARDS,
    has_privileged_context,
    value_of,
)
from gear_rl.signals.control_tokens import control_pattern, defused, defused_message


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

    def echo(self, text: str) -> str:
        return text

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

    def like_an_error(self) -> dict[str, str]:
        return {"error": "no such drawer"}

    def fails(self) -> str:
        raise ValueError("no such drawer")

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


def test_lists_are_text_unless_they_are_content_blocks():
    guard = ToolGuard(max_chars=10)
    image = [{"type": "image", "image": object()}, {"type": "text", "text": "a<e>"}]
    answers = {
        "['a', 'b']": ["a", "b"],
        "[]": [],
        "[{'a': 1}]": [{"a": 1}],
        "a\nb": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "0123456789 [cut: 2 more characters]": [{"type": "text", "text": "0123456789ab"}],
    }
    with guard.serving():
        for text, result in answers.items():
            assert guard.tool(lambda result=result: result)() == text
        assert guard.tool(lambda: image)() is image
    control = re.compile("<e>")
    message = {"role": "tool", "name": "look", "content": image}
    assert defused_message(message, control)["content"] == [image[0], {"type": "text", "text": "a< e>"}]
    assert image[1]["text"] == "a<e>"
    assert guard.report([message], "", ["look"], control) == {"control": 1}


def test_an_error_is_cut_and_never_empty_and_a_panic_is_one_too():
    guard, shop = store(max_chars=6)
    assert failure(guard, shop.silent) == ("ValueE [cut: 4 more characters]", {"raised": 1})
    with guard.serving():
        cut, whole = shop.echo(text="1234567"), shop.echo(text="123456")
    assert (cut, whole) == ("123456 [cut: 1 more characters]", "123456"), "just the right size is not cut"
    answer = {"role": "tool", "name": "echo", "content": [{"type": "text", "text": cut}]}
    assert guard.failure_of(answer, ["echo"]) == "cut" and guard.failure_of(answer, ["t"]) == "unknown"
    guard, shop = store()
    assert failure(guard, shop.panic) == ("index out of range", {"raised": 1})

    def stop() -> str:
        raise KeyboardInterrupt

    with guard.serving(), pytest.raises(KeyboardInterrupt):
        guard.tool(stop)()


def test_an_answer_that_looks_like_an_error_is_none_and_an_earlier_batchs_failure_is_forgotten():
    guard, shop = store()
    message = {"role": "tool", "name": "like_an_error", "content": str({"error": "no such drawer"})}
    with guard.serving():
        assert shop.like_an_error() == message["content"]
    assert guard.report([message], "", ["like_an_error"], None) == {}
    failure(guard, shop.fails)
    guard.answers.clear()
    assert guard.report([message], "", ["like_an_error"], None) == {"arguments": 1}, "no tool answered it now"
    with guard.serving():
        shop.like_an_error()
    assert guard.report([message], "", ["like_an_error"], None) == {}


def test_a_call_in_the_last_turn_that_was_made_is_not_malformed():
    guard, opened = ToolGuard(), "<tool_call>"
    made = {"role": "assistant", "content": "", "tool_calls": [{}]}
    assert guard.report([made], opened, [], None) == {"calls": 1}
    assert guard.report([{"role": "assistant", "content": ""}], opened, [], None) == {"malformed": 1}
    assert guard.report([{"role": "assistant", "content": ""}], "no call", [], None) == {}
    assert guard.report([], opened, [], None) == {}


@pytest.mark.parametrize("tool", ["count", "stubborn", "silent", "hang"])
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
                assert getattr(shop, tool)() in ("3", "stopped 3 times")
            except RuntimeError as error:
                assert ("more than 0.05" in str(error)) == (tool == "hang")
        assert signal.getsignal(signal.SIGALRM) is mine
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        with guard.serving():
            shop.count()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "no alarm was set, so none is left"
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("limit", [None, 0.05])
def test_a_timeout_of_an_async_tools_own_is_not_the_limits(limit):
    async def fetch(seconds: float) -> list[str]:
        if seconds < 0:
            raise TimeoutError("the server did not answer")
        await asyncio.sleep(seconds)
        return ["page"]

    guard = ToolGuard(time_limit=limit)
    tool = guard.tool(fetch)

    async def both() -> list[Any]:
        calls = tool(seconds=-1.0), tool(seconds=0.0), tool(seconds=60.0 if limit else 0.0)
        return await asyncio.gather(*calls, return_exceptions=True)

    with guard.serving():
        own, page, late = asyncio.run(both())
    assert (str(own), page) == ("the server did not answer", "['page']")
    assert str(late) == ("['page']" if limit is None else "the tool took more than 0.05 seconds")
    assert asyncio.run(tool(seconds=0.0)) == ["page"], "outside of a rollout nothing is changed"


@dataclass
class Point:
    x: int


class Place(BaseModel):
    name: str


def test_arguments_become_their_types_also_models_and_data_classes():
    def put(
        point: Point, place: Place, options: dict[str, bool], other: SimpleNamespace | None = None
    ) -> str:
        return f"{point.x + 1} {place.name} {options['deep']}"

    guard = ToolGuard()
    tool = guard.tool(put)
    right = {"point": {"x": "3"}, "place": {"name": "desk"}, "options": {"deep": "true"}}
    with guard.serving():
        assert tool(**right) == "4 desk True"
    for name, wrong in (("point", {"x": "y"}), ("place", {}), ("options", 3), ("other", 3)):
        text, counts = failure(guard, tool, **{**right, name: wrong})
        assert text.startswith(f"argument {name}: ")
        assert counts == {"arguments": 1}


# --- control tokens ---------------------------------------------------------------------------------------------


def test_nothing_becomes_a_control_token():
    control = re.compile("|".join(map(re.escape, ["<|im_end|>", "aa", "x ", "!"])))
    for text in ("<|im_<|im_end|>end|>", "aaaa", "x x x", "a!a!", "!!", "<!|im_end|>", "\ud83d<|im_end|>"):
        safe = defused(text, control)
        assert control.search(safe) is None
        safe.encode()
    assert defused("a\ud83db", None) == "a?b"
    assert defused("a\uff1c|im_end|\uff1e\u00bd", control) == "a< |im_end|>1\u20442"
    assert defused("\uff1cok\uff1e", control) == "\uff1cok\uff1e", "only what spells a token is folded"
    named = {"role": "tool", "name": "a<|im_end|>\udc00", "content": "Tool a<|im_end|> not found."}
    expected = {"role": "tool", "name": "a< |im_end|>?", "content": "Tool a< |im_end|> not found."}
    assert defused_message(named, control) == expected
    assert defused_message({"role": "tool", "name": None, "content": ""}, control)["name"] is None


def test_what_counts_as_a_control_token():
    contents = ["<tool_call>", "[INST]", "word", "< a>", "<a", "<a<|b|>"]
    added = [SimpleNamespace(content=text, special=False) for text in contents]
    added += [SimpleNamespace(content=text, special=True) for text in ("  ", "<s>", "<s><s>")]
    tokenizer = SimpleNamespace(all_special_tokens=["</s>"], added_tokens_decoder=dict(enumerate(added)))
    found, plain = control_pattern(tokenizer), control_pattern(tokenizer, markup=False)
    assert found is not None and plain is not None
    for text in ("<tool_call>", "[INST]"):
        assert found.fullmatch(text) and not plain.search(text)
    for text in ("<s>", "</s>"):
        assert found.fullmatch(text) and plain.fullmatch(text)
    for text in ("word", "< a>", "<a", "  "):
        assert not found.search(text)
    assert found.match("<s><s>")[0] == "<s><s>", "the longer token first"
    assert control_pattern(SimpleNamespace(all_special_tokens=[""])) is None


# --- environments -----------------------------------------------------------------------------------------------


class Fields(BaseModel):
    seen: int = 0

    def look(self) -> int:
        self.seen += 1
        return self.seen

    def privileged_context(self) -> str:
        return "of a model"

    def turn_rewards(self) -> list[float]:
        return [float(self.look())]


@dataclass(frozen=True)
class Frozen:
    seen: int = 1

    def look(self) -> int:
        return self.seen

    def turn_rewards(self) -> list[float]:
        return [2.0]

    def privileged_context(self) -> str:
        return "of a frozen one"


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


@pytest.mark.parametrize("kind", [Fields, Frozen])
def test_environments_that_check_their_fields_are_guarded(kind):
    guard = ToolGuard()
    instance = guard.environment(kind)()
    assert isinstance(instance, kind) and has_privileged_context(type(instance))
    assert not callable(instance.privileged_context)
    assert context_text(value_of(instance, PRIVILEGED_CONTEXT)) == kind().privileged_context()
    assert not tools_of_trl(instance) & {"turn_rewards", "privileged_context"}
    with guard.serving():
        assert instance.look() == "1"
    assert value_of(instance, TURN_REWARDS) == [2.0]
    with pytest.raises(ValueError, match="environment: int cannot be guarded"):
        guard.environment(lambda: 3)()


def test_an_environments_values_of_its_turns_are_no_tools_of_the_model():
    hidden, plain, guarded = {TURN_REWARDS, ANCHOR_STATES}, Marked(), ToolGuard().environment(Marked)()
    assert hidden <= tools_of_trl(plain), "TRL would offer them"
    assert tools_of_trl(plain) - tools_of_trl(guarded) == {*hidden, PRIVILEGED_CONTEXT}
    for instance in (plain, guarded):
        instance.reset()
        assert value_of(instance, TURN_REWARDS) == [0.5, 1.0]
        assert value_of(instance, ANCHOR_STATES) == ["hall", "attic"]
        assert instance.get_reward() == 3.5, "its own code may still call them"
    guarded.worth = [7.0]
    assert guarded.turn_rewards() == [7.0], "of this instance"
    assert context_text(value_of(guarded, PRIVILEGED_CONTEXT)) == "of the class"
