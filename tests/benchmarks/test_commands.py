"""python -m benchmarks: the commands, their tables, and the page of the results."""

import json
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.page import FILES, NOT_YET, renewed
from benchmarks.peers import COMPETITORS
from benchmarks.tables import CELLS, command_of
from support.commands import benchmark

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
SIZES = ("--tokens", "8", "--hidden", "4", "--vocab", "64", "--repeats", "1")


def test_signals_writes_its_file_its_table_and_its_plot(tmp_path):
    file, plot = tmp_path / "s.json", tmp_path / "s.png"
    done = benchmark("signals", *SIZES, "--scaling", "--no-memory", "--out", str(file), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["command"].startswith("python -m benchmarks signals --tokens 8") and found["threads"] == 1
    assert found["machine"] and found["versions"]["torch"]
    assert found["machine"].split(",")[0] in " ".join(done.stdout.split())
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = {row[0]: row for row in CELLS["signals"](found).rows}
    for name, row in found["competitors"].items():
        assert COMPETITORS[name].label.split()[0] in done.stdout
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        assert ratio in shown[COMPETITORS[name].label]
    text = " ".join(done.stdout.split())  # a narrow terminal folds the lines
    assert f"time grows as T^{found['exponent_t']:.2f}" in text
    level = CELLS["signals"](found | {"exponent_t": 0.0, "exponent_v": 0.0})
    assert any("time grows as T^0.00 and V^0.00" in line for line in level.below)
    unknown = CELLS["signals"](found | {"exponent_t": None, "exponent_v": None})
    assert not any("grows" in line for line in unknown.below)


def test_json_on_the_standard_output_is_json_alone():
    done = benchmark("segments", "--rows", "3", "--tokens", "50", "--repeats", "1", "--json")
    assert json.loads(done.stdout)["mtokens_per_second"]["segmentation"] > 0


def test_the_tables_of_memory_and_segments(monkeypatch):
    from benchmarks import memory

    monkeypatch.setattr(memory, "fresh_peak", lambda name, t, h, v, *rest: {"extra_mb": t * 1000.0 + v})
    done = benchmark("memory", "--tokens", "2,4", "--vocab", "7", "--peers", "none")
    assert "T = 2, V = 7" in done.stdout and "2007" in done.stdout and "4007" in done.stdout
    done = benchmark("segments", "--rows", "3", "--tokens", "50", "--repeats", "1", "--loop-rows", "2")
    assert "Python loop (2 rows)" in done.stdout and "M tokens/s" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["signals", *SIZES, "--dtype", "half"], "dtype: 'half' is not one of float32, bfloat16"),
        (["signals", *SIZES, "--plot", "x.png"], "cost over size needs --scaling"),
        (["signals", "--tokens", "0"], "tokens: 0; give 1 or more"),
        (["memory", "--tokens", "1,x"], "--tokens: '1,x'; give whole numbers"),
        (["memory", "--peers", "trl"], "peers: 'trl' is not one of all, none"),
        (["segments", "--rows", "0"], "rows: 0; give 1 or more"),
        (["page", "no_such_page.md"], "no_such_page.md"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = benchmark(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_peak_of_the_process_memory_says_so_and_signals_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "none")
    done = benchmark("memory", "--tokens", "2", "--vocab", "7", "--hidden", "4")
    assert done.returncode == 2 and "no /proc/self/clear_refs" in done.stderr
    found = json.loads(benchmark("signals", *SIZES, "--peers", "none", "--json").stdout)
    assert found["extra_mb"] is None and found["memory_vs_trl"] is None and found["ratio_eager"] > 0


# the page


def test_the_numbers_of_the_page_are_those_of_the_files():
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text, RESULTS) == text, "run python -m benchmarks page"


@pytest.mark.parametrize("name", FILES)
def test_every_command_on_the_page_makes_the_file_that_it_is_shown_for(name):
    """Whoever types what stands under a table gets that table again."""
    file = RESULTS / FILES[name][1]
    recipe = PAGE.read_text(encoding="utf-8").split("## Make them again")[1]
    [command] = [line for line in recipe.splitlines() if f"--out docs/results/{file.name}" in line]
    if file.exists():
        assert command_of(json.loads(file.read_text(encoding="utf-8"))) == command


def test_the_files_name_no_place_of_the_machine_that_made_them():
    for file in (RESULTS / name for _, name in FILES.values()):
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        assert not any(
            f'"{root}' in text or f" {root}" in text for root in ("/work", "/home", "/root", "/tmp")
        )


def test_a_page_is_renewed_between_its_marks_alone(tmp_path):
    page = "".join(f"before {name}\n<!-- {name} -->\nold\n<!-- /{name} -->\nafter\n" for name in FILES)
    plain = renewed(page, tmp_path)
    assert plain == page.replace("old", NOT_YET)
    source = RESULTS / FILES["segments"][1]
    (tmp_path / FILES["segments"][1]).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    found = json.loads(source.read_text(encoding="utf-8"))
    filled = renewed(plain, tmp_path)
    assert f"{found['mtokens_per_second']['segmentation']:.1f}" in filled and command_of(found) in filled
    assert renewed(filled, tmp_path) == filled and filled.count(NOT_YET) == len(FILES) - 1


def test_a_page_without_its_marks_and_a_file_that_is_no_result_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the page has no <!-- signals -->"):
        renewed("# Benchmarks", tmp_path)
    page = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in FILES)
    (tmp_path / "bench_memory.json").write_text('{"sizes": 3}')
    with pytest.raises(ValueError, match=r"bench_memory\.json is no result of the bench memory"):
        renewed(page, tmp_path)


def test_every_kind_of_table_has_a_file():
    assert {kind for kind, _ in FILES.values()} == set(CELLS)
