"""Whose tool calls TRL can parse: stock chat templates, their training variants, and no others."""

from importlib.resources import files
from typing import Any

import pytest
from trl.chat_template_utils import add_response_schema, parse_response

from gear_rl.arena import model as arena
from gear_rl.engines.trl.tools import parse_tool_calls

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "jim"}}\n</tool_call><|im_end|>'


@pytest.fixture
def tokenizer() -> Any:
    return arena.load(task="errands")[1]


def _called(tokenizer: Any) -> Any:
    prompt = tokenizer("<|im_start|>assistant\n")["input_ids"]
    return parse_response(tokenizer, tokenizer(CALL)["input_ids"], prefix=prompt).get("tool_calls")


def test_the_arena_gives_no_parser_and_trl_alone_would_refuse_the_template(tokenizer):
    assert getattr(tokenizer, "response_template", None) is None
    with pytest.raises(ValueError, match="Unrecognized chat template"):
        add_response_schema(tokenizer)


def test_trl_recognises_the_stock_template_that_ships_with_the_arena(tokenizer):
    tokenizer.chat_template = arena.chat_template("qwen3.jinja")
    add_response_schema(tokenizer)
    assert _called(tokenizer) == [
        {"type": "function", "function": {"name": "look", "arguments": {"at": "jim"}}}
    ]


def test_a_training_variant_is_parsed_as_its_stock_template(tokenizer):
    assert parse_tool_calls(tokenizer)
    assert tokenizer.chat_template == arena.chat_template()
    [call] = _called(tokenizer)
    assert call["function"] == {"name": "look", "arguments": {"at": "jim"}}


def test_a_parser_of_the_users_own_is_kept(tokenizer):
    tokenizer.response_template = {"own": True}
    assert parse_tool_calls(tokenizer)
    assert tokenizer.response_template == {"own": True}


@pytest.mark.parametrize("template", ["{{ messages }}", "cohere_training.jinja"])
def test_what_trl_cannot_parse_is_left_to_trl(tokenizer, template):
    if template.endswith(".jinja"):
        template = (files("trl") / "chat_templates" / template).read_text(encoding="utf-8")
    tokenizer.chat_template = template
    assert not parse_tool_calls(tokenizer)
    assert tokenizer.chat_template == template
    assert getattr(tokenizer, "response_template", None) is None
