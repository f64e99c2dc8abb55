"""verl's hybrid worker with one more method, which computes the signals of a credit step."""

import pickle
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import nn
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker

from gear_rl.engines.models import load_frozen_teacher
from gear_rl.engines.verl.engine import (
    FIELDS,
    ORDER,
    Order,
    column,
    jagged_rows,
    request_of_rows,
    signal_field,
)
from gear_rl.model.forwards import text_config, unwrap_model
from gear_rl.model.teacher import AdapterFreeTeacher, Teacher
from gear_rl.signals.passes import ModelPasses


class CreditWorker(ActorRolloutRefWorker):
    """verl's worker, which also scores rollouts for token credit."""

    _other: nn.Module | None = None

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_credit_signals(self, data: TensorDict) -> TensorDict:
        """The signals that the ``Order`` in ``data`` names, one number per token, in fields of their own."""
        order: Order = tensordict_utils.get_non_tensor_data(data, ORDER, None)
        device = torch.device(get_device_id())
        prompts, responses, rows = (column(data[name]) for name in FIELDS)
        request = request_of_rows(order, [pickle.loads(row) for row in rows], prompts, responses, device)
        taught = any(signal.teacher for signal in order.needs)
        base = taught and order.teacher_model is None and order.config.teacher_model_kind == "base"
        actor: Any = self.actor.engine
        other = self._teacher_model(order.teacher_model) if taught else None
        reference: Any = self.ref.engine if base and self.ref is not None else None
        with actor.eval_mode(), nullcontext() if reference is None else reference.eval_mode():
            passes = ModelPasses(
                model=actor.module,
                pad_id=order.pad_id,
                # With LoRA verl loads no reference: the teacher is the model without its adapter, which verl
                # makes as PEFT's default, so it begins as nothing.
                teacher=AdapterFreeTeacher() if base and reference is None else Teacher(),
                teacher_model=other if reference is None else reference.module,
                reference=Teacher(),  # reference_logprob is refused
                temperature=order.temperature,
                batch_size=cast(int, order.config.credit_batch_size),
                seed=order.seed,
                largest=_largest,
                share_prompts=not _is_sharded(),
            )
            values = passes.run(request)
        lengths = [len(ids) for ids in responses]
        fields = {signal_field(name): jagged_rows(x.float().cpu(), lengths) for name, x in values.items()}
        return TensorDict(fields, batch_size=len(lengths))

    def _teacher_model(self, name: str | None) -> nn.Module | None:
        """The frozen model that is the teacher, if another is: loaded once, whole on every rank."""
        if name is not None and self._other is None:
            actor: Any = self.actor.engine
            config: Any = unwrap_model(actor.module).config
            dtype = {"dtype": actor._autocast_dtype}  # FSDP computes in it, whatever the weights are kept in
            vocabulary = int(text_config(config).vocab_size)
            teacher = load_frozen_teacher(name, dtype, actor.model_config.tokenizer, vocabulary)
            self._other = teacher.to(torch.device(get_device_id()))
        return self._other


def _is_sharded() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _largest(count: int) -> int:
    """The largest count of all ranks: each must run the same number of forwards, or all would deadlock."""
    number = torch.tensor(count, device=get_device_id())
    if _is_sharded():
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return int(number)
