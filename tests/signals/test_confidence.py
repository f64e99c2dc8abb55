"""The confidence in the ground truth against an oracle that knows no batch and no padding: one turn at a time."""

import pytest
import torch

from gear_rl.signals.confidence import AnswerConfidence
from signals.rows import completions_of, counted, net, prompts_of, right_padded
from support.scoring import passed

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56], [60, 61, 62]]
MASKS = [[1, 1, 0, 1], [1, 1], [0, 1, 1, 0, 0, 1, 1], [1, 0, 1]]
ANSWERS = [[70, 71, 72], [73], [74, 75], []]
TURNS = [[[0, 1], [3]], [[0, 1]], [[1, 2], [5, 6]], [[0], [2]]]
"""The columns of every turn."""


@pytest.fixture
def model():
    return net()


def confidence(model, rows=(0, 1, 2, 3), width=9, prompts=(), **options):
    completions = completions_of([COMPLETIONS[b] for b in rows], [MASKS[b] for b in rows], width, pad=88)
    student = prompts_of([*[PROMPTS[b] for b in rows], *prompts], pad=77)
    given = {"answer_ids_BN": right_padded([ANSWERS[b] for b in rows], -1, 4), **options}
    student = student.take(torch.arange(len(rows)))
    return passed(model, [AnswerConfidence()], completions, student, **given)["answer_confidence"]


@torch.no_grad()
def by_hand(model, temperature=1.0):
    """Every token of the answer by a forward over exactly the tokens before it."""
    found = torch.zeros(len(PROMPTS), 9)
    for b, turns in enumerate(TURNS):
        for columns in turns if ANSWERS[b] else []:
            before = PROMPTS[b] + COMPLETIONS[b][: columns[0]]
            product = 1.0
            for j, token in enumerate(ANSWERS[b]):
                logits = model(input_ids=torch.tensor([before + ANSWERS[b][:j]])).logits[0, -1]
                product *= (logits / temperature).softmax(-1)[token].item()
            found[b, columns] = product ** (1 / len(ANSWERS[b]))
    return found


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_agrees_with_one_token_at_a_time(model, batch_size, temperature):
    expected = by_hand(model, temperature)
    turns = expected[expected > 0]
    assert turns.max() / turns.min() > 3, "the oracle must have something to see"
    with counted(model) as shapes:
        found = confidence(model, temperature=temperature, batch_size=batch_size)
    close(found, expected)
    assert len(shapes) == -(-5 // batch_size)
    assert found.dtype == torch.float32 and not found.requires_grad
    with_padding = confidence(model, width=12, prompts=[range(9)], temperature=temperature)
    close(with_padding[:, :9], expected)
    assert not with_padding[:, 9:].any()
