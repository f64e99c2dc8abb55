"""verl's hybrid worker with one more method: the signals of a credit step, made where the weights are.

The passes run unchanged on the sharded module: hidden states by a hook in the model's own forward, the head
gathered for each use, the vocabulary in tiles.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.passes import ModelPasses
from gear_rl.engines.verl.wire import ORDER, Order, jagged, request_fields, rows_of, signal_field, unpacked
from gear_rl.signals.forwards import head_of
from gear_rl.signals.score import TeacherStates, needs_teacher, teacher_states
from gear_rl.signals.teacher import LiveTeacher, make_teacher


class CreditWorker(ActorRolloutRefWorker):
    """The worker of an unmodified verl, which can score its rollouts for token credit too."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_credit_signals(self, data: TensorDict) -> TensorDict:
        """The signals that the ``Order`` in ``data`` names, one number per token, in fields of their own."""
        order: Order = tensordict_utils.get_non_tensor_data(data, ORDER, None)
        device = torch.device(get_device_id())
        fields = {name: rows_of(data[name]) for name in request_fields(order) if name in set(data.keys())}
        request = unpacked(fields, order, device)
        engine: Any = self.actor.engine
        with engine.eval_mode():
            values = self._passes(order, request, device)
        lengths = [len(ids) for ids in fields["responses"]]
        return TensorDict(
            {signal_field(name): jagged(values[name].float().cpu(), lengths) for name in order.needs},
            batch_size=len(lengths),
        )

    def _passes(self, order: Order, request: ForwardRequest, device: torch.device) -> dict[str, Tensor]:
        model: Any = self.actor.engine.module
        ranks = dist.get_world_size() if dist.is_initialized() else 1

        def largest(count: int) -> int:
            number = torch.tensor(count, device=device)
            if ranks > 1:
                dist.all_reduce(number, op=dist.ReduceOp.MAX)
            return int(number)

        base = order.config.teacher_model_kind == "base" and needs_teacher(order.needs)
        adapter_free = make_teacher("base", model) if base and self.ref is None else None
        passes = ModelPasses(
            model=model,
            config=order.config,
            pad_id=order.pad_id,
            teacher=adapter_free or LiveTeacher(),
            reference=LiveTeacher(),  # what would read it is refused
            temperature=order.temperature,
            batch_size=order.batch_size,
            seed=order.seed,
            largest=largest,
            share_prompts=ranks == 1,
        )
        states = self._reference_states(order, request, largest) if base and self.ref is not None else None
        return passes.run(request, teacher_states=states)

    def _reference_states(self, order: Order, request: ForwardRequest, largest: Any) -> TeacherStates:
        """The pass of the teacher with the first weights: verl's reference model in the same process."""
        engine: Any = self.ref.engine
        count = largest(-(-int(request.scored_B.sum()) // order.batch_size))
        with engine.eval_mode():
            states = teacher_states(
                engine.module,
                request.completions,
                request.teachers[0],
                temperature=order.temperature,
                row_B=request.scored_B,
                batch_size=order.batch_size,
                num_batches=count,
            )
            head = head_of(engine.module, order.temperature)
        # The reference's weights may rest in the main memory, and be moved there again.
        head = replace(head, weight_VD=head.weight_VD.to(request.completions.ids.device))
        return TeacherStates(hidden=states.hidden, head=head)
