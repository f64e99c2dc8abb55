"""gear bench signals, memory, segments and page: the commands, their tables, and the page of the results."""

import json
from pathlib import Path

import pytest

from gear_rl.bench import measure
from gear_rl.bench.peers import COMPETITORS
from gear_rl.cli.speed_page import FILES, NOT_YET, renewed
from gear_rl.cli.speed_tables import CELLS
from support.commands import gear

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
SIZES = ("--tokens", "8", "--hidden", "4", "--vocab", "64", "--repeats", "1")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    from dataclasses import replace

    lame = replace(COMPETITORS["compiled"], missing=lambda device: "left out")
    monkeypatch.setitem(COMPETITORS, "compiled", lame)


def test_signals_writes_its_file_its_table_and_its_plot(tmp_path):
    file, plot = tmp_path / "s.json", tmp_path / "s.png"
    done = gear(
        "bench", "signals", *SIZES, "--scaling", "--no-memory", "--out", str(file), "--plot", str(plot)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["command"].startswith("gear bench signals --tokens 8") and found["threads"] == 1
    assert found["machine"] and found["versions"]["torch"]
    assert found["machine"].split(",")[0] in " ".join(done.stdout.split()) and "L2 " in found["machine"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = {row[0]: row for row in CELLS["signals"](found).rows}
    for name, row in found["competitors"].items():
        assert COMPETITORS[name].label.split()[0] in done.stdout
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        assert ratio in shown[COMPETITORS[name].label]
    told = " ".join(done.stdout.split())  # a narrow terminal folds the lines
    assert "n/a: gear-rl, compiled: left out." in told
    assert f"time grows as T^{found['exponent_t']:.2f}" in told
    level = CELLS["signals"](found | {"exponent_t": 0.0, "exponent_v": 0.0})
    assert any("time grows as T^0.00 and V^0.00" in line for line in level.below)
    unknown = CELLS["signals"](found | {"exponent_t": None, "exponent_v": None})
    assert not any("grows" in line for line in unknown.below)


def test_json_on_the_standard_output_is_json_alone():
    done = gear("bench", "segments", "--rows", "3", "--tokens", "50", "--repeats", "1", "--json")
    assert json.loads(done.stdout)["mtokens_per_second"]["segmentation"] > 0
    assert json.loads(gear("plan", "--json").stdout)["model"] == "Qwen/Qwen3-4B"


def test_the_tables_of_memory_and_segments(monkeypatch):
    from gear_rl.bench import memory

    monkeypatch.setattr(memory, "fresh_peak", lambda name, t, h, v, *rest: {"extra_mb": t * 1000.0 + v})
    done = gear("bench", "memory", "--tokens", "2,4", "--vocab", "7", "--peers", "none")
    assert "T = 2, V = 7" in done.stdout and "2007" in done.stdout and "4007" in done.stdout
    done = gear("bench", "segments", "--rows", "3", "--tokens", "50", "--repeats", "1", "--loop-rows", "2")
    assert "Python loop (2 rows)" in done.stdout and "M tokens/s" in done.stdout


def test_the_plan_says_what_is_assumed_and_what_it_cannot_know():
    done = gear("plan", "--gpus", "1", "--calibration", "none.json")
    assert "Assumed, not measured: these shares of the data sheet: forward 0.50" in done.stdout
    assert "communication between GPUs" in done.stdout and "does not fit" in done.stdout
    assert "GEAR takes 1.071 of GRPO's step" in done.stdout
    smaller = gear("plan", "--gpus", "8", "--calibration", "none.json").stdout
    assert "fits with a tenth to spare" in smaller and "a student pass for the signals" not in smaller
    assert "a student pass for the signals" in gear("plan", "--student-pass").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "signals", *SIZES, "--dtype", "half"], "dtype: 'half' is not one of float32, bfloat16"),
        (["bench", "signals", *SIZES, "--plot", "x.png"], "cost over size needs --scaling"),
        (["bench", "signals", "--tokens", "0"], "tokens: 0; give 1 or more"),
        (["bench", "memory", "--tokens", "1,x"], "--tokens: '1,x'; give whole numbers"),
        (["bench", "memory", "--peers", "trl"], "peers: 'trl' is not one of all, none"),
        (["bench", "segments", "--rows", "0"], "rows: 0; give 1 or more"),
        (["bench", "page", "no_such_page.md"], "no_such_page.md"),
        (["plan", "--gpu", "tpu"], "gpu: 'tpu' is not one of"),
        (["plan", "--model", "no/such"], "no folder with a config.json"),
        (["plan", "--tokens", "0"], "tokens: 0; give 1 or more"),
        (["plan", "--calibrate", "--steps", "1"], "give 2 steps or more"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = gear(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_peak_of_the_process_memory_says_so_and_signals_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "none")
    done = gear("bench", "memory", "--tokens", "2", "--vocab", "7", "--hidden", "4")
    assert done.returncode == 2 and "no /proc/self/clear_refs" in done.stderr
    found = json.loads(gear("bench", "signals", *SIZES, "--peers", "none", "--json").stdout)
    assert found["extra_mb"] is None and found["memory_vs_trl"] is None and found["ratio_eager"] > 0


# the page


def test_the_numbers_of_the_page_are_those_of_the_files():
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text, RESULTS) == text, "run gear bench page"


@pytest.mark.parametrize("name", FILES)
def test_every_command_on_the_page_makes_the_file_that_it_is_shown_for(name):
    """Whoever types what stands under a table gets that table again."""
    file = RESULTS / FILES[name][1]
    recipe = PAGE.read_text(encoding="utf-8").split("## Make them again")[1]
    [command] = [line for line in recipe.splitlines() if f"--out docs/results/{file.name}" in line]
    if file.exists():
        assert json.loads(file.read_text(encoding="utf-8"))["command"] == command


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
    assert f"{found['mtokens_per_second']['segmentation']:.1f}" in filled and found["command"] in filled
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
