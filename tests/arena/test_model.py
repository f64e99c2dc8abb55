"""The tokenizer and the shipped checkpoint: one decision one token, TRL's ids, the promised accuracy."""

from importlib.resources import files
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena import chain, model
from gear_rl.arena.model import prompt_text, sample
from gear_rl.arena.task import TEMPLATE, Reference, get_task
from gear_rl.credit.contexts import render

torch.set_num_threads(1)
NETWORK, TOKENIZER = model.load()


def _tokens(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER(text)["input_ids"]]


def test_one_decision_is_one_token() -> None:
    assert _tokens("37 +8 = 45 ; ans 45") == ["37", " +8 = ", "45", " ; ans ", "45"]
    assert _tokens("45 x3 = 35 ; 35 -5 = 30")[3:] == [" ; ", "35", " -5 = ", "30"]
    assert _tokens("37 +8 skip x3") == ["37", " +8", " skip", " x3"]


@given(text=st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_prompt_ids_are_those_of_trl() -> None:
    from trl.data_utils import maybe_apply_chat_template

    row = chain.rows("default", num=1)[0]
    theirs = TOKENIZER.apply_chat_template(
        row["prompt"], add_generation_prompt=True, return_dict=False, **model.CHAT_TEMPLATE_KWARGS
    )
    text = maybe_apply_chat_template(
        {"prompt": row["prompt"], "chat_template_kwargs": model.CHAT_TEMPLATE_KWARGS}, TOKENIZER
    )["prompt"]
    assert TOKENIZER(prompt_text(TOKENIZER, row))["input_ids"] == theirs == TOKENIZER(text)["input_ids"]


@pytest.mark.parametrize("teacher", [False, True])
def test_prompt_and_completion_ids_join_without_a_seam(teacher: bool) -> None:
    """What the warm start trained on is what a trainer generates from, token for token."""
    for row in chain.rows("hard", num=20, first_seed=0):
        completion = row["privileged_context"]
        shown = render(row["prompt"], completion, chain.TEMPLATE) if teacher else row["prompt"]
        prompt = prompt_text(TOKENIZER, {"prompt": shown})
        messages = [*shown, {"role": "assistant", "content": completion}]
        whole = TOKENIZER.apply_chat_template(messages, tokenize=False)
        ids = TOKENIZER(prompt)["input_ids"] + TOKENIZER(completion + model.EOS)["input_ids"]
        assert TOKENIZER(whole)["input_ids"][: len(ids)] == ids


@pytest.mark.parametrize("name", ["qwen3.jinja", "qwen3_training.jinja"])
def test_the_shipped_chat_templates_are_those_of_trl(name: str) -> None:
    """TRL recognises a template by its text, and every checkpoint was trained on this one."""
    theirs = (files("trl") / "chat_templates" / name).read_bytes()
    assert model.chat_template(name).encode() == theirs


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


def test_sampling_does_not_depend_on_the_order_of_greedy_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = chain.rows("default", num=7, first_seed=0)
    whole = sample(NETWORK, TOKENIZER, rows[::-1], greedy=True)
    monkeypatch.setattr(model, "_BATCH", 3)
    assert sample(NETWORK, TOKENIZER, rows, greedy=True) == whole[::-1]
