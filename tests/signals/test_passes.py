"""Signals against an oracle that knows no batch, no padding, no hook and no tile: one token at a time."""

import contextlib

import pytest
import torch
from peft import LoHaConfig, LoraConfig, get_peft_model
from torch import nn
from trl.trainer.utils import add_fused_lm_head

from engines import tiny
from gear_rl.model.forwards import head_of, hidden_states
from gear_rl.model.teacher import CopyTeacher
from gear_rl.signals.passes import KeptStates, contrast_signals
from gear_rl.types import TokenSignals
from signals.rows import (
    completions_of,
    counted,
    net,
    process_group,
    prompts_of,
    sharded,
)
from support.scoring import passed, score

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]
HINTED = [[21, 22, *PROMPTS[0]], [23, *PROMPTS[1]], [24, 25, 26, *PROMPTS[2]]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56]]
MASKS = [[1, 1, 0, 1], [1, 1], [0, 1, 1, 0, 0, 1, 1]]
PLAIN = ("student_logprob", "teacher_logprob", "student_entropy", "divergence")
EVERY = (*PLAIN, "teacher_entropy")
GIVEN = completions_of(COMPLETIONS, MASKS), prompts_of(PROMPTS), prompts_of(HINTED)


@pytest.fixture
def model():
    return net()


@torch.no_grad()
def by_hand(model, temperature=1.0, teacher=None, rows=(PROMPTS, HINTED, COMPLETIONS, MASKS)):
    """Each token by a forward over exactly the tokens before it; no padding, no mask, no position is given."""
    found = {name: torch.zeros(len(rows[0]), 9) for name in EVERY}
    for b, (own, hinted, completion, mask) in enumerate(zip(*rows, strict=True)):
        for t, token in enumerate(completion):
            if not mask[t]:
                continue
            p, q = (
                (
                    net(input_ids=torch.tensor([prompt + completion[:t]])).logits[0, -1] / temperature
                ).log_softmax(-1)
                for net, prompt in ((model, own), (teacher or model, hinted))
            )
            values = {
                "student_logprob": p[token],
                "teacher_logprob": q[token],
                "student_entropy": -(p.exp() * p).sum(),
                "divergence": (p.exp() * (p - q)).sum(),
                "teacher_entropy": -(q.exp() * q).sum(),
            }
            for name, value in values.items():
                found[name][b, t] = value
    return found


def agree(found, expected, names=EVERY):
    for name in names:
        torch.testing.assert_close(found.get(name), expected[name], atol=2e-5, rtol=1e-4, msg=name)


def same(found, expected, names=EVERY):
    for name in names:
        assert torch.equal(found.get(name), expected.get(name)), name


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_agrees_with_one_token_at_a_time(model, batch_size, temperature):
    expected = by_hand(model, temperature)
    assert min(value.abs().max() for value in expected.values()) > 0.01, (
        "the oracle must have something to see"
    )
    settings = {"temperature": temperature, "batch_size": batch_size}
    found = score(model, *GIVEN, needs=EVERY, **settings)
    agree(found, expected)
    same(score(model, *GIVEN, needs=PLAIN, **settings), found, PLAIN)
    same(score(model, *GIVEN, needs=["teacher_entropy"], **settings), found, ["teacher_entropy"])


@pytest.mark.parametrize(
    ("needs", "forwards"),
    [
        (("teacher_logprob",), 1),  # the teacher takes the student's place
        (("teacher_entropy",), 1),
        (("student_entropy", "teacher_entropy"), 2),
        (EVERY, 2),
    ],
)
def test_computes_what_is_needed_and_nothing_else(model, needs, forwards):
    with counted(model) as shapes:
        found = score(model, *GIVEN, needs=needs)
    assert len(shapes) == forwards and [*found.values] == [*needs]
    agree(found, by_hand(model), needs)


@pytest.mark.parametrize("wrap", ["fused", "peft", "ddp", "fsdp"])
def test_holds_under_what_wraps_a_model(model, wrap, tmp_path):
    expected = by_hand(model)
    with process_group(tmp_path) if wrap in ("ddp", "fsdp") else contextlib.nullcontext():
        if wrap == "fused":
            add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        elif wrap == "peft":
            model = tiny.louder(get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])), 1.0)
            nn.init.normal_(next(p for name, p in model.named_parameters() if "lora_B" in name), std=0.5)
            expected = by_hand(model)
        else:
            model = sharded(model) if wrap == "fsdp" else nn.parallel.DistributedDataParallel(model)
        agree(score(model, *GIVEN, needs=EVERY), expected)


def test_logit_scale_and_softcap_of_the_config_are_honoured(model):
    hidden = torch.randn(3, 40)
    raw = hidden @ model.lm_head.weight.T
    assert torch.allclose(head_of(model, 1.0).logits(hidden), raw, atol=1e-5)
    model.config.final_logit_softcapping = 3.0
    assert torch.allclose(head_of(model, 1.0).logits(hidden), torch.tanh(raw / 3) * 3, atol=1e-5)
    model.config.final_logit_softcapping, model.config.logits_soft_cap = None, 2.0  # RecurrentGemma
    assert torch.allclose(head_of(model, 1.0).logits(hidden), torch.tanh(raw / 2) * 2, atol=1e-5)
    model.config.final_logit_softcapping = 3.0
    model.config.logits_scaling = 4.0  # Granite divides
    capped = torch.tanh(raw / 4 / 3) * 3
    assert torch.allclose(head_of(model, 0.5).logits(hidden), capped / 0.5, atol=1e-5)
    model.config.logit_scale = 2.0  # Cohere multiplies, and comes first
    assert torch.allclose(head_of(model, 1.0).logits(hidden), torch.tanh(raw * 2 / 3) * 3, atol=1e-5)


@pytest.mark.parametrize("adapter", [LoraConfig(r=2), LoHaConfig(r=2)], ids=["LoRA", "LoHa"])
def test_an_adapter_on_the_head_is_refused(model, adapter):
    """PEFT's layer shows its base weight, so the signals would be wrong without a word."""
    adapter.target_modules = ["q_proj", "lm_head"]
    wrapped = get_peft_model(model, adapter)
    with pytest.raises(ValueError, match="the head is wrapped by an adapter"):
        score(wrapped, *GIVEN, needs=EVERY)


def test_a_model_with_another_head_is_refused(model):
    """In its own forward, not in its config."""
    model.lm_head.register_forward_hook(lambda module, given, logits: 3 * torch.tanh(logits / 3))
    with pytest.raises(ValueError, match="does not compute its logits by its head alone"):
        score(model, *GIVEN, needs=EVERY)


def test_a_teacher_with_other_weights_uses_its_own_head(model):
    """With tied embeddings a full fine-tune moves the head too."""
    teacher, frozen = CopyTeacher(model), tiny.model(97, hidden_size=40)
    frozen.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    before = {name: p.clone() for name, p in model.named_parameters()}
    expected, lent = by_hand(model, teacher=frozen.eval()), {"teacher": teacher}
    agree(score(model, *GIVEN, needs=EVERY, batch_size=2, **lent), expected)
    agree(score(model, *GIVEN, needs=["teacher_entropy"], **lent), expected, ["teacher_entropy"])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


# --- passes that were run before, and the order of the rows --------------------------------------------------


@pytest.mark.parametrize("scored", [[True] * 3, [False] * 3], ids=["every row", "no row"])
def test_another_model_as_teacher(model, scored):
    """Also on a process that scores no row while another does."""
    completions, student, teacher = GIVEN
    other = tiny.louder(tiny.model(97, hidden_size=16), 12.0)
    options = {"teachers": [teacher], "row_B": torch.tensor(scored), "num_batches": 2, "teacher_model": other}
    found, expected = passed(model, EVERY, completions, student, **options), by_hand(model, teacher=other)
    for name in EVERY:
        wanted = expected[name] * torch.tensor(scored)[:, None]
        torch.testing.assert_close(found[name], wanted, atol=2e-5, rtol=1e-4, msg=name)


def test_states_of_the_student_stand_for_its_pass(model):
    completions, student, _ = GIVEN
    states = KeptStates(completions.attention.bool())
    ids = torch.cat([student.ids_BP, completions.ids], 1)
    attention = torch.cat([student.attention_BP, completions.attention], 1)
    with torch.no_grad():
        for rows in (torch.tensor([0, 1]), torch.tensor([2])):
            keep = states.mask[rows]
            states.take(rows, keep, hidden_states(model, ids[rows], attention[rows], num_tokens=9)[keep])
    with counted(model) as shapes:
        found = score(model, *GIVEN, needs=EVERY, student_states=states)
    assert len(shapes) == 1, "the teacher's"
    agree(found, by_hand(model))


def test_a_contrast_by_hand():
    nan, mask = float("nan"), torch.tensor([[True, True, False, True]])
    right = {
        "student_logprob": [-1.0, -2.0, 0.0, -0.5],
        "teacher_logprob": [-0.5, -4.0, 0.0, -0.5],
        "teacher_entropy": [2.0, 0.5, 0.0, 0.25],
        "divergence": [1.0, 3.0, 0.0, nan],
    }
    wrong = {
        "teacher_logprob": [-0.7, -1.0, 0.0, -0.5],
        "teacher_entropy": [1.0, 1.0, 0.0, 1.0],
        "divergence": [1.5, 0.5, 0.0, 0.1],
    }
    right, wrong = (
        TokenSignals(mask=mask, values={name: torch.tensor([x]) for name, x in values.items()})
        for values in (right, wrong)
    )
    found = contrast_signals(right, wrong)
    assert [*found.values] == [*right.values]
    torch.testing.assert_close(found.divergence, torch.tensor([[0.0, 2.5, 0.0, nan]]), equal_nan=True)
    # The log-ratio that a method reads is log T+ - log T-: 0.2, -3 and 0.
    ratio = found.teacher_logprob - found.get("student_logprob")
    torch.testing.assert_close(ratio, torch.tensor([[0.2, -3.0, 0.0, 0.0]]))
    assert found.teacher_entropy is right.teacher_entropy
    with pytest.raises(ValueError, match="'divergence' was not computed"):
        contrast_signals(right, TokenSignals(mask=mask))
