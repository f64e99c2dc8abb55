"""What lies beside a trained model is TRL's card, with the method that made it and its settings."""

from pathlib import Path

from huggingface_hub import ModelCard

from engines import tiny
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.methods import METHODS


def test_the_card_is_of_the_method_that_was_used(tiny_model, tmp_path: Path):
    settings = tiny.settings(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=1)
    method = METHODS["rlsd"]()
    trainer = GEARTrainer(tiny_model, tiny.vowels, GEARConfig(**settings), tiny.rows(4), credit=method)
    trainer.create_model_card(model_name="my model", dataset_name="my rows")
    card = ModelCard.load(tmp_path / "README.md")
    assert f"the credit method `rlsd` ({method.source})" in card.text and "my rows" in card.text
    assert "- `clip_width`: 0.2\n" in card.text and "- `teacher_model_kind`: sync\n" in card.text
    assert "GEAR" not in card.text and {"gear", "trl"} <= {*card.data.tags}
