"""Make the trainer of a configuration, and train."""

import os
import re
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from gear_rl.arena.task import TASKS, TEMPLATE, all_tasks, dataset_task, get_task
from gear_rl.data.objects import context_fault, guard_function, rollouts_fault
from gear_rl.data.rewards.catalogue import Reward, load_reward
from gear_rl.data.rewards.maths import check_golds
from gear_rl.data.rows import load_rows, load_splits
from gear_rl.data.sources import check_exists, is_file, is_generated
from gear_rl.engines.folder import checkpoints_in
from gear_rl.engines.models import is_adapter
from gear_rl.errors import InputError, input_errors
from gear_rl.files import check_output
from gear_rl.method_builder import build_method
from gear_rl.runs.machine import machine_defaults, use_few_threads
from gear_rl.runs.model_wheels import resolve_model
from gear_rl.runs.resolved import OUTPUT_DIR, run_folder, write_run
from gear_rl.runs.run_config import RunConfig
from gear_rl.user_objects import import_object

_OF_HUB = ("trust_remote_code", "revision", "token", "cache_dir", "local_files_only")
"""The settings of ``model_init_kwargs`` by which a model's configuration is found."""


def train(
    config: RunConfig,
    callbacks: Sequence[Any] = (),
    *,
    overwrite: bool = False,
    source: Path | None = None,
    prepare: Callable[[Any], None] = lambda trainer: None,
) -> Any:
    """Train with the given callbacks, save the model, and return the trainer, which ``prepare`` gets first.

    ``InputError`` for a folder that holds a run already, unless the run is resumed or ``overwrite`` deletes it;
    for a folder that another process writes; for a step that is not finite; for records that would replace data.
    ``source`` is the configuration's file, which the records may not replace either.
    """
    resume = check_folder(config, source, overwrite)
    trainer = make_trainer(config)
    prepare(trainer)
    from transformers.trainer_callback import TrainerCallback

    class WriteRun(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:  # not reached by a run that was refused
                write_run(config, trainer)

    for callback in (WriteRun(), *callbacks):
        trainer.add_callback(callback)
    try:
        with trainer.checkpoints.writing():
            trainer.train(resume_from_checkpoint=resume)
            trainer.save_model()
            trainer.save_state()
            # The card links a dataset as one of the hub's.
            local = is_generated(config.dataset) or Path(config.dataset).exists()
            named = None if local else config.dataset
            trainer.create_model_card(model_name=trainer.run_folder.path.name, dataset_name=named)
    except (FloatingPointError, ImportError, ValueError) as error:
        ours = re.match(r"[a-z_]+: ", str(error))  # it names a setting or a column
        if not ours and isinstance(error, ValueError):  # an ImportError is a library's that a setting needs
            raise
        raise InputError(str(error)) from None
    return trainer


def make_trainer(config: RunConfig) -> Any:
    """The trainer that a configuration describes, without the callbacks that print."""
    credit = build_method(config.credit)
    check_trackers(config)
    dataset, held_out = load_data(config)
    rewards, options = _rewards(config, dataset), _options(config)
    with input_errors():
        model, processing, settings = (arena_model if is_arena(config.model) else _pretrained_model)(config)
        settings |= _settings(config)
        if not isinstance(model, str):
            settings.pop("model_init_kwargs", None)  # it is loaded already
        from transformers.trainer_callback import PrinterCallback, ProgressCallback

        from gear_rl.engines.trl import GEARTrainer
        from gear_rl.engines.trl.config import GEARConfig

        trainer = GEARTrainer(
            model,
            rewards or None,
            GEARConfig(**settings),
            dataset,
            eval_dataset=held_out,
            processing_class=processing,
            peft_config=_lora(config.lora),
            credit=credit,
            **options,
        )
    trainer.model_name, trainer.data_name = config.model, config.dataset
    for printer in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printer)
    return trainer


def check_trackers(config: RunConfig) -> None:
    """Raise ``InputError`` for a tracker in ``report_to`` that is not installed."""
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    named = config.trainer.get("report_to") or []
    known = ("none", "all", *get_available_reporting_integrations())
    for name in [named] if isinstance(named, str) else named:
        if name not in known:
            raise InputError(
                f"report_to: no tracker {name!r} is installed; pip install 'gear-rl[trackers]' brings "
                "tensorboard, trackio and wandb"
            )


def check_run(config: RunConfig, dataset: Any, where: str = "") -> None:
    """Raise ``InputError``, which begins with ``where``, for what can be refused before a model is loaded."""
    from gear_rl.engines.trl.config import GEARConfig, checked_arguments

    with input_errors(f"{where}: " if where else ""):
        _rewards(config, dataset)
        options = _options(config)
        privileged = options.pop("privileged", None)
        arguments = GEARConfig(**_settings(config))
        checked_arguments(arguments, build_method(config.credit), privileged, dataset, options)


def _rewards(config: RunConfig, dataset: Any) -> list[Reward]:
    weights, count = config.trainer.get("reward_weights"), len(config.reward_names)
    if weights and count and config.environment is None and len(weights) != count:
        raise InputError(f"reward_weights: {len(weights)} numbers; give one for each reward, {count} in all")
    if "math" in config.reward_names:
        check_golds(dataset)
    rewards = [load_reward(name, config.dataset) for name in config.reward_names]
    for name, reward in zip(config.reward_names, rewards, strict=True):
        for new, old in config.columns.items():
            if old in signature(reward).parameters and old not in dataset.column_names:
                raise InputError(
                    f"reward: {name} reads the column {old!r}, which columns.{new} renames; let it read {new!r}"
                )
    return rewards


def _options(config: RunConfig) -> dict[str, Any]:
    """The arguments of the trainer that are called during rollouts."""
    options: dict[str, Any] = {"environment_factory": load_environment(config)}
    if config.tools:
        options["tools"] = [_function(path, "tools") for path in config.tools]
    for name, fault in (("rollout_func", rollouts_fault), ("privileged", context_fault)):
        path = getattr(config, name)
        if path is not None:
            options[name] = guard_function(_function(path, name), name, path, fault)
    return options


def _settings(config: RunConfig) -> dict[str, Any]:
    """The fields of ``GEARConfig``; the progress bar is off, since the command prints its own lines."""
    adapter = config.lora is not None or is_adapter(resolve_model(config.model))
    machine = machine_defaults(pretrained=not is_arena(config.model), full=not adapter)
    defaults = {"logging_steps": 1, "report_to": "none"}
    defaults |= machine
    settings = defaults | config.trainer | {"disable_tqdm": True}
    if (
        settings.get("eval_strategy", "no") != "no"
        and config.held_out is None
        and config.eval_dataset is None
    ):
        raise InputError(
            f"eval_strategy: {settings['eval_strategy']} needs held-out rows; give held_out or eval_dataset"
        )
    settings["output_dir"] = settings.get("output_dir") or OUTPUT_DIR
    if settings.get("teacher_model") is not None:
        settings["teacher_model"] = resolve_model(str(settings["teacher_model"]), "teacher_model")
    return settings


def check_names(config: RunConfig) -> None:
    """Raise ``InputError`` for a method, model, reward or file that is not there; imports no TRL for that."""
    build_method(config.credit)
    resolve_model(config.model)
    check_exists(config.dataset)
    for name in config.reward_names:
        load_reward(name, config.dataset)


def check_folder(config: RunConfig, source: Path | None, overwrite: bool) -> str | None:
    """What to resume from, taken out of the trainer's settings; None for a new run.

    Refuses to write records over a file that is read, and to start a new run in a folder that holds one.
    """
    if overwrite:
        config.trainer["overwrite_output_dir"] = True
    folder, resume = run_folder(config), config.trainer.pop("resume_from_checkpoint", None)
    overwrite = bool(config.trainer.get("overwrite_output_dir"))
    if resume == "latest" and not checkpoints_in(folder.path):
        why = f"{folder.path} holds no checkpoint; leave it out, and begin anew by --overwrite"
        raise InputError(f"resume_from_checkpoint: {why}")
    if resume not in (None, "latest") and not os.path.isdir(resume):
        raise InputError(f"resume_from_checkpoint: {resume} is no folder; give one, or latest")
    if overwrite and resume is not None:
        raise InputError("--overwrite: it begins anew, resume_from_checkpoint goes on; leave one of them out")
    held_out = config.eval_dataset or {}
    names = [config.dataset, *([held_out] if isinstance(held_out, str) else held_out.values())]
    inputs = [*(Path(name) for name in names if not is_generated(name)), *filter(None, [source])]
    with input_errors():
        if folder.records is not None:
            check_output(folder.records, inputs, "record_file")
        folder.check_records()
    leftovers = folder.leftovers()
    records_only = leftovers == [str(folder.records)]  # a run that was ended early; they are kept
    if leftovers and not records_only and resume is None and not overwrite:
        go_on = "go on with it by --resume_from_checkpoint latest, " if checkpoints_in(folder.path) else ""
        raise InputError(
            f"output_dir: {folder.path} holds a run already ({', '.join(leftovers)}); {go_on}delete it and begin "
            "anew by --overwrite, or give another output_dir"
        )
    own = [name for name in ("README.md", "config.json") if (folder.path / name).exists()]
    if own and folder.run is None and not overwrite:
        raise InputError(
            f"output_dir: {folder.path} holds {' and '.join(own)}, which a run may replace; give a folder of its "
            "own, or --overwrite"
        )
    return resume


def load_data(config: RunConfig) -> tuple[Any, Any]:
    """The training rows and the held-out ones (or None, or a dict by tier) that a configuration describes."""
    columns: dict[str, Any] = {"columns": config.columns, "chat": config.chat}
    training: dict[str, Any] = columns | {"split": config.dataset_split, "config": config.dataset_config}
    if config.eval_dataset is None:
        return load_splits(config.dataset, held_out=config.held_out, **training)
    if config.held_out is not None:
        raise InputError("held_out: there is an eval_dataset already; leave one of them out")

    def held_out(name: str) -> Any:
        # The configuration of the same dataset on the hub.
        same = config.dataset_config if name == config.dataset else None
        split = "train" if is_file(name) else config.eval_split  # eval_split is for datasets of the hub
        return load_rows(name, split=split, config=same, **columns)

    named, dataset = config.eval_dataset, load_rows(config.dataset, **training)
    if isinstance(named, str):
        return dataset, held_out(named)
    return dataset, {tier: held_out(name) for tier, name in named.items()}


def load_environment(config: RunConfig) -> Any:
    """TRL's ``environment_factory``, or None; ``arena`` means the environment of the arena's dataset.

    >>> run = RunConfig(model="arena", dataset="arena/errands/easy", environment="arena")
    >>> load_environment(run).__name__
    'ErrandsEnv'
    """
    named = config.environment
    if isinstance(named, dict):
        return {name: environment_of(path, config.dataset) for name, path in named.items()}
    return None if named is None else environment_of(named, config.dataset)


def environment_of(path: str, dataset: str, key: str = "environment") -> Any:
    """The environment at ``path``; ``arena`` stands for that of the arena's dataset."""
    if path == "arena":
        task, _ = dataset_task(dataset)
        environment = get_task(task).environment
        if environment is None:
            agents = " or ".join(f"arena/{one.name}" for one in all_tasks() if one.agent)
            raise InputError(f"{key}: 'arena' needs the dataset {agents}, not {dataset!r}")
        return environment
    return _function(path, key)


def _function(path: str, where: str) -> Any:
    function = import_object(path, where)
    if not callable(function):
        raise InputError(f"{where}: {path} is {type(function).__name__}, which cannot be called")
    return function


def is_arena(model: str) -> bool:
    """Whether a name is that of one of the arena's own models.

    >>> is_arena("arena"), is_arena("arena/of/mine")
    (True, False)
    """
    return model in ("arena", *(f"arena/{name}" for name in TASKS))


def arena_model(config: RunConfig) -> tuple[Any, Any, dict[str, Any]]:
    """The arena's model, its tokenizer, and the settings that training it adds."""
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load

    use_few_threads()
    task = get_task(config.model.partition("/")[2] or dataset_task(config.dataset)[0])
    model, tokenizer = load(task=task.name)
    settings = {"chat_template_kwargs": CHAT_TEMPLATE_KWARGS, "answer_pattern": task.answer_pattern}
    return model, tokenizer, settings | {"teacher_prompt_template": TEMPLATE}


def _pretrained_model(config: RunConfig) -> tuple[Any, Any, dict[str, Any]]:
    """A name that TRL loads itself; for an adapter's folder its model, loaded to be trained further."""
    from gear_rl.engines.models import load_causal_lm, load_tokenizer

    use_few_threads(pretrained=True)
    name, settings = resolve_model(config.model), _settings(config)
    options = settings.get("model_init_kwargs") or {}
    if not is_adapter(name):
        from transformers import AutoConfig

        loader: Any = AutoConfig
        found = {"trust_remote_code": bool(settings.get("trust_remote_code"))}
        if not isinstance(options, str):  # TRL reads JSON too
            found |= {key: options[key] for key in _OF_HUB if key in options}
        with input_errors(f"model: {config.model}: "):
            loader.from_pretrained(name, **found)
        return name, None, {}
    if config.lora is not None:
        raise InputError(
            f"lora: {config.model} is an adapter already, which goes on being trained with its own settings; "
            "leave lora out, or merge the adapter into its model first (merge_and_unload of peft)"
        )
    return load_causal_lm(name, options, trained=True), load_tokenizer(name), {}


def _lora(arguments: dict[str, Any] | None) -> Any:
    if arguments is None:
        return None
    from peft import LoraConfig

    try:
        return LoraConfig(task_type="CAUSAL_LM", **arguments)
    except TypeError as error:
        raise InputError(f"lora: {error}; the arguments are those of peft.LoraConfig") from None
