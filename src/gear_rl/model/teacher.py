"""Whose weights the teacher has: the student's own, those it began with, or a slow copy.

A teacher that is not live keeps one copy of the *trained* parameters (all of them in full fine-tuning, the
adapters under PEFT) and lends it to the model for the length of a scoring pass. Knows no trainer: the engine
calls ``update`` after each optimizer step, and saves ``state_dict`` with the run.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

TeacherKind = Literal["live", "base", "ema", "sync"]
"""``live``: the student's current weights. ``base``: those at the start of the run. ``ema``: a moving average.
``sync``: a copy renewed every few steps."""


class Teacher:
    """The student itself, seeing more. Subclasses lend the model other weights, follow its training, are saved.

    >>> teacher = make_teacher("ema", nn.Linear(1, 1))
    >>> isinstance(teacher, Teacher), sorted(teacher.state_dict()), Teacher().state_dict()
    (True, ['bias', 'weight'], {})
    """

    lends = False
    """Whether its weights differ from the student's."""

    def weights(self, model: nn.Module) -> AbstractContextManager[None]:
        """While it is open, ``model`` computes with the teacher's weights."""
        return nullcontext()

    def update(self, model: nn.Module, step: int) -> None:
        """Follow the student after optimizer step ``step``."""

    def state_dict(self) -> dict[str, Tensor]:
        """What has to be saved; empty if nothing has."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up a saved state; ``ValueError`` if it is another model's."""
        expected = self.state_dict()
        if expected.keys() != state.keys():
            odd = sorted(expected.keys() ^ state.keys())[:3]
            raise ValueError(
                f"teacher state: {len(state)} parameters saved, {len(expected)} expected; the first that differ "
                f"are {odd}. Resume with the model and the teacher_model_kind that the checkpoint was made with"
            )
        for name, copy in expected.items():
            copy.copy_(_sharded_as(copy, state[name]))


class AdapterFreeTeacher(Teacher):
    """The first weights where ``begins_as_nothing``, by switching the adapter off: no copy, nothing to save."""

    lends = True

    @contextmanager
    def weights(self, model: nn.Module) -> Generator[None, None, None]:
        wrapped: Any = model
        while not hasattr(wrapped, "disable_adapter"):
            wrapped = wrapped.module
        frozen = [p for p in model.parameters() if not p.requires_grad]
        try:
            with wrapped.disable_adapter():
                yield
        finally:
            for parameter in frozen:  # PEFT leaves every parameter of the adapter trained
                parameter.requires_grad_(False)


class CopyTeacher(Teacher):
    """A copy of the trained parameters: frozen, renewed every ``sync_steps`` steps, or a moving average.

    ``update_rate`` is the share of the student that each step mixes in: 0 never, 1 all of it (EMA as in SDPO,
    arXiv:2601.20802: 0.05). The copy is written into the model in place, so it works wherever the parameters can
    be written: plain, DDP, FSDP 2 (each process keeps its shard), PEFT. The student's values come back bit for
    bit, also after an error; while the weights are lent they take memory once more.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(1.0)
    >>> teacher = CopyTeacher(model, update_rate=0.5)
    >>> _ = model.weight.data.fill_(3.0)
    >>> teacher.update(model, step=1)
    >>> with teacher.weights(model):
    ...     model.weight.item()
    2.0
    >>> model.weight.item()
    3.0
    """

    lends = True

    def __init__(self, model: nn.Module, update_rate: float = 0.0, sync_steps: int = 1) -> None:
        if not 0.0 <= update_rate <= 1.0:
            raise ValueError(f"teacher_update_rate: {update_rate} is not a share; give a number from 0 to 1")
        if sync_steps < 1:
            raise ValueError(f"teacher_sync_steps: {sync_steps} is not a number of steps; give 1 or more")
        self.update_rate, self.sync_steps = update_rate, sync_steps
        averages = 0.0 < update_rate < 1.0
        self._copy = {
            # In bfloat16 a small share of a small difference rounds to nothing: the average would stand still.
            name: p.detach().float().clone() if averages else p.detach().clone()
            for name, p in trained_parameters(model).items()
        }
        if any(p.numel() == 0 for p in self._copy.values()):
            raise ValueError(
                "teacher_model_kind: the parameters are partitioned away on this rank (DeepSpeed ZeRO-3), so "
                "no copy can be kept; use 'base' (with 'live' gear lost its whole gain on codebook hard)"
            )

    @contextmanager
    def weights(self, model: nn.Module) -> Generator[None, None, None]:
        # In place: an optimizer, a wrapper or a tied layer may hold the same tensor.
        copied = self._copied_parameters(model)
        held = {name: p.detach().clone() for name, p in copied.items()}
        try:
            self._write(copied, self._copy)
            yield
        finally:
            self._write(self._copied_parameters(model), held)

    def update(self, model: nn.Module, step: int) -> None:
        if self.update_rate == 0.0 or step % self.sync_steps:
            return
        for name, parameter in self._copied_parameters(model).items():
            self._copy[name].lerp_(parameter.detach().to(self._copy[name].dtype), self.update_rate)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._copy)

    def _copied_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Those that were trained when the copy was made."""
        named = _named_parameters(model)
        return {name: named[name] for name in self._copy}

    @staticmethod
    @torch.no_grad()
    def _write(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
        torch.clear_autocast_cache()  # autocast keeps the weights that it cast, whatever is written


def make_teacher(
    kind: TeacherKind, model: nn.Module, update_rate: float = 0.05, sync_steps: int = 10
) -> Teacher:
    """The teacher that ``kind`` names; ``ValueError`` for a name that is none. Made before the first step.

    >>> type(make_teacher("live", nn.Linear(1, 1))).__name__
    'Teacher'
    """
    match kind:
        case "live":
            return Teacher()
        case "base" if begins_as_nothing(model):
            return AdapterFreeTeacher()
        case "base":
            return CopyTeacher(model)
        case "ema":
            return CopyTeacher(model, update_rate=update_rate)
        case "sync":
            return CopyTeacher(model, update_rate=1.0, sync_steps=sync_steps)
    raise ValueError(f"teacher_model_kind: {kind!r} is not one of {', '.join(get_args(TeacherKind))}")


def begins_as_nothing(model: nn.Module) -> bool:
    """Whether a PEFT model, before its first step, is its base model, and stays it with the adapter off.

    So it is where the second factor of every LoRA is 0 and nothing else is trained but copies of modules. PiSSA,
    OLoRA, random factors or an adapter that was trained before change the start; trained biases stay.
    """
    return hasattr(model, "disable_adapter") and all(
        ".lora_A." in name or ".modules_to_save." in name or (".lora_B." in name and not parameter.any())
        for name, parameter in trained_parameters(model).items()
    )


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer moves, by name; a tied one once. Under FSDP 2: this process's shards.

    >>> list(trained_parameters(nn.Linear(1, 1, bias=False)))
    ['weight']
    """
    return {name: p for name, p in _named_parameters(model).items() if p.requires_grad}


def _named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By the names that they have without DDP and ``torch.compile``."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # whole ones that a forward left behind would outlive what is written to the shards
    named = model.named_parameters()
    return {name.replace("_orig_mod.", "").removeprefix("module."): p for name, p in named}


def _sharded_as(like: Tensor, whole: Tensor) -> Tensor:
    """The shard of ``whole`` that this process holds, if ``like`` is one."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
