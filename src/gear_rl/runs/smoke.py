"""``gear train --smoke``: a run with a tiny model and a few rows, in less than a minute on a CPU.

The model, the data, sizes and GPU settings are swapped. The configuration's columns, rewards, tools, teacher and
loss are what runs.
"""

import json
import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gear_rl.data.rows import load_rows
from gear_rl.data.sources import is_generated
from gear_rl.errors import InputError, error_text, input_errors
from gear_rl.records import RECORDS
from gear_rl.runs.machine import use_few_threads
from gear_rl.runs.resolved import run_folder
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.tiny_model import save_tiny_model
from gear_rl.user_objects import import_object

STEPS, GROUP, BATCH = 2, 4, 8
"""Two groups a step."""
SPREAD = "gear_rl.runs.smoke:alternating_reward"
"""The reward that is added, as ``reward`` names it."""
SIZES: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH // 2,
    "gradient_accumulation_steps": 2,
    "num_generations": GROUP,
    "per_device_eval_batch_size": GROUP,
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_steps": STEPS,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
}
_DROPPED = """
    generation_batch_size steps_per_generation num_generations_eval credit_batch_size model_init_kwargs
    fsdp fsdp_config deepspeed parallelism_config accelerator_config ddp_backend torch_compile tf32 fp16
    bf16_full_eval fp16_full_eval full_determinism use_liger_kernel activation_checkpointing cache_implementation
    optim optim_args dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers
    use_transformers_continuous_batching use_transformers_paged push_to_hub hub_model_id log_completions run_name
    resume_from_checkpoint load_best_model_at_end eval_on_start teacher_model
"""
"""Settings of machines and sizes that are left out; their defaults work on any machine."""


def alternating_reward(completions: Sequence[Any], **columns: Any) -> list[float]:
    """0, 1, 0, 1, ...: the rewards of every group differ, so it is scored even where a model solves nothing."""
    return [float(i % 2) for i in range(len(completions))]


def smoke(
    config: RunConfig, callbacks: Sequence[Any] = (), say: Callable[[str], None] = lambda text: None
) -> str:
    """Run two steps with everything costly swapped; returns what the run did, in one line.

    ``say`` gets each swapped key. ``InputError`` names the key or the line of the user's code that failed.
    """
    from gear_rl.runs.trl_run import train

    use_few_threads()
    _check_settings(config)
    calls = _example_calls(config)
    with tempfile.TemporaryDirectory(prefix="gear-smoke-") as folder:
        small, swaps = swap_settings(config, Path(folder), calls)
        for key, text in swaps.items():
            say(f"{key}: {text}")
        try:
            trainer = train(
                small, callbacks, prepare=partial(_script_turns, calls=calls if "model" in swaps else [])
            )
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"smoke: {error_text(error)}") from error
        return _check_result(trainer)


def swap_settings(
    config: RunConfig, folder: Path, calls: Sequence[str] = ()
) -> tuple[RunConfig, dict[str, str]]:
    """The configuration to run, and for each swapped key its replacement. Writes into ``folder``."""
    words = _DROPPED.split()
    dropped = [key for key in config.trainer if key in words or key.startswith(("vllm_", "hub_"))]
    trainer = {key: value for key, value in config.trainer.items() if key not in dropped}
    trainer |= SIZES | {"use_vllm": False, "output_dir": str(folder / "out")}
    own, swaps = dict[str, Any](), dict[str, str]()
    if config.model.partition("/")[0] != "arena":
        own["model"] = save_tiny_model(folder / "model")
        swaps["model"] = f"a random Qwen3 of two layers, for {config.model}"
        length = 640 if calls else 32
        trainer["max_completion_length"] = min(config.trainer.get("max_completion_length", length), length)
    if config.smoke_rows is not None:
        own |= _rows_swapped(config, config.smoke_rows, folder / "rows.jsonl")
        swaps["dataset"] = f"the {len(config.smoke_rows)} smoke_rows, for {config.dataset}"
    elif not (is_generated(config.dataset) or Path(config.dataset).exists()):
        raise InputError(
            f"smoke_rows: missing; {config.dataset!r} may be far away, so give 3 or more of its raw rows in the "
            "recipe"
        )
    own["reward"] = [*config.reward_names, SPREAD]
    swaps["reward"] = "one more, 0 and 1 by turns, so that every group has spread"
    if config.trainer.get("reward_weights"):
        trainer["reward_weights"] = [*config.trainer["reward_weights"], 1.0]
    if config.lora is not None and "r" in config.lora:
        own["lora"] = config.lora | {"r": min(config.lora["r"], 4)}
        swaps["lora"] = f"r {own['lora']['r']}"
    if calls:
        trainer["max_tool_calling_iterations"] = 2
    trainer["record_file"] = RECORDS
    if dropped:
        swaps["left out"] = ", ".join(dropped)
    sizes = ("max_steps", "num_generations", "max_completion_length", "max_tool_calling_iterations")
    swaps["sizes"] = ", ".join(f"{key} {trainer[key]}" for key in sizes if key in trainer)
    swaps["machine"] = "CPU, no vLLM; output in a folder that goes away"
    return config.model_copy(update=own | {"trainer": trainer}), swaps


def _script_turns(trainer: Any, calls: Sequence[str]) -> None:
    """Let the model say one of the calls or "ok" in every turn, since a random one never calls a tool."""
    if not calls:
        return
    draw, turns = random.Random(0), ["ok<|im_end|>"]
    turns += [f"<tool_call>\n{call}\n</tool_call><|im_end|>" for call in calls]

    def generate(input_ids: Any, **options: Any) -> Any:
        said = trainer.processing_class(
            draw.choices(turns, k=len(input_ids)), padding=True, padding_side="right", return_tensors="pt"
        )
        return torch.cat([input_ids, said["input_ids"][:, : trainer.max_completion_length]], dim=1)

    trainer.model.generate = generate


def _rows_swapped(config: RunConfig, rows: list[dict[str, Any]], file: Path) -> dict[str, Any]:
    """Write ``rows`` to ``file``; returns the keys that make training and evaluation read it."""
    if len(rows) < 3:
        raise InputError(f"smoke_rows: {len(rows)} rows are too few for two groups; give 3 or more")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    unusable = len(rows) - len(load_rows(str(file), columns=config.columns, chat=config.chat))
    if unusable:
        raise InputError(f"smoke_rows: {unusable} have no usable prompt; give rows that can be used")
    tiers = config.eval_dataset
    return {
        "dataset": str(file),
        "dataset_config": None,
        "held_out": None if config.held_out is None else 1,
        "eval_dataset": dict.fromkeys(tiers, str(file)) if isinstance(tiers, dict) else tiers and str(file),
    }


def _check_settings(config: RunConfig) -> None:
    """TRL's own checks of the settings, including those of vLLM, which the run itself leaves out."""
    from gear_rl.engines.trl.config import GEARConfig

    run_folder(config)
    known = {key: value for key, value in config.trainer.items() if key not in _DROPPED.split()}
    with input_errors():
        everything: dict[str, Any] = known | SIZES | {"output_dir": tempfile.gettempdir()}
        GEARConfig(**everything)


def _example_calls(config: RunConfig) -> list[str]:
    """One call of each tool, with the simplest arguments that its schema allows, as JSON."""
    from transformers.utils.chat_template_utils import get_json_schema

    from gear_rl.engines.tools import tool_functions

    tools: list[Callable[..., Any]] = [import_object(path, "tools") for path in config.tools]
    named = config.environment
    for path in named.values() if isinstance(named, dict) else [named or ""]:
        if ":" in path:  # the others are ours
            factory = import_object(path, "environment")
            try:
                instance = factory()
            except Exception as error:
                raise InputError(f"environment: {path}() failed: {error_text(error)}") from error
            tools += [getattr(instance, key) for key in tool_functions(type(instance))]
    calls: list[str] = []
    for tool in tools:
        try:
            schema: Any = get_json_schema(tool)["function"]
        except Exception as error:
            raise InputError(f"tools: {tool.__name__}: {str(error).strip()}") from None
        properties = schema["parameters"]["properties"]
        arguments = {key: _plainest_value(facts) for key, facts in properties.items()}
        calls.append(json.dumps({"name": schema["name"], "arguments": arguments}))
    return calls


def _plainest_value(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind: Any = schema.get("type")
    plain = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    return plain.get(kind[0] if isinstance(kind, list) else kind, "a")


def _check_result(trainer: Any) -> str:
    """What the run did, in one line; ``InputError`` if a part of the recipe did nothing at all."""
    for name, values in trainer._logs["rewards"].items():
        if all(value is None or math.isnan(value) for value in values):
            columns = ", ".join(trainer.train_dataset.column_names)
            raise InputError(
                f"reward: {name} judged none of {len(values)} completions; does it find its column? The rows "
                f"have {columns}"
            )
    parts = [f"{trainer.state.global_step} steps"]
    if trainer.credit.needs:
        scored, without = _total(trainer, "gear/scored"), _total(trainer, "gear/fallback/no_context")
        if without and not scored:
            raise InputError(
                f"credit: none of {without} completions had a privileged context, so {trainer.credit.name!r} did "
                "nothing; check privileged_sources, the columns and the environment's privileged_context()"
            )
        parts.append(f"{scored} completions scored for {trainer.credit.name}")
        parts += [f"{without} without a privileged context"] if without else []
    if trainer.tools:
        logs: list[dict[str, Any]] = trainer.state.log_history
        calls = round(BATCH * sum(entry.get("tools/call_frequency", 0.0) for entry in logs))
        kinds = sorted({key for entry in logs for key in entry if key.startswith("gear/tools/")})
        counts = {key.rpartition("/")[2]: _total(trainer, key) for key in kinds}
        failed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        parts.append(f"{calls} tool calls with made-up arguments{f' (failed: {failed})' if failed else ''}")
    return ", ".join(parts)


def _total(trainer: Any, key: str) -> int:
    return int(sum(entry.get(key, 0.0) for entry in trainer.state.log_history))
