"""``gear export verl``: the data, the reward and the launch script of a run, from its configuration."""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from gear_rl.arena.task import dataset_task
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.data.rewards.catalogue import OUR_REWARDS, load_reward
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.verl.checks import TRAINERS, check_method
from gear_rl.engines.verl.rollouts import AGENT_NAME
from gear_rl.errors import InputError
from gear_rl.method_builder import credit_settings
from gear_rl.methods import METHODS
from gear_rl.runs.model_wheels import resolve_model
from gear_rl.runs.resolved import OUTPUT_DIR
from gear_rl.runs.run_config import NARROWER, RunConfig, load_config
from gear_rl.runs.trl_run import arena_model, is_arena, load_data, load_environment
from gear_rl.runs.verl.hydra_settings import SECTION, read_settings
from gear_rl.settings import settings_hints

STEP = {field.name for field in fields(CreditConfig)}
DEFAULTS: dict[str, Any] = {
    "num_generations": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "vllm_tensor_parallel_size": 1,
    "max_completion_length": 512,
    "seed": 42,
    "gradient_checkpointing": True,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "max_grad_norm": 1.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "beta": 0.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "importance_sampling_level": "token",
    "save_strategy": "steps",
    "save_steps": 500,
    "save_total_limit": None,
    "eval_strategy": "no",
    "eval_steps": None,
    "report_to": "none",
    "chat_template_kwargs": None,
    "reward_weights": None,
    "max_tool_calling_iterations": None,
    **{f.name: f.default for f in fields(EngineConfig) if f.name not in STEP},
}
"""The settings that are exported and their defaults in ``gear train``, since TRL may not be installed."""
_AGGREGATION = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "sapo": "seq-mean-token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""TRL's losses that verl has too, and verl's name of their mean."""
_CHOICES = {
    "loss_type": tuple(_AGGREGATION),
    "lr_scheduler_type": ("constant_with_warmup", "constant", "cosine", "linear"),
    "importance_sampling_level": ("token",),
    "scale_rewards": ("group", "none", "True", "False"),
    "save_strategy": ("steps", "no"),
    "eval_strategy": ("steps", "no"),
}
_NO_NEED = {"use_vllm", "vllm_mode", "bf16", "fp16", "logging_steps", "use_cpu", "output_dir"}
_LORA: dict[str, Any] = {"r": 8, "lora_alpha": 8, "target_modules": None, "exclude_modules": None}
"""The settings of an adapter that verl has too, with peft's defaults, from which verl's differ."""
_GOLD_COLUMNS = ("ground_truth", "answer", "solution")
"""The columns that verl's ``ground_truth`` is taken from; our rewards read the whole row."""
_MEDIA = {"image", "images", "video", "videos", "audio", "audios"}


def read_run(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file describes; without TRL installed, keys that may be TRL's stay unchecked.

    >>> words = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--learning_rate", "1e-4"]
    >>> read_run(None, words).trainer
    {'learning_rate': 0.0001}
    """
    if find_spec("trl") is not None:
        return load_config(path, overrides)
    known: dict[str, Any] = {k: type(v) for k, v in DEFAULTS.items() if v is not None and k != "report_to"}
    known |= settings_hints(CreditConfig) | NARROWER
    return load_config(path, overrides, types=known)


def export(
    config: RunConfig,
    out: Path,
    *,
    gpus: int = 8,
    prompt_tokens: int = 1024,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, int]:
    """Write everything that verl needs for a run into the folder ``out``; returns the rows of each parquet file.

    ``say`` gets each stage as it begins, and the settings that are left out. ``InputError`` for what cannot be
    exported; settings are checked before a dataset is read.
    """
    out = out.resolve()
    environment = _environment(config)
    arena = arena_model(config) if is_arena(config.model) else None
    settings = DEFAULTS | (arena[2] if arena else {}) | config.trainer
    notes, batch = _check_settings(settings, config.lora), _batch(settings, gpus)
    section = _section(config, settings, environment)
    model = str(out / "model") if arena else _model(config.model)
    say(f"reading {config.dataset}")
    parts = _parts(config, environment is not None)
    steps, batches = settings["max_steps"], max(len(parts["train"]) // batch["prompts"], 1)
    report = settings["report_to"] or []
    trackers = {report} if isinstance(report, str) else set(report)
    script = _TEMPLATES.get_template("launch.sh.jinja").render(
        settings,
        **batch,
        notes=notes,
        section=section,
        environment=environment,
        gpus=gpus,
        prompt_tokens=prompt_tokens,
        files={name: str(out / f"{name}.parquet") for name in parts},
        model=model,
        reward=str(out / "reward.py"),
        lora=None if config.lora is None else _LORA | config.lora,
        aggregation=_AGGREGATION[settings["loss_type"]],
        epochs=math.ceil(steps / batches if steps > 0 else settings["num_train_epochs"]),
        trackers=sorted(trackers - {"none", "all"}),
        folder=Path(str(settings.get("output_dir") or OUTPUT_DIR)),
    )
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        say(f"writing {len(rows)} rows to {name}.parquet")
        rows.to_parquet(out / f"{name}.parquet")
    for part in arena[:2] if arena else ():
        part.save_pretrained(model)
    if environment is None:
        (out / "reward.py").write_text(_reward_file(config), encoding="utf-8")
    (out / "launch.sh").write_text(script, encoding="utf-8")
    (out / "launch.sh").chmod(0o755)
    for note in notes:
        say(f"note: {note}")
    return {name: len(rows) for name, rows in parts.items()}


def _environment(config: RunConfig) -> str | None:
    """The environment's name in the section ``gear``; None where there is none.

    ``InputError`` for what has no counterpart in verl, or a different meaning there.
    """
    if config.rollout_func or config.tools:
        key = "rollout_func" if config.rollout_func else "tools"
        raise InputError(
            f"{key}: cannot be exported; write an environment class, which verl's agent loop runs"
        )
    if config.environment is None:
        for name in config.reward_names:
            load_reward(name, config.dataset)
            if name not in OUR_REWARDS and ":" not in name and not name.startswith("verifiers/"):
                why = "is TRL's, which cannot be had in verl's environment; copy it into a module of yours"
                raise InputError(f"reward: {name!r} {why} and write package.module:function")
        return None
    if isinstance(config.environment, dict):
        names = ", ".join(config.environment)
        raise InputError(
            f"environment: several ({names}) cannot be exported; write one class that looks at the row"
        )
    factory = load_environment(config)
    if not hasattr(factory if isinstance(factory, type) else factory(), "get_reward"):
        why = "has no get_reward(); a reward function of verl sees all turns as one text"
        raise InputError(f"environment: {config.environment} {why}, so let the environment judge its rollout")
    if config.reward is not None:
        raise InputError("reward: verl takes none where an environment has get_reward(); leave it out")
    is_own = config.environment != "arena"
    return config.environment if is_own else "/".join(("arena", *dataset_task(config.dataset)))


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
    """Rows with verl's columns; ``extra_info`` is the row itself, for the reward, teacher and environment."""
    prompt, text = rows[0]["prompt"], datasets.Value("string")
    if isinstance(prompt, str):
        raise InputError("chat: verl takes prompts as messages; set it to true")
    if _MEDIA & set(rows.column_names) or not all(isinstance(message["content"], str) for message in prompt):
        raise InputError(f"dataset: {source} has more than text, which cannot be scored yet; take text alone")
    if "tools" in rows.column_names and not agent:
        why = "has a column 'tools', which verl shows to no model; write the functions into the prompts"
        raise InputError(f"dataset: {source} {why}, and rename it with --columns.functions tools")
    gold = next((name for name in _GOLD_COLUMNS if name in rows.column_names), None)
    features: dict[str, Any] = {
        "data_source": text,
        "prompt": rows.features["prompt"],
        "reward_model": {"style": text, "ground_truth": rows.features[gold] if gold else text},
        "extra_info": dict(rows.features),
    }
    source = Path(source).stem if Path(source).exists() else source

    def columns(row: Mapping[str, Any]) -> dict[str, Any]:
        truth = {"style": "rule", "ground_truth": row[gold] if gold else ""}
        return dict(zip(features, (source, row["prompt"], truth, dict(row)), strict=True))

    made = rows.map(columns, remove_columns=rows.column_names, features=datasets.Features(features))
    return made.add_column("agent_name", [AGENT_NAME] * len(made)) if agent else made


def _reward_file(config: RunConfig) -> str:
    """The module that verl loads; it names the rewards and holds none of their code."""
    names, weights = config.reward_names, config.trainer.get("reward_weights")
    return (
        '"""The reward of this run: verl\'s reward.custom_reward_function. Written by `gear export verl`."""\n\n'
        "from gear_rl.runs.verl.reward_function import scorer\n\n"
        f"compute_score = scorer({names!r}, dataset={config.dataset!r}, weights={weights!r})\n"
    )


def _check_settings(settings: Mapping[str, Any], lora: Mapping[str, Any] | None) -> list[str]:
    """What is left out of the export; ``InputError`` for what verl lacks and would change what is trained."""
    for name, choices in _CHOICES.items():
        if str(settings[name]) not in choices:
            raise InputError(f"{name}: {settings[name]!r} is not in verl; use {' or '.join(choices)}")
    for name in ("save_steps", "eval_steps", "warmup_steps"):
        if 0 < (settings[name] or 0) < 1:
            raise InputError(f"{name}: {settings[name]} is a share of the run; verl takes a number of steps")
    for name, value in (lora or {}).items():
        if name not in _LORA and (name, value) not in (("lora_dropout", 0.0), ("bias", "none")):
            raise InputError(
                f"lora.{name}: {value!r} cannot be exported, only {', '.join(_LORA)}; leave it out"
            )
    left = sorted(set(settings) - set(DEFAULTS) - STEP - _NO_NEED)
    notes = [f"left to verl's own settings: {', '.join(left)}"] if left else []
    if settings["lr_scheduler_type"] == "linear":
        notes.append("lr_scheduler_type: verl has no linear schedule, so the learning rate stays constant")
    return notes


def _batch(settings: Mapping[str, Any], gpus: int) -> dict[str, int]:
    """The prompts of a step, which are those of one batch of the file on one device, and rows of a pass."""
    total = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    prompts, left_over = divmod(total, settings["num_generations"])
    if left_over:
        raise InputError(
            f"num_generations: {settings['num_generations']} does not divide the {total} completions of a step "
            "(per_device_train_batch_size x gradient_accumulation_steps)"
        )
    if total % gpus:
        raise InputError(f"--gpus: {gpus} does not divide the {total} completions of a step, as verl demands")
    return {"prompts": prompts, "micro": math.gcd(settings["per_device_train_batch_size"], total // gpus)}


def hydra_value(value: Any) -> str:
    r"""A value in the grammar of Hydra's overrides.

    >>> [hydra_value(value) for value in (None, True, 1e-06, "runs/a.b", "1", "a {b}", ["x:y"], {"r": 8})]
    ['null', 'true', '1e-06', 'runs/a.b', '"1"', '"a {b}"', '["x:y"]', '{r:8}']
    """
    if isinstance(value, str):
        # Words that Hydra reads as something else are quoted too.
        words = ("null", "true", "false", "nan", "inf")
        if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", value) and value.lower() not in words:
            return value
        # A backslash counts as one, but before a quote: there, and at the end, it is doubled.
        text = re.sub(r'(\\*)"', r'\1\1\\"', value).replace("${", r"\${")
        return '"' + re.sub(r"(\\+)\Z", r"\1\1", text) + '"'
    if isinstance(value, Mapping):
        pairs = value.items()
        return "{" + ",".join(f"{key}:{hydra_value(inner)}" for key, inner in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(inner) for inner in value) + "]"
    return json.dumps(value)


def _section(config: RunConfig, settings: Mapping[str, Any], environment: str | None) -> dict[str, Any]:
    """Hydra's keys (with a plus sign where verl has no such key) and values of the section ``gear``."""
    section = dict(credit_settings(config.credit))
    name = str(section.pop("name"))
    section |= {key: value for key, value in settings.items() if key in STEP}
    if settings["teacher_model"] is not None:
        section["teacher_model"] = _model(str(settings["teacher_model"]), "teacher_model")
    if config.privileged is not None:
        section["privileged"] = config.privileged
    if environment is not None:
        limits = {key: settings[key] for key in ("tool_time_limit", "tool_max_chars")}
        section |= {"environment": environment, **limits}
    check_method(read_settings({"credit": name, **section}))
    # A class of the user's own has no group.
    own = {"trainer.v1.trainer_mode": TRAINERS[0], f"+{SECTION}.credit": name}
    overrides: dict[str, Any] = {f"+{SECTION}": name} if name in METHODS else own
    return overrides | {f"++{SECTION}.{key}": value for key, value in section.items()}


def _model(name: str, where: str = "model") -> str:
    """A folder as a whole path, since verl's workers run elsewhere; a name on the hub as it is."""
    found = resolve_model(name, where)
    return str(Path(found).resolve()) if Path(found).is_dir() else found


def _word(value: Any) -> str:
    """A value in the script: Hydra's grammar in the shell's quotes; marked text as it is."""
    return value if isinstance(value, Markup) else shlex.quote(hydra_value(value))


_TEMPLATES = Environment(
    loader=PackageLoader("gear_rl.runs.verl", ""),
    finalize=_word,
    keep_trailing_newline=True,
    lstrip_blocks=True,
    trim_blocks=True,
)
