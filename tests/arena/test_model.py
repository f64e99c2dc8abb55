"""The tokenizer and the shipped checkpoint: one decision one token, TRL's ids, the promised accuracy."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena import model
from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.tiers import TIERS
from gear_rl.arena.evaluate import accuracy, prompt_text
from gear_rl.arena.task import get_task

torch.set_num_threads(1)
Loaded = tuple[Any, Any]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return model.load()


def _tokens(tokenizer: Any, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]


def test_one_decision_is_one_token(loaded: Loaded) -> None:
    _, tokenizer = loaded
    assert _tokens(tokenizer, "37 +8 = 45 ; ans 45") == ["37", " +8 = ", "45", " ; ans ", "45"]
    assert _tokens(tokenizer, "45 x3 = 35 ; 35 -5 = 30")[3:] == [" ; ", "35", " -5 = ", "30"]
    assert _tokens(tokenizer, "37 +8 skip x3") == ["37", " +8", " skip", " x3"]


@given(text=st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def _tokenizer(cache: list[Any] = []) -> Any:  # noqa: B006  (loaded once for all examples of hypothesis)
    if not cache:
        cache.append(model.load()[1])
    return cache[0]


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_a_planted_fault_is_at_the_stated_token(loaded: Loaded, tier: str) -> None:
    _, tokenizer = loaded
    for seed in range(40):
        problem = chain.generate(seed, tier)
        planted = chain.plant(problem, seed)
        ids = tokenizer(planted.completion)["input_ids"]
        gold = tokenizer(chain.solve(problem).trace)["input_ids"]
        assert ids[: planted.token] == gold[: planted.token]
        assert ids[planted.token] != gold[planted.token]
        assert (
            tokenizer.decode(ids[planted.token : planted.token + 1]) == planted.completion[planted.char :][:2]
        )


def test_prompt_ids_are_those_of_trl(loaded: Loaded) -> None:
    from trl.data_utils import maybe_apply_chat_template

    _, tokenizer = loaded
    row = chain.rows("default", num=1)[0]
    theirs = tokenizer.apply_chat_template(
        row["prompt"],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **model.CHAT_TEMPLATE_KWARGS,
    )["input_ids"]
    text = maybe_apply_chat_template(
        {"prompt": row["prompt"], "chat_template_kwargs": model.CHAT_TEMPLATE_KWARGS}, tokenizer
    )["prompt"]
    assert tokenizer(prompt_text(tokenizer, row))["input_ids"] == theirs == tokenizer(text)["input_ids"]


@pytest.mark.parametrize("teacher", [False, True])
def test_prompt_and_completion_ids_join_without_a_seam(loaded: Loaded, teacher: bool) -> None:
    """What the warm start trained on is what a trainer generates from, token for token."""
    _, tokenizer = loaded
    for row in chain.rows("hard", num=20, first_seed=0):
        completion = row["privileged_context"]
        prompt = prompt_text(tokenizer, row, teacher=teacher)
        content = row["prompt"][0]["content"]
        if teacher:
            content = chain.TEMPLATE.format(prompt=content, privileged_context=completion)
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": completion}]
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(prompt)["input_ids"] + tokenizer(completion + model.EOS)["input_ids"]
        assert tokenizer(whole)["input_ids"][: len(ids)] == ids


@pytest.mark.parametrize("name", ["qwen3.jinja", "qwen3_training.jinja"])
def test_the_shipped_chat_templates_are_those_of_trl(name: str) -> None:
    """TRL recognises a template by its text, and every checkpoint was trained on this one."""
    theirs = (files("trl") / "chat_templates" / name).read_bytes()
    assert model.chat_template(name).encode() == theirs


def test_the_chat_template_preserves_prefixes(loaded: Loaded) -> None:
    from trl.chat_template_utils import is_chat_template_prefix_preserving

    assert is_chat_template_prefix_preserving(loaded[1])


def test_the_checkpoint_is_small() -> None:
    size = sum(file.stat().st_size for file in get_task("chain").checkpoint.iterdir())
    assert 1_000_000 < size < 2_500_000


def test_the_student_is_careless_and_the_teacher_is_not(loaded: Loaded) -> None:
    network, tokenizer = loaded
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    rows = chain.rows("default", num=128, first_seed=0)
    state = torch.random.get_rng_state()
    student = accuracy(network, tokenizer, rows, chain.chain_reward)
    assert torch.equal(state, torch.random.get_rng_state())
    assert 0.15 <= sum(student) / 128 <= 0.55
    assert student == accuracy(network, tokenizer, rows, chain.chain_reward)
    teacher = accuracy(network, tokenizer, rows, chain.chain_reward, teacher=True)
    assert sum(teacher) / 128 >= 0.75
    shuffled = chain.rows("default", num=128, first_seed=0, reference="shuffled")
    assert sum(accuracy(network, tokenizer, shuffled, chain.chain_reward, teacher=True)) / 128 < 0.6


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gear arena build"):
        model.load(tmp_path)
