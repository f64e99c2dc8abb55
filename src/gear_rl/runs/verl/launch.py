"""The command that starts verl with what a configuration of ``gear train`` says, as Hydra's overrides."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from gear_rl.credit.config import CreditConfig
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.settings import SECTION, group_of

Overrides = dict[str, Any]
"""Hydra's keys, with a plus sign where verl's configuration has no such key, and their values."""

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_iterations": 1,
    "max_completion_length": 512,
    "learning_rate": 1e-6,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "epsilon": 0.2,
    "beta": 0.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "importance_sampling_level": "token",
    "gradient_checkpointing": True,
    "save_strategy": "steps",
    "save_steps": 500,
    "eval_strategy": "no",
    "seed": 42,
    "tool_time_limit": 30.0,
    "tool_max_chars": 20_000,
}
"""What ``gear train`` takes where a file says nothing, so that the command does not depend on verl's defaults."""
_AGGREGATION = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "sapo": "seq-mean-token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""TRL's losses that verl has too, and how verl calls their mean."""
_VLLM = {"gpu_memory_utilization": "vllm_gpu_memory_utilization", "max_model_len": "vllm_max_model_length"}
_GRANTED = ("use_vllm", "vllm_mode", "bf16", "logging_steps", "logging_strategy", "use_cpu", "fp16")
"""Settings that verl has no need of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines, and what of the prompts only the user knows.

    >>> Cluster(nodes=8).size
    64
    """

    gpus: int = 8
    """On each node."""
    nodes: int = 1
    prompt_tokens: int = 1024
    """Longest prompt, the tools' descriptions included; verl leaves out what is longer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                name = field.name.replace("_", "-")
                raise InputError(f"--{name}: {getattr(self, field.name)} is too few; give 1 or more")

    @property
    def size(self) -> int:
        """GPUs in all."""
        return self.gpus * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the command starts from."""

    train: Path
    rows: int
    """Rows to train on."""
    test: Path | None
    model: str
    reward: Path | None
    """The file with ``compute_score``; None where the environment gives the reward."""
    environment: str | None = None


class Settings:
    """The trainer's settings of a configuration, which remembers those that were read.

    >>> settings = Settings({"beta": 0.1, "delta": 4.0})
    >>> settings("beta"), settings("epsilon"), settings.left
    (0.1, 0.2, ['delta'])
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given, self._read = dict(given), set[str](_GRANTED)

    def __call__(self, name: str) -> Any:
        """The value that was given, else that of ``gear train``."""
        self._read.add(name)
        return self.given.get(name, DEFAULTS.get(name))

    @property
    def left(self) -> list[str]:
        """The given settings that nothing has read."""
        return sorted(set(self.given) - self._read)


def overrides_of(
    credit: str | Mapping[str, Any], settings: Settings, files: Files, cluster: Cluster, **own: Any
) -> Overrides:
    """Every override of the command, the method's first; ``own`` are further settings of the section ``gear``.

    Raises ``InputError`` for a setting that verl has no counterpart for and that would change what is trained.
    """
    return {
        **_credit(credit, settings, own),
        **_data(settings, files, cluster),
        **_model(settings, files),
        **_batches(settings, cluster),
        **_optimizer(settings),
        **_loss(settings),
        **_rollout(settings, files),
        **_trainer(settings, files, cluster),
    }


def section_of(overrides: Overrides) -> dict[str, Any]:
    """The section ``gear`` that the overrides make, for a check without Hydra.

    >>> section_of({"+gear": "rlsd", "gear.strength": 0.5, "trainer.nnodes": 1})
    {'credit': 'rlsd', 'strength': 0.5}
    """
    section: dict[str, Any] = {}
    for key, value in overrides.items():
        top, _, name = key.removeprefix("+").partition(".")
        if top == SECTION:
            section[name or "credit"] = value
    return section


def script(overrides: Overrides, notes: Sequence[str] = ()) -> str:
    """A shell script that starts verl; what is written after it is handed on, and wins."""
    lines = [shlex.quote(f"{key}={hydra_value(value)}") for key, value in overrides.items()]
    about = ["Written by `gear export verl`. Further overrides may follow, as in: bash FILE trainer.nnodes=2"]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {line}" for line in [*about, *notes]),
            "set -euo pipefail",
            "python3 -m verl.trainer.main_ppo \\",
            *(f"  {line} \\" for line in lines),
            '  "$@"',
            "",
        ]
    )


def hydra_value(value: Any) -> str:
    r"""A value in the grammar of Hydra's overrides.

    >>> [hydra_value(value) for value in (None, True, 1e-06, "runs/a.b", "1", "a {b}", ["x:y"], {"r": 8})]
    ['null', 'true', '1e-06', 'runs/a.b', '"1"', '"a {b}"', '["x:y"]', '{r:8}']
    """
    if isinstance(value, str):
        # Words that Hydra reads as something else are quoted too.
        if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", value) and value.lower() not in _WORDS:
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


_WORDS = ("null", "true", "false", "nan", "inf")


def _credit(credit: str | Mapping[str, Any], settings: Settings, own: Mapping[str, Any]) -> Overrides:
    method: dict[str, Any] = {"name": credit} if isinstance(credit, str) else dict(credit)
    name = str(method.pop("name"))
    if name in METHODS:
        overrides, known = {f"+{SECTION}": name}, set(group_of(name))
    else:  # a class of the user's own has no group
        overrides, known = {"trainer.v1.trainer_mode": "gear_sync", f"+{SECTION}.credit": name}, set[str]()
    step = {f.name: settings(f.name) for f in fields(CreditConfig) if f.name in settings.given}
    for key, value in {**method, **step, **own}.items():
        overrides[f"{SECTION}.{key}" if key in known else f"+{SECTION}.{key}"] = value
    return overrides


def _data(settings: Settings, files: Files, cluster: Cluster) -> Overrides:
    overrides: Overrides = {
        "data.train_files": str(files.train),
        # verl reads a file here in any case; without held-out rows it never solves them.
        "data.val_files": str(files.test or files.train),
        "data.train_batch_size": _prompts(settings),
        "data.max_prompt_length": cluster.prompt_tokens,
        "data.max_response_length": _completion_tokens(settings),
        "data.filter_overlong_prompts": True,
        "data.seed": settings("seed"),
    }
    if files.reward is not None:
        overrides["reward.custom_reward_function.path"] = str(files.reward)
    template: Any = settings("chat_template_kwargs") or {}
    return overrides | {f"+data.apply_chat_template_kwargs.{k}": v for k, v in template.items()}


def _completion_tokens(settings: Settings) -> int:
    length = settings("max_completion_length")
    if length is None:
        raise InputError("max_completion_length: verl needs a number; give one")
    return int(length)


def _prompts(settings: Settings) -> int:
    """Prompts of one step: as many as the file's batch has on one device."""
    rows = settings("per_device_train_batch_size") * settings("gradient_accumulation_steps")
    given = settings("steps_per_generation")
    if given is not None and given != settings("gradient_accumulation_steps"):
        raise InputError(
            f"steps_per_generation: {given} makes several updates of one batch; leave it out, and set verl's "
            "data.train_batch_size and ppo_mini_batch_size in the command"
        )
    if rows % settings("num_generations"):
        raise InputError(
            f"num_generations: {settings('num_generations')} does not divide the {rows} completions of a step "
            "(per_device_train_batch_size x gradient_accumulation_steps)"
        )
    return rows // settings("num_generations")


def _model(settings: Settings, files: Files) -> Overrides:
    return {
        "actor_rollout_ref.model.path": files.model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": settings("gradient_checkpointing"),
    }


def _batches(settings: Settings, cluster: Cluster) -> Overrides:
    prompts, group = _prompts(settings), settings("num_generations")
    if prompts * group % cluster.size:
        raise InputError(
            f"gradient_accumulation_steps: a step has {prompts} prompts of {group} completions, which "
            f"{cluster.size} GPUs cannot share evenly; give more, or other --gpus and --nodes"
        )
    micro = math.gcd(settings("per_device_train_batch_size"), prompts * group // cluster.size)
    actor = "actor_rollout_ref.actor"
    return {
        f"{actor}.strategy": "fsdp2",
        f"{actor}.ppo_mini_batch_size": prompts,
        f"{actor}.ppo_micro_batch_size_per_gpu": micro,
        f"{actor}.ppo_epochs": settings("num_iterations"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
    }


def _optimizer(settings: Settings) -> Overrides:
    schedule = str(settings("lr_scheduler_type"))
    if schedule not in ("constant", "constant_with_warmup", "cosine", "linear"):
        raise InputError(f"lr_scheduler_type: {schedule!r} is not in verl; use constant or cosine")
    optim = "actor_rollout_ref.actor.optim"
    return {
        f"{optim}.lr": settings("learning_rate"),
        f"{optim}.weight_decay": settings("weight_decay"),
        f"{optim}.betas": [settings("adam_beta1"), settings("adam_beta2")],
        f"{optim}.lr_scheduler_type": "cosine" if schedule == "cosine" else "constant",
        f"{optim}.lr_warmup_steps": int(settings("warmup_steps")),
        "actor_rollout_ref.actor.grad_clip": settings("max_grad_norm"),
    }


def _loss(settings: Settings) -> Overrides:
    kind, level, scale = (
        settings(name) for name in ("loss_type", "importance_sampling_level", "scale_rewards")
    )
    if kind not in _AGGREGATION:
        raise InputError(f"loss_type: {kind!r} is not in verl; use one of {', '.join(_AGGREGATION)}")
    if level != "token":
        raise InputError(
            f"importance_sampling_level: {level!r} is not exported; use token, or set verl's loss_mode=gspo"
        )
    if str(scale) == "batch":
        raise InputError("scale_rewards: 'batch' is not in verl's grpo; use group or none")
    actor = "actor_rollout_ref.actor"
    low, high = settings("epsilon"), settings("epsilon_high")
    overrides: Overrides = {
        "algorithm.adv_estimator": "grpo",
        "critic.enable": False,
        "algorithm.norm_adv_by_std_in_grpo": str(scale) in ("group", "True"),
        f"{actor}.loss_agg_mode": _AGGREGATION[kind],
        f"{actor}.clip_ratio": low,
        f"{actor}.clip_ratio_low": low,
        f"{actor}.clip_ratio_high": low if high is None else high,
    }
    if kind in ("cispo", "sapo"):
        overrides[f"{actor}.policy_loss.loss_mode"] = kind
    if kind == "dr_grpo":
        overrides[f"{actor}.loss_scale_factor"] = _completion_tokens(settings)
    if settings("beta") > 0:
        overrides |= {f"{actor}.use_kl_loss": True, f"{actor}.kl_loss_coef": settings("beta")}
    return overrides


def _rollout(settings: Settings, files: Files) -> Overrides:
    rollout = "actor_rollout_ref.rollout"
    overrides: Overrides = {
        f"{rollout}.name": "vllm",
        f"{rollout}.n": settings("num_generations"),
        f"{rollout}.temperature": settings("temperature"),
        f"{rollout}.top_p": settings("top_p"),
        f"{rollout}.top_k": settings("top_k") or -1,  # 0 and None mean all tokens
        f"{rollout}.tensor_model_parallel_size": settings("vllm_tensor_parallel_size") or 1,
    }
    for key, name in _VLLM.items():
        if settings(name) is not None:
            overrides[f"{rollout}.{key}"] = settings(name)
    if files.environment is not None:
        turns, chars = settings("max_tool_calling_iterations"), settings("tool_max_chars")
        # The turn after the last call answers. verl would cut a tool's answer at 256 characters.
        overrides |= {
            f"{rollout}.multi_turn.enable": True,
            f"{rollout}.multi_turn.max_assistant_turns": None if turns is None else turns + 1,
            f"{rollout}.multi_turn.max_tool_response_length": chars,
        }
    return overrides


def _trainer(settings: Settings, files: Files, cluster: Cluster) -> Overrides:
    steps, per_epoch = int(settings("max_steps")), max(files.rows // _prompts(settings), 1)
    epochs = math.ceil(steps / per_epoch) if steps > 0 else math.ceil(settings("num_train_epochs"))
    report: Any = settings("report_to") or "none"
    trackers = [report] if isinstance(report, str) else list(report)
    saves, solves = settings("save_strategy") == "steps", settings("eval_strategy") == "steps"
    name = Path(str(settings("output_dir") or "runs/train")).name
    return {
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.gpus,
        "trainer.total_epochs": epochs,
        "trainer.total_training_steps": steps if steps > 0 else None,
        "trainer.save_freq": int(settings("save_steps")) if saves else -1,
        "trainer.max_actor_ckpt_to_keep": settings("save_total_limit"),
        "trainer.test_freq": int(settings("eval_steps") or 1) if solves and files.test is not None else -1,
        "trainer.val_before_train": bool(settings("eval_on_start")) and files.test is not None,
        "trainer.logger": ["console", *(one for one in trackers if one not in ("none", "all"))],
        "trainer.project_name": "gear",
        "trainer.experiment_name": settings("run_name") or name,
        "trainer.default_local_dir": str(settings("output_dir") or "runs/train"),
    }
