"""What of a run may not change when it is resumed: the configuration's fingerprint, as names and values.

Every setting counts that is not listed here, so one that a later TRL adds is compared too.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, cast

from torch import Tensor, nn

from gear_rl.engines.trl.checks import SHARDED
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.types import CreditAssigner

_MAY_CHANGE = """
    output_dir run_name project report_to disable_tqdm debug max_steps num_train_epochs resume_from_checkpoint
    resume_anyway overwrite_output_dir non_finite_step load_best_model_at_end metric_for_best_model
    greater_is_better
    per_device_eval_batch_size num_generations_eval prediction_loss_only batch_eval_metrics include_for_metrics
    include_num_input_tokens_seen skip_memory_metrics num_completions_to_print enable_jit_checkpoint
    restore_callback_states_from_checkpoint push_to_hub local_rank do_train do_eval do_predict
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context torch_empty_cache_steps credit_batch_size activation_checkpointing
    activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs trust_remote_code
    vllm_group_port vllm_gpu_memory_utilization vllm_enable_sleep_mode
"""
MAY_CHANGE = frozenset(_MAY_CHANGE.split())
"""Settings that say how long, how watched and with how much memory a run goes on, not what it learns."""
_MAY_CHANGE_PREFIXES = (
    "logging_",
    "log_",
    "save_",
    "eval_",
    "hub_",
    "trackio_",
    "record_",
    "ddp_",
    "vllm_server_",
)
_ROWS = 1000
"""Rows of the dataset that are hashed, evenly spaced."""
_STREAMED_ROWS = 4


def configuration_of(trainer: Trainer) -> dict[str, Any]:
    """Everything that a resumed run must share, by name, with values as JSON has them."""
    values = {name: value for name, value in trainer.args.to_dict().items() if not may_change(name)}
    adapters = cast("Mapping[str, Any]", getattr(trainer.model, "peft_config", {}))
    places = ("base_model_name_or_path", "inference_mode", "revision", "peft_version")
    values |= _credit(trainer.credit)
    values |= {
        "model": f"{trainer.model.config.model_type}, {_size(trainer.model)} parameters",
        "lora": [{k: v for k, v in one.to_dict().items() if k not in places} for one in adapters.values()],
        "frozen weights": _frozen_weights(trainer),
        "train_dataset": _rows(trainer.train_dataset),
        "reward_funcs": list(trainer.reward_func_names),
        "tools": [_name(tool) for tool in getattr(trainer, "tools", None) or ()],
        "privileged": _name(trainer.privileged),
        "processes": int(trainer.accelerator.num_processes),
    }
    return json.loads(json.dumps(values, sort_keys=True, default=_plain))


def may_change(name: str) -> bool:
    """Whether a resumed run may have another value of a setting.

    >>> may_change("save_steps"), may_change("max_steps"), may_change("seed"), may_change("beta")
    (True, True, False, False)
    """
    return name in MAY_CHANGE or name.startswith(_MAY_CHANGE_PREFIXES)


def differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The settings that differ, with the checkpoint's value and the run's; empty if none does.

    >>> differences({"beta": 0.0, "seed": 1}, {"beta": 0.1, "seed": 1})
    'beta 0.0 is now 0.1'
    """
    missing = "not there"
    return ", ".join(
        f"{name} {_shown(saved.get(name, missing))} is now {_shown(own.get(name, missing))}"
        for name in sorted(saved.keys() | own.keys())
        if saved.get(name, missing) != own.get(name, missing)
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _credit(method: CreditAssigner) -> dict[str, Any]:
    """The method's name, and each of its settings where it is a dataclass."""
    if not is_dataclass(method):
        return {"credit": _address_free(method)}
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    plain = {
        name: v if isinstance(v, int | float | str | None) else _address_free(v)
        for name, v in settings.items()
    }
    return {"credit": method.name} | {f"credit.{name}": value for name, value in plain.items()}


def _address_free(thing: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _rows(dataset: Any) -> str:
    """How many rows, which columns, and a hash of some of them; a stream only shows its first."""
    if dataset is None:
        return "none"
    if hasattr(dataset, "__len__"):
        count = len(dataset)
        # As Arrow has them: an image stays the bytes that it is.
        some = dataset.with_format("arrow")[range(0, count, max(1, count // _ROWS))].to_pylist()
        return f"{count} rows of {', '.join(dataset.column_names)}, {_sha(some)}"
    return f"a stream that begins with {_sha(list(islice(dataset, _STREAMED_ROWS)))}"


def _frozen_weights(trainer: Trainer) -> str:
    """A hash of vectors (norms, biases) of weights that no checkpoint holds: an adapter's model, a reference."""
    if trainer.sharding in SHARDED:
        return "not looked at"
    reference: Any = None if trainer.args.sync_ref_model else getattr(trainer, "ref_model", None)
    frozen = [p for p in _vectors(trainer.model) if not p.requires_grad]
    frozen += [] if reference is None else list(_vectors(reference))
    digest = hashlib.sha256()
    for p in frozen:
        digest.update(repr(p.detach().float().cpu().tolist()).encode())  # pyright: ignore[reportUnknownMemberType]
    return digest.hexdigest()[:16] if frozen else "none"


def _vectors(model: nn.Module) -> Iterable[Tensor]:
    return (p for p in model.parameters() if p.dim() == 1)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _sha(rows: Any) -> str:
    text = json.dumps(rows, sort_keys=True, default=repr)
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _name(thing: Any) -> str | None:
    return (
        None
        if thing is None
        else f"{thing.__module__}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    )


def _plain(value: Any) -> Any:
    """What JSON does not have: sets in order, anything else by its class."""
    return (
        sorted(map(str, cast("set[Any]", value)))
        if isinstance(value, set | frozenset)
        else _name(type(value))
    )
