"""Onsets at random: as many as the method's own, elsewhere."""

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import RandomOnsets
from methods.completions import completion, gears, plain, written
from tensor.tables import PROPERTY

ONE = torch.tensor([1.0])
TO_THE_END = plain(end_rule="turn", renormalise="none")


# random onsets


def test_an_onset_by_hand():
    """z = 0, 1, 1/4, 0, 0: from where the onset lands all weigh 2; 1, 5/4, 1, 1 stand before it."""
    signals = completion([0, 4, 1, 0, 0])
    rest, seen = [1.0, 1.25, 1.0, 1.0], set()
    for seed in range(60):
        credit = RandomOnsets(of=TO_THE_END, seed=seed)(ONE, signals)
        weight, ids = credit.advantage[0].tolist(), credit.segment_id[0].tolist()
        place = weight.index(2.0)
        seen.add(place)
        assert weight == rest[:place] + [2.0] * (5 - place)
        assert ids == list(range(place)) + [place] * (5 - place)
    assert seen == {0, 1, 2, 3, 4}


@PROPERTY
@given(gears, written(), st.integers(0, 50), st.sampled_from(["own", "one"]))
def test_as_many_onsets_and_the_same_divergences(gear, signals, seed, aligned):
    """Where a segment is one token, the weights are GEAR's, moved; with ``aligned="one"`` those of the onsets."""
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
