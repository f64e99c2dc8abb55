"""The placebo of the credit: the same advantages, in random places."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from gear_rl.methods import Gear, RandomOnsets, Shuffled, Uniform
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, completion, literal, rollouts

TOKEN_ONLY = literal(onset_rule="never", renormalise="none")


def test_the_weights_by_hand_in_another_order():
    """GEAR gives 1, 2, 3/2, 1, 5/4; every token is a segment of its own."""
    credit = Shuffled(of=TOKEN_ONLY, seed=0)(torch.tensor([2.0]), completion([1, 5, 3, 1, 2]))
    assert sorted(credit.advantage[0].tolist()) == [2.0, 2.0, 2.5, 3.0, 4.0]
    assert credit.advantage[0].tolist() != [2.0, 4.0, 3.0, 2.0, 2.5]
    assert credit.segment_id.tolist() == [[0, 1, 2, 3, 4]]


@PROPERTY
@given(rollouts(), st.integers(0, 50))
def test_keeps_the_sum_and_the_multiset_of_every_completion(signals, seed):
    advantage_B = torch.tensor([1.5, -0.5, 0.0])
    plain = literal()(advantage_B, signals).advantage
    credit = Shuffled(of=literal(), seed=seed)(advantage_B, signals)
    torch.testing.assert_close(credit.advantage.sum(-1), plain.sum(-1))
    for b in range(3):
        counts = signals.mask[b]
        assert credit.advantage[b][counts].sort().values.equal(plain[b][counts].sort().values)
        assert credit.segment_id[b][counts].tolist() == list(range(counts.sum()))
    assert (credit.advantage[~signals.mask] == 0).all()
    assert (credit.segment_id[~signals.mask] == -1).all()


def long_rows(num_rows=40, num_tokens=30):
    g = torch.Generator().manual_seed(0)
    nats = torch.rand(2, num_rows, num_tokens, generator=g)
    mask = torch.ones(num_rows, num_tokens, dtype=torch.bool)
    return TokenSignals(mask=mask, divergence=nats[0] * 3, student_entropy=nats[1])


def test_the_place_of_the_credit_is_destroyed():
    """Rank correlation with the unshuffled credit: about 0, where the credit with itself has 1."""
    signals, advantage_B = long_rows(), torch.ones(40)
    plain, shuffled = (
        TOKEN_ONLY(advantage_B, signals).advantage,
        Shuffled(of=TOKEN_ONLY)(advantage_B, signals).advantage,
    )
    correlation = torch.corrcoef(torch.stack([plain.flatten(), shuffled.flatten()]))[0, 1]
    assert abs(correlation) < 5 / (40 * 30) ** 0.5


def test_seeds_completions_and_steps_are_shuffled_apart():
    signals, advantage_B = long_rows(), torch.ones(40)
    first = Shuffled(of=literal(), seed=1)(advantage_B, signals).advantage
    assert torch.equal(first, Shuffled(of=literal(), seed=1)(advantage_B, signals).advantage)
    assert not torch.equal(first, Shuffled(of=literal(), seed=2)(advantage_B, signals).advantage)
    # The moves of the ten tokens with distinct values differ from completion to completion.
    plain = TOKEN_ONLY(advantage_B, signals).advantage
    shuffled = Shuffled(of=TOKEN_ONLY)(advantage_B, signals).advantage
    moves = {tuple(plain[b].argsort()[shuffled[b].argsort().argsort()].tolist()) for b in range(40)}
    assert len(moves) == 40


def test_padding_does_not_choose_another_permutation():
    """The credit of a padded row may differ in the last bit of a sum; its places must not differ at all."""
    g = torch.Generator().manual_seed(0)
    for num_tokens in range(20, 60):
        nats = torch.rand(2, 1, num_tokens, generator=g)
        mask = torch.ones(1, num_tokens, dtype=torch.bool)
        tight = TokenSignals(mask=mask, divergence=nats[0], student_entropy=nats[1])
        wide = TokenSignals(
            mask=pad(mask, (0, 5)), divergence=pad(nats[0], (0, 5)), student_entropy=pad(nats[1], (0, 5))
        )
        found = Shuffled(of=literal())(torch.tensor([0.7]), wide).advantage[:, :num_tokens]
        torch.testing.assert_close(found, Shuffled(of=literal())(torch.tensor([0.7]), tight).advantage)


def test_needs_what_it_shuffles():
    assert Shuffled(of=Uniform()).needs == ()
    assert Shuffled().needs == Gear().needs
    assert Shuffled(of=dataclasses.replace(TOKEN_ONLY, estimator="k3")).needs == (
        "student_logprob",
        "teacher_logprob",
    )


@pytest.mark.parametrize("of", [Uniform(), Shuffled(of=literal(), seed=3), RandomOnsets(of=literal())])
def test_shuffles_any_method(of):
    signals, advantage_B = long_rows(3, 7), torch.tensor([1.0, -2.0, 0.5])
    found = Shuffled(of=of)(advantage_B, signals).advantage
    assert found.sort(-1).values.equal(of(advantage_B, signals).advantage.sort(-1).values)
