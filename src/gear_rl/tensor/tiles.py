"""How large a tile of logits does well: by the size of a core's L2 cache on a CPU. Knows no head and no model."""

from functools import cache
from pathlib import Path

UNKNOWN_L2 = 2**20
"""Bytes that are assumed where the system does not say."""
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20}
_TILES_HELD = 3
"""By the eager fold: the student's logits, the teacher's and the weights."""


@cache
def l2_bytes(caches: Path = _CPU_CACHES) -> int | None:
    """Bytes of a core's L2 cache, as Linux shows them; None where that cannot be read.

    >>> l2_bytes(Path("no such folder")) is None
    True
    """
    try:
        for index in sorted(caches.glob("index*")):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if level == "2" and kind in ("Unified", "Data"):
                return int(size.rstrip("KM")) * _UNITS.get(size[-1], 1)
    except (OSError, ValueError):
        pass
    return None


_LEAST, _MOST = 2**17, 2**19
"""Logits of a tile."""


def cpu_tile(l2: int | None) -> tuple[int, int]:
    """Tokens and logits of a float32 tile on a CPU whose cores have an L2 cache of so many bytes.

    256 tokens and as many logits that the fold's three tiles stay in the L2, where a pass over them may cost a
    third. That takes an L2 of 1.5 MiB or more: with a smaller one such a tile has too few logits for the fifty
    small operations that come with it, and 512 x 1,024 is as good as any. At most that many. None is an L2
    of ``UNKNOWN_L2`` bytes.

    >>> cpu_tile(2 * 2**20), cpu_tile(2**20)
    ((256, 131072), (512, 524288))
    """
    fits = (l2 or UNKNOWN_L2) // (4 * _TILES_HELD)
    if fits < _LEAST:
        return 512, _MOST
    return 256, min(1 << (fits.bit_length() - 1), _MOST)
