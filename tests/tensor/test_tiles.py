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

from gear_rl.tensor.divergences import divergences
from gear_rl.tensor.logits import Head, TiledHead, bfloat16_products, tile_shape, token_statistics
from tensor.rows import PROPERTY
from tensor.test_logits import agrees, naive, seeded, small

LOW = torch.bfloat16
SETTING = getattr(torch.backends.mkldnn, "matmul", None)
has_setting = pytest.mark.skipif(not hasattr(SETTING, "fp32_precision"), reason="a torch without the setting")


class Recorder(TorchDispatchMode):
    """What each operation is called, how large its result is and where, and the setting it ran under."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                place = leaf.untyped_storage().data_ptr()
                precision = getattr(SETTING, "fp32_precision", None)
                self.calls.append((func.overloadpacket.__name__, leaf.numel(), place, precision))
        return result


# TiledHead


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
    tiled, buffer = TiledHead(head), torch.full((40,), torch.nan)
    for begin, end in ((0, 2), (0, 4), (4, 8), (8, 11), (0, 4)):  # wider, then back: nothing stale is read
        found = tiled.logits(buffer, tiled.operand(hidden), begin, end)
        torch.testing.assert_close(found, head.logits(hidden, begin, end), rtol=1e-6, atol=1e-6)
        assert found.data_ptr() == buffer.data_ptr()


def test_a_tile_of_the_weight_is_cast_once_for_student_and_teacher():
    student, teacher, token, weight = small(num_tokens=2)
    head = Head(weight_VD=weight.to(LOW))
    with Recorder() as recorder:
        token_statistics(student, token, head, teacher_ND=teacher, vocab_tile=4)
    assert sum(name == "copy_" and numel >= 3 * 5 for name, numel, *_ in recorder.calls) == 3  # 4, 4, 3 of 11


def test_a_cast_stays_on_the_device_of_the_weight(monkeypatch):
    """There is no second device here, so a weight says where room for it was asked for."""
    asked, weight = [], torch.zeros(11, 6, dtype=LOW)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *_, **__: asked.append(self.dtype) or room)
    room = torch.empty(66)
    TiledHead(Head(weight_VD=weight)).logits(torch.empty(4), torch.zeros(2, 6), 0, 2)
    assert asked == [LOW]


@pytest.mark.parametrize(("taught", "tiles"), [(True, 3), (False, 2)])
def test_the_tiles_are_made_once(taught, tiles):
    student, teacher, token, weight = small(70, 900, 3)
    head = Head(weight_VD=weight, scale=0.7, softcap=5.0, temperature=0.9, bias_V=weight[:, 0])
    with Recorder() as recorder:
        token_statistics(
            student, token, head, teacher_ND=teacher if taught else None, token_tile=10, vocab_tile=300
        )
    assert len({place for _, numel, place, _ in recorder.calls if numel == 3000}) == tiles
    assert max(numel for _, numel, _, _ in recorder.calls) == 3000


# tile_shape


@PROPERTY
@given(
    num_tokens=st.sampled_from([0, 1, 9, 511, 512, 513, 5000]),
    vocab=st.sampled_from([1, 2, 150, 1024, 151_936]),
    width=st.sampled_from([1, 64, 1024, 8192, 2_000_000]),
)
def test_tiles_and_their_weights_are_small_whatever_the_shape(num_tokens, vocab, width):
    weight = torch.empty(1, 1).expand(vocab, width)
    hidden = torch.empty(1, 1).expand(num_tokens, width)
    rows, columns = tile_shape(hidden, Head(weight_VD=weight), Head(weight_VD=weight))
    assert 1 <= rows <= max(1, num_tokens) and 1 <= columns <= vocab
    assert rows * columns <= 2**19
    assert columns * width <= max(2**21, width)
    # Nor needlessly small: all there is, or half of what is allowed.
    allowed = min(2**19, rows * max(1, 2**21 // width))
    assert (rows >= num_tokens and columns == vocab) or rows * columns > allowed / 2


@pytest.mark.parametrize(("num_tokens", "rows"), [(9000, 5242), (2000, 2000)])
def test_a_small_vocabulary_is_given_more_tokens(num_tokens, rows):
    head = Head(weight_VD=torch.zeros(100, 3))
    assert tile_shape(torch.zeros(num_tokens, 3), head, head) == (rows, 100)


def test_a_wider_teacher_narrows_the_tiles():
    head, teacher_head = Head(weight_VD=torch.zeros(5000, 3)), Head(weight_VD=torch.zeros(5000, 8192))
    assert tile_shape(torch.zeros(9, 3), head, teacher_head) == (9, 256)


@pytest.mark.parametrize(
    ("given_tiles", "found"),
    [((3, 4), (3, 4)), ((3, None), (3, 11)), ((None, 4), (7, 4)), ((99, 99), (7, 11))],
)
def test_a_size_that_is_given_is_taken(given_tiles, found):
    hidden, _, _, weight = small()
    head = Head(weight_VD=weight)
    assert tile_shape(hidden, head, head, *given_tiles) == found


# bfloat16


def precisions(*operands):
    student, teacher, head = operands
    token = torch.zeros(len(student), dtype=torch.int64)
    with Recorder() as recorder:
        token_statistics(student, token, head, teacher_ND=teacher, vocab_tile=4)
        if teacher is not None:
            divergences(student, head, teacher, names=["js_divergence"], vocab_tile=4)
    return {precision for name, _, _, precision in recorder.calls if name == "mm"}


@has_setting
def test_products_may_round_to_bfloat16_only_what_is_bfloat16():
    student, teacher, _, weight = small()
    low, before = [x.to(LOW) for x in (student, teacher, weight)], SETTING.fp32_precision
    assert precisions(low[0], low[1], Head(weight_VD=low[2])) == {"bf16"}
    assert precisions(low[0], None, Head(weight_VD=low[2])) == {"bf16"}
    for operands in (
        (student, low[1], Head(weight_VD=low[2])),
        (low[0], teacher, Head(weight_VD=low[2])),
        (low[0], low[1], Head(weight_VD=weight)),
        (low[0], low[1], Head(weight_VD=weight.half())),
    ):
        assert precisions(*operands) == {before}
    assert SETTING.fp32_precision == before


@has_setting
@pytest.mark.parametrize("before", ["none", "ieee", "bf16"])
def test_the_setting_is_restored_also_by_an_error(before):
    first = SETTING.fp32_precision
    try:
        SETTING.fp32_precision = before
        with bfloat16_products(torch.ones(1, dtype=LOW)):
            assert SETTING.fp32_precision == "bf16"
        assert SETTING.fp32_precision == before
        student, _, token, weight = small()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            token_statistics(student.to(LOW), token, Head(weight_VD=weight[:, :-1].to(LOW)))
        assert SETTING.fp32_precision == before
        with pytest.raises(ZeroDivisionError), bfloat16_products(torch.ones(1, dtype=LOW)):
            _ = 1 / 0
        assert SETTING.fp32_precision == before
    finally:
        SETTING.fp32_precision = first


@has_setting
def test_the_older_interface_to_the_setting_still_answers():
    """torch refuses to answer through one interface what was set through the other, and left there."""
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            with bfloat16_products(torch.ones(1, dtype=LOW)):
                pass
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_torch_without_the_setting_gives_the_same(monkeypatch):
    student, teacher, token, weight = (x.to(LOW) if x.is_floating_point() else x for x in small())
    head = Head(weight_VD=weight)
    monkeypatch.setattr(torch.backends, "mkldnn", None)
    agrees(token_statistics(student, token, head, teacher_ND=teacher), naive(student, token, head, teacher))


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
