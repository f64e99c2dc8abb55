"""A run in which verl rejects tokens: they are inside their turn, have no credit, and change no other token's."""

from dataclasses import replace
from pathlib import Path

import torch

from verl_cpu import harness, reference

# In float32 vLLM and the trainer differ in the last bits alone, so the threshold is there.
REJECTION = [f"algorithm.rollout_correction.rollout_rs{rest}" for rest in ("=token_k2", "_threshold=1e-13")]


def test_the_other_tokens_have_the_credit_of_whole_completions(chain: Path, tmp_path: Path):
    run = harness.train(tmp_path, chain, harness.SEEDED, *harness.GEAR, *REJECTION, steps=1)
    saved, update = run.watched("credit1"), run.watched("update1")
    completions = saved["batch"]["completions"]
    trained, mask = completions.trained, completions.mask
    rejected = mask & ~trained
    assert 0.02 < rejected.sum() / mask.sum() < 0.98
    assert saved["signals"].turn_id[rejected].tolist() == [0] * int(rejected.sum())
    assert {len(messages) for messages in saved["batch"]["messages"]} == {1}
    saved["batch"]["completions"] = replace(completions, trained=None)
    whole = reference.credited(saved["batch"], chain / "model", "gear")
    whole["credit"].advantage[rejected] = 0.0
    reference.assert_same(saved, whole, at_least=64)
    pairs = list(zip(update["advantages"], update["response_mask"], strict=True))
    assert not any(advantage[mask == 0].any() for advantage, mask in pairs)
    assert sum(int((mask == 0).sum()) for _, mask in pairs) == int(mask.sum() - trained.sum())
    assert torch.cat([advantage[mask == 1] for advantage, mask in pairs]).unique().numel() > 16 * 8
