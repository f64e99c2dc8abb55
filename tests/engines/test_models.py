"""Adapters in place of models, and teachers with other weights."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines import tiny
from engines.running import history, trained, trainer_of
from gear_rl.engines.models import load_causal_lm
from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.evaluation import leave_no_trace
from gear_rl.methods import Gear
from gear_rl.model.teacher import AdapterFreeTeacher, CopyTeacher
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.trl_run import make_trainer

ROW = {"prompt": [{"role": "user", "content": "1 plus 2"}], "privileged_context": "1 plus 2 is 3"}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny_model) -> str:
    """The tiny model's adapter, which does something."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=2, target_modules="all-linear")
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(std=0.3)
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    return str(folder)


def logprobs(trainer) -> tuple[torch.Tensor, torch.Tensor]:
    """The student's and the teacher's of one completion that is wrong (its group has a right one)."""
    tokenizer = trainer.processing_class
    turns = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in ("1 plus 4", "is 3")]
    records: list[Any] = []
    trainer.record_subscribers = [records.extend]
    trainer.model.train()  # credit is assigned in training only
    trainer._generate_single_turn = lambda *_, **__: (turns, None)
    with leave_no_trace(trainer):
        trainer._generate_and_score_completions([dict(ROW), dict(ROW)])
    return tuple(torch.tensor(records[0].signals[name]) for name in ("student_logprob", "teacher_logprob"))


def every_second(completions, **_):
    return [float(i % 2) for i in range(len(completions))]


def of(model: str, folder: Path, **changes: Any) -> GEARTrainer:
    return trainer_of(folder, model, Gear(), reward=every_second, num_generations=2, **changes)


def test_an_adapters_folder_is_trained_on_and_its_teacher_is_what_the_run_began_with(
    tmp_path, tiny_model, adapter
):
    config = RunConfig(model=adapter, dataset="arena/chain/easy", reward="arena", held_out=None)
    config.trainer = tiny.settings(tmp_path)
    trainer = make_trainer(config)
    trained = {n for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    teacher = trainer.held_weights.teacher
    assert isinstance(teacher, CopyTeacher)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if n in trained}
    with torch.no_grad():
        for p in trainer.model.parameters():
            if p.requires_grad:
                p.add_(1.0)
    with teacher.weights(trainer.model):
        for name, weights in trainer.model.named_parameters():
            assert name not in before or torch.equal(weights, before[name]), name


LORAS = {
    "plain": {},
    "rsLoRA": {"use_rslora": True},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "random": {"init_lora_weights": False},
    "orthogonal": {"init_lora_weights": "orthogonal"},
}


@pytest.mark.parametrize("name", LORAS)
def test_the_base_teacher_is_the_first_model_whatever_the_adapter_does_to_it(tmp_path, tiny_model, name):
    """Shown the student's own prompt it agrees at step 1; also where weights that were trained are resumed."""
    lora = LoraConfig(r=2, target_modules="all-linear", **LORAS[name])
    given: dict[str, Any] = {"peft": lora, "privileged_sources": ["prompt"], "learning_rate": 1e-2}
    given |= {"save_strategy": "steps", "save_steps": 1, "seed": 5}
    whole = trained(tmp_path, tiny_model, Gear(), **given)
    first, second = history(whole, "gear/divergence/mean")
    assert first < 1e-6 and second > 1e-4
    resumed = trained(tmp_path, tiny_model, Gear(), resume=str(tmp_path / "checkpoint-1"), **given)
    assert history(resumed, "gear/divergence/mean")[-1] == second
    copies = isinstance(whole.held_weights.teacher, CopyTeacher)
    assert copies == (name not in ("plain", "rsLoRA"))
    assert copies or isinstance(resumed.held_weights.teacher, AdapterFreeTeacher)


def test_another_models_weights_are_the_teachers(tmp_path, tiny_model, adapter):
    """The adapter's model as teacher scores what it scores as a student that is shown the teacher's prompt."""
    student, plain = logprobs(of(tiny_model, tmp_path))
    same, other = logprobs(of(tiny_model, tmp_path, teacher_model=adapter))
    assert torch.equal(student, same)
    assert (other - plain).abs().max() > 0.01
    whole = tmp_path / "whole"
    load_causal_lm(adapter, {}).merge_and_unload().save_pretrained(whole)
    tiny.tokenizer().save_pretrained(whole)
    _, expected = logprobs(of(str(whole), tmp_path))
    assert torch.allclose(other, expected, atol=1e-4)


def test_another_vocabulary_is_refused(tmp_path, tiny_model):
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["never seen"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ValueError, match=r"teacher_model: .*other has another vocabulary than the model"):
        of(tiny_model, tmp_path, teacher_model=str(other))
    with pytest.raises(
        ValueError, match=r"teacher_model: '.*/nowhere' has no tokenizer .*\); check the name"
    ):
        of(tiny_model, tmp_path, teacher_model=str(tmp_path / "nowhere"))


def test_generation_gives_a_bfloat16_head_contiguous_states(tmp_path, tiny_model):
    """A strided slice of the prompt's states takes torch's head on a CPU some 500 times longer."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    trainer = of(model, tmp_path, bf16=False)
    seen = []
    trainer.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    trainer.solve([ROW, ROW])
    assert len(seen) > 1 and all(states.is_contiguous() for states in seen)
