"""GEAR through the real GRPOTrainer, on a model of a few thousand weights."""

import json
import logging

import pytest
import torch
from peft import LoraConfig

from engines import tiny
from engines.running import history, same, trained, trainer_of, weights
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.credit import metrics
from gear_rl.engines.trl.config import LOSS_TYPES, checked_arguments
from gear_rl.records import read_records
from gear_rl.signals.passes import ModelPasses


def run(folder, model, credit=None, **changes):
    return trained(folder, model, credit, **{"max_steps": 3, **changes})


@pytest.fixture(scope="module")
def grpo(tiny_model, tmp_path_factory):
    return weights(run(tmp_path_factory.mktemp("grpo"), tiny_model))


# --- all-one weights are GRPO, bit for bit -------------------------------------------------------------------


@pytest.mark.parametrize(
    "credit", [Uniform(), Gear(alpha=0), Gear(sign_mode="aware", alpha=0, clip=(0.5, 2.0))]
)
def test_weights_of_one_are_grpo_bit_for_bit(grpo, tiny_model, tmp_path, credit):
    assert same(weights(run(tmp_path, tiny_model, credit)), grpo)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_bit_for_bit_in_every_loss_also_as_one_advantage_per_token(
    tiny_model, tmp_path, loss_type, monkeypatch
):
    changes = {"loss_type": loss_type, "num_iterations": 2, "max_steps": 2}
    plain = weights(run(tmp_path, tiny_model, **changes))
    assert same(weights(run(tmp_path, tiny_model, Gear(alpha=0), **changes)), plain)

    def expanded(self, inputs, output):
        return torch.where(output["completion_mask"].bool(), output["advantages"][:, None], 0.0)

    monkeypatch.setattr(GEARTrainer, "_spread", expanded)
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


def test_a_completion_keeps_its_advantage_spread_over_its_tokens(grpo, tiny_model, tmp_path, monkeypatch):
    spread, original = [], GEARTrainer._spread

    def watch(self, inputs, output):
        base, mask = output["advantages"].clone(), output["completion_mask"].bool()
        spread.append((base, mask, original(self, inputs, output)))
        return spread[-1][-1]

    monkeypatch.setattr(GEARTrainer, "_spread", watch)
    trainer = run(tmp_path, tiny_model, Gear(departures="all"), student_pass="own")
    assert len(spread) == 3
    for base, mask, advantage in spread:
        assert advantage.shape == mask.shape
        torch.testing.assert_close((advantage * mask).sum(-1) / mask.sum(-1), base, atol=1e-5, rtol=1e-5)
        assert (advantage[~mask] == 0).all()
        assert (advantage.std(-1)[base != 0] > 0).all(), "every completion's credit is spread unevenly"
    assert set(history(trainer, "gear/fallbacks")) == {0.0}
    assert not same(weights(trainer), grpo)


def test_a_run_that_makes_next_to_no_segments_warns_once(tiny_model, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(metrics, "BATCHES_TO_JUDGE", 2)
    run(tmp_path, tiny_model, Gear(end_threshold=0.0))
    [message] = [r.message for r in caplog.records if "segments" in r.message]
    assert message.startswith("gear makes next to no segments: 0.0 % of the trained tokens of 2 batches")


# --- what falls back -----------------------------------------------------------------------------------------


def test_rows_without_context_are_counted_before_the_training(caplog):
    rows = [
        row | {"privileged_context": None, "answer": ""} if i % 2 else row
        for i, row in enumerate(tiny.rows())
    ]
    with caplog.at_level(logging.INFO, logger="gear_rl"):
        checked_arguments(GEARConfig("out", use_cpu=True), Gear(), None, tiny.rows().from_list(rows), {})
    assert "privileged_context for 8 rows" in caplog.text and "none for 8 rows" in caplog.text


@pytest.mark.parametrize(("value", "student_pass"), [(float("nan"), "auto"), (float("inf"), "own")])
def test_a_bad_signal_never_reaches_the_loss(tiny_model, tmp_path, monkeypatch, caplog, value, student_pass):
    original = ModelPasses.signals

    def poisoned(self, wanted, request, *more):
        signals = original(self, wanted, request, *more)
        signals.divergence[request.scored_B.nonzero()[0, 0], 2] = value
        return signals

    monkeypatch.setattr(ModelPasses, "signals", poisoned)
    changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    file = str(tmp_path / "records.jsonl")
    trainer = run(tmp_path, tiny_model, Gear(), record_file=file, student_pass=student_pass, **changes)
    assert history(trainer, "gear/fallback/non_finite") == [1.0, 1.0, 1.0]
    assert "a NaN or Inf in a signal and kept their GRPO advantage" in caplog.text
    assert all(p.isfinite().all() for p in weights(trainer).values())
    bad = [record for record in read_records(tmp_path / "records.jsonl") if record.fallback == "non_finite"]
    assert len(bad) == 3
    for record in bad:
        assert set(record.weight) == {1.0}
        assert set(record.segment) == {0}


def two_turns(prompts, trainer):
    """A ``rollout_func`` of two turns: five tokens, three from outside, four."""
    ids = trainer._tokenize_prompts(prompts)[0]
    return {
        "prompt_ids": ids,
        "completion_ids": [[20 + i, 31, 32, 33, 34, 40, 41, 42, 50, 51, 52, 2] for i in range(len(ids))],
        "env_mask": [[1] * 5 + [0] * 3 + [1] * 4 for _ in ids],
        "logprobs": None,
    }


def test_tool_output_gets_no_credit_and_parts_the_turns(tiny_model, tmp_path):
    file = tmp_path / "records.jsonl"
    args = GEARConfig(**tiny.settings(tmp_path, max_steps=1, record_file=str(file), teacher_prompt="splice"))
    trainer = GEARTrainer(
        tiny_model,
        lambda completion_ids, **kw: [float(ids[0] % 3) for ids in completion_ids],
        args,
        tiny.rows(),
        rollout_func=two_turns,
        credit=Gear(end_rule="turn", onset_rule="local_max", onset_floor_nats=0.0),
    )
    trainer.train()
    for record in read_records(file):
        assert record.mask == [1] * 5 + [0] * 3 + [1] * 4
        assert record.turn == [0] * 5 + [-1] * 3 + [1] * 4
        assert record.segment[5:8] == [-1] * 3
        assert record.credit[5:8] == [0.0] * 3
        assert not set(record.segment[:5]) & set(record.segment[8:]), "no segment crosses tool output"
        if record.advantage:
            assert record.signals["divergence"][5:8] == [0.0] * 3
            assert sum(record.weight) == pytest.approx(9, rel=1e-4)


# --- teachers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_each_teacher_follows_the_student_in_its_own_way(tiny_model, tmp_path, lora):
    peft = LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if lora else None
    options = {"teacher_update_rate": 0.5, "teacher_sync_steps": 2, "learning_rate": 0.01, "peft": peft}
    seen = {}
    for kind in ("live", "base", "ema", "sync"):
        trainer = run(tmp_path, tiny_model, Gear(), teacher_model_kind=kind, **options)
        seen[kind] = history(trainer, "gear/divergence/mean")
    assert len({divergence[0] for divergence in seen.values()}) == 1, "before the first step they are one"
    assert seen["sync"][1] == seen["base"][1], "not yet renewed"
    assert len({seen[kind][1] for kind in ("live", "base", "ema")}) == 3
    assert seen["sync"][2] != seen["base"][2]


# --- the record file -----------------------------------------------------------------------------------------


def test_the_record_file_holds_what_the_loss_saw(tiny_model, tmp_path):
    file = tmp_path / "records.jsonl"
    trainer = run(tmp_path, tiny_model, Gear(), record_file=str(file), teacher_skip_first_tokens=2)
    records = list(read_records(file))
    assert [record.step for record in records] == [0] * 8 + [1] * 8 + [2] * 8
    assert [record.group for record in records[:8]] == [0] * 4 + [1] * 4
    entry = trainer.state.log_history[0]
    for name in ("divergence/mean", "entropy/mean", "segments/per_completion", "credit_seconds"):
        assert entry[f"gear/{name}"] >= 0, name
    assert 0 < entry["gear/segments/token_share"] < 1
    assert 1 < entry["gear/weight/effective_tokens"] <= entry["completions/max_length"]
    rewards = torch.tensor([record.reward for record in records[:8]])
    assert rewards.mean().item() == pytest.approx(history(trainer, "reward")[0])
    for record in records:
        assert record.method == "gear"
        columns = record.tokens, record.ids, record.mask, record.credit, record.segment
        assert len({len(column) for column in columns}) == 1
        assert record.prompt.startswith("<|im_start|>user\n")
        assert "is" not in record.prompt.split("assistant")[0].split("user")[1], "no privileged text"
        if record.advantage:
            assert set(record.signals) == set(Gear().needs)
            divergence = record.signals["divergence"]
            assert divergence[:2] == [0.0, 0.0] and min(divergence[2:]) > 0.0
            for weight, credit in zip(record.weight, record.credit, strict=True):
                assert credit == pytest.approx(weight * record.advantage, rel=1e-4)
    assert json.loads(file.read_text().splitlines()[0])["format"] == 1


def test_the_models_card_names_the_method(tiny_model, tmp_path):
    trainer = trainer_of(tmp_path, tiny_model, Gear(alpha=2.5))
    trainer.create_model_card(model_name="my model")
    text = (tmp_path / "README.md").read_text()
    assert f"the credit method `gear` ({Gear.source})" in text and "- gear\n" in text


def test_the_record_file_is_bounded_and_a_resumed_run_does_not_repeat_itself(tiny_model, tmp_path):
    file = tmp_path / "records.jsonl"
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3, "record_file": str(file)}
    run(tmp_path, tiny_model, Gear(), **options)
    run(tmp_path, tiny_model, Gear(), resume=str(tmp_path / "checkpoint-2"), **options)
    assert [record.step for record in read_records(file)] == [0] * 8 + [1] * 8 + [2] * 8
    whole = file.read_bytes()
    with pytest.raises(ValueError, match=r"record_file: .* holds records already"):
        run(tmp_path / "bounded", tiny_model, Gear(), record_file=str(file))
    assert file.read_bytes() == whole
    run(tmp_path / "bounded", tiny_model, Gear(), record_file="records.jsonl", record_max_mb=0.01)
    file = tmp_path / "bounded" / "records.jsonl"
    assert file.stat().st_size <= 0.01 * 1024 * 1024
    kept = [record.step for record in read_records(file)]
    assert kept[-1] == 2 and len(kept) < 24, "the oldest go, the newest stay"
