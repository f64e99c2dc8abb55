"""A run's folder holds the file that runs it again."""

import yaml

from gear_rl.arena.task import get_task
from gear_rl.cli.progress import ProgressLine
from gear_rl.method_builder import build_method
from gear_rl.runs.resolved import RUN_FILE
from gear_rl.runs.run_config import load_config
from support.commands import gear

WORDS = ("--model", "arena", "--dataset", "arena/chain/easy", "--reward", "arena", "--max_steps", "1")
SMALL = ("--per_device_train_batch_size", "8", "--num_generations", "8", "--max_completion_length", "8")


def test_it_holds_the_settings_that_were_run(tmp_path):
    folder = tmp_path / "run"
    words = (*WORDS, *SMALL, "--credit", "shuffled:of.alpha=2.5", "--run_name", "7e12345")
    done = gear("train", *words, "--output_dir", str(folder), "--save_steps", "2", "--hub_token", "hf_secret")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load((folder / RUN_FILE).read_text())
    assert found["credit"]["of"]["alpha"] == 2.5 and found["credit"]["of"]["onset_rule"] == "peak"
    assert found["teacher_model_kind"] == "base", "the method's own setting"
    assert isinstance(found["save_steps"], int)
    again, first = load_config(folder / RUN_FILE), load_config(None, words)
    assert build_method(again.credit) == build_method(first.credit)
    assert first.trainer.items() <= again.trainer.items()
    assert {**again.model_dump(), "credit": 0} == {**first.model_dump(), "credit": 0}
    assert not any("hf_secret" in (folder / name).read_text() for name in (RUN_FILE, "report.html"))
    card = (folder / "README.md").read_text()
    assert "`shuffled` of gear-rl (source: placebo (ours))" in card
    assert "fine-tuned version of `arena` on `arena/chain/easy`." in card and "None" not in card


def test_a_method_that_is_an_object_comes_back_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text("from gear_rl import Gear\nmethod = Gear(alpha=2.5)\n")
    done = gear("train", *WORDS, *SMALL, "--credit", "mine:method", "--output_dir", "null", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = gear("train", "--config", "runs/train/gear.yaml", "--output_dir", "two", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_interrupted_run_names_the_command_that_resumes_it(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    words = (*WORDS, *SMALL, "--max_steps", "2", "--save_steps", "1", "--output_dir", str(folder))
    # The method's own teacher_model_kind may not come back from the file.
    words = (*words, "--teacher_model", str(get_task("chain").checkpoint))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    command = f"gear train --config {folder / RUN_FILE} --resume_from_checkpoint latest"
    for moment, said in (
        ("on_step_end", f"{folder} has no checkpoint yet"),
        ("on_save", f"gear: interrupted; go on with: {command}\n"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(ProgressLine, moment, interrupted)
            done = gear("train", *words, "--overwrite")
        assert done.returncode == 130 and said in done.stderr
    done = gear(*command.split()[1:])
    assert done.returncode == 0 and "step 2/2:" in done.stderr and "step 1/2:" not in done.stderr
