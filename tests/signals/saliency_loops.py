"""What the tests of saliency share: four completions, and loops that know no batch, no padding and no hook."""

import copy
import dataclasses
import functools

import torch
from torch import nn

from engines import tiny
from gear_rl.signals.batch import Completions, ForwardRequest, TeacherPrompt, left_padded
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.teacher import Teacher

PAD = 3
SIGNALS = {cls.name: cls for cls in (AnswerOcclusion, AnswerGradient, AnswerActivation)}
EVERY = tuple(cls() for cls in SIGNALS.values())
OPTIONS = ("batch_size", "num_batches", "temperature", "seed", "row_B", "largest", "head_context")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
COMPLETIONS = [[30, 31, 32, 33, 34, 35, 36], [40, 41, 42], [50, 51, 52, 53, 54, 55, 56, 57, 58], [60, 61]]
REGIONS = [[0, 0, -1, 0, 2, 1, 2], [0, 0, 0], [0, 0, -1, 0, 0, 1, 1, -1, 2], [1, 2]]
"""One content token and two, tool output before and behind it; no answer; an answer with nothing before it."""
BOX = [[4, 5, 6], [], [5, 6], [0, 1]]
"""Where GRAIL's loss is taken: from the first delimiter to one token behind the content, if that is trained."""
WIDTH = 11


def right_padded(rows, fill, width=WIDTH):
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def batch(rows=(0, 1, 2, 3), width=WIDTH):
    ids = [COMPLETIONS[b] for b in rows]
    region = right_padded([REGIONS[b] for b in rows], -1, width)
    completions = Completions(
        ids=right_padded(ids, PAD, width),
        attention=right_padded([[1] * len(row) for row in ids], 0, width),
        mask=region >= 0,
    )
    prompts = left_padded([TeacherPrompt(tuple(PROMPTS[b])) for b in rows], PAD)
    return completions, prompts, region


def net(num_layers=3, scale=6.0) -> nn.Module:
    made = tiny.model(97, hidden_size=16, num_hidden_layers=num_layers, tie_word_embeddings=False)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return made.eval()


def saliency(model, completions, prompts, region, signals, row_B=None, num_batches=0, **options):
    """The signals of completions whose answers are known, by name."""
    rows = torch.ones(len(region), dtype=torch.bool) if row_B is None else row_B
    request = ForwardRequest(
        needs=signals,
        step=0,
        completions=completions,
        student=prompts,
        teachers=(),
        scored_B=rows,
        inputs={"answer_region": region},
    )
    weights = {"teacher": Teacher(), "reference": Teacher()}
    passes = ModelPasses(model=model, largest=lambda count: max(count, num_batches), **weights, **options)
    return passes.run(request)


def signal_of(name, **settings):
    """The signal at these settings, as far as it has them."""
    fields = {field.name for field in dataclasses.fields(SIGNALS[name])}
    return SIGNALS[name](**{key: value for key, value in settings.items() if key in fields})


def found(model, name, rows=(0, 1, 2, 3), width=WIDTH, **settings):
    completions, prompts, region = batch(rows, width)
    options = {key: settings.pop(key) for key in [*settings] if key in OPTIONS}
    signal = signal_of(name, **settings)
    values = saliency(model, completions, prompts, region, [signal], pad_id=PAD, **options)
    assert list(values) == [name]
    assert values[name].dtype == torch.float32
    assert not values[name].requires_grad
    return values[name]


def every(model):
    completions, prompts, region = batch()
    return saliency(model, completions, prompts, region, EVERY, pad_id=PAD)


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


def answer_logits(logits_SV, b, temperature=1.0):
    """Row k predicts the k-th token of the answer."""
    first = len(PROMPTS[b]) - 1
    return torch.stack([logits_SV[first + t] for t in contents(b)]) / temperature


def answer_distribution(logits_SV, b, readout, temperature=1.0):
    logits = answer_logits(logits_SV, b, temperature)
    return (logits[0] if readout == "last" else logits.mean(0)).log_softmax(-1)


def answer_likelihoods(logits_SV, b, temperature=1.0):
    rows = answer_logits(logits_SV, b, temperature).log_softmax(-1)
    return torch.stack([row[COMPLETIONS[b][t]] for row, t in zip(rows, contents(b), strict=True)])


@torch.no_grad()
def slow_occlusion(model, readout="mean", temperature=1.0):
    model = double(model)
    values = torch.zeros(4, WIDTH)

    def logits(b, completion):
        return model(input_ids=torch.tensor([PROMPTS[b] + completion])).logits[0]

    for b, completion in enumerate(COMPLETIONS):
        for t in befores(b):
            struck = [*completion[:t], PAD, *completion[t + 1 :]]
            clean, other = logits(b, completion), logits(b, struck)
            if readout == "joint":
                lost = sum(answer_likelihoods(clean, b, temperature)) - sum(
                    answer_likelihoods(other, b, temperature)
                )
                values[b, t] = max(lost.item(), 0.0)
            else:
                p = answer_distribution(clean, b, readout, temperature)
                q = answer_distribution(other, b, readout, temperature)
                values[b, t] = sum(p.exp() * (p - q)).item()
    return values


@torch.no_grad()
def slow_gradient(model, noisy, readout="mean", temperature=1.0, step=1e-5):
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
            if readout == "joint":
                before, after = (answer_likelihoods(x, b, temperature).mean() for x in (clean, other))
                return before - after
            p = answer_distribution(clean, b, readout, temperature)
            return sum(
                p.exp() * ((p.exp() + 1e-12).log() - answer_distribution(other, b, readout, temperature))
            )

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


@torch.no_grad()
def slow_activation(model, spans, temperature=1.0, step=1e-5):
    """The gradient of the loss to every number of every embedding, by differences."""
    model = double(model)
    values = torch.zeros(4, WIDTH)
    for b, tokens in enumerate(spans):
        if not tokens:
            continue
        h = embedded(model, b)[0]
        for t, region in enumerate(REGIONS[b]):
            if region < 0:
                continue
            place = len(PROMPTS[b]) + t - 1  # it predicts token t
            moved = h.repeat(2 * h.shape[1], 1, 1)
            for d in range(h.shape[1]):
                moved[2 * d, place, d] += step
                moved[2 * d + 1, place, d] -= step
            losses = [answer_loss(x, b, tokens, temperature) for x in model(inputs_embeds=moved).logits]
            slopes = [(losses[2 * d] - losses[2 * d + 1]) / (2 * step) for d in range(h.shape[1])]
            values[b, t] = sum((slope * x) ** 2 for slope, x in zip(slopes, h[place], strict=True)) ** 0.5
    return values


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
