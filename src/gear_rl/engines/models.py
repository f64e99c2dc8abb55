"""Models from folders and names: adapters on their base, and teachers with other weights. Knows no trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gear_rl.signals.steps import PrmScore, check_classifier
from gear_rl.signals.table import signals_of
from gear_rl.types import CreditAssigner

_ADAPTER = "adapter_config.json"


def is_adapter(name: str) -> bool:
    """Whether a name means a folder with a PEFT adapter, as ``gear train`` with ``lora`` saves one."""
    return (Path(name) / _ADAPTER).is_file()


def load_causal_lm(name: str, options: Mapping[str, Any], *, trained: bool = False) -> Any:
    """The model of a folder or a hub name; of an adapter's folder its base with the adapter on it.

    ``options`` are those of ``from_pretrained``; the weights are float32 where they do not say. With ``trained``
    the adapter's weights can be. ``ValueError`` for an adapter whose base cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    settings = {"dtype": "float32"} | dict(options)
    if isinstance(settings["dtype"], str) and settings["dtype"] != "auto":
        settings["dtype"] = getattr(torch, settings["dtype"])
    loader: Any = AutoModelForCausalLM
    if not is_adapter(name):
        return loader.from_pretrained(name, **settings)
    from peft import PeftModel

    base = _base_of(name)
    try:
        model = loader.from_pretrained(base, **settings)
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"model: {name} is an adapter of {base}, which cannot be loaded ({first}); write its folder into "
            f"base_model_name_or_path of {_ADAPTER}"
        ) from None
    return PeftModel.from_pretrained(model, name, is_trainable=trained)


def contiguous_head(model: Any) -> None:
    """Make the input of a bfloat16 head on a CPU contiguous; other models stay as they are.

    ``generate`` gives the head a slice of the prompt's states, which torch 2.13 multiplies some 500 times slower.
    """
    head: nn.Module = model.get_output_embeddings()
    weight: Any = head.weight
    if weight.dtype == torch.bfloat16 and weight.device.type == "cpu":
        head.register_forward_pre_hook(_contiguous)


def _contiguous(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0].contiguous(), *given[1:])


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or a hub name; an adapter's folder may leave it to its base."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    if is_adapter(name) and not (Path(name) / "tokenizer_config.json").is_file():
        name = _base_of(name)
    return loader.from_pretrained(name)


def load_frozen_teacher(name: str, options: Mapping[str, Any], tokenizer: Any, vocabulary: int) -> nn.Module:
    """Another model for the teacher's passes, which reads the student's ids; nothing of it is trained.

    ``vocabulary`` is the number of logits that the student has; a teacher padded to more is cut to them.
    ``ValueError`` where the two tokenizers disagree, or the teacher has fewer.
    """
    check_vocabulary(name, tokenizer_of(name, "teacher_model"), tokenizer)
    model = load_causal_lm(name, options)
    logits = vocabulary_size(model)
    if logits < vocabulary:
        raise ValueError(
            f"teacher_model: {name} has {logits} logits, and the model {vocabulary}; take another"
        )
    if logits > vocabulary:
        model.resize_token_embeddings(vocabulary)
    return model.eval().requires_grad_(False)


def vocabulary_size(model: Any) -> int:
    """The number of the model's logits, also where DeepSpeed ZeRO-3 has divided the head."""
    weight = model.get_output_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def check_vocabulary(name: str, other: Any, tokenizer: Any, setting: str = "teacher_model") -> None:
    """Raise ``ValueError`` where ``other``, the tokenizer of the model ``name``, is not the student's."""
    if other.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{setting}: {name} has another vocabulary than the model ({len(other)} and {len(tokenizer)} "
            "tokens); it reads the student's own token ids, so take a model saved with the same tokenizer"
        )


def reward_models(method: CreditAssigner) -> list[str]:
    """The process reward models that the method's signals name."""
    return [signal.prm for signal in signals_of(method.needs) if isinstance(signal, PrmScore)]


def check_reward_model(name: str, tokenizer: Any) -> None:
    """Raise ``ValueError`` for what is no token classifier, or was saved with another tokenizer."""
    check_classifier(name)
    check_vocabulary(name, tokenizer_of(name, "prm"), tokenizer, "prm")


def tokenizer_of(name: str, setting: str) -> Any:
    """``load_tokenizer`` for a model that a setting names; ``ValueError`` begins with the setting."""
    try:
        return load_tokenizer(name)
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"{setting}: {name!r} has no tokenizer that can be loaded ({first}); check the name, and save the "
            "policy's beside it"
        ) from None


def _base_of(adapter: str) -> str:
    from peft import PeftConfig

    return str(PeftConfig.from_pretrained(adapter).base_model_name_or_path)
