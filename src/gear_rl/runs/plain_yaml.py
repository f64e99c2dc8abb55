"""YAML that means what is written: a word stays a word, a date a text, and nothing stands twice."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
import re
from typing import Any, cast

import yaml

from gear_rl.strict_json import check_characters

_RESOLVED = (":bool", ":int", ":float", ":timestamp", ":value")


class _Loader(yaml.SafeLoader):
    """Plain data of YAML 1.2, which has no ``no`` for false, no ``1:30`` for 90 and no ``010`` for 8."""

    # Copied, so that nobody else's YAML changes; a resolver is a tag and the pattern that calls for it.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(_RESOLVED)]
        for first, resolvers in cast(Any, yaml.SafeLoader).yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """The mapping; an error where a key stands twice, of which YAML's own reader keeps the last."""
        seen = set[str]()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _fault(f"the key {key.value[:80]!r} stands twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _whole(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    if len(text) > 40:
        raise _fault(f"{text[:24]}... is too large for a whole number; put it in quotes", node)
    return int(text, 16 if text.lstrip("+-").startswith("0x") else 10)


def _fraction(loader: Any, node: Any) -> float:
    text = loader.construct_scalar(node)
    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if math.isinf(number) and "inf" not in text.lower():
        raise _fault(f"{text[:24]} is beyond what a number holds; put it in quotes", node)
    return number


def _fault(text: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9]\d*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9]\d*)\.\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:0|[1-9]\d*)[eE][-+]?\d+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    cast(Any, _Loader).add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$", re.ASCII), list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _fraction)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, plain data only. ``ValueError`` in a few words, with the line where it is known.

    Booleans are ``true`` and ``false`` alone, whole numbers decimal or ``0x...``, dates text.

    >>> parse_yaml("{save: no, at: 1:30, code: 010, day: 2026-01-02, rate: 1e-4}")
    {'save': 'no', 'at': '1:30', 'code': '010', 'day': '2026-01-02', 'rate': 0.0001}
    >>> parse_yaml("seed: 1\\nseed: 2")
    Traceback (most recent call last):
    ValueError: line 2: the key 'seed' stands twice
    """
    try:
        value = yaml.load(text, _Loader)  # a SafeLoader: plain data only
        check_characters(value)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or error
        ours = isinstance(error, yaml.constructor.ConstructorError)
        raise ValueError(f"{line}{problem}" if ours else f"{line}not YAML ({problem})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def parse_word(text: str) -> Any:
    """A value of the command line: as in YAML where it is a number, true, false, null, quoted, or in brackets.

    Anything else is the text itself, with a colon, a dash or a ``#`` in it too.

    >>> parse_word("0.5"), parse_word("[a, 1]"), parse_word("Q: {prompt}"), parse_word("# 1"), parse_word("")
    (0.5, ['a', 1], 'Q: {prompt}', '# 1', '')
    """
    bracketed = text.lstrip().startswith(("{", "["))
    try:
        value = parse_yaml(text)
    except ValueError as error:
        if bracketed and "stands twice" in str(error):
            raise
        return text
    if isinstance(value, dict | list):
        return value if bracketed else text
    # What YAML shortens or reads as nothing was meant as it stands; in quotes it is meant without them.
    quoted = text.strip()[:1] in ("'", '"')
    return (
        text if (isinstance(value, str) and not quoted) or (value is None and text not in _NULLS) else value
    )


_NULLS = ("null", "Null", "NULL", "~")
