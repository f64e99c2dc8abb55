"""The loop without a trainer: it learns, with credit that is not GRPO's."""

import importlib.util
from pathlib import Path

from gear_rl import Gear

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
