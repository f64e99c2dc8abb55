"""GPT-2 beside a rotary model in the real trainer: prompts of many lengths, padded on the left by TRL."""

import dataclasses
import logging

import pytest
import torch
from peft import LoraConfig

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


@pytest.mark.parametrize("student_pass", ["auto", "own"])
@pytest.mark.parametrize("steps_per_generation", [None, 4], ids=["loss", "old"])
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
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


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@pytest.mark.parametrize("student_pass", ["auto", "own"])
def test_a_teacher_with_the_students_prompt_diverges_by_nothing(
    folders, tmp_path, monkeypatch, name, student_pass
):
    """With passes of our own by exactly 0. A rotary model's student out of TRL's loss differs in last bits."""
    monkeypatch.setattr("gear_rl.credit.step.teacher_prompts", lambda batch, *_: (batch.student, [False] * 8))
    monkeypatch.setattr(prefix, "LEAST_SAVED", 2.0)
    options = {"student_pass": student_pass, "teacher_model_kind": "live"}
    trainer_of(tmp_path, folders[name], Gear(), **options).train()
    found = list(read_records(tmp_path / "records.jsonl"))
    every = [value for record in found for value in record.signals.get("divergence", [])]
    assert len(every) > 20
    if name == "gpt2" or student_pass == "own":
        assert set(every) == {0.0}
    assert max(every) < 1e-5


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]


@pytest.mark.parametrize("steps_per_generation", [None, 4], ids=["loss", "old"])
def test_the_warning_comes_once_and_names_model_and_method(folders, tmp_path, caplog, steps_per_generation):
    with caplog.at_level(logging.WARNING):
        trainer_of(
            tmp_path, folders["gpt2"], Gear(), max_steps=3, steps_per_generation=steps_per_generation
        ).train()
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
        trainer_of(tmp_path, folders[name], credit, rows(same_length)).train()
    assert warnings_of(caplog) == []
    assert len(list(read_records(tmp_path / "records.jsonl"))) == 16


def test_only_padding_that_moves_positions_keeps_the_student_out_of_trls_forwards(folders, tmp_path):
    for name in ("gpt2", "qwen3", "bloom", "opt"):
        trainer = trainer_of(tmp_path, folders[name], Gear())
        assert trainer.shares_passes is (name != "gpt2"), name


# --- what is distilled ----------------------------------------------------------------------------------------

LORA = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("padded", [True, False])
def test_the_distilled_student_stands_at_the_positions_of_the_sampling(folders, tmp_path, padded, peft):
    """Loss and gradient row by row, without padding; and the student's own prompt gives 0."""
    term = Distillation(beta=0.5, ratio_clip=2.0, anchor="urkl", anchor_weight=0.3)
    trainer = ready(trainer_of(tmp_path, folders["gpt2"], Opsd(), peft=peft), term)
    inputs = micro_batch(trainer.model.config.vocab_size)
    if not padded:
        for column in ("prompt_ids", "gear_teacher_ids"):
            inputs[column] = inputs[column].clamp(min=9)
        inputs["prompt_mask"] = torch.ones_like(inputs["prompt_mask"])
        inputs["gear_teacher_attention"] = torch.ones_like(inputs["gear_teacher_attention"])
    own = own_loss(trainer)(trainer.model, inputs)
    before = gradients(trainer, own)
    extra = slow_extra(trainer, inputs, term)
    expected = gradients(trainer, extra)
    total = trainer._compute_loss(trainer.model, inputs)
    found = gradients(trainer, total)
    assert total.item() == pytest.approx((own + extra).item(), rel=1e-4)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient - before[key], expected[key], rtol=5e-3, atol=5e-5)
    trainer = ready(trainer, Distillation(beta=1.0))
    inputs |= {"gear_teacher_ids": inputs["prompt_ids"], "gear_teacher_attention": inputs["prompt_mask"]}
    trainer._compute_loss(trainer.model, inputs)
    assert trainer._metrics["train"]["gear/distill/term"][-1] == pytest.approx(0.0, abs=1e-6)


def slow_extra(trainer, inputs, term):
    """Term and anchor of every row by itself; the ratio's log-prob is TRL's, of the padded batch."""
    model, total = trainer.model, torch.zeros(())
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    with torch.no_grad():
        whole = model(
            input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
        ).logits[:, -mask.shape[1] - 1 : -1]
        theirs = whole.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]
    for b in range(len(mask)):
        ids = inputs["completion_ids"][b][inputs["completion_mask"][b].bool()]
        sides = []
        for ids_name, mask_name in (
            ("prompt_ids", "prompt_mask"),
            ("gear_teacher_ids", "gear_teacher_attention"),
        ):
            prompt = inputs[ids_name][b][inputs[mask_name][b].bool()]
            logits = model(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
            sides.append(logits.log_softmax(-1))
        log_p, log_q = sides[0], sides[1].detach()
        log_m = ((log_p.exp() + log_q.exp()) / 2).log()
        terms = ((log_p.exp() * (log_p - log_m)).sum(-1) + (log_q.exp() * (log_q - log_m)).sum(-1)) / 2
        now = log_p[torch.arange(len(ids)), ids]
        keep = mask[b, : len(ids)]
        ratio = (theirs - inputs["old_per_token_logps"])[b, : len(ids)].clamp(-20, 20).exp().clamp(max=2.0)
        weight = inputs["gear_distill_weight"][b, : len(ids)]
        total = total + (weight * ratio * terms)[keep].sum()
        reference = inputs["gear_reference_logprob"][b, : len(ids)]
        total = total + term.anchor_weight * (now[keep] - reference[keep]).square().sum() / 2
    accumulation = trainer.current_gradient_accumulation_steps
    return total / (inputs["num_items_in_batch"] * accumulation / trainer.args.steps_per_generation)
