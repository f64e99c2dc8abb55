"""A method that keeps what the engine shows it, and a trainer whose credit pass can be run without a training."""

import dataclasses
from typing import Any

import torch
from accelerate import Accelerator

from engines import tiny
from engines.scripted import END, call, scripted
from gear_rl.engines.trl.engine import HeldWeights
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Credit, Signal, TokenSignals, is_per_row

WEIGHTS = [1.0, 0.5]
LOOK = call("look", '{"place": "a"}')
SCRIPTS = [
    [LOOK, f"It is \\boxed{{3}}.{END}"],
    [call("look", '{"place": "bb"}'), f"One.\nSo \\boxed{{14}}{END}"],
    [f"No box. Sorry!{END}"],
    [call("fail"), f"Hm. \\boxed{{3}}{END}"],
    [LOOK, call("look", '{"place": "ccc"}'), f"so \\boxed{{7}}{END}"],
    [f"\\boxed{{9}}{END}"],
    [LOOK, "cut off"],
    [call("look", '{"place": "zz"}'), f"x \\boxed{{1}} y.{END}"],
]
"""Two groups of four: one, two and three turns, a failed call, no answer, a rollout that was cut off."""
REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 0.25, 1.0, 0.0, 2.0, 0.0, 0.5],
    [2.0, None, 1.0, 1.0, None, 1.0, 3.0, 1.0],
]


@dataclasses.dataclass(frozen=True)
class Probe:
    """Gives every token its advantage, and ``bonus`` on top."""

    needs: tuple[str | Signal, ...] = ()
    additive: bool = False
    bonus: float = 0.0
    name: str = "probe"
    source: str = "test"
    shown: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, advantage_B, signals):
        self.shown.append((advantage_B, signals))
        segment_id = torch.where(signals.mask, 0, -1)
        credit = Credit.from_weights(advantage_B, torch.ones(signals.mask.shape), segment_id)
        return Credit(advantage=credit.advantage + self.bonus * signals.mask, segment_id=segment_id)


class Shop:
    """Tools to look and to fail; ``_given`` are a test's values of its turns."""

    _given: Any = None

    def reset(self, **row: Any) -> None:
        self.seen: list[str] = []

    def look(self, place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        self.seen.append(place)
        return f"saw {place}"

    def fail(self) -> str:
        """Raise."""
        self.seen.append("")
        raise KeyError("no")

    def turn_rewards(self) -> Any:
        return self._given and self._given()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """What went through one credit pass."""

    probe: Any
    base_B: torch.Tensor
    """The advantage that TRL computed."""
    output: dict[str, Any]
    metrics: dict[str, list[float]]

    @property
    def shown(self):
        """The advantage and the signals that the method was given."""
        [shown] = self.probe.shown
        return shown

    @property
    def mask(self):
        attention = self.output["completion_mask"]
        return (attention * self.output["tool_mask"] if "tool_mask" in self.output else attention).bool()

    @property
    def advantage(self):
        """What the loss gets, as (B, T)."""
        given = self.output["advantages"]
        return given if given.dim() == 2 else torch.where(self.mask, given[:, None], 0.0)

    @property
    def plain(self):
        """What it would get from GRPO."""
        return torch.where(self.mask, self.base_B[:, None], 0.0)


def torn() -> tuple[torch.Tensor, TokenSignals]:
    """Three groups of four, of which a cut in the middle tears the second; the first six rows are shorter."""
    g = torch.Generator().manual_seed(0)
    length = torch.tensor([5, 7, 1, 0, 6, 7, 11, 3, 9, 10, 2, 11])
    mask = torch.arange(11) < length[:, None]
    mask[:, 3] = False
    turn_id = turn_ids(mask)

    def per_turn(values):
        return on_turns(values, turn_id)

    return torch.randn(12, generator=g), TokenSignals(
        mask=mask,
        turn_id=turn_id,
        group_B=torch.arange(12) // 4,
        reward_B=torch.randint(0, 3, (12,), generator=g).float(),
        rewards_BR=torch.rand(12, 2, generator=g),
        turn_reward=per_turn(torch.rand(12, 11, generator=g)),
        anchor_id=torch.where(mask, per_turn(torch.randint(0, 2, (12, 11), generator=g)), -1),
        answer_confidence=per_turn(torch.rand(12, 11, generator=g)),
        sentence_id=torch.where(mask, torch.arange(11) // 2, -1),
        token_id=torch.where(mask, torch.randint(150_000, (12, 11), generator=g), -1),
    )


def part(signals: TokenSignals, rows: slice) -> TokenSignals:
    """Some rows, as wide as the longest of them."""
    width = int(signals.mask[rows].any(0).nonzero().max()) + 1
    values = {n: x[rows] if is_per_row(n) else x[rows, :width] for n, x in signals.values.items()}
    turn_id = None if signals.turn_id is None else signals.turn_id[rows, :width]
    return TokenSignals(mask=signals.mask[rows, :width], turn_id=turn_id, values=values)


def shop(folder, model, *, tools: bool = True, rows: Any = None, **changes: Any):
    """A trainer that answers ``SCRIPTS`` and is judged by ``REWARDS``; both may be set on it."""

    def judged(k: int):
        def judge(completions: Any, log_extra: Any, **_: Any) -> list[float | None]:
            if trainer.logs is not None and k == 0:
                log_extra("turn_rewards", trainer.logs)
            return [*trainer.judgement[k]]

        judge.__name__ = f"judge_{k}"
        return judge

    settings = {"max_completion_length": 400, "reward_weights": WEIGHTS, "max_steps": 1, **changes}
    trainer = scripted(
        model,
        tiny.rows() if rows is None else rows,
        tiny.settings(folder, **settings),
        SCRIPTS,
        credit=Probe(),
        reward_funcs=[judged(0), judged(1)],
        environment_factory=Shop if tools else None,
    )
    trainer.judgement, trainer.logs = REWARDS, None
    return trainer


def passed(trainer, credit, rows: Any = None, **settings: Any) -> Pass:
    """One credit pass over two groups of four; ``settings`` hold for it alone."""
    Accelerator(cpu=True)  # every new config takes its state from the trainers that there are
    base: list[torch.Tensor] = []
    spread = type(trainer)._spread

    def watched(inputs, output):
        base.append(output["advantages"].clone())
        return spread(trainer, inputs, output)

    before = {name: getattr(trainer.args, name) for name in settings}
    trainer.credit, trainer.held_weights = credit, HeldWeights(trainer, continues_adapter=False)
    trainer._spread = watched
    trainer._metrics["train"].clear()
    trainer.model.train()
    chosen = list(tiny.rows(2)) if rows is None else rows
    for name, value in settings.items():
        setattr(trainer.args, name, value)
    try:
        inputs = [dict(row) for row in chosen for _ in range(4)]
        output = trainer._generate_and_score_completions(inputs)
    finally:
        del trainer._spread
        for name, value in before.items():
            setattr(trainer.args, name, value)
    metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
    return Pass(probe=credit, base_B=base[0], output=output, metrics=metrics)
