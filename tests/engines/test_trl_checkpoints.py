"""A run that is killed, damaged or resumed with other settings: it ends where it would have, or is refused."""

import dataclasses
import logging

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engines import tiny
from engines.distilling import speaking
from engines.probing import Probe
from engines.running import history, same, trainer_of, weights
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.trl import checkpoints
from gear_rl.engines.trl.checkpoints import checked

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.02}
SHORT = {"gradient_accumulation_steps": 1, "max_completion_length": 4}


def made(folder, model, credit=None, rows=6, **changes):
    """A trainer whose weights move by much; six rows are three steps of an epoch."""
    return trainer_of(folder, model, credit or Gear(), rows=tiny.rows(rows), **SAVING | changes)


def trained(folder, model, resume=None, **changes):
    trainer = made(folder, model, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def checkpoints_of(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


# --- bit for bit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"num_iterations": 2}, (1, 3)),
        ({"steps_per_generation": 4, "student_pass": "own"}, (1,)),
        ({"teacher_model_kind": "live"}, (3,)),  # credit in the loss; the third step ends an epoch
        ({"sync_ref_model": True, "beta": 0.5, "ref_model_sync_steps": 2}, (2,)),
        ({"teacher_model_kind": "ema", "teacher_update_rate": 0.5}, (2,)),
        ({"teacher_model_kind": "sync", "teacher_sync_steps": 2}, (3,)),
    ],
    ids=["iterations", "generations", "late", "synced-reference", "ema", "sync"],
)
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tiny_model, tmp_path, changes, steps):
    whole = weights(trained(tmp_path / "whole", tiny_model, **changes))
    for step in steps:
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        live = changes.get("teacher_model_kind") == "live"
        assert (checkpoint / "teacher.safetensors").exists() is not live
        folder = tmp_path / f"from-{step}"
        resumed = trained(folder, tiny_model, resume=str(checkpoint), save_steps=9, **changes)
        assert resumed.state.global_step == 4
        assert same(weights(resumed), whole), step


def test_a_finished_run_that_is_resumed_does_nothing(tiny_model, tmp_path, caplog):
    whole = trained(tmp_path, tiny_model, max_steps=2, **SHORT)
    resumed = trained(tmp_path, tiny_model, resume=True, max_steps=2, **SHORT)
    assert same(weights(resumed), weights(whole))
    assert "the run is finished (step 2 of 2), so nothing is trained" in caplog.text
    further = trained(tmp_path, tiny_model, resume="latest", max_steps=4, **SHORT)
    assert further.state.global_step == 4 and not same(weights(further), weights(whole))


@dataclasses.dataclass(frozen=True)
class Reference(Probe):
    needs: tuple[str, ...] = ("reference_logprob", "student_logprob")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_reference_is_the_first_model_after_training_and_after_resuming(tiny_model, tmp_path, lora):
    """Also where an adapter began as more than nothing: without it the model is another."""

    def trainer(probe):
        net = AutoModelForCausalLM.from_pretrained(tiny_model)
        peft = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2) if lora else None
        changes = SAVING | {"max_steps": 3, "save_steps": 2, "temperature": 0.8}
        torch.manual_seed(0)  # not every TRL has its seed set before it makes an adapter
        return speaking(trainer_of(tmp_path, net, probe, peft=peft, **changes))

    whole, resumed, first = trainer(Reference()), trainer(Reference()), trainer(Reference()).model.eval()
    whole.train()
    size = (tmp_path / "checkpoint-2" / "reference.safetensors").stat().st_size
    every = sum(p.numel() for p in first.parameters() if p.requires_grad)
    assert every * 4 < size < every * 4 + 8000, "what is trained, and nothing else"
    outputs, spread = [], GEARTrainer._spread
    resumed._spread = lambda inputs, output: outputs.append(output) or spread(resumed, inputs, output)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    signals, output = resumed.credit.shown[-1][1], outputs[-1]
    ids = output["completion_ids"]
    with torch.no_grad():
        logits = first(
            input_ids=torch.cat([output["prompt_ids"], ids], 1),
            attention_mask=torch.cat([output["prompt_mask"], output["completion_mask"]], 1),
        ).logits[:, -ids.shape[1] - 1 : -1]
    own = (logits / 0.8).log_softmax(-1).gather(-1, ids[..., None])[..., 0] * output["completion_mask"]
    scored = signals.reference_logprob.any(-1)
    torch.testing.assert_close(signals.reference_logprob[scored], own[scored], rtol=1e-4, atol=1e-4)
    assert (signals.student_logprob - signals.reference_logprob)[scored].abs().max() > 0.05, "it has moved"
    assert torch.equal(signals.reference_logprob, whole.credit.shown[-1][1].reference_logprob)


def test_a_checkpoint_without_the_reference_is_refused(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, credit=Probe(), max_steps=1, **SHORT)
    trainer = made(tmp_path, tiny_model, credit=Reference(), max_steps=2, resume_anyway=True, **SHORT)
    with pytest.raises(ValueError, match=r"checkpoint-1: reference.safetensors: .* 0 parameters saved"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


# --- whole before it counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", ["_write", "seal", "move_into_place"])
def test_a_run_that_dies_while_it_saves_loses_nothing(tiny_model, tmp_path, monkeypatch, caplog, dies):
    """With ``save_total_limit=1`` the one before must not be deleted before the next one counts."""
    options = {"teacher_model_kind": "ema", "save_total_limit": 1, "max_steps": 3, **SHORT}
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
    files = "model.safetensors optimizer.pt scheduler.pt rng_state.pth rollouts-0.pt teacher.safetensors"
    assert checked(folder / "checkpoint-3").files.keys() >= {*files.split(), "trainer_state.json"}


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


# --- not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
@pytest.mark.parametrize("how", ["stop", "skip"])
def test_a_step_that_is_not_finite_changes_no_weight(tiny_model, tmp_path, what, how):
    """In the first micro-batch of step 3 the loss, or a gradient under a finite loss, is infinite."""
    trainer = made(tmp_path, tiny_model, rows=12, max_completion_length=4, non_finite_step=how)
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


def test_infinite_rewards_are_counted_and_warned_of_once(tiny_model, tmp_path, caplog):
    def boundless(completions, **_):
        return [float("inf"), *[1.0] * (len(completions) - 2), float("-inf")]

    trainer = made(tmp_path, tiny_model, max_steps=2, save_strategy="no", **SHORT)
    trainer.reward_funcs[:], trainer.reward_func_names[:] = [boundless], ["boundless"]
    with caplog.at_level(logging.WARNING, "gear_rl"):
        trainer.train()
    assert history(trainer, "gear/rewards/non_finite") == [2.0, 2.0]
    [message] = [text for text in caplog.messages if "infinite" in text]
    assert message.startswith("step 0: 2 rewards are infinite (boundless);")
