"""The configuration of a run: a YAML file and ``--key value`` overrides, checked before a model is loaded.

Our own keys are the fields of ``RunConfig``. Every other key is a field of ``GEARConfig``, which extends the
settings of TRL and transformers. The method's settings are under ``credit``.
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
from gear_rl.methods import COMBINED, METHODS, settings_in
from gear_rl.runs.trl_names import NAMES, with_our_names
from gear_rl.traits import method_settings
from gear_rl.types import CreditAssigner

_SCALARS = {
    "null": "~|null|Null|NULL|",
    "merge": "<<",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*|(?=[eE]))|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
}
"""The plain scalars of YAML 1.2 that are not text; ``no``, ``1:30``, ``010`` and dates are text."""


class RunConfig(BaseModel):
    """The settings that ``gear train`` has besides those of TRL.

    >>> RunConfig(model="arena", dataset="arena/chain/easy").credit
    'gear'
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)

    model: str
    """'arena', a hub name, a local folder, or smollm2 (gear model smollm2)."""
    dataset: str
    """'arena', 'arena/TIER' or 'arena/errands/TIER'; a .jsonl, .json, .csv, .tsv or .parquet file; a folder;
    'reasoning-gym/NAME'; 'word-problems'; 'sums'; or a hub name."""
    dataset_config: str | None = None
    """Configuration of a hub dataset."""
    dataset_split: str = "train"
    """Split of a hub dataset."""
    held_out: int | float | None = None
    """Rows (or their share) kept for evaluation where there is no eval_dataset."""
    eval_dataset: str | dict[str, str] | None = None
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
    values = {} if path is None else with_our_names(_read_yaml(Path(path)))
    trainer_types = trainer_settings() if types is None else types
    fields = RunConfig.model_fields
    hints = {key: field.annotation for key, field in fields.items()} | dict(trainer_types)
    hints |= {flag: hints.get(ours, list[str]) for flag, ours in NAMES.items()} | {"use_peft": bool}
    pairs = [(NAMES.get(key, key), text) for key, text in parse_overrides(overrides, hints)]
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):  # `credit` before `credit.alpha`
        value = parse_word(text)
        hint = fields[key].annotation if key in fields else trainer_types.get(key)
        # `--run_name 007`: a text setting takes the word as it stands, unless it is null or quoted.
        is_text = hint in (str, str | None) and not isinstance(value, str | bool | None)
        put(values, key, text if is_text else value)
    values = with_our_names(values)  # --use_peft
    if values.get("resume_from_checkpoint") is True:
        values["resume_from_checkpoint"] = "latest"
    own, trainer = dict[str, Any](), dict[str, Any]()
    for name, value in values.items():
        if "." in name:
            first, nested = name.partition(".")[0], dict(values)
            put(nested, name, value)
            shown = yaml.safe_dump({first: nested[first]}, default_flow_style=True, sort_keys=False)
            raise InputError(f"{name}: a file nests its settings; write {shown.strip()[1:-1]}")
        if name in fields and name != "trainer":
            own[name] = checked(name, value, fields[name].annotation)
        elif name in trainer_types:
            trainer[name] = checked(name, value, trainer_types[name])
        elif types is None:
            raise InputError(
                f"{name}: no such setting; {did_you_mean(name, [*fields, *trainer_types, *NAMES, 'use_peft'])}"
            )
        else:
            trainer[name] = value
    dataset = str(own.get("dataset"))
    if own.get("environment") is None and dataset.partition("/")[0] == "arena":
        own["environment"] = "arena" if get_task(dataset_task(dataset)[0]).agent else None
    for name in ("model", "dataset", *(() if own.get("environment") else ("reward",))):
        if own.get(name) is None:
            hint = " ".join(str(fields[name].description).split())
            raise InputError(f"{name}: missing; give it in the file or as --{name} VALUE ({hint})")
    return RunConfig(**own, trainer=trainer)


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

    hints = typing.get_type_hints(GEARConfig)
    # Floats for TRL, where less than 1 is a share of the run; a number of steps stays one.
    hints |= {name: int | hints[name] for name in ("logging_steps", "save_steps", "eval_steps")}
    return {f.name: hints.get(f.name, Any) for f in dataclasses.fields(GEARConfig) if f.init}


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value as the type ``hint``; ``InputError`` for another type, and for text or true as a number.

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


def credit_settings(credit: Any, where: str = "credit") -> Mapping[str, Any]:
    """The name of a method and its settings, of a text or a mapping.

    >>> credit_settings({"name": "gear:tokens", "alpha": 2}), credit_settings("mine.methods:Mine")
    ({'name': 'gear', 'onset_rule': 'never', 'alpha': 2}, {'name': 'mine.methods:Mine'})
    """
    if not isinstance(credit, str | Mapping):
        why = "is no method; give a name, or {name: METHOD, SETTING: VALUE}"
        raise InputError(f"{where}: {credit!r:.200} {why}")
    settings: Mapping[str, Any] = {"name": credit} if isinstance(credit, str) else cast(Any, credit)
    name = settings.get("name")
    if not isinstance(name, str):
        return settings
    if is_object(name):
        return settings
    try:
        return {**settings_in(name), **{key: value for key, value in settings.items() if key != "name"}}
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def is_object(name: str) -> bool:
    """Whether a method's name is ``module:object``, not one of the catalogue with a preset or settings.

    >>> is_object("mine:Mine"), is_object("gear:tokens"), is_object("gear"), is_object("gaer:alpha=2")
    (True, False, False, False)
    """
    known = name.partition(":")[0] in METHODS or COMBINED.search(name)
    return ":" in name and "=" not in name and not known


def build_method(credit: Any, where: str = "credit") -> CreditAssigner:
    """The method that a name, ``name:setting=value``, ``package.module:object`` or ``{name: ..., setting: ...}``
    describes.

    >>> build_method({"name": "gear", "alpha": 0.25}).alpha, build_method("gear:alpha=0.5").alpha
    (0.25, 0.5)
    """
    settings = credit_settings(credit, where)
    name = settings.get("name")
    if not isinstance(name, str):
        raise InputError(f"{where}.name: missing; choose from {', '.join(METHODS)}")
    if ":" not in name and name not in METHODS:
        raise InputError(f"{where}: no method {name!r}; {did_you_mean(name, METHODS)}")
    try:
        method: Any = import_object(name, where) if ":" in name else METHODS[name]
    except InputError as error:
        near = did_you_mean(name.partition(":")[0], METHODS)
        raise InputError(f"{error}; {near}" if near.endswith("?") else str(error)) from error
    if dataclasses.is_dataclass(method) and isinstance(method, type):
        method = _built(method, settings, where)
    elif len(settings) > 1:
        raise InputError(f"{where}: {name} is no dataclass, so it takes no settings: {dict(settings)}")
    if isinstance(method, type) or not isinstance(method, CreditAssigner):
        raise InputError(
            f"{where}: {name} is no method: it needs `name`, `source`, `needs` and a call (docs: README)"
        )
    return method


def _built(cls: Any, settings: Mapping[str, Any], where: str) -> Any:
    """The object of a dataclass with these settings, each checked; a method inside it is built too."""
    hints, fields = typing.get_type_hints(cls), {field.name: field for field in dataclasses.fields(cls)}
    made: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "name":
            continue
        at = f"{where}.{key}"
        if key not in fields:
            why = f"method {settings['name']!r} has no such setting; {did_you_mean(key, fields)}"
            raise InputError(f"{at}: {why}")
        if not _is_method_type(hints[key]):
            made[key] = checked(at, value, hints[key])
            continue
        default = fields[key].default
        if isinstance(value, Mapping) and "name" not in value and isinstance(default, CreditAssigner):
            value = {**method_settings(default), **cast(Mapping[str, Any], value)}
        made[key] = build_method(value, at)
    try:
        return cls(**made)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}.{error}") from None


def settings_of(cls: Any) -> list[dict[str, Any]]:
    """Every setting of a method: name, default, choices or type, and the text under the field.

    >>> from gear_rl.methods import Opsd
    >>> {row["name"]: row["default"] for row in settings_of(Opsd)}
    {'strength': 1.0, 'beta': 0.5, 'temperature': 1.1, 'top_k': None, 'sampled': False}
    """
    hints, texts, rows = typing.get_type_hints(cls), dict[str, str](), list[dict[str, Any]]()
    bases: list[Any] = [base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)]
    for base in bases:
        # Python keeps the text under a field in the source only.
        [parsed] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for pair in itertools.pairwise(cast(ast.ClassDef, parsed).body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.replace("``", "").split())
                case _:
                    pass
    for field in dataclasses.fields(cls):
        hint: Any = hints[field.name]
        choices = list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else None
        kind = "choice" if choices else hint.__name__ if isinstance(hint, type) else str(hint)
        default = cast(Any, field.default).name if _is_method_type(hint) else field.default
        row = {"name": field.name, "default": default, "type": kind.replace("typing.", "")}
        rows.append(row | {"choices": choices, "help": texts.get(field.name)})
    return rows


def _is_method_type(hint: Any) -> bool:
    return hint is CreditAssigner or hint in METHODS.values()


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
    """Plain data of YAML 1.2, in which no key stands twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        None: [(f"tag:yaml.org,2002:{kind}", re.compile(f"({words})$")) for kind, words in _SCALARS.items()]
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


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
    """Set a dotted key; a name along the path (``credit: gear``) becomes ``{name: gear}``.

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
        # `--credit.alpha 0.5` alone sets the default method.
        default: Any = RunConfig.model_fields[first].default if first in RunConfig.model_fields else None
        inner = default if isinstance(default, str) else {}
    if isinstance(inner, str):
        inner = {"name": inner}
    if not isinstance(inner, dict):
        raise InputError(f"--{key}: {first} is {inner!r} and has no settings of its own")
    values[first] = dict(cast(dict[str, Any], inner))
    put(values[first], ".".join(rest), value)
