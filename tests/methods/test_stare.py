"""STARE (arXiv:2606.19236): which tokens are reweighted, by hand."""

import torch

from gear_rl.methods import Stare
from gear_rl.types import TokenSignals

SURPRISAL = [[0.1, 3.0, 0.2, 9.0], [0.5, 0.4, 2.0, 0.0], [7.0, 0.3, 0.6, 0.9]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def credited(entropy=0.2, **settings):
    mask = torch.tensor(MASK).bool()
    signals = TokenSignals(
        mask=mask,
        student_logprob=-torch.tensor(SURPRISAL),
        student_entropy=torch.where(mask, entropy, 50.0),
    )
    return Stare(**settings)(torch.tensor([1.0, 2.0, -1.0]), signals).advantage


def test_the_share_is_of_all_tokens_of_good_completions():
    # A third of six: surprisals 3.0 and 2.0. That of the tool's answer, 9.0, is nobody's.
    expected = torch.tensor([[1.0, 1.1, 1.0, 0.0], [2.0, 2.0, 2.2, 0.0], [-1.0, -1.0, -1.0, -1.0]])
    torch.testing.assert_close(credited(share=1 / 3), expected)


def test_a_share_that_is_a_whole_number_of_tokens_is_that_number():
    """50 times 0.3 is a little more than 15 in float32."""
    mask = torch.ones(1, 50, dtype=torch.bool)
    signals = TokenSignals(mask=mask, student_logprob=-torch.rand(1, 50), student_entropy=torch.zeros(1, 50))
    assert (Stare(share=0.3)(torch.tensor([1.0]), signals).advantage > 1).sum() == 15


def test_bad_completions_have_a_weight_of_their_own():
    expected = torch.tensor([[1.0, 1.1, 1.0, 0.0], [2.0, 2.0, 2.0, 0.0], [-0.9, -1.0, -1.0, -1.0]])
    torch.testing.assert_close(credited(share=0.1, bad_weight=0.9), expected)


def test_the_mean_entropy_is_that_of_completions_with_an_advantage():
    signals = TokenSignals(
        mask=torch.ones(2, 2, dtype=torch.bool),
        student_logprob=-torch.tensor([[1.0, 2.0], [0.0, 0.0]]),
        student_entropy=torch.tensor([[0.5, 0.5], [0.0, 0.0]]),  # the second was not scored
    )
    assert Stare(entropy_nats=0.4)(torch.tensor([1.0, 0.0]), signals).advantage.tolist() == [[1, 1], [0, 0]]


def test_nothing_changes_while_the_policy_is_uncertain():
    assert credited(entropy=0.31).tolist() == [[1, 1, 1, 0], [2, 2, 2, 0], [-1, -1, -1, -1]]
    assert credited(entropy=0.29).tolist() != credited(entropy=0.31).tolist()
