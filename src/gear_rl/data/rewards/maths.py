"""The reward for a mathematical answer, which a child process compares with the gold answer."""

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gear_rl.answer_text import said_answers
from gear_rl.data.rewards.children import children
from gear_rl.data.rewards.judges import Judge, Maths, judge_of
from gear_rl.data.rewards.text import Completion, final_texts, report_failures, value_at
from gear_rl.errors import InputError

GOLD_COLUMNS = ("solution", "answer", "ground_truth", "reward_model.ground_truth")
"""Where a row may hold the gold answer, in the order in which they are tried."""
_TOP_COLUMNS = {path.partition(".")[0] for path in GOLD_COLUMNS}
LIMIT_SECONDS = 5.0
"""Processor time that one answer may take."""
_WORDS = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")
_WORKING = re.compile(r"[\n;=]")
_GOLD_KEYS = ("ground_truth", "answer", "value")
"""Where an object holds its answer, beside other entries."""


def math_reward(
    completions: Sequence[Completion],
    *,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    r"""1.0 if the completion's answer is equal to the gold answer, else 0.0; None for an unreadable gold answer.

    Both are read alike (``answer_text.said_answers``): the last ``\boxed``, else ``<answer>``, else ``####``,
    else what follows "answer is", else the whole text, its last formula or its last number. A completion's answer
    is in its last message, behind the reasoning; one that takes more than five seconds of processor time gives 0.
    The metrics ``math_reward/...`` and one warning count failures.

    >>> math_reward(["so 5 + 5 = 10", "$x = 12$"], answer=["10", "#### 10"])
    [1.0, 0.0]
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("math_reward needs math-verify; run: pip install 'gear-rl[math]'")
    golds = gold_answers(columns, len(completions))
    texts = final_texts(completions, columns)
    pool = children(f"{__name__}:handler", limit_s=LIMIT_SECONDS, most=4)
    # Gold answers alone first: one that hangs is unreadable, and no completion gets 0 for it.
    distinct = sorted({gold for gold in golds if gold})
    replies = pool.ask([{"gold": gold} for gold in distinct])
    readable = {gold for gold, reply in zip(distinct, replies, strict=True) if reply.get("gold")}
    pairs = [
        (gold, text) for gold, text in zip(golds, texts, strict=True) if gold in readable and text.strip()
    ]
    asked = list(dict.fromkeys(pairs))  # equal completions get equal rewards
    replies = pool.ask([{"gold": gold, "text": text} for gold, text in asked])
    checks: dict[tuple[str | None, str], dict[str, Any]] = dict(zip(asked, replies, strict=True))
    found = [checks.get(pair, {}) for pair in zip(golds, texts, strict=True)]

    counts = Counter[str](timeouts=0, errors=0, no_answer=0, unreadable_gold=0)
    rewards: list[float | None] = []
    for gold, reply in zip(golds, found, strict=True):
        if gold not in readable:
            counts["unreadable_gold"] += 1
            rewards.append(None)
            continue
        failed = reply.get("failed")
        if failed is not None:
            counts["timeouts" if failed == "timeout" else "errors"] += 1
        elif reply.get("found") is None:
            counts["no_answer"] += 1
        rewards.append(float(reply.get("right", False)))
    report_failures("math_reward", counts, len(golds), log_metric, quiet=("no_answer",))
    if log_extra is not None:
        log_extra("math_answer", [reply.get("found") for reply in found])
    return rewards


def check_golds(dataset: Any) -> None:
    """``InputError`` for a dataset without gold answers, or with one that is several values."""
    columns = {name: dataset[name][:] for name in dataset.column_names if name in _TOP_COLUMNS}
    golds = _golds(columns, len(dataset)) if columns else []
    readable = any(golds)
    for i in (i for i, texts in enumerate(golds) if not texts):
        row = {name: values[i] for name, values in columns.items()}
        for path in GOLD_COLUMNS:
            value = value_at(row, path)
            if value is None or str(value).strip() in ("", "[]", "{}"):
                continue
            if isinstance(value, str | list | Mapping):
                raise InputError(
                    f"reward: math takes one gold answer, and {path!r} of row {i + 1} is {str(value)[:60]}; "
                    f"name the one that counts with --columns.ground_truth {path}.0, or write a set as text"
                )
            if not readable:
                raise InputError(
                    f"reward: math takes text or a number, and {path!r} of row {i + 1} is {value!r:.60}; "
                    "write it as text"
                )
    if not readable:
        raise InputError(
            f"reward: math finds no gold answer in {', '.join(GOLD_COLUMNS)}; name its column with "
            "--columns.answer COLUMN"
        )


def gold_answers(columns: Mapping[str, Any], num: int) -> list[str | None]:
    """The text with the gold answer of each row; None where no column of ``GOLD_COLUMNS`` holds one.

    A text without words, which is the answer itself, goes before one that marks its answer, and that before
    prose; then one without a line break, ``;`` or ``=``; then the order of the columns counts.

    >>> solutions, answers = ["... which leaves 100.", None], ["6", ["7"]]
    >>> gold_answers({"solution": solutions, "answer": answers}, 2)
    ['6', '7']
    """
    return [min(texts, key=_distance, default=None) for texts in _golds(columns, num)]


def _golds(columns: Mapping[str, Any], num: int) -> list[list[str]]:
    """The texts of each row's columns that may hold its gold answer."""
    present = _TOP_COLUMNS & columns.keys()
    if not present:
        raise ValueError(
            f"math_reward: the dataset has none of the columns {', '.join(GOLD_COLUMNS)}; name yours with "
            "--columns.answer COLUMN"
        )
    rows = [{name: columns[name][i] for name in present} for i in range(num)]
    return [[text for path in GOLD_COLUMNS if (text := _gold(value_at(row, path)))] for row in rows]


def _gold(value: Any) -> str | None:
    """The text of a value, out of lists, objects and JSON text that hold just one."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):  # LaTeX, a set or an interval
            return value.strip()
        # [1, 2] is an interval; ["1", "2"] are two answers
        return (
            value.strip()
            if isinstance(inner, list) and not isinstance((inner or [""])[0], str)
            else _gold(inner)
        )
    if isinstance(value, Mapping):
        named = next((value[name] for name in _GOLD_KEYS if value.get(name) is not None), None)
        value = [entry for entry in value.values() if entry is not None] if named is None else [named]
    if isinstance(value, list):
        return _gold(value[0]) if len(value) == 1 else None
    return (
        str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    )


def _distance(text: str) -> tuple[int, bool]:
    """How far a text is from the answer itself: its words, or one where it marks the answer; then its working,
    a line break, ``;`` or ``=``."""
    if said_answers(text)[0]:
        return 1, False
    return len(_WORDS.findall(text)), _WORKING.search(text) is not None


def handler() -> Callable[[Any], dict[str, Any]]:
    """In a child: answers ``{"gold"}`` with whether it can be read, ``{"gold", "text"}`` with the comparison."""
    maths = Maths()

    @lru_cache(maxsize=512)  # a group of completions shares its gold answer
    def judge(gold: str) -> Judge | None:
        return judge_of(gold, maths)

    def handle(request: Any) -> dict[str, Any]:
        read = judge(request["gold"])
        if read is None or "text" not in request:
            return {"gold": read is not None}
        answer, right = read(request["text"]) or (None, False)
        return {"gold": True, "found": answer and answer[:200], "right": right}

    return handle
