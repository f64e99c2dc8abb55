"""``gear export verl``: the data, the reward and the launch script of a run, from its configuration."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import datasets

from gear_rl.arena.task import dataset_task
from gear_rl.credit.config import CreditConfig
from gear_rl.data.rewards.catalogue import OUR_REWARDS, load_reward
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.engines.verl.checks import TRAINERS, check_method
from gear_rl.errors import InputError, did_you_mean
from gear_rl.method_builder import credit_settings
from gear_rl.methods import METHODS
from gear_rl.runs.config import RunConfig, load_config
from gear_rl.runs.models import resolve_model
from gear_rl.runs.resolved import OUTPUT_DIR
from gear_rl.runs.trainer import arena_model, is_arena, load_data, load_environment
from gear_rl.runs.verl.settings import SECTION, group_of, read_settings
from gear_rl.settings import settings_hints

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
SAME: dict[str, tuple[Any, str]] = {
    "num_generations": (8, f"{ROLLOUT}.n"),
    "temperature": (1.0, f"{ROLLOUT}.temperature"),
    "top_p": (1.0, f"{ROLLOUT}.top_p"),
    "vllm_tensor_parallel_size": (1, f"{ROLLOUT}.tensor_model_parallel_size"),
    "max_completion_length": (512, "data.max_response_length"),
    "seed": (42, "data.seed"),
    "gradient_checkpointing": (True, f"{MODEL}.enable_gradient_checkpointing"),
    "learning_rate": (1e-6, f"{ACTOR}.optim.lr"),
    "weight_decay": (0.0, f"{ACTOR}.optim.weight_decay"),
    "max_grad_norm": (1.0, f"{ACTOR}.grad_clip"),
    "num_iterations": (1, f"{ACTOR}.ppo_epochs"),
    "beta": (0.0, f"{ACTOR}.kl_loss_coef"),
}
"""Settings that verl has under another name, each with the default of ``gear train``."""
STEP = {field.name for field in fields(CreditConfig)}
DEFAULTS: dict[str, Any] = {
    **{name: default for name, (default, _) in SAME.items()},
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "linear",
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "top_k": 0,
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
"""The defaults of ``gear train`` for every setting that is exported, since TRL may not be installed."""
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
}
_NO_NEED = {"use_vllm", "vllm_mode", "bf16", "fp16", "logging_steps", "use_cpu", "output_dir"}
_LORA: dict[str, Any] = {"r": 8, "lora_alpha": 8, "target_modules": None, "exclude_modules": None}
"""The settings of an adapter that verl has too, with peft's defaults, from which verl's differ."""
_GOLD_COLUMNS = ("ground_truth", "answer", "solution")
"""The columns that verl's ``ground_truth`` is taken from; our rewards read the whole row."""
_MEDIA = {"image", "images", "video", "videos", "audio", "audios"}
_NOT_EXPORTED = {
    "rollout_func": "verl's agent loop makes the rollouts; write an environment class",
    "tools": "verl's agent loop has tools of an environment; make them methods of one and name it in environment",
}
"""Our keys that have no counterpart in verl, and what to do instead."""


def read_run(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file describes; without TRL installed, keys that may be TRL's stay unchecked.

    >>> words = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--learning_rate", "1e-4"]
    >>> read_run(None, words).trainer
    {'learning_rate': 0.0001}
    """
    if find_spec("trl") is not None:
        return load_config(path, overrides)
    known: dict[str, Any] = {k: type(v) for k, v in DEFAULTS.items() if v is not None and k != "report_to"}
    known |= settings_hints(CreditConfig)
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
    if arena is None:
        settings, model = DEFAULTS | config.trainer, _model(config.model)
    else:
        settings, model = DEFAULTS | arena[2] | config.trainer, str(out / "model")
    overrides: dict[str, Any] = {
        **_credit(config, settings, environment),
        **_training(settings, gpus),
        **_adapter(config.lora),
        f"{MODEL}.path": model,
        "data.max_prompt_length": prompt_tokens,
        "data.filter_overlong_prompts": True,
        "trainer.n_gpus_per_node": gpus,
        "trainer.val_before_train": False,
        "trainer.project_name": "gear",
    }
    if environment is None:
        overrides["reward.custom_reward_function.path"] = str(out / "reward.py")
    else:
        turns = settings["max_tool_calling_iterations"]
        overrides |= {
            f"{ROLLOUT}.multi_turn.enable": True,
            # The turn after the last call answers. verl's default cuts a tool's answer at 256 characters.
            f"{ROLLOUT}.multi_turn.max_assistant_turns": None if turns is None else turns + 1,
            f"{ROLLOUT}.multi_turn.max_tool_response_length": settings["tool_max_chars"],
        }
    say(f"reading {config.dataset}")
    parts = _parts(config, environment is not None)
    files = {name: str(out / f"{name}.parquet") for name in parts}
    solves = settings["eval_strategy"] == "steps" and "test" in parts
    steps, batches = int(settings["max_steps"]), len(parts["train"]) // overrides["data.train_batch_size"]
    epochs = steps / max(batches, 1) if steps > 0 else settings["num_train_epochs"]
    overrides |= {
        "data.train_files": files["train"],
        # verl always reads a file here; without held-out rows it never evaluates.
        "data.val_files": files.get("test", files["train"]),
        "trainer.test_freq": int(settings["eval_steps"] or 1) if solves else -1,
        "trainer.total_epochs": math.ceil(epochs),
        "trainer.total_training_steps": steps if steps > 0 else None,
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        say(f"writing {len(rows)} rows to {name}.parquet")
        rows.to_parquet(files[name])
    for part in arena[:2] if arena is not None else ():
        part.save_pretrained(model)
    if environment is None:
        (out / "reward.py").write_text(_reward_file(config), encoding="utf-8")
    notes = _notes(settings)
    (out / "launch.sh").write_text(_script(overrides, notes), encoding="utf-8")
    (out / "launch.sh").chmod(0o755)
    for note in notes:
        say(f"note: {note}")
    return {name: len(rows) for name, rows in parts.items()}


def _environment(config: RunConfig) -> str | None:
    """The environment's name in the section ``gear``; None where there is none.

    ``InputError`` for what has no counterpart in verl, or a different meaning there.
    """
    for name, advice in _NOT_EXPORTED.items():
        if getattr(config, name):
            raise InputError(f"{name}: cannot be exported; {advice}")
    if config.environment is None:
        for name in config.reward_names:
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
        raise InputError(
            f"dataset: {source} has a column 'tools', which verl shows to no model; write the functions into the "
            "prompts, and rename it with --columns.functions tools"
        )
    gold = next((name for name in _GOLD_COLUMNS if name in rows.column_names), None)
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
    names, weights = config.reward_names, config.trainer.get("reward_weights")
    return (
        '"""The reward of this run: verl\'s reward.custom_reward_function. Written by `gear export verl`."""\n\n'
        "from gear_rl.runs.verl.reward import scorer\n\n"
        f"compute_score = scorer({names!r}, dataset={config.dataset!r}, weights={weights!r})\n"
    )


def _training(settings: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Hydra's keys and values of the batch, the optimizer, the loss and what is saved.

    ``InputError`` for a setting that verl has no counterpart for and that would change what is trained.
    """
    for name, choices in _CHOICES.items():
        if str(settings[name]) not in choices:
            raise InputError(f"{name}: {settings[name]!r} is not in verl; use {' or '.join(choices)}")
    # A step has the prompts of one batch of the file on one device.
    total = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    prompts, left_over = divmod(total, settings["num_generations"])
    if left_over:
        raise InputError(
            f"num_generations: {settings['num_generations']} does not divide the {total} completions of a step "
            "(per_device_train_batch_size x gradient_accumulation_steps)"
        )
    micro = math.gcd(settings["per_device_train_batch_size"], total // gpus)
    kind, low, high = (settings[name] for name in ("loss_type", "epsilon", "epsilon_high"))
    folder, report = str(settings.get("output_dir") or OUTPUT_DIR), settings["report_to"] or "none"
    trackers = [report] if isinstance(report, str) else list(report)
    chat = settings["chat_template_kwargs"] or {}
    overrides: dict[str, Any] = {
        **{verl: settings[name] for name, (_, verl) in SAME.items()},
        **{f"+data.apply_chat_template_kwargs.{name}": value for name, value in chat.items()},
        "data.train_batch_size": prompts,
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": str(settings["scale_rewards"]) in ("group", "True"),
        "critic.enable": False,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.top_k": settings["top_k"] or -1,  # 0 and None mean all tokens
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.ppo_mini_batch_size": prompts,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro,
        f"{ACTOR}.loss_agg_mode": _AGGREGATION[kind],
        f"{ACTOR}.clip_ratio": low,
        f"{ACTOR}.clip_ratio_low": low,
        f"{ACTOR}.clip_ratio_high": low if high is None else high,
        f"{ACTOR}.use_kl_loss": settings["beta"] > 0,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine"
        if settings["lr_scheduler_type"] == "cosine"
        else "constant",
        f"{ACTOR}.optim.lr_warmup_steps": int(settings["warmup_steps"]),
        f"{ACTOR}.optim.betas": [settings["adam_beta1"], settings["adam_beta2"]],
        "trainer.save_freq": int(settings["save_steps"]) if settings["save_strategy"] == "steps" else -1,
        "trainer.max_actor_ckpt_to_keep": settings["save_total_limit"],
        "trainer.logger": ["console", *(one for one in trackers if one not in ("none", "all"))],
        "trainer.experiment_name": Path(folder).name,
        "trainer.default_local_dir": folder,
    }
    if kind in ("cispo", "sapo"):
        overrides[f"{ACTOR}.policy_loss.loss_mode"] = kind
    if kind == "dr_grpo":
        overrides[f"{ACTOR}.loss_scale_factor"] = settings["max_completion_length"]
    return overrides


def _notes(settings: Mapping[str, Any]) -> list[str]:
    """The trainer's settings that are left out."""
    left = sorted(set(settings) - set(DEFAULTS) - STEP - _NO_NEED)
    notes = [f"left to verl's own settings: {', '.join(left)}"] if left else []
    if settings["lr_scheduler_type"] == "linear":
        notes.append("lr_scheduler_type: verl has no linear schedule, so the learning rate stays constant")
    return notes


def _script(overrides: dict[str, Any], notes: Sequence[str]) -> str:
    """A shell script that starts verl; its arguments are further overrides, which win."""
    about = "Written by `gear export verl`. Further overrides may follow, as in: bash FILE trainer.nnodes=2"
    lines = [shlex.quote(f"{key}={hydra_value(value)}") for key, value in overrides.items()]
    head = ["#!/usr/bin/env bash", *(f"# {line}" for line in [about, *notes]), "set -euo pipefail"]
    return "\n".join([*head, " \\\n  ".join(["python3 -m verl.trainer.main_ppo", *lines, '"$@"']), ""])


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
        pairs = cast(Mapping[str, Any], value).items()
        return "{" + ",".join(f"{key}:{hydra_value(inner)}" for key, inner in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(inner) for inner in cast(Sequence[Any], value)) + "]"
    return json.dumps(value)


def _credit(config: RunConfig, settings: Mapping[str, Any], environment: str | None) -> dict[str, Any]:
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
    if name in METHODS:
        overrides, known = {f"+{SECTION}": name}, set(group_of(name))
    else:  # a class of the user's own has no group
        overrides, known = {"trainer.v1.trainer_mode": TRAINERS[0], f"+{SECTION}.credit": name}, set[str]()
    return overrides | {f"{'' if k in known else '+'}{SECTION}.{k}": value for k, value in section.items()}


def _model(name: str, where: str = "model") -> str:
    """A folder as a whole path, since verl's workers run elsewhere; a name on the hub as it is."""
    found = resolve_model(name, where)
    return str(Path(found).resolve()) if Path(found).is_dir() else found


def _adapter(lora: Mapping[str, Any] | None) -> dict[str, Any]:
    """verl's settings of the adapter; vLLM is given the model with the adapter merged into it."""
    if lora is None:
        return {}
    for name, value in lora.items():
        if name not in _LORA and (name, value) not in (("lora_dropout", 0.0), ("bias", "none")):
            raise InputError(
                f"lora.{name}: {value!r} cannot be exported, only {', '.join(_LORA)}; leave it out"
            )
    verl = {f"{MODEL}.{'lora_rank' if k == 'r' else k}": lora.get(k, v) for k, v in _LORA.items()}
    return verl | {f"{MODEL}.lora.merge": True}
