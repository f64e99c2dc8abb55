"""vLLM in TRL's process: the credit is that of the same tokens without vLLM, and costs no student pass."""

import pytest
import torch
from transformers.utils import get_json_schema

from gear_rl.arena.errands import ErrandsEnv
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS
from gear_rl.arena.task import TEMPLATE, get_task
from gear_rl.engines.tools import tool_functions
from trl_vllm import runs
from verl_cpu import under_trl

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 64}


def credit_without_vllm(seen, folder, monkeypatch, task="chain", credit="gear", tools=()):
    """What a trainer without vLLM makes of the first rollouts, with a student pass of its own."""
    model, schemas = runs.save_model(folder / "model", task), [get_json_schema(tool) for tool in tools]
    monkeypatch.setattr(under_trl.engine, "step", under_trl.engine.step)  # `replay` replaces it
    more = {"teacher_prompt_template": TEMPLATE, "chat_template_kwargs": CHAT_TEMPLATE_KWARGS}
    more["answer_pattern"] = get_task(task).answer_pattern
    return under_trl.replay(seen.batches[0], model, credit, schemas, more)


def assert_same_credit(seen, theirs, at_least):
    ours = seen.results[0]
    mask, scored = ours.signals.mask, ours.scored_B
    assert torch.equal(mask, theirs["signals"].mask) and torch.equal(scored, theirs["scored_B"])
    assert scored.sum() >= at_least
    assert {*ours.signals.values} == {*theirs["signals"].values}
    for name, value in ours.signals.values.items():
        if value.shape == mask.shape:
            torch.testing.assert_close(value, theirs["signals"].values[name], atol=1e-4, rtol=1e-4, msg=name)
    assert torch.equal(ours.credit.segment_id, theirs["credit"].segment_id)
    torch.testing.assert_close(ours.credit.advantage, theirs["credit"].advantage, atol=1e-4, rtol=1e-4)


def assert_near_the_sampling(seen, most=0.02):
    """vLLM has the weights that are trained: it samples in 16 bits, and differs by no more."""
    assert all(abs(ratio - 1) < 0.2 for ratio in seen.history("sampling/importance_sampling_ratio/mean"))
    assert max(seen.history("sampling/sampling_logp_difference/mean")) < most


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_gear(tmp_path, monkeypatch, lora):
    seen = runs.train(tmp_path / "run", lora=lora, learning_rate=1e-2 if lora else 1e-3, steps=3)
    assert_near_the_sampling(seen)
    assert seen.passes.count("student") == 0 and seen.passes.count("old") == 3
    assert seen.passes.count("teacher") >= 3
    same = credit_without_vllm(seen, tmp_path, monkeypatch)
    assert_same_credit(seen, same, at_least=8)
    weights = seen.results[0].credit.advantage[seen.results[0].scored_B]
    assert any(len(row[row != 0].unique()) > 1 for row in weights), "else GRPO would agree, too"


def test_opsd_distils(tmp_path, monkeypatch):
    seen = runs.train(tmp_path / "run", "opsd")
    assert_near_the_sampling(seen)
    assert seen.passes.count("student") == 0
    same = credit_without_vllm(seen, tmp_path, monkeypatch, credit="opsd")
    torch.testing.assert_close(seen.results[0].credit.distill_weight, same["credit"].distill_weight)
    assert seen.results[0].credit.distill_weight.any()
    assert all(value > 0 for value in seen.history("gear/distill/term"))


def test_an_agent_with_tools(tmp_path, monkeypatch):
    seen = runs.train(tmp_path / "run", task="errands")
    assert_near_the_sampling(seen)
    assert seen.passes.count("student") == 0 and seen.passes.count("old") == 2
    mask, turn = seen.results[0].signals.mask, seen.results[0].signals.turn_id
    assert (turn.max(-1).values >= 2).sum() > 8, "several turns"
    inside = mask.cummax(-1).values & mask.flip(-1).cummax(-1).values.flip(-1)
    assert (inside & ~mask).any() and not seen.results[0].credit.advantage[~mask].any(), "tools' answers"
    environment = ErrandsEnv()
    tools = [getattr(environment, name) for name in tool_functions(ErrandsEnv)]
    same = credit_without_vllm(seen, tmp_path, monkeypatch, "errands", tools=tools)
    assert_same_credit(seen, same, at_least=8)


def test_two_iterations_on_each_batch(tmp_path):
    seen = runs.train(tmp_path / "run", num_iterations=2, steps=4, learning_rate=1e-3)
    assert_near_the_sampling(seen)
    assert len(seen.results) == 2 and seen.passes.count("old") == 2 and seen.passes.count("student") == 0
    second = seen.trainer.state.log_history[1]
    assert second["clip_ratio/high_max"] > 0 or second["clip_ratio/low_min"] > 0, "the second is off policy"


def test_a_resumed_run_samples_with_its_own_weights(tmp_path):
    """Not with those that vLLM still has of another run."""
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 3e-3, "teacher_model_kind": "ema"}
    runs.train(tmp_path / "run", **settings)
    runs.train(tmp_path / "other", steps=1)
    resumed = runs.train(tmp_path / "run", steps=4, resume=str(tmp_path / "run/checkpoint-2"), **settings)
    assert [entry["step"] for entry in resumed.trainer.state.log_history if "loss" in entry] == [1, 2, 3, 4]
    assert len(resumed.results) == 2 and resumed.passes.count("student") == 0
    assert_near_the_sampling(resumed, most=0.05)  # the weights are large by now
