"""``benchmarks contexts``: a run on the codebook whose rows hold contexts that tell the teacher more or less."""

import json
import random
from pathlib import Path
from typing import Any

from gear_rl.arena.codebook import rows
from gear_rl.arena.codes import CODES
from gear_rl.arena.task import HELD_OUT

FALSE_SHARE = 0.25
"""Of the codes in the column ``falsified``."""
RUN = """\
model: arena/codebook
dataset: train.jsonl
eval_dataset: test.jsonl
reward: gear_rl.arena.codebook:codebook_reward
learning_rate: 4.0e-4
lr_scheduler_type: constant
per_device_train_batch_size: 16
per_device_eval_batch_size: 128
num_generations: 8
max_completion_length: 28
max_steps: 40
"""
"""The codebook's own budget and, for all, its own learning rate."""


def write_run(folder: Path) -> Path:
    """Write ``train.jsonl``, ``test.jsonl`` and ``run.yaml``, which ``gear compare --config`` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, num, first in (("train", 4096, HELD_OUT.stop), ("test", 512, HELD_OUT.start)):
        lines = [
            json.dumps(with_contexts(row, seed)) for seed, row in enumerate(rows(num=num, first_seed=first))
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "run.yaml").write_text(RUN, encoding="utf-8")
    return folder / "run.yaml"


def with_contexts(row: dict[str, Any], seed: int) -> dict[str, Any]:
    """The row with ``falsified``, its solution with some false codes, and ``nothing``, the prompt once more.

    >>> row = {"prompt": [{"content": "codes Bi Ki"}], "privileged_context": "codes Bi 11 Ki 94"}
    >>> {name: text for name, text in with_contexts(row, seed=7).items() if name in ("falsified", "nothing")}
    {'falsified': 'codes Bi 11 Ki 83', 'nothing': 'codes Bi Ki'}
    """
    draw = random.Random(seed)
    words = row["privileged_context"].split()
    false = [draw.choice(CODES) if w in CODES and draw.random() < FALSE_SHARE else w for w in words]
    return row | {"falsified": " ".join(false), "nothing": row["prompt"][0]["content"]}
