"""Distances of a model's hidden states, against each completion by itself, without padding, batch or hook."""

import functools

import pytest
import torch

from gear_rl.signals import transport
from gear_rl.signals.transport import TransportDistance
from signals import rows as padded
from signals.rows import completions_of, counted, net, prompts_of
from support.scoring import passed

pytest.importorskip("ot", reason="POT is an extra: pip install 'gear-rl[shear]'")
from signals.transport_loop import by_loop

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7], [13], [5, 6, 7], [13]]
COMPLETIONS = [
    [30, 31, 32, 33, 34],
    [40, 41],
    [30, 31, 52, 53, 54, 55, 56],
    [60, 61, 62, 40],
    [70],
    [80, 81, 82],
    [90, 91],
    [83, 84],
]
MASKS = [
    [1, 1, 0, 1, 1],
    [1, 1],
    [0, 1, 1, 0, 0, 1, 1],
    [1, 1, 1, 0],
    [1],
    [1, 1, 1],
    [0, 0],
    [1, 1],
]
GROUP = [7, 3, 7, 3, 7, 5, 7, 5]
"""Three groups, interleaved; a completion of the first has no trained token; the last has one outcome."""
OUTCOME = [True, False, False, True, False, True, True, True]
MASK = padded.right_padded(MASKS).bool()


@pytest.fixture
def model():
    return net()


@pytest.fixture(autouse=True)
def converged(monkeypatch):
    exactly = functools.partial(transport.token_distances, regularisation=0.1, iterations=500)
    monkeypatch.setattr(transport, "token_distances", exactly)


def distances(model, width=9, prompt_width=0, **options):
    student = prompts_of([*PROMPTS, range(1, prompt_width + 1)]).take(torch.arange(8))
    inputs = {"judged_group_B": torch.tensor(GROUP), "success_B": torch.tensor(OUTCOME)}
    completions = completions_of(COMPLETIONS, MASKS, width)
    [found] = passed(model, [TransportDistance(3, 2)], completions, student, **inputs, **options).values()
    return found


@torch.no_grad()
def by_hand(model):
    """Each completion by itself, without padding or hook; the states of its trained tokens, through the loop."""
    states = {}
    for b, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        out = model(input_ids=torch.tensor([prompt + completion]), output_hidden_states=True)
        if any(MASKS[b]):
            states[b] = out.hidden_states[-1][0, len(prompt) :][torch.tensor(MASKS[b]).bool()]
    found = torch.zeros(len(PROMPTS), 9)
    for group in set(GROUP):
        rows = [b for b in states if GROUP[b] == group]
        values = by_loop([states[b] for b in rows], [OUTCOME[b] for b in rows], 3, 2, 0.1)
        for b, value in zip(rows, values, strict=True):
            found[b, MASK[b]] = value.float()
    return found


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_agrees_with_one_completion_and_one_pair_at_a_time(model, batch_size):
    expected = by_hand(model)
    assert expected[0].max() > 0.1 and expected[0, 0] != expected[0, 4], (
        "the oracle must have something to see"
    )
    with counted(model) as shapes:
        found = distances(model, batch_size=batch_size)
    torch.testing.assert_close(found, expected, atol=5e-4, rtol=0)
    assert found.dtype == torch.float32 and not found.requires_grad
    # Three completions with a trained token in group 7, two in group 3; group 5 has one outcome: no forward.
    assert len(shapes) == {1: 5, 2: 3, 8: 2}[batch_size]
    wider = distances(model, width=14, prompt_width=11, batch_size=batch_size)
    torch.testing.assert_close(wider[:, :9], found, atol=1e-4, rtol=0)
    assert (wider[:, 9:] == 0).all()
