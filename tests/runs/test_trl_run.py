"""`gear train` and `gear demo`, from the command to the files they leave."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from gear_rl import GEARTrainer
from gear_rl.records import read_records
from support.commands import gear


def test_the_demo_leaves_what_a_run_leaves(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--credit", "shuffled", "--steps", "2", "--n-eval", "16", "--out", str(tmp_path), "--seed", "1"]
    done = gear("demo", *words)
    assert done.returncode == 0, done.stderr
    assert "source " in done.stdout.splitlines()[-1]
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in history if "eval_pass@1" in row] == [0, 2], "before and after"
    assert {row["eval_problems"] for row in history if "eval_problems" in row} == {16}
    page = tmp_path / "report.html"
    made = page.read_text()
    assert all(part in made for part in ("held-out reward", "dataset: arena/chain/default", "⟧"))
    page.unlink()
    assert gear("report", str(tmp_path)).returncode == 0 and page.read_text() == made
    assert {record.step for record in read_records(tmp_path / "records.jsonl")} == {1, 2}
    refused = gear("demo", *words)
    one_line(refused, f"output_dir: {tmp_path} holds a run already", "; delete it and begin anew")
    assert "resume" not in refused.stderr, "there is no checkpoint"


@pytest.fixture(scope="module")
def used(tiny_model, tmp_path_factory):
    """A folder with a finished run of two steps, made by `gear train`, and how to call it again there."""
    folder = tmp_path_factory.mktemp("used")
    rows = [{"prompt": f"{i} plus {i}", "answer": str(2 * i)} for i in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "run.yaml").write_text(
        f"model: {tiny_model}\ndataset: rows.jsonl\nreward: support.desk:digits\ncredit: uniform\n"
        "output_dir: out\nrecord_file: records.jsonl\nmax_completion_length: 4\nper_device_train_batch_size: 4\n"
        "num_generations: 4\nsave_steps: 1\nlearning_rate: 0.01\n"
    )

    def call(*words: str):
        return gear("train", "--config", "run.yaml", *words, cwd=folder)

    done = call("--max_steps", "2")
    assert done.returncode == 0, done.stderr
    return folder, call


def one_line(done, *words: str) -> None:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_used_folder_is_refused(used):
    folder, call = used
    before = (folder / "out" / "model.safetensors").read_bytes()
    one_line(
        call("--max_steps", "2"),
        "output_dir: out holds a run already (checkpoint-1, checkpoint-2, trainer_state.json, "
        "out/records.jsonl)",
        "--resume_from_checkpoint latest",
        "--overwrite",
    )
    assert (folder / "out" / "model.safetensors").read_bytes() == before
    resume = "--resume_from_checkpoint"
    one_line(
        call(resume, "latest", "--credit", "gear", "--beta", "0.1"),
        "out/checkpoint-2 was made with another configuration: ",
        "beta 0.0 is now 0.1",
        "credit 'uniform' is now 'gear'",
    )
    assert "beta" not in (folder / "out" / "gear.yaml").read_text(), "the refused run is not the folder's"
    one_line(call(resume, "rows.jsonl"), "rows.jsonl is no folder")


def test_a_run_is_resumed_or_replaced(used):
    folder, call = used
    done = call("--max_steps", "3", "--resume_from_checkpoint", "latest")
    assert done.returncode == 0, done.stderr
    records = folder / "out" / "records.jsonl"
    assert [record.step for record in read_records(records)] == [1] * 4 + [2] * 4 + [3] * 4
    run = json.loads((folder / "out" / "run.json").read_text())["run"]
    for words in (["--overwrite"], ["--overwrite_output_dir", "true"]):
        done = call("--max_steps", "1", *words)
        assert done.returncode == 0, done.stderr
        assert [record.step for record in read_records(records)] == [1] * 4
        assert [path.name for path in (folder / "out").glob("checkpoint-*")] == ["checkpoint-1"]
        before, run = run, json.loads((folder / "out" / "run.json").read_text())["run"]
        assert run != before


def test_records_without_a_checkpoint_are_kept_and_the_run_begins_anew(used):
    folder, call = used
    (folder / "so early").mkdir()
    (folder / "so early" / "records.jsonl").write_text("ended before a checkpoint\n")
    done = call("--max_steps", "1", "--output_dir", "so early")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("saved so early; open so early/report.html, or: gear view 'so early'\n")
    assert (folder / "so early" / "records.1.jsonl").read_text() == "ended before a checkpoint\n"
    with (folder / "so early" / "records.jsonl").open("a") as file:
        file.write('{"half')
    done = call("--max_steps", "2", "--output_dir", "so early", "--resume_from_checkpoint", "latest")
    assert (
        done.returncode == 0 and "no page of the run: so early/records.jsonl, line 5: not JSON" in done.stderr
    )
    assert done.stdout.endswith("saved so early; gear view 'so early'\n"), done.stdout


def test_a_folder_with_a_file_that_a_run_writes_is_refused(used):
    folder, call = used
    (folder / "README.md").write_text("mine")
    one_line(call("--output_dir", "."), "output_dir: . holds README.md, which a run may replace")
    assert (folder / "README.md").read_text() == "mine"


def test_a_model_that_cannot_be_found_is_named(used):
    _, call = used
    one_line(call("--output_dir", "other", "--model", "runs/nowhere"), "gear: model: runs/nowhere: ")


def test_fewer_rows_than_a_batch_takes_are_refused(used):
    _, call = used
    done = call("--output_dir", "few", "--per_device_train_batch_size", "20", "--max_steps", "1")
    one_line(done, "train_dataset: 4 rows, and a batch takes 5 prompts; give more rows")


def test_a_base_model_without_a_chat_template_is_one_line(used, tiny_model):
    folder, call = used
    model = Path(shutil.copytree(tiny_model, folder / "base"))
    (model / "chat_template.jinja").unlink()
    assert AutoTokenizer.from_pretrained(model).chat_template is None
    words = ["--model", "base", "--output_dir", "untemplated", "--max_steps", "1"]
    teacher = ["teacher", "--config", "run.yaml", "--model", "base", "--credit", "gear"]
    for done in (call(*words), gear(*teacher, cwd=folder)):
        one_line(done, "chat_template_path: the prompts are messages, and", "text prompts (chat: false)")
    done = call(*words, "--chat", "false", "--reward", "math", "--record_file", "null")
    assert done.returncode == 0 and "gear view" not in done.stdout, done.stderr


@pytest.mark.parametrize("words", [["--dry-run"], ["--smoke"], []])
def test_a_tracker_that_is_not_installed_names_what_installs_it(used, words):
    _, call = used
    done = call("--output_dir", "tracked", "--report_to", "[none, not_installed]", *words)
    one_line(done, "report_to: no tracker 'not_installed' is installed; pip install 'gear-rl[trackers]'")


def test_a_dry_run_reads_the_rows(used):
    _, call = used
    one_line(
        call("--dry-run", "--columns.solution", "task"), "columns.solution: rows.jsonl has no column 'task'"
    )
    for dry in (["--dry-run"], []):
        done = call(*dry, "--output_dir", "judged", "--eval_strategy", "steps")
        one_line(done, "eval_strategy: steps needs held-out rows; give held_out or eval_dataset")
    words = ["--credit", "gear", "--privileged_column", "hint"]
    one_line(call("--dry-run", *words), "the columns are prompt, answer, without 'hint'")
    words = ["--columns.gold", "answer", "--reward", "support.desk:short_answer"]
    one_line(call("--dry-run", *words), "reads the column 'answer', which columns.gold renames")
    done = call("--dry-run")
    assert done.returncode == 0 and "no reward is called" in done.stdout


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            "--num_generations 3",
            "num_generations: 3 does not divide the 4 completions that are generated",
        ),
        (
            "--max_completion_length 4096",
            "max_completion_length: 4096 tokens, and the model has 4096 positions",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(used, words, fault):
    _, call = used
    one_line(call("--output_dir", "sized", "--max_steps", "1", *words.split()), fault)


def test_a_step_that_is_not_finite_is_one_line(used, monkeypatch):
    folder, call = used
    own = GEARTrainer._compute_loss
    monkeypatch.setattr(GEARTrainer, "_compute_loss", lambda *args: own(*args) * torch.nan)
    done = call("--max_steps", "1", "--output_dir", "other")
    one_line(done, "step 1: not finite (loss nan, gradient norm nan)", "no checkpoint was saved yet")
    assert not (folder / "other" / "model.safetensors").exists()


def test_scores_that_cannot_be_read_are_one_line(used, tiny_model):
    _, call = used
    for credit, words in (
        (f"step_scores:prm={tiny_model}", ("prm: ", "which has no score for a token")),
        ("crpo", ("style: no reward function 1; the run has 1",)),
        ("step_scores:steps=tokens", ('no reward function logged "step_scores"; call log_extra',)),
    ):
        one_line(call("--max_steps", "2", "--output_dir", "scored", "--credit", credit), *words)


def test_a_file_that_is_read_is_not_written(used):
    folder, call = used
    rows = (folder / "rows.jsonl").read_bytes()
    (folder / "linked.jsonl").symlink_to("rows.jsonl")
    (folder / "in").mkdir()
    (folder / "in" / "rows.jsonl").write_bytes(rows)
    inside = ("--output_dir", "in", "--record_file", "rows.jsonl")
    for words, message in (
        (("--dataset", "in/rows.jsonl", *inside), "in/rows.jsonl is read here too; name another file"),
        (("--dataset", "in", *inside[:3], "records.jsonl"), "in/records.jsonl is in in, which is read here"),
        (("--record_file", "../linked.jsonl"), "record_file: out/../linked.jsonl is read here too"),
    ):
        one_line(call("--overwrite", *words), message)
    assert (folder / "rows.jsonl").read_bytes() == rows and (folder / "run.yaml").exists()
    assert [file.name for file in (folder / "in").iterdir()] == ["rows.jsonl"]


def test_records_outside_of_the_folder_are_never_replaced(used):
    folder, call = used
    records, words = folder / "shared.jsonl", ("--output_dir", "three", "--record_file", "../shared.jsonl")
    done = call("--max_steps", "2", *words)
    assert done.returncode == 0, done.stderr
    three = contents(folder / "three") | {records: records.read_bytes()}
    assert len(three[records].splitlines()) == 8
    assert done.stdout.endswith(", or: gear view three/../shared.jsonl\n")
    for more in ([], ["--overwrite"], ["--resume_from_checkpoint", "three/checkpoint-1"]):
        done = call("--max_steps", "2", *words, *more)
        one_line(done, "record_file: three/../shared.jsonl holds records already", "name a new file")
        assert contents(folder / "three") | {records: records.read_bytes()} == three
    done = gear("train", "--config", "three/gear.yaml", "--output_dir", "four", cwd=folder)
    one_line(done, "record_file: four/../shared.jsonl holds records already")
    command = (folder / "three" / "gear.yaml").read_text().splitlines()[0].replace("OTHER", "four")
    done = gear(*command.split()[2:], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert contents(folder / "three") | {records: records.read_bytes()} == three


def test_an_adapter_takes_no_second_one_and_the_message_says_how_to_merge_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 plus 1", "answer": "2"}\n')
    words = ["--model", ".", "--dataset", "rows.jsonl", "--reward", "support.desk:digits", "--lora.r", "2"]
    one_line(
        gear("train", *words, "--output_dir", "out", cwd=tmp_path),
        "lora: . is an adapter",
        "merge_and_unload",
    )
