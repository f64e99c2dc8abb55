"""A kernel in the place of the fold: trusted after one tile that agrees, dropped with one warning otherwise."""

import math
import warnings

import pytest
import torch

from gear_rl.tensor import logits as module
from gear_rl.tensor.fold import MASS, OTHER, OWN, SAMPLED, empty_sums
from gear_rl.tensor.fold_checked import ROUNDING, CheckedFold
from gear_rl.tensor.logits import Head, token_statistics
from tensor.test_fold import CPU, eager, folded, pair
from tensor.test_logits import agrees, naive, small


class Kernel:
    """The eager fold on copies, as a kernel that only reads, and then whatever breaks it."""

    def __init__(self, spoil=lambda sums: None):
        self.spoil, self.calls = spoil, 0

    def __call__(self, sums, logits, teacher):
        self.calls += 1
        eager(sums, logits.clone(), None if teacher is None else teacher.clone())
        self.spoil(sums)


def one_word_less(sums):
    sums[MASS, -1] *= 1 - 1 / 16384


def raises(sums):
    sums.zero_()
    raise RuntimeError("ptxas:\n  no such\n  instruction")


def scales(row):
    def spoil(sums):
        sums[row, 0] *= 1 + 5 * ROUNDING

    return spoil


BROKEN = {
    "one word less": one_word_less,
    "raises": raises,
    "own": scales(OWN),
    "other": scales(OTHER),
    "nothing": lambda sums: sums.copy_(empty_sums(sums.shape[1], CPU)),
    "not finite": lambda sums: sums[OTHER, 1].fill_(math.nan),
    "the sampled logit": lambda sums: sums[SAMPLED].add_(1),
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN)
def test_a_broken_kernel_is_dropped_with_one_warning_and_gives_no_number(spoil):
    logits, teacher = pair(300, 50)  # more tokens than are compared at a time
    kernel = Kernel(spoil)
    checked = CheckedFold(kernel, "the Triton fold")
    expected = folded(logits, teacher, (20, 20, 10), eager)
    with pytest.warns(
        RuntimeWarning, match="the Triton fold was compared with the eager fold .* from now on"
    ) as seen:
        found = folded(logits, teacher, (20, 20, 10), checked)
    assert len(seen) == 1 and checked.dropped and kernel.calls == 1
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # of the other form too: nothing more is said, and nothing more is tried
        assert torch.equal(folded(logits, None, (20, 30), checked), folded(logits, None, (20, 30), eager))
    assert kernel.calls == 1


def test_what_it_raised_is_said_in_one_line():
    logits, _ = pair(2, 3)
    with pytest.warns(
        RuntimeWarning, match="raised RuntimeError: ptxas: no such instruction; the eager fold"
    ):
        folded(logits, None, (3,), CheckedFold(Kernel(raises)))


def test_a_kernel_that_rounds_differently_stays():
    """In float32, and the last bits of every sum moved."""

    def rounds(sums):
        sums[:SAMPLED] = sums[:SAMPLED].float() * (1 + 3e-7)

    logits, teacher = pair(5, 40)
    kernel = Kernel(rounds)
    checked = CheckedFold(kernel)
    found = folded(logits, teacher, (20, 10, 10), checked)
    assert kernel.calls == 3 and not checked.dropped
    torch.testing.assert_close(found, folded(logits, teacher, (20, 10, 10), eager), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [True, False])
def test_each_form_is_compared_once(first):
    """With a teacher and without are two kernels; the second may be the broken one."""
    logits, teacher = pair(4, 6)
    kernel = Kernel()
    checked = CheckedFold(kernel)
    folded(logits, teacher if first else None, (3, 3), checked)
    kernel.spoil = one_word_less
    with pytest.warns(RuntimeWarning, match="differs from it in 1 of 4 tokens"):
        folded(logits, None if first else teacher, (6,), checked)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_token_that_is_not_finite_accuses_nobody_and_acquits_nobody(value):
    logits, teacher = pair(3, 5)
    logits[1, 2] = value
    kernel = Kernel(lambda sums: sums[0, 1].fill_(7.0))  # another largest logit where there is none
    checked = CheckedFold(kernel)
    folded(logits, teacher, (5,), checked)
    assert not checked.dropped
    logits, kernel = torch.full((3, 5), value), Kernel()
    checked = CheckedFold(kernel)
    folded(logits, None, (5,), checked)
    kernel.spoil = one_word_less
    with pytest.warns(RuntimeWarning):  # the first tile showed nothing, so this one is compared
        folded(pair(3, 5)[0], None, (5,), checked)
    assert checked.dropped


def test_no_token_shows_nothing():
    kernel = Kernel()
    checked = CheckedFold(kernel)
    checked(empty_sums(0, CPU), torch.zeros(0, 5), None)
    kernel.spoil = one_word_less
    with pytest.warns(RuntimeWarning):
        folded(pair(3, 5)[0], None, (5,), checked)


@pytest.mark.parametrize("taught", [True, False])
def test_the_signals_of_a_broken_kernel_are_those_without_it(monkeypatch, taught):
    """Through the dispatch that a GPU takes."""
    student, teacher, token, weight = small(70, 300)
    teacher, head = teacher if taught else None, Head(weight_VD=weight)
    for spoil in (one_word_less, raises):
        checked = CheckedFold(Kernel(spoil))
        monkeypatch.setattr(module, "kernel_for", lambda device, checked=checked: checked)
        with pytest.warns(RuntimeWarning, match="eager fold"):
            found = token_statistics(student, token, head, teacher_ND=teacher, token_tile=32, vocab_tile=130)
        agrees(found, naive(student, token, head, teacher))
        assert checked.dropped


def test_the_signals_of_a_kernel_that_agrees_come_from_it(monkeypatch):
    student, teacher, token, weight = small(70, 300)
    kernel, head = Kernel(), Head(weight_VD=weight)
    monkeypatch.setattr(module, "kernel_for", lambda device: CheckedFold(kernel) if device == CPU else None)
    found = token_statistics(student, token, head, teacher_ND=teacher, token_tile=32, vocab_tile=130)
    assert kernel.calls == 9
    agrees(found, naive(student, token, head, teacher))


def test_a_processor_has_no_kernel_and_a_process_one_verdict():
    assert module.kernel_for(CPU) is None
    cuda = torch.device("cuda")
    assert module.kernel_for(cuda) is module.kernel_for(cuda)
