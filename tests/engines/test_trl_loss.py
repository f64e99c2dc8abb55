"""The distillation term in TRL's loss, against the full logits of the same model and in whole trainings."""

import math
from types import SimpleNamespace

import pytest
import torch

from engines import tiny
from engines.distilling import LORA, made, micro_batch
from engines.running import history, same, weights
from gear_rl import GEARTrainer, Uniform
from gear_rl.engines.trl import trainer as trl_trainer
from gear_rl.engines.trl.loss import attach
from gear_rl.methods import Sdpg
from gear_rl.traits import Distillation
from tensor.test_distill import naive_divergence


def ready(trainer, term):
    """What a training would have set: the term, the accumulation, a clean log."""
    trainer.credit = SimpleNamespace(name="term", source="test", needs=(), distillation=term)
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    _ = trainer.padding_moves
    trainer._metrics["train"].clear()
    return trainer


def gradients(trainer, loss):
    trainer.model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def own_loss(trainer):
    return super(GEARTrainer, trainer)._compute_loss


def log_probs(model, prompt, prompt_mask, ids, attention, temperature):
    """The definition: full logits, the last T + 1 positions but the last."""
    out = model(input_ids=torch.cat([prompt, ids], 1), attention_mask=torch.cat([prompt_mask, attention], 1))
    return (out.logits[:, -ids.shape[1] - 1 : -1].float() / temperature).log_softmax(-1)


OF_DIVERGENCE = ("beta", "top_k", "top_k_of", "tail")


def slow_extra(trainer, inputs, teacher_log_q):
    """Term and anchor token by token, with gradient through the model's own full logits."""
    term = trainer.credit.distillation
    columns = [inputs[n] for n in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")]
    log_p = log_probs(trainer.model, *columns, trainer.temperature)
    total = torch.zeros(())
    normaliser = inputs["num_items_in_batch"] * 2 / trainer.args.steps_per_generation
    for b in range(log_p.shape[0]):
        for t in range(log_p.shape[1]):
            if not inputs["tool_mask"][b, t]:
                continue
            now = log_p[b, t, inputs["completion_ids"][b, t]]
            weight = inputs["gear_distill_weight"][b, t].item()
            if weight:
                p, q = (
                    (x[b, t].double() / term.temperature).softmax(-1)[None] for x in (log_p, teacher_log_q)
                )
                kl = naive_divergence(p, q, **{name: getattr(term, name) for name in OF_DIVERGENCE})[0]
                kl = kl.clamp(max=term.max_nats or math.inf)
                ratio = 1.0
                if term.ratio_clip is not None and "old_per_token_logps" in inputs:
                    ratio = math.exp((now - inputs["old_per_token_logps"][b, t]).clamp(-20, 20).item())
                    ratio = min(ratio, term.ratio_clip)
                total = total + weight * ratio * kl
            if term.anchor == "rkl":
                log_ratio = now - inputs["gear_reference_logprob"][b, t]
                total = total + term.anchor_weight * (log_ratio + 1) ** 2 / 2
    return total / normaliser


TERMS = {
    "jsd": Distillation(beta=0.5, temperature=1.1),
    "students_top_k": Distillation(beta=0.5, top_k=5, top_k_of="student"),
    "no_tail": Distillation(beta=0.3, top_k=5, tail=False, max_nats=0.05),
    "ratio": Distillation(beta=0.5, ratio_clip=2.0),
    "anchor": Distillation(beta=1.0, anchor="rkl", anchor_weight=0.3),
}


SETTINGS = {
    "plain": {"temperature": 0.9},
    "lora": {"peft": LORA, "teacher_model_kind": "base"},
    "copied": {"teacher_model_kind": "base"},
}


@pytest.fixture(scope="module")
def trainers(tiny_model, tmp_path_factory):
    """A trainer for each of ``SETTINGS``; the student of "copied" has moved from its teacher, the head too."""
    found = {name: made(tmp_path_factory.mktemp(name), tiny_model, **s) for name, s in SETTINGS.items()}
    _ = found["copied"].held_weights.teacher
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in found["copied"].model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * p.std().nan_to_num(0.1) / 5)
    return found


@pytest.fixture
def plain(trainers):
    return trainers["plain"]


@pytest.mark.parametrize(
    ("name", "term"),
    [
        *(("plain", term) for term in TERMS),
        ("lora", "anchor"),
        ("copied", "students_top_k"),
    ],
)
def test_loss_and_gradient_are_those_of_the_full_logits(trainers, name, term):
    trainer = ready(trainers[name], TERMS[term])
    vocab = trainer.model.get_input_embeddings().weight.shape[0]
    inputs = micro_batch(vocab)
    inputs["gear_distill_weight"][1] = 0.0  # a row without context
    own = own_loss(trainer)(trainer.model, inputs)
    before = gradients(trainer, own)
    teacher = [inputs[n] for n in ("gear_teacher_ids", "gear_teacher_attention")]
    columns = [inputs[n] for n in ("completion_ids", "completion_mask")]
    with torch.no_grad(), trainer.held_weights.teacher.weights(trainer.model):
        log_q = log_probs(trainer.model, *teacher, *columns, trainer.temperature)
    extra = slow_extra(trainer, inputs, log_q)
    expected = gradients(trainer, extra)

    total = trainer._compute_loss(trainer.model, inputs)
    found = gradients(trainer, total)
    assert total.item() == pytest.approx((own + extra).item(), rel=1e-5)
    assert extra.item() > 1e-3 and found.keys() == before.keys()
    for key, gradient in found.items():
        difference = gradient - before[key]
        torch.testing.assert_close(difference, expected[key], rtol=2e-3, atol=2e-5)
        assert expected[key].abs().max() > 1e-4, key
    if name == "lora":
        assert all("lora" in key for key in found)


@pytest.mark.parametrize(("loss_type", "generations"), [("dapo", 2), ("grpo", 4)])
def test_no_split_into_micro_batches_changes_the_step(tiny_model, tmp_path, loss_type, generations):
    """Eight rows in accumulation windows of 2, 4 or 8 micro-batches; what is on top of TRL's loss stays."""
    steps = []
    term = Distillation(beta=0.5, ratio_clip=2.0, anchor="urkl", anchor_weight=0.1)
    # Live: a copy's weights are lent in place, but here several losses wait for one backward.
    trainer = ready(made(tmp_path, tiny_model, loss_type=loss_type, teacher_model_kind="live"), term)
    inputs = micro_batch(trainer.model.config.vocab_size, num_rows=8)
    for count in (1, 2, 4):
        # `generations` windows share a generation batch when it is split finer than a window.
        trainer.args.steps_per_generation = count * generations // 2
        trainer.current_gradient_accumulation_steps = count
        order = torch.randperm(8, generator=torch.Generator().manual_seed(count)).chunk(count)
        extra = torch.zeros(())
        for rows in order:
            part = {name: x[rows] if x.dim() else x for name, x in inputs.items()}
            extra = (
                extra + trainer._compute_loss(trainer.model, part) - own_loss(trainer)(trainer.model, part)
            )
        steps.append((extra.item(), gradients(trainer, extra)))
    for value, found in steps[1:]:
        assert value == pytest.approx(steps[0][0], rel=1e-4)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, steps[0][1][name], rtol=1e-3, atol=1e-5)
    assert steps[0][0] > 0.01


def test_processes_share_the_mean_as_in_trls_own(plain, monkeypatch):
    """Gradients are averaged over processes, so each divides by its share of the tokens."""
    trainer = ready(plain, TERMS["anchor"])
    inputs = micro_batch(trainer.model.config.vocab_size)
    extras = []
    for count in (1, 2):
        monkeypatch.setattr(
            type(trainer.accelerator), "num_processes", property(lambda _, count=count: count)
        )
        loss = trainer._compute_loss(trainer.model, inputs) - own_loss(trainer)(trainer.model, inputs)
        extras.append(loss.item())
    assert extras[1] == pytest.approx(2 * extras[0], rel=1e-4)


@pytest.mark.parametrize("where", ["teacher", "gear_distill_weight", "gear_reference_logprob"])
def test_what_is_not_finite_is_left_out_and_counted(plain, where):
    term = Distillation(ratio_clip=2.0, anchor="urkl", anchor_weight=0.1)
    trainer = ready(plain, term)
    inputs = micro_batch(trainer.model.config.vocab_size)
    good = gradients(trainer, trainer._compute_loss(trainer.model, inputs))
    trainer._metrics["train"].clear()
    if where in inputs:
        inputs[where][0, 3] = math.inf

    def poison(module, args, output):
        if where == "teacher" and not torch.is_grad_enabled():
            output.last_hidden_state[0, -5] = math.inf

    handle = trainer.model.base_model.register_forward_hook(poison)
    loss = trainer._compute_loss(trainer.model, inputs)
    found = gradients(trainer, loss)
    handle.remove()
    assert loss.isfinite() and all(g.isfinite().all() for g in found.values())
    assert trainer._metrics["train"]["gear/distill/non_finite"] == [1.0]
    assert any(not torch.equal(found[name], good[name]) for name in good), "the token was there before"


# --- whole trainings ------------------------------------------------------------------------------------------


def trained(folder, model, credit, **changes):
    trainer = made(folder, model, credit, max_steps=3, **changes)
    start = weights(trainer)
    trainer.train()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert not same(weights(trainer), start)
    return trainer


def test_rows_without_context_are_neither_distilled_nor_anchored(tiny_model, tmp_path, monkeypatch):
    attached = []
    monkeypatch.setattr(
        trl_trainer, "attach", lambda output, *more: attach(output, *more) or attached.append(dict(output))
    )
    rows = list(tiny.rows())
    rows[1::2] = [row | {"privileged_context": None, "answer": ""} for row in rows[1::2]]
    trainer = trained(tmp_path, tiny_model, Sdpg(weight=0.5), rows=tiny.rows().from_list(rows))
    without = sum(history(trainer, "gear/fallback/no_context"))
    assert 0 < without < 24
    weight = torch.cat([x["gear_distill_weight"].amax(-1) for x in attached])
    known = torch.cat([(~x["gear_reference_logprob"].isnan()).any(-1) for x in attached])
    assert (weight == 0).sum() == without and (weight[weight != 0] == 0.5).all()
    assert torch.equal(known, weight > 0)
    assert not any(history(trainer, "gear/distill/non_finite")), "what was not computed is none"


def test_a_weight_of_nothing_trains_as_grpo(tiny_model, tmp_path):
    """A schedule that begins at 0 and an anchor too light to feel: the columns are there, and change no bit."""
    zero = Sdpg(weight=1e-30, warmup_steps=10**9, anchor="urkl", anchor_weight=1e-38)
    runs = [trained(tmp_path, tiny_model, credit) for credit in (zero, Uniform())]
    assert same(*map(weights, runs))
    assert history(runs[0], "gear/distill/loss") and not history(runs[1], "gear/distill/loss")
