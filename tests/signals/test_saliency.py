"""Saliency against loops that know no batch, no padding and no hook: float64, full logits, finite differences."""

import pytest
import torch
from torch import nn

from signals.rows import counted
from signals.saliency_loops import (
    BOX,
    COMPLETIONS,
    PROMPTS,
    REGIONS,
    SIGNALS,
    WIDTH,
    answer_loss,
    befores,
    contents,
    double,
    embedded,
    every,
    found,
    net,
    noisy_embeddings,
    regions,
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


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("readout", ["mean", "joint"])
def test_neighbours_padding_and_batch_size_change_nothing(model, name, readout):
    together = found(model, name, readout=readout)
    for b in range(4):
        alone = found(model, name, rows=(b,), width=len(COMPLETIONS[b]), readout=readout)
        scale = 1e-5 * together.max().item()
        torch.testing.assert_close(together[b, : len(COMPLETIONS[b])], alone[0], atol=scale, rtol=2e-2)


@pytest.mark.parametrize("name", SIGNALS)
def test_where_there_is_a_value(model, name):
    values, region = found(model, name), regions()
    assert (values[1] == 0).all(), "no answer"
    assert (values[region < 0] == 0).all(), "tool output and padding"
    assert (values >= 0).all()
    if name != "answer_activation":
        assert (values[region != 0] == 0).all()
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


@pytest.mark.parametrize("name", SIGNALS)
def test_rows_that_are_not_scored_hold_zero_and_cost_nothing(model, name):
    with counted(model) as (shapes, _):
        some = found(model, name, row_B=torch.tensor([False, True, True, False]), batch_size=1)
    # Row 2 alone is answered: as it is and four times occluded; clean and noisy; once.
    assert len(shapes) == {"answer_occlusion": 5, "answer_gradient": 2, "answer_activation": 1}[name]
    torch.testing.assert_close(some[2], found(model, name)[2], atol=1e-5, rtol=1e-2)
    assert (some[[0, 1, 3]] == 0).all()


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 0, 2, 3)])
def test_surplus_batches_keep_sharded_processes_in_step_and_change_nothing(model, name, rows):
    with counted(model) as (shapes, _):
        expected, first = found(model, name, rows=rows, batch_size=3), len(shapes)
        surplus = found(model, name, rows=rows, batch_size=3, num_batches=first + 4)
        nothing = found(model, name, rows=rows, row_B=torch.zeros(4, dtype=torch.bool), num_batches=2)
    each = 2 if name == "answer_gradient" else 1
    assert torch.equal(surplus, expected)
    assert len(shapes) == first + each * (first + 4) + each * 2
    assert (nothing == 0).all()


def test_all_three_at_once_are_the_three_alone(model):
    for name, values in every(model).items():
        assert torch.equal(values, found(model, name))


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
