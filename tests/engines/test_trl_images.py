"""Models that see images: student and teacher are shown those of their own row, and the credit trains."""

import math
import shutil

import pytest
import torch
from peft import LoraConfig

from engines import tiny
from engines.running import SAVING, history, same, weights
from engines.scripted import Scripted, call
from engines.tiny_images import MARKS, MODELS, picture, rows
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.credit.teacher_prompts import teacher_prompts
from gear_rl.engine import ForwardRequest
from gear_rl.engines.trl.images import PIXELS, TYPES, images_of
from gear_rl.engines.trl.templates import read_template
from gear_rl.records import read_records
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import DIVERGENCE, STUDENT_LOGPROB, TEACHER_LOGPROB

LORA = LoraConfig(r=2, target_modules=r".*language_model.*(q_proj|v_proj)")
SEVERAL = [1, 2, 3, 1, 2, 3, 1, 2]
STILL = {"learning_rate": 0.0, "max_steps": 1}
"""The weights stay, so that later passes are compared with those of the run."""


class Watched(GEARTrainer):
    """Keeps the last batch of rollouts as TRL left it."""

    def _run_credit_step(self, output):
        self.output = dict(output)
        return super()._run_credit_step(output)


class WatchedAgent(Watched, Scripted):
    """Says what a script says."""


def by_place(completions, **_):
    return [float(place % 3) for place in range(len(completions))]


def trainer_of(folder, kind, counts, credit="gear", data=None, tools=None, peft=None, **changes):
    model, processor = MODELS[kind]()
    if tools is not None:
        processor.chat_template = read_template("qwen3_vl")
    model.save_pretrained(folder / "model")
    args = GEARConfig(
        **tiny.settings(folder / "run", credit_batch_size=3, record_file="records.jsonl", **changes)
    )
    data = rows(counts) if data is None else data
    named = {"processing_class": processor, "credit": credit, "tools": tools, "peft_config": peft}
    cls, reward = (Watched, tiny.vowels) if tools is None else (WatchedAgent, by_place)
    return cls(str(folder / "model"), reward, args, data, **named)


def trained(*given, **changes):
    trainer = trainer_of(*given, **changes)
    trainer.train()
    return trainer


def records_in(folder):
    return list(read_records(folder / "run/records.jsonl"))


def scored(trainer, contexts, output=None):
    """Signals of all rollouts of the last batch under these contexts, with the images of ``output``."""
    batch, engine = trainer.rollouts.batch(trainer, trainer.output), trainer.credit_engine()
    engine.images = images_of(output or trainer.output)
    teacher, _ = teacher_prompts(batch, engine, trainer.args, contexts)
    request = ForwardRequest(
        needs=(STUDENT_LOGPROB, TEACHER_LOGPROB, DIVERGENCE),
        step=0,
        completions=batch.completions,
        student=batch.student,
        teachers=[teacher],
        scored_B=batch.completions.mask.any(-1),
    )
    return teacher, engine.forward(request)


def trls_logprobs(trainer):
    output = trainer.output
    ids, attention = (
        torch.cat([output[f"prompt_{name}"], output[f"completion_{name}"]], 1) for name in ("ids", "mask")
    )
    shown = {name: output[name] for name in (*PIXELS, *TYPES, "num_images") if name in output}
    width = output["completion_ids"].shape[1]
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, width, **shown)[0]


kinds = pytest.mark.parametrize("kind", sorted(MODELS))


@kinds
@pytest.mark.parametrize("prompt", ["render", "splice"])
def test_it_trains_and_the_student_reads_no_context(tmp_path, kind, prompt):
    trainer = trainer_of(tmp_path, kind, SEVERAL, teacher_prompt=prompt)
    before = weights(trainer)
    trainer.train()
    assert all(math.isfinite(loss) for loss in history(trainer, "loss"))
    after = weights(trainer)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    found = records_in(tmp_path)
    assert any(len({*record.weight}) > 1 for record in found), "no token is credited more than another"
    for record in found:
        assert " is " not in record.prompt and " is " in record.teacher_prompt
        assert record.prompt.count(MARKS[2]) == record.teacher_prompt.count(MARKS[2]) > 0


@kinds
def test_the_students_log_probs_are_trls_own(tmp_path, kind):
    trainer = trained(tmp_path, kind, SEVERAL, credit="rlsd", **STILL)
    theirs, found = trls_logprobs(trainer), records_in(tmp_path)
    assert any(record.signals for record in found)
    for record, row in zip(found, theirs, strict=True):
        if record.signals:  # written with five digits
            own = torch.tensor(record.signals["student_logprob"])
            torch.testing.assert_close(own, row[: len(own)], atol=1e-4, rtol=1e-4)
    _, signals = scored(trainer, [None] * len(theirs))
    mask = trainer.output["completion_mask"].bool()
    assert (signals["student_logprob"] - theirs)[mask].abs().max() < 1e-5


@kinds
def test_a_teacher_without_a_context_agrees_exactly(tmp_path, kind):
    trainer = trained(tmp_path, kind, SEVERAL, **STILL)
    teacher, signals = scored(trainer, [None] * 8)
    assert torch.equal(teacher.ids_BP, trainer.output["prompt_ids"]), "with the same placeholders"
    assert signals["divergence"].abs().max() == 0.0
    _, signals = scored(trainer, ["the answer is 7"] * 8)
    assert signals["divergence"].max() > 0.01


@kinds
def test_another_image_moves_the_teacher_of_its_row_alone(tmp_path, kind):
    trainer = trained(tmp_path, kind, SEVERAL, **STILL)
    contexts, output = ["the answer is 7"] * 8, trainer.output
    pixels = output["pixel_values"].clone()
    pixels[-1] += 1.0  # a part of the last row's last image
    _, before = scored(trainer, contexts)
    _, after = scored(trainer, contexts, {**output, "pixel_values": pixels})
    for name in ("student_logprob", "teacher_logprob"):
        moved = (before[name] != after[name]).any(-1)
        assert moved.tolist() == [False] * 7 + [True], name


@kinds
def test_the_old_pass_has_seen_the_images(tmp_path, monkeypatch, kind):
    changes = {"steps_per_generation": 4, "learning_rate": 1e-4, "beta": 0.05}
    shared, run = [], ModelPasses.run
    monkeypatch.setattr(
        ModelPasses, "run", lambda *given, **more: shared.append(any(more.values())) or run(*given, **more)
    )
    trained(tmp_path / "kept", kind, SEVERAL, credit="rlsd", **changes)
    assert shared and all(shared)
    monkeypatch.setattr("gear_rl.engines.trl.trainer.shares_old_pass", lambda trainer: False)
    trained(tmp_path / "own", kind, SEVERAL, credit="rlsd", **changes)
    kept, own = (records_in(tmp_path / name) for name in ("kept", "own"))
    for a, b in zip(kept, own, strict=True):
        assert a.ids == b.ids and a.signals.keys() == b.signals.keys()
        for name in a.signals:
            assert a.signals[name] == pytest.approx(b.signals[name], abs=1e-4), name


@kinds
@pytest.mark.parametrize("credit", ["opsd", "sdpg"])
def test_what_is_distilled_sees_them_too(tmp_path, kind, credit):
    """A teacher that reads what the student reads, with its weights, has nothing to teach."""
    same = {"privileged_sources": ["prompt"], "teacher_model_kind": "base", **STILL}
    trainer = trained(tmp_path / "same", kind, SEVERAL, credit=credit, **same)
    [term] = history(trainer, "gear/distill/term")
    assert abs(term) < 1e-6
    if credit == "sdpg":
        assert abs(history(trainer, "gear/anchor/loss")[0]) < 1e-9
    trainer = trained(tmp_path / "more", kind, SEVERAL, credit=credit, **STILL)
    assert abs(history(trainer, "gear/distill/term")[0]) > 1e-3


@pytest.mark.parametrize("end", ["a7<|im_end|>", ""], ids=["goes on", "ends with the answer"])
@pytest.mark.parametrize("count", [0, 1])
def test_an_image_in_a_tools_answer_is_seen(tmp_path, end, count):
    """In every second rollout, behind the image of the prompt if there is one."""

    def look(place: str):
        """Look somewhere.

        Args:
            place: Where.
        """
        return [{"type": "image", "image": picture(7)}] if place == "wall" else "nothing"

    trainer = trainer_of(
        tmp_path, "qwen2_vl", [count] * 8, "rlsd", tools=[look], max_completion_length=200, **STILL
    )
    trainer.scripts = [[call("look", f'{{"place": "{place}"}}'), end] for place in ("wall", "floor")] * 4
    trainer.train()
    assert trainer.output["num_images"] == [count + 1, count] * 4
    theirs = trls_logprobs(trainer)
    _, signals = scored(trainer, [None] * 8)
    mask = (trainer.output["completion_mask"] * trainer.output["tool_mask"]).bool()
    assert (signals["student_logprob"] - theirs)[mask].abs().max() < 1e-5
    assert any(record.signals for record in records_in(tmp_path))


def test_a_pass_without_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^model: images are shown in .* 'oar_p' needs answer_occlusion"):
        trainer_of(tmp_path, "llava", [1] * 8, "oar_p")


@kinds
def test_lora_resumes_bit_for_bit(tmp_path, kind):
    changes = {
        **SAVING,
        "steps_per_generation": 4,
    }  # the first checkpoint holds rollouts that are still trained on

    def run(resume=None):
        trainer = trainer_of(tmp_path, kind, SEVERAL, peft=LORA, **changes)
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer)

    whole = run()
    for step in (2, 3, 4):
        shutil.rmtree(tmp_path / f"run/checkpoint-{step}")
    assert same(whole, run(str(tmp_path / "run/checkpoint-1")))


@kinds
def test_weights_that_are_not_found_are_no_resume(tmp_path, kind):
    first = trainer_of(tmp_path, kind, SEVERAL, **SAVING)
    first.train()
    with pytest.raises(ValueError, match=r"resume_from_checkpoint: transformers finds .* under other names"):
        trainer_of(tmp_path, kind, SEVERAL, **SAVING).train(
            resume_from_checkpoint=str(tmp_path / "run/checkpoint-1")
        )
    # What the error advises does find them.
    begun = type(first.model).from_pretrained(tmp_path / f"run/checkpoint-{first.state.global_step}")
    pairs = zip(first.model.parameters(), begun.parameters(), strict=True)
    assert all(torch.equal(own, found) for own, found in pairs)


# --- rows without an image -----------------------------------------------------------------------------------


@kinds
def test_batches_without_an_image_train_between_others(tmp_path, kind):
    trained(tmp_path, kind, [0, 1, 0, 2], num_generations=8, max_steps=4)
    found = records_in(tmp_path)
    assert len({record.prompt.count(MARKS[2]) for record in found}) == 3
    assert any(record.signals for record in found if MARKS[2] not in record.prompt)


def test_a_message_of_an_image_alone_has_no_place_for_a_context(tmp_path):
    data = rows([1] * 8).map(lambda row: {"prompt": [{"role": "user", "content": [{"type": "image"}]}]})
    with pytest.raises(ValueError, match=r"prompt: the message has no text .* use teacher_prompt='splice'"):
        trained(tmp_path / "render", "llava", [], data=data, teacher_prompt="render")
    trained(tmp_path / "splice", "llava", [], data=data, teacher_prompt="splice")
