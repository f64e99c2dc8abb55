"""Folders of checkpoints and of runs, without a training: which one is taken, and which process may write."""

import logging
import os
import re
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig
from transformers import TrainerState

from engines import tiny
from gear_rl import GEARConfig
from gear_rl.engines.folder import UNFINISHED, RunFolder, checkpoints_in
from gear_rl.engines.trl.checkpoints import (
    MANIFEST,
    BrokenCheckpointError,
    Checkpoints,
    check_checkpoint,
    differences,
    fingerprint,
    newest_whole,
    rotate,
    seal,
)

FILES = {"model.safetensors": b"weights" * 9, "deep/rng_state_1.pth": b"numbers"}


def checkpoint(folder, step, run="mine", **facts):
    path = folder / f"checkpoint-{step}"
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    seal(path, run=run, configuration={"seed": step, "rate": 1e-3}, **facts)
    return path


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_missing_or_cut_file_is_found_and_the_one_before_is_taken(tmp_path, caplog, name, cut):
    before, newest = checkpoint(tmp_path, 2), checkpoint(tmp_path, 10)
    (newest / "notes.txt").write_text("a file that came later")
    assert newest_whole(tmp_path, "mine")[0] == newest
    content = (newest / name).read_bytes()
    (newest / name).unlink()
    if cut:
        (newest / name).write_bytes(content[:-2])
    with pytest.raises(BrokenCheckpointError, match=re.escape(name)):
        check_checkpoint(newest)
    with caplog.at_level(logging.WARNING):
        path, manifest = newest_whole(tmp_path, "mine")
    assert path == before and manifest.configuration == {"seed": 2, "rate": 1e-3}
    assert "checkpoint-10 is passed over" in caplog.text and name in caplog.text


def begun(folder, resume=None, configuration=None, **changes):
    """A run that begins, or goes on; returns its checkpoints and the one to resume from."""
    args = GEARConfig(str(folder), use_cpu=True, **changes)
    own = Checkpoints(RunFolder(folder, "records.jsonl"), args, Accelerator(cpu=True))
    with own.writing():
        return own, own.begin(resume, configuration or {"seed": 2, "rate": 1e-3})


def test_latest_is_the_newest_whole_one_of_the_folders_run(tmp_path, caplog):
    run = begun(tmp_path)[0].run
    checkpoint(tmp_path, 7, run="another")
    checkpoint(tmp_path, 8, run, resumable=False)
    (tmp_path / "checkpoint-99999").mkdir()
    with pytest.raises(ValueError, match="holds no whole checkpoint of this run") as error:
        begun(tmp_path, True)
    for why in (
        "checkpoint-99999: it has no manifest.json",
        "checkpoint-8: it was saved with save_only_model",
        "checkpoint-7: it is of another run",
    ):
        assert why in str(error.value)
    assert newest_whole(tmp_path, None)[1].run == "another", "where the folder's run is not known"
    checkpoint(tmp_path, 2, run)
    own, resumed = begun(tmp_path, "latest", overwrite_output_dir=True)
    assert resumed == own.last == str(tmp_path / "checkpoint-2") and (own.run, own.same) == (run, True)


def test_a_named_checkpoint_is_whole_and_not_mixed_with_another_run(tmp_path):
    a, b = checkpoint(tmp_path / "a", 2), tmp_path / "b"
    assert begun(tmp_path / "new", str(a))[0].run == "mine"
    checkpoint(b, 1)
    with pytest.raises(ValueError, match=r"output_dir: .*b holds another run than .*-2 \(checkpoint-1"):
        begun(b, str(a))
    (a / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"is no whole checkpoint: model\.safetensors is missing or cut"):
        begun(tmp_path / "a", str(a))


def test_who_goes_back_to_an_older_checkpoint_begins_another_run(tmp_path):
    """Else the later ones would be the newest: never deleted, and what ``latest`` takes."""
    older, newest = checkpoint(tmp_path, 2), checkpoint(tmp_path, 4)
    checkpoint(tmp_path, 6, run="another")
    facts = {"seed": 4, "rate": 1e-3}
    assert begun(tmp_path, str(newest), facts)[0].run == "mine"
    own, resumed = begun(tmp_path, str(older))
    assert (resumed, own.same) == (str(older), True) and own.run != "mine"
    (newest / MANIFEST).unlink()
    RunFolder(tmp_path).begin("mine")
    assert begun(tmp_path, "latest")[0].run == begun(tmp_path, str(older))[0].run == "mine"


def test_every_process_knows_the_best_checkpoint(tmp_path):
    """Transformers looks for it where another process may not have written yet, and then leaves it at None."""
    _, (own, _) = checkpoint(tmp_path, 2), begun(tmp_path / "run", str(tmp_path / "checkpoint-2"))
    for step, best_step in ((4, 2), (5, 5)):
        state = TrainerState(global_step=step, best_global_step=best_step)
        aside = tmp_path / UNFINISHED / f"checkpoint-{step}"
        own.save(state, tmp_path, partial(aside.mkdir, parents=True), {}, {})
        assert state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best_step}")


def test_another_configuration_is_refused_unless_that_is_meant(tmp_path, caplog):
    path = str(checkpoint(tmp_path, 2))
    message = (
        "made with another configuration: rate 0.001 is now 0.1, seed 2 is now None; .*set resume_anyway"
    )
    with pytest.raises(ValueError, match=message):
        begun(tmp_path, path, {"rate": 0.1})
    own, _ = begun(tmp_path, path, {"rate": 0.1}, resume_anyway=True)
    assert own.run != "mine" and not own.same
    assert "resume_anyway: goes on as a new run: rate 0.001 is now 0.1" in caplog.text


def test_a_new_run_replaces_nothing_unless_that_is_meant(tmp_path):
    records = tmp_path / "records.jsonl"
    run = begun(tmp_path)[0].run
    records.write_text("old\n")
    begun(tmp_path)
    assert (tmp_path / "records.1.jsonl").read_text() == "old\n" and not records.exists()
    run = RunFolder(tmp_path).run
    checkpoint(tmp_path, 2, run)
    with pytest.raises(ValueError, match=r"output_dir: .* holds a run already \(checkpoint-2\); "):
        begun(tmp_path)
    assert RunFolder(tmp_path).run == run, "still the first run's folder"
    records.write_text("new\n")
    begun(tmp_path, overwrite_output_dir=True)
    assert not checkpoints_in(tmp_path) and not records.exists()
    assert not (tmp_path / "records.2.jsonl").exists()


def configuration(rows=6, rewards=("exact",), r=2, base="a", width=2, **settings):
    model, lora = tiny.model(300), LoraConfig(r=r, base_model_name_or_path=base)
    model.peft_config, model.more = {"default": lora}, torch.nn.Linear(1, width)
    args = GEARConfig("out", use_cpu=True, **settings)
    return fingerprint(args, tiny.rows(rows), rewards, model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 8}, "train_dataset '6 rows of .*' is now '8 rows of"),
        ({"learning_rate": 0.1, "seed": 7}, "learning_rate 1e-06 is now 0.1.* seed 42 is now 7"),
        ({"teacher_model_kind": "ema"}, "teacher_model_kind None is now 'ema'"),
        ({"rewards": ["close"]}, r"reward_funcs \['exact'\] is now \['close'\]"),
        ({"r": 4}, "lora.default.r 2 is now 4"),
        ({"base": "b"}, "lora.default.base_model_name_or_path 'a' is now 'b'"),
        ({"width": 3}, "model 'qwen3, .* parameters' is now 'qwen3, .* parameters'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_resumed_run_must_share(changes, words):
    assert re.search(words, differences(configuration(), configuration(**changes))[0])


def test_settings_that_change_no_result_are_only_named():
    changes = {"max_steps": 2, "save_steps": 5, "logging_steps": 2, "run_name": "longer"}
    refused, named = differences(configuration(), configuration(**changes))
    assert not refused
    assert named == (
        "logging_steps 10 is now 2, max_steps -1 is now 2, run_name None is now 'longer', save_steps 500 is now 5"
    )


@pytest.mark.parametrize(("saved", "own"), [("http://a", "http://b"), (None, "http://b"), ("http://a", None)])
def test_a_teacher_behind_a_server_may_move_but_not_come_or_go(saved, own):
    refused, _ = differences({"teacher_url": saved}, {"teacher_url": own})
    assert bool(refused) == (None in (saved, own))


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (None, None, [1, 2, 3, 4]),
        (2, None, [3, 4]),
        (1, 1, [1, 4]),
        (3, 1, [1, 3, 4]),
    ],
)
def test_the_oldest_of_this_run_go_but_not_the_newest_nor_the_best(tmp_path, keep, best, left):
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 99, run="another")
    (tmp_path / "checkpoint-98").mkdir()
    rotate(tmp_path, "mine", keep, best and os.path.relpath(tmp_path / f"checkpoint-{best}"))
    assert [int(path.name[11:]) for path in reversed(checkpoints_in(tmp_path))] == [*left, 98, 99]
    assert not (tmp_path / UNFINISHED).exists()
