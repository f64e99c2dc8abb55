"""A run, as data: one YAML file, overridden by ``--key value``, checked before anything heavy is loaded.

Our own keys are ``RunConfig``'s fields. Every other key is a field of ``GEARConfig``, and so of TRL's and
transformers' own settings: nothing is declared twice. The method's settings stand under ``credit``.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gear_rl.arena.task import dataset_task, get_task
from gear_rl.data.objects import import_object
from gear_rl.errors import InputError, did_you_mean
from gear_rl.signals.signal import names_of
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner

_MOVED = {
    "saliency_readout": "readout", "saliency_layer": "layer", "saliency_span": "loss_span",
    "saliency_noise": "noise_std", "transport_window_tokens": "window_tokens",
    "transport_stride_tokens": "stride_tokens", "anchor_similarity": "anchor_similarity",
    "answer_template": "answer_template",
}  # fmt: skip
"""Keys of old files, and the field of the method that each is now."""


class RunConfig(BaseModel):
    """The settings of ``gear train`` beside TRL's own.

    >>> RunConfig(model="arena", dataset="arena/chain/easy").credit
    'gear'
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="'arena', a hub name, a local folder, or smollm2 (gear model smollm2).")
    dataset: str = Field(
        description="'arena', 'arena/TIER' or 'arena/errands/TIER'; a .jsonl, .json, .parquet or .csv file; a "
        "folder; 'reasoning-gym/NAME'; 'word-problems'; or a hub name."
    )
    dataset_config: str | None = Field(default=None, description="Configuration of a hub dataset.")
    dataset_split: str = Field(default="train", description="Split of a hub dataset.")
    held_out: int | float | None = Field(
        default=None, description="Rows (or their share) kept for evaluation where there is no eval_dataset."
    )
    eval_dataset: str | dict[str, str] | None = Field(
        default=None, description="As dataset; or {tier: dataset}, evaluated apart. Solved at eval_steps."
    )
    eval_split: str = Field(default="test", description="Split of a hub eval dataset.")
    columns: dict[str, str] = Field(
        default_factory=dict, description="New name: column of the dataset, as in {prompt: question}."
    )
    chat: bool = Field(default=True, description="Wrap a plain text prompt into one user message.")
    reward: str | list[str] | None = Field(
        default=None,
        description="'arena', 'math', 'tool_calls', a function of trl.rewards, or package.module:object; several "
        "as a list, with reward_weights. Not needed where the environment has get_reward.",
    )
    environment: str | dict[str, str] | None = Field(
        default=None,
        description="'arena', or package.module:Class with TRL's contract (reset, tools, get_reward); or {name: "
        "environment}, chosen by the column `environment`.",
    )
    tools: list[str] = Field(
        default_factory=list, description="Functions that the model may call, as package.module:function."
    )
    rollout_func: str | None = Field(
        default=None, description="TRL's rollout_func, as package.module:function."
    )
    privileged: str | None = Field(
        default=None,
        description="package.module:function (row, rollout) -> str | None: the privileged context of a rollout.",
    )
    credit: str | dict[str, Any] = Field(
        default="gear", description="A method, or {name: METHOD, SETTING: VALUE}."
    )
    lora: dict[str, Any] | None = Field(
        None, description="Arguments of peft.LoraConfig; null trains all weights."
    )
    smoke_rows: list[dict[str, Any]] | None = Field(
        default=None, description="A few raw rows for --smoke, with the dataset's own column names."
    )
    trainer: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Filled from the keys that are not ours: the fields of GEARConfig."""


def load_config(
    path: str | Path | None, overrides: Sequence[str] = (), *, types: Mapping[str, Any] | None = None
) -> RunConfig:
    """The run that a file and ``--key value`` pairs describe; ``InputError`` for a wrong key or value.

    ``types`` are the trainer's settings and their types, by default those of ``GEARConfig``, for which TRL is
    imported. With others, a key that is not among them is kept unchecked: it may be TRL's.

    >>> load_config("missing.yaml")
    Traceback (most recent call last):
    gear_rl.errors.InputError: --config: missing.yaml does not exist
    """
    values = {} if path is None else _read_yaml(Path(path))
    trainer_types = trainer_settings() if types is None else types
    fields = RunConfig.model_fields
    for key, text in parse_overrides(overrides):
        value = parse_word(text)
        hint = fields[key].annotation if key in fields else trainer_types.get(key)
        # `--run_name 007`: a text setting takes the word as it stands, unless it is null or quoted.
        put(
            values,
            key,
            text if hint in (str, str | None) and not isinstance(value, str | bool | None) else value,
        )
    own = {name: value for name, value in values.items() if name in fields and name != "trainer"}
    trainer = {name: value for name, value in values.items() if name not in own}
    if trainer.get("resume_from_checkpoint") is True:
        trainer["resume_from_checkpoint"] = "latest"
    for name, value in trainer.items():
        if name in trainer_types:
            trainer[name] = checked(name, value, trainer_types[name])
        elif name in _MOVED:
            raise InputError(
                f"{name}: a setting of the method now; give it as --credit.{_MOVED[name]}, or in a file as "
                f"{_MOVED[name]}: under credit:, beside name:"
            )
        elif types is None:
            raise InputError(f"{name}: no such setting; {did_you_mean(name, [*fields, *trainer_types])}")
    for name in ("model", "dataset"):
        if own.get(name) is None:
            raise _missing(name)
    config = RunConfig(**{name: checked(name, value, fields[name].annotation) for name, value in own.items()})
    config.trainer = trainer
    if config.environment is None and config.dataset.partition("/")[0] == "arena":
        config.environment = "arena" if get_task(dataset_task(config.dataset)[0]).agent else None
    if config.reward is None and config.environment is None:
        raise _missing("reward")
    return config


def _missing(name: str) -> InputError:
    hint = RunConfig.model_fields[name].description
    return InputError(f"{name}: missing; give it in the file or as --{name} VALUE ({hint})")


def parse_overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    """``--key value`` and ``--key=value`` pairs, with dashes in a key as underscores.

    >>> parse_overrides(["--credit.alpha", "0.5", "--use-vllm=true"])
    [('credit.alpha', '0.5'), ('use_vllm', 'true')]
    """
    pairs: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InputError(f"{word!r}: expected --key value; a value with spaces needs quotes")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
                raise InputError(f"--{key}: its value is missing; write --{key} VALUE")
            text = rest.pop(0)
        pairs.append((key.replace("-", "_"), text))
    return pairs


def trainer_settings() -> dict[str, Any]:
    """Name and type of every field of GEARConfig."""
    try:
        from gear_rl.engines.trl.config import GEARConfig
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed; run: pip install 'gear-rl[trl]'") from None
    except ImportError as error:
        raise InputError(str(error)) from None

    hints = typing.get_type_hints(GEARConfig)
    return {f.name: hints.get(f.name, Any) for f in dataclasses.fields(GEARConfig) if f.init}


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value as one of the type ``hint``; ``InputError`` for another, and for text or true as a number.

    >>> checked("learning_rate", 1, float)
    1.0
    >>> checked("learning_rate", True, float)
    Traceback (most recent call last):
    gear_rl.errors.InputError: learning_rate: True is not right: it is no number
    """
    try:
        found: Any = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        why += "; write it in quotes" if "valid string" in why and isinstance(value, int | float) else ""
        raise InputError(f"{name}: {value!r:.200} is not right: {why}") from None
    except Exception:
        return value  # a type that pydantic cannot build a check for; the trainer checks it
    many = isinstance(value, list | tuple) and isinstance(found, list | tuple)
    for given, made in zip(value, found, strict=False) if many else [(value, found)]:
        if type(made) in (int, float) and type(given) not in (int, float):  # pydantic takes true and '010'
            raise InputError(f"{name}: {given!r:.200} is not right: it is no number")
    return found


def build_method(credit: str | Mapping[str, Any], where: str = "credit") -> CreditAssigner:
    """The method that a name, ``package.module:object`` or ``{name: ..., setting: ...}`` describes.

    >>> build_method({"name": "gear", "alpha": 0.25}).alpha
    0.25
    """
    from gear_rl.methods import METHODS

    settings: dict[str, Any] = {"name": credit} if isinstance(credit, str) else dict(credit)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"{where}.name: missing; choose from {', '.join(METHODS)}")
    if ":" in name:
        cls: Any = import_object(name, where)
        if not dataclasses.is_dataclass(cls) or not isinstance(cls, type):
            if settings:
                raise InputError(f"{where}: {name} is no dataclass, so it takes no settings: {settings}")
            return _as_method(cls, name, where)
    elif name in METHODS:
        cls = METHODS[name]
    else:
        raise InputError(f"{where}: no method {name!r}; {did_you_mean(name, METHODS)}")
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    for key, value in settings.items():
        if key not in known:
            raise InputError(
                f"{where}.{key}: method {name!r} has no such setting; {did_you_mean(key, known)}"
            )
        if _is_method_type(hints[key]):
            settings[key] = _inner_method(value, cls, key, hints[key], f"{where}.{key}")
        else:
            settings[key] = checked(f"{where}.{key}", value, hints[key])
    try:
        return _as_method(cls(**settings), name, where)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}.{error}") from None


def needs_of(method: Any) -> str:
    """What is computed for a method, as Markdown.

    >>> from gear_rl.methods import METHODS
    >>> needs_of(METHODS["uniform"]()), needs_of(METHODS["rlsd"]())
    ('nothing', '`student_logprob`, `teacher_logprob`')
    """
    signals = ", ".join(f"`{signal}`" for signal in names_of(method.needs))
    teacher = "a teacher in the loss" if distillation_of(method) is not None else ""
    return "; ".join(part for part in (signals, teacher) if part) or "nothing"


def settings_of(cls: Any) -> list[dict[str, Any]]:
    """Every setting of a method: name, default, choices or type, and the text under the field.

    >>> from gear_rl.methods import Opsd
    >>> {row["name"]: row["default"] for row in settings_of(Opsd)}
    {'strength': 1.0, 'beta': 0.5, 'temperature': 1.1, 'top_k': None}
    """
    hints, texts = typing.get_type_hints(cls), _field_texts(cls)
    rows: list[dict[str, Any]] = []
    for field in dataclasses.fields(cls):
        hint: Any = hints[field.name]
        choices = list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else None
        kind = "choice" if choices else hint.__name__ if isinstance(hint, type) else str(hint)
        default = cast(CreditAssigner, field.default).name if _is_method_type(hint) else field.default
        row = {
            "name": field.name,
            "default": default,
            "type": kind.replace("typing.", ""),
            "choices": choices,
        }
        rows.append(row | {"help": texts.get(field.name)})
    return rows


def _field_texts(cls: Any) -> dict[str, str]:
    """The string under each field of a class: Python keeps it in the source only."""
    body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
    texts: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            texts[cast(ast.Name, field.target).id] = " ".join(str(text.value.value).replace("``", "").split())
    return texts


def _is_method_type(hint: Any) -> bool:
    from gear_rl.methods import METHODS

    return hint is CreditAssigner or hint in METHODS.values()


def _inner_method(value: Any, cls: Any, key: str, hint: Any, where: str) -> CreditAssigner:
    """The method that another one holds; settings without a name are those of the one it holds by default."""
    if isinstance(value, Mapping):
        default = next(field.default for field in dataclasses.fields(cls) if field.name == key)
        value = {"name": getattr(default, "name", None)} | dict(cast(Mapping[str, Any], value))
    elif not isinstance(value, str):
        raise InputError(f"{where}: {value!r:.200} is no method; give a name, or a name and its settings")
    method = build_method(cast("str | Mapping[str, Any]", value), where)
    if isinstance(hint, type) and hint is not CreditAssigner and not isinstance(method, hint):
        needed = getattr(hint, "name", hint.__name__)
        raise InputError(f"{where}: {method.name!r} is not of the kind that is needed; give {needed}")
    return method


def _as_method(method: Any, name: str, where: str) -> CreditAssigner:
    if isinstance(method, type) or not isinstance(method, CreditAssigner):
        raise InputError(
            f"{where}: {name} is no method: it needs `name`, `source`, `needs` and a call (docs: README)"
        )
    return method


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"--config: {path} {'is no file' if path.exists() else 'does not exist'}")
    try:
        values: Any = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{place}: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in cast(dict[Any, Any], values)):
        raise InputError(f"{path}: expected 'key: value' lines")
    return cast(dict[str, Any], values)


class _Loader(yaml.SafeLoader):
    """Plain data of YAML 1.2, where ``no``, ``1:30``, ``010`` and dates are text; no key stands twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in cast(Any, yaml.SafeLoader).yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_DIGITS = r"(?:0|[1-9][0-9]*)"
for _kind, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", rf"[-+]?{_DIGITS}", "-+0123456789"),
    (
        "float",
        rf"[-+]?(?:{_DIGITS}\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?{_DIGITS}[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)",
        "-+.0123456789",
    ),
):
    cast(Any, _Loader).add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def parse_word(text: str) -> Any:
    """A value of the command line: YAML if it is a number, a boolean, null, quoted or in brackets, else the text.

    >>> parse_word("0.5"), parse_word("[a, 1]"), parse_word("Q: {prompt}"), parse_word("# 1"), parse_word("1:30")
    (0.5, ['a', 1], 'Q: {prompt}', '# 1', '1:30')
    """
    try:
        value: Any = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if text.lstrip().startswith(("{", "[", "'", '"')):
        return value
    keeps = isinstance(value, bool | int | float) or text in ("null", "Null", "NULL", "~")
    return value if keeps else text


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a bare name on the way (``credit: gear``) becomes ``{name: gear}``.

    >>> values = {"credit": "shuffled"}
    >>> put(values, "credit.of.alpha", 3)
    >>> values
    {'credit': {'name': 'shuffled', 'of': {'alpha': 3}}}
    """
    first, *rest = key.split(".")
    if not rest:
        values[first] = value
        return
    inner: Any = values.get(first)
    if inner is None:
        # `--credit.alpha 0.5` alone speaks of the default method.
        default: Any = RunConfig.model_fields[first].default if first in RunConfig.model_fields else None
        inner = default if isinstance(default, str) else {}
    if isinstance(inner, str):
        inner = {"name": inner}
    if not isinstance(inner, dict):
        raise InputError(f"--{key}: {first} is {inner!r} and has no settings of its own")
    values[first] = dict(cast(dict[str, Any], inner))
    put(values[first], ".".join(rest), value)
