"""The tables and the figure of the benchmarks, the same for the terminal and for the page."""

# matplotlib is partly untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import COMPETITORS
from benchmarks.results import Cells
from gear_rl.view.picture import figure_style, write_figure

_LINES = ("#808080", "#0072b2", "#56b4e9", "#d55e00", "#e69f00")
"""Okabe and Ito, grey for the limit."""


def markdown_of(kind: str, result: Mapping[str, Any]) -> str:
    """The table of a result for a page, with the command, the machine and the versions."""
    cells = CELLS[kind](result)
    lines = ["| " + " | ".join(cells.columns) + " |", "|---" + "|---:" * (len(cells.columns) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in cells.rows]
    for sentence in cells.below:
        lines += ["", sentence]
    lines += ["", "```", command_of(result), "```"]
    if "machine" in result:
        versions = result["versions"]
        known = [f"{name} {versions[name]}" for name in ("torch", "trl", "transformers") if name in versions]
        lines += ["", f"On {result['machine']}; {', '.join(known)}."]
    return f"{cells.title}.\n\n" + "\n".join(lines) + "\n"


def command_of(result: Mapping[str, Any]) -> str:
    """The command that measures a result again; ``gear bench`` of older results is this package now.

    >>> command_of({"command": "gear bench step --repeats 3"})
    'python -m benchmarks step --repeats 3'
    """
    return re.sub(r"^gear bench(?= )", "python -m benchmarks", result["command"])


def _signals(result: Mapping[str, Any]) -> Cells:
    rows: list[tuple[str, ...]] = []
    for row in result["competitors"].values():
        wrong = [row[key] for key in ("error_logp", "error_entropy", "error_kl") if key in row]
        rows.append(
            (
                row["label"],
                _gives(row),
                str(row["heads"]),
                _spread(row),
                "n/a" if row["extra_mb"] is None else _mb(row["extra_mb"]),
                f"{max(wrong):.1e}" if wrong else "",
            )
        )
    rows += [(_label(name), "", "", "n/a", "n/a", "") for name in result["why"]]
    below = [f"n/a: {_label(name)}: {why}." for name, why in result["why"].items()]
    bf16, t, v = (result[key] for key in ("ratio_bf16", "exponent_t", "exponent_v"))
    facts = [
        f"bf16 operands take {bf16:.2f} of the float32 time" if bf16 else "",
        f"time grows as T^{t:.2f} and V^{v:.2f}" if t is not None and v is not None else "",
        f"{result['speedup_vs_trl']:.2f} times as fast as TRL for the same three"
        if result["speedup_vs_trl"]
        else "",
        f"{result['memory_vs_trl']:.0f} times less memory than TRL" if result["memory_vs_trl"] else "",
        f"{result['memory_vs_naive']:.0f} times less than full logits" if result["memory_vs_naive"] else "",
    ]
    below.append("gear-rl, eager: " + "; ".join(fact for fact in facts if fact) + ".")
    below.append(
        "Errors: the largest against float64, of log-prob, entropy and KL of the first "
        f"{result['checked_tokens']} tokens. Time: least of {result['repeats']} repeats over the fastest "
        f"bare products (tile {result['best_tile']}), in brackets the least and greatest ratio of one repeat."
    )
    if "error_of_products" in result:
        most = max(result["error_of_products"].values())
        below.append(
            f"Float32 products alone, all else in float64, leave errors of up to {most:.1e}. gear-rl's tiles: "
            f"{result['tile']}."
        )
    sizes = f"T = {result['tokens']}, H = {result['hidden']}, V = {result['vocab']}"
    title = f"{sizes}, {result['dtype']}, {_where(result)}"
    columns = ("", "gives", "head products", "time / bare", "extra MiB", "largest error")
    return Cells(title, columns, rows, below)


def _memory(result: Mapping[str, Any]) -> Cells:
    sizes = [f"T = {size['tokens']}, V = {size['vocab']}" for size in result["sizes"]]
    rows = [
        (row["label"], _gives(row), *("n/a" if peak is None else _mb(peak) for peak in row["extra_mb"]))
        for row in result["competitors"].values()
    ]
    below = [f"n/a: {row['label']}: {row['why']}." for row in result["competitors"].values() if "why" in row]
    title = f"MiB beyond the operands, H = {result['hidden']}, {result['dtype']}, {_where(result)}"
    return Cells(title, ("", "gives", *sizes), rows, below)


def _segments(result: Mapping[str, Any]) -> Cells:
    labels = {
        "limit": "limit: read the inputs, write the outputs",
        "local_maxima": "local_maxima",
        "segment_ids": "segment_ids",
        "at_segment_start": "at_segment_start",
        "segmentation": "the whole segmentation",
        "gear": "a whole Gear() call",
        "python_loop": f"Python loop ({result['loop_rows']} rows)",
    }
    speed, least = result["mtokens_per_second"], result["least"]
    rows = [
        (label, f"{speed[name]:.1f}", f"{least[name]:.1f}", f"{speed['limit'] / speed[name]:.1f}")
        for name, label in labels.items()
    ]
    below = [
        f"The segmentation is {result['over_python_loop']:.0f} times as fast as the loop, and takes "
        f"{result['over_limit']:.1f} times as long as the limit."
    ]
    title = f"B = {result['rows']}, T = {result['tokens']}, {_where(result)}"
    return Cells(title, ("", "M tokens/s", "slowest repeat", "time / limit"), rows, below)


def _step(result: Mapping[str, Any]) -> Cells:
    name = result["method"]
    rows = [
        (part, f"{row['grpo']:.1%}", f"{row[name]:.1%}", f"{row['more']:+.1%}")
        for part, row in result["shares_of_grpo_step"].items()
    ]
    title = (
        f"{result['task']}/{result['tier']}, {result['rollouts_per_step']} rollouts a step: {name} costs "
        f"{result['ratio']:.2f} of GRPO's step ({result['least']:.2f} to {result['most']:.2f})"
    )
    return Cells(title, ("part of the step, of GRPO's whole", "GRPO", name, "more"), rows, [])


def _gives(row: Mapping[str, Any]) -> str:
    names = {"logp": "log-prob", "kl": "KL", "jsd": "one JSD", "teacher_logp": "teacher's log-prob"}
    shown = [name for name in row["gives"] if name != "teacher_logp" or "kl" not in row["gives"]]
    return ", ".join(names.get(name, name) for name in shown) or "nothing"


def _label(name: str) -> str:
    return COMPETITORS[name].label


def _spread(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def _mb(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _where(result: Mapping[str, Any]) -> str:
    """On what it was measured, with the processor's name where the result has it."""
    if result["device"] != "cpu":
        return result["device"]
    processor = result.get("machine", "").partition(",")[0]
    return f"one thread of {processor}" if processor else "one CPU thread"


CELLS: dict[str, Callable[[Mapping[str, Any]], Cells]] = {
    "signals": _signals,
    "memory": _memory,
    "segments": _segments,
    "step": _step,
}
"""How each kind of result is laid out."""


def draw_scaling(result: Mapping[str, Any], path: Path) -> None:
    """Time and peak memory over tokens and over vocabulary, in one figure; ``.png`` or ``.svg``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with figure_style():
        figure: Any = Figure(figsize=(8, 6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2, sharex="col")
        for column, (axis, size, word) in enumerate(
            (("t", "tokens", "tokens"), ("v", "vocab", "vocabulary"))
        ):
            part = result["scaling"][axis]
            sizes = [place[size] for place in part["sizes"]]
            for row, (key, label) in enumerate(
                (("seconds", "seconds"), ("extra_mb", "MiB beyond the operands"))
            ):
                plot = axes[row][column]
                for (name, line), colour in zip(part["competitors"].items(), _LINES, strict=False):
                    points = [(x, y) for x, y in zip(sizes, line[key], strict=True) if y is not None]
                    if points:
                        plot.plot(*zip(*points, strict=True), "o-", ms=4, color=colour, label=_label(name))
                plot.set_xscale("log", base=2)
                plot.set_yscale("log")
                plot.set_xticks(sizes, [str(x) for x in sizes], fontsize=8)
                plot.minorticks_off()
                if column == 0:
                    plot.set_ylabel(label)
                if row == 1:
                    plot.set_xlabel(word)
                for side in ("top", "right"):
                    plot.spines[side].set_visible(False)
            other = "vocab" if axis == "t" else "tokens"
            held = part["sizes"][0][other]
            axes[0][column].set_title(f"{'vocabulary' if axis == 't' else 'tokens'} {held}", fontsize=10)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8
        )
        write_figure(figure, path)
