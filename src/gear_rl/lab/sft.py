"""What a user would do instead: fine-tuning on the privileged text, with TRL's SFTTrainer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gear_rl.credit.contexts import privileged_context
from gear_rl.engine import plain_ids
from gear_rl.engines.trl.engine import TRLEngine

_SHARED = (
    "seed", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay",
    "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "optim", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "use_cpu",
    "dataloader_pin_memory", "disable_tqdm", "output_dir",
)  # fmt: skip
"""Settings of the run that fine-tuning shares."""


def prompts_of(trainer: Any, first: int, count: int) -> list[dict[str, Any]]:
    """The rows of a run's training after the ``first``, in the order in which GRPO draws their prompts.

    All of them where none is left.
    """
    order = list(dict.fromkeys(trainer._get_train_sampler()))
    return [trainer.train_dataset[index] for index in order[first : first + count] or order]


def imitated_texts(rows: Iterable[Mapping[str, Any]], column: str | None) -> list[str]:
    """The privileged text of each row; ``ValueError`` for a row without one."""
    found = [privileged_context(row, column) for row in rows]
    if None in found:
        raise ValueError(
            "sft: a row has no privileged text to imitate, and the function `privileged` is not asked; leave sft "
            "out, or name the column with privileged_column"
        )
    return [text for _, text in filter(None, found)]


def demonstrations(trainer: Any, rows: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """Ids of prompt and privileged text of each row, as the student would write it; the mask is 1 on the text.

    ``ValueError`` for a row without a text.
    """
    engine, made = TRLEngine(trainer), list[dict[str, list[int]]]()
    for row, shown in zip(rows, imitated_texts(rows, trainer.args.privileged_column), strict=True):
        [prompt] = engine.render([row["prompt"]], None)
        text = [*plain_ids(engine.tokenizer, shown), trainer._tokenizer.eos_token_id]
        made.append({"input_ids": [*prompt, *text], "completion_mask": [0] * len(prompt) + [1] * len(text)})
    return made


def fine_tune(trainer: Any, rows: list[dict[str, Any]], steps: int, callback: Any) -> None:
    """Train the run's model in place on the privileged texts of ``rows``, with its own settings.

    A step has as many sequences as one of the run has rollouts.
    """
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    # Before SFTConfig is made, which resets the state that the run's trainer reads; SFTTrainer makes it anew.
    dataset = Dataset.from_list(demonstrations(trainer, rows))
    settings: dict[str, Any] = {name: getattr(trainer.args, name) for name in _SHARED}
    tuner = SFTTrainer(
        model=trainer.model,
        args=SFTConfig(
            **settings,
            max_steps=steps,
            max_length=None,
            completion_only_loss=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
        ),
        train_dataset=dataset,
        processing_class=trainer.processing_class,
        callbacks=[callback],
    )
    tuner.train()
