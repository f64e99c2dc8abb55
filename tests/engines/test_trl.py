"""GEAR through the real GRPOTrainer, on a model of a few thousand weights."""

import functools
import json
import logging
import re

import pytest
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, RandomOnsets, Shuffled, Uniform
from gear_rl.credit import metrics
from gear_rl.engines.trl.config import LOSS_TYPES, check_trl
from gear_rl.records import read_records
from gear_rl.signals.score import Scorer
from gear_rl.types import Credit


def run(folder, model, credit=None, *, dataset=None, resume=None, reward=tiny.vowels, peft=None, **changes):
    """A finished trainer: TRL's own without credit, ours with."""
    settings = tiny.settings(folder, **{"max_steps": 3} | changes)
    cls, config, extra = (
        (GRPOTrainer, GRPOConfig, {}) if credit is None else (GEARTrainer, GEARConfig, {"credit": credit})
    )
    trainer = cls(
        model,
        reward,
        config(**settings),
        tiny.rows() if dataset is None else dataset,
        peft_config=peft,
        **extra,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same(a, b) -> bool:
    a, b = weights_of(a), weights_of(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def history(trainer, key) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.fixture(scope="module")
def grpo(tiny_model, tmp_path_factory):
    return run(tmp_path_factory.mktemp("grpo"), tiny_model)


@pytest.fixture(scope="module")
def plain_of(tiny_model, tmp_path_factory):
    """TRL's own trainer after a run with a loss, on the same rollouts twice: one for all tests."""

    @functools.cache
    def of(loss_type):
        folder = tmp_path_factory.mktemp("plain")
        return run(folder, tiny_model, loss_type=loss_type, **TWICE)

    return of


TWICE = {"num_iterations": 2, "max_steps": 2}


# --- all-one weights are GRPO, bit for bit -------------------------------------------------------------------


@pytest.mark.parametrize(
    "credit", [Uniform(), Gear(alpha=0), Gear(sign_mode="aware", alpha=0, clip=(0.5, 2.0))]
)
def test_weights_of_one_are_grpo_bit_for_bit(grpo, tiny_model, tmp_path, credit):
    assert same(run(tmp_path, tiny_model, credit), grpo)


def test_gear_itself_is_not_grpo(grpo, tiny_model, tmp_path):
    """Else the test above would prove nothing."""
    assert not same(run(tmp_path, tiny_model, Gear()), grpo)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_bit_for_bit_in_every_loss(tiny_model, tmp_path, loss_type, plain_of):
    plain = plain_of(loss_type)
    assert same(run(tmp_path, tiny_model, Gear(alpha=0), loss_type=loss_type, **TWICE), plain)
    assert not same(run(tmp_path, tiny_model, Gear(), loss_type=loss_type, **TWICE), plain)


def test_uniform_is_grpo_with_one_ratio_for_a_completion_too(tiny_model, tmp_path):
    changes = {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2}
    assert same(run(tmp_path, tiny_model, Uniform(), **changes), run(tmp_path, tiny_model, **changes))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_loss_takes_one_advantage_per_token(tiny_model, tmp_path, loss_type, monkeypatch, plain_of):
    """The same number for every token, forced through as (B, T): nothing broadcasts behind our back."""
    plain = plain_of(loss_type)

    def expanded(self, inputs, output):
        return torch.where(output["completion_mask"].bool(), output["advantages"][:, None], 0.0)

    monkeypatch.setattr(GEARTrainer, "_spread", expanded)
    assert same(run(tmp_path, tiny_model, Uniform(), loss_type=loss_type, **TWICE), plain)


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 4},
        {"num_iterations": 2, "steps_per_generation": 4},
        {"beta": 0.05},
        {"top_entropy_quantile": 0.5},
        {"off_policy_mask_threshold": 0.1, "num_iterations": 2},
        {"scale_rewards": "none", "temperature": 0.7},
        {"gradient_checkpointing": True},
        {"delta": 1.5, "entropy_coef": 0.01},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_works_with_the_options_of_trl(tiny_model, tmp_path, changes):
    plain = run(tmp_path, tiny_model, **changes)
    assert same(run(tmp_path, tiny_model, Uniform(), **changes), plain)
    trainer = run(tmp_path, tiny_model, Gear(), **changes)
    assert not same(trainer, plain)
    assert all(torch.isfinite(torch.tensor(history(trainer, "loss"))))
    assert max(history(trainer, "gear/weight/max")) > 1.0


EVERYWHERE = Gear(departures="all")
"""Departs somewhere in every completion, whatever its advantage."""


@pytest.mark.parametrize(
    "credit",
    [
        EVERYWHERE,
        Shuffled(of=EVERYWHERE),
        RandomOnsets(of=EVERYWHERE),
        Gear(estimator="k3", departures="all"),
    ],
)
def test_every_method_trains_and_keeps_the_completions_advantage(tiny_model, tmp_path, credit, monkeypatch):
    spread = []
    original = GEARTrainer._spread

    def watch(self, inputs, output):
        base, mask = output["advantages"].clone(), output["completion_mask"].bool()
        advantage = original(self, inputs, output)
        spread.append((base, mask, advantage))
        return advantage

    monkeypatch.setattr(GEARTrainer, "_spread", watch)
    trainer = run(tmp_path, tiny_model, credit, student_pass="own")
    assert len(spread) == 3
    for base, mask, advantage in spread:
        assert advantage.shape == mask.shape
        mean = (advantage * mask).sum(-1) / mask.sum(-1)
        torch.testing.assert_close(mean, base, atol=1e-5, rtol=1e-5)
        assert (advantage[~mask] == 0).all()
        assert (advantage.std(-1)[base != 0] > 0).all(), "every completion's credit is spread unevenly"
    assert set(history(trainer, "gear/fallbacks")) == {0.0}


def test_metrics_reach_the_trainers_log(tiny_model, tmp_path):
    trainer = run(tmp_path, tiny_model, Gear())
    entry = trainer.state.log_history[0]
    for name in (
        "divergence/mean",
        "entropy/mean",
        "segments/per_completion",
        "segments/length",
        "segments/token_share",
        "weight/max",
        "weight/effective_tokens",
        "fallbacks",
        "credit_seconds",
    ):
        assert entry[f"gear/{name}"] >= 0, name
    assert 0 < entry["gear/segments/token_share"] < 1
    assert 1 < entry["gear/weight/effective_tokens"] <= entry["completions/max_length"]


@pytest.mark.parametrize("student_pass", ["auto", "own"])
def test_a_run_that_makes_next_to_no_segments_says_so(
    tiny_model, tmp_path, caplog, monkeypatch, student_pass
):
    monkeypatch.setattr(metrics, "BATCHES_TO_JUDGE", 2)
    run(tmp_path, tiny_model, Gear(end_threshold=0.0), student_pass=student_pass)
    assert [r.message for r in caplog.records if "segments" in r.message] == [
        "gear makes next to no segments: 0.0 % of the trained tokens of 2 batches are in one of two tokens or "
        "more, so its credit is token by token. Where nearly every token has more entropy than GEAR's "
        "end_threshold, as on natural text, a segment ends at once. For longer segments, set end_rule to "
        "sentence, line, turn, or to fixed_length with max_segment_tokens; or raise end_threshold. If single "
        "tokens are meant, set onset_rule to never"
    ]


# --- what is scored, and what falls back ---------------------------------------------------------------------


def test_groups_without_spread_skip_the_teacher(tiny_model, tmp_path, monkeypatch):
    scored = []
    original = Scorer.signals
    monkeypatch.setattr(
        Scorer, "signals", lambda self, *args: scored.append(int(self.row_B.sum())) or original(self, *args)
    )
    trainer = run(
        tmp_path,
        tiny_model,
        Gear(),
        reward=lambda completions, **kw: [1.0] * len(completions),
        student_pass="own",
    )
    assert scored == [0, 0, 0]
    assert history(trainer, "gear/scored") == [0.0, 0.0, 0.0]
    assert history(trainer, "gear/fallbacks") == [0.0, 0.0, 0.0]


def test_rows_without_context_keep_their_grpo_advantage(tiny_model, tmp_path, caplog):
    rows = list(tiny.rows())
    for i in range(0, 16, 2):
        rows[i] |= {"privileged_context": None, "answer": ""}
    with caplog.at_level(logging.INFO, logger="gear_rl"):
        trainer = run(
            tmp_path,
            tiny_model,
            Gear(),
            dataset=tiny.rows().from_list(rows),
            record_file=str(tmp_path / "records.jsonl"),
        )
    assert "privileged_context for 8 rows" in caplog.text
    assert "none for 8 rows" in caplog.text
    without = {row["prompt"][0]["content"] for row in rows[::2]}
    records = list(read_records(tmp_path / "records.jsonl"))
    fallbacks = [record.fallback for record in records]
    assert fallbacks.count("no_context") == sum(history(trainer, "gear/fallback/no_context"))
    assert {None, "no_context"} == set(fallbacks)
    for record in records:
        question = record.prompt.split("user\n")[1].split("<|im_end|>")[0]
        assert (record.fallback == "no_context") == (question in without)
        if record.fallback:
            assert set(record.weight) == {1.0}
            assert record.credit == [record.advantage] * len(record.ids)
            assert record.signals == {}


@pytest.mark.parametrize("student_pass", ["auto", "own"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_signal_never_reaches_the_loss(tiny_model, tmp_path, monkeypatch, caplog, value, student_pass):
    original = Scorer.signals

    def poisoned(self, *args):
        signals = original(self, *args)
        row = self.row_B.nonzero()[0, 0]
        signals.divergence[row, 2] = value
        return signals

    monkeypatch.setattr(Scorer, "signals", poisoned)
    changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    file = str(tmp_path / "records.jsonl")
    trainer = run(tmp_path, tiny_model, Gear(), record_file=file, student_pass=student_pass, **changes)
    assert history(trainer, "gear/fallback/non_finite") == [1.0, 1.0, 1.0]
    assert "a NaN or Inf in a signal and kept their GRPO advantage" in caplog.text
    assert all(p.isfinite().all() for p in weights_of(trainer).values())
    bad = [record for record in read_records(tmp_path / "records.jsonl") if record.fallback == "non_finite"]
    assert len(bad) == 3
    for record in bad:
        assert set(record.weight) == {1.0}
        assert set(record.segment) == {0}


def test_a_method_that_divides_by_zero_falls_back_too(grpo, tiny_model, tmp_path):
    class Broken(Uniform):
        def __call__(self, advantage_B, signals):
            segment_id = torch.where(signals.mask, 0, -1)
            weight = torch.full(segment_id.shape, float("nan"))
            return Credit.from_weights(advantage_B, weight, segment_id)

    trainer = run(tmp_path, tiny_model, Broken())
    assert history(trainer, "gear/fallback/non_finite") == [8.0, 8.0, 8.0]
    assert same(trainer, grpo)


def test_truncated_completions_that_are_masked_count_as_without_token(tiny_model, tmp_path):
    trainer = run(tmp_path, tiny_model, Gear(), mask_truncated_completions=True)
    assert sum(history(trainer, "gear/fallback/no_token")) > 0


def two_turns(prompts, trainer):
    """A rollout that samples, is told something, and samples again: five tokens, three from outside, four."""
    ids = trainer._tokenize_prompts(prompts)[0]
    first, told, second = ([20 + i, 31, 32, 33, 34] for i in range(len(ids))), [40, 41, 42], [50, 51, 52, 2]
    return {
        "prompt_ids": ids,
        "completion_ids": [[*turn, *told, *second] for turn in first],
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


def test_rendering_cannot_repeat_a_rollouts_own_prompt(tmp_path):
    args = GEARConfig(**tiny.settings(tmp_path))
    with pytest.raises(ValueError, match="teacher_prompt: 'render' cannot repeat the prompt"):
        GEARTrainer("no-such-model", tiny.vowels, args, tiny.rows(), rollout_func=two_turns, credit=Gear())


def test_where_nothing_was_seen_nothing_is_added(grpo, tiny_model, tmp_path):
    """An additive method must not act on the zeros that stand for signals nobody computed."""

    class Additive(Uniform):
        needs = ("student_entropy",)

        def __call__(self, advantage_B, signals):
            credit = super().__call__(advantage_B, signals)
            return Credit(advantage=credit.advantage + signals.mask, segment_id=credit.segment_id)

    def equal(completions, **kwargs):
        return [1.0] * len(completions)

    plain = run(tmp_path, tiny_model, reward=equal)
    assert same(run(tmp_path, tiny_model, Additive(), reward=equal), plain)
    assert not same(run(tmp_path, tiny_model, Additive()), grpo)


def test_a_method_that_distils_must_say_what(tiny_model, tmp_path):
    class Distils(Uniform):
        def __call__(self, advantage_B, signals):
            credit = super().__call__(advantage_B, signals)
            ones = torch.ones_like(credit.advantage)
            return Credit(advantage=credit.advantage, segment_id=credit.segment_id, distill_weight=ones)

    with pytest.raises(ValueError, match="gives distill_weight, but has no `distillation`"):
        run(tmp_path, tiny_model, Distils())


# --- teachers, adapters, checkpoints -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["live", "base", "ema", "sync"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_teacher_trains(tiny_model, tmp_path, kind, lora):
    peft = LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if lora else None
    trainer = run(tmp_path, tiny_model, Gear(), peft=peft, teacher_model_kind=kind, teacher_sync_steps=2)
    assert all(value > 0 for value in history(trainer, "gear/divergence/mean"))


def test_each_teacher_follows_the_student_in_its_own_way(tiny_model, tmp_path):
    options = {"teacher_update_rate": 0.5, "teacher_sync_steps": 2, "learning_rate": 0.01}
    seen = {
        kind: history(
            run(tmp_path, tiny_model, Gear(), teacher_model_kind=kind, **options), "gear/divergence/mean"
        )
        for kind in ("live", "base", "ema", "sync")
    }
    assert len({divergence[0] for divergence in seen.values()}) == 1, "before the first step they are one"
    assert seen["sync"][1] == seen["base"][1], "not yet renewed"
    assert len({seen[kind][1] for kind in ("live", "base", "ema")}) == 3
    assert seen["sync"][2] != seen["base"][2]


@pytest.mark.parametrize("kind", ["live", "base", "ema"])
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tiny_model, tmp_path, kind):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "teacher_model_kind": kind}
    options |= {"teacher_update_rate": 0.5}
    whole = run(tmp_path / "whole", tiny_model, Gear(), **options)
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert (checkpoint / "teacher.safetensors").exists() == (kind != "live")
    resumed = run(tmp_path / "resumed", tiny_model, Gear(), resume=str(checkpoint), **options)
    assert resumed.state.global_step == 4
    assert same(resumed, whole)


def test_resuming_with_another_teacher_is_refused(tiny_model, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    run(tmp_path, tiny_model, Gear(), teacher_model_kind="live", **options)
    with pytest.raises(
        ValueError, match=r"checkpoint-2 was made with another .* teacher_model_kind 'live' is now 'ema'"
    ):
        run(
            tmp_path,
            tiny_model,
            Gear(),
            resume=str(tmp_path / "checkpoint-2"),
            teacher_model_kind="ema",
            **options,
        )


# --- the record file -----------------------------------------------------------------------------------------


def test_the_record_file_holds_what_the_loss_saw(tiny_model, tmp_path):
    file = tmp_path / "records.jsonl"
    trainer = run(tmp_path, tiny_model, Gear(), record_file=str(file))
    records = list(read_records(file))
    assert [record.step for record in records] == [0] * 8 + [1] * 8 + [2] * 8
    assert [record.group for record in records[:8]] == [0] * 4 + [1] * 4
    rewards = torch.tensor([record.reward for record in records[:8]])
    assert rewards.mean().item() == pytest.approx(history(trainer, "reward")[0])
    for record in records:
        assert record.method == "gear"
        assert (
            len(record.tokens)
            == len(record.ids)
            == len(record.mask)
            == len(record.credit)
            == len(record.segment)
        )
        assert record.prompt.startswith("<|im_start|>user\n")
        assert "is" not in record.prompt.split("assistant")[0].split("user")[1], "no privileged text"
        if record.advantage:
            assert set(record.signals) == set(Gear().needs)
            for weight, credit in zip(record.weight, record.credit, strict=True):
                assert credit == pytest.approx(weight * record.advantage, rel=1e-4)
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["format"] == 1


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


# --- clear refusals ------------------------------------------------------------------------------------------


def test_a_dataset_without_ground_truth_is_refused_before_anything_loads(tmp_path):
    dataset = tiny.rows().remove_columns(["privileged_context", "answer"])
    arguments = ("no-such-model", tiny.vowels, GEARConfig(**tiny.settings(tmp_path)), dataset)
    with pytest.raises(
        ValueError, match=r"the columns are prompt, without any of privileged_context, solution"
    ):
        GEARTrainer(*arguments, credit=Gear())
    with pytest.raises(OSError, match="huggingface"):
        GEARTrainer(*arguments, credit=Uniform())  # needs no teacher, so it gets as far as the model


def test_a_named_column_must_be_there(tmp_path):
    args = GEARConfig(**tiny.settings(tmp_path), privileged_column="gold")
    with pytest.raises(ValueError, match="without 'gold'"):
        GEARTrainer("no-such-model", tiny.vowels, args, tiny.rows(), credit=Gear())


def test_a_column_that_is_empty_everywhere_is_refused(tmp_path):
    dataset = tiny.rows().from_list([{**row, "privileged_context": "", "answer": " "} for row in tiny.rows()])
    with pytest.raises(ValueError, match="all 16 rows of privileged_context, answer are empty"):
        GEARTrainer(
            "no-such-model", tiny.vowels, GEARConfig(**tiny.settings(tmp_path)), dataset, credit=Gear()
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "gmpo"}, "loss_type: 'gmpo' was never run with one advantage per token"),
        ({"teacher_model_kind": "old"}, "teacher_model_kind: 'old' is not one of live, base, ema, sync"),
        ({"teacher_prompt": "append"}, "teacher_prompt: 'append' is not one of render, splice"),
        ({"teacher_prompt_template": "{prompt}"}, r"lacks \{privileged_context\}"),
        ({"credit_batch_size": 0}, "credit_batch_size: 0"),
        ({"teacher_update_rate": 2.0}, "teacher_update_rate: 2.0"),
        ({"teacher_sync_steps": 0}, "teacher_sync_steps: 0"),
        ({"record_max_mb": 0.0}, "record_max_mb: 0.0"),
        ({"temperature": 0.0}, "temperature: 0.0"),
    ],
)
def test_bad_settings_are_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        GEARConfig(**tiny.settings(tmp_path, **changes))


def test_a_plain_config_and_a_missing_method_are_named(tmp_path):
    args = GRPOConfig(**tiny.settings(tmp_path))
    with pytest.raises(Exception, match="GEARConfig"):
        GEARTrainer("no-such-model", tiny.vowels, args, tiny.rows(), credit=Gear())
    with pytest.raises(ValueError, match=r"credit: <class .*Gear'> is not a method; give an object such as"):
        GEARTrainer("no-such-model", tiny.vowels, None, tiny.rows(), credit=Gear)
    with pytest.raises(Exception, match="credit"):
        GEARTrainer("no-such-model", tiny.vowels, None, tiny.rows(), credit="gear")


@pytest.mark.parametrize("version", ["1.13.0", "1.15.0", "1.17.0.dev0", "2.0.0"])
def test_an_unsupported_trl_is_named_with_the_release_to_install(version):
    message = f"trl {version} is not supported; install trl>=1.14,!=1.15.*,<1.17"
    with pytest.raises(ImportError, match=re.escape(message)):
        check_trl(version)
