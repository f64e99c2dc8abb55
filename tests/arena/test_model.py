"""The tokenizer and the shipped checkpoint: one decision one token, TRL's ids, the promised accuracy."""

from importlib.resources import files
from types import SimpleNamespace

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.task import TEMPLATE, Reference, get_task
from gear_rl.credit.teacher_prompts import render

torch.set_num_threads(1)
TOKENIZER = model.load()[1]


def _tokens(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER(text)["input_ids"]]


def test_one_decision_is_one_token() -> None:
    assert _tokens("37 +8 = 45 ; ans 45") == ["37", " +8 = ", "45", " ; ans ", "45"]
    assert _tokens("37 +8 skip x3") == ["37", " +8", " skip", " x3"]


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
