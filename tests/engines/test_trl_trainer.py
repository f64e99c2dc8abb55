"""GEAR through the real GRPOTrainer, on a model of a few thousand weights."""

import pytest
import torch

from engines.distilling import LORA
from engines.running import history, same, trained, trainer_of, weights
from gear_rl import Gear, GEARTrainer, Uniform
from gear_rl.engines.trl.config import LOSS_TYPES
from gear_rl.records import read_records


def run(folder, model, credit=None, **changes):
    return trained(folder, model, credit, **{"max_steps": 3, **changes})


# --- all-one weights are GRPO, bit for bit -------------------------------------------------------------------


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_bit_for_bit_in_every_loss_also_as_one_advantage_per_token(
    tiny_model, tmp_path, loss_type, monkeypatch
):
    changes = {"loss_type": loss_type, "num_iterations": 2, "max_steps": 2}
    plain = weights(run(tmp_path, tiny_model, **changes))
    assert same(weights(run(tmp_path, tiny_model, Gear(alpha=0), **changes)), plain)

    def expanded(self, output):
        return torch.where(output["completion_mask"].bool(), output["advantages"][:, None], 0.0)

    monkeypatch.setattr(GEARTrainer, "_run_credit_step", expanded)
    spread = run(tmp_path, tiny_model, Uniform(), **changes)
    assert same(weights(spread), plain), "(B, T) broadcasts nowhere"


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 4},
        {"num_iterations": 2, "steps_per_generation": 4},
        {"beta": 0.05},
        {"scale_rewards": "none", "temperature": 0.7},
        {"gradient_checkpointing": True},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_bit_for_bit_with_the_options_of_trl(tiny_model, tmp_path, changes):
    runs = [weights(run(tmp_path, tiny_model, credit, **changes)) for credit in (Uniform(), None)]
    assert same(*runs)


# --- teachers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_each_teacher_follows_the_student_in_its_own_way(tiny_model, tmp_path, lora):
    options = {"teacher_update_rate": 0.5, "teacher_sync_steps": 2, "learning_rate": 0.01}
    options |= {"peft": LORA if lora else None}
    seen = {}
    for kind in ("live", "base", "ema", "sync"):
        trainer = run(tmp_path, tiny_model, Gear(), teacher_model_kind=kind, **options)
        seen[kind] = history(trainer, "gear/divergence/mean")
    assert len({divergence[0] for divergence in seen.values()}) == 1, "before the first step they are one"
    assert seen["sync"][1] == seen["base"][1], "not yet renewed"
    assert len({seen[kind][1] for kind in ("live", "base", "ema")}) == 3
    assert seen["sync"][2] != seen["base"][2]


def test_a_resumed_run_does_not_repeat_its_records(tiny_model, tmp_path):
    file = tmp_path / "records.jsonl"
    options = {"save_strategy": "steps", "save_steps": 2, "record_file": str(file)}
    run(tmp_path, tiny_model, Gear(), **options)
    run(tmp_path, tiny_model, Gear(), resume=str(tmp_path / "checkpoint-2"), **options)
    assert [record.step for record in read_records(file)] == [1] * 8 + [2] * 8 + [3] * 8


def test_a_group_without_a_reward_does_not_count_as_one_that_differs(tiny_model, tmp_path):
    def reward(completions, answer, **columns):
        """The first group's differ, the second's are absent, the third has one alone, the fourth's are equal."""
        kinds = ([0.0, 1.0, None, 0.5], [None] * 4, [None, None, 1.0, None], [1.0, 1.0, None, 1.0])
        return [value for kind in kinds for value in kind]

    sizes = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "max_steps": 1}
    assert history(run(tmp_path, tiny_model, reward=reward, **sizes), "frac_reward_zero_std") != [0.75], "TRL"
    assert history(run(tmp_path, tiny_model, Gear(), reward=reward, **sizes), "frac_reward_zero_std") == [
        0.75
    ]


def test_a_reward_sees_the_end_of_the_prompt_behind_its_template(tiny_model, tmp_path):
    """There it stands whether the template opens the model's reasoning."""
    ends = []

    def reward(completions, prompt_end, **columns):
        ends.extend(prompt_end)
        return [float(i % 2) for i, _ in enumerate(completions)]

    trainer = trainer_of(tmp_path, tiny_model, Uniform(), reward=reward, max_steps=1)
    template = trainer.processing_class.chat_template + "{% if add_generation_prompt %}<think>\n{% endif %}"
    trainer.processing_class.chat_template = template
    trainer.train()
    assert ends and all(end.endswith("assistant\n<think>\n") for end in ends)
