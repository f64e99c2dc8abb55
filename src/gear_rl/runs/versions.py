"""The machine that a result may depend on."""

import os
import platform
import sys
from pathlib import Path


def processor() -> dict[str, str]:
    """What Linux says of the last core; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def has_bfloat16() -> bool:
    """Whether the processor itself multiplies in bfloat16 (AVX-512 or AMX, ARMv8.6), as far as Linux says.

    Where it does not, torch can all the same, several times slower than in float32.
    """
    facts = processor()
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def machine() -> str:
    """This machine in words, without its name.

    >>> "core" in machine()
    True
    """
    import torch

    facts = processor()
    flags = facts.get("flags", "").split()
    units = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    words = [facts.get("model name", platform.machine()), f"{os.cpu_count()} cores"]
    words += [" ".join(units)] if units else []
    if sys.platform != "win32":
        words.append(f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB")
    if torch.cuda.is_available():
        words.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    return ", ".join([*words, platform.system()])
