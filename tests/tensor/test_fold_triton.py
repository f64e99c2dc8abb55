"""The Triton kernel against the eager fold: on a GPU where there is one, else in Triton's interpreter."""

import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from gear_rl.tensor.fold import SAMPLED, empty_sums, reverse_divergence
from gear_rl.tensor.fold_triton import fold_triton
from gear_rl.tensor.logits import Head, token_statistics
from tensor.test_fold import eager, folded, pair
from tensor.test_logits import agrees, naive, small

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
runs = pytest.mark.skipif(
    find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()),
    reason="no triton and GPU; without a GPU test_in_the_interpreter runs this",
)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # triton's own, of every release another


@pytest.mark.skipif(find_spec("triton") is None, reason="no triton")
@pytest.mark.skipif(INTERPRETED, reason="this is it")
def test_in_the_interpreter():
    """In a process of its own: the variable must be there before anything imports triton, and torch does."""
    command = [sys.executable, "-m", "pytest", __file__, "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout, done.stdout


def kernel(sums, logits, teacher):
    if teacher is not None:  # its rows lie farther apart than the student's
        teacher = torch.nn.functional.pad(teacher, (0, 3), value=torch.nan)[:, :-3]
    on_device = [None if x is None else x.to(DEVICE) for x in (sums, logits, teacher)]
    fold_triton(*on_device, block=16)
    sums.copy_(on_device[0])


@runs
@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("slope", [40, -40, 2])
def test_the_kernel_is_the_eager_fold(taught, slope):
    """Tiles narrower than the kernel's block, wider, and of one column; maxima that rise far, that stay, and that
    rise a little. All lie far below 0: what pads a block must be farther.
    """
    logits, teacher = pair(4, 150, spread=9.0)
    order = torch.linspace(-slope, slope, 150)
    logits, teacher = logits + order - 300, (teacher - order - 300 if taught else None)
    widths = (70, 1, 16, 63)
    found, expected = folded(logits, teacher, widths, kernel), folded(logits, teacher, widths, eager)
    torch.testing.assert_close(found[:SAMPLED], expected[:SAMPLED], rtol=3e-6, atol=3e-5)


@runs
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: inf - inf is the point
def test_what_is_not_finite_stays_in_its_row():
    logits, teacher = pair(4, 30)
    clean = folded(logits, teacher, (20, 10), kernel)
    for column, value in ((3, math.nan), (25, math.inf)):
        broken = logits.clone()
        broken[2, column] = value
        found = folded(broken, teacher, (20, 10), kernel)
        assert not reverse_divergence(found)[2].isfinite()
        assert torch.equal(found[:, [0, 1, 3]], clean[:, [0, 1, 3]])


@runs
def test_no_token_starts_no_kernel():
    sums = empty_sums(0, DEVICE)
    fold_triton(sums, torch.zeros(0, 5, device=DEVICE), None)
    assert sums.shape == (8, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_signals_on_a_gpu(dtype):
    student, teacher, token, weight = (
        x.to(DEVICE, dtype if x.is_floating_point() else None) for x in small(70, 900, 64)
    )
    head = Head(weight_VD=weight * 0.3, bias_V=weight[:, 0], softcap=9.0, temperature=0.8)
    found = token_statistics(student, token, head, teacher_ND=teacher, token_tile=32, vocab_tile=400)
    agrees(found, naive(student, token, head, teacher), atol=2e-5)
