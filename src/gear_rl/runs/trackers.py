"""Trackers that a run reports to: transformers' own, and what to install for one that is missing."""

from collections.abc import Sequence
from importlib.util import find_spec

from gear_rl.errors import InputError

EXTRA = ("tensorboard", "trackio", "wandb")
"""What ``gear-rl[trackers]`` brings."""
_OTHERS = ("clearml", "codecarbon", "comet_ml", "dvclive", "mlflow", "neptune", "swanlab")
_MODULES = {name: (name,) for name in (*EXTRA, *_OTHERS)} | {"tensorboard": ("tensorboard", "tensorboardX")}


def check_trackers(report_to: str | Sequence[str] | None) -> None:
    """``InputError`` for a tracker that is not installed, with the command that installs it.

    A name that is not known here is left to transformers, which says what it knows.

    >>> check_trackers("none")
    """
    for name in [report_to] if isinstance(report_to, str) else report_to or ():
        modules = _MODULES.get(name, ())
        if modules and not any(find_spec(module) for module in modules):
            package = "'gear-rl[trackers]'" if name in EXTRA else modules[0].replace("_", "-")
            raise InputError(
                f"report_to: {name} is not installed; run: pip install {package}, or leave report_to out"
            )
