"""A run that is killed, damaged or resumed with other settings: it ends where it would have, or is refused."""

import dataclasses
import logging
import re

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engines import tiny
from engines.distilling import speaking
from engines.probing import Probe
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
        args = GEARConfig(**tiny.settings(tmp_path, **changes))
        torch.manual_seed(0)  # not every TRL has its seed set before it makes an adapter
        return speaking(GEARTrainer(net, tiny.vowels, args, tiny.rows(), peft_config=peft, credit=probe))

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


def test_a_damaged_checkpoint_that_is_named_is_refused(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, max_steps=1, **SHORT)
    (tmp_path / "checkpoint-1" / "scheduler.pt").unlink()
    named = str(tmp_path / "checkpoint-1")
    message = re.escape(f"resume_from_checkpoint: {named} is no whole checkpoint: scheduler.pt is missing")
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, tiny_model, resume=named, **SHORT)


def test_another_runs_checkpoint_is_neither_latest_nor_mixed_in(tiny_model, tmp_path, caplog):
    a, b = tmp_path / "a", tmp_path / "b"
    trained(a, tiny_model, max_steps=2, **SHORT)
    (a / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    trained(a, tiny_model, max_steps=1, overwrite_output_dir=True, **SHORT)
    (tmp_path / "checkpoint-2").rename(a / "checkpoint-2")
    resumed = trained(a, tiny_model, resume=True, max_steps=1, **SHORT)
    assert (
        resumed.checkpoints.run
        == read_manifest(a / "checkpoint-1").run
        != read_manifest(a / "checkpoint-2").run
    )
    assert "checkpoint-2 is passed over: it is of another run" in caplog.text
    trained(b, tiny_model, max_steps=1, **SHORT)
    message = r"output_dir: .*b holds another run than .*checkpoint-1 \(checkpoint-1"
    with pytest.raises(ValueError, match=message):
        trained(b, tiny_model, resume=str(a / "checkpoint-1"), max_steps=1, **SHORT)


def test_a_new_run_replaces_no_checkpoint_unless_that_is_meant(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, max_steps=2, **SHORT)
    again = made(tmp_path, tiny_model, max_steps=1, **SHORT)
    message = r"output_dir: .* holds a run already \(checkpoint-1, checkpoint-2\); "
    with pytest.raises(ValueError, match=message):
        again.train()
    assert checked(tmp_path / "checkpoint-2").run == again.run_folder.run, "still the first run's folder"
    trained(tmp_path, tiny_model, resume=True, max_steps=2, overwrite_output_dir=True, **SHORT)
    assert (tmp_path / "checkpoint-2").exists(), "a resume is the more particular wish"
    trained(tmp_path, tiny_model, max_steps=1, overwrite_output_dir=True, **SHORT)
    assert checkpoints_of(tmp_path) == ["checkpoint-1"]


def test_a_new_run_keeps_old_records_unless_they_are_overwritten(tiny_model, tmp_path):
    changes = {"max_steps": 1, "save_strategy": "no", "record_file": "records.jsonl", **SHORT}
    trained(tmp_path, tiny_model, seed=0, **changes)
    kept = (tmp_path / "records.jsonl").read_bytes()
    trained(tmp_path, tiny_model, seed=1, **changes)
    assert (tmp_path / "records.1.jsonl").read_bytes() == kept != (tmp_path / "records.jsonl").read_bytes()
    trained(tmp_path, tiny_model, seed=2, overwrite_output_dir=True, **changes)
    assert not (tmp_path / "records.2.jsonl").exists()


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
        ({"learning_rate": 0.1, "seed": 7}, "learning_rate 0.02 is now 0.1.* seed 42 is now 7"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size 4 is now 8"),
        ({"teacher_model_kind": "ema"}, "teacher_model_kind 'base' is now 'ema'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_configuration_is_refused_with_both_values(tiny_model, tmp_path, one_step, changes, words):
    trainer = made(tmp_path, tiny_model, **SHORT | changes)
    message = f"was made with another configuration: .*{words}.*set resume_anyway"
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(one_step))


def test_what_may_change_passes_and_the_rest_only_if_it_is_meant(tiny_model, tmp_path, one_step, caplog):
    changes = {"max_steps": 2, "save_steps": 5, "logging_steps": 2, "run_name": "longer"}
    trainer = trained(tmp_path / "same", tiny_model, resume=str(one_step), **SHORT | changes)
    assert trainer.state.global_step == 2
    mine = read_manifest(one_step).run
    assert trainer.checkpoints.run == mine, "it is the same run"
    changes |= {"seed": 7, "resume_anyway": True}
    other = trained(tmp_path / "other", tiny_model, resume=str(one_step), **SHORT | changes)
    assert other.state.global_step == 2 and other.checkpoints.run != mine
    assert "resume_anyway: goes on as a new run: seed 42 is now 7" in caplog.text


def test_every_setting_that_may_change_is_one():
    known = set(GEARConfig.__dataclass_fields__)
    assert MAY_CHANGE - known <= {"local_rank", "debug", "vllm_enable_sleep_mode"}
    assert not any(may_change(name) for name in ("credit", "seed", "train_dataset", "processes", "model"))


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
    counts = [entry["gear/rewards/non_finite"] for entry in trainer.state.log_history if "loss" in entry]
    assert counts == [2.0, 2.0]
    [message] = [text for text in caplog.messages if "infinite" in text]
    assert message.startswith("step 0: 2 rewards are infinite (boundless);")
