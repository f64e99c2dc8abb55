"""Saliency against loops that know no batch, no padding and no hook: float64, full logits, finite differences."""

import pytest
import torch
from torch import nn

from gear_rl.signals.batch import Completions, Prompts
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from signals.saliency_loops import (
    BOX,
    COMPLETIONS,
    EVERY,
    PAD,
    PROMPTS,
    REGIONS,
    SIGNALS,
    WIDTH,
    answer_loss,
    batch,
    befores,
    contents,
    double,
    embedded,
    found,
    net,
    noisy_embeddings,
    saliency,
    slow_activation,
    slow_gradient,
    slow_occlusion,
)


@pytest.fixture
def model() -> nn.Module:
    return net()


# the signals are the loops


@pytest.mark.parametrize("readout", ["mean", "last", "joint"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_occlusion_is_the_loop(model, readout, temperature):
    expected = slow_occlusion(model, readout, temperature)
    assert (expected > 0.001).sum() >= 4, "the loop must have something to see"
    settings = {"readout": readout, "temperature": temperature}
    for batch_size in (1, 3, 8):
        values = found(model, "answer_occlusion", batch_size=batch_size, **settings)
        torch.testing.assert_close(values, expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("readout", ["mean", "last", "joint"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_the_difference_quotient(model, readout, temperature):
    settings = {"readout": readout, "temperature": temperature, "noise_std": 0.05}
    noisy, alone = noisy_embeddings(model, **settings)
    expected = slow_gradient(model, noisy, readout, temperature)
    assert (expected > 1e-3).sum() >= 3
    torch.testing.assert_close(alone, expected, atol=2e-5, rtol=2e-3)
    torch.testing.assert_close(found(model, "answer_gradient", **settings), expected, atol=2e-5, rtol=2e-3)


def test_the_noise_lies_on_the_tokens_before_the_answer_only(model):
    noisy, _ = noisy_embeddings(model, noise_std=0.25)
    drawn = []
    for b in (0, 2, 3):
        noise = noisy[b] - embedded(model, b)[0].double()
        places = [len(PROMPTS[b]) + t for t in befores(b)]
        assert noise[places].abs().min() > 0 if places else True
        drawn.append(noise[places].flatten())
        noise[places] = 0.0
        assert (noise == 0).all()
    assert torch.cat(drawn).std() == pytest.approx(0.25, rel=0.2)
    assert abs(torch.cat(drawn).mean()) < 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_activation_is_the_difference_quotient(model, temperature):
    box, content = (slow_activation(model, spans, temperature) for spans in (BOX, map(contents, range(4))))
    assert (box > 0.01).sum() >= 5 and not torch.allclose(box, content, rtol=0.05)
    for expected, span in ((box, {}), (content, {"loss_span": "content"})):
        for batch_size in (1, 8):
            values = found(model, "answer_activation", temperature=temperature, batch_size=batch_size, **span)
            torch.testing.assert_close(values, expected, atol=2e-5, rtol=2e-3)


@pytest.mark.parametrize(
    ("num_layers", "layer", "number"),
    [(5, "input", 0), (5, "first", 1), (5, "middle", 2), (5, "last", 4), (1, "middle", 0), (1, "last", 0)],
)
def test_the_layers_are_the_released_ones(num_layers, layer, number):
    """``hidden_states[k]`` of the model itself, in float64, differentiated from below."""
    model = net(num_layers, scale=5.0)
    exact = double(model)
    expected = torch.zeros(4, WIDTH)
    for b, tokens in enumerate(BOX):
        if tokens:
            h = embedded(exact, b).requires_grad_()
            out = exact(inputs_embeds=h, output_hidden_states=True)
            state = out.hidden_states[number]
            (gradient,) = torch.autograd.grad(answer_loss(out.logits[0], b, tokens), state)
            for t, region in enumerate(REGIONS[b]):
                place = len(PROMPTS[b]) + t - 1
                if region >= 0:
                    expected[b, t] = (gradient[0, place] * state[0, place]).norm().item()
    values = found(model, "answer_activation", layer=layer)
    torch.testing.assert_close(values, expected, atol=2e-5, rtol=2e-3)


# what they promise


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("readout", ["mean", "joint"])
def test_neighbours_padding_and_batch_size_change_nothing(model, name, readout):
    together = found(model, name, readout=readout)
    for b in range(4):
        alone = found(model, name, rows=(b,), width=len(COMPLETIONS[b]), readout=readout)
        torch.testing.assert_close(
            together[b, : len(COMPLETIONS[b])], alone[0], atol=1e-5 * together.max().item(), rtol=2e-2
        )
        assert (together[b, len(COMPLETIONS[b]) :] == 0).all()


@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_but_what_was_asked_for_is_anything_but_zero(model, name):
    values = found(model, name)
    _, _, region = batch()
    assert (values[1] == 0).all(), "no answer"
    assert (values[region < 0] == 0).all(), "tool output and padding"
    assert (values >= 0).all()
    if name != "answer_activation":
        assert (values[region != 0] == 0).all()
        assert (values[3] == 0).all(), "nothing stands before the answer"
        assert (values[[0, 2]][region[[0, 2]] == 0] > 0).all()
    else:
        assert (values[0, :6] > 0)[region[0, :6] >= 0].all()
        assert values[3, 0] > 0, "the prompt's last position predicts the first token"


def test_without_noise_the_gradient_is_zero_and_it_grows_with_it(model):
    some = found(model, "answer_gradient", noise_std=1e-3)
    # What is left is rounding: p~ - p is not exactly 0.
    none = found(model, "answer_gradient", noise_std=0.0)
    assert some.max() > 1e-4
    assert none.max() < 1e-3 * some.max()
    assert found(model, "answer_gradient", noise_std=1e-2).max() > 3 * some.max()


def test_the_noise_hangs_on_the_seed_and_on_nothing_global(model):
    torch.manual_seed(0)
    first = found(model, "answer_gradient")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(found(model, "answer_gradient"), first)
    assert torch.equal(torch.get_rng_state(), state)
    other = found(model, "answer_gradient", seed=1)
    assert not torch.allclose(other[0], first[0], rtol=1e-2)


def test_two_completions_do_not_share_their_noise(model):
    """Same length, other tokens: the same noise on both would tie them to their place in the batch."""
    noisy, _ = noisy_embeddings(model, noise_std=1.0)
    zero, two = (
        (noisy[b] - embedded(model, b)[0].double())[len(PROMPTS[b]) : len(PROMPTS[b]) + 2] for b in (0, 2)
    )
    assert not torch.allclose(zero, two, atol=0.1)


@pytest.mark.parametrize("name", SIGNALS)
def test_rows_that_are_not_wanted_hold_zero_and_cost_nothing(model, name):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    wanted = found(model, name, row_B=torch.tensor([False, True, True, False]), batch_size=1)
    handle.remove()
    # Row 2 alone is answered: as it is and four times occluded; clean and noisy; once.
    assert len(calls) == {"answer_occlusion": 5, "answer_gradient": 2, "answer_activation": 1}[name]
    torch.testing.assert_close(wanted[2], found(model, name)[2], atol=1e-5, rtol=1e-2)
    assert (wanted[[0, 1, 3]] == 0).all()


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 0, 2, 3)])
def test_surplus_batches_keep_sharded_processes_in_step_and_change_nothing(model, name, rows):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    expected, first = found(model, name, rows=rows, batch_size=3), len(calls)
    surplus = found(model, name, rows=rows, batch_size=3, num_batches=first + 4)
    nothing = found(model, name, rows=rows, row_B=torch.zeros(4, dtype=torch.bool), num_batches=2)
    handle.remove()
    each = 2 if name == "answer_gradient" else 1
    assert torch.equal(surplus, expected)
    assert len(calls) == first + each * (first + 4) + each * 2
    assert (nothing == 0).all()


def test_all_three_at_once_are_the_three_alone(model):
    completions, prompts, region = batch()
    every = saliency(model, completions, prompts, region, EVERY, pad_id=PAD)
    assert list(every) == list(SIGNALS)
    for name, values in every.items():
        assert torch.equal(values, found(model, name))
    assert saliency(model, completions, prompts, region, (), pad_id=PAD) == {}


def test_no_completions_are_fine(model):
    none = torch.zeros(0, WIDTH, dtype=torch.long)
    completions = Completions(ids=none, attention=none, mask=none.bool())
    prompts = Prompts(ids_BP=torch.zeros(0, 2).long(), attention_BP=torch.zeros(0, 2).long())
    every = saliency(model, completions, prompts, none, EVERY, pad_id=PAD, num_batches=2)
    assert all(values.shape == (0, WIDTH) for values in every.values())


def test_one_rows_broken_weights_are_left_in_place_and_stay_its_own(model):
    with torch.no_grad():
        model.get_input_embeddings().weight[31] = torch.nan  # a token of row 0 alone
    for name in SIGNALS:
        values = found(model, name)
        assert values[0].isnan().any(), name
        assert values[1:].isfinite().all(), name
        assert values[2].any(), name


def test_logits_that_are_ruled_out_do_not_make_a_nan(model):
    """A padded vocabulary: minus infinity under both distributions."""
    model.lm_head = nn.Linear(16, 97, bias=True)
    with torch.no_grad():
        model.lm_head.bias[90:] = -torch.inf
    for name in SIGNALS:
        values = found(model, name)
        assert values.isfinite().all() and values[0].any(), name


@pytest.mark.parametrize(
    ("signal", "settings", "message"),
    [
        (AnswerOcclusion, {"readout": "sum"}, "readout: 'sum' is not one of mean, last, joint"),
        (AnswerActivation, {"layer": "third"}, "layer: 'third' is not one of input, first, middle, last"),
        (AnswerActivation, {"loss_span": "all"}, "loss_span: 'all' is not one of box, content"),
        (AnswerGradient, {"noise_std": -1.0}, "noise_std: -1.0 must be a finite number, 0 or more"),
        (AnswerGradient, {"noise_std": float("nan")}, "noise_std: nan"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_setting_outside_its_range_is_named(signal, settings, message):
    with pytest.raises(ValueError, match=message):
        signal(**settings)
