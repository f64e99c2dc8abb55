"""Heads read tile by tile: into buffers made once, in float32 whatever the operands are, with flat memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gear_rl.tensor.logits import Head, tile_shape, token_statistics
from tensor.rows import PROPERTY, tiled
from tensor.test_logits import agrees, naive, seeded, small

LOW = torch.bfloat16


class Recorder(TorchDispatchMode):
    """What each operation is called, how large its result is and where."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                place = leaf.untyped_storage().data_ptr()
                self.calls.append((func.overloadpacket.__name__, leaf.numel(), place))
        return result


# slices of a head


@pytest.mark.parametrize(
    ("hidden_dtype", "weight_dtype"),
    [
        (torch.float32, torch.float32),
        (LOW, LOW),
        (torch.float16, torch.float16),
        (LOW, torch.float32),
        (torch.float32, LOW),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_the_logits_are_those_of_the_head(hidden_dtype, weight_dtype, plain):
    hidden, _, _, weight = small()
    hidden, weight = hidden.to(hidden_dtype), weight.to(weight_dtype)
    head = Head(weight_VD=weight)
    if not plain:
        head = Head(weight_VD=weight, bias_V=weight[:, 0], scale=0.7, softcap=2.0, temperature=1.3)
    whole, buffer = head.logits(hidden), torch.full((40,), torch.nan)
    for begin, end in ((0, 2), (0, 4), (4, 8), (8, 11), (0, 4)):  # wider, then back: nothing stale is read
        found = head.slice(begin, end).logits(hidden, buffer)
        torch.testing.assert_close(found, whole[:, begin:end], rtol=1e-6, atol=1e-6)
        assert not plain or found.data_ptr() == buffer.data_ptr()


def test_a_tile_of_the_weight_is_cast_once_for_student_and_teacher():
    student, teacher, token, weight = small(num_tokens=2)
    head = Head(weight_VD=weight.to(LOW))
    with Recorder() as recorder:
        tiled(token_statistics, student, token, head, teacher_ND=teacher, vocab_tile=4)
    assert (
        sum(name == "_to_copy" and numel >= 3 * 5 for name, numel, _ in recorder.calls) == 3
    )  # 4, 4, 3 of 11


@pytest.mark.parametrize("taught", [True, False])
def test_the_tiles_are_made_once(taught):
    student, teacher, token, weight = small(70, 900, 3)
    head = Head(weight_VD=weight, scale=0.7, temperature=0.9, bias_V=weight[:, 0])
    with Recorder() as recorder:
        tiled(
            token_statistics,
            student,
            token,
            head,
            teacher_ND=teacher if taught else None,
            token_tile=10,
            vocab_tile=300,
        )
    assert len({place for _, numel, place in recorder.calls if numel == 3000}) == 3
    assert max(numel for _, numel, _ in recorder.calls) == 3000


# tile_shape


@PROPERTY
@given(
    num_tokens=st.sampled_from([0, 1, 9, 511, 512, 513, 5000]),
    vocab=st.sampled_from([1, 2, 150, 1024, 151_936]),
    width=st.sampled_from([1, 64, 1024, 8192, 2_000_000]),
)
def test_tiles_and_their_weights_are_small_whatever_the_shape(num_tokens, vocab, width):
    weight = torch.empty(1, 1).expand(vocab, width)
    rows, columns = tile_shape(num_tokens, Head(weight_VD=weight))
    assert 1 <= rows <= max(1, num_tokens) and 1 <= columns <= vocab
    assert rows * columns <= 2**19
    assert columns * width <= max(2**21, width)
    # Nor needlessly small: all there is, or half of what is allowed.
    allowed = min(2**19, rows * max(1, 2**21 // width))
    assert (rows >= num_tokens and columns == vocab) or rows * columns > allowed / 2


@pytest.mark.parametrize(("num_tokens", "rows"), [(9000, 5242), (2000, 2000)])
def test_a_small_vocabulary_is_given_more_tokens(num_tokens, rows):
    head = Head(weight_VD=torch.zeros(100, 3))
    assert tile_shape(num_tokens, head) == (rows, 100)


# memory

PEAK = """
import ctypes, torch
from gear_rl.tensor.logits import Head, token_statistics

torch.set_num_threads(1)
def field(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

def call(num_tokens, vocab):
    token = torch.zeros(num_tokens, dtype=torch.int64)
    student, teacher = hidden[:, :num_tokens]
    token_statistics(student, token, Head(weight_VD=weight[:vocab]), teacher_ND=teacher)

for dtype in (torch.float32, torch.bfloat16):
    weight, hidden = torch.randn(60_000, 16).to(dtype), torch.randn(2, 2048, 16).to(dtype)
    call(600, 3000)
    for num_tokens, vocab in ((600, 3000), (2048, 3000), (600, 60_000), (2048, 60_000)):
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = field("VmRSS")
        call(num_tokens, vocab)
        print(field("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
def test_memory_depends_on_neither_tokens_nor_vocabulary():
    """Measured. All logits of the largest shape would be 983 MB, those of one tile over the vocabulary 123."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    assert len(found) == 8
    for peaks in (found[:4], found[4:]):  # float32, bfloat16
        assert max(peaks) <= 16 and max(peaks) - min(peaks) <= 4, found


def test_the_result_does_not_hang_on_the_tiles():
    """At the sizes that are chosen: more tokens than a tile has, and a vocabulary of several tiles."""
    student, teacher, _, weight = small(700, 2500, 8)
    token = torch.randint(2500, (700,), generator=seeded(4))
    agrees(
        token_statistics(student, token, Head(weight_VD=weight), teacher_ND=teacher),
        naive(student, token, Head(weight_VD=weight), teacher),
        atol=1e-5,
    )
