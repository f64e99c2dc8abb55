"""Values as users write them: in a YAML file, after a flag, and in the text of a method."""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import re
from pathlib import Path
from typing import Any, cast

import yaml

from gear_rl.errors import InputError

_SCALARS = {
    "null": "~|null|Null|NULL|",
    "merge": "<<",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*|(?=[eE]))|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
}
"""The plain scalars of YAML 1.2 that are not text; ``no``, ``1:30``, ``010`` and dates are text."""


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


class _Dumper(yaml.SafeDumper):
    """Quotes text that this loader or another one would not read as text."""

    yaml_implicit_resolvers = yaml.SafeDumper.yaml_implicit_resolvers | _Loader.yaml_implicit_resolvers


def yaml_text(values: Any, **options: Any) -> str:
    """The values as YAML, in their order, which is read back as it was written.

    >>> print(yaml_text({"run_name": "7e12345", "learning_rate": 1e-05}), end="")
    run_name: '7e12345'
    learning_rate: 1.0e-05
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file; ``InputError`` names the file and the line."""
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


def parse_word(text: str) -> Any:
    """A value of one word: YAML if it is a number, a boolean, null, quoted or in brackets, else the text.

    As in Python, None is null too, and round brackets hold a list.

    >>> parse_word("0.5"), parse_word("[a, 1]"), parse_word("Q: {prompt}"), parse_word("# 1"), parse_word("1:30")
    (0.5, ['a', 1], 'Q: {prompt}', '# 1', '1:30')
    >>> parse_word("(.5, 2)"), parse_word("(see below")
    ([0.5, 2], '(see below')
    """
    written = f"[{text[1:-1]}]" if text.startswith("(") and text.endswith(")") else text
    try:
        value: Any = yaml.load(written, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if text in ("null", "Null", "NULL", "~", "None"):
        return None
    return (
        value
        if isinstance(value, bool | int | float) or written.lstrip()[:1] in ("{", "[", "'", '"')
        else text
    )
