"""A mixture of experts: its router is no noise in the divergence, and its credit trains."""

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engines import tiny
from engines.running import trained
from gear_rl import Gear, LocalEngine
from gear_rl.engine import ForwardRequest
from gear_rl.records import read_records
from gear_rl.signals.signal import DIVERGENCE, STUDENT_LOGPROB


def mixture(vocab):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=16,
        num_experts_per_tok=4,
        max_position_embeddings=4096,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    return tiny.louder(Qwen3MoeForCausalLM(config), 6.0)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.5)], ids=str)
def test_a_model_agrees_with_itself_exactly_and_whatever_else_is_in_its_batch(dtype, most):
    """With the default router no token is dropped for want of capacity, so only rounding is left."""
    fast, draw = tiny.tokenizer(), torch.Generator().manual_seed(1)
    engine = LocalEngine(mixture(len(fast)).to(dtype), fast)
    lengths = torch.randint(10, 60, (32,), generator=draw).tolist()
    ids = [torch.randint(9, len(fast), (length,), generator=draw).tolist() for length in lengths]
    batch = engine.rollouts([dict(row) for row in tiny.rows(16) for _ in range(2)], ids, [1.0] * 32)

    def signals(batch_size):
        engine.batch_size = batch_size
        request = ForwardRequest(
            needs=(DIVERGENCE, STUDENT_LOGPROB),
            step=0,
            completions=batch.completions,
            student=batch.student,
            teachers=[batch.student],
            scored_B=batch.completions.mask.any(-1),
        )
        return engine.forward(request)

    together, alone = signals(8), signals(1)
    assert together["divergence"].abs().max() == 0.0 == alone["divergence"].abs().max()
    gap = (together["student_logprob"] - alone["student_logprob"]).abs()
    assert gap.max() < most


def test_it_trains(tmp_path):
    fast = tiny.tokenizer()
    for part in (fast, mixture(len(fast))):
        part.save_pretrained(tmp_path / "model")
    trainer = trained(tmp_path / "run", str(tmp_path / "model"), Gear(), record_file="records.jsonl")
    assert trainer.state.global_step == 2
    records = list(read_records(tmp_path / "run/records.jsonl"))
    assert any(len({*record.weight}) > 1 for record in records if record.signals)
