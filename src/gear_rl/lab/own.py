"""A training run of a comparison on the user's own run, and how it is judged.

Every method is trained with the run's own settings, but for its learning rate, its seed and the number of steps,
and judged on the run's held-out rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.lab.spec import Spec
from gear_rl.runs.config import RunConfig

QUIET: dict[str, Any] = {
    "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "logging_steps": 1, "push_to_hub": False,
    "load_best_model_at_end": False, "record_file": None,
}  # fmt: skip
"""What a run of a comparison leaves to the comparison."""


def own_trainer(run: Mapping[str, Any], spec: Spec, scratch: str) -> Any:
    """The trainer of one cell of such a comparison."""
    from gear_rl.lab.oracle import estimated
    from gear_rl.runs.trainer import make_trainer

    config = own_config(run, spec.credit, spec.engine)
    config.trainer |= {
        "output_dir": scratch, "seed": spec.seed, "learning_rate": spec.rate, "max_steps": spec.steps,
    }  # fmt: skip
    trainer = make_trainer(config)
    if "true_advantage" in trainer.credit.needs:
        trainer.truth = estimated(trainer)
    return trainer


def own_config(run: Mapping[str, Any], credit: dict[str, Any], engine: Mapping[str, Any]) -> RunConfig:
    """The run with one method."""
    values = {name: value for name, value in run.items() if name in RunConfig.model_fields}
    values |= {"credit": credit, "trainer": {**run["trainer"], **QUIET, **engine}}
    return RunConfig(**values)


class OwnTask:
    """The held-out rows of a run, judged by its own reward: right is what has ``success_reward`` at least.

    That is the run's setting, not one that a method brings: all methods are judged alike.
    """

    def __init__(self, trainer: Any, run: Mapping[str, Any]) -> None:
        self._rows = held_out_rows(trainer.eval_dataset)
        self._right = float(run["right"])

    def rows(self, tier: str, *, num: int, first_seed: int) -> list[dict[str, Any]]:
        """So many rows from that one on."""
        return self._rows[first_seed : first_seed + num]

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float]:
        """1 for a row whose rollout is right, else 0; sampled through the run's own loop, tools included."""
        rewards = trainer.solve(rows, seed=seed)
        return [float(reward is not None and reward >= self._right) for reward in rewards]


def held_out_rows(held_out: Any) -> list[dict[str, Any]]:
    """The held-out rows, tier after tier where there are several; none without any."""
    if held_out is None:
        return []
    if isinstance(held_out, Mapping):
        return [row for part in held_out.values() for row in held_out_rows(part)]
    return [dict(row) for row in held_out]
