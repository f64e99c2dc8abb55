"""Competence first, teacher kept: a few steps of SFT on worked solutions before GRPO, with TRL's SFTTrainer.

A model that gets nothing right has no advantage to give credit to, so it is warmed up on demonstrations. After
plain ones it answers from the problem alone, and the teacher, which is the same model with the privileged context
in its prompt, reads that context less. So a share of the demonstrations has the context in the prompt, in the
teacher's own words.

    export DATA=benchmarks.word_problems
    python examples/sft_warmup.py --model smollm2 --dataset $DATA:bare --output_dir runs/warm
    gear teacher --model runs/warm --data $DATA:bare --max_completion_length 48   # still informed?
    gear train --model runs/warm --dataset $DATA:bare --reward $DATA:reward --max_completion_length 48

Writes an adapter, which gear takes wherever it takes a model; with `--merged_dir runs/merged` a model without one
too, which scores a quarter faster. Rows need the column of the privileged context (here `solution`): it is the
demonstration too.
"""

import argparse
import random
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from gear_rl.credit.credit_config import DEFAULT_TEMPLATE
from gear_rl.credit.teacher_prompts import render
from gear_rl.data.rows import load_rows
from gear_rl.engines.models import load_causal_lm, load_tokenizer
from gear_rl.runs.machine import machine_defaults
from gear_rl.runs.model_wheels import resolve_model


def demonstrations(
    rows: Sequence[dict[str, Any]], column: str, shown: float, template: str = DEFAULT_TEMPLATE, seed: int = 0
) -> list[dict[str, Any]]:
    """Prompt and completion of each row; in a share ``shown`` of them the prompt is the teacher's.

    >>> row = {"prompt": [{"role": "user", "content": "2 + 2"}], "solution": "2 + 2 = 4."}
    >>> [one] = demonstrations([row], "solution", shown=1.0, template="{prompt} ({privileged_context})")
    >>> one["prompt"][0]["content"], one["completion"][0]["content"]
    ('2 + 2 (2 + 2 = 4.)', '2 + 2 = 4.')
    """
    draw = random.Random(seed)
    return [
        {
            "prompt": render(row["prompt"], row[column], template)
            if draw.random() < shown
            else row["prompt"],
            "completion": [{"role": "assistant", "content": row[column]}],
        }
        for row in rows
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Warm a model up, and save the adapter with its tokenizer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="a folder, a hub name or smollm2")
    parser.add_argument("--dataset", default="benchmarks.word_problems:bare", help="as gear train takes it")
    parser.add_argument("--column", default="solution", help="demonstration and privileged context")
    parser.add_argument(
        "--shown", type=float, default=0.5, help="share of demonstrations that see the context"
    )
    parser.add_argument("--max_steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=16, help="demonstrations per step")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", default="runs/warm", help="gets the adapter")
    parser.add_argument("--merged_dir", help="gets a model with the adapter in its weights")
    given = parser.parse_args(words)
    model = resolve_model(given.model)
    rows = load_rows(given.dataset, chat=True, limit=given.max_steps * given.batch)
    machine = machine_defaults(pretrained=True, full=False)
    set_seed(given.seed)  # the adapter's first weights
    trainer = SFTTrainer(
        model=load_causal_lm(model, machine.pop("model_init_kwargs", {})),
        processing_class=load_tokenizer(model),
        train_dataset=Dataset.from_list(
            demonstrations([dict(row) for row in rows], given.column, given.shown, seed=given.seed)
        ),
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=SFTConfig(
            **machine,
            output_dir=given.output_dir,
            seed=given.seed,
            max_steps=given.max_steps,
            per_device_train_batch_size=given.batch,
            learning_rate=given.learning_rate,
            warmup_steps=5,
            completion_only_loss=True,
            logging_steps=5,
            save_strategy="no",
            report_to="none",
        ),
    )
    trainer.train()
    trainer.save_model(given.output_dir)
    if given.merged_dir is not None:
        trainer.model.merge_and_unload().save_pretrained(given.merged_dir)
        trainer.processing_class.save_pretrained(given.merged_dir)


if __name__ == "__main__":
    main()
