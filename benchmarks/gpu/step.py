"""A training step of GEAR over GRPO's, on a large model's shape with random weights, full fine-tuning.

    python -m benchmarks.gpu.step OUT TOKENIZER [--small]

Completions are random tokens of full length, so that a step costs what it would with an engine that generates
elsewhere, and TRL makes the pass for old log-probabilities as it does with vLLM. Hugging Face generation is timed
by itself. ``--small`` tries it on a CPU.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import benchmarks.step
from benchmarks.measure import now
from benchmarks.step import DEVICE, bench_step
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.trl_run import make_trainer

QWEN3_1_7B: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "vocab_size": 151936,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 49152,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Some number of each completion: random tokens are neither right nor wrong."""
    return [sum(ids) % 97 / 96 for ids in completion_ids]


def main(out: Path, tokenizer: str, small: bool) -> None:
    """Write the ratios, the shares of a step's parts, peak memory and the seconds of generation."""
    shape, tokens, batch = (SMALL, 32, 2) if small else (QWEN3_1_7B, 1024, 8)
    model, rollouts = out / "model", 8 * batch
    torch.manual_seed(0)
    weights: Any = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
    weights = weights.to(torch.bfloat16)
    weights.save_pretrained(model)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(model)
    question = "Find the sum of all whole numbers below one hundred that seven divides. " * (
        1 if small else 6
    )
    row = {
        "prompt": [{"role": "user", "content": question}],
        "solution": "The sum is 735. " * (1 if small else 12),
    }
    (out / "rows.jsonl").write_text((json.dumps(row) + "\n") * 64, encoding="utf-8")
    result: dict[str, Any] = {"device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"}
    result |= {
        "shape": shape,
        "rollouts": rollouts,
        "tokens": tokens,
        "versions": {"torch": torch.__version__},
    }
    with torch.no_grad():
        weights = weights.to(DEVICE)
        ids = torch.randint(5, 40000, (rollouts, 100), device=DEVICE)
        length = {"max_new_tokens": tokens // 4, "min_new_tokens": tokens // 4}
        weights.generate(ids, max_new_tokens=4, do_sample=True, pad_token_id=0)
        begin = now(DEVICE)
        weights.generate(ids, do_sample=True, pad_token_id=0, **length)
        result["generation_seconds_of_a_quarter"] = now(DEVICE) - begin
    del weights
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    run = RunConfig(
        model=str(model),
        dataset=str(out / "rows.jsonl"),
        reward="benchmarks.gpu.step:reward",
        trainer={
            "bf16": DEVICE == "cuda",
            "model_init_kwargs": {"dtype": "bfloat16"},
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": rollouts // batch,
            "num_generations": 8,
            "max_completion_length": tokens,
            "learning_rate": 1e-6,
        },
    )
    with patch.object(benchmarks.step, "make_trainer", partial(make_vllm_trainer, tokens)):
        result |= bench_step(
            "gear", task="", tier="", steps=3, repeats=1, rollouts=rollouts, console=Console(), run=run
        )
    if DEVICE == "cuda":
        result["peak_gb_of_both"] = torch.cuda.max_memory_allocated() / 1e9
    (out / "step.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def make_vllm_trainer(tokens: int, config: RunConfig) -> Any:
    """The run's trainer, which gets random tokens from what it takes for vLLM."""
    trainer: Any = make_trainer(config)

    def generate(prompts: Sequence[Any], **options: Any) -> Any:
        torch.manual_seed(trainer.state.global_step)
        drawn = torch.randint(5, 40000, (len(prompts), tokens - 1)).tolist()
        ids = [[*row, trainer._tokenizer.eos_token_id] for row in drawn]
        return prompts, ids, [[[-math.log(len(trainer._tokenizer))] for _ in row] for row in ids], None

    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None, generate=generate)
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "--small" in sys.argv[3:])
