"""A configuration of ``gear train`` as files that verl starts from: parquet, reward, model folder, command."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gear_rl.arena.task import TASKS, TEMPLATE, dataset_task, get_task
from gear_rl.credit.config import CreditConfig
from gear_rl.data.rewards.catalogue import OUR_REWARDS, load_reward
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.errors import InputError, did_you_mean
from gear_rl.runs.config import RunConfig, load_config
from gear_rl.runs.models import resolve_model
from gear_rl.runs.trainer import load_data, load_environment
from gear_rl.runs.verl.checks import check_method
from gear_rl.runs.verl.launch import (
    DEFAULTS,
    Cluster,
    Files,
    Overrides,
    Settings,
    overrides_of,
    script,
    section_of,
)
from gear_rl.runs.verl.settings import read_settings

GOLD_COLUMNS = ("ground_truth", "answer", "solution")
"""Where verl's ``ground_truth`` is taken from; our rewards read the whole row."""
_SMALL = 20_000
"""Rows below which no bar is shown: they take a second."""
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_NOT_EXPORTED = {
    "rollout_func": "verl's agent loop makes the rollouts; write an environment class",
    "tools": "verl's agent loop has tools of an environment; make them methods of one and name it in environment",
}
"""Keys of ours that have no counterpart, and what to do."""
_LORA: dict[str, Any] = {"r": 8, "lora_alpha": 8, "target_modules": None, "exclude_modules": None}
"""The settings of an adapter that verl has too, with peft's defaults: verl's are others."""
_LORA_OF_VERL = {"lora_dropout": 0.0, "bias": "none"}
"""What every adapter of verl has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    files: list[Path]
    command: Path
    rows: dict[str, int]
    """Rows by the name of their file."""
    notes: list[str]
    """What of the configuration did not come along; also at the top of the command."""


def read_run(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file describes, also where TRL is not installed: then keys that may be TRL's stay unchecked.

    >>> words = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--learning_rate", "1e-4"]
    >>> read_run(None, words).trainer
    {'learning_rate': 0.0001}
    """
    if find_spec("trl") is not None:
        return load_config(path, overrides)
    hints = typing.get_type_hints(CreditConfig)
    known: dict[str, Any] = {name: type(value) for name, value in DEFAULTS.items()}
    known |= {f.name: hints[f.name] for f in dataclasses.fields(CreditConfig)}
    return load_config(path, overrides, types=known)


def export(
    config: RunConfig,
    out: Path,
    cluster: Cluster | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write everything that verl needs for a run into the folder ``out``; ``say`` gets each stage as it begins.

    Raises ``InputError`` for what cannot be exported; of the settings, before a dataset is read.
    """
    cluster, out = cluster or Cluster(), out.resolve()
    environment = _environment(config)
    _check(config, environment)
    settings = Settings(_arena_settings(config) | config.trainer)
    files = Files(
        train=out / "train.parquet",
        rows=1,
        test=None,
        model=resolve_model(config.model),
        reward=None if config.reward is None else out / "reward.py",
        environment=environment,
    )
    _overrides(config, settings, files, cluster)
    say(f"reading {config.dataset}")
    parts = _parts(config, out, environment is not None)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        say(f"writing {len(rows)} rows to {name}.parquet")
        rows.to_parquet(str(out / f"{name}.parquet"))
    test = out / "test.parquet" if "test" in parts else None
    files = dataclasses.replace(files, rows=len(parts["train"]), test=test, model=_model(config, out))
    overrides = _overrides(config, settings, files, cluster)
    notes = _notes(settings)
    return Exported(
        files=_written(config, settings, files, script(overrides, notes), out),
        command=out / "launch.sh",
        rows={name: len(rows) for name, rows in parts.items()},
        notes=notes,
    )


def _check(config: RunConfig, environment: str | None) -> None:
    """Refuse what has no counterpart in verl, or would mean something else there."""
    for name, advice in _NOT_EXPORTED.items():
        if getattr(config, name):
            raise InputError(f"{name}: cannot be exported; {advice}")
    if config.stream:
        raise InputError("stream: verl reads its files before it trains; set it to false")
    if environment is None:
        _check_rewards(config)
        return
    factory = load_environment(config)
    if not hasattr(factory if isinstance(factory, type) else factory(), "get_reward"):
        raise InputError(
            f"environment: {environment} has no get_reward(); a reward function of verl sees all turns as one "
            "text, so let the environment judge its rollout"
        )
    if config.reward is not None:
        raise InputError(
            "reward: verl does not ask for one where an environment has get_reward(); leave it out, or add it "
            "to what the environment returns"
        )


def _check_rewards(config: RunConfig) -> None:
    for name in _rewards(config):
        if name in OUR_REWARDS or ":" in name or name.startswith("verifiers/"):
            load_reward(name, config.dataset)
            continue
        raise InputError(
            f"reward: {name!r} is none of ours ({did_you_mean(name, OUR_REWARDS)}), and TRL's cannot be had in "
            "verl's environment; copy it into a module of yours and write package.module:function"
        )
    weights = config.trainer.get("reward_weights")
    if weights is not None and len(weights) != len(_rewards(config)):
        raise InputError(f"reward_weights: {len(weights)} weights for {len(_rewards(config))} rewards")


def _rewards(config: RunConfig) -> list[str]:
    return [config.reward] if isinstance(config.reward, str) else list(config.reward or ())


def _environment(config: RunConfig) -> str | None:
    """How the section ``gear`` names the environment; None where there is none."""
    if isinstance(config.environment, dict):
        raise InputError(
            f"environment: several ({', '.join(config.environment)}) cannot be exported; export a dataset for "
            "each, or write one class that looks at the row"
        )
    if config.environment != "arena":
        return config.environment
    return "/".join(("arena", *dataset_task(config.dataset)))


def _is_arena(model: str) -> bool:
    return model == "arena" or (model.removeprefix("arena/") in TASKS and model.startswith("arena/"))


def _arena_task(config: RunConfig) -> Any:
    return get_task(config.model.partition("/")[2] or dataset_task(config.dataset)[0])


def _arena_settings(config: RunConfig) -> dict[str, Any]:
    """What a run of the arena's model has beside the file."""
    if not _is_arena(config.model):
        return {}
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS

    return {
        "chat_template_kwargs": CHAT_TEMPLATE_KWARGS,
        "answer_pattern": _arena_task(config).answer_pattern,
        "teacher_prompt_template": TEMPLATE,
    }


def _model(config: RunConfig, out: Path) -> str:
    """verl's ``model.path``; the arena's model is written into a folder of ``out``."""
    if not _is_arena(config.model):
        name = resolve_model(config.model)
        return str(Path(name).resolve()) if Path(name).is_dir() else name
    from gear_rl.arena.model import load

    model, tokenizer = load(task=_arena_task(config).name)
    folder = str(out / "model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _overrides(config: RunConfig, settings: Settings, files: Files, cluster: Cluster) -> Overrides:
    """Every override, with the method and its teacher checked as verl's run would."""
    own: dict[str, Any] = {}
    if config.privileged is not None:
        own["privileged"] = config.privileged
    if files.environment is not None:
        own["environment"] = files.environment
        own |= {name: settings(name) for name in ("tool_time_limit", "tool_max_chars")}
    overrides = overrides_of(config.credit, settings, files, cluster, **own)
    chosen = read_settings(section_of(overrides))
    check_method(chosen, section="", teacher="teacher_model_kind")
    return overrides | _adapter(config.lora)


def _adapter(lora: Mapping[str, Any] | None) -> Overrides:
    """verl's settings of the adapter; vLLM is given the model with the adapter merged into it."""
    if lora is None:
        return {}
    for name, value in lora.items():
        if name not in _LORA and (name not in _LORA_OF_VERL or value != _LORA_OF_VERL[name]):
            raise InputError(
                f"lora.{name}: {value!r} cannot be exported, only {', '.join(_LORA)}; leave it out"
            )
    model = "actor_rollout_ref.model"
    verl = {f"{model}.{'lora_rank' if k == 'r' else k}": lora.get(k, v) for k, v in _LORA.items()}
    return verl | {f"{model}.lora.merge": True}


def _parts(config: RunConfig, out: Path, agent: bool) -> dict[str, Any]:
    """The datasets with verl's columns: ``train``, and ``test`` where there are held-out rows."""
    run = config.model_copy()
    run.trainer = config.trainer | {"output_dir": str(out)}  # rows that cannot be used are listed there
    train, held_out = load_data(run)
    ability = "agent" if agent else _rewards(config)[0].rpartition(":")[2]
    parts = {"train": _as_verl(train, _source(config.dataset), ability, agent)}
    if isinstance(held_out, dict):
        tiers = [_as_verl(rows, str(tier), ability, agent) for tier, rows in held_out.items()]
        parts["test"] = _joined(tiers)
    elif held_out is not None:
        name = config.eval_dataset if isinstance(config.eval_dataset, str) else config.dataset
        parts["test"] = _as_verl(held_out, _source(name), ability, agent)
    return parts


def _source(name: str) -> str:
    """A dataset's name in verl's metrics: a file or folder without the way to it."""
    return Path(name).stem if Path(name).exists() else name


def _as_verl(rows: Any, source: str, ability: str, agent: bool) -> Any:
    """Rows with verl's columns; ``extra_info`` is the row itself, as reward, teacher and environment know it."""
    import datasets

    _check_prompts(rows, source)
    gold = next((name for name in GOLD_COLUMNS if name in rows.column_names), None)
    text = datasets.Value("string")
    features: dict[str, Any] = {
        "data_source": text,
        "prompt": rows.features["prompt"],
        "ability": text,
        "reward_model": {"style": text, "ground_truth": text if gold is None else rows.features[gold]},
        "extra_info": dict(rows.features),
    }
    fixed: dict[str, Any] = {"data_source": source, "ability": ability}
    if agent:
        features["agent_name"], fixed["agent_name"] = text, AGENT_NAME

    def columns(row: Mapping[str, Any]) -> dict[str, Any]:
        truth = {"style": "rule", "ground_truth": "" if gold is None else row[gold]}
        return {**fixed, "prompt": row["prompt"], "reward_model": truth, "extra_info": dict(row)}

    if len(rows) < _SMALL:
        datasets.disable_progress_bars()
    made = rows.map(
        columns, remove_columns=rows.column_names, features=datasets.Features(features), desc="verl's columns"
    )
    datasets.enable_progress_bars()
    return made


def _check_prompts(rows: Any, source: str) -> None:
    media = [name for name in _MEDIA if name in rows.column_names]
    if media:
        raise InputError(
            f"dataset: {source} has {', '.join(media)}, which cannot be scored yet; take text alone"
        )
    prompt = rows[0]["prompt"]
    if isinstance(prompt, str):
        raise InputError("chat: verl takes prompts as messages; set it to true")
    if not all(isinstance(message["content"], str) for message in prompt):
        raise InputError(
            f"dataset: {source} has prompts whose messages are no text; write their content as text"
        )


def _joined(parts: Sequence[Any]) -> Any:
    import datasets

    try:
        return datasets.concatenate_datasets(list(parts))
    except ValueError as error:
        raise InputError(
            f"eval_dataset: verl reads all tiers as one table, and their columns differ: {error}"
        ) from None


def _written(config: RunConfig, settings: Settings, files: Files, text: str, out: Path) -> list[Path]:
    """Write the reward and the command; everything that there is now."""
    paths = [path for path in (files.train, files.test, files.reward) if path is not None]
    if files.reward is not None:
        files.reward.write_text(_reward_file(config, settings), encoding="utf-8")
    command = out / "launch.sh"
    command.write_text(text, encoding="utf-8")
    command.chmod(0o755)
    return [*paths, *([Path(files.model)] if Path(files.model).parent == out else []), command]


def _notes(settings: Settings) -> list[str]:
    """What of the configuration does not come along."""
    notes: list[str] = []
    if settings.left:
        notes.append(f"left to verl's own settings: {', '.join(settings.left)}")
    if settings("lr_scheduler_type") == "linear":
        notes.append("lr_scheduler_type: verl has no linear schedule, so the learning rate stays constant")
    return notes


def _reward_file(config: RunConfig, settings: Settings) -> str:
    """The module that verl loads; it names the rewards and holds none of their code."""
    weights = settings("reward_weights")
    return (
        '"""The reward of this run: verl\'s reward.custom_reward_function. Written by `gear export verl`."""\n\n'
        "from gear_rl.runs.verl.reward import scorer\n\n"
        f"compute_score = scorer({_rewards(config)!r}, dataset={config.dataset!r}, weights={weights!r})\n"
    )
