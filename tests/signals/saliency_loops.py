"""What the tests of saliency share: four completions, and loops that know no batch, no padding and no hook."""

import copy
import dataclasses
import functools

import torch

from engines import tiny
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from signals.rows import completions_of, louder, prompts_of, right_padded
from support.scoring import passed

PAD = 3
SIGNALS = {cls.name: cls for cls in (AnswerOcclusion, AnswerGradient, AnswerActivation)}
EVERY = tuple(cls() for cls in SIGNALS.values())
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
COMPLETIONS = [[30, 31, 32, 33, 34, 35, 36], [40, 41, 42], [50, 51, 52, 53, 54, 55, 56, 57, 58], [60, 61]]
REGIONS = [[0, 0, -1, 0, 2, 1, 2], [0, 0, 0], [0, 0, -1, 0, 0, 1, 1, -1, 2], [1, 2]]
"""One content token and two, tool output before and behind it; no answer; an answer with nothing before it."""
BOX = [[4, 5, 6], [], [5, 6], [0, 1]]
"""Where GRAIL's loss is taken: from the first delimiter to one token behind the content, if that is trained."""
WIDTH = 11


def regions(rows=(0, 1, 2, 3), width=WIDTH):
    return right_padded([REGIONS[b] for b in rows], -1, width)


def net(num_layers=3, scale=6.0):
    made = tiny.model(97, hidden_size=16, num_hidden_layers=num_layers, tie_word_embeddings=False)
    return louder(made, scale)


def every(model, signals=EVERY, rows=(0, 1, 2, 3), width=WIDTH, **options):
    """The signals of these completions by name."""
    region = regions(rows, width)
    masks = [[int(r >= 0) for r in REGIONS[b]] for b in rows]
    completions = completions_of([COMPLETIONS[b] for b in rows], masks, width, PAD)
    prompts = prompts_of([PROMPTS[b] for b in rows], PAD)
    return passed(model, signals, completions, prompts, answer_region=region, pad_id=PAD, **options)


def found(model, name, rows=(0, 1, 2, 3), width=WIDTH, **options):
    """One signal; ``options`` are its settings, as far as it has them, and those of the passes."""
    fields = {field.name for cls in SIGNALS.values() for field in dataclasses.fields(cls)}
    own = {field.name for field in dataclasses.fields(SIGNALS[name])}
    signal = SIGNALS[name](**{key: options[key] for key in own & {*options}})
    options = {key: value for key, value in options.items() if key not in fields}
    [values] = every(model, [signal], rows, width, **options).values()
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
