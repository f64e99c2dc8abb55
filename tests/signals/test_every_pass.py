"""What all signals with forward passes keep: the model as it was, its gathered head, the pace of others."""

import contextlib
from importlib.util import find_spec

import pytest
import torch

from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.signal import FOLD_SIGNALS
from gear_rl.signals.transport import TransportDistance
from signals.rows import completions_of, counted, dropping, modes, net, prompts_of, right_padded
from support.scoring import passed

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [13], [5, 6, 7]]
HINTED = [[21, 22, *prompt] for prompt in PROMPTS]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56], [60, 61, 62]]
GIVEN = completions_of(COMPLETIONS, width=7)
READ = {
    "answer_region": right_padded([[0] * (len(row) - 1) + [1] for row in COMPLETIONS], -1, 7),
    "answer_ids_BN": right_padded([[70, 71], [73], [74, 75], [76]], -1, 2),
    "judged_group_B": torch.zeros(4, dtype=torch.int64),
    "success_B": torch.tensor([True, False, False, True]),
}
PASSES = {  # the signals, their forwards for a batch, those for row 2 alone, and how near two runs are
    "shared": (FOLD_SIGNALS, 2, 2, {"atol": 2e-5, "rtol": 1e-4}),
    "occlusion": ([AnswerOcclusion()], 1, 7, {"atol": 1e-5, "rtol": 1e-2}),
    "gradient": ([AnswerGradient(noise_std=0.1)], 2, 2, {"atol": 1e-5, "rtol": 1e-2}),
    "activation": ([AnswerActivation()], 1, 1, {"atol": 1e-5, "rtol": 1e-2}),
    "confidence": ([AnswerConfidence()], 1, 1, {"atol": 1e-6, "rtol": 1e-4}),
    # The others of its group are run beside it.
    "transport": ([TransportDistance(3, 2)], 1, 4, {"atol": 1e-5, "rtol": 0}),
}
if find_spec("ot") is None:
    del PASSES["transport"]
every_pass = pytest.mark.parametrize("name", PASSES)


@pytest.fixture
def model():
    return net(tie_word_embeddings=False)


def values_of(model, name, **options):
    teachers = [prompts_of(HINTED)] if name == "shared" else []
    return passed(model, PASSES[name][0], GIVEN, prompts_of(PROMPTS), teachers=teachers, **READ, **options)


@every_pass
@pytest.mark.parametrize("rows", [[0, 0, 1, 0], [0, 0, 0, 0]])
def test_other_rows_hold_zero_and_surplus_batches_change_nothing(model, name, rows):
    """Processes that share a sharded model run equally many forwards."""
    _, for_batch, for_row, near = PASSES[name]
    whole, row_B = values_of(model, name), torch.tensor(rows).bool()
    for num_batches, forwards in ((0, for_row * sum(rows)), (9, 9 * for_batch)):
        with counted(model) as shapes:
            found = values_of(model, name, row_B=row_B, batch_size=1, num_batches=num_batches)
        assert len(shapes) == forwards
        for key, value in whole.items():
            assert value.any()
            torch.testing.assert_close(found[key], value * row_B[:, None], msg=key, **near)


@every_pass
def test_dropout_is_off_and_the_model_is_left_as_it_was(model, name):
    expected = values_of(model, name)
    before, weight = modes(dropping(model)), model.model.layers[1].mlp.up_proj.weight
    weight.grad = torch.ones_like(weight)
    for key, value in values_of(model, name).items():
        torch.testing.assert_close(value, expected[key])
    # Also after an error, and where gradients are checkpointed.
    model.gradient_checkpointing_enable()
    refused = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        values_of(model, name)
    refused.remove()
    assert modes(model) == before and torch.is_grad_enabled()
    assert [p for p in model.parameters() if p.grad is not None] == [weight] and (weight.grad == 1).all()
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    hooks = model.get_input_embeddings()._forward_hooks.values()
    assert not any("swap" in getattr(hook, "__qualname__", "") for hook in hooks)


@every_pass
def test_the_heads_weights_are_used_inside_their_context_only(model, name):
    """Outside it they are NaN; and no forward runs inside it."""
    expected, inside = values_of(model, name), []
    weight, whole = model.lm_head.weight.data, model.lm_head.weight.detach().clone()

    @contextlib.contextmanager
    def gathered(given):
        assert given is model
        inside.append(weight.copy_(whole))
        yield
        inside.pop().fill_(torch.nan)

    weight.fill_(torch.nan)
    model.register_forward_pre_hook(lambda *_: pytest.fail("a forward under the head") if inside else None)
    for key, value in values_of(model, name, head_context=gathered).items():
        torch.testing.assert_close(value, expected[key])
