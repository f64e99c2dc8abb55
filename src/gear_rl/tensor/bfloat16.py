"""Products of bfloat16 operands with a float32 result on a CPU, by a kernel that torch has but gives no name.

oneDNN's kernel for one block of a product lies inside torch for its attention, and wants its right operand packed
in pairs. Processors with bfloat16 arithmetic but no AMX (Zen 4 and 5, Cooper Lake) have no other way: elsewhere
torch either rounds the result or multiplies in float32. Knows no head, no model, no trainer and no method.
"""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from jaxtyping import BFloat16, Float, Int
from torch import Tensor

MOST_ROWS, MOST_COLUMNS = 512, 1024
"""Of one block: oneDNN builds a kernel for every shape, and blocks are powers of two lest it build many."""

# The two functions are exported, and declared in ATen/native/CPUBlas.h, whose C++ a compiler takes half a minute
# over. Only their names are written here: a name holds the types of the arguments, so that another signature is
# one that is not found. What torch throws where it has no such kernel must end here, in C++. Sums of 128 products
# are added up, not one of a thousand: the largest error is then an eighth, that of a float32 product (measured).
_SOURCE = r"""
void block(long, long, long, long, long, long, bool, const void*, const void*, float*, bool)
    __asm__("_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb");
void release(bool) __asm__("_ZN2at6native7cpublas14brgemm_releaseEb");

extern "C" int product(long rows, long columns, long width, const char* left, long left_stride,
                       const char* packed, long packed_stride, float* out, long out_stride) {
  try {
    for (long done = 0; done < width; done += 128) {
      long depth = width - done < 128 ? width - done : 128;
      block(rows, columns, depth, left_stride, packed_stride, out_stride, done > 0,
            left + 2 * done, packed + 2 * done * packed_stride, out, true);
    }
    release(true);
    return 0;
  } catch (...) {
    return 1;
  }
}
"""

_Product = Callable[..., int]


def can_multiply(hidden_ND: Tensor, weight_VD: Tensor) -> bool:
    """True where ``packed`` and ``multiply`` take these operands on this machine.

    They must be bfloat16 on a CPU, in rows of one even length; the processor has bfloat16 arithmetic but no AMX
    (with it torch's ordinary product is as fast), the system is Linux, and there is a C++ compiler. The first
    question that gets so far takes about a second, to compile twenty lines.

    >>> can_multiply(torch.zeros(1, 2), torch.zeros(3, 2))  # float32
    False
    """
    for x in (hidden_ND, weight_VD):
        if x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.shape[-1] % 2 or x.stride(-1) != 1:
            return False
    if hidden_ND.shape[-1] != weight_VD.shape[-1]:
        return False  # the ordinary product will say so
    aligned = weight_VD.stride(0) % 2 == 0 and weight_VD.data_ptr() % 4 == 0
    return aligned and bool(torch.backends.mkldnn.enabled) and _product() is not None


def packed(weight_KD: BFloat16[Tensor, "K D"], out: Int[Tensor, " C"]) -> Int[Tensor, "H K"]:
    """A slice of the vocabulary as the kernel reads it, in the first numbers of ``out`` (int32).

    ``H`` is half the width: each number holds two neighbours of a row.

    >>> packed(torch.ones(3, 4, dtype=torch.bfloat16), torch.empty(6, dtype=torch.int32)).shape
    torch.Size([2, 3])
    """
    pairs = weight_KD.view(torch.int32)
    return out[: pairs.numel()].view(pairs.shape[1], pairs.shape[0]).copy_(pairs.t())


def multiply(
    hidden_ND: BFloat16[Tensor, "N D"], packed_HK: Int[Tensor, "H K"], out_NK: Float[Tensor, "N K"]
) -> None:
    """``hidden @ weight.T`` into ``out``, of a weight that was ``packed``; sums and result are float32.

    A row's result hangs neither on the other rows' values nor on torch's number of threads, over which the rows
    are parted. Raises ``ValueError`` for shapes that do not fit and ``RuntimeError`` where ``can_multiply`` says
    False.
    """
    function, (rows, width) = _product(), hidden_ND.shape
    if function is None:
        raise RuntimeError("multiply: no bfloat16 product with a float32 result here; ask can_multiply first")
    if width != 2 * packed_HK.shape[0] or tuple(out_NK.shape) != (rows, packed_HK.shape[1]):
        shapes = [tuple(x.shape) for x in (hidden_ND, packed_HK, out_NK)]
        raise ValueError(f"multiply: shapes {shapes} do not fit; give (N, D), (D / 2, K) and (N, K)")
    for name, x in (("hidden", hidden_ND), ("packed", packed_HK), ("out", out_NK)):
        if x.stride(-1) != 1:
            raise ValueError(f"multiply: {name} has strides {x.stride()}; give rows without gaps")

    def one(row: int, height: int) -> None:
        left = hidden_ND.data_ptr() + 2 * row * hidden_ND.stride(0)
        for column, columns in _blocks(packed_HK.shape[1], MOST_COLUMNS):
            right, place = packed_HK.data_ptr() + 4 * column, 4 * (row * out_NK.stride(0) + column)
            failed = function(
                height,
                columns,
                width,
                left,
                hidden_ND.stride(0),
                right,
                packed_HK.stride(0),
                out_NK.data_ptr() + place,
                out_NK.stride(0),
            )
            if failed:
                raise RuntimeError("multiply: torch has no kernel for this product after all")

    threads = torch.get_num_threads()
    most = max(1, min(MOST_ROWS, rows // threads))
    blocks = list(_blocks(rows, 1 << (most.bit_length() - 1)))
    if threads == 1 or len(blocks) == 1:
        for block in blocks:
            one(*block)
    else:
        list(_threads(threads).map(one, *zip(*blocks, strict=True)))


def _blocks(size: int, most: int) -> Iterator[tuple[int, int]]:
    """Where blocks of the greatest powers of two that still fit begin, and how long they are."""
    begin = 0
    while begin < size:
        length = min(most, 1 << ((size - begin).bit_length() - 1))
        yield begin, length
        begin += length


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="gear-bfloat16")


@cache
def _product() -> _Product | None:
    """The kernel, or None where this machine has none; found out once, by a product whose result is known."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    flags = Path("/proc/cpuinfo").read_text().split()
    if "avx512_bf16" not in flags or "amx_bf16" in flags:
        return None
    function = _compiled()
    if function is None:
        return None
    left, right = (torch.arange(n * 4.0).view(n, 4).bfloat16() for n in (2, 16))
    pairs, out = packed(right, torch.empty(32, dtype=torch.int32)), torch.empty(2, 16)
    failed = function(2, 16, 4, left.data_ptr(), 4, pairs.data_ptr(), 16, out.data_ptr(), 16)
    return None if failed or not torch.equal(out, left.float() @ right.float().t()) else function


def _compiled() -> _Product | None:
    libraries = Path(torch.__file__).parent / "lib"
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "product.cpp"), Path(folder, "product.so")
            source.write_text(_SOURCE)
            command = [*shlex.split(compiler), "-shared", "-fPIC", str(source), "-o", str(library)]
            command += [f"-L{libraries}", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            # Names are looked up at once, so that a torch without them fails here. The file may go then.
            function = ctypes.CDLL(str(library)).product
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [number] * 3 + [pointer, number, pointer, number, pointer, number]
    function.restype = ctypes.c_int
    return function
