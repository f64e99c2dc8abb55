"""python -m benchmarks methods: the numbers are of one run, and add up."""

import json

import pytest
from rich.console import Console

from benchmarks.methods import bench_methods, methods_cells
from benchmarks.methods_page import methods_page, read_costs
from gear_rl.errors import InputError
from gear_rl.runs.machine import quiet_libraries
from support.commands import benchmark, untouched


@pytest.fixture(scope="module")
def found():
    with untouched(None):
        quiet_libraries()
        return bench_methods(
            ["entropy_forks"], tier="easy", steps=2, repeats=2, rollouts=8, console=Console(quiet=True)
        )


def test_grpo_is_always_among_them_and_is_its_own_measure(found):
    assert list(found["methods"]) == ["uniform", "entropy_forks"]
    base = found["methods"]["uniform"]
    assert base["ratio"] == base["least"] == base["most"] == 1.0
    assert 0 < base["credit_share"] < 1


def test_the_median_lies_between_least_and_most(found):
    row = found["methods"]["entropy_forks"]
    assert 0 < row["least"] <= row["ratio"] <= row["most"]
    assert row["seconds_per_step"] > 0


def test_the_table_and_the_page_show_them(found):
    assert [row[0] for row in methods_cells(found).rows] == ["uniform", "entropy_forks"]
    empty = "<!-- made: costs -->\n<!-- end -->\n<!-- made: entropy_forks -->\n<!-- end -->\n"
    page = methods_page(empty, found)
    row = found["methods"]["entropy_forks"]
    shown = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
    assert shown in page and "--rollouts 8" in page
    assert shown not in methods_page(page, None) and methods_page(page, found) == page


def test_a_file_that_is_no_result_is_refused(tmp_path, found):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(found))
    assert read_costs(good)["steps"] == 2
    for text in ("{", "{}", "[]", '{"methods": {"gear": {}}}'):
        bad.write_text(text)
        with pytest.raises(InputError, match=r"bad\.json is no result"):
            read_costs(bad)
    with pytest.raises(InputError, match=r"gone\.json"):
        read_costs(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "gaer"], "no method 'gaer'; did you mean gear?"),
        (["--rollouts", "12"], "--rollouts: 12"),
        (["--steps", "1"], "give 2 steps or more"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = benchmark("methods", *words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
