"""Prompts that are run once for all their completions: the same hidden states, where it pays, where it can."""

import inspect

import pytest
import torch
from transformers import DynamicCache

from engines import tiny
from gear_rl.model import prefix
from gear_rl.model.forwards import captured_forward, hidden_states
from gear_rl.model.prefix import shared_prompts, states_after_shared_prompts
from gear_rl.rollouts import Completions
from signals.rows import net, prompts_of
from support.scoring import score

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19]]
OF_ROW = [0, 2, 0, 1, 2, 0, 1]
LENGTHS = [4, 1, 3, 4, 2, 4, 0]


@pytest.fixture
def model():
    return net()


@pytest.fixture
def calls(monkeypatch):
    """The arguments of every forward."""
    given = []

    def watched(model, **arguments):
        given.append(arguments)
        return captured_forward(model, **arguments)

    monkeypatch.setattr(prefix, "captured_forward", watched)
    return given


def batch(width=4):
    prompts = prompts_of([PROMPTS[n] for n in OF_ROW])
    attention = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(20, 97, attention.shape, generator=torch.Generator().manual_seed(0)) * attention
    return prompts, ids, attention


@torch.no_grad()
def shared(model, prompts, ids, attention):
    return states_after_shared_prompts(model, prompts.ids_BP, prompts.attention_BP, ids, attention)


@torch.no_grad()
def plain(model, prompts, ids, attention):
    both = torch.cat([prompts.ids_BP, ids], 1), torch.cat([prompts.attention_BP, attention], 1)
    return hidden_states(model, *both, num_tokens=ids.shape[1])


@pytest.mark.parametrize(("cache_rows", "parts"), [(1, [1] * 7), (2, [2, 2, 2, 1]), (100, [7])])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_states_are_those_of_whole_sequences(model, monkeypatch, calls, cache_rows, parts, width):
    given, config = batch(width), model.config
    row = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 7 * 4  # bytes
    monkeypatch.setattr(prefix, "MOST_CACHE_BYTES", cache_rows * row)
    found, expected, keep = shared(model, *given), plain(model, *given), given[2].bool()
    assert expected[keep].std() > 0.1
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-5)
    shapes = [tuple(arguments["input_ids"].shape) for arguments in calls]
    assert shapes == [(3, 7), *[(n, width - 1) for n in parts if width > 1]]
    # A forward swallows other keywords in **kwargs: without its cache it would score completions without prompts.
    names = {*inspect.signature(type(model).forward).parameters}
    assert all({*arguments} <= names for arguments in calls)


def test_prompts_that_differ_in_a_token_or_in_padding_are_two():
    ids = torch.tensor([[0, 5, 6], [0, 5, 6], [0, 5, 7], [0, 5, 6]])
    attention = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]])
    assert shared_prompts(ids, attention, num_tokens=0) == ([0, 1, 2], [0, 1, 2, 0])


@pytest.mark.parametrize("kind", ["sliding", "dynamic", "longrope", "none"])
def test_a_model_with_another_cache_is_tried_once_and_scored_whole(kind, calls, monkeypatch):
    layers = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    net = tiny.model(97, **(layers if kind == "sliding" else {})).eval()
    if kind in ("dynamic", "longrope"):
        net.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4}
    if kind == "none":
        monkeypatch.setattr(prefix, "_cache_name", lambda model: "no_such_output")
    prompts, ids, attention = batch()
    assert shared(net, prompts, ids, attention) is None
    assert shared(net, prompts, ids, attention) is None
    assert len(calls) == 1
    completions = Completions(ids=ids, attention=attention, mask=attention.bool())
    found, whole = (
        score(net, completions, prompts, needs=["student_logprob"], share_prompts=share)
        for share in (True, False)
    )
    assert torch.equal(found.student_logprob, whole.student_logprob)


def test_the_prompts_own_cache_is_left_as_it_was():
    cache = DynamicCache()
    cache.update(torch.ones(2, 1, 3, 5), torch.ones(2, 1, 3, 5), 0)
    chosen = prefix._select_rows(cache, torch.tensor([1, 0, 1]))
    chosen.update(torch.ones(3, 1, 1, 5), torch.ones(3, 1, 1, 5), 0)
    assert cache.layers[0].keys.shape == (2, 1, 3, 5)
    assert chosen.layers[0].keys.shape == (3, 1, 4, 5)
