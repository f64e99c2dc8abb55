"""``gear train``: from a checked configuration to a trained model."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from gear_rl.arena.tiers import TASKS
from gear_rl.cli.progress import ProgressLine, replace_printers
from gear_rl.data.objects import import_object
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.data.rows import load_rows, load_splits
from gear_rl.data.sources import arena_task
from gear_rl.errors import InputError
from gear_rl.runs.config import RunConfig, build_method

OUTPUT_DIR = "runs/train"
"""Where a run goes that does not say."""


def quiet_libraries(console: Console) -> None:
    """Our own log in the console; of the libraries under us only what a user can act on."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    log = logging.getLogger("gear_rl")
    log.setLevel(logging.INFO)
    log.handlers = [RichHandler(console=console, show_path=False, show_time=False, show_level=False)]
    log.propagate = False


def machine_defaults() -> dict[str, Any]:
    """Settings that follow from the machine, for keys that the user leaves alone.

    Without an accelerator TRL's defaults (bfloat16, gradient checkpointing, pinned memory) only cost time.
    """
    import torch

    if torch.accelerator.is_available():
        return {}
    return {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}


def use_few_threads() -> int:
    """One thread for tiny models, unless the user set OMP_NUM_THREADS: more threads only wait for each other."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.get_num_threads()


def make_trainer(config: RunConfig) -> Any:
    """The trainer that a configuration describes; ``InputError`` for what the user can mend."""
    credit = build_method(config.credit)
    dataset, held_out = load_data(config)
    names = [config.reward] if isinstance(config.reward, str) else config.reward or []
    rewards = [load_reward(name) for name in names]
    options: dict[str, Any] = {
        "environment_factory": load_environment(config),
        "tools": [_function(path, "tools") for path in config.tools] or None,
        "rollout_func": _function(config.rollout_func, "rollout_func"),
        "privileged": _function(config.privileged, "privileged"),
    }
    settings: dict[str, Any] = {
        "logging_steps": 1,
        "report_to": "none",
        **machine_defaults(),
        **config.trainer,
    }
    settings.setdefault("output_dir", OUTPUT_DIR)
    try:
        model, processing, extra = _model(config)
        from gear_rl.engines.trl import GEARTrainer
        from gear_rl.engines.trl.config import GEARConfig

        # transformers' own bar and dictionaries give way to our line.
        everything: dict[str, Any] = {**extra, **settings, "disable_tqdm": True}
        args = GEARConfig(**everything)
        return GEARTrainer(
            model,
            rewards or None,
            args,
            dataset,
            eval_dataset=held_out,
            processing_class=processing,
            peft_config=_lora(config.lora),
            credit=credit,
            **{name: value for name, value in options.items() if value is not None},
        )
    except (ValueError, ImportError, OSError) as error:
        raise InputError(str(error)) from None


def train(config: RunConfig, console: Console) -> Any:
    """Run the training, save the model, and return the trainer."""
    resume = config.trainer.pop("resume_from_checkpoint", None)
    if resume == "latest":
        from transformers.trainer_utils import get_last_checkpoint

        folder = config.trainer.get("output_dir", OUTPUT_DIR)
        resume = get_last_checkpoint(folder) if os.path.isdir(folder) else None
        if resume is None:
            raise InputError(
                f"resume_from_checkpoint: {folder} holds no checkpoint; leave it out to begin anew"
            )
    elif resume is not None and not os.path.isdir(resume):
        raise InputError(f"resume_from_checkpoint: {resume} is no folder; give one, or latest")
    trainer = make_trainer(config)
    line = ProgressLine(console)
    replace_printers(trainer, line)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except ValueError as error:
        if not str(error).startswith("resume_from_checkpoint"):
            raise
        raise InputError(str(error)) from None
    finally:
        line.close()
    trainer.save_model()
    trainer.save_state()
    return trainer


def load_data(config: RunConfig) -> tuple[Any, Any]:
    """The training rows and the held-out ones (or None, or a dict by tier) that a configuration describes."""
    folder = Path(str(config.trainer.get("output_dir", OUTPUT_DIR)))
    common: dict[str, Any] = {
        "columns": config.columns,
        "chat": config.chat,
        "quarantine": folder / "quarantine.jsonl",
    }
    if config.eval_dataset is None:
        return load_splits(
            config.dataset,
            split=config.dataset_split,
            config=config.dataset_config,
            stream=config.stream,
            held_out=config.held_out,
            **common,
        )
    if config.held_out is not None:
        raise InputError("held_out: there is an eval_dataset already; leave one of them out")
    dataset = load_rows(
        config.dataset,
        split=config.dataset_split,
        config=config.dataset_config,
        stream=config.stream,
        **common,
    )

    def rows(name: str) -> Any:
        # A hub name alone means the same configuration; of a local file there is one split.
        same = config.dataset_config if name == config.dataset else None
        return load_rows(name, split=config.eval_split, config=same, **common)

    if isinstance(config.eval_dataset, str):
        return dataset, rows(config.eval_dataset)
    return dataset, {tier: rows(name) for tier, name in config.eval_dataset.items()}


def load_environment(config: RunConfig) -> Any:
    """TRL's ``environment_factory``, or None; ``arena`` means the environment of the arena's dataset."""
    if config.environment is None:
        return None
    if isinstance(config.environment, dict):
        return {name: _environment(path, config.dataset) for name, path in config.environment.items()}
    return _environment(config.environment, config.dataset)


def _environment(path: str, dataset: str) -> Any:
    if path == "arena":
        task, tier = arena_task(dataset)
        if task != "ledger":
            raise InputError(f"environment: 'arena' needs the dataset arena/ledger, not {dataset!r}")
        from gear_rl.arena.ledger.env import environment

        return environment(tier)
    return _function(path, "environment")


def _function(path: str | None, where: str) -> Any:
    if path is None:
        return None
    if ":" not in path:
        raise InputError(f"{where}: {path!r} names no object; write package.module:object")
    found = import_object(path, where)
    if not callable(found):
        raise InputError(f"{where}: {path} is {type(found).__name__}, which cannot be called")
    return found


def _model(config: RunConfig) -> tuple[Any, Any, dict[str, Any]]:
    if config.model not in ("arena", *(f"arena/{name}" for name in TASKS)):
        return config.model, None, {}
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load

    use_few_threads()
    task = config.model.partition("/")[2] or arena_task(config.dataset)[0]
    model, tokenizer = load(task=task)
    settings: dict[str, Any] = {"chat_template_kwargs": CHAT_TEMPLATE_KWARGS}
    if task == "ledger":
        from gear_rl.arena.ledger.problem import ANSWER_PATTERN, TEMPLATE
    else:
        from gear_rl.arena.chain.problem import ANSWER_PATTERN, TEMPLATE
    settings |= {"answer_pattern": ANSWER_PATTERN, "teacher_prompt_template": TEMPLATE}
    return model, tokenizer, settings


def _lora(arguments: dict[str, Any] | None) -> Any:
    if arguments is None:
        return None
    from peft import LoraConfig

    try:
        return LoraConfig(task_type="CAUSAL_LM", **arguments)
    except TypeError as error:
        raise InputError(f"lora: {error}; the arguments are those of peft.LoraConfig") from None
