"""The reward for a mathematical answer: math-verify compares it with the gold answer, in a child process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gear_rl.data.rewards.children import children
from gear_rl.data.rewards.text import Completion, dotted, final_texts, report_failures

GOLD_COLUMNS = ("solution", "answer", "ground_truth", "reward_model.ground_truth")
"""Where a row may hold the gold answer, in the order in which they are tried."""
LIMIT_SECONDS = 5.0
"""Time limit of one answer."""
_MARKUP = re.compile(r"\\boxed|\$|\\\(|\\\[")
_PROSE = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}")


def math_reward(
    completions: Sequence[Completion],
    *,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    r"""1.0 if math-verify finds the completion's answer equal to the gold answer, else 0.0.

    The gold answer is a number, LaTeX, a solution with its ``\boxed``, or GSM8K's ``... #### 42``; an unreadable
    one gives None. The completion's answer is in its last message, after the reasoning: ``\boxed`` first, then
    formulas, then the last number. An answer that takes longer than five seconds gives 0. The metrics
    ``math_reward/...`` and one warning count failures.

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
    sent = [i for i, gold in enumerate(golds) if gold in readable and texts[i].strip()]
    checks = dict(zip(sent, pool.ask([{"gold": golds[i], "text": texts[i]} for i in sent]), strict=True))

    counts = Counter[str](timeouts=0, errors=0, no_answer=0, unreadable_gold=0)
    rewards: list[float | None] = []
    for i, gold in enumerate(golds):
        reply = checks.get(i, {})
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
        log_extra("math_answer", [checks.get(i, {}).get("found") for i in range(len(golds))])
    return rewards


def gold_answers(columns: Mapping[str, Any], num: int) -> list[str | None]:
    """The gold answer of each row as text; None where no column of ``GOLD_COLUMNS`` holds one.

    >>> gold_answers({"answer": ["2 + 2 = 4 #### 1,004", None], "solution": [None, 7]}, 2)
    ['1004', '7']
    """
    present = {path.partition(".")[0] for path in GOLD_COLUMNS} & columns.keys()
    if not present:
        raise ValueError(
            f"math_reward: the dataset has none of the columns {', '.join(GOLD_COLUMNS)}; name yours with "
            "--columns.answer COLUMN"
        )
    rows = [{name: columns[name][i] for name in present} for i in range(num)]
    return [next(filter(None, (_gold(dotted(row, path)) for path in GOLD_COLUMNS)), None) for row in rows]


def _gold(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    _, gsm8k, final = text.rpartition("####")
    return final.strip().replace(",", "") if gsm8k else text


def handler() -> Callable[[Any], dict[str, Any]]:
    """In a child: answers ``{"gold"}`` with whether it can be read, ``{"gold", "text"}`` with the comparison."""
    from math_verify import parse, verify
    from sympy import Integer

    @lru_cache(maxsize=512)  # a group of completions shares its gold answer
    def gold_of(text: str) -> list[Any]:
        values = parsed(text)
        # Parsing does not compute: a tower of powers fails here, before a completion pays for it.
        verify(values, Integer(0), timeout_seconds=None)
        return values

    def parsed(text: str) -> list[Any]:
        # Without markup math-verify finds only plain numbers, so bare LaTeX is put into a box. Not prose: its
        # words would be products of letters.
        if not _MARKUP.search(text) and not _PROSE.search(text):
            boxed = parse(f"\\boxed{{{text}}}", parsing_timeout=0)
            if boxed:
                return boxed
        return parse(text, parsing_timeout=0)

    def handle(request: Any) -> dict[str, Any]:
        gold = gold_of(request["gold"])
        if not gold or "text" not in request:
            return {"gold": bool(gold)}
        values = parse(request["text"], parsing_timeout=0)
        right = bool(values) and verify(gold, values, timeout_seconds=None, raise_on_error=True)
        return {"gold": True, "found": str(values[-1])[:200] if values else None, "right": bool(right)}

    return handle
