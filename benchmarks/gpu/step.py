"""A training step of GEAR over GRPO's, on a large model's shape with random weights, full fine-tuning.

    python -m benchmarks.gpu.step OUT TOKENIZER [--small]

Completions are random tokens of full length, so that a step costs what it would with an engine that generates
elsewhere; Hugging Face generation is timed by itself. ``vllm`` has the pass for old log-probabilities that TRL
makes with vLLM; ``none`` has not, and the credit makes its own student pass. ``--small`` tries it on a CPU.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import benchmarks.step
from benchmarks.measure import now
from gear_rl.runs.config import RunConfig
from gear_rl.runs.trainer import make_trainer

QWEN3_1_7B = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "vocab_size": 151936}
QWEN3_1_7B |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 49152}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Some number of each completion: random tokens are neither right nor wrong."""
    return [sum(ids) % 97 / 96 for ids in completion_ids]


def main(out: Path, tokenizer: str, small: bool, engines: Sequence[str] = ("vllm",)) -> None:
    """Write the ratios, the shares of a step's parts, peak memory and the seconds of generation."""
    shape, tokens, batch = (SMALL, 32, 2) if small else (QWEN3_1_7B, 1024, 8)
    model, rollouts = out / "model", 8 * batch
    torch.manual_seed(0)
    weights = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True)).to(torch.bfloat16)
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
    for engine in engines:
        begin = time.perf_counter()
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
        more = {"student_pass": "own"} if engine == "none" else {}
        with patch.object(benchmarks.step, "make_trainer", lambda config: made(config, tokens, engine)):
            measured = benchmarks.step.bench_step(
                "gear", task="", tier="", steps=3, repeats=1, rollouts=rollouts, console=Console(), run=run,
                trainer=more,
            )  # fmt: skip
        if DEVICE == "cuda":
            measured["peak_gb_of_both"] = torch.cuda.max_memory_allocated() / 1e9
        result[engine] = measured | {"seconds_in_all": time.perf_counter() - begin}
        (out / "step.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(engine, measured["ratio"], measured["grpo_seconds_per_step"], flush=True)


def made(config: RunConfig, tokens: int, engine: str) -> Any:
    """The run's trainer, whose completions are random tokens."""
    trainer: Any = make_trainer(config)

    def completions(prompts: Sequence[Any], count: int = 1) -> list[list[int]]:
        # TRL gives vLLM one prompt for each group, and Hugging Face one for each completion.
        torch.manual_seed(trainer.state.global_step)
        ends = [trainer._tokenizer.eos_token_id]
        return [row + ends for row in torch.randint(5, 40000, (len(prompts), tokens - 1)).tolist()]

    if engine == "vllm":
        trainer.use_vllm, trainer._last_loaded_step = True, -1

        def generate(prompts: Sequence[Any], **options: Any) -> Any:
            ids = completions(prompts)
            return prompts, ids, [[[-11.9] for _ in each] for each in ids], None

        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None, generate=generate)
    else:

        def single_turn(prompt_ids: Any, *rest: Any, **options: Any) -> Any:
            return completions(prompt_ids), None

        trainer._generate_single_turn = single_turn
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "--small" in sys.argv[3:])
