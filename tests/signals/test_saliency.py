"""Saliency against loops that know no batch, no padding and no hook: float64, full logits, finite differences."""

import copy
import functools

import pytest
import torch
from torch import nn

from engines import tiny
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from signals.rows import completions_of, prompts_of, right_padded
from support.scoring import passed

PAD = 3
SIGNALS = {cls.name: cls for cls in (AnswerOcclusion, AnswerGradient, AnswerActivation)}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
COMPLETIONS = [[30, 31, 32, 33, 34, 35, 36], [40, 41, 42], [50, 51, 52, 53, 54, 55, 56, 57, 58], [60, 61]]
REGIONS = [[0, 0, -1, 0, 2, 1, 2], [0, 0, 0], [0, 0, -1, 0, 0, 1, 1, -1, 2], [1, 2]]
"""One content token and two, tool output before and behind it; no answer; an answer with nothing before it."""
BOX = [[4, 5, 6], [], [5, 6], [0, 1]]
"""Where GRAIL's loss is taken: from the first delimiter to one token behind the content, if that is trained."""
WIDTH = 11


def net(num_layers=3, scale=6.0):
    made = tiny.model(97, hidden_size=16, num_hidden_layers=num_layers, tie_word_embeddings=False)
    return tiny.louder(made, scale)


def found(model, name, **settings):
    """One signal of the four completions; some of the ``settings`` are those of the passes."""
    options = {key: settings.pop(key) for key in ("batch_size", "temperature", "seed") if key in settings}
    region = right_padded(REGIONS, -1, WIDTH)
    completions = completions_of(COMPLETIONS, [[int(r >= 0) for r in row] for row in REGIONS], WIDTH, PAD)
    inputs = {"answer_region": region, "pad_id": PAD, **options}
    signals, prompts = [SIGNALS[name](**settings)], prompts_of(PROMPTS, PAD)
    [values] = passed(model, signals, completions, prompts, **inputs).values()
    assert values.dtype == torch.float32 and not values.requires_grad
    return values


# the slow twins


def contents(b):
    return [t for t, region in enumerate(REGIONS[b]) if region == 1]


def befores(b):
    return [t for t, region in enumerate(REGIONS[b]) if region == 0] if contents(b) else []


def double(model):
    """In float64 throughout: transformers' norm goes through float32, which drowns a difference quotient."""
    exact = copy.deepcopy(model).double().eval()
    for module in exact.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(exact_norm, module.weight, module.variance_epsilon)
    return exact


def exact_norm(weight, epsilon, x):
    return weight * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def embedded(model, b):
    return model.get_input_embeddings()(torch.tensor([PROMPTS[b] + COMPLETIONS[b]])).detach()


def answer_distribution(logits_SV, b, temperature=1.0):
    """Of the mean of the logits that predict the tokens of the answer."""
    first = len(PROMPTS[b]) - 1
    logits = torch.stack([logits_SV[first + t] for t in contents(b)]) / temperature
    return logits.mean(0).log_softmax(-1)


@torch.no_grad()
def slow_occlusion(model, temperature=1.0):
    model = double(model)
    values = torch.zeros(4, WIDTH)

    def logits(b, completion):
        return model(input_ids=torch.tensor([PROMPTS[b] + completion])).logits[0]

    for b, completion in enumerate(COMPLETIONS):
        for t in befores(b):
            struck = [*completion[:t], PAD, *completion[t + 1 :]]
            clean, other = logits(b, completion), logits(b, struck)
            p, q = (answer_distribution(x, b, temperature) for x in (clean, other))
            values[b, t] = sum(p.exp() * (p - q)).item()
    return values


@torch.no_grad()
def slow_gradient(model, noisy, temperature=1.0, step=1e-5):
    """How fast J rises when a token's noisy embedding is moved along its clean one, by differences."""
    model = double(model)
    values = torch.zeros(4, WIDTH)
    for b in range(4):
        if not contents(b):
            continue
        clean_SD = embedded(model, b)[0]
        clean = model(inputs_embeds=clean_SD[None]).logits[0]

        def j(embedding_SD, clean=clean, b=b):
            other = model(inputs_embeds=embedding_SD[None]).logits[0]
            p, q = (answer_distribution(x, b, temperature) for x in (clean, other))
            return sum(p.exp() * ((p.exp() + 1e-12).log() - q))

        for t in befores(b):
            place = len(PROMPTS[b]) + t
            up, down = noisy[b].clone(), noisy[b].clone()
            up[place] += step * clean_SD[place]
            down[place] -= step * clean_SD[place]
            values[b, t] = ((j(up) - j(down)) / (2 * step)).abs().item()
    return values


def answer_loss(logits_SV, b, tokens, temperature=1.0):
    first = len(PROMPTS[b]) - 1
    rows = (logits_SV / temperature).log_softmax(-1)
    return -sum(rows[first + t, COMPLETIONS[b][t]] for t in tokens)


def noisy_embeddings(model, **settings):
    """What the first layer is given in the pass with gradient, row by row, in float64."""
    seen = []

    def keep(module, args, kwargs):
        if torch.is_grad_enabled():
            seen.append((args[0] if args else kwargs["hidden_states"]).detach().double())

    handle = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    values = found(model, "answer_gradient", batch_size=1, **settings)
    handle.remove()
    noisy = {}
    for b, embedding in zip((0, 2, 3), seen, strict=True):
        whole = embedded(model, b)[0].double()
        whole[: embedding.shape[1]] = embedding[0]
        noisy[b] = whole
    return noisy, values


@pytest.fixture
def model() -> nn.Module:
    return net()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_occlusion_is_the_loop(model, temperature):
    expected = slow_occlusion(model, temperature)
    assert (expected > 0.001).sum() >= 4, "the loop must have something to see"
    for batch_size in (1, 3, 8):
        values = found(model, "answer_occlusion", batch_size=batch_size, temperature=temperature)
        torch.testing.assert_close(values, expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_the_difference_quotient(model, temperature):
    settings = {"temperature": temperature, "noise_std": 0.05}
    noisy, alone = noisy_embeddings(model, **settings)
    expected = slow_gradient(model, noisy, temperature)
    assert (expected > 1e-3).sum() >= 3
    torch.testing.assert_close(alone, expected, atol=2e-5, rtol=2e-3)
    torch.testing.assert_close(found(model, "answer_gradient", **settings), expected, atol=2e-5, rtol=2e-3)


def test_the_noise_lies_on_the_tokens_before_the_answer_only(model):
    noisy, _ = noisy_embeddings(model, noise_std=0.25)
    drawn = []
    for b in (0, 2, 3):
        noise = noisy[b] - embedded(model, b)[0].double()
        places = [len(PROMPTS[b]) + t for t in befores(b)]
        assert (noise[places] != 0).all()
        drawn.append(noise[places].flatten())
        noise[places] = 0.0
        assert (noise == 0).all()
    assert sum(map(len, drawn))
    assert torch.cat(drawn).std() == pytest.approx(0.25, rel=0.2)
    assert abs(torch.cat(drawn).mean()) < 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_activation_is_the_releases(temperature):
    """``hidden_states[0]`` of the model itself, in float64."""
    model = net(num_layers=5, scale=5.0)
    exact = double(model)
    expected = torch.zeros(4, WIDTH)
    for b, tokens in enumerate(BOX):
        if tokens:
            state = embedded(exact, b).requires_grad_()
            logits = exact(inputs_embeds=state).logits[0]
            (gradient,) = torch.autograd.grad(answer_loss(logits, b, tokens, temperature), state)
            for t, region in enumerate(REGIONS[b]):
                place = len(PROMPTS[b]) + t - 1  # it predicts token t
                if region >= 0:
                    expected[b, t] = (gradient[0, place] * state[0, place]).norm().item()
    assert (expected > 0.01).sum() >= 5
    for batch_size in (1, 8):
        values = found(model, "answer_activation", batch_size=batch_size, temperature=temperature)
        torch.testing.assert_close(values, expected, atol=2e-5, rtol=2e-3)


def test_the_noise_depends_on_the_seed_and_the_tokens_and_on_nothing_global(model):
    torch.manual_seed(0)
    first = found(model, "answer_gradient")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(found(model, "answer_gradient"), first)
    assert torch.equal(torch.get_rng_state(), state)
    other = found(model, "answer_gradient", seed=1)
    assert not torch.allclose(other[0], first[0], rtol=1e-2)


def test_one_rows_broken_weights_are_left_in_place_and_stay_its_own(model):
    with torch.no_grad():
        model.get_input_embeddings().weight[31] = torch.nan  # a token of row 0 alone
    for name in SIGNALS:
        values = found(model, name)
        assert values[0].isnan().any(), name
        assert values[1:].isfinite().all(), name
        assert values[2].any(), name


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_goes_on_and_changes_nothing(model, use_reentrant):
    plain = {name: found(model, name) for name in SIGNALS}
    patched = model.model.layers[0].forward = model.model.layers[0].forward  # by somebody else
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.train()
    for name, expected in plain.items():
        values = found(model, name)
        torch.testing.assert_close(values, expected, atol=1e-5 * expected.max().item(), rtol=1e-2)
    assert vars(model.model.layers[0])["forward"] is patched
