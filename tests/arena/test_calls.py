"""Tokens of an agent's completion: no id that a trainer would make differently."""

from types import SimpleNamespace
from typing import Any

import pytest

from gear_rl.arena import model
from gear_rl.arena.calls import render_ids, tokens, turn_text
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import played, tools
from gear_rl.arena.task import TEMPLATE
from gear_rl.engines.trl.tool_calls import parse_tool_calls


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return model.load(task="errands")[1]


def _trl_suffix(tokenizer: Any, answer: dict[str, Any]) -> list[int]:
    """What TRL's tool loop puts after an assistant turn."""
    from trl import GRPOTrainer

    trainer: Any = SimpleNamespace(
        _is_vlm=False,
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=None,
        chat_template_kwargs=model.CHAT_TEMPLATE_KWARGS,
    )
    return GRPOTrainer._get_tool_suffix_ids(trainer, [answer])


@pytest.mark.parametrize("reference", ["none", "trace", "answer", "shuffled"])
def test_ids_joined_turn_by_turn_are_those_of_the_whole(tokenizer: Any, reference: Any) -> None:
    for seed in range(6):
        problem = errands.generate(seed, "hard")
        made = played(problem, errands.plant(problem, seed)[0])
        context = errands.privileged_context(problem, reference, seed)
        prompt = render_ids(tokenizer, problem.text, tools(), context)
        ids, mask = list(prompt), [False] * len(prompt)
        for message in made:
            if message["role"] == "tool":
                new = _trl_suffix(tokenizer, message)
            else:
                new = tokenizer(turn_text(message))["input_ids"] + [tokenizer.eos_token_id]
            ids += new
            mask += [message["role"] == "assistant"] * len(new)
        text = problem.text
        if context is not None:
            text = TEMPLATE.format(prompt=text, privileged_context=context)
        whole = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}, *made],
            tools=tools(),
            tokenize=True,
            return_dict=False,
            **model.CHAT_TEMPLATE_KWARGS,
        )
        assert whole == [*ids, *tokenizer("\n")["input_ids"]]
        assert tokens(tokenizer, made) == (ids[len(prompt) :], mask[len(prompt) :])


def test_the_chat_template_is_one_that_trl_can_parse(tokenizer: Any) -> None:
    from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response

    assert is_chat_template_prefix_preserving(tokenizer)
    assert parse_tool_calls(tokenizer)
    problem = errands.generate(0)
    prompt = render_ids(tokenizer, problem.text, tools())
    for message in played(problem, errands.sends(problem)):
        if message["role"] == "assistant":
            ids, _ = tokens(tokenizer, [message])
            parsed = parse_response(tokenizer, ids, prefix=prompt, tools=tools())
            assert parsed.get("tool_calls") == message.get("tool_calls")
            assert parsed.get("content", "") == message["content"]
