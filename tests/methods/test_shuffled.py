"""The placebo: the same credit in random places."""

import dataclasses

import pytest
import torch

from gear_rl.methods import RandomOnsets, Shuffled, Uniform
from gear_rl.traits import Distillation
from gear_rl.types import TokenSignals
from methods.completions import plain

TOKEN_ONLY = plain(onset_rule="never", renormalise="none")
both = pytest.mark.parametrize("placebo", [Shuffled(of=TOKEN_ONLY, seed=3), RandomOnsets(of=plain(), seed=3)])


def long_rows(num_rows=40, num_tokens=30):
    g = torch.Generator().manual_seed(0)
    nats = torch.rand(2, num_rows, num_tokens, generator=g)
    mask = torch.ones(num_rows, num_tokens, dtype=torch.bool)
    ids = torch.randint(150_000, (num_rows, num_tokens), generator=g)
    return TokenSignals(mask=mask, token_id=ids, divergence=nats[0] * 3, student_entropy=nats[1])


@both
def test_seeds_and_steps_differ_and_are_reproducible(placebo):
    signals, advantage_B = long_rows(), torch.ones(40)
    first, again = (placebo(advantage_B, signals).advantage for _ in range(2))
    assert torch.equal(first, again)
    for other in (dataclasses.replace(placebo, seed=2), placebo.at_step(1)):
        assert not torch.equal(first, other(advantage_B, signals).advantage)


@both
@pytest.mark.parametrize("ulps", [1, -1, 8])
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


# the shuffle


class Distils(Uniform):
    """Distils each token as much as its position."""

    distillation = Distillation()

    def __call__(self, advantage_B, signals):
        credit = super().__call__(advantage_B, signals)
        return dataclasses.replace(credit, distill_weight=signals.mask.cumsum(-1).float())


def test_a_shuffle_moves_the_weights_of_the_distillation_too():
    credit = Shuffled(of=Distils(), seed=1)(torch.ones(40), long_rows())
    assert credit.distill_weight[0].tolist() != list(range(1, 31))
    assert (credit.distill_weight.sort(-1).values == torch.arange(1, 31)).all()
