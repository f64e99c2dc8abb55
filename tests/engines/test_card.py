"""What lies beside a trained model says which method made it, with which settings, and how to load it."""

import re
from pathlib import Path

import pytest
from peft import LoraConfig

from engines import tiny
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.methods import METHODS


def card(model, folder: Path, credit, **options) -> str:
    settings = tiny.settings(folder, per_device_train_batch_size=4, gradient_accumulation_steps=1)
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(4), credit=credit, **options)
    trainer.state.log_history = [
        {"eval_pass@1": 0.5, "step": 3},
        {"eval_hard_pass@1": 0.25, "eval_hard_reward": 1.00001, "step": 7},
        {"loss": 0.0, "step": 8},
    ]
    trainer.create_model_card(model_name="my model", dataset_name="my rows")
    return (folder / "README.md").read_text(encoding="utf-8")


def test_the_card_is_of_the_method_that_was_used(tiny_model, tmp_path):
    text = card(tiny_model, tmp_path, METHODS["rlsd"]())
    assert "credit\nmethod `rlsd`" in text and METHODS["rlsd"].source in text and "`my rows`" in text
    assert "- `teacher_model_kind`: " in text and "- learning_rate: 0.001" in text
    assert "## On held-out problems, after step 7" in text and "eval_hard_reward: 1.0\n" in text
    assert "- torch 2" in text and "GEAR" not in text.partition("---\n\n")[2]


@pytest.mark.parametrize("adapter", [False, True])
def test_its_lines_load_the_model(tiny_model, tmp_path, adapter):
    options = {"peft_config": LoraConfig(task_type="CAUSAL_LM", r=2)} if adapter else {}
    text = card(tiny_model, tmp_path, METHODS["uniform"](), **options)
    assert ("AutoPeftModelForCausalLM" in text) == adapter
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(code, "card", "exec")
    assert str(tmp_path) in code
