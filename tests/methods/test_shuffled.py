"""The placebo of the credit: the same advantages, in random places."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from gear_rl.methods import Gear, RandomOnsets, Rlsd, Shuffled, Uniform
from gear_rl.traits import Scheduled
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
    ids = torch.randint(150_000, (num_rows, num_tokens), generator=g)
    return TokenSignals(mask=mask, token_id=ids, divergence=nats[0] * 3, student_entropy=nats[1])


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
    later = Shuffled(of=literal(), seed=1).at_step(1)(advantage_B, signals).advantage
    assert not torch.equal(first, later)
    # The moves of the ten tokens with distinct values differ from completion to completion.
    plain = TOKEN_ONLY(advantage_B, signals).advantage
    shuffled = Shuffled(of=TOKEN_ONLY)(advantage_B, signals).advantage
    moves = {tuple(plain[b].argsort()[shuffled[b].argsort().argsort()].tolist()) for b in range(40)}
    assert len(moves) == 40


def test_equal_completions_of_a_step_are_shuffled_alike():
    """The fifth token weighs most in either row; it goes to one place, and to others at other steps."""
    mask = torch.ones(2, 30, dtype=torch.bool)
    divergence = torch.rand(2, 30, generator=torch.Generator().manual_seed(0))
    divergence[:, 4] = 3.0
    signals = TokenSignals(mask=mask, token_id=torch.arange(30).expand(2, -1), divergence=divergence)
    places = set()
    for step in range(9):
        one, other = (
            Shuffled(of=TOKEN_ONLY).at_step(step)(torch.ones(2), signals).advantage.argmax(-1).tolist()
        )
        assert one == other
        places.add(one)
    assert len(places) > 4


@pytest.mark.parametrize("ulps", [1, -1, 8])
@pytest.mark.parametrize("placebo", [Shuffled(of=TOKEN_ONLY, seed=3), RandomOnsets(of=literal(), seed=3)])
def test_the_last_bits_of_the_signals_move_nothing(placebo, ulps):
    """Processors differ in the last bits of every float signal; a placebo's places must not."""

    def nudged(x):
        return (x.view(torch.int32) + ulps).view(torch.float32) if x.is_floating_point() else x

    signals, advantage_B = long_rows(), torch.ones(40)
    values = {name: nudged(x) for name, x in signals.values.items()}
    other = TokenSignals(mask=signals.mask, turn_id=signals.turn_id, values=values)
    found, again = placebo(advantage_B, signals), placebo(advantage_B, other)
    assert torch.equal(found.segment_id, again.segment_id)
    # Sorted, the weights are 0.003 apart in the mean: those of another permutation differ by far more.
    torch.testing.assert_close(found.advantage, again.advantage, atol=1e-5, rtol=0)


def test_without_the_tokens_it_says_so():
    signals = dataclasses.replace(long_rows(2), token_id=None)
    for placebo in (Shuffled(of=literal()), RandomOnsets(of=literal())):
        with pytest.raises(ValueError, match=r"'token_id' was not computed; .* give TokenSignals\(token_id="):
            placebo(torch.ones(2), signals)


def test_the_schedule_of_what_it_shuffles_goes_on():
    rlsd = Rlsd(decay_steps=10)
    later = Shuffled(of=rlsd, seed=2).at_step(5)
    assert later == Shuffled(of=rlsd.at_step(5), seed=2, step=5)
    assert later.at_step(7).step == 7 and Shuffled().at_step(4) == Shuffled(step=4)
    assert isinstance(RandomOnsets(), Scheduled) and RandomOnsets(seed=2).at_step(4) == RandomOnsets(
        seed=2, step=4
    )


def test_padding_does_not_choose_another_permutation():
    """The credit of a padded row may differ in the last bit of a sum; its places must not differ at all."""
    g = torch.Generator().manual_seed(0)
    for num_tokens in range(20, 60):
        nats = torch.rand(2, 1, num_tokens, generator=g)
        mask = torch.ones(1, num_tokens, dtype=torch.bool)
        ids = torch.arange(num_tokens)[None]
        tight = TokenSignals(mask=mask, token_id=ids, divergence=nats[0], student_entropy=nats[1])
        wide = TokenSignals(
            mask=pad(mask, (0, 5)),
            token_id=pad(ids, (0, 5), value=-1),
            divergence=pad(nats[0], (0, 5)),
            student_entropy=pad(nats[1], (0, 5)),
        )
        found = Shuffled(of=literal())(torch.tensor([0.7]), wide).advantage[:, :num_tokens]
        torch.testing.assert_close(found, Shuffled(of=literal())(torch.tensor([0.7]), tight).advantage)


def test_needs_what_it_shuffles():
    assert Shuffled(of=Uniform()).needs == ("token_id",)
    assert Shuffled().needs == Shuffled(of=Shuffled()).needs == (*Gear().needs, "token_id")
    assert Shuffled(of=dataclasses.replace(TOKEN_ONLY, estimator="k3")).needs == (
        "student_logprob",
        "teacher_logprob",
        "token_id",
    )


@pytest.mark.parametrize("of", [Uniform(), Shuffled(of=literal(), seed=3), RandomOnsets(of=literal())])
def test_shuffles_any_method(of):
    signals, advantage_B = long_rows(3, 7), torch.tensor([1.0, -2.0, 0.5])
    found = Shuffled(of=of)(advantage_B, signals).advantage
    assert found.sort(-1).values.equal(of(advantage_B, signals).advantage.sort(-1).values)
