"""The reward for a mathematical answer: math-verify compares it with the gold answer, in a child process."""

import importlib.util
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gear_rl.data.rewards.children import children
from gear_rl.data.rewards.text import Completion, dotted, final_text

log = logging.getLogger(__name__)

GOLD_COLUMNS = ("solution", "answer", "ground_truth", "reward_model.ground_truth")
"""Where a row may hold the gold answer, in the order in which they are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathReward:
    r"""1.0 if math-verify finds the completion's answer equal to the gold answer, else 0.0.

    The gold answer is the first of the columns ``solution``, ``answer``, ``ground_truth`` and
    ``reward_model.ground_truth`` that the row fills: a number, LaTeX, a worked solution with its ``\boxed``, or
    GSM8K's ``... #### 42``. One that cannot be read gives None, "not applicable". The completion's answer is
    sought in its last message, after the reasoning: ``\boxed`` first, then formulas, then the *last* number or
    the first of a bare list of numbers. Two boxes with different values are a set, so hedging earns nothing.

    An answer that takes longer than ``limit_s`` has its process killed and counts 0. Nothing of this is silent:
    each call logs the counts as metrics ``math_reward/...`` and, if any is above zero, as one warning.

    >>> math_reward(["so 5 + 5 = 10", "$x = 12$"], answer=["10", "#### 10"])
    [1.0, 0.0]
    """

    limit_s: float = 5.0
    """Seconds that one answer may take."""
    processes: int = 4
    """The most child processes; they start when needed."""
    __name__: ClassVar[str] = "math_reward"

    def __post_init__(self) -> None:
        if self.limit_s <= 0 or self.processes < 1:
            raise ValueError(
                f"MathReward: limit_s and processes must be positive: {self.limit_s}, {self.processes}"
            )

    def __call__(
        self,
        completions: Sequence[Completion],
        *,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("math_reward needs math-verify; run: pip install 'gear-rl[math]'")
        golds = gold_answers(columns, len(completions))
        texts = [final_text(completion) for completion in completions]
        pool = children("math", limit_s=self.limit_s, most=self.processes)
        # Golds by themselves first: a gold that hangs is not the completion's fault.
        distinct = sorted({gold for gold in golds if gold})
        replies = pool.ask([{"gold": gold} for gold in distinct])
        readable = {gold for gold, reply in zip(distinct, replies, strict=True) if reply.get("gold")}
        sent = [i for i, gold in enumerate(golds) if gold in readable and texts[i].strip()]
        checks = dict(zip(sent, pool.ask([{"gold": golds[i], "text": texts[i]} for i in sent]), strict=True))

        # A gold answer that hangs or breaks its process is as unreadable as one without a number.
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
        if log_metric is not None:
            for name, count in counts.items():
                log_metric(f"math_reward/{name}", float(count))
        if log_extra is not None:
            log_extra("math_answer", [checks.get(i, {}).get("found") for i in range(len(golds))])
        # A completion without an answer is the policy's affair; the rest is the user's.
        bad = {name: count for name, count in counts.items() if count and name != "no_answer"}
        if bad:
            log.warning(
                "math_reward: of %d answers %s",
                len(golds),
                ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in bad.items()),
            )
        return rewards


def gold_answers(columns: Mapping[str, Any], num: int) -> list[str | None]:
    """The gold answer of each row as text; None where no column of ``GOLD_COLUMNS`` holds one.

    Raises ``ValueError`` if the dataset has none of these columns.

    >>> gold_answers({"answer": ["2 + 2 = 4 #### 1,004", None], "solution": [None, 7]}, 2)
    ['1004', '7']
    """
    rows = [{name: columns[name][i] for name in _TOP if name in columns} for i in range(num)]
    if rows and not rows[0]:
        raise ValueError(
            f"math_reward: the dataset has none of the columns {', '.join(GOLD_COLUMNS)}; name yours with "
            "--columns.answer COLUMN"
        )
    return [next(filter(None, (_gold(dotted(row, path)) for path in GOLD_COLUMNS)), None) for row in rows]


_TOP = tuple(dict.fromkeys(path.partition(".")[0] for path in GOLD_COLUMNS))


def _gold(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    _, gsm8k, final = text.rpartition("####")
    return final.strip().replace(",", "") if gsm8k else text


math_reward = MathReward()
"""The default: five seconds an answer."""
