"""GPT-2 beside a rotary model in the real trainer: prompts of many lengths, padded on the left by TRL."""

import dataclasses
import logging

import pytest
import torch
from peft import LoraConfig
from torch.nn.functional import pad

from engines import tiny
from engines.distilling import micro_batch
from engines.positions import made
from engines.probing import Probe
from engines.test_trl_distill import gradients, own_loss, ready
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.trl.late import LateCredit
from gear_rl.methods import Opsd
from gear_rl.records import read_records
from gear_rl.signals import prefix
from gear_rl.traits import Distillation

WARNING = "has absolute positions"


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


def trainer_of(folder, model, credit, dataset=None, **changes):
    settings = {"record_file": str(folder / "records.jsonl"), "max_steps": 2, "learning_rate": 1e-5}
    peft = changes.pop("peft", None)
    args = GEARConfig(**tiny.settings(folder, **(settings | changes)))
    return GEARTrainer(model, tiny.vowels, args, dataset or rows(), credit=credit, peft_config=peft)


@dataclasses.dataclass(frozen=True)
class Both(Probe):
    """What both passes see of every completion; shown when the weights are still those of the first step."""

    needs: tuple[str, ...] = ("student_logprob", "teacher_logprob", "divergence")
    per_completion: bool = True


@torch.no_grad()
def alone(model, prompt, completion):
    """The log-prob of each token of one row without padding."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(completion)), completion]


@pytest.mark.parametrize(
    ("name", "steps_per_generation", "student_pass"),
    [
        ("gpt2", None, "auto"),
        ("gpt2", 4, "auto"),
        ("qwen3", None, "auto"),
        ("qwen3", 4, "own"),
    ],
)
def test_the_trainers_signals_are_those_of_each_row_alone(
    folders, tmp_path, monkeypatch, name, student_pass, steps_per_generation
):
    """Also where TRL makes a pass for its old log-probabilities."""
    outputs, waited = [], []
    spread, own_init = GEARTrainer._spread, LateCredit.__init__

    def watched(self, inputs, output):
        outputs.append(dict(output))
        return spread(self, inputs, output)

    def made_late(self, *args):
        waited.append(self)
        own_init(self, *args)

    monkeypatch.setattr(GEARTrainer, "_spread", watched)
    monkeypatch.setattr(LateCredit, "__init__", made_late)
    probe = Both(additive=True)
    changes = {"student_pass": student_pass, "steps_per_generation": steps_per_generation, "max_steps": 1}
    trainer = trainer_of(tmp_path, folders[name], probe, **changes)
    trainer.train()
    # A first model of the same weights, since this one has made a step.
    first = type(trainer.model).from_pretrained(folders[name]).eval()
    output = outputs[0]
    padded = output["prompt_mask"][:, 0] == 0
    assert padded.any() and not padded.all(), "the batch must have rows with padding"
    late = name == "qwen3" and student_pass == "auto" and steps_per_generation is None
    assert bool(waited) is late
    if late:
        found = read_records(tmp_path / "records.jsonl")
        by_ids = {tuple(record.ids): record.signals["student_logprob"] for record in found}
    for b in range(len(output["prompt_ids"])):
        keep, kept = output["prompt_mask"][b].bool(), output["completion_mask"][b].bool()
        prompt, ids = output["prompt_ids"][b][keep].tolist(), output["completion_ids"][b][kept].tolist()
        expected = alone(first, prompt, ids)
        own = torch.tensor(by_ids[tuple(ids)]) if late else probe.shown[0][1].student_logprob[b][kept]
        torch.testing.assert_close(own, expected, atol=2e-4, rtol=1e-3)
    if steps_per_generation and name == "gpt2":
        old = output["old_per_token_logps"]
        far = (old - probe.shown[0][1].student_logprob)[padded][output["completion_mask"][padded].bool()]
        assert far.abs().max() > 0.1, "TRL's own are those of other positions: what the warning says"


@pytest.mark.parametrize(("name", "student_pass"), [("gpt2", "auto"), ("qwen3", "own")])
def test_a_teacher_with_the_students_prompt_diverges_by_nothing(
    folders, tmp_path, monkeypatch, name, student_pass
):
    monkeypatch.setattr("gear_rl.credit.step.teacher_prompts", lambda batch, *_: (batch.student, [False] * 8))
    monkeypatch.setattr(prefix, "LEAST_SAVED", 2.0)
    options = {"student_pass": student_pass, "teacher_model_kind": "live"}
    trainer_of(tmp_path, folders[name], Gear(), **options).train()
    found = list(read_records(tmp_path / "records.jsonl"))
    every = [value for record in found for value in record.signals.get("divergence", [])]
    assert len(every) > 20 and set(every) == {0.0}


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]


def test_the_warning_comes_once_and_names_model_and_method(folders, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trainer_of(tmp_path, folders["gpt2"], Gear()).train()
    [text] = warnings_of(caplog)
    assert text.startswith("model: gpt2 has absolute positions") and "'gear'" in text
    assert "Prompts of one length" in text


@pytest.mark.parametrize(
    ("name", "credit", "same_length"),
    [
        ("qwen3", Gear(), False),
        ("bloom", Gear(), False),  # its forward takes no positions
        ("opt", Gear(), False),  # it counts its own
        ("gpt2", Gear(), True),
        ("gpt2", Uniform(), False),  # there is no signal that could differ from TRL's loss
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_no_warning_where_nothing_differs(folders, tmp_path, caplog, name, credit, same_length):
    with caplog.at_level(logging.WARNING):
        trainer = trainer_of(tmp_path, folders[name], credit, rows(same_length), max_steps=1)
        trainer.train()
    assert warnings_of(caplog) == []
    assert trainer.shares_passes is (name != "gpt2")
    assert len(list(read_records(tmp_path / "records.jsonl"))) == 8


# --- what is distilled ----------------------------------------------------------------------------------------

LORA = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
def test_the_distilled_student_stands_at_the_positions_of_the_sampling(folders, tmp_path, peft):
    """Padding on the left changes neither loss nor gradient; and the student's own prompt gives 0."""
    term = Distillation(beta=0.5, anchor="urkl", anchor_weight=0.3)
    trainer = ready(trainer_of(tmp_path, folders["gpt2"], Opsd(), peft=peft), term)
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
