"""Tokens of the task "ledger": one decision one token, and no id that a trainer would make differently."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.calls import tokens, turn_text
from gear_rl.arena.ledger import env as ledger_env
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger import recipe
from gear_rl.arena.ledger.episodes import episode, plant, prompt_ids
from gear_rl.arena.ledger.tiers import TIERS
from gear_rl.arena.task import TEMPLATE
from gear_rl.engines.trl.tool_calls import parse_tool_calls
from gear_rl.signals.answers import answer_regions

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return model.load(task="ledger")[1]


def _pieces(tokenizer: Any, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]


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


@pytest.mark.parametrize("tier", sorted(TIERS))
@pytest.mark.parametrize("reference", ["none", "trace", "answer", "shuffled"])
def test_ids_joined_turn_by_turn_are_those_of_the_whole(tokenizer: Any, tier: str, reference: Any) -> None:
    for seed in range(12):
        problem = ledger.generate(seed, tier)
        made = episode(problem).messages if seed % 2 else plant(problem, seed).messages
        context = ledger.privileged_context(problem, reference, seed)
        prompt = prompt_ids(tokenizer, problem, tier, context)
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
            tools=ledger_env.tools(tier),
            tokenize=True,
            return_dict=False,
            **model.CHAT_TEMPLATE_KWARGS,
        )
        assert whole == [*ids, *tokenizer("\n")["input_ids"]]
        assert tokens(tokenizer, made) == (ids[len(prompt) :], mask[len(prompt) :])


@pytest.mark.parametrize("distractors", [0, 1, 2])
def test_the_warm_start_trains_on_these_ids_and_counts_these_tokens(tokenizer: Any, distractors: int) -> None:
    tier = {0: "easy", 1: "default", 2: "hard"}[distractors]
    chosen = set(tokenizer.convert_tokens_to_ids(list(recipe.TOOLS)))
    for seed in range(10):
        problem = ledger.generate(seed, tier)
        made = episode(problem).messages
        demonstration = recipe.Demonstration(
            content=problem.text,
            distractors=distractors,
            turns=tuple(turn_text(message) for message in made if message["role"] == "assistant"),
            answers=tuple(message["content"] for message in made if message["role"] == "tool"),
            departed=None,
        )
        text = recipe._text(demonstration, recipe._prompts())
        ids, mask = tokens(tokenizer, made)
        prompt = prompt_ids(tokenizer, problem, tier)
        assert tokenizer(text)["input_ids"] == prompt + ids
        expected = [False] * len(prompt) + mask
        counted = recipe._counted(tokenizer, prompt + ids, None, chosen)
        assert counted == expected
        # A departed turn loses one token: its choice of tool.
        counted = recipe._counted(tokenizer, prompt + ids, 0, chosen)
        lost = [i for i, (one, other) in enumerate(zip(counted, expected, strict=True)) if one != other]
        assert [tokenizer.decode([ids[i - len(prompt)]]) for i in lost] == [ledger.calls(problem)[0].name]


def test_one_decision_is_one_token(tokenizer: Any) -> None:
    for seed in range(40):
        problem = ledger.generate(seed, "hard")
        for call in ledger.calls(problem):
            pieces = _pieces(tokenizer, call.text)
            decisions = [call.name, *map(str, call.arguments.values())]
            assert [piece for piece in pieces if piece in decisions] == decisions
        ends = (problem.source, problem.target)
        said = [piece for end in ends for piece in (*reversed(end.words), end.base)]
        assert [piece for piece in _pieces(tokenizer, problem.text) if piece in said] == said


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_turns_and_prompts_are_short(tokenizer: Any, tier: str) -> None:
    for seed in range(40):
        problem = ledger.generate(seed, tier)
        assert len(prompt_ids(tokenizer, problem, tier)) <= 80
        for message in episode(problem).messages:
            ids, _ = tokens(tokenizer, [message])
            assert len(ids) <= (14 if message["role"] == "tool" else 12)


def test_the_chat_template_is_one_that_trl_can_parse(tokenizer: Any) -> None:
    from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response

    assert is_chat_template_prefix_preserving(tokenizer)
    assert parse_tool_calls(tokenizer)
    problem = ledger.generate(0)
    prompt = prompt_ids(tokenizer, problem)
    for message in episode(problem).messages:
        if message["role"] == "assistant":
            ids, _ = tokens(tokenizer, [message])
            parsed = parse_response(tokenizer, ids, prefix=prompt, tools=ledger_env.tools())
            assert parsed.get("tool_calls") == message.get("tool_calls")
            assert parsed.get("content", "") == message["content"]


def test_no_name_hides_in_the_boilerplate(tokenizer: Any) -> None:
    """A name inside another word would cut that word in pieces."""
    for before, after in recipe._prompts():
        for atom in (*ledger.PERSONS, *ledger.ITEMS, *ledger.ALIASES):
            assert atom not in before + after
    assert len({*recipe.ATOMS}) == len(recipe.ATOMS)


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_the_answer_of_a_rollout_is_whom_it_pays(tokenizer: Any, tier: str) -> None:
    """Both names and the amount that the student writes stand in the region, and no look-up does."""
    problem = ledger.generate(3, tier)
    ids, mask = tokens(tokenizer, episode(problem).messages)
    texts = [tokenizer.decode([i]) for i in ids]
    [region] = answer_regions([texts], torch.tensor([mask]).bool(), ledger.ANSWER_PATTERN).tolist()
    answer = "".join(text for text, kind in zip(texts, region, strict=True) if kind == 1)
    paid = [call for call in re.findall(r"\{[^{}]*\}", "".join(texts)) if '"source"' in call]
    assert len(paid) == 1
    assert paid[0].partition("{")[2] in answer
    assert "person" not in answer
