"""A run that is killed, damaged or resumed with other settings: it ends where it would have, or says why not."""

import logging
import re

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.models import load_causal_lm
from gear_rl.engines.trl import checkpoints
from gear_rl.engines.trl.checkpoints import (
    MAY_CHANGE,
    checked,
    differences,
    fingerprint,
    may_change,
    read_manifest,
)

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.02}
SHORT = {"gradient_accumulation_steps": 1, "max_completion_length": 4}


def made(folder, model, credit=None, rows=6, **changes):
    """A trainer whose weights move by much; six rows are three steps of an epoch."""
    settings = tiny.settings(folder, **SAVING | changes)
    return GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(rows), credit=credit or Gear())


def trained(folder, model, resume=None, **changes):
    trainer = made(folder, model, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- bit for bit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"num_iterations": 2}, (1, 3)),
        ({"steps_per_generation": 4, "student_pass": "own"}, (1, 3)),
        ({"student_pass": "auto"}, (3,)),  # credit in the loss; the third step ends an epoch
        ({"sync_ref_model": True, "beta": 0.5, "ref_model_sync_steps": 2}, (2, 3)),
        ({"teacher_model_kind": "ema", "teacher_update_rate": 0.5}, (2,)),
        ({"teacher_model_kind": "sync", "teacher_sync_steps": 2}, (3,)),
    ],
    ids=["iterations", "generations", "late", "synced-reference", "ema", "sync"],
)
def test_from_every_step_a_resumed_run_ends_where_the_uninterrupted_one_does(
    tiny_model, tmp_path, changes, steps
):
    whole = weights(trained(tmp_path / "whole", tiny_model, **changes))
    for step in steps:
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        resumed = trained(tmp_path / f"from-{step}", tiny_model, resume=checkpoint, save_steps=9, **changes)
        assert resumed.state.global_step == 4
        assert same(weights(resumed), whole), step


def test_a_finished_run_that_is_resumed_does_nothing_and_says_so(tiny_model, tmp_path, caplog):
    whole = trained(tmp_path, tiny_model, max_steps=2, **SHORT)
    resumed = trained(tmp_path, tiny_model, resume=True, max_steps=2, **SHORT)
    assert same(weights(resumed), weights(whole))
    assert "the run is finished (step 2 of 2), so nothing is trained" in caplog.text
    further = trained(tmp_path, tiny_model, resume="latest", max_steps=4, **SHORT)
    assert further.state.global_step == 4 and not same(weights(further), weights(whole))


# --- whole before it counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", ["_write", "seal", "move_into_place"])
def test_what_dies_while_it_saves_loses_nothing(tiny_model, tmp_path, monkeypatch, caplog, dies):
    """With room for one checkpoint: the one before must not be gone before the next one counts."""
    options = {"teacher_model_kind": "ema", "save_total_limit": 1, "max_steps": 3, **SHORT}
    whole = trained(tmp_path / "whole", tiny_model, **options)
    own = getattr(checkpoints, dies)
    calls = []

    def deadly(*args, **more):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return own(*args, **more)

    monkeypatch.setattr(checkpoints, dies, deadly)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", tiny_model, **options)
    monkeypatch.undo()
    assert sorted(p.name for p in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-1"]
    # As a kill leaves it: transformers' own hand would take this one.
    (tmp_path / "run" / "checkpoint-2").mkdir()
    resumed = trained(tmp_path / "run", tiny_model, resume=True, **options)
    assert "checkpoint-2 is passed over: it has no manifest.json" in caplog.text
    assert same(weights(resumed), weights(whole))
    assert sorted(p.name for p in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-3"]
    assert not (tmp_path / "run" / ".unfinished").exists()
    assert checked(tmp_path / "run" / "checkpoint-3").files.keys() >= {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "rollouts-0.pt",
        "teacher.safetensors",
        "trainer_state.json",
    }


def test_a_checkpoint_that_is_named_and_does_not_hold_is_refused(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, max_steps=1, **SHORT)
    (tmp_path / "checkpoint-1" / "scheduler.pt").unlink()
    named = str(tmp_path / "checkpoint-1")
    message = re.escape(f"resume_from_checkpoint: {named} is no whole checkpoint: scheduler.pt is missing")
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, tiny_model, resume=named, **SHORT)


def test_latest_never_takes_another_runs_checkpoint(tiny_model, tmp_path, caplog):
    trained(tmp_path / "a", tiny_model, max_steps=2, **SHORT)
    (tmp_path / "a" / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    trained(tmp_path / "a", tiny_model, max_steps=1, overwrite_output_dir=True, **SHORT)
    (tmp_path / "checkpoint-2").rename(tmp_path / "a" / "checkpoint-2")
    first, second = (read_manifest(tmp_path / "a" / f"checkpoint-{step}").run for step in (1, 2))
    assert first != second
    resumed = made(tmp_path / "a", tiny_model, **SHORT)
    parts = resumed.train_dataset, resumed.reward_func_names, resumed.model
    configuration = fingerprint(resumed.args, resumed.credit, *parts)
    run, path = resumed.checkpoints.begin(True, configuration)
    assert (run.id, path) == (first, str(tmp_path / "a" / "checkpoint-1"))
    assert "checkpoint-2 is passed over: it is of another run" in caplog.text
    elsewhere = made(tmp_path / "b", tiny_model, max_steps=1, **SHORT)
    elsewhere.train()
    with pytest.raises(
        ValueError, match=r"output_dir: .*b holds another run than .*checkpoint-1 \(checkpoint-1\)"
    ):
        elsewhere.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))


def test_a_new_run_replaces_no_checkpoint_unless_that_is_meant(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, max_steps=2, **SHORT)
    again = made(tmp_path, tiny_model, max_steps=1, **SHORT)
    with pytest.raises(
        ValueError, match=r"output_dir: .* holds a run already \(checkpoint-1, checkpoint-2\); "
    ):
        again.train()
    assert checked(tmp_path / "checkpoint-2").run == again.run_folder.run, (
        "it is the first run's folder still"
    )
    trained(tmp_path, tiny_model, resume=True, max_steps=2, overwrite_output_dir=True, **SHORT)
    assert (tmp_path / "checkpoint-2").exists(), "a resume is the more particular wish"
    trained(tmp_path, tiny_model, max_steps=1, overwrite_output_dir=True, **SHORT)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


def test_a_new_run_keeps_old_records_unless_they_are_overwritten(tiny_model, tmp_path):
    changes = {"max_steps": 1, "save_strategy": "no", "record_file": "records.jsonl"}
    kept = []
    for n in range(2):
        trained(tmp_path, tiny_model, seed=n, **changes)
        kept.append((tmp_path / "records.jsonl").read_bytes())
    trained(tmp_path, tiny_model, seed=2, **changes)
    assert [(tmp_path / f"records.{n}.jsonl").read_bytes() for n in (1, 2)] == kept and kept[0] != kept[1]
    trained(tmp_path, tiny_model, seed=3, overwrite_output_dir=True, **changes)
    assert not (tmp_path / "records.3.jsonl").exists()


def test_the_best_checkpoint_is_named_by_where_it_stays(tiny_model, tmp_path):
    changes = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "max_steps": 2}
    changes |= {"metric_for_best_model": "reward", "eval_greedy": False, "num_generations_eval": 2} | SHORT
    settings = tiny.settings(tmp_path, **SAVING | changes, per_device_eval_batch_size=4)
    rows = tiny.rows(2)
    trainer = GEARTrainer(tiny_model, tiny.vowels, GEARConfig(**settings), rows, rows, credit=Uniform())
    trainer.train()
    best = tmp_path / f"checkpoint-{trainer.state.best_global_step}"
    assert trainer.state.best_model_checkpoint == str(best)
    assert f'"best_model_checkpoint": "{best}"' in (best / "trainer_state.json").read_text()
    assert same(load_file(best / "model.safetensors"), weights(trainer))


# --- another configuration -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_step(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-step")
    trained(folder, tiny_model, max_steps=1, **SHORT)
    return folder / "checkpoint-1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"credit": Gear(alpha=0.5)}, "credit.alpha 4.0 is now 0.5"),
        ({"credit": Uniform()}, "credit 'gear' is now 'uniform'"),
        ({"rows": 8}, "train_dataset '6 rows of .*' is now '8 rows of"),
        ({"seed": 7}, "seed 42 is now 7"),
        ({"learning_rate": 0.1}, "learning_rate 0.02 is now 0.1"),
        ({"lr_scheduler_type": "constant"}, "lr_scheduler_type 'linear' is now 'constant'"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size 4 is now 8"),
        ({"beta": 0.1}, "beta 0.0 is now 0.1"),
        ({"teacher_model_kind": "ema"}, "teacher_model_kind 'base' is now 'ema'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_configuration_is_refused_with_both_values(tiny_model, tmp_path, one_step, changes, words):
    trainer = made(tmp_path, tiny_model, **SHORT | changes)
    with pytest.raises(
        ValueError, match=f"was made with another configuration: .*{words}.*set resume_anyway"
    ):
        trainer.train(resume_from_checkpoint=str(one_step))


def test_what_may_change_passes_and_the_rest_only_if_it_is_meant(tiny_model, tmp_path, one_step, caplog):
    changes = {"max_steps": 2, "save_steps": 5, "logging_steps": 2, "run_name": "longer"}
    trainer = trained(tmp_path / "same", tiny_model, resume=str(one_step), **SHORT | changes)
    assert trainer.state.global_step == 2
    mine = read_manifest(one_step).run
    assert trainer.run is not None and trainer.run.id == mine, "it is the same run"
    changes |= {"seed": 7, "resume_anyway": True}
    other = trained(tmp_path / "other", tiny_model, resume=str(one_step), **SHORT | changes)
    assert other.state.global_step == 2
    assert other.run is not None and other.run.id != mine
    assert "resume_anyway: goes on as a new run: seed 42 is now 7" in caplog.text


def test_every_setting_that_may_change_is_one():
    """A typing error in the list would let a change pass as a refusal, or none at all."""
    known = set(GEARConfig.__dataclass_fields__)
    assert MAY_CHANGE - known <= {"local_rank", "debug", "vllm_enable_sleep_mode"}
    assert not any(may_change(name) for name in ("credit", "seed", "train_dataset", "processes", "model"))


# --- not finite ----------------------------------------------------------------------------------------------


def spoiled(trainer, at_step: int, what: str):
    """In the first micro-batch of a step the loss, or a weight's gradient under a finite loss, is not finite."""
    own = trainer._compute_loss
    seen = []

    def spoil(model, inputs):
        loss = own(model, inputs)
        seen.append(trainer.state.global_step)
        if trainer.state.global_step != at_step or seen.count(at_step) > 1:
            return loss
        if what == "loss":
            return loss + torch.inf
        weight = next(iter(trainer.model.parameters()))
        return loss + (weight - weight.detach()).sum() * 1e38 * 1e38

    trainer._compute_loss = spoil


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_a_step_that_is_not_finite_stops_the_run_before_a_weight_changes(tiny_model, tmp_path, what):
    trainer = made(tmp_path, tiny_model, rows=12, max_completion_length=4)
    spoiled(trainer, at_step=2, what=what)
    message = rf"step 3: not finite \(.*{what} .*no weight was changed.*is {tmp_path}/checkpoint-2\."
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    assert same(load_file(tmp_path / "checkpoint-2" / "model.safetensors"), weights(trainer))


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_or_the_step_is_left_out(tiny_model, tmp_path, what):
    trainer = made(tmp_path, tiny_model, rows=12, max_completion_length=4, non_finite_step="skip")
    spoiled(trainer, at_step=2, what=what)
    trainer.train()
    steps = [load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3, 4)]
    assert same(steps[0], steps[1]) and not same(steps[1], steps[2])
    assert all(p.isfinite().all() for p in weights(trainer).values())
    skipped = [entry.get("gear/skipped_steps") for entry in trainer.state.log_history if "loss" in entry]
    assert skipped == [None, None, 1.0, None]


def test_infinite_rewards_are_counted_and_warned_of_once(tiny_model, tmp_path, caplog):
    def boundless(completions, **_):
        return [float("inf"), *[1.0] * (len(completions) - 2), float("-inf")]

    changes = {"max_steps": 2, "save_strategy": "no"} | SHORT
    settings = tiny.settings(tmp_path, **SAVING | changes)
    rewards = [tiny.vowels, boundless]
    trainer = GEARTrainer(tiny_model, rewards, GEARConfig(**settings), tiny.rows(4), credit=Gear())
    with caplog.at_level(logging.WARNING, "gear_rl"):
        trainer.train()
    counts = [entry["gear/rewards/non_finite"] for entry in trainer.state.log_history if "loss" in entry]
    assert counts == [2.0, 2.0]
    [message] = [text for text in caplog.messages if "infinite" in text]
    assert message.startswith("step 0: 2 rewards are infinite (boundless);")


def test_rewards_model_and_adapter_are_part_of_the_configuration(tiny_model):
    args, model = GEARConfig("out", use_cpu=True), load_causal_lm(str(tiny_model), {})
    prints = []
    for name, r in (("exact", 2), ("close", 4)):
        model.peft_config = {"default": LoraConfig(r=r)}
        prints.append(fingerprint(args, Gear(), None, [name], model))
    changed = differences(prints[0], prints[1])
    assert changed == "lora.default.r 2 is now 4, reward_funcs ['exact'] is now ['close']"
    model.more = torch.nn.Linear(1, 2)
    assert "model 'qwen3, " in differences(prints[1], fingerprint(args, Gear(), None, ["close"], model))
