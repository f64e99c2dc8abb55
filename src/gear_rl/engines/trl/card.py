"""The card of a trained model: what was done to it, with which settings, and how to load it.

In place of TRL's draft, which names the method of the trainer's paper whatever credit was assigned.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.traits import method_settings
from gear_rl.versions import versions

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{% if base %}`{{ base }}`{% else %}A model{% endif %} after {{ steps }} steps of GRPO with the credit
method `{{ credit.name }}` ({{ source }}){% if dataset %}, on the dataset `{{ dataset }}`{% endif %},
by [gear-rl](https://arxiv.org/abs/2605.11853) on TRL.

## Load it

```python
{% if adapter %}
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("{{ place }}")
{% else %}
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{{ place }}")
{% endif %}
tokenizer = AutoTokenizer.from_pretrained("{{ place }}")
```

## Credit

{% for key, value in (credit.items() | list) + (engine.items() | list) %}
- `{{ key }}`: {{ value }}
{% endfor %}

## Training

{% for key, value in training.items() %}
- {{ key }}: {{ value }}
{% endfor %}
{% if evaluation %}

## On held-out problems, after step {{ evaluation.step }}

{% for key, value in evaluation.items() if key != "step" %}
- {{ key }}: {{ value }}
{% endfor %}
{% endif %}

## Versions

{% for key, value in versions.items() %}
- {{ key }} {{ value }}
{% endfor %}
"""
_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "seed",
    "num_generations",
    "max_completion_length",
    "temperature",
    "beta",
)


def save_card(trainer: Trainer, name: str | None, dataset: str | None, tags: Any) -> None:
    """Write the card into ``README.md`` of the trainer's folder; on the first process only."""
    if not trainer.is_world_process_zero():
        return
    folder = Path(str(trainer.args.output_dir))
    base = getattr(trainer.model.config, "_name_or_path", "") or None
    own_tags = {tags} if isinstance(tags, str) else {*(tags or ())}
    data = ModelCardData(
        base_model=base if base and not Path(base).exists() else None,
        library_name="peft" if _is_adapter(trainer) else "transformers",
        model_name=name or folder.name,
        tags=sorted({*own_tags, *trainer._tag_names, trainer.credit.name}),
    )
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        name=name or folder.name,
        base=base,
        dataset=dataset,
        place=trainer.hub_model_id or str(folder),
        adapter=_is_adapter(trainer),
        source=trainer.credit.source,
        credit=method_settings(trainer.credit),
        engine={key: getattr(trainer.args, key) for key in METHOD_SETTINGS},
        steps=trainer.state.global_step,
        training=_training(trainer),
        evaluation=_evaluation(trainer),
        versions=versions(),
    )
    card.save(folder / "README.md")


def _is_adapter(trainer: Trainer) -> bool:
    return hasattr(trainer.model, "peft_config")


def _training(trainer: Trainer) -> dict[str, Any]:
    args = trainer.args
    rollouts = (
        args.per_device_train_batch_size
        * args.gradient_accumulation_steps
        * trainer.accelerator.num_processes
    )
    facts = {"rollouts per step": rollouts, "rewards": ", ".join(trainer.reward_func_names)}
    return facts | {
        key: getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        if key == "lr_scheduler_type"
        else getattr(args, key)
        for key in _SETTINGS
    }


def _evaluation(trainer: Trainer) -> Mapping[str, Any]:
    """The last evaluation, with the step after which it was made; empty without any."""
    for entry in reversed(trainer.state.log_history):
        shown = {
            key: round(value, 4) for key, value in entry.items() if "pass@" in key or key.endswith("_reward")
        }
        if shown and any(key.startswith("eval") for key in shown):
            return {"step": entry.get("step"), **shown}
    return {}
