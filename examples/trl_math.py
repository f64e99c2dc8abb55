"""GEAR in a TRL script: GRPOTrainer becomes GEARTrainer, GRPOConfig becomes GEARConfig, `credit` is the method.

Runs on a laptop, with the arena's model and problems; put your own model, dataset and reward in their place.
"""

import sys

from datasets import Dataset

from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.arena.chain import TEMPLATE, chain_reward, rows
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load


def main(output_dir: str = "runs/trl_math", max_steps: int = 10) -> GEARTrainer:
    model, tokenizer = load()
    trainer = GEARTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=chain_reward,
        # Columns: prompt, privileged_context (what only the teacher sees), answer (for the reward).
        train_dataset=Dataset.from_list(rows("default", num=512)),
        credit=Gear(alpha=1.0, end_rule="next_fork"),
        args=GEARConfig(
            output_dir=output_dir,
            teacher_prompt_template=TEMPLATE,
            chat_template_kwargs=CHAT_TEMPLATE_KWARGS,
            record_file="records.jsonl",  # in output_dir; then: gear view runs/trl_math/records.jsonl
            max_steps=max_steps,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=24,
            learning_rate=1e-4,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            # On a CPU these only cost time.
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
        ),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
