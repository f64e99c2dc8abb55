"""Tokens of an agent's completion: no id that a trainer would make differently."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gear_rl.arena import model
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.task import TEMPLATE, Completion, Reference

TOOLS = [ErrandsEnv().send, ErrandsEnv().wait]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return model.load(task="errands")[1]


def _messages(completion: Completion) -> list[dict[str, Any]]:
    """The completion's messages: calls of the assistant, answers of the tools, the last word."""
    messages: list[dict[str, Any]] = []
    for call, answer in zip(completion[:-1:2], completion[1::2], strict=True):
        function = json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        calls = [{"type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "tool", "name": function["name"], "content": answer})
    return [*messages, {"role": "assistant", "content": completion[-1]}]


def _rendered(tokenizer: Any, messages: list[dict[str, Any]], **settings: Any) -> list[int]:
    settings = {"tools": TOOLS, "return_dict": False, **model.CHAT_TEMPLATE_KWARGS, **settings}
    return tokenizer.apply_chat_template(messages, **settings)


def _trl_suffix(tokenizer: Any, answer: dict[str, Any]) -> list[int]:
    """The tokens that TRL's tool loop puts after an assistant turn."""
    from trl import GRPOTrainer

    names = {"processing_class": tokenizer, "_tokenizer": tokenizer, "_is_vlm": False, "chat_template": None}
    trainer: Any = SimpleNamespace(chat_template_kwargs=model.CHAT_TEMPLATE_KWARGS, **names)
    return GRPOTrainer._get_tool_suffix_ids(trainer, [answer])


@pytest.mark.parametrize("reference", ["none", "trace", "answer", "shuffled"])
def test_ids_joined_turn_by_turn_are_those_of_the_whole(tokenizer: Any, reference: Reference) -> None:
    for seed in range(6):
        problem = errands.generate(seed, "hard")
        made, context = problem.plant(seed), problem.reference(reference, seed)
        text = problem.text
        if context is not None:
            text = TEMPLATE.format(prompt=text, privileged_context=context)
        user, parts = {"role": "user", "content": text}, model.tokens(tokenizer, made)
        whole = _rendered(tokenizer, [user, *_messages(made)])
        prompt = _rendered(tokenizer, [user], add_generation_prompt=True)
        assert whole == [*prompt, *(i for part in parts for i in part), *tokenizer("\n")["input_ids"]]
        for part, message in zip(parts, _messages(made), strict=True):
            if message["role"] == "tool":
                assert part == _trl_suffix(tokenizer, message)
