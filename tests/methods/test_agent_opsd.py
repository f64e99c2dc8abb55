"""AgentOPSD (arXiv:2608.05987): the formulas in plain Python, turn by turn."""

import math

import pytest
import torch

from gear_rl.methods import AgentOpsd
from gear_rl.types import TokenSignals

RATIOS = [[[0.4, 0.2], [-1.5], [0.3]], [[0.1], [0.2, -0.4]], [[-3.0]]]
"""Log-ratios of teacher to student, by completion and turn; between two turns a tool answers."""
SUCCESS, GROUP = [1.0, 0.0, 0.0], [0, 0, 1]


def batch(ratios=RATIOS, success=SUCCESS, group=GROUP):
    width = max(sum(map(len, turns)) + len(turns) - 1 for turns in ratios)
    mask, ratio = torch.zeros(len(ratios), width, dtype=torch.bool), torch.zeros(len(ratios), width)
    for b, turns in enumerate(ratios):
        place = 0
        for turn in turns:
            mask[b, place : place + len(turn)] = True
            ratio[b, place : place + len(turn)] = torch.tensor(turn)
            place += len(turn) + 1
    return TokenSignals(
        mask=mask,
        student_logprob=torch.full_like(ratio, -1.0),
        teacher_logprob=ratio - 1.0,
        group_B=torch.tensor(group),
        success_B=torch.tensor(success),
    )


def by_hand(advantage, turns, share, *, strength=0.5, width=0.2, decay=0.95, margin=1e-3):
    prior = min(max(share, margin), 1 - margin)
    belief, evidence, revised = prior, 0.0, []
    for turn in turns:
        evidence = decay * evidence + sum(turn)
        after = 1 / (1 + math.exp(-(math.log(prior / (1 - prior)) + evidence)))
        revised.append(math.copysign(1, advantage) * (after - belief))
        belief = after
    mean = sum(revised) / len(revised)
    deviation = math.sqrt(sum((q - mean) ** 2 for q in revised) / len(revised))
    weights = [min(max(1 + width * (q - mean) / (deviation + 1e-6), 1 - width), 1 + width) for q in revised]
    return [
        advantage * (1 - strength + strength * weight)
        for weight, turn in zip(weights, turns, strict=True)
        for _ in turn
    ]


@pytest.mark.parametrize("settings", [{}, {"strength": 1.0, "width": 0.9, "decay": 0.5}])
def test_a_turn_gets_the_advantage_of_its_revision(settings):
    advantage, signals = torch.tensor([0.8, -0.8, -1.1]), batch()
    credit = AgentOpsd(**settings)(advantage, signals)
    for b, share in enumerate((0.5, 0.5, 0.0)):
        expected = by_hand(float(advantage[b]), RATIOS[b], share, **settings)
        assert credit.advantage[b][signals.mask[b]].tolist() == pytest.approx(expected, abs=1e-5)
    assert credit.segment_id.tolist()[0] == [0, 0, -1, 1, -1, 2]


@pytest.mark.parametrize("toward", [1.0, -1.0])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_small_changes_of_a_belief_near_0_or_1_are_not_rounded_away(share, toward):
    """Float32 knows no number between 1 and 1 - 6e-8, and these changes are of 1e-6 and less."""
    ratios = [[[toward * 6.0], [toward * 0.3], [toward * -0.2], [toward * 0.4], [toward * 1.5]]]
    signals = batch(ratios, [share], [0])
    found = AgentOpsd(strength=1.0, prior_margin=1e-4)(torch.tensor([1.0]), signals)
    expected = by_hand(1.0, ratios[0], share, strength=1.0, margin=1e-4)
    assert found.advantage[0][signals.mask[0]].tolist() == pytest.approx(expected, abs=2e-5)
