"""The loop without a trainer: it learns, with credit that is not GRPO's."""

import importlib.util
from pathlib import Path

import torch

from gear_rl import Gear, token_advantages
from gear_rl.arena import model as arena
from gear_rl.methods import AntiSd

FILE = Path(__file__).parent.parent / "examples" / "loop.py"


def test_the_loop_without_a_trainer_learns(capsys):
    spec = importlib.util.spec_from_file_location("loop", FILE)
    assert spec is not None and spec.loader is not None
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    curve = loop.train(Gear(), 9)
    # From 0.56 to 0.88 on one processor; another draws other rollouts.
    assert sum(curve[-4:]) / 4 > sum(curve[:2]) / 2 + 0.12, curve
    shares = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(shares) == 9 and all(0.05 < share < 0.95 for share in shares), (
        "segments, and tokens beside them"
    )


def test_a_loop_of_ones_own_keeps_the_means_that_a_method_follows():
    """AntiSD's gate measures its threshold in the first batch, and needs it in the second."""
    model, tokenizer = arena.load()
    prompt, means = [{"role": "user", "content": "12 +5 x2"}], list[float]()
    ids = tokenizer("12 +5 = 17 ; 17 x2 = 35 ; ans 35<|im_end|>")["input_ids"]

    def call(method):
        return token_advantages(
            model, tokenizer, [prompt], [ids], ["12 +5 = 17"], torch.ones(1), method, means=means
        ).advantage

    method = AntiSd(warmup_steps=1)
    first = call(method)
    assert len(means) == 1 and not torch.equal(first, torch.ones_like(first))
    means[0] *= 20  # the teacher was far less sure once
    assert torch.equal(call(method), torch.ones_like(first)) and len(means) == 2
