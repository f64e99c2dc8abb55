"""Five short sums in one prompt, paid by the share that is right: independent decisions under one reward.

``dataset: benchmarks.sums:rows`` or ``:in_words``, ``reward: benchmarks.sums:reward``.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.word_problems import SEEDS, TEST_SHARE
from gear_rl.data.rewards.text import Completion, final_texts
from gear_rl.data.rows import checksum

SUMS = 5
"""Of a prompt."""
SIGNS = {"+": "+", "-": "-"}


def rows(split: str = "train", num: int = 4096, *, signs: Mapping[str, str] = SIGNS) -> list[dict[str, Any]]:
    """Rows with ``prompt``, ``solution`` and ``answer``; no sum of ``test`` is in ``train``.

    ``signs`` are those of the prompt.

    >>> [row] = rows(num=1)
    >>> row["prompt"]
    'Work out: 44 - 35; 29 + 11; 33 + 16; 50 + 33; 55 - 24'
    >>> row["solution"]
    '44 - 35 = 9; 29 + 11 = 40; 33 + 16 = 49; 50 + 33 = 83; 55 - 24 = 31'
    """
    drawn, made = _drawn(split), list[dict[str, Any]]()
    for _ in range(num):
        mine = [next(drawn) for _ in range(SUMS)]
        asked = [f"{a} {signs[sign]} {b}" for a, sign, b in mine]
        results = [a + b if sign == "+" else a - b for a, sign, b in mine]
        worked = [f"{a} {sign} {b} = {result}" for (a, sign, b), result in zip(mine, results, strict=True)]
        made.append(
            {
                "prompt": f"Work out: {'; '.join(asked)}",
                "solution": "; ".join(worked),
                "answer": "; ".join(map(str, results)),
            }
        )
    return made


in_words = partial(rows, signs={"+": "plus", "-": "minus"})


def reward(completions: Sequence[Completion], answer: Sequence[str], **columns: Any) -> list[float]:
    """The share of results that stand in their place; the signature of a TRL reward.

    >>> reward(["1 + 2 = 3; 4", "4; 3; 9", "?"], answer=["3; 4", "3; 3", "3; 4"])
    [1.0, 0.5, 0.0]
    """
    return [
        sum(given == right for given, right in zip(_parts(text), _parts(wanted), strict=False))
        / len(_parts(wanted))
        for text, wanted in zip(final_texts(completions, columns), answer, strict=True)
    ]


def _parts(text: str) -> list[str]:
    return [part.rpartition("=")[2].strip() for part in text.split(";")]


def _drawn(split: str) -> Iterator[tuple[int, str, int]]:
    rng = random.Random(SEEDS[split])
    while True:
        high, low = sorted((rng.randint(2, 60), rng.randint(2, 60)), reverse=True)
        sign = rng.choice("+-")
        if (checksum(f"{high} {sign} {low}") < TEST_SHARE) == (split == "test"):
            yield high, sign, low
