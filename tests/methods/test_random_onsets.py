"""The placebo of the segmentation: as many onsets and the same divergences, in random places."""

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Gear, RandomOnsets
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, completion, gears, literal, rollouts

TO_THE_END = literal(end_rule="turn", renormalise="none")


def test_an_onset_by_hand():
    """z = 0, 1, 1/4, 0, 0: from where the onset lands all weigh 2; 1, 5/4, 1, 1 stand before it."""
    signals = completion([0, 4, 1, 0, 0])
    rest, seen = [1.0, 1.25, 1.0, 1.0], set()
    for seed in range(60):
        credit = RandomOnsets(of=TO_THE_END, seed=seed)(torch.tensor([1.0]), signals)
        weight, ids = credit.advantage[0].tolist(), credit.segment_id[0].tolist()
        place = weight.index(2.0)
        seen.add(place)
        assert weight == rest[:place] + [2.0] * (5 - place)
        assert ids == list(range(place)) + [place] * (5 - place)
    assert seen == {0, 1, 2, 3, 4}


@PROPERTY
@given(gears, rollouts(), st.integers(0, 50), st.sampled_from(["own", "one"]))
def test_as_many_onsets_and_the_same_divergences(gear, signals, seed, aligned):
    """Where a segment is one token, a weight says how far the token diverged: the weights are GEAR's, moved.

    With ``aligned="one"`` they speak of the onsets alone: as many, and each with its own divergence.
    """
    gear = dataclasses.replace(
        gear,
        aligned=aligned,
        end_rule="fixed_length",
        max_segment_tokens=1,
        sign_mode="agnostic",
        clip=None,
        renormalise="none",
        alpha=1.0,
    )
    found = RandomOnsets(of=gear, seed=seed)(torch.ones(3), signals).advantage
    plain = gear(torch.ones(3), signals).advantage
    assert torch.equal(found.sort(-1).values, plain.sort(-1).values)


def two_onsets(num_rows=600, num_tokens=7):
    """Onsets at 0 and 3 among faint noise, in rows of other tokens."""
    g = torch.Generator().manual_seed(1)
    noise = torch.rand(num_rows, num_tokens, generator=g) * 0.1
    ids = torch.randint(150_000, (num_rows, num_tokens), generator=g)
    noise[:, 0] += 4.0
    noise[:, 3] += 2.5
    mask = torch.ones(num_rows, num_tokens, dtype=torch.bool)
    entropy = torch.ones(num_rows, num_tokens)
    return TokenSignals(mask=mask, token_id=ids, divergence=noise, student_entropy=entropy)


def test_both_onsets_open_a_segment_wherever_they_land():
    """With ends fixed at one token, the two heaviest tokens of every row are the moved onsets."""
    gear = literal(end_rule="fixed_length", max_segment_tokens=1)
    signals = two_onsets()
    found = RandomOnsets(of=gear)(torch.ones(600), signals).advantage
    plain = gear(torch.ones(600), signals).advantage
    torch.testing.assert_close(found.sort(-1).values, plain.sort(-1).values)
    places = found.topk(2, -1).indices
    heaviest = torch.bincount(places.flatten(), minlength=7) / 600
    assert ((heaviest - 2 / 7).abs() < 5 * (2 / 7 * 5 / 7 / 600) ** 0.5).all()  # every place alike


def test_the_end_rule_works_from_the_new_places():
    """Forks at 2 and 4: a segment reaches from its onset to the next of them, or to the end."""
    signals = completion([0, 4, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0])
    ends = {0: 2, 1: 2, 2: 4, 3: 4, 4: 6, 5: 6}
    for seed in range(40):
        credit = RandomOnsets(of=literal(renormalise="none"), seed=seed)(torch.tensor([1.0]), signals)
        weight = credit.advantage[0].tolist()
        begin = weight.index(2.0)
        assert weight == [2.0 if begin <= t < ends[begin] else 1.0 for t in range(6)]


def test_seeds_and_steps_move_the_onsets_apart():
    signals = two_onsets(5)
    first = RandomOnsets(of=literal(), seed=1)(torch.ones(5), signals)
    assert torch.equal(
        first.segment_id, RandomOnsets(of=literal(), seed=1)(torch.ones(5), signals).segment_id
    )
    assert not torch.equal(
        first.segment_id, RandomOnsets(of=literal(), seed=2)(torch.ones(5), signals).segment_id
    )
    later = RandomOnsets(of=literal(), seed=1).at_step(1)(torch.ones(5), signals)
    assert not torch.equal(first.segment_id, later.segment_id)


def test_a_completion_without_an_onset_is_gears():
    signals = completion([1.0, 0.995, 1.0], [0.0, 1.0, 0.0])
    quiet = literal(onset_floor_nats=2.0)
    found, plain = RandomOnsets(of=quiet)(torch.tensor([1.0]), signals), quiet(torch.tensor([1.0]), signals)
    assert torch.equal(found.advantage, plain.advantage)
    assert torch.equal(found.segment_id, plain.segment_id)


def test_needs_what_its_gear_needs():
    assert RandomOnsets().needs == (*Gear().needs, "token_id")
    assert RandomOnsets(of=literal(end_rule="turn")).needs == ("divergence", "token_id")
