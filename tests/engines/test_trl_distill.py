"""The distillation term in TRL's loss: against the full logits of the same model."""

import copy
import dataclasses
import math

import pytest
import torch

from engines.distilling import LORA, made, micro_batch
from gear_rl import GEARTrainer
from gear_rl.credit.distillation import anchor_penalty, importance_ratio
from gear_rl.engines.trl.config import check_setup
from gear_rl.engines.trl.loss import attach
from gear_rl.methods import Sdpo
from gear_rl.signals.batch import Prompts
from gear_rl.traits import Distillation
from gear_rl.types import Credit, TokenSignals


@dataclasses.dataclass(frozen=True)
class Term:
    """A method of which only the term matters: the weights come with the batch."""

    distillation: Distillation
    name = "term"
    source = "test"
    needs = ()

    def __call__(self, advantage_B, signals):
        raise AssertionError("the loss reads the weights of the batch and asks no method")


def ready(trainer, term):
    """What a training would have set: the term, the accumulation, a clean log."""
    trainer.credit = Term(term)
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


def slow_extra(trainer, inputs, teacher_log_q):
    """Term and anchor token by token, from methods.md, with gradient through the model's own full logits."""
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
                lp = (log_p[b, t] / term.temperature).log_softmax(-1)
                lq = (teacher_log_q[b, t] / term.temperature).log_softmax(-1)
                p, q = lp.exp(), lq.exp()
                if term.top_k is not None:
                    likeliest = (p if term.top_k_of == "student" else q).topk(term.top_k).indices
                    p, q = p[likeliest], q[likeliest]
                    if term.tail:
                        p, q = (torch.cat([x, 1 - x.sum()[None]]) for x in (p, q))
                    p, q = p / p.sum(), q / q.sum()
                    lp, lq = p.log(), q.log()
                m = term.beta * q + (1 - term.beta) * p
                kl = (p * (lp - lq)).sum()
                if term.beta < 1:
                    kl = term.beta * (q * (lq - m.log())).sum() + (1 - term.beta) * (p * (lp - m.log())).sum()
                kl = kl.clamp(max=term.max_nats or math.inf)
                ratio = 1.0
                if term.ratio_clip is not None and "old_per_token_logps" in inputs:
                    ratio = math.exp((now - inputs["old_per_token_logps"][b, t]).clamp(-20, 20).item())
                    ratio = min(ratio, term.ratio_clip)
                total = total + weight * ratio * kl
            if term.anchor == "urkl":
                total = total + term.anchor_weight * (now - inputs["gear_reference_logprob"][b, t]) ** 2 / 2
    return total / normaliser


REVERSE = Distillation(beta=1.0)
TERMS = {
    "reverse": REVERSE,
    "jsd": Distillation(beta=0.5, temperature=1.1),
    "top_k": Distillation(beta=0.5, top_k=5, max_nats=0.05),
    "students_top_k": Distillation(beta=0.5, top_k=5, top_k_of="student"),
    "no_tail": Distillation(beta=0.3, top_k=5, tail=False),
    "ratio": Distillation(beta=0.5, ratio_clip=2.0),
    "anchor": Distillation(beta=1.0, anchor="urkl", anchor_weight=0.3),
}


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    return made(tmp_path_factory.mktemp("plain"), tiny_model, temperature=0.9)


@pytest.fixture(scope="module")
def lora(tiny_model, tmp_path_factory):
    return made(tmp_path_factory.mktemp("lora"), tiny_model, peft=LORA, teacher_model_kind="base")


@pytest.fixture(scope="module")
def copied(tiny_model, tmp_path_factory):
    """A teacher with a copy of the first weights, and a student that has moved on, its tied head with it."""
    trainer = made(tmp_path_factory.mktemp("copied"), tiny_model, teacher_model_kind="base")
    trainer.ready_teacher()
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * p.std().nan_to_num(0.1) / 5)
    return trainer


@pytest.fixture(scope="module")
def checkpointed(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpointed")
    trainer = made(folder, tiny_model, gradient_checkpointing=True)
    trainer.model.gradient_checkpointing_enable({"use_reentrant": False})  # as `train` would
    return trainer


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("name", ["plain", "lora", "copied", "checkpointed"])
def test_loss_and_gradient_are_those_of_the_full_logits(name, term, request):
    trainer = ready(request.getfixturevalue(name), term)
    vocab = trainer.model.get_input_embeddings().weight.shape[0]
    inputs = micro_batch(vocab)
    inputs["gear_distill_weight"][1] = 0.0  # a row without context
    own = own_loss(trainer)(trainer.model, inputs)
    before = gradients(trainer, own)
    teacher = [inputs[n] for n in ("gear_teacher_ids", "gear_teacher_attention")]
    columns = [inputs[n] for n in ("completion_ids", "completion_mask")]
    with torch.no_grad(), trainer.ready_teacher().weights(trainer.model):
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


def test_the_teacher_saw_its_own_prompt(plain):
    """Else every divergence is 0: the live teacher differs from the student by its prompt alone."""
    trainer = ready(plain, REVERSE)
    inputs = micro_batch(trainer.model.config.vocab_size)
    trainer._compute_loss(trainer.model, inputs)
    assert trainer._metrics["train"]["gear/distill/term"][-1] > 0.01
    inputs |= {"gear_teacher_ids": inputs["prompt_ids"], "gear_teacher_attention": inputs["prompt_mask"]}
    trainer._compute_loss(trainer.model, inputs)
    assert trainer._metrics["train"]["gear/distill/term"][-1] == pytest.approx(0.0, abs=1e-6)


def test_the_students_forward_is_trls_own_and_the_teacher_sees_taught_rows_alone(plain, monkeypatch):
    trainer = ready(plain, REVERSE)
    inputs = micro_batch(trainer.model.config.vocab_size)
    inputs["gear_distill_weight"][[0, 2]] = 0.0
    inputs["gear_distill_weight"][3, 1:] = 0.0
    inputs["gear_distill_weight"][1, 2:] = 0.0
    rows = []
    handle = trainer.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append((kwargs["input_ids"].shape, module.training)),
        with_kwargs=True,
    )
    loss = trainer._compute_loss(trainer.model, inputs)
    handle.remove()
    # Two rows, a prompt of 11 and the two columns up to the last distilled token; then TRL's four rows.
    assert rows == [((2, 13), False), ((4, 12), True)]
    assert all(module.training for module in trainer.model.modules())
    assert loss.requires_grad
    inputs["gear_distill_weight"][:] = 0.0
    rows.clear()
    handle = trainer.model.base_model.register_forward_hook(lambda *_: rows.append(1))
    zero = trainer._compute_loss(trainer.model, inputs)
    handle.remove()
    assert rows == [1] and torch.equal(zero, own_loss(trainer)(trainer.model, inputs))


def half(inputs, which):
    return {n: x[which] if x.dim() else x for n, x in inputs.items()}


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("generations", [2, 4])
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
            part = half(inputs, rows)
            extra = (
                extra + trainer._compute_loss(trainer.model, part) - own_loss(trainer)(trainer.model, part)
            )
        logged = trainer._metrics["train"]
        whole = sum(logged["gear/distill/loss"]) / count + sum(logged["gear/anchor/loss"]) / count
        assert whole == pytest.approx(extra.item(), rel=1e-4), "the log is a mean over the window"
        logged.clear()
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
        logged = trainer._metrics["train"]["gear/distill/loss"][-1]
        logged += trainer._metrics["train"]["gear/anchor/loss"][-1]
        assert logged == pytest.approx(extras[-1] * 2 / count, rel=1e-4), "the mean over processes"
    assert extras[1] == pytest.approx(2 * extras[0], rel=1e-4)


def test_more_padding_changes_nothing(plain):
    trainer = ready(plain, TERMS["anchor"])
    inputs = micro_batch(trainer.model.config.vocab_size)
    padded = dict(inputs)
    for name, left, value in (
        ("gear_teacher_ids", True, 0),
        ("gear_teacher_attention", True, 0),
        ("completion_ids", False, 0),
        ("completion_mask", False, 0),
        ("tool_mask", False, 0),
        ("old_per_token_logps", False, 0),
        ("gear_distill_weight", False, 0),
        ("gear_reference_logprob", False, math.nan),
    ):
        padded[name] = torch.nn.functional.pad(inputs[name], (3, 0) if left else (0, 3), value=value)
    losses = [trainer._compute_loss(trainer.model, x).item() for x in (inputs, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tool_output_and_padding_are_never_distilled_nor_anchored(plain):
    trainer = ready(plain, TERMS["anchor"])
    inputs = micro_batch(trainer.model.config.vocab_size)
    outside = inputs["tool_mask"] == 0
    filled = dict(inputs)
    filled["gear_distill_weight"] = torch.where(outside, 1.0, inputs["gear_distill_weight"])
    filled["gear_reference_logprob"] = torch.where(outside, 0.0, inputs["gear_reference_logprob"])
    assert outside[3, 2:4].all() and inputs["completion_mask"][3, 2:4].all(), "tool output among them"
    losses = [trainer._compute_loss(trainer.model, x).item() for x in (inputs, filled)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("where", ["weight", "teacher", "reference"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out_and_counted(plain, where, bad):
    term = Distillation(ratio_clip=2.0, anchor="urkl", anchor_weight=0.1)
    trainer = ready(plain, term)
    inputs = micro_batch(trainer.model.config.vocab_size)
    good = gradients(trainer, trainer._compute_loss(trainer.model, inputs))
    trainer._metrics["train"].clear()
    poisoned = {name: x.clone() for name, x in inputs.items()}
    count = 1.0
    handle = None
    if where == "weight":
        poisoned["gear_distill_weight"][0, 3] = bad
    elif where == "reference":
        poisoned["gear_reference_logprob"][0, 3] = bad
        count = 0.0 if math.isnan(bad) else 1.0  # NaN stands for: nobody asked
    else:

        def poison(module, args, output):
            if not torch.is_grad_enabled():
                output.last_hidden_state[0, -5] = bad

        handle = trainer.model.base_model.register_forward_hook(poison)
    loss = trainer._compute_loss(trainer.model, poisoned)
    found = gradients(trainer, loss)
    if handle is not None:
        handle.remove()
    assert loss.isfinite() and all(g.isfinite().all() for g in found.values())
    assert trainer._metrics["train"]["gear/distill/non_finite"] == [count]
    assert any(not torch.equal(found[name], good[name]) for name in good), "the token was there before"


def test_an_anchor_without_reference_is_an_error_that_says_so(plain):
    trainer = ready(plain, TERMS["anchor"])
    inputs = micro_batch(trainer.model.config.vocab_size)
    del inputs["gear_reference_logprob"]
    with pytest.raises(ValueError, match="anchored to 'reference_logprob', which was not computed"):
        trainer._compute_loss(trainer.model, inputs)


def test_rows_that_nobody_saw_are_not_anchored(plain):
    """Zeros stand for rows that were not scored: their anchor is nothing, not (log p)^2."""
    term = dataclasses.replace(TERMS["anchor"], anchor_weight=1.0)
    trainer = ready(plain, term)
    inputs = micro_batch(trainer.model.config.vocab_size)
    reference = inputs["gear_reference_logprob"].nan_to_num(0.0)
    mask = inputs["tool_mask"].bool()
    reference[:2] = 0.0
    credit = Credit(
        advantage=torch.zeros(mask.shape),
        segment_id=torch.where(mask, 0, -1),
        distill_weight=torch.zeros(mask.shape),
    )
    prompts = Prompts(ids_BP=inputs["prompt_ids"], attention_BP=inputs["prompt_mask"])
    signals = TokenSignals(mask=mask, reference_logprob=reference)
    attach(inputs, credit, signals, prompts, seen_B=torch.tensor([False, False, True, True]))
    trainer._compute_loss(trainer.model, inputs)
    found = trainer._metrics["train"]["gear/anchor/loss"][-1]
    alone = half(inputs, torch.tensor([2, 3]))
    trainer._compute_loss(trainer.model, alone)
    assert found == pytest.approx(trainer._metrics["train"]["gear/anchor/loss"][-1], rel=1e-5)
    assert found > 0.01


def test_importance_ratio_by_hand():
    old = torch.tensor([0.5, 0.5, 0.5]).log()
    found = importance_ratio(torch.tensor([0.25, 0.75, 0.9]).log(), old, clip=1.6)
    assert found.tolist() == pytest.approx([0.5, 1.5, 1.6])
    found = importance_ratio(torch.zeros(2), torch.tensor([-math.inf, math.inf]), clip=math.inf)
    assert found.tolist() == pytest.approx([math.exp(20), math.exp(-20)]), "clamped to 20 nats"


@pytest.mark.parametrize(
    ("anchor", "value", "slope"),
    [
        # of r = 2, -1 and -30; exp(20) = 4.85e8 is the most
        ("urkl", [2.0, 0.5, 450.0], [2.0, -1.0, -30.0]),
        ("rkl", [4.5, 0.0, 420.5], [3.0, 0.0, -29.0]),
        ("ufkl", [math.exp(-2) + 2, math.e - 1, math.exp(20) - 30], [1 - math.exp(-2), 1 - math.e, 1.0]),
        ("fkl", [math.exp(-2), math.e, math.exp(20)], [-math.exp(-2), -math.e, 0.0]),
        ("none", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_anchor_penalty_by_hand(anchor, value, slope):
    r = torch.tensor([2.0, -1.0, -30.0], requires_grad=True)
    found = anchor_penalty(r, anchor)
    assert found.tolist() == pytest.approx(value, rel=1e-5)
    if found.requires_grad:
        assert torch.autograd.grad(found.sum(), r)[0].tolist() == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"sharding": "FSDP"},
        {"sharding": "DEEPSPEED", "zero_stage": 3},
        {"use_liger_kernel": True},
        {"sharding": "FSDP", "use_liger_kernel": True},
    ],
)
def test_what_was_never_run_is_refused(plain, given):
    with pytest.raises(ValueError, match=r"'sdpo' distils, .* never run with FSDP"):
        checked_setup(plain, **given)


def checked_setup(trainer, use_liger_kernel=False, **given):
    args = copy.copy(trainer.args)
    args.use_liger_kernel = use_liger_kernel
    check_setup(Sdpo(), args, num_generations=4, **given)


def test_what_was_run_is_not(plain):
    checked_setup(plain, sharding="NO")
    checked_setup(plain, sharding="MULTI_CPU")


def test_the_refusal_reads_the_trainer(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(GEARTrainer, "sharding", "FSDP")
    with pytest.raises(ValueError, match=r"'sdpo' distils, .* FSDP"):
        made(tmp_path, tiny_model, Sdpo())
