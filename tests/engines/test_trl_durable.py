"""TRL's trainer without credit: killed, damaged or resumed runs, and steps that are not finite."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trl import GRPOTrainer

from engines import tiny
from engines.running import SAVING, same, trained_and_saved, trainer_of, weights
from gear_rl import GEARConfig
from gear_rl.engines.trl import checkpoints
from gear_rl.engines.trl.checkpoints import check_checkpoint
from gear_rl.engines.trl.durable import DurableTrainer

SHORT = {"gradient_accumulation_steps": 1, "max_completion_length": 4}
trained = partial(trained_and_saved, cls=DurableTrainer)


def checkpoints_of(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_a_step_is_trls(tiny_model, tmp_path):
    plain = trained_and_saved(tmp_path / "plain", tiny_model, cls=GRPOTrainer)
    assert type(plain) is GRPOTrainer
    assert same(weights(trained(tmp_path / "durable", tiny_model)), weights(plain))


def words(completions, **columns):
    return ["good"] * len(completions)


def test_a_reward_that_is_no_number_is_named(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"reward_funcs: of words, one returned what is no number .*str"):
        trainer_of(tmp_path, tiny_model, None, reward=words, cls=DurableTrainer).train()


def test_a_prompt_that_the_model_has_no_positions_for_is_told(tiny_model, tmp_path, caplog):
    trainer = trainer_of(tmp_path, tiny_model, None, cls=DurableTrainer, max_steps=1, **SHORT)
    told = r"step 1: a prompt has \d+ tokens, and the model 5 positions; leave such rows out"
    for places in (100, 5):
        trainer.model.config.max_position_embeddings = places
        trainer.train()
        assert bool(re.search(told, caplog.text)) == (places == 5), caplog.text


# --- bit for bit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"num_iterations": 2}, (1, 3)),
        ({"steps_per_generation": 4}, (1,)),
        ({}, (3,)),  # the third step ends an epoch
        ({"sync_ref_model": True, "beta": 0.5, "ref_model_sync_steps": 2}, (2,)),
    ],
    ids=["iterations", "generations", "epoch", "synced-reference"],
)
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tiny_model, tmp_path, changes, steps):
    whole = weights(trained(tmp_path / "whole", tiny_model, **changes))
    for step in steps:
        checkpoint, folder = tmp_path / "whole" / f"checkpoint-{step}", tmp_path / f"from-{step}"
        resumed = trained(folder, tiny_model, resume=str(checkpoint), save_steps=9, **changes)
        assert resumed.state.global_step == 4
        assert same(weights(resumed), whole), step


@pytest.mark.parametrize(("steps", "resumed", "warned"), [(5, 2, False), (5, 4, True), (2, 2, False)])
def test_a_stream_is_resumed_until_its_end(tiny_model, tmp_path, caplog, steps, resumed, warned):
    """Behind it transformers does not find the place, so the rows are others, and a warning says so."""
    stream = {**SAVING, "rows": tiny.rows(6).to_iterable_dataset()}  # of three steps
    stream |= {"cls": DurableTrainer}
    trainer_of(tmp_path, tiny_model, None, **stream | {"max_steps": steps}).train()
    trainer = trainer_of(tmp_path / "on", tiny_model, None, **stream | {"max_steps": 5})
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{resumed}"))
    assert ("the stream was read to its end" in caplog.text) == warned


# --- whole before it counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", ["_write", "seal", "move_into_place"])
def test_a_run_that_dies_while_it_saves_loses_nothing(tiny_model, tmp_path, monkeypatch, caplog, dies):
    """With ``save_total_limit=1`` the one before must not be deleted before the next one counts."""
    options = {"save_total_limit": 1, "max_steps": 3, **SHORT}
    whole = trained(tmp_path / "whole", tiny_model, **options)
    own, calls, folder = getattr(checkpoints, dies), [], tmp_path / "run"

    def deadly(*args, **more):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return own(*args, **more)

    monkeypatch.setattr(checkpoints, dies, deadly)
    with pytest.raises(KeyboardInterrupt):
        trained(folder, tiny_model, **options)
    monkeypatch.undo()
    assert checkpoints_of(folder) == ["checkpoint-1"]
    (folder / "checkpoint-2").mkdir()  # transformers would resume from this one
    resumed = trained(folder, tiny_model, resume=True, **options)
    assert "checkpoint-2 is passed over: it has no manifest.json" in caplog.text
    assert same(weights(resumed), weights(whole))
    assert checkpoints_of(folder) == ["checkpoint-3"] and not (folder / ".unfinished").exists()
    files = "model.safetensors optimizer.pt scheduler.pt rng_state.pth rollouts-0.pt"
    assert check_checkpoint(folder / "checkpoint-3").files.keys() >= {*files.split(), "trainer_state.json"}


def test_a_copy_of_the_users_stays_beside_the_best_and_the_newest(tiny_model, tmp_path):
    rows, best = tiny.rows(6), {"load_best_model_at_end": True, "metric_for_best_model": "eval_pass@1"}
    often = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "num_generations_eval": 2,
        "per_device_eval_batch_size": 4,
    }
    settings = {**SAVING, **SHORT, **best, **often, "max_steps": 2, "save_total_limit": 1}
    args = GEARConfig(**tiny.settings(tmp_path, **settings))
    (tmp_path / "checkpoint-3-keep").mkdir(parents=True)
    DurableTrainer(tiny_model, tiny.vowels, args, rows, eval_dataset=rows.select([0, 1])).train()
    assert checkpoints_of(tmp_path) == ["checkpoint-1", "checkpoint-2", "checkpoint-3-keep"]
    assert args.save_total_limit == 1


def test_only_a_whole_checkpoint_is_pushed(tiny_model, tmp_path, monkeypatch):
    pushed = []

    def push(trainer, folder):
        pushed.append((folder, check_checkpoint(Path(folder)).run == trainer.checkpoints.run))

    monkeypatch.setattr(GRPOTrainer, "_push_from_checkpoint", push)
    monkeypatch.setattr(GRPOTrainer, "init_hf_repo", lambda *_, **__: None)
    trained(tmp_path, tiny_model, max_steps=1, push_to_hub=True, hub_strategy="every_save", **SHORT)
    assert pushed == [(str(tmp_path / "checkpoint-1"), True)]


# --- not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
@pytest.mark.parametrize("how", ["stop", "skip"])
def test_a_step_that_is_not_finite_changes_no_weight(tiny_model, tmp_path, what, how):
    """In the first micro-batch of step 3 the loss, or a gradient under a finite loss, is infinite."""
    changes = SAVING | {"max_completion_length": 4, "non_finite_step": how}
    trainer = trainer_of(tmp_path, tiny_model, None, rows=tiny.rows(12), cls=DurableTrainer, **changes)
    own, seen = trainer._compute_loss, []

    def spoil(model, inputs):
        loss = own(model, inputs)
        seen.append(trainer.state.global_step)
        if seen.count(2) != 1 or seen[-1] != 2:
            return loss
        weight = next(iter(trainer.model.parameters()))
        return loss + (torch.inf if what == "loss" else (weight - weight.detach()).sum() * 1e38 * 1e38)

    trainer._compute_loss = spoil
    if how == "stop":
        message = rf"step 3: not finite \(.*{what} .*no weight was changed.*is {tmp_path}/checkpoint-2\."
        with pytest.raises(FloatingPointError, match=message):
            trainer.train()
        assert same(load_file(tmp_path / "checkpoint-2" / "model.safetensors"), weights(trainer))
        return
    trainer.train()
    steps = [load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3, 4)]
    assert same(steps[0], steps[1]) and not same(steps[1], steps[2])
    assert all(p.isfinite().all() for p in weights(trainer).values())
    skipped = [entry.get("gear/skipped_steps") for entry in trainer.state.log_history if "loss" in entry]
    assert skipped == [None, None, 1.0, None]
