"""The guard, call by call."""

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

from engines.desks import Place, Point, Store
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


def store(**limits: Any) -> tuple[ToolGuard, Store]:
    guard = ToolGuard(**limits)
    return guard, guard.environment(Store)()


def failure(guard: ToolGuard, tool: Any, **arguments: Any) -> tuple[str, dict[str, int]]:
    """What the model would be told, and what the report counts for it."""
    with guard.serving(), pytest.raises(RuntimeError) as caught:
        tool(**arguments)
    told = {"role": "tool", "name": tool.__name__, "content": str({"error": str(caught.value)})}
    return str(caught.value), guard.report([told], "", [tool.__name__], None)


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


def test_an_answer_of_just_the_right_size_is_not_cut():
    guard, shop = store(max_chars=4)
    with guard.serving():
        assert shop.echo(text="1234") == "1234"
        assert shop.echo(text="12345") == "1234 [cut: 1 more characters]"
    answers = [
        {"role": "tool", "name": "echo", "content": text}
        for text in ("1234", "1234 [cut: 1 more characters]")
    ]
    assert [guard.report([answer], "", ["echo"], None) for answer in answers] == [{}, {"cut": 1}]


def test_an_error_is_cut_and_never_empty():
    guard, shop = store(max_chars=6)
    assert failure(guard, shop.silent) == ("ValueE [cut: 4 more characters]", {"raised": 1})
    assert failure(guard, shop.find, key="0123456789")[0] == "'01234 [cut: 6 more characters]"


def test_what_is_no_exception_is_a_failure_too():
    guard, shop = store()
    assert failure(guard, shop.panic) == ("index out of range", {"raised": 1})

    def stop() -> str:
        raise KeyboardInterrupt

    with guard.serving(), pytest.raises(KeyboardInterrupt):
        guard.tool(stop)()


def test_what_looks_like_an_error_is_none_and_yesterdays_failure_is_forgotten():
    guard, shop = store()
    message = {"role": "tool", "name": "like_an_error", "content": str({"error": "no such drawer"})}
    with guard.serving():
        assert shop.like_an_error() == message["content"]
    assert guard.report([message], "", ["like_an_error"], None) == {}
    failure(guard, shop.fails)
    guard.begin()
    assert guard.report([message], "", ["like_an_error"], None) == {"arguments": 1}, "nobody answered it now"
    with guard.serving():
        shop.like_an_error()
    assert guard.report([message], "", ["like_an_error"], None) == {}, "and nobody raised it now"


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

    class Patient(Store):
        def hang(self) -> str:
            """Wait."""
            time.sleep(60)
            return ""

    def mine(number: int, frame: Any) -> None:
        raise AssertionError("this alarm was not due")

    guard = ToolGuard(time_limit=0.05)
    shop = guard.environment(Patient)()
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
    assert defused_message(named, control) == {
        "role": "tool",
        "name": "a< |im_end|>?",
        "content": "Tool a< |im_end|> not found.",
    }
    assert defused_message({"role": "tool", "name": None, "content": ""}, control)["name"] is None


def test_what_counts_as_a_control_token():
    class Added:
        def __init__(self, content: str, special: bool = False) -> None:
            self.content, self.special = content, special

    added = [
        Added("<tool_call>"),
        Added("[INST]"),
        Added("word"),
        Added("< a>"),
        Added("<a"),
        Added("<a<|b|>"),
    ]
    added += [Added("  ", special=True), Added("<s>", special=True), Added("<s><s>", special=True)]
    tokenizer = SimpleNamespace(all_special_tokens=["</s>"], added_tokens_decoder=dict(enumerate(added)))
    found = control_pattern(tokenizer)
    plain = control_pattern(tokenizer, markup=False)
    assert found is not None and plain is not None
    for text in ("<tool_call>", "[INST]"):
        assert found.fullmatch(text) and not plain.search(text)
    for text in ("<s>", "</s>"):
        assert found.fullmatch(text) and plain.fullmatch(text)
    for text in ("word", "< a>", "<a", "  "):
        assert not found.search(text)
    assert found.match("<s><s>")[0] == "<s><s>", "the longer token first"  # type: ignore[index]
    assert control_pattern(SimpleNamespace(all_special_tokens=[""])) is None


def test_the_secret_of_a_class_a_parent_and_a_slot():
    _, shop = store()
    assert context_text(value_of(shop, PRIVILEGED_CONTEXT)) == "of the class"
    assert not callable(shop.privileged_context)
    assert has_privileged_context(type(shop))
    assert context_text(value_of(object(), PRIVILEGED_CONTEXT)) is None
    assert [context_text(value) for value in (" ", "", None, 0, {"a": "é"}, [{"content": 1}])] == [
        None,
        None,
        None,
        "0",
        '{"a": "é"}',
        "1",
    ]


class Fields(BaseModel):
    seen: int = 0

    def look(self) -> int:
        """Look."""
        self.seen += 1
        return self.seen

    def privileged_context(self) -> str:
        return "of a model"


@dataclass(frozen=True)
class Frozen:
    seen: int = 0

    def look(self) -> int:
        """Look."""
        return self.seen + 1

    def privileged_context(self) -> str:
        return "of a frozen one"


@pytest.mark.parametrize("kind", [Fields, Frozen])
def test_environments_that_check_their_fields_are_guarded(kind):
    guard = ToolGuard()
    instance = guard.environment(kind)()
    assert isinstance(instance, kind)
    assert not callable(instance.privileged_context)
    assert context_text(value_of(instance, PRIVILEGED_CONTEXT)) == kind().privileged_context()
    with guard.serving():
        assert instance.look() == "1"
    with pytest.raises(ValueError, match="environment: int cannot be guarded"):
        guard.environment(lambda: 3)()


class Marked(Store):
    """Tells what its turns were worth, and where they began; uses both itself."""

    def reset(self, **row: Any) -> None:
        self.worth = [0.5, 1.0]

    def turn_rewards(self) -> list[float]:
        return self.worth

    @staticmethod
    def anchor_states() -> list[str]:
        return ["hall", "attic"]

    def get_reward(self) -> float:
        return sum(self.turn_rewards()) + len(self.anchor_states())


def listed_by_trl(instance: Any) -> list[str]:
    """The names that TRL takes for tools."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    return [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]


def test_what_an_environment_tells_of_its_turns_is_no_tool_of_the_models():
    plain, guarded = Marked(), ToolGuard().environment(Marked)()
    assert {"turn_rewards", "anchor_states"} <= {*listed_by_trl(plain)}, "TRL would offer them"
    hidden = {"turn_rewards", "anchor_states", "privileged_context"}
    assert {*listed_by_trl(plain)} - {*listed_by_trl(guarded)} == hidden
    for instance in (plain, guarded):
        instance.reset()
        assert value_of(instance, TURN_REWARDS) == [0.5, 1.0]
        assert value_of(instance, ANCHOR_STATES) == ["hall", "attic"]
        assert instance.get_reward() == 3.5, "its own code may still call them"
    guarded.worth = [7.0]
    assert guarded.turn_rewards() == [7.0], "of this instance"
    assert value_of(object(), TURN_REWARDS) is None and value_of(Store(), ANCHOR_STATES) is None


def test_a_child_of_a_class_with_them_hides_them_too():
    class Child(Marked):
        def turn_rewards(self) -> list[float]:
            return [9.0, *super().turn_rewards()]

    guarded = ToolGuard().environment(Child)()
    guarded.reset()
    assert value_of(guarded, TURN_REWARDS) == [9.0, 0.5, 1.0]
    assert value_of(guarded, ANCHOR_STATES) == ["hall", "attic"]
    assert not {"turn_rewards", "anchor_states"} & {*listed_by_trl(guarded)}


def test_a_field_of_that_name_is_no_method_and_is_left_alone():
    class Counting(Store):
        turn_rewards: tuple[float, ...] = ()

        @property
        def anchor_states(self) -> list[str]:
            return []

    guarded = ToolGuard().environment(Counting)()
    guarded.turn_rewards += (1.0,)
    assert guarded.turn_rewards == (1.0,) and guarded.anchor_states == []
    assert value_of(guarded, TURN_REWARDS) is None and value_of(guarded, ANCHOR_STATES) is None


@pytest.mark.parametrize("kind", [Fields, Frozen])
def test_environments_that_check_their_fields_tell_of_their_turns(kind):
    child = type("Child", (kind,), {"turn_rewards": lambda self: [float(self.look())]})
    guarded = ToolGuard().environment(child)()
    assert "turn_rewards" not in listed_by_trl(guarded) and "look" in listed_by_trl(guarded)
    assert value_of(guarded, TURN_REWARDS) == [1.0]


def test_what_failed_is_read_off_one_answer():
    guard, shop = store(max_chars=8)
    with guard.serving():
        with pytest.raises(RuntimeError) as raised:
            shop.find(key="k")
        with pytest.raises(RuntimeError) as refused:
            shop.find(key=3, other=4)
        cut, whole, like = shop.echo(text="123456789"), shop.echo(text="12345678"), str({"error": "x"})
    errors = [str({"error": str(caught.value)}) for caught in (raised, refused)]
    blocks = [{"type": "text", "text": cut}]
    answers = [whole, *errors, cut, blocks, like, None]
    kinds = [guard.failure_of({"role": "tool", "name": "t", "content": a}, ["t"]) for a in answers]
    assert kinds == [None, "raised", "arguments", "cut", "cut", "arguments", None]
    assert guard.failure_of({"role": "tool", "name": "other", "content": whole}, ["t"]) == "unknown"
