"""The configuration of a run: a YAML file and ``--key value`` overrides, checked before a model is loaded.

Our own keys are the fields of ``RunConfig``. Every other key is a field of ``GEARConfig``, which extends the
settings of TRL and transformers. The method's settings are under ``credit``.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import ast
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gear_rl.arena.task import dataset_task, get_task
from gear_rl.engines import engine_config
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.errors import InputError, did_you_mean
from gear_rl.method_builder import put_setting
from gear_rl.runs.trl_names import NAMES, with_our_names
from gear_rl.settings import Count, NotNegative, Share, checked_value, fault_in
from gear_rl.yaml_values import parse_word, read_yaml, yaml_text

NARROWER: dict[str, Any] = {
    "num_generations": Annotated[int, Field(ge=2)],
    "max_completion_length": Count,
    "per_device_train_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "learning_rate": NotNegative,
    "scale_rewards": Literal["group", "batch", "none"] | bool,
}
"""Settings of TRL whose declared types allow what no run can have."""
_LORA: dict[str, Any] = {"r": Count, "lora_alpha": float, "lora_dropout": Share}
"""Arguments of peft that are checked before a model is loaded; peft itself checks none."""


class RunConfig(BaseModel):
    """The settings that ``gear train`` has besides those of TRL.

    >>> RunConfig(model="arena", dataset="arena/chain/easy").credit
    'gear'
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True
    )

    model: str
    """'arena', a hub name, a local folder, or smollm2 (gear model smollm2)."""
    dataset: str
    """'arena', 'arena/TIER' or 'arena/errands/TIER'; a .jsonl, .json, .csv, .tsv or .parquet file; a folder;
    'reasoning-gym/NAME'; package.module:function; or a hub name."""
    dataset_config: str | None = None
    """Configuration of a hub dataset."""
    dataset_split: str = "train"
    """Split of a hub dataset."""
    held_out: int | float | None = None
    """Rows (or their share) kept for evaluation where there is no eval_dataset."""
    eval_dataset: str | Annotated[dict[str, str], Field(min_length=1)] | None = None
    """Like dataset; or {tier: dataset}, evaluated separately. Solved at eval_steps."""
    eval_split: str = "test"
    """Split of a hub eval dataset."""
    columns: dict[str, str] = {}
    """New name: column of the dataset, as in {prompt: question}."""
    chat: bool = True
    """Wrap a plain text prompt into one user message."""
    reward: str | list[str] | None = None
    """'arena', 'math', 'tool_calls', a function of trl.rewards, or package.module:object; several as a list, with
    reward_weights. Not needed where the environment has get_reward."""
    environment: str | dict[str, str] | None = None
    """'arena', or package.module:Class with TRL's contract (reset, tools, get_reward); or {name: environment},
    chosen by the column `environment`."""
    tools: list[str] = []
    """Functions that the model may call, as package.module:function."""
    rollout_func: str | None = None
    """TRL's rollout_func, as package.module:function."""
    privileged: str | None = None
    """package.module:function (row, rollout) -> str | None: the privileged context of a rollout."""
    credit: str | dict[str, Any] = "gear"
    """A method, or {name: METHOD, SETTING: VALUE}."""
    lora: dict[str, Any] | None = None
    """Arguments of peft.LoraConfig; null trains all weights."""
    smoke_rows: list[dict[str, Any]] | None = None
    """A few raw rows for --smoke, with the dataset's own column names."""
    trainer: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """The keys that are not ours, which are fields of GEARConfig."""

    @property
    def reward_names(self) -> list[str]:
        """The rewards as a list, which is empty where the environment gives the reward."""
        return [self.reward] if isinstance(self.reward, str) else list(self.reward or ())


def load_config(
    path: str | Path | None, overrides: Sequence[str] = (), *, types: Mapping[str, Any] | None = None
) -> RunConfig:
    """The run that a file and ``--key value`` pairs describe; ``InputError`` for a wrong key or value.

    ``types`` maps the trainer's settings to their types, by default those of ``GEARConfig``, which imports TRL.
    With ``types``, a key that is not among them is kept unchecked, since it may be TRL's.

    >>> load_config("missing.yaml")
    Traceback (most recent call last):
    gear_rl.errors.InputError: --config: missing.yaml does not exist
    """
    values = {} if path is None else with_our_names(read_yaml(Path(path)))
    trainer_types = trainer_settings() if types is None else types
    fields = RunConfig.model_fields
    hints = {key: field.annotation for key, field in fields.items()} | dict(trainer_types)
    put_flags(values, overrides, hints)
    values = with_our_names(values)  # --use_peft
    if values.get("resume_from_checkpoint") is True:
        values["resume_from_checkpoint"] = "latest"
    own, trainer = dict[str, Any](), dict[str, Any]()
    for name, value in values.items():
        if "." in name:
            first, nested = name.partition(".")[0], dict(values)
            put_word(nested, name, value)
            shown = yaml_text({first: nested[first]}, default_flow_style=True)
            raise InputError(f"{name}: a file nests its settings; write {shown.strip()[1:-1]}")
        if name in fields and name != "trainer":
            own[name] = value
        elif name in trainer_types:
            trainer[name] = checked_value(name, value, trainer_types[name])
        elif types is None:
            raise InputError(
                f"{name}: no such setting; {did_you_mean(name, [*fields, *trainer_types, *NAMES, 'use_peft'])}"
            )
        else:
            trainer[name] = value
    lora = own.get("lora") or {}
    for name, hint in _LORA.items():
        if isinstance(lora, dict) and name in lora:
            checked_value(f"lora.{name}", lora[name], hint)
    dataset = str(own.get("dataset"))
    if own.get("environment") is None and dataset.partition("/")[0] == "arena":
        own["environment"] = "arena" if get_task(dataset_task(dataset)[0]).agent else None
    for name in ("model", "dataset", *(() if own.get("environment") else ("reward",))):
        if own.get(name) is None:
            hint = " ".join(str(fields[name].description).split())
            raise InputError(f"{name}: missing; give it in the file or as --{name} VALUE ({hint})")
    try:
        return RunConfig(**own, trainer=trainer)
    except ValidationError as error:
        raise InputError(fault_in(error, hints, own)) from None


def put_flags(values: dict[str, Any], words: Sequence[str], hints: Mapping[str, Any]) -> None:
    """Set what the flags of ``gear train`` say; ``hints`` has the type of each key."""
    flags = {flag: hints.get(ours, list[str]) for flag, ours in NAMES.items()} | {"use_peft": bool}
    pairs = [(NAMES.get(key, key), text) for key, text in parse_overrides(words, {**hints, **flags})]
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):  # `credit` before `credit.alpha`
        value, hint = parse_word(text), hints.get(key)
        # `--run_name 007`: a text setting takes the word as it stands, unless it is null or quoted.
        is_text = hint in (str, str | None) and not isinstance(value, str | bool | None)
        if "list" in str(hint) and not _fits(value, hint) and _fits([value], hint):
            value = [value]  # `--reward_weights 1.0`: one word of a list, as TRL's flags take it
        put_word(values, key, text if is_text else value)


def _fits(value: Any, hint: Any) -> bool:
    try:
        checked_value("", value, hint)
    except InputError:
        return False
    return True


def load_outline(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The run as far as it can be checked without TRL, whose import takes seconds: names, and our own settings.

    An unknown name is refused if it looks like a known one; ``load_config`` judges the others, and which settings
    may have no value, or several.
    """
    names = _trainer_names()
    run = load_config(path, overrides, types=dict.fromkeys(names, bool | list[Any] | Any))
    known = [*RunConfig.model_fields, *names, *NAMES, "use_peft"]
    for name in run.trainer:
        if names and name not in known and get_close_matches(name, known, cutoff=0.8):
            raise InputError(f"{name}: no such setting; {did_you_mean(name, known)}")
    return run


def _trainer_names() -> list[str]:
    """The fields of ``GEARConfig`` as the sources of its classes say; none where one is not found."""
    files = [Path(engine_config.__file__).parent / "trl" / "config.py"]
    for module in ("trl.trainer.grpo_config", "trl.trainer.base_config", "transformers.training_args"):
        package, *path = module.split(".")
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return []
        files.append(Path(spec.origin).parent.joinpath(*path).with_suffix(".py"))
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    for file in files:
        if not file.is_file():
            return []
        for node in ast.parse(file.read_bytes()).body:
            fields = node.body if isinstance(node, ast.ClassDef) else []
            targets = [field.target for field in fields if isinstance(field, ast.AnnAssign)]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def put_word(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted key of a flag; ``--credit.alpha 0.5`` alone sets the default method.

    >>> values = {}
    >>> put_word(values, "credit.alpha", 0.5)
    >>> values
    {'credit': {'name': 'gear', 'alpha': 0.5}}
    """
    if key.startswith("credit.") and values.get("credit") is None:
        values["credit"] = RunConfig.model_fields["credit"].default
    put_setting(values, key, value, f"--{key}")


def parse_overrides(words: Sequence[str], hints: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """``--key value`` and ``--key=value`` pairs, with dashes in a key as underscores.

    As in TRL, a key whose type in ``hints`` is bool means true without a value, and one of a list takes several.

    >>> words = ["--credit.alpha", "0.5", "--use-vllm=true", "--bf16", "--reward_funcs", "a:b", "c:d"]
    >>> parse_overrides(words, {"bf16": bool, "reward_funcs": list[str]})
    [('credit.alpha', '0.5'), ('use_vllm', 'true'), ('bf16', 'true'), ('reward_funcs', '[a:b, c:d]')]
    """
    pairs, hints = list[tuple[str, list[str]]](), hints or {}
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        if word.startswith("--") and word != "--":
            pairs.append((key.replace("-", "_"), [text] if equals else []))
        elif pairs and (not pairs[-1][1] or "list" in str(hints.get(pairs[-1][0]))):
            pairs[-1][1].append(word)
        else:
            raise InputError(f"{word!r}: expected --key value; a value with spaces needs quotes")
    for key, given in pairs:
        if not given and "bool" not in str(hints.get(key, bool if hints else None)):
            raise InputError(f"--{key}: its value is missing; write --{key} VALUE")
    return [(key, f"[{', '.join(given)}]" if given[1:] else (given or ["true"])[0]) for key, given in pairs]


def trainer_settings() -> dict[str, Any]:
    """Name and type of every field of GEARConfig."""
    try:
        from gear_rl.engines.trl.config import GEARConfig
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed; run: pip install 'gear-rl[trl]'") from None
    except ImportError as error:
        raise InputError(str(error)) from None

    hints = typing.get_type_hints(GEARConfig, include_extras=True)
    # Floats for TRL, where less than 1 is a share of the run; a number of steps stays one.
    hints |= {name: int | hints[name] for name in ("logging_steps", "save_steps", "eval_steps")}
    hints |= NARROWER
    return {f.name: hints.get(f.name, Any) for f in dataclasses.fields(GEARConfig) if f.init}
