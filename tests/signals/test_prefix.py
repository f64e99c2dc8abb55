"""Prompts that are run once for all their completions: the same hidden states, where it pays, where it can."""

import inspect

import pytest
import torch
from transformers import DynamicCache

from engines import tiny
from gear_rl.signals import prefix
from gear_rl.signals.batch import Completions, TeacherPrompt, left_padded
from gear_rl.signals.forwards import captured_forward, hidden_states
from gear_rl.signals.prefix import shared_prompts, states_after_shared_prompts
from support.scoring import score

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19]]
OF_ROW = [0, 2, 0, 1, 2, 0, 1]
LENGTHS = [4, 1, 3, 4, 2, 4, 0]


@pytest.fixture
def model():
    net = tiny.model(97, hidden_size=40)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    return net.eval()


def batch(width=4):
    prompts = left_padded([TeacherPrompt(tuple(PROMPTS[n])) for n in OF_ROW], 0)
    attention = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(20, 97, attention.shape, generator=torch.Generator().manual_seed(0)) * attention
    return prompts, ids, attention


@torch.no_grad()
def shared(model, prompts, ids, attention, calls=None):
    def forward(**given):
        if calls is not None:
            calls.append(tuple(given["input_ids"].shape))
        return captured_forward(model, **given)

    return states_after_shared_prompts(model, forward, prompts.ids_BP, prompts.attention_BP, ids, attention)


@torch.no_grad()
def plain(model, prompts, ids, attention):
    both = torch.cat([prompts.ids_BP, ids], 1), torch.cat([prompts.attention_BP, attention], 1)
    return hidden_states(model, *both, num_tokens=ids.shape[1])


@pytest.mark.parametrize("cache_rows", [1, 2, 100])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_states_are_those_of_whole_sequences(model, monkeypatch, cache_rows, width):
    prompts, ids, attention = batch(width)
    config = model.config
    row = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 7 * 4  # bytes
    monkeypatch.setattr(prefix, "MOST_CACHE_BYTES", cache_rows * row)
    calls = []
    found, expected = shared(model, prompts, ids, attention, calls), plain(model, prompts, ids, attention)
    keep = attention.bool()
    assert expected[keep].std() > 0.1
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-5)
    parts = (
        [] if width == 1 else [(n, width - 1) for n in {1: [1] * 7, 2: [2, 2, 2, 1], 100: [7]}[cache_rows]]
    )
    assert calls == [(3, 7), *parts]


def test_the_model_is_given_only_arguments_that_its_forward_names(model):
    # A forward swallows other keywords in **kwargs: without its cache it would score completions without prompts.
    given = []

    def forward(**arguments):
        given.append(arguments)
        return captured_forward(model, **arguments)

    prompts, ids, attention = batch()
    states_after_shared_prompts(model, forward, prompts.ids_BP, prompts.attention_BP, ids, attention)
    names = inspect.signature(type(model).forward).parameters
    assert len(given) == 2 and {*given[0], *given[1]} <= {*names}


def test_prompts_that_differ_in_a_token_or_in_padding_are_two():
    ids = torch.tensor([[0, 5, 6], [0, 5, 6], [0, 5, 7], [0, 5, 6]])
    attention = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]])
    assert shared_prompts(ids, attention, num_tokens=0) == ([0, 1, 2], [0, 1, 2, 0])


@pytest.mark.parametrize(
    ("rows", "prompts", "width", "num_tokens", "pays"),
    [
        (4, 2, 10, 15, True),  # half of 10 of 25 tokens: 0.2
        (4, 2, 10, 16, False),
        (4, 4, 10, 0, False),
        (2, 1, 10, 15, True),
        (1, 1, 10, 0, False),
        (0, 0, 10, 5, False),
    ],
)
def test_it_pays_from_a_fifth_of_the_tokens_on(rows, prompts, width, num_tokens, pays):
    ids = (torch.arange(rows) % max(prompts, 1))[:, None].expand(rows, width)
    assert (shared_prompts(ids, torch.ones_like(ids), num_tokens) is not None) is pays


def test_where_it_does_not_pay_nothing_is_run(model):
    prompts, ids, attention = batch()
    alone = left_padded([TeacherPrompt((20 + b, 6, 7)) for b in range(7)], 0)
    calls = []
    assert shared(model, alone, ids, attention, calls) is None and not calls
    assert shared(model, prompts, ids, attention, calls) is not None and calls


@pytest.mark.parametrize("kind", ["sliding", "dynamic", "longrope", "none"])
def test_a_model_with_another_cache_is_asked_once_and_scored_whole(kind):
    layers = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    net = tiny.model(97, **(layers if kind == "sliding" else {})).eval()
    if kind in ("dynamic", "longrope"):
        net.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4}
    prompts, ids, attention = batch()
    calls = []

    def forward(**given):
        calls.append(given)
        hidden, output = captured_forward(net, **given)
        if kind == "none":
            setattr(output, prefix._cache_name(net), None)
        return hidden, output

    args = (prompts.ids_BP, prompts.attention_BP, ids, attention)
    with torch.no_grad():
        assert states_after_shared_prompts(net, forward, *args) is None
        assert states_after_shared_prompts(net, forward, *args) is None
    assert len(calls) == 1
    completions = Completions(ids=ids, attention=attention, mask=attention.bool())
    needs = ["student_logprob"]
    found, whole = (
        score(net, completions, prompts, needs=needs, share_prompts=share) for share in (True, False)
    )
    assert torch.equal(found.student_logprob, whole.student_logprob)


def test_the_prompts_own_cache_is_left_as_it_was():
    cache = DynamicCache()
    cache.update(torch.ones(2, 1, 3, 5), torch.ones(2, 1, 3, 5), 0)
    chosen = prefix._chosen(cache, torch.tensor([1, 0, 1]))
    chosen.update(torch.ones(3, 1, 1, 5), torch.ones(3, 1, 1, 5), 0)
    assert cache.layers[0].keys.shape == (2, 1, 3, 5)
    assert chosen.layers[0].keys.shape == (3, 1, 4, 5)


@pytest.mark.parametrize("batch_size", [2, 3, 16])
def test_signals_with_shared_prompts_are_the_same(model, batch_size):
    prompts, ids, attention = batch()
    hinted = left_padded([TeacherPrompt((30, 31, *PROMPTS[n])) for n in OF_ROW], 0)
    mask = attention.bool()
    mask[3, 1] = False
    completions = Completions(ids=ids, attention=attention, mask=mask)
    needs = ("divergence", "student_logprob", "teacher_logprob", "student_entropy")
    found, whole = (
        score(model, completions, prompts, hinted, needs=needs, batch_size=batch_size, share_prompts=share)
        for share in (True, False)
    )
    assert whole.divergence.max() > 0.05
    for name in needs:
        torch.testing.assert_close(found.get(name), whole.get(name), atol=1e-5, rtol=1e-4, msg=name)
