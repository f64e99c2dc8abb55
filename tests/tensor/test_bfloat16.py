"""bfloat16 products with a float32 result on a CPU: the definition is the float64 product of the same numbers."""

import platform
import shutil
import sys
from inspect import unwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor import bfloat16
from gear_rl.tensor.bfloat16 import can_multiply, multiply, packed
from gear_rl.tensor.divergences import divergences
from gear_rl.tensor.logits import Head, TiledHead, tile_shape, token_statistics
from tensor.rows import PROPERTY
from tensor.test_logits import agrees, large, naive, seeded, small

LOW = torch.bfloat16


def capable():
    """Asked of the machine and not of the code, so that a kernel that is lost fails and is not skipped."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags and "amx_bf16" not in flags and shutil.which("c++") is not None


# Elsewhere there is no such kernel to test; test_a_machine_without_it_casts runs everywhere.
here = pytest.mark.skipif(not capable(), reason="needs Linux, x86-64, avx512_bf16 without AMX, and c++")


@here
def test_a_machine_that_can_has_the_kernel():
    assert bfloat16._product() is not None


def drawn(rows, columns, width, seed=0):
    g = seeded(seed)
    return torch.randn(rows, width, generator=g).to(LOW), torch.randn(columns, width, generator=g).to(LOW)


def product(hidden, weight):
    out = torch.full((len(hidden), len(weight)), torch.nan)
    multiply(hidden, packed(weight, torch.empty(weight.numel() // 2, dtype=torch.int32)), out)
    return out


def close(found, hidden, weight):
    """As near as sums of float32: a bfloat16 result would be off by a 256th of its size."""
    exact = hidden.double() @ weight.double().t()
    size = hidden.double().abs() @ weight.double().abs().t()
    assert found.dtype == torch.float32
    assert ((found - exact).abs() <= 1e-6 * size + 1e-12).all()


def test_pairs_of_neighbours_stand_together():
    """Row h of the result holds numbers 2h and 2h + 1 of every row of the weight."""
    weight = torch.arange(12.0).view(3, 4).to(LOW)
    found = packed(weight, torch.empty(9, dtype=torch.int32))
    assert found.view(LOW).tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


@here
@PROPERTY
@given(
    rows=st.sampled_from([1, 2, 3, 7, 31, 64, 100, 513]),
    columns=st.sampled_from([1, 2, 15, 16, 17, 100, 1025]),
    width=st.sampled_from([2, 4, 6, 30, 128, 130, 300]),
    seed=st.integers(0, 100),
)
def test_every_shape_gives_the_product(rows, columns, width, seed):
    hidden, weight = drawn(rows, columns, width, seed)
    close(product(hidden, weight), hidden, weight)


@here
def test_long_sums_are_as_exact_as_those_of_float32():
    """At the width of a model, where one sum of 1024 products is not."""
    hidden, weight = drawn(64, 256, 1024)
    exact = hidden.double() @ weight.double().t()
    plain = (hidden.float() @ weight.float().t() - exact).abs().max()
    assert (product(hidden, weight) - exact).abs().max() <= 2 * plain


@here
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_threads_part_the_rows_and_change_nothing(threads):
    hidden, weight = drawn(37, 40, 64)
    alone = product(hidden, weight)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(product(hidden, weight), alone)
    finally:
        torch.set_num_threads(before)


@here
def test_rows_of_other_tensors_and_room_that_is_wider():
    hidden, weight = drawn(20, 30, 16)
    apart, room = torch.zeros(20, 40, dtype=LOW), torch.full((20, 50), -1.0)
    apart[:, 4:20] = hidden
    pairs = packed(weight, torch.empty(400, dtype=torch.int32))
    multiply(apart[:, 4:20], pairs, room[:, :30])
    close(room[:, :30], hidden, weight)
    assert (room[:, 30:] == -1).all()


@here
def test_a_row_that_is_not_finite_spoils_itself_alone():
    hidden, weight = drawn(9, 10, 8)
    clean, hidden = product(hidden, weight), hidden.clone()
    hidden[4, 3] = torch.nan
    found, others = product(hidden, weight), torch.arange(9) != 4
    assert found[4].isnan().all() and torch.equal(found[others], clean[others])


@here
@pytest.mark.parametrize(
    ("hidden", "weight"),
    [
        (torch.zeros(3, 4), torch.zeros(5, 4)),
        (torch.zeros(3, 4, dtype=LOW), torch.zeros(5, 4)),
        (torch.zeros(3, 4).half(), torch.zeros(5, 4).half()),
        (torch.zeros(3, 5, dtype=LOW), torch.zeros(5, 5, dtype=LOW)),  # no pairs
        (torch.zeros(3, 4, dtype=LOW), torch.zeros(5, 6, dtype=LOW)),
        (torch.zeros(4, 3, dtype=LOW).t(), torch.zeros(5, 4, dtype=LOW)),
        (torch.zeros(3, 4, dtype=LOW), torch.zeros(4, 5, dtype=LOW).t()),
        (torch.zeros(3, 4, dtype=LOW), torch.zeros(5, 5, dtype=LOW)[:, :4]),  # pairs that begin at odd places
        (torch.zeros(3, 4, dtype=LOW), torch.zeros(21, dtype=LOW)[1:].view(5, 4)),
    ],
)
def test_what_the_kernel_cannot_take_goes_the_ordinary_way(hidden, weight):
    assert can_multiply(torch.zeros(3, 4, dtype=LOW), torch.zeros(5, 4, dtype=LOW))
    assert not can_multiply(hidden, weight)


@here
def test_torch_without_its_kernels_is_asked_for_none():
    with torch.backends.mkldnn.flags(enabled=False):
        assert not can_multiply(*drawn(3, 5, 4))
        with pytest.raises(RuntimeError, match="no kernel"):  # thrown in C++, and caught there
            product(*drawn(3, 5, 4))


@here
@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 5), (3, 5)), ((3, 4), (2, 5), (3, 6)), ((3, 4), (2, 5), (2, 5))]
)
def test_shapes_that_do_not_fit_are_refused(shapes):
    hidden, pairs, out = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match="do not fit"):  # where no type checker stands before it
        unwrap(multiply)(hidden.to(LOW), pairs.to(torch.int32), out)


@here
def test_rows_with_gaps_are_refused():
    (hidden, weight), out = drawn(3, 5, 4), torch.zeros(5, 3)
    with pytest.raises(ValueError, match=r"out has strides \(1, 3\)"):
        multiply(hidden, packed(weight, torch.empty(10, dtype=torch.int32)), out.t())


@pytest.mark.parametrize("compiler", ["false", "/nowhere/g++"])
def test_without_a_compiler_there_is_none(monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    assert bfloat16._compiled() is None
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert bfloat16._compiled() is None


def test_a_torch_without_the_names_has_none(monkeypatch):
    monkeypatch.setattr(bfloat16, "_SOURCE", bfloat16._SOURCE.replace("brgemm", "another"))
    assert bfloat16._compiled() is None


def test_where_nothing_can_be_written_there_is_none(monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(bfloat16.tempfile, "TemporaryDirectory", full)
    assert bfloat16._compiled() is None


# in the tiles


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr(bfloat16, "_product", lambda: None)


def low(num_tokens=7, vocab=11, width=6, seed=0):
    student, teacher, token, weight = small(num_tokens, vocab, width, seed)
    return student.to(LOW), teacher.to(LOW), token, Head(weight_VD=weight.to(LOW))


@here
@pytest.mark.parametrize("compiled", [False, True])
def test_statistics_and_divergences_are_made_with_it(monkeypatch, compiled):
    student, teacher, token, head = low()
    calls, packings = [], []
    monkeypatch.setattr(bfloat16, "multiply", lambda *args: calls.append(1) or multiply(*args))
    monkeypatch.setattr(bfloat16, "packed", lambda *args: packings.append(1) or packed(*args))
    found = token_statistics(student, token, head, teacher_ND=teacher, vocab_tile=4, compiled=compiled)
    agrees(found, naive(student, token, head, teacher))
    assert (len(calls), len(packings)) == (6, 3), "4, 4 and 3 of 11, packed once for student and teacher"
    calls.clear()
    divergences(student, head, teacher, names=["js_divergence"], vocab_tile=4)
    assert calls


@here
def test_a_teacher_that_is_the_student_diverges_by_exactly_zero():
    student, _, token, head = low(num_tokens=37)
    found = token_statistics(student, token, head, teacher_ND=student.clone(), token_tile=16, vocab_tile=3)
    assert found.divergence.tolist() == [0.0] * 37


@here
def test_a_head_of_another_precision_keeps_a_cast_of_its_own():
    """One head for a student of bfloat16 and a teacher of float32: neither may take the other's slice."""
    student, teacher, token, head = low()
    teacher = teacher.float() + 1e-3
    found = token_statistics(student, token, head, teacher_ND=teacher, vocab_tile=4)
    agrees(found, naive(student, token, head, teacher))


@here
def test_its_tiles_are_as_large_as_any_and_as_wide_as_a_power_of_two():
    hidden, head = torch.zeros(2000, 4, dtype=LOW), Head(weight_VD=torch.zeros(5000, 4, dtype=LOW))
    assert tile_shape(hidden, head, head) == (512, 1024)
    assert tile_shape(hidden[:300], head, head) == (300, 1024)  # 1747 would fit


def test_a_machine_without_it_casts(without):
    student, teacher, token, head = low()
    found = token_statistics(student, token, head, teacher_ND=teacher, vocab_tile=4)
    agrees(found, naive(student, token, head, teacher))
    assert TiledHead(head).operand(student).dtype == torch.float32
    student, teacher, token, head = large(LOW)
    found = token_statistics(student, token, head, teacher_ND=teacher)
    assert (found.divergence - naive(student, token, head, teacher)[3]).abs().max() <= 5e-6
