"""The tables of the pages, made from ``results/``: a row for each method, a column for each number."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gear_rl.cli.methods import COSTS
from gear_rl.lab.findings import read_runs
from gear_rl.lab.statistics import Interval
from gear_rl.lab.verdict import Comparison, Verdict, compare

RESULTS = Path(__file__).parents[1] / "results"
PLACEBOS = ("shuffled", "random_onsets", "shuffled_prm")
Column = Callable[[Verdict, Comparison], str]


class Table(NamedTuple):
    """A table of one comparison."""

    files: tuple[str, ...]
    """Of runs; of two with the same method and seed the first counts."""
    columns: Mapping[str, Column]
    """By heading."""
    rows: Mapping[str, str]
    """Methods in their order, and what they are called."""
    first: str = "method"
    """The heading of what they are called."""

    def markdown(self) -> str:
        """The lines of the table."""
        c = read(self.files)
        verdicts = {verdict.method: verdict for verdict in c.verdicts}
        lines = [(self.first, *self.columns), ("---",) * (1 + len(self.columns))]
        for method, name in self.rows.items():
            verdict = verdicts[method]
            lines.append((name, *(column(verdict, c) for column in self.columns.values())))
        return lines_of(lines)


def lines_of(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown.

    >>> lines_of([("a", ""), ("---", "---")])
    '| a | |\\n|---|---|\\n'
    """
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return (
        text.replace("|  |", "| |").replace("|  |", "| |").replace("| --- ", "|---").replace("--- |", "---|")
    )


class Tasks:
    """The table of README: what helps on which task, in words that the verdicts decide."""

    COLUMNS = ("oracle", "gear", "random_onsets", "sft")
    ROWS: ClassVar[dict[str, tuple[str, ...]]] = {
        "24 codes to look up, graded (0.84M)": (
            "codebook_hard",
            "codebook_hard_onsets",
            "codebook_hard_catalogue",
        ),
        "six tool calls, graded (0.84M)": ("errands_ten",),
        "four codes to look up, right or wrong (0.84M)": ("codebook_exact",),
        "24 facts to recall, graded (135M)": ("forms",),
        "five sums, graded (135M)": ("sums_32_same_rate", "sums_32"),
        "word problems, right or wrong (135M)": ("bare",),
    }
    """Comparisons by what the task is; of two with a method the first counts."""

    def markdown(self) -> str:
        """The lines of the table."""
        heads = ("better than GRPO? (parameters)", "perfect credit", "`gear`", "a placebo", "fine-tuning")
        lines = [heads, ("---",) * len(heads)]
        shown = {"better": "**yes**", "worse": "worse"}
        for task, files in self.ROWS.items():
            words: dict[str, str] = {}
            for file in reversed(files):
                words |= {v.method: shown.get(v.verdict, "no evidence") for v in read((file,)).verdicts}
            words.setdefault("random_onsets", words.get("shuffled", "not run"))
            lines.append((task, *(words.get(method, "not run") for method in self.COLUMNS)))
        return lines_of(lines)


@cache
def read(files: tuple[str, ...]) -> Comparison:
    """The comparison of all runs of some files."""
    first, *more = (read_runs(RESULTS / f"{name}.jsonl").comparison for name in files)
    have = {(cell.method, cell.seed) for cell in first.cells}
    cells = [cell for other in more for cell in other.cells if (cell.method, cell.seed) not in have]
    return compare(
        [*first.cells, *cells], baseline=first.baseline, ceiling=first.ceiling, outcome=first.outcome
    )


def number_of(value: float | None) -> str:
    """A number in few characters.

    >>> number_of(2e-4), number_of(2.5e-5), number_of(None)
    ('2e-4', '2.5e-5', '')
    """
    if value is None:
        return ""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def span(ends: Interval | None, bold: bool = False) -> str:
    """An interval of a difference.

    >>> span(Interval(-0.01, 0.2), bold=True)
    '**-0.010 to +0.200**'
    """
    if ends is None:
        return ""
    return f"{'**' * bold}{ends.low:+.3f} to {ends.high:+.3f}{'**' * bold}"


def is_shown(v: Verdict) -> bool:
    return v.verdict in ("better", "worse")


def rate(v: Verdict, c: Comparison) -> str:
    return number_of(v.rate)


def mean(v: Verdict, c: Comparison) -> str:
    return f"{v.mean:.3f}"


def gain(v: Verdict, c: Comparison) -> str:
    return span(v.difference_interval, is_shown(v))


def at_its_rate(v: Verdict, c: Comparison) -> str:
    """Empty where the method has the baseline's rate."""
    if v.at_its_rate is not None:
        return span(v.at_its_rate.interval, is_shown(v))
    own = v.rate == c.verdicts[0].rate or v.method == c.ceiling
    return "" if own or v.verdict == "baseline" else "not run"


def share(v: Verdict, c: Comparison) -> str:
    ends = (
        ""
        if v.share_interval is None or v.method == c.ceiling
        else " ({:.2f} to {:.2f})".format(*v.share_interval)
    )
    return "" if v.share is None else f"{v.share:.2f}{ends}"


def budget(v: Verdict, c: Comparison) -> str:
    """Where every seed reaches the baseline's mean end."""
    if v.verdict == "baseline":
        return ""
    if v.budget is None or v.budget_interval is None:
        return "not with every seed"
    return f"{v.budget:.0%} ({100 * v.budget_interval.low:.0f} to {100 * v.budget_interval.high:.0f})"


def lost(v: Verdict, c: Comparison) -> str:
    return str(len(v.lost_seeds))


def ends(v: Verdict, c: Comparison) -> str:
    """Where every seed ended, in the order of the seeds."""
    runs = sorted((cell for cell in c.cells if cell.method == v.method), key=lambda cell: cell.seed)
    reached = ((cell.seed, cell.ends(c.outcome)) for cell in runs)
    listed = [(seed, end[1]) for seed, end in reached if end is not None]
    whole = [seed for seed, _ in listed] == list(range(len(listed)))
    return ", ".join(f"{end:.3f}" if whole else f"{end:.3f} ({seed})" for seed, end in listed)


def beside(name: str, digits: int = 3) -> Column:
    """What is measured beside, after the training."""
    return lambda v, c: f"{v.beside[name][1]:.{digits}f}"


def cost(v: Verdict, c: Comparison) -> str:
    """Of a step, relative to GRPO's."""
    row = json.loads(COSTS.read_text(encoding="utf-8"))["methods"].get(v.method.partition(":")[0])
    row = None if v.method in ("uniform", "sft", "oracle") else row
    return "" if row is None else f"{row['ratio']:.2f}"


def auc(file: str, names: Mapping[str, str]) -> Column:
    """How well the credit finds a mistake among decisions, from the file of a localisation."""

    def column(v: Verdict, c: Comparison) -> str:
        document: dict[str, Any] = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
        rows = document["contexts"]["solution"]["methods"] if "contexts" in document else document["methods"]
        return f"{rows[names[v.method]]['auc_choices']:.2f}" if v.method in names else ""

    return column


def named(*methods: str, **more: str) -> dict[str, str]:
    """Rows that are called by their own names.

    >>> named("uniform", "shuffled", sft="SFT")
    {'uniform': '`uniform` (GRPO)', 'shuffled': 'placebo: `shuffled`', 'sft': 'SFT'}
    """
    rows = {method: f"{'placebo: ' * (method in PLACEBOS)}`{method}`" for method in methods}
    return {method: row + " (GRPO)" * (method == "uniform") for method, row in rows.items()} | more


GAIN = {"difference to GRPO": gain, "to GRPO at the method's rate": at_its_rate}
CATALOGUE = (
    "sft", "oracle", "tokens", "gear", "opsd", "random_onsets", "rlsd", "distilled_rl", "cast", "uniform",
    "stare", "rlcsd", "shear", "raft", "shuffled", "grail", "oar_g", "entropy_forks", "antisd",
)  # fmt: skip
ERRANDS = (
    "oracle", "gear", "rlsd", "agent_opsd", "uniform", "gear:tokens", "raft", "random_onsets", "cast", "stare",
    "shuffled", "antisd",
)  # fmt: skip
WORDED = {
    "sft": "`sft` on the solutions of the same prompts", "tokens": "`gear:tokens`",
    "raft": "`raft` (best rollout of a group)",
}  # fmt: skip
SETTINGS = {
    "gear": "`gear`", "aftermath": "with `aftermath=0`", "ends": "with `end_threshold=0.5`",
    "alpha": "with `alpha=1`", "live": "with a live teacher", "all": "with `departures=all`",
    "plain": "`gear:plain`", "plain_live": "`gear:plain` with a live teacher",
    "plain_with_reward": "`gear:plain`, a live teacher, `departures=with_reward`",
}  # fmt: skip
SCORED = {
    "gear": "gear", "aftermath": "gear:aftermath=0", "ends": "gear:end_threshold=0.5", "alpha": "gear:alpha=1",
    "all": "gear:departures=all", "plain": "gear:plain", "plain_with_reward": "with_reward",
}  # fmt: skip
"""Rows of ``SETTINGS`` by their names in a localisation."""
ON_WORDS = {
    "gear": "gear", "aftermath": "aftermath_0", "ends": "end_threshold_05", "alpha": "alpha_1",
    "all": "departures_all", "plain": "plain", "plain_with_reward": "with_reward",
}  # fmt: skip
STEP_SCORES = {
    "oracle": "`oracle`", "truth": "the truth, as weights",
    "truth_rewards": "the truth, `process_supervision`, `discount=0`, `outcome=false`",
    "prm": "`prm`, as weights", "prm_rewards": "`prm`, `process_supervision`, the same",
    "shuffled_prm": "placebo: `prm`'s weights shuffled",
}  # fmt: skip
ON_SUMS = {
    **named("uniform"), "gear": "`gear`", "tokens": "`gear:tokens`", "rlsd": "`rlsd`", "opsd": "`opsd`",
    "shuffled": "placebo: `shuffled`", "sft": "`sft` on the prompts that GRPO draws",
}  # fmt: skip
ON_BARE = {**ON_SUMS, "sft": "`sft`"}
SEEDS = {"rate": rate, "seeds": ends, "mean": mean, "difference to GRPO": gain}


RIGHT = {"rate": rate, "share right": mean}
AUCS = {
    "AUC: `codebook`": auc("localisation_codebook", SCORED),
    "`errands`": auc("localisation_errands", SCORED),
    "`chain` hard": auc("localisation_chain_hard", SCORED),
    "SmolLM2": auc("words_smollm2_settings", ON_WORDS),
}
TABLES: dict[str, Table | Tasks] = {
    "tasks": Tasks(),
    "codebook_hard": Table(
        ("codebook_hard", "codebook_hard_onsets"),
        {**RIGHT, **GAIN, "share of the oracle's gain": share, "rollouts to GRPO's end": budget},
        {
            **named(
                "uniform",
                "uniform@0.0004",
                "uniform@0.0001",
                "oracle",
                "gear",
                "rlsd",
                "shuffled",
                "random_onsets",
            ),
            "uniform@0.0004": "GRPO at a rate of others",
            "uniform@0.0001": "GRPO at a rate of others",
        },
    ),
    "errands_ten": Table(
        ("errands_ten",),
        {"rate": rate, "settled right": mean, **GAIN, "share of the oracle's gain": share, "lost": lost},
        named("uniform", "oracle", "gear", "rlsd", "random_onsets", "shuffled"),
    ),
    "catalogue": Table(
        ("codebook_hard_catalogue",),
        {**RIGHT, **GAIN, "lost": lost, "step": cost},
        named(*CATALOGUE) | WORDED,
    ),
    "catalogue_errands": Table(
        ("errands_catalogue",),
        {"rate": rate, "settled right": mean, **GAIN, "lost": lost, "step": cost},
        named(*ERRANDS) | {"raft": WORDED["raft"]},
    ),
    "instead": Table(
        ("codebook_hard_instead",),
        {**RIGHT, **GAIN},
        {
            "sft": "`sft` in all steps",
            "oracle": "`oracle`",
            "sft_gear": "SFT, then `gear`",
            "gear": "`gear`",
            "sft_grpo": "SFT, then GRPO",
            "sft_random": "SFT, then the placebo `random_onsets`",
            "more": "GRPO with 24 rollouts a step in place of 16",
        },
    ),
    "settings": Table(("codebook_hard_settings",), {**RIGHT, **GAIN, "lost": lost, **AUCS}, SETTINGS),
    "slips": Table(
        ("codebook_hard_slips",),
        {**RIGHT, **GAIN, "lost": lost},
        {
            **named("uniform", "oracle", "gear"),
            "tokens": "`gear:tokens`",
            "tokens16": "`gear:tokens` with `alpha=16`",
            "slips": "the same in successes, in failures the teacher's excess surprisal",
            "own": "control: in failures the student's own excess surprisal",
            "bare": "control: the student's own in failures, GRPO's praise (six seeds)",
            "low": "placebo `low_logprob`: more weight on the fifth of least likely tokens",
        },
    ),
    "slips_errands": Table(
        ("errands_slips",),
        {"rate": rate, "settled right": mean, **GAIN, "lost": lost},
        {
            **named("uniform", "oracle", "gear"),
            "tokens16": "`gear:tokens` with `alpha=16`",
            "slips": "the same in successes, in failures the teacher's excess surprisal",
        },
    ),
    "step_scores": Table(("step_scores",), {"share right": mean, "difference to GRPO": gain}, STEP_SCORES),
    "forms": Table(
        ("forms",),
        SEEDS,
        {
            **named("uniform", "gear"),
            "tokens": "`gear:tokens`",
            "plain": "`gear:plain`",
            "slips": "in failures the teacher's excess surprisal (`benchmarks/slips.py`)",
            **named("shuffled", "random_onsets"),
            "low_logprob": "placebo: `low_logprob` (`benchmarks/forms.py`)",
            "oracle": "perfect credit (`FieldTruth`)",
            "sft": "`sft`",
        },
        first="share right",
    ),
    "forms_references": Table(
        ("forms_references",),
        SEEDS,
        {
            **named("uniform"),
            "values": "values alone are right or wrong",
            "keys": "keys too, without line breaks",
        },
        first="share right",
    ),
    "forms_gate": Table(
        ("forms_gate",),
        SEEDS,
        {**named("uniform"), "oracle": "perfect credit (`FieldTruth`)"},
        first="share right",
    ),
    "sums_32": Table(
        ("sums_32",), {**SEEDS, "in other words": beside("words")}, ON_SUMS, first="share right"
    ),
    "sums_32_same_rate": Table(
        ("sums_32_same_rate",),
        {**SEEDS, "in other words": beside("words")},
        named("uniform", "gear", "oracle"),
        first="share right",
    ),
    "bare": Table(
        ("bare",),
        {**SEEDS, "another form": beside("example"), "perplexity": beside("perplexity", 1)},
        ON_BARE,
        first="share right",
    ),
    "bare_8e-4": Table(
        ("bare_8e-4",),
        {
            "seeds": ends,
            "mean": mean,
            **GAIN,
            "another form": beside("example"),
            "perplexity": beside("perplexity", 1),
        },
        {"uniform@0.0008": "GRPO"} | {f"{m}_twice": words for m, words in ON_BARE.items() if m != "uniform"},
        first="share right",
    ),
    "contexts": Table(
        ("contexts",),
        {"share right": mean, "difference to GRPO": gain},
        {
            "gear": "the solution",
            "falsified": "the solution, a quarter of its codes false",
            "sibling": "a sibling's success (reward 0.55 or more)",
            "nothing": "the prompt once more",
            "sft": "SFT on the solution",
            "sft_falsified": "SFT on the solution, a quarter of its codes false",
        },
        first="context of `gear`",
    ),
}
"""Every table by the name of its mark."""
