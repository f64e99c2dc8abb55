"""The weights of teachers and references in checkpoints, and the method in what a resumed run must share."""

import dataclasses
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from engines.distilling import speaking
from engines.probing import Probe
from engines.running import SAVING, same, trained_and_saved, trainer_of, weights
from gear_rl import Gear, GEARTrainer
from gear_rl.methods import Uniform

trained = partial(trained_and_saved, credit=Gear())


# --- bit for bit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"teacher_model_kind": "ema", "teacher_update_rate": 0.5}, (2,)),
        ({"teacher_model_kind": "sync", "teacher_sync_steps": 2}, (3,)),
    ],
    ids=["ema", "sync"],
)
def test_a_resumed_teacher_is_the_one_that_was_saved(tiny_model, tmp_path, changes, steps):
    whole = weights(trained(tmp_path / "whole", tiny_model, **changes))
    for step in steps:
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        assert (checkpoint / "teacher.safetensors").exists()
        folder = tmp_path / f"from-{step}"
        resumed = trained(folder, tiny_model, resume=str(checkpoint), save_steps=9, **changes)
        assert resumed.state.global_step == 4
        assert same(weights(resumed), whole), step


@dataclasses.dataclass(frozen=True)
class Reference(Probe):
    needs: tuple[str, ...] = ("reference_logprob", "student_logprob")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_reference_is_the_first_model_after_training_and_after_resuming(tiny_model, tmp_path, lora):
    """Also where an adapter began as more than nothing: without it the model is another."""

    def trainer(probe):
        net = AutoModelForCausalLM.from_pretrained(tiny_model)
        changes = SAVING | {"max_steps": 3, "save_steps": 2}
        torch.manual_seed(0)
        if lora:
            net = get_peft_model(net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2))
            speaking(net)
        return trainer_of(tmp_path, net, probe, **changes)

    whole, resumed, first = trainer(Reference()), trainer(Reference()), trainer(Reference()).model.eval()
    whole.train()
    outputs, spread = [], GEARTrainer._run_credit_step
    resumed._run_credit_step = lambda output: outputs.append(output) or spread(resumed, output)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    signals, output = resumed.credit.shown[-1][1], outputs[-1]
    ids = output["completion_ids"]
    with torch.no_grad():
        logits = first(
            input_ids=torch.cat([output["prompt_ids"], ids], 1),
            attention_mask=torch.cat([output["prompt_mask"], output["completion_mask"]], 1),
        ).logits[:, -ids.shape[1] - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0] * output["completion_mask"]
    scored = signals.reference_logprob.any(-1)
    torch.testing.assert_close(signals.reference_logprob[scored], own[scored], rtol=1e-4, atol=1e-4)
    assert (signals.student_logprob - signals.reference_logprob)[scored].abs().max() > 0.05, "it has moved"
    assert torch.equal(signals.reference_logprob, whole.credit.shown[-1][1].reference_logprob)


def test_another_method_is_another_configuration(tiny_model, tmp_path):
    trained(tmp_path, tiny_model, max_steps=1)
    with pytest.raises(
        ValueError, match=r"another configuration: credit\.alpha 4\.0 is now 0\.5; set it back"
    ):
        trained(tmp_path, tiny_model, True, credit=Gear(alpha=0.5), max_steps=2)


def test_a_new_run_from_a_checkpoint_keeps_a_teacher_that_the_checkpoint_lacks(tiny_model, tmp_path, caplog):
    trained(tmp_path / "a", tiny_model, credit=Uniform(), max_steps=1)
    more = {"max_steps": 2, "save_steps": 1, "resume_anyway": True, "teacher_model_kind": "base"}
    resumed = trained(tmp_path / "b", tiny_model, str(tmp_path / "a" / "checkpoint-1"), **more)
    assert resumed.state.global_step == 2
    assert "teacher.safetensors is not taken over: teacher state: 0 parameters saved" in caplog.text
