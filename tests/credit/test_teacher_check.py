"""Whether a context is read: the comparisons, and the check of a training."""

import logging

import pytest
import torch

from gear_rl.credit.teacher_check import PROMPTS_TO_JUDGE, share_less_likely, stands_out
from gear_rl.runs.run_config import load_config
from gear_rl.runs.trl_run import make_trainer


def test_contexts_that_could_change_places_stand_out_half_the_time():
    torch.manual_seed(0)
    own, second, third = -torch.rand(3, 4000, 30) * 3
    assert stands_out(own, second, third).mean() == pytest.approx(0.5, abs=0.03)
    near = second + 0.3 * torch.randn(4000, 30)
    assert stands_out(own, second, near).mean() > 0.95
    assert stands_out(second, own, near).mean() < 0.2


def test_a_copying_teacher_is_found_by_what_it_makes_likelier_and_not_by_distance():
    """Its own context says what was written; of two others each is wrong somewhere else, and lies off both."""
    torch.manual_seed(0)
    wrong = torch.rand(2, 4000, 30) < 0.2
    own, second, third = torch.full((4000, 30), -0.01), *torch.where(wrong, -6.0, -0.01)
    assert stands_out(own, second, third).mean() < 0.2
    assert share_less_likely(own, second, third).mean() > 0.95
    assert share_less_likely(*-torch.rand(3, 4000, 30)).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("column", "warns"), [("answer", True), ("privileged_context", False)])
def test_a_training_warns_where_the_teacher_reads_nothing(tmp_path, caplog, column, warns):
    words = ["--per_device_train_batch_size", "32", "--num_generations", "2", "--max_steps", "3"]
    words += ["--teacher_check_steps", "1", "--save_strategy", "no", "--privileged_column", column]
    run = ["--model", "arena", "--dataset", "arena/chain/default", "--reward", "arena"]
    trainer = make_trainer(load_config(None, [*run, *words, "--output_dir", str(tmp_path)]))
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        trainer.train()
    assert len(trainer.teacher_check.values) == PROMPTS_TO_JUDGE
    assert any("does not seem to read" in record.message for record in caplog.records) == warns
