"""reasoning-gym's generators as dataset rows, and their own scorers as the reward.

Nine of its scorers evaluate the model's text (``eval``, sympy's parser): their answers pass a grammar first, and
every scorer runs in a child process that can be killed.
"""

import ast
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy

from gear_rl.data.rewards.children import children
from gear_rl.data.rewards.text import Completion, final_texts, report_failures

COLUMN = "reasoning_gym"
"""The column that the scorer reads: generator, settings, and the entry as a Python literal; JSON text."""
EVALUATE_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators whose scorer calls ``eval`` on the model's text, to accept a Python list."""
EVALUATE_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Generators whose scorer calls sympy's ``parse_expr`` on the model's text."""
HELD_OUT_SHARE = 8
"""One problem in eight, by the checksum of its question, is held out."""
LIMIT_SECONDS = 10.0
"""Time limit of one answer."""

_FORMULA = re.compile(
    r"(?:\d+(?:\.\d*)?|\.\d+|(?:a?(?:sin|cos|tan)h?|exp|log|ln|sqrt|pi|Abs|Integral|[A-Za-z])(?![A-Za-z_0-9.])|[-+*/^(),=\s])*"
)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def rows(
    name: str, *, num: int, seed: int = 0, held_out: bool | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Rows of a generator: prompt, answer, privileged_context, solution, and the column that the reward reads.

    ``settings`` are the generator's own. ``held_out`` chooses one of two parts that share no question for any
    seed. The privileged context is the worked solution if there is one, else the answer; ``solution`` adds the
    answer in the form that the reward accepts. ``ValueError`` for an unknown generator or setting, and for a
    generator without answers or with too few problems.

    >>> row = rows("chain_sum", num=1, seed=3)[0]
    >>> row["prompt"][0]["content"][-14:], row["answer"], row["privileged_context"]
    ('57 + 87 + 70 =', '214', '57 + 87 = 144. 144 + 70 = 214.')
    """
    made: list[dict[str, Any]] = []
    drawn = 0
    while len(made) < num:
        if drawn > 20 * HELD_OUT_SHARE * (num + 16):
            raise ValueError(f"reasoning-gym/{name}: only {len(made)} of {num} problems found; ask for fewer")
        for entry in generator(name, num, seed + drawn, **settings):
            if entry["answer"] is None:
                raise ValueError(
                    f"reasoning-gym/{name}: it gives no answer to inform a teacher; choose another generator"
                )
            ours = zlib.crc32(str(entry["question"]).encode()) % HELD_OUT_SHARE == 0
            if held_out is None or held_out == ours:
                made.append(_row(name, entry, settings))
        drawn += num
    return made[:num]


def reasoning_gym_reward(
    completions: Sequence[Completion],
    *,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The generator's own score of each answer, 0 to 1; the signature of a TRL reward function.

    The answer is the text in the last ``<answer>`` tags of the last message, else all of it. One that the grammar
    refuses, or that takes more than ten seconds, gives 0; the metrics and one warning count them.

    >>> row = rows("chain_sum", num=1, seed=3)[0]
    >>> reasoning_gym_reward(["<answer>214</answer>", "213"], reasoning_gym=[row["reasoning_gym"]] * 2)
    [1.0, 0.0]
    """
    if COLUMN not in columns:
        raise ValueError(
            f"reasoning_gym_reward: the dataset has no column {COLUMN!r}; use dataset reasoning-gym/NAME"
        )
    packs = [json.loads(pack) for pack in columns[COLUMN]]
    texts = final_texts(completions, columns)
    answers = [(_TAGGED.findall(text) or [text])[-1].strip() for text in texts]
    sent = [i for i, pack in enumerate(packs) if is_safe_answer(pack["generator"], answers[i])]
    pool = children(f"{__name__}:handler", limit_s=LIMIT_SECONDS, most=4)
    replies = dict(zip(sent, pool.ask([{**packs[i], "text": answers[i]} for i in sent]), strict=True))
    failures = [reply["failed"] for reply in replies.values() if "failed" in reply]
    timeouts = failures.count("timeout")
    refused, errors = len(packs) - len(sent), len(failures) - timeouts
    counts = {"refused": refused, "timeouts": timeouts, "errors": errors}
    report_failures("reasoning_gym_reward", counts, len(packs), log_metric)
    return [float(replies.get(i, {}).get("score", 0.0)) for i in range(len(packs))]


def is_safe_answer(name: str, answer: str) -> bool:
    """Whether the generator's scorer may see the answer: False if it would evaluate text that could be code.

    >>> is_safe_answer("n_queens", "[['_', 'Q']]"), is_safe_answer("n_queens", "[print() for x in 'a']")
    (True, False)
    >>> is_safe_answer("chain_sum", "f()")
    True
    >>> is_safe_answer("countdown", "82 + 20*(67 - 50)"), is_safe_answer("countdown", "().__class__")
    (True, False)
    """
    if name in EVALUATE_FORMULAS:
        return _FORMULA.fullmatch(answer) is not None
    if name in EVALUATE_LITERALS and any(bracket in answer for bracket in "([{"):
        try:
            ast.literal_eval(answer)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return False
    return True


def generator(name: str, size: int, seed: int, **settings: Any) -> Any:
    """The package's dataset of that name; ``ValueError`` if it has none, or refuses a setting."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ImportError(
            "reasoning-gym is not installed; run: pip install 'gear-rl[reasoning-gym]'"
        ) from None
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no generator {name!r}; it has {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym/{name}: {error}") from None


def handler() -> Callable[[Any], dict[str, Any]]:
    """In a child: answers ``{"generator", "settings", "entry", "text"}`` with the generator's own score."""
    import reasoning_gym  # noqa: F401  # before the first limit begins

    @lru_cache(maxsize=64)
    def cached_generator(name: str, settings: str) -> Any:
        return generator(name, 1, 0, **json.loads(settings))

    def handle(request: Any) -> dict[str, Any]:
        score = cached_generator(request["generator"], request["settings"]).score_answer
        return {"score": float(score(request["text"], ast.literal_eval(request["entry"])))}

    return handle


def _term_by_term(expression: str) -> str:
    """Sums and differences from the left: ``4 - 1 = 3. 3 - 7 = -4.`` for ``4 - 1 - 7``."""
    first, *rest = expression.split()
    result, steps = int(first), list[str]()
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        before, result = result, result + (int(term) if sign == "+" else -int(term))
        steps.append(f"{before} {sign} {term} = {result}.")
    return " ".join(steps)


def _row(name: str, entry: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    answer = str(entry["answer"])
    metadata: Mapping[str, Any] = entry["metadata"]
    expression = metadata.get("expression")
    worked = metadata.get("answer_cot")
    if name == "chain_sum":
        worked = _term_by_term(str(expression)) or None
    elif worked is None and isinstance(expression, str) and expression != answer:
        worked = f"{expression} = {answer}"
    shown = worked if isinstance(worked, str) else answer
    with numpy.printoptions(legacy="1.25"):  # some texts are numpy's; their repr is else no literal
        literal = repr(entry)  # JSON would make lists of tuples, and texts of keys
    return {
        "prompt": [{"role": "user", "content": entry["question"]}],
        "answer": answer,
        "privileged_context": shown,
        "solution": f"{shown} <answer>{answer}</answer>",
        COLUMN: json.dumps({"generator": name, "settings": json.dumps(settings), "entry": literal}),
    }
