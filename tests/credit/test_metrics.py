"""The numbers of the `gear/*` metrics, worked by hand."""

import pytest
import torch

from gear_rl.credit.metrics import BATCHES_TO_JUDGE, SegmentCheck, metric_sums, step_metrics, weights
from gear_rl.credit.plan import FALLBACKS
from gear_rl.methods import FixedSpans, Gear, RandomOnsets, Rlsd, Uniform
from gear_rl.types import Credit, TokenSignals


def test_credit_where_the_reward_has_none_is_measured_by_its_own_size():
    """In a group of equal rewards, as CAST credits one: 3 and -1 have the mean size 2."""
    credit = Credit(advantage=torch.tensor([[3.0, -1.0], [0.0, 0.0]]), segment_id=torch.tensor([[0, 1]] * 2))
    mask = torch.ones(2, 2, dtype=torch.bool)
    assert weights(credit, torch.zeros(2), mask).tolist() == [[1.5, -0.5], [1.0, 1.0]]
    none = dict.fromkeys(FALLBACKS, torch.zeros(2, dtype=torch.bool))
    assert metric_sums(credit, TokenSignals(mask=mask), torch.zeros(2), mask.any(-1), none)[1] == 1.5


def test_two_completions_by_hand():
    mask = torch.tensor([[True] * 5 + [False], [True, True, False, True, False, False], [True] * 6])
    weight = torch.tensor([[0.5, 1.5, 1.5, 0.75, 0.75, 9.0], [0.9, 0.9, 9.0, 1.2, 9.0, 9.0], [4.0] * 6])
    segment_id = torch.tensor([[0, 1, 1, 2, 3, -1], [0, 0, -1, 1, -1, -1], [0] * 6])
    advantage_B = torch.tensor([2.0, -1.0, 1.0])
    credit = Credit.from_weights(advantage_B, weight, segment_id)
    divergence = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0, 7.0], [0.5, 0.5, 7.0, 3.0, 7.0, 7.0], [9.0] * 6])
    signals = TokenSignals(mask=mask, divergence=divergence)
    scored_B = torch.tensor([True, True, True])
    fallback_B = {name: torch.zeros(3, dtype=torch.bool) for name in FALLBACKS}
    fallback_B["non_finite"] = torch.tensor([False, False, True])  # the third is left out of every mean

    sums, largest = metric_sums(credit, signals, advantage_B, scored_B, fallback_B)
    found = step_metrics({name: value.item() for name, value in sums.items()}, largest.item(), seconds=0.25)
    assert found == {
        "gear/fallback/no_context": 0.0,
        "gear/fallback/long_context": 0.0,
        "gear/fallback/non_finite": 1.0,
        "gear/fallback/no_token": 0.0,
        "gear/fallbacks": 1.0,
        "gear/scored": 3.0,
        "gear/credit_seconds": 0.25,
        "gear/divergence/mean": 8 / 8,
        "gear/segments/per_completion": 2 / 2,  # one of two tokens in each; single tokens do not count
        "gear/segments/token_share": 4 / 8,
        "gear/weight/turn_1": pytest.approx((5 + 1.8) / 7),
        "gear/weight/turn_2": pytest.approx(1.2),  # of the second completion alone
        "gear/weight/max": 1.5,
        "gear/weight/deviation": pytest.approx(0.3),
    }


TOKEN_ONLY = Gear(onset_rule="never")


@pytest.mark.parametrize(
    ("method", "share", "rank", "warns"),
    [
        (Gear(), 0.0, 0, True),
        (Gear(), 0.0, 1, False),
        (RandomOnsets(), 0.09, 0, True),
        (Gear(), 0.11, 0, False),
        *((method, 0.0, 0, False) for method in (TOKEN_ONLY, RandomOnsets(of=TOKEN_ONLY), Rlsd(), Uniform())),
        *((method, 0.0, 0, False) for method in (FixedSpans(span_tokens=1), Gear(max_segment_tokens=1))),
    ],
    ids=str,
)
def test_a_run_without_segments_warns_once(method, share, rank, warns, caplog):
    check = SegmentCheck()
    batch = {"gear/segments/token_share": share}
    for _ in range(BATCHES_TO_JUDGE - 1):
        check(method, batch, rank=rank)
        check(method, {"gear/scored": 0.0}, rank=rank)  # nothing scored says nothing
    assert not caplog.records
    for _ in range(30):
        check(method, batch, rank=rank)
    assert [f"{method.name} makes next to no segments" in r.message for r in caplog.records] == [True] * warns
