"""Left padding beside the way a model knows positions: every row of a padded batch is the row alone."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from engines.positions import MODELS, made
from gear_rl.signals.batch import Completions, TeacherPrompt, left_padded
from gear_rl.signals.confidence import answer_confidence
from gear_rl.signals.forwards import (
    hidden_states,
    last_states,
    padding_moves_positions,
    positions,
    takes_positions,
)
from gear_rl.signals.transport import transport_distances
from signals.saliency_loops import saliency, signal_of
from support.scoring import score, teacher_states

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [13], [5, 6, 7]]
HINTED = [[21, 22, *PROMPTS[0]], [23, *PROMPTS[1]], [24, 25, 26, *PROMPTS[2]], [21, 22, *PROMPTS[3]]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56], [60, 61, 62]]
WIDTH = 7
NEEDS = ("student_logprob", "teacher_logprob", "student_entropy", "divergence", "js_divergence")


@pytest.fixture(params=MODELS)
def model(request) -> nn.Module:
    return made(request.param)


def padded(prompts):
    return left_padded([TeacherPrompt(tuple(ids)) for ids in prompts], pad_id=0)


def completions() -> Completions:
    ids = torch.tensor([row + [0] * (WIDTH - len(row)) for row in COMPLETIONS])
    attention = (torch.arange(WIDTH) < torch.tensor([len(row) for row in COMPLETIONS])[:, None]).long()
    return Completions(ids=ids, attention=attention, mask=attention.bool())


def alone(b: int) -> Completions:
    ids = torch.tensor([COMPLETIONS[b]])
    return Completions(ids=ids, attention=torch.ones_like(ids), mask=torch.ones_like(ids).bool())


@torch.no_grad()
def by_hand(model):
    """Each token by a forward over exactly the tokens before it; no padding, no mask, no position is given."""
    found = {name: torch.zeros(len(COMPLETIONS), WIDTH) for name in NEEDS}
    for b, completion in enumerate(COMPLETIONS):
        for t, token in enumerate(completion):
            p, q = (
                model(input_ids=torch.tensor([prompt + completion[:t]])).logits[0, -1].log_softmax(-1)
                for prompt in (PROMPTS[b], HINTED[b])
            )
            middle = ((p.exp() + q.exp()) / 2).log()
            found["student_logprob"][b, t], found["teacher_logprob"][b, t] = p[token], q[token]
            found["student_entropy"][b, t] = -(p.exp() * p).sum()
            found["divergence"][b, t] = (p.exp() * (p - q)).sum()
            found["js_divergence"][b, t] = (p.exp() * (p - middle) + q.exp() * (q - middle)).sum() / 2
    return found


@pytest.mark.parametrize("share_prompts", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_signals_agree_with_one_token_at_a_time(model, batch_size, share_prompts):
    expected = by_hand(model)
    assert expected["divergence"].max() > 0.02, "the oracle must have something to see"
    found = score(
        model,
        completions(),
        padded(PROMPTS),
        padded(HINTED),
        needs=NEEDS,
        batch_size=batch_size,
        share_prompts=share_prompts,
    )
    for name in NEEDS:
        torch.testing.assert_close(found.get(name), expected[name], atol=2e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_a_completion_goes_on_where_its_shared_prompt_ended(name):
    """Prompts of many tokens and completions of few, so that the cache is taken."""
    model, longer = made(name), [list(range(5, 25)), list(range(30, 44))]
    prompts = padded([longer[0], longer[1], longer[0], longer[1]])
    calls = []
    handle = model.base_model.register_forward_pre_hook(
        lambda module, args, given: calls.append(given["position_ids"]), with_kwargs=True
    )
    found = score(model, completions(), prompts, needs=["student_logprob"], share_prompts=True)
    handle.remove()
    # Two prompts, padded to 20, then six tokens of each completion behind 20 and 14 of them.
    assert [tuple(x.shape) for x in calls] == [(2, 20), (4, 6)]
    assert sorted(calls[0][:, -1].tolist()) == [13, 19]
    assert sorted(calls[1][:, 0].tolist()) == [14, 14, 20, 20]
    for b in range(4):
        one = score(model, alone(b), padded([longer[b % 2]]), needs=["student_logprob"])
        width = len(COMPLETIONS[b])
        torch.testing.assert_close(
            found.student_logprob[b, :width], one.student_logprob[0], atol=2e-5, rtol=1e-4
        )


def test_a_teacher_that_sees_the_same_prompt_diverges_by_nothing(model):
    found = score(model, completions(), padded(PROMPTS), padded(PROMPTS), needs=["divergence"])
    assert (found.divergence == 0).all()
    # Also where one of its prompts is longer, so that its batch has more padding than the student's.
    longer = padded([*PROMPTS, list(range(30, 50))])
    wide = type(longer)(ids_BP=longer.ids_BP[:-1], attention_BP=longer.attention_BP[:-1])
    ahead = teacher_states(model, completions(), wide)
    for teacher in (wide, ahead):
        found = score(model, completions(), padded(PROMPTS), teacher, needs=["divergence"])
        assert found.divergence.max() < 1e-6
    long = [PROMPTS[0], list(range(30, 50)), PROMPTS[2], PROMPTS[3]]
    found = score(model, completions(), padded(PROMPTS), padded(long), needs=["divergence"])
    assert found.divergence[[0, 2, 3]].max() < 1e-6 and found.divergence[1].max() > 1e-3


@pytest.mark.parametrize("name", ["answer_occlusion", "answer_gradient", "answer_activation"])
def test_saliency_is_that_of_each_row_alone(model, name):
    region = torch.full((4, WIDTH), -1)
    for b, row in enumerate(COMPLETIONS):
        region[b, : len(row)] = torch.tensor([0] * (len(row) - 1) + [1])
    signal = signal_of(name, noise_std=0.1)
    found = saliency(model, completions(), padded(PROMPTS), region, [signal], pad_id=0)[name]
    assert found.max() > 1e-4
    for b, row in enumerate(COMPLETIONS):
        mine = region[b : b + 1, : len(row)]
        one = saliency(model, alone(b), padded([PROMPTS[b]]), mine, [signal], pad_id=0)[name]
        torch.testing.assert_close(found[b, : len(row)], one[0], atol=1e-5, rtol=1e-3)


def test_confidence_is_that_of_each_row_alone(model):
    answers = [[70, 71], [73], [74, 75], [76]]
    found = answer_confidence(model, completions(), padded(PROMPTS), answers)
    for b, row in enumerate(COMPLETIONS):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([PROMPTS[b] + answers[b]])).logits[0]
        logprob = logits.log_softmax(-1)[len(PROMPTS[b]) - 1 : -1]
        mean = logprob[torch.arange(len(answers[b])), answers[b]].mean()
        torch.testing.assert_close(found[b, : len(row)], mean.exp().expand(len(row)), atol=1e-6, rtol=1e-3)


def test_hidden_states_and_their_distances_are_those_of_each_row_alone(model):
    pytest.importorskip("ot", reason="POT is an extra: pip install 'gear-rl[shear]'")
    prompts, everyone = padded(PROMPTS), completions()
    both = (
        torch.cat([prompts.ids_BP, everyone.ids], 1),
        torch.cat([prompts.attention_BP, everyone.attention], 1),
    )
    with torch.no_grad():
        states = last_states(model, *both)[:, -WIDTH:]
        for b, row in enumerate(COMPLETIONS):
            ids = torch.tensor([PROMPTS[b] + row])
            one = last_states(model, ids, torch.ones_like(ids))[0, -len(row) :]
            torch.testing.assert_close(states[b, : len(row)], one, atol=1e-4, rtol=1e-3)
    group_B, right_B = torch.tensor([0, 1, 1, 0]), torch.tensor([True, True, False, False])
    together, one_by_one = (
        transport_distances(model, everyone, prompts, group_B, right_B, batch_size=size) for size in (4, 1)
    )
    assert together.max() > 0.1
    torch.testing.assert_close(together, one_by_one, atol=1e-4, rtol=1e-3)


# --- which model takes positions, and for which they matter ---------------------------------------------------

TAKES = {"gpt2": True, "opt": True, "qwen3": True, "llama": True, "bloom": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_what_padding_moves(name, dtype):
    model = made(name).to(dtype).train()
    assert takes_positions(model) is TAKES[name]
    assert padding_moves_positions(model) is (name == "gpt2")
    assert all(module.training for module in model.modules())
    # The definition: the same row with padding before it, as TRL's loss runs it.
    model.float().eval()
    row, mask = torch.tensor([[0] * 5 + [20, 21, 22]]), torch.tensor([[0] * 5 + [1] * 3])
    with torch.no_grad():
        there = model(input_ids=row, attention_mask=mask).logits[0, -1]
        here = model(input_ids=row[:, 5:]).logits[0, -1]
    assert bool((there - here).abs().max() > 0.05) is (name == "gpt2")


@pytest.mark.parametrize("wrap", ["peft", "compiled", "parallel"])
def test_a_wrapper_hides_nothing(wrap):
    for name in ("gpt2", "bloom"):
        model = made(name)
        if wrap == "peft":
            targets = {"gpt2": ["c_attn"], "bloom": ["query_key_value"]}[name]
            model = get_peft_model(
                model, LoraConfig(r=2, target_modules=targets, fan_in_fan_out=name == "gpt2")
            )
        elif wrap == "compiled":
            model = torch.compile(model, backend="eager")
        else:
            model = nn.DataParallel(model)
        assert takes_positions(model) is TAKES[name]
    wrapped = made("gpt2")
    wrapped = get_peft_model(wrapped, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)).eval()
    assert padding_moves_positions(wrapped)
    ids, attention = torch.tensor([[0, 0, 0, 9, 8, 7]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
    with torch.no_grad():
        found = hidden_states(wrapped, ids, attention, num_tokens=2)
        expected = hidden_states(wrapped, ids[:, 3:], attention[:, 3:], num_tokens=2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_positions_begin_with_the_first_token():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    assert positions(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 0, 0, 0]]
