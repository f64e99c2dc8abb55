"""Left padding beside the way a model knows positions: every row of a padded batch is the row alone."""

import pytest
import torch
from torch import nn

from engines.positions import MODELS, made
from signals.rows import prompts_of
from signals.test_every_pass import COMPLETIONS, GIVEN, HINTED, PROMPTS
from signals.test_passes import EVERY, by_hand
from support.scoring import score


@pytest.fixture(params=MODELS)
def model(request) -> nn.Module:
    return made(request.param)


@pytest.mark.parametrize("share_prompts", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_signals_agree_with_one_token_at_a_time(model, batch_size, share_prompts):
    expected = by_hand(model, rows=(PROMPTS, HINTED, COMPLETIONS, [[1] * 7] * 4))
    assert expected["divergence"].max() > 0.02, "the oracle must have something to see"
    settings = {"batch_size": batch_size, "share_prompts": share_prompts}
    found = score(model, GIVEN, prompts_of(PROMPTS), prompts_of(HINTED), needs=EVERY, **settings)
    for name in EVERY:
        torch.testing.assert_close(found.get(name), expected[name][:, :7], atol=2e-5, rtol=1e-3, msg=name)


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
    found = score(model, GIVEN, student, long, needs=["divergence"])
    assert found.divergence[[0, 2, 3]].max() < 1e-6 and found.divergence[1].max() > 1e-3
