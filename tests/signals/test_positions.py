"""Left padding beside the way a model knows positions: every row of a padded batch is the row alone."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from engines.positions import MODELS, made
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.forwards import hidden_states, last_states, padding_moves_positions, takes_positions
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from signals.rows import completions_of, prompts_of, right_padded
from support.scoring import passed, score, scorer

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [13], [5, 6, 7]]
HINTED = [[21, 22, *PROMPTS[0]], [23, *PROMPTS[1]], [24, 25, 26, *PROMPTS[2]], [21, 22, *PROMPTS[3]]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56], [60, 61, 62]]
ANSWERS = [[70, 71], [73], [74, 75], [76]]
WIDTH = 7
GIVEN = completions_of(COMPLETIONS, width=WIDTH)
NEEDS = ("student_logprob", "teacher_logprob", "student_entropy", "divergence", "js_divergence")
OWN_PASSES = (AnswerOcclusion(), AnswerGradient(noise_std=0.1), AnswerActivation(), AnswerConfidence())


@pytest.fixture(params=MODELS)
def model(request) -> nn.Module:
    return made(request.param)


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
    settings = {"batch_size": batch_size, "share_prompts": share_prompts}
    found = score(model, GIVEN, prompts_of(PROMPTS), prompts_of(HINTED), needs=NEEDS, **settings)
    for name in NEEDS:
        torch.testing.assert_close(found.get(name), expected[name], atol=2e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_a_completion_goes_on_where_its_shared_prompt_ended(name):
    """Prompts of many tokens and completions of few, so that the cache is taken."""
    model, longer = made(name), [list(range(5, 25)), list(range(30, 44))]
    prompts = prompts_of([longer[0], longer[1], longer[0], longer[1]])
    calls = []
    handle = model.base_model.register_forward_pre_hook(
        lambda module, args, given: calls.append(given["position_ids"]), with_kwargs=True
    )
    found = score(model, GIVEN, prompts, needs=["student_logprob"], share_prompts=True)
    handle.remove()
    # Two prompts, padded to 20, then six tokens of each completion behind 20 and 14 of them.
    assert [tuple(x.shape) for x in calls] == [(2, 20), (4, 6)]
    assert sorted(calls[0][:, -1].tolist()) == [13, 19]
    assert sorted(calls[1][:, 0].tolist()) == [14, 14, 20, 20]
    whole = score(model, GIVEN, prompts, needs=["student_logprob"])
    torch.testing.assert_close(found.student_logprob, whole.student_logprob, atol=2e-5, rtol=1e-4)


def test_a_teacher_that_sees_the_same_prompt_diverges_by_nothing(model):
    student = prompts_of(PROMPTS)
    assert (score(model, GIVEN, student, student, needs=["divergence"]).divergence == 0).all()
    # Also where one of its prompts is longer, so that its batch has more padding than the student's.
    long = prompts_of([PROMPTS[0], list(range(30, 50)), *PROMPTS[2:]])
    for teacher in (long, scorer(model, GIVEN).teacher_states(long)):
        found = score(model, GIVEN, student, teacher, needs=["divergence"])
        assert found.divergence[[0, 2, 3]].max() < 1e-6 and found.divergence[1].max() > 1e-3


def test_signals_of_their_own_passes_are_those_of_each_row_alone(model):
    region = right_padded([[0] * (len(row) - 1) + [1] for row in COMPLETIONS], -1, WIDTH)
    inputs = {"answer_region": region, "answer_ids_BN": right_padded(ANSWERS, -1, 2)}
    found = passed(model, OWN_PASSES, GIVEN, prompts_of(PROMPTS), **inputs)
    assert min(values.max() for values in found.values()) > 1e-4
    prompts = prompts_of(PROMPTS)
    ids, attention = (
        torch.cat(both, 1) for both in ((prompts.ids_BP, GIVEN.ids), (prompts.attention_BP, GIVEN.attention))
    )
    with torch.no_grad():
        states = last_states(model, ids, attention)[:, -WIDTH:]
    for b, row in enumerate(COMPLETIONS):
        own = {name: values[b : b + 1, : len(row)] for name, values in inputs.items()}
        alone = passed(
            model, OWN_PASSES, completions_of([row], width=len(row)), prompts_of([PROMPTS[b]]), **own
        )
        for name, values in alone.items():
            torch.testing.assert_close(found[name][b, : len(row)], values[0], atol=1e-5, rtol=1e-3, msg=name)
        ids = torch.tensor([PROMPTS[b] + row])
        with torch.no_grad():
            one = last_states(model, ids, torch.ones_like(ids))[0, -len(row) :]
        torch.testing.assert_close(states[b, : len(row)], one, atol=1e-4, rtol=1e-3)


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
    for name, target in (("gpt2", "c_attn"), ("bloom", "query_key_value")):
        model = made(name)
        if wrap == "peft":
            lora = LoraConfig(r=2, target_modules=[target], fan_in_fan_out=name == "gpt2")
            model = get_peft_model(model, lora).eval()
            assert padding_moves_positions(model) is (name == "gpt2")
            ids, attention = torch.tensor([[0, 0, 0, 9, 8, 7]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
            with torch.no_grad():
                found = hidden_states(model, ids, attention, num_tokens=2)
                expected = hidden_states(model, ids[:, 3:], attention[:, 3:], num_tokens=2)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        elif wrap == "compiled":
            model = torch.compile(model, backend="eager")
        else:
            model = nn.DataParallel(model)
        assert takes_positions(model) is TAKES[name]
