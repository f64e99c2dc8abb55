"""`gear init`: what it writes trains as it stands."""

import json

import pytest

from gear_rl.lab import comparison as compare
from support.commands import gear


@pytest.mark.parametrize("like", ["maths", "tools"])
def test_what_it_writes_trains(like, tmp_path):
    done = gear("init", "my runs", "--like", like, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cd, train, view, teacher = done.stdout.splitlines()[-4:]
    assert (cd, view) == ("cd 'my runs'", "gear view runs/first")
    assert teacher.startswith("gear teacher --config run.yaml  #")
    command, page = train.split("  # writes ")
    mine = tmp_path / "my runs"
    done = gear(*command.split()[1:], "--max_steps", "1", cwd=mine)
    assert done.returncode == 0 and (mine / page).is_file(), done.stderr
    assert "co/datasets" not in (mine / "runs/first/README.md").read_text(), "no link to the hub"
    records = [json.loads(line) for line in (mine / "runs/first/records.jsonl").read_text().splitlines()]
    assert all(record["context"] for record in records)
    assert len({record["reward"] for record in records}) > 1
    assert gear("view", "runs/first", cwd=mine).stdout.count("reward") == 1
    done = gear("report", "runs/first", cwd=mine)
    assert done.stdout == "wrote runs/first/report.html\n", done.stderr
    page = (mine / "runs/first/report.html").read_text()
    # The numbers, the curves, a praised and a blamed completion, the settings.
    assert "<svg" in page and page.count("teacher saw:") == 2 and "max_steps: 1" in page
    edited = (mine / "run.yaml").read_text()
    again = gear("init", "my runs", "--like", like, cwd=tmp_path)
    assert again.returncode == 2 and "exists; name another folder" in again.stderr
    assert (mine / "run.yaml").read_text() == edited


@pytest.mark.parametrize("like", ["maths", "tools"])
def test_what_it_writes_can_be_compared(like, tmp_path, monkeypatch):
    def asked(specs, *_, **__):
        assert {(spec.n_eval, spec.run["held_out"]) for spec in specs} == {(24, 24)}
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_cells", asked)
    gear("init", "mine", "--like", like, cwd=tmp_path)
    done = gear("compare", "--config", "run.yaml", "--quick", cwd=tmp_path / "mine")
    assert (done.returncode, done.stderr.count("6 runs to do")) == (130, 1), done.stderr
    assert "held_out: missing; 24 of 96 rows judge" in done.stderr


def test_flags_of_gear_train_count_in_a_comparison_or_are_refused(tmp_path, monkeypatch):
    def asked(specs, *_, **__):
        assert {spec.steps for spec in specs} == {3}
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_cells", asked)
    gear("init", "mine", cwd=tmp_path)
    words = ("compare", "--config", "run.yaml", "--quick")
    for flag in ("--max_steps", "--max-steps"):
        assert gear(*words, flag, "3", cwd=tmp_path / "mine").returncode == 130
    for given, fix in (
        ("--output-dir other", "output_dir: a comparison writes to the folder of --out; give that"),
        ("--credit.alpha 5", "credit.alpha: the methods are those of --methods; write --methods gear:alpha"),
        ("--credit gear:alpha=5", "credit: the methods are those of --methods; write --methods gear:alpha"),
        ("--seed=7", "seed: every method has the seeds 0, 1, ...; give their number as --seeds"),
        (
            "--num-train-epochs 2",
            "num_train_epochs: a comparison has a number of optimizer steps; give --ste",
        ),
        ("--max_steps 3 --steps 4", "max_steps: --steps is given too; leave one of them out"),
    ):
        done = gear(*words, *given.split(), cwd=tmp_path / "mine")
        assert done.returncode == 2 and done.stderr.startswith(f"gear: --{fix}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_kind_that_is_not_there(tmp_path):
    done = gear("init", "--like", "mats", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "gear: --like: no starter 'mats'; did you mean maths?\n")
    assert not [*tmp_path.iterdir()]
