"""Saliency against loops that know no batch, no padding and no hook: float64, full logits, finite differences."""

import pytest
import torch
from torch import nn

from signals.saliency_loops import (
    BOX,
    PROMPTS,
    REGIONS,
    SIGNALS,
    WIDTH,
    answer_loss,
    befores,
    contents,
    double,
    embedded,
    found,
    net,
    noisy_embeddings,
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


@pytest.mark.parametrize(
    ("num_layers", "layer", "number", "loss_span", "temperature"),
    [
        (5, "input", 0, "box", 1.0),
        (5, "input", 0, "content", 0.7),
        (5, "first", 1, "box", 1.0),
        (5, "middle", 2, "content", 1.0),
        (5, "last", 4, "box", 0.7),
        (1, "middle", 0, "box", 1.0),
        (1, "last", 0, "box", 1.0),
    ],
)
def test_the_activation_is_that_of_the_released_layer(num_layers, layer, number, loss_span, temperature):
    """``hidden_states[k]`` of the model itself, in float64, differentiated from below."""
    model = net(num_layers, scale=5.0)
    exact = double(model)
    expected = torch.zeros(4, WIDTH)
    for b, tokens in enumerate(BOX if loss_span == "box" else map(contents, range(4))):
        if tokens:
            h = embedded(exact, b).requires_grad_()
            out = exact(inputs_embeds=h, output_hidden_states=True)
            state = out.hidden_states[number]
            (gradient,) = torch.autograd.grad(answer_loss(out.logits[0], b, tokens, temperature), state)
            for t, region in enumerate(REGIONS[b]):
                place = len(PROMPTS[b]) + t - 1  # it predicts token t
                if region >= 0:
                    expected[b, t] = (gradient[0, place] * state[0, place]).norm().item()
    assert (expected > 0.01).sum() >= 5
    options = {"layer": layer, "loss_span": loss_span, "temperature": temperature}
    for batch_size in (1, 8):
        values = found(model, "answer_activation", batch_size=batch_size, **options)
        torch.testing.assert_close(values, expected, atol=2e-5, rtol=2e-3)


# what they promise


def test_the_noise_depends_on_the_seed_and_the_tokens_and_on_nothing_global(model):
    torch.manual_seed(0)
    first = found(model, "answer_gradient")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(found(model, "answer_gradient"), first)
    assert torch.equal(torch.get_rng_state(), state)
    other = found(model, "answer_gradient", seed=1)
    assert not torch.allclose(other[0], first[0], rtol=1e-2)
    noisy, _ = noisy_embeddings(model, noise_std=1.0)
    zero, two = (
        (noisy[b] - embedded(model, b)[0].double())[len(PROMPTS[b]) : len(PROMPTS[b]) + 2] for b in (0, 2)
    )
    assert not torch.allclose(zero, two, atol=0.1), "two completions do not share their noise"


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
