"""OPSD, SDPO and SDPG through whole trainings."""

import pytest
import torch

import gear_rl.engines.trl.trainer
from engines import tiny
from engines.distilling import LORA, made
from gear_rl import Uniform
from gear_rl.engines.trl import loss
from gear_rl.methods import Opsd, Sdpg, Sdpo


def trained(folder, model, credit, peft=None, rows=None, **changes):
    trainer = made(folder, model, credit, peft=peft, rows=rows, max_steps=3, **changes)
    start = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    moved = any(not torch.equal(p, start[n]) for n, p in trainer.model.named_parameters())
    assert moved
    return trainer


def history(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize("credit", [Opsd(), Sdpo(top_k=20), Sdpg(weight=0.5)], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("peft", "changes"),
    [
        (None, {}),
        (LORA, {"teacher_model_kind": "base"}),
        (None, {"gradient_checkpointing": True, "teacher_model_kind": "ema"}),
        (None, {"bf16": True}),
        (None, {"steps_per_generation": 2, "num_iterations": 2, "gradient_accumulation_steps": 1}),
    ],
    ids=["plain", "lora", "checkpointing", "autocast", "iterations"],
)
def test_every_method_trains(tiny_model, tmp_path, credit, peft, changes):
    trainer = trained(tmp_path, tiny_model, credit, peft, **changes)
    assert all(value > 0 for value in history(trainer, "gear/distill/term"))
    assert all(value > 0 for value in history(trainer, "gear/distill/loss"))
    assert history(trainer, "gear/distill/non_finite") == [0.0] * 3
    assert len(history(trainer, "gear/anchor/loss")) == (3 if credit.name == "sdpg" else 0)


def test_rows_without_context_are_neither_distilled_nor_anchored(tiny_model, tmp_path, monkeypatch):
    attached = []
    original = loss.attach

    def watched(output, *more):
        original(output, *more)
        attached.append(dict(output))

    monkeypatch.setattr(gear_rl.engines.trl.trainer, "attach", watched)
    rows = [
        row | {"privileged_context": None, "answer": ""} if i % 2 else row
        for i, row in enumerate(tiny.rows())
    ]
    trainer = trained(tmp_path, tiny_model, Sdpg(weight=0.5), rows=tiny.rows().from_list(rows))
    without = sum(history(trainer, "gear/fallback/no_context"))
    assert 0 < without < 24
    weight = torch.cat([x["gear_distill_weight"].amax(-1) for x in attached])
    known = torch.cat([(~x["gear_reference_logprob"].isnan()).any(-1) for x in attached])
    assert (weight == 0).sum() == without and (weight[weight != 0] == 0.5).all()
    assert torch.equal(known, weight > 0)
    same_prompt = [
        int(ids[kept.bool()].tolist() == own[seen.bool()].tolist())
        for x in attached
        for ids, kept, own, seen in zip(
            x["gear_teacher_ids"], x["gear_teacher_attention"], x["prompt_ids"], x["prompt_mask"], strict=True
        )
    ]
    assert same_prompt == (weight == 0).long().tolist(), "a row without context has the student's prompt"


def test_the_student_learns_what_the_teacher_says(tiny_model, tmp_path):
    """The first weights teach, with the context: thirty steps without bring the student nearer to them."""
    options = {
        "teacher_model_kind": "base",
        "learning_rate": 5e-3,
        "warmup_steps": 0,
        "lr_scheduler_type": "constant",
    }
    trainer = made(tmp_path, tiny_model, Opsd(beta=0.0, temperature=1.0), max_steps=30, **options)
    trainer.train()
    found = history(trainer, "gear/distill/term")
    assert sum(found[-5:]) < 0.7 * sum(found[:5])


def test_a_weight_of_nothing_trains_as_grpo(tiny_model, tmp_path):
    """A schedule that begins at 0 and an anchor too light to feel: the columns are there, and change no bit."""
    zero = Sdpg(weight=1e-30, warmup_steps=10**9, anchor="urkl", anchor_weight=1e-38)
    runs = [trained(tmp_path, tiny_model, credit) for credit in (zero, Uniform())]
    for a, b in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert history(runs[0], "gear/distill/loss") and not history(runs[1], "gear/distill/loss")
