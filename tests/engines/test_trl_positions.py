"""GPT-2 beside a rotary model in the real trainer: prompts of many lengths, padded on the left by TRL."""

import pytest
import torch
from peft import LoraConfig
from torch.nn.functional import pad

from engines import tiny
from engines.distilling import micro_batch
from engines.positions import made
from engines.probing import Probe
from engines.running import trainer_of
from engines.test_trl_distill import gradients, own_loss, ready
from gear_rl import Gear, GEARTrainer, Uniform
from gear_rl.methods import Opsd
from gear_rl.traits import Distillation


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A loadable folder for each kind of model, with the tiny tokenizer."""
    fast, found = tiny.tokenizer(), {}
    for name in ("gpt2", "qwen3", "bloom", "opt"):
        found[name] = str(tmp_path_factory.mktemp(name))
        made(name, len(fast)).save_pretrained(found[name])
        fast.save_pretrained(found[name])
    return found


def rows(same_length=False):
    """Two prompts go into a batch of rollouts; one of them is much longer than the other."""
    texts = ["1 plus 2", "1 plus 2" if same_length else "3 plus 4 plus 5 plus 6"] * 8
    return tiny.rows().from_list(
        [
            {"prompt": [{"role": "user", "content": text}], "privileged_context": "is 3", "answer": "3"}
            for text in texts
        ]
    )


def made_trainer(folder, model, credit, same_length=False, **changes):
    return trainer_of(folder, model, credit, rows=rows(same_length), learning_rate=1e-5, **changes)


@torch.no_grad()
def alone(model, prompt, completion):
    """The log-prob of each token of one row without padding."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(completion)), completion]


def test_the_trainers_signals_are_those_of_each_row_alone(folders, tmp_path, monkeypatch):
    """Also where TRL makes a pass for its old log-probabilities, at other positions."""
    outputs, spread = [], GEARTrainer._spread
    monkeypatch.setattr(
        GEARTrainer, "_spread", lambda *given: outputs.append(dict(given[2])) or spread(*given)
    )
    probe = Probe(needs=("student_logprob",), additive=True)
    trainer = made_trainer(tmp_path, folders["gpt2"], probe, steps_per_generation=4, max_steps=1)
    trainer.train()
    # A first model of the same weights, since this one has made a step.
    first, output = type(trainer.model).from_pretrained(folders["gpt2"]).eval(), outputs[0]
    found = probe.shown[0][1].student_logprob
    for b in range(len(found)):
        keep, kept = output["prompt_mask"][b].bool(), output["completion_mask"][b].bool()
        prompt, ids = output["prompt_ids"][b][keep].tolist(), output["completion_ids"][b][kept].tolist()
        torch.testing.assert_close(found[b][kept], alone(first, prompt, ids), atol=2e-4, rtol=1e-3)
    padded = output["prompt_mask"][:, 0] == 0
    assert padded.any() and not padded.all(), "the batch must have rows with padding"
    far = (output["old_per_token_logps"] - found)[padded][output["completion_mask"][padded].bool()]
    assert far.abs().max() > 0.1, "TRL's own are those of other positions: what the warning says"


@pytest.mark.parametrize(
    ("name", "credit", "same_length", "warns"),
    [
        ("gpt2", Gear(), False, True),
        ("qwen3", Gear(), False, False),
        ("bloom", Gear(), False, False),  # its forward takes no positions
        ("opt", Gear(), False, False),  # it counts its own
        ("gpt2", Gear(), True, False),
        ("gpt2", Uniform(), False, False),  # there is no signal that could differ from TRL's loss
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_a_warning_comes_once_and_only_where_positions_differ(
    folders, tmp_path, caplog, name, credit, same_length, warns
):
    trainer = made_trainer(tmp_path, folders[name], credit, same_length)
    trainer.train()
    start = "model: gpt2 has absolute positions, and prompts of this batch are padded on the left"
    texts = [text for text in caplog.messages if "has absolute positions" in text]
    assert [text.startswith(start) and "'gear'" in text for text in texts] == [True] * warns
    assert trainer.shares_passes is (name != "gpt2")


# --- what is distilled ----------------------------------------------------------------------------------------

LORA = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
def test_the_distilled_student_stands_at_the_positions_of_the_sampling(folders, tmp_path, peft):
    """Padding on the left changes neither loss nor gradient; and the student's own prompt gives 0."""
    term = Distillation(beta=0.5, anchor="urkl", anchor_weight=0.3)
    trainer = ready(made_trainer(tmp_path, folders["gpt2"], Opsd(), peft=peft), term)
    inputs = micro_batch(trainer.model.config.vocab_size)
    inputs |= {"prompt_ids": inputs["prompt_ids"].clamp(min=9), "prompt_mask": torch.ones(4, 5).long()}
    padded = {name: pad(x, (3, 0)) if name.startswith("prompt") else x for name, x in inputs.items()}
    found = []
    for batch in (inputs, padded):
        own = own_loss(trainer)(trainer.model, batch)
        before = gradients(trainer, own)
        total = trainer._compute_loss(trainer.model, batch)
        more = {name: gradient - before[name] for name, gradient in gradients(trainer, total).items()}
        found.append(((total - own).item(), more))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4) and found[0][0] > 0.01
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=5e-3, atol=5e-5)
    trainer = ready(trainer, Distillation(beta=1.0))
    padded |= {"gear_teacher_ids": padded["prompt_ids"], "gear_teacher_attention": padded["prompt_mask"]}
    trainer._compute_loss(trainer.model, padded)
    assert trainer._metrics["train"]["gear/distill/term"][-1] == pytest.approx(0.0, abs=1e-6)
