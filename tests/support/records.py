"""A credit record from the fields that a test is about."""

from typing import Any

from gear_rl.records import Record


def record(length: int = 3, **changes: Any) -> Record:
    """A record of so many trained tokens, each a segment of its own, with weights 0, 1/2, 1, ..."""
    values: dict[str, Any] = {
        "step": 0, "group": 0, "method": "gear", "prompt": "1+1", "tokens": [f" t{n}" for n in range(length)],
        "ids": [70000 + n for n in range(length)], "mask": [1] * length, "turn": [0] * length,
        "segment": list(range(length)), "reward": 1.0, "advantage": 0.5,
        "credit": [0.25 * n for n in range(length)], "weight": [0.5 * n for n in range(length)],
        "signals": {"divergence": [0.1 * n for n in range(length)]},
    }  # fmt: skip
    return Record(**values | changes)
