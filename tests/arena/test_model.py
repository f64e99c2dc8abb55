"""The tokenizer and the shipped checkpoint: one decision one token, TRL's ids, the promised accuracy."""

from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena import chain, model
from gear_rl.arena.model import prompt_text, sample
from gear_rl.arena.task import TEMPLATE, Reference, all_tasks, get_task
from gear_rl.credit.contexts import render

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
        shown = render(row["prompt"], completion, chain.TEMPLATE) if teacher else row["prompt"]
        prompt = prompt_text(tokenizer, {"prompt": shown})
        messages = [*shown, {"role": "assistant", "content": completion}]
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


def test_the_checkpoints_are_small() -> None:
    for task in all_tasks():
        assert 1_000_000 < sum(file.stat().st_size for file in task.checkpoint.iterdir()) < 2_500_000


@pytest.mark.parametrize(
    ("name", "num", "least", "most", "teacher"),
    [("chain", 128, 0.15, 0.55, 0.75), ("codebook", 16, 0.4, 0.65, 0.9)],
)
def test_the_student_errs_and_the_teacher_hardly(
    name: str, num: int, least: float, most: float, teacher: float
) -> None:
    task, (network, tokenizer) = get_task(name), model.load(task=name)
    assert {p.dtype for p in network.parameters()} == {torch.float32}

    def solved(reference: Reference) -> float:
        rows = task.rows("default", num=num, first_seed=0, reference=reference)
        if reference != "none":
            rows = [
                row | {"prompt": render(row["prompt"], row["privileged_context"], TEMPLATE)} for row in rows
            ]
        trainer = SimpleNamespace(model=network, processing_class=tokenizer)
        return sum(reward or 0.0 for reward in task.solve(trainer, rows, seed=0)) / num

    state = torch.random.get_rng_state()
    assert least <= solved("none") == solved("none") <= most
    assert torch.equal(state, torch.random.get_rng_state())
    assert solved("trace") >= teacher
    assert solved("shuffled") < 0.65


def test_sampling_does_not_depend_on_the_order_of_greedy_rows(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = chain.rows("default", num=7, first_seed=0)
    whole = sample(*loaded, rows[::-1], greedy=True)
    monkeypatch.setattr(model, "_BATCH", 3)
    assert sample(*loaded, rows, greedy=True) == whole[::-1]


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        model.load(tmp_path)
