"""Taking up tiles of logits: the definition is a sum over the whole vocabulary, in float64."""

import math
import os
import shutil
import warnings

import pytest
import torch

from gear_rl.tensor import fold as module
from gear_rl.tensor.fold import MASS, OWN, SAMPLED, empty_sums, fold
from tensor.test_logits import seeded

CPU = torch.device("cpu")
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def whole(logits, teacher):
    """The first six sums by their definition, over the whole vocabulary."""
    x, z = logits.double(), teacher.double()
    top, top_t = x.amax(-1, keepdim=True), z.amax(-1, keepdim=True)
    w = (x - top).exp()
    sums = (w, w * (x - top), (z - top_t).exp(), w * (z - top_t))
    mass, own, mass_t, other = (part.sum(-1) for part in sums)
    return torch.stack([top[:, 0], mass, own, top_t[:, 0], mass_t, other])


def folded(logits, teacher, widths, way):
    sums, begin = empty_sums(len(logits), CPU), 0
    for width in widths:
        part = slice(begin, begin + width)
        way(sums, logits[:, part], None if teacher is None else teacher[:, part])
        begin += width
    assert begin == logits.shape[1]
    return sums


def pair(num_tokens, vocab, seed=0, spread=3.0):
    logits = torch.randn(num_tokens, vocab, generator=seeded(seed)) * spread
    return logits - 20, logits + torch.randn(num_tokens, vocab, generator=seeded(seed + 1)) + 5


def test_hundreds_of_tiles_lose_no_more_than_one():
    """Four thousand tiles, each a tenth of the first: float32 sums of them are off by 1e-5 of their size."""
    logits = torch.full((1, 4000), math.log(0.1))
    logits[0, 0] = 0.0
    sums = folded(logits, logits - 3, [1] * 4000, fold)
    expected = whole(logits, logits - 3)
    torch.testing.assert_close(sums[:SAMPLED], expected, rtol=2e-7, atol=0.0)
    entropy = expected[1].log() - expected[2] / expected[1]
    torch.testing.assert_close(sums[MASS].log() - sums[OWN] / sums[MASS], entropy, rtol=1e-7, atol=0.0)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_compiled_fold_is_the_eager_one():
    """CUDA's way of running it, built for this CPU."""
    logits, teacher = pair(7, 23)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of every release another
        found = folded(logits, teacher, (10, 10, 3), module._compiled_fold())
    torch.testing.assert_close(found, folded(logits, teacher, (10, 10, 3), fold), rtol=1e-6, atol=1e-6)
