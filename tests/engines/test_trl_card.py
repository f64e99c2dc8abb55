"""The card of a trained model."""

import re
from pathlib import Path

from engines.running import trainer_of
from gear_rl.methods import Gear


def test_the_card_names_a_models_folder_and_cites_grpo_and_the_methods_source(tmp_path, tiny_model):
    trainer_of(tmp_path / "run", tiny_model, Gear()).create_model_card()
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"# Model Card for run\n\nThis model is a fine-tuned version of `{Path(tiny_model).name}`." in card
    assert "\n- gear\n" in card.split("---")[1], "a tag"
    assert f'model="{tmp_path / "run"}"' in card and "None" not in card
    cited = dict(re.findall(r"Cite (.+) as:\s+```bibtex\n((?:.+\n)+?)```", card))
    assert list(cited) == ["GRPO", "the source of `gear`", "TRL"]
    assert "DeepSeekMath" in cited["GRPO"] and "2605.11853" in cited["the source of `gear`"]
