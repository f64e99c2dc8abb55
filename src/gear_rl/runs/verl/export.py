"""A configuration of ``gear train`` as what verl starts from: parquet, reward, the arena's model, command."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets

from gear_rl.arena.task import dataset_task
from gear_rl.credit.config import CreditConfig
from gear_rl.data.rewards.catalogue import OUR_REWARDS, load_reward
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.errors import InputError, did_you_mean
from gear_rl.runs.config import RunConfig, load_config
from gear_rl.runs.models import resolve_model
from gear_rl.runs.trainer import arena_model, is_arena, load_data, load_environment
from gear_rl.runs.verl.launch import DEFAULTS, Overrides, notes_on, overrides_of, script

GOLD_COLUMNS = ("ground_truth", "answer", "solution")
"""Where verl's ``ground_truth`` is taken from; our rewards read the whole row."""
_MEDIA = {"image", "images", "video", "videos", "audio", "audios"}
_NOT_EXPORTED = {
    "rollout_func": "verl's agent loop makes the rollouts; write an environment class",
    "tools": "verl's agent loop has tools of an environment; make them methods of one and name it in environment",
}
"""Keys of ours that have no counterpart, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the rows of each parquet file, and what of the configuration did not come along."""

    rows: dict[str, int]
    notes: list[str]


def read_run(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file describes, also where TRL is not installed: then keys that may be TRL's stay unchecked.

    >>> words = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--learning_rate", "1e-4"]
    >>> read_run(None, words).trainer
    {'learning_rate': 0.0001}
    """
    if find_spec("trl") is not None:
        return load_config(path, overrides)
    hints = typing.get_type_hints(CreditConfig)
    known: dict[str, Any] = {k: type(v) for k, v in DEFAULTS.items() if v is not None and k != "report_to"}
    known |= {field.name: hints[field.name] for field in dataclasses.fields(CreditConfig)}
    return load_config(path, overrides, types=known)


def export(
    config: RunConfig,
    out: Path,
    *,
    gpus: int = 8,
    prompt_tokens: int = 1024,
    say: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write everything that verl needs for a run into the folder ``out``; ``say`` gets each stage as it begins.

    Raises ``InputError`` for what cannot be exported; of the settings, before a dataset is read.
    """
    out = out.resolve()
    environment = _environment(config)
    files = {name: str(out / f"{name}.parquet") for name in ("train", "test")}
    files |= {"reward": str(out / "reward.py"), "model": str(out / "model")}
    given, arena = config.trainer, arena_model(config) if is_arena(config.model) else None
    if arena is not None:
        given = arena[2] | given
    else:
        name = resolve_model(config.model)
        files["model"] = str(Path(name).resolve()) if Path(name).is_dir() else name

    def overrides(rows: int) -> Overrides:
        return overrides_of(
            config, given, environment, files, rows=rows, gpus=gpus, prompt_tokens=prompt_tokens
        )

    overrides(rows=1)  # for what it refuses
    say(f"reading {config.dataset}")
    parts = _parts(config, environment is not None)
    if "test" not in parts:
        del files["test"]
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        say(f"writing {len(rows)} rows to {name}.parquet")
        rows.to_parquet(files[name])
    if arena is not None:
        for part in arena[:2]:
            part.save_pretrained(files["model"])
    if environment is None:
        Path(files["reward"]).write_text(_reward_file(config), encoding="utf-8")
    notes, command = notes_on(given), out / "launch.sh"
    command.write_text(script(overrides(len(parts["train"])), notes), encoding="utf-8")
    command.chmod(0o755)
    return Exported({name: len(rows) for name, rows in parts.items()}, notes)


def _environment(config: RunConfig) -> str | None:
    """How the section ``gear`` names the environment; None where there is none.

    Raises ``InputError`` for what has no counterpart in verl, or would mean something else there.
    """
    for name, advice in _NOT_EXPORTED.items():
        if getattr(config, name):
            raise InputError(f"{name}: cannot be exported; {advice}")
    if config.environment is None:
        for name in _rewards(config):
            if name not in OUR_REWARDS and ":" not in name and not name.startswith("verifiers/"):
                raise InputError(
                    f"reward: {name!r} is none of ours ({did_you_mean(name, OUR_REWARDS)}), and TRL's cannot be "
                    "had in verl's environment; copy it into a module of yours and write package.module:function"
                )
            load_reward(name, config.dataset)
        return None
    if isinstance(config.environment, dict):
        raise InputError(
            f"environment: several ({', '.join(config.environment)}) cannot be exported; write one class that "
            "looks at the row"
        )
    factory = load_environment(config)
    if not hasattr(factory if isinstance(factory, type) else factory(), "get_reward"):
        raise InputError(
            f"environment: {config.environment} has no get_reward(); a reward function of verl sees all turns as "
            "one text, so let the environment judge its rollout"
        )
    if config.reward is not None:
        raise InputError("reward: verl takes none where an environment has get_reward(); leave it out")
    is_own = config.environment != "arena"
    return config.environment if is_own else "/".join(("arena", *dataset_task(config.dataset)))


def _rewards(config: RunConfig) -> list[str]:
    return [config.reward] if isinstance(config.reward, str) else list(config.reward or ())


def _parts(config: RunConfig, agent: bool) -> dict[str, Any]:
    """The datasets with verl's columns: ``train``, and ``test`` where there are held-out rows."""
    train, held_out = load_data(config)
    parts = {"train": _as_verl(train, config.dataset, agent)}
    if isinstance(held_out, dict):
        tiers = [_as_verl(rows, str(tier), agent) for tier, rows in held_out.items()]
        parts["test"] = datasets.concatenate_datasets(tiers)
    elif held_out is not None:
        parts["test"] = _as_verl(held_out, str(config.eval_dataset or config.dataset), agent)
    return parts


def _as_verl(rows: Any, source: str, agent: bool) -> Any:
    """Rows with verl's columns; ``extra_info`` is the row itself, as reward, teacher and environment know it."""
    prompt, text = rows[0]["prompt"], datasets.Value("string")
    if isinstance(prompt, str):
        raise InputError("chat: verl takes prompts as messages; set it to true")
    if _MEDIA & set(rows.column_names) or not all(isinstance(message["content"], str) for message in prompt):
        raise InputError(f"dataset: {source} has more than text, which cannot be scored yet; take text alone")
    gold = next((name for name in GOLD_COLUMNS if name in rows.column_names), None)
    features: dict[str, Any] = {
        "data_source": text,
        "prompt": rows.features["prompt"],
        "reward_model": {"style": text, "ground_truth": text if gold is None else rows.features[gold]},
        "extra_info": dict(rows.features),
        **({"agent_name": text} if agent else {}),
    }
    fixed = {"data_source": Path(source).stem if Path(source).exists() else source, "agent_name": AGENT_NAME}

    def columns(row: Mapping[str, Any]) -> dict[str, Any]:
        truth = {"style": "rule", "ground_truth": "" if gold is None else row[gold]}
        made = {**fixed, "prompt": row["prompt"], "reward_model": truth, "extra_info": dict(row)}
        return {name: made[name] for name in features}

    return rows.map(
        columns, remove_columns=rows.column_names, features=datasets.Features(features), desc="verl's columns"
    )


def _reward_file(config: RunConfig) -> str:
    """The module that verl loads; it names the rewards and holds none of their code."""
    names, weights = _rewards(config), config.trainer.get("reward_weights")
    return (
        '"""The reward of this run: verl\'s reward.custom_reward_function. Written by `gear export verl`."""\n\n'
        "from gear_rl.runs.verl.reward import scorer\n\n"
        f"compute_score = scorer({names!r}, dataset={config.dataset!r}, weights={weights!r})\n"
    )
