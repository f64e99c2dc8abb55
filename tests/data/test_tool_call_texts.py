"""What is read as a tool call, text by text, with the reward and the count of malformed calls that are right."""

import json

import pytest

from gear_rl.data.rewards.tool_calls import expected_calls, made_calls, tool_call_reward

ADD = [{"name": "add", "arguments": {"a": 1, "b": 2}}]
TWO = [*ADD, {"name": "say", "arguments": {"text": "x\ny"}}]
PING = [{"name": "ping", "arguments": {}}]
RIGHT = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
WRONG = '{"name": "add", "arguments": {"a": 9, "b": 9}}'
CALL, SLIP = f"<tool_call>\n{RIGHT}\n</tool_call>", f"<tool_call>\n{WRONG}\n</tool_call>"
SAY = '{"name": "say", "arguments": {"text": "x\\ny"}}'
XML = "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>"
BESIDE = 5 / 9  # the right call beside one too many: names 2/3, arguments 1/2, order 1/2


def message(**call):
    return [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}]


TEXTS = {  # name: (completion, expected calls, reward, malformed)
    # Hermes and Qwen
    "hermes": (CALL, ADD, 1, 0),
    "hermes behind prose": (f"I add.\n{CALL}", ADD, 1, 0),
    "hermes without its end": (f"<tool_call>{RIGHT}", ADD, 1, 0),
    "two blocks": (f"{CALL}<tool_call>{SAY}</tool_call>", TWO, 1, 0),
    "two blocks without an end": (f"<tool_call>{RIGHT}\n<tool_call>{SAY}", TWO, 1, 0),
    "a list in one block": (f"<tool_call>[{RIGHT}, {SAY}]</tool_call>", TWO, 1, 0),
    "an empty list": ("<tool_call>[]</tool_call>", ADD, 0, 0),
    "two objects in one block": (f"<tool_call>\n{RIGHT}\n{SAY}\n</tool_call>", TWO, 1, 0),
    "a literal newline": (
        f'{CALL}<tool_call>{{"name": "say", "arguments": {{"text": "x\ny"}}}}</tool_call>', TWO, 1, 0
    ),
    "the end tag in a text": (
        '<tool_call>{"name": "say", "arguments": {"text": "</tool_call>"}}</tool_call>',
        [{"name": "say", "arguments": {"text": "</tool_call>"}}], 1, 0,
    ),
    "the tag in a text": (
        '<tool_call>{"name": "say", "arguments": {"text": "a <tool_call> b"}}</tool_call>',
        [{"name": "say", "arguments": {"text": "a <tool_call> b"}}], 1, 0,
    ),
    "a brace too many": (f"<tool_call>{RIGHT}}}</tool_call>", ADD, 0, 1),
    "prose in the block": (f"<tool_call>{RIGHT} please</tool_call>", ADD, 0, 1),
    "code": ("<tool_call>add(1, 2)</tool_call>", ADD, 0, 1),
    "cut off": ('<tool_call>{"name": "add", "argu', ADD, 0, 1),
    "broken, then right": (f"<tool_call>{RIGHT[:-1]}</tool_call>{CALL}", ADD, BESIDE, 1),
    "no call": ("The sum is 3.", ADD, 0, 0),
    "no call where none is wanted": ("The sum is 3.", [], 1, 0),
    "a call where none is wanted": (CALL, [], 0, 0),
    # Prose about the tag
    "the tag in prose, then a call": (f"I answer in <tool_call> tags. {CALL}", ADD, 1, 0),
    "the tag in prose alone": ("I need no <tool_call> here.", [], 1, 0),
    # Reasoning
    "only in the thinking": (f"<think>{CALL}</think>The sum is 3.", ADD, 0, 0),
    "a broken draft in the thinking": (f"<think><tool_call>{{</think>{CALL}", ADD, 1, 0),
    # Bare JSON (Llama 3), Mistral
    "bare": (RIGHT, ADD, 1, 0),
    "bare with parameters": (RIGHT.replace("arguments", "parameters"), ADD, 1, 0),
    "bare list": (f"[{RIGHT}, {SAY}]", TWO, 1, 0),
    "bare, in a fence": (f"```json\n{RIGHT}\n```", ADD, 1, 0),
    "bare, two objects": (f"{RIGHT}; {SAY}", TWO, 1, 0),
    "bare, cut off": ('{"name": "add", "arguments": {"a": 1', ADD, 0, 1),
    "bare, a brace too many": (RIGHT + "}", ADD, 0, 1),
    "an object that is no call": ('{"name": "Ann", "age": 3}', [], 1, 0),
    "a number in brackets": ("[3]", [], 1, 0),
    "python tag": ('<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}', ADD, 1, 0),
    "python tag with code": ("<|python_tag|>add(1, 2)", ADD, 0, 1),
    "mistral": (f"[TOOL_CALLS] [{RIGHT}]", ADD, 1, 0),
    "mistral, two": (f"[TOOL_CALLS][{RIGHT}, {SAY}]", TWO, 1, 0),
    "mistral, broken": (f"[TOOL_CALLS] [{RIGHT}", ADD, 0, 1),
    "mistral with arguments apart": ('[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', ADD, 1, 0),
    "mistral with arguments behind": ('[TOOL_CALLS]add{"a": 1, "b": 2}', ADD, 1, 0),
    "mistral with two apart": (
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]say[ARGS]{"text": "x\\ny"}', TWO, 1, 0
    ),
    # Qwen3-Coder and Qwen3.5
    "xml": (f"<tool_call>\n{XML}\n</tool_call>", ADD, 1, 0),
    "xml without the block": (XML, ADD, 1, 0),
    "xml without arguments": ("<tool_call>\n<function=ping>\n</function>\n</tool_call>", PING, 1, 0),
    "xml with lines in a text": (
        f"{XML}\n<function=say>\n<parameter=text>\nx\ny\n</parameter>\n</function>", TWO, 1, 0
    ),
    "xml with a number for a text": (
        "<function=zip>\n<parameter=code>\n75001\n</parameter>\n</function>",
        [{"name": "zip", "arguments": {"code": "75001"}}], 1, 0,
    ),
    "xml with true, null and a list": (
        "<function=f>\n<parameter=x>\nTrue\n</parameter>\n<parameter=y>\nNone\n</parameter>\n"
        '<parameter=z>\n[1, {"k": 2}]\n</parameter>\n</function>',
        '[{"name": "f", "arguments": {"x": true, "y": null, "z": [1, {"k": 2}]}}]', 1, 0,
    ),
    "xml with text for null": (
        "<function=find>\n<parameter=city>\nParis\n</parameter>\n</function>",
        '[{"name": "find", "arguments": {"city": null}}]', 2 / 3, 0,
    ),
    "xml with text for other text in xml": (
        "<function=find>\n<parameter=city>\nParis\n</parameter>\n</function>",
        "<function=find>\n<parameter=city>\nRome\n</parameter>\n</function>", 2 / 3, 0,
    ),
    "the tag in an xml text": (
        "<function=f>\n<parameter=x>\na <tool_call>{ b\n</parameter>\n</function>",
        [{"name": "f", "arguments": {"x": "a <tool_call>{ b"}}], 1, 0,
    ),
    "xml, cut off": ("<tool_call>\n<function=add>\n<parameter=a>\n1\n", ADD, 0, 1),
    # The spelling of one call
    "no arguments": ('<tool_call>{"name": "ping"}</tool_call>', PING, 1, 0),
    "arguments as text": (
        f'<tool_call>{{"name": "add", "arguments": {json.dumps(json.dumps(ADD[0]["arguments"]))}}}</tool_call>',
        ADD, 1, 0,
    ),
    "arguments that are a number": ('<tool_call>{"name": "ping", "arguments": 3}</tool_call>', PING, 0, 1),
    "args": (CALL.replace("arguments", "args"), ADD, 1, 0),
    "another word for arguments": (CALL.replace("arguments", "kwargs"), ADD, 0, 1),
    "a function inside": (f'<tool_call>{{"type": "function", "function": {RIGHT}}}</tool_call>', ADD, 1, 0),
    "a function's name": (CALL.replace('"name"', '"function"'), ADD, 1, 0),
    "no name": ('<tool_call>{"arguments": {"a": 1}}</tool_call>', ADD, 0, 1),
    # Parsed by the engine
    "message": (message(**ADD[0]), ADD, 1, 0),
    "message with reasoning apart": ([{**message(**ADD[0])[0], "reasoning_content": SLIP}], ADD, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_reward_of_a_text(name: str):
    completion, calls, reward, malformed = TEXTS[name]
    metrics = {}
    assert tool_call_reward([completion], calls=[calls], log_metric=metrics.__setitem__) == [
        pytest.approx(reward)
    ]
    assert metrics["tool_call_reward/malformed"] == malformed


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (CALL, 0),  # the thinking never ends
        (f"add?</think>{CALL}", 1),
        (f"{SLIP}</think>{CALL}", 1),
        (f"{CALL}</think>3", 0),
        (message(**ADD[0]), 1),
        ([{"role": "assistant", "reasoning_content": "add?", "content": CALL}], 1),  # parsed by the engine
    ],
)
def test_a_prompt_that_opens_the_thinking(completion, reward):
    assert tool_call_reward([completion], calls=[ADD], prompt_end=["<think>\n"]) == [reward]


@pytest.mark.parametrize("word", ["arguments", "parameters", "args", "input"])
def test_expected_calls_in_each_word_and_format(word):
    calls = [{"name": "add", word: {"a": 1, "b": 2}}]
    for value in (
        calls,
        json.dumps(calls),
        [json.dumps(calls[0])],
        f"<tool_call>{json.dumps(calls[0])}",
        XML,
    ):
        assert tool_call_reward([CALL, "<tool_call>{}"], calls=[value] * 2) == [1, 0]


@pytest.mark.parametrize(
    "value", ["find(1)", "3", "", '{"name": "Ann"', "<tool_call>{</tool_call>", [[RIGHT]]]
)
def test_expected_calls_that_cannot_be_read(value):
    assert expected_calls(value) is None


def test_a_long_broken_text_is_read_at_once():
    """No time grows with the square of the length."""
    for piece in (
        "<tool_call>",
        "<tool_call>{",
        "[",
        "<function=f>",
        "[TOOL_CALLS]",
        "<function=f><parameter=a>",
    ):
        assert not any(made_calls(piece * 5_000))
    for start in ("", "```json", "<function=f>", "<tool_call>"):
        assert not any(made_calls(f"{start}{' ' * 20_000}x"))
