"""The flags of TRL's own scripts, under which a configuration's keys are known too."""

from collections.abc import Mapping
from typing import Any

from gear_rl.errors import InputError

NAMES = {
    "model_name_or_path": "model",
    "dataset_name": "dataset",
    "dataset_train_split": "dataset_split",
    "dataset_test_split": "eval_split",
    "reward_funcs": "reward",
    "attn_implementation": "model_init_kwargs.attn_implementation",
    "dtype": "model_init_kwargs.dtype",
    "model_revision": "model_init_kwargs.revision",
    "lora_r": "lora.r",
    "lora_alpha": "lora.lora_alpha",
    "lora_dropout": "lora.lora_dropout",
    "lora_target_modules": "lora.target_modules",
    "lora_target_parameters": "lora.target_parameters",
    "lora_modules_to_save": "lora.modules_to_save",
    "use_rslora": "lora.use_rslora",
    "use_dora": "lora.use_dora",
}
"""TRL's flag: our key."""
PEFT = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
"""The adapter of TRL's ``--use_peft``."""


def with_our_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings under our keys; ``InputError`` for one that is given under both.

    >>> with_our_names({"model_name_or_path": "a/b", "use_peft": True, "lora_r": 8})
    {'model': 'a/b', 'lora': {'r': 8, 'lora_alpha': 32, 'lora_dropout': 0.05}}
    >>> with_our_names({"dtype": "bfloat16", "model_init_kwargs": {"dtype": "float32"}})
    Traceback (most recent call last):
    gear_rl.errors.InputError: dtype: model_init_kwargs.dtype is given too; leave one of them out
    """
    ours = {key: value for key, value in values.items() if key not in NAMES and key != "use_peft"}
    for flag in [key for key in values if key in NAMES]:
        outer, _, inner = NAMES[flag].partition(".")
        held = dict(ours.get(outer) or {}) if inner else ours
        if (inner or outer) in held:
            raise InputError(f"{flag}: {NAMES[flag]} is given too; leave one of them out")
        held[inner or outer] = values[flag]
        if inner:
            ours[outer] = held
    if values.get("use_peft"):
        ours["lora"] = PEFT | (ours.get("lora") or {})
    elif "use_peft" in values:
        ours.pop("lora", None)
    return ours
