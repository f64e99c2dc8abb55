"""verl's trainers with token credit: another worker, and other advantages."""

import json
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import ray
import transfer_queue
from omegaconf import open_dict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.utils.tensordict_utils import get_tensordict

from gear_rl.credit.credit_config import PRIVILEGED_COLUMNS
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.plan import CreditResult
from gear_rl.credit.step import for_loss, step
from gear_rl.engines.folder import RunFolder
from gear_rl.engines.verl.checks import (
    check,
    check_environment,
    compares_groups,
    reads_reference,
    version_note,
)
from gear_rl.engines.verl.engine import (
    FIELDS,
    ORDER,
    PADDING,
    ROW,
    Order,
    Passes,
    VerlEngine,
    column,
    jagged_rows,
    signal_field,
)
from gear_rl.engines.verl.rollouts import (
    COLUMNS,
    SAMPLED,
    Columns,
    check_text,
    log_prob_gap,
    rollout_batch,
    seen_rows,
)
from gear_rl.engines.verl.worker import CreditWorker
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.model.forwards import max_positions
from gear_rl.records import Record, RecordWriter
from gear_rl.rollouts import RolloutBatch
from gear_rl.runs.verl.hydra_settings import read_config
from gear_rl.signals.table import needs_context, needs_passes

logger = logging.getLogger(__name__)

STATE = "gear_state.json"
"""In verl's checkpoint: what the method remembers (``Engine.state``)."""
HYBRID_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
"""verl's roles of a worker that holds the actor."""


class CreditTrainer:
    """A mixin for one of verl's trainers; ``mode`` is verl's own name of that trainer.

    verl decides by that name how it buffers and fetches prompts, so it is set back in the configuration.
    """

    mode: str
    # What verl's trainer has:
    config: Any
    global_steps: int
    timing_raw: dict[str, Any]
    tokenizer: Any
    actor_rollout_wg: Any
    role_worker_mapping: dict[Any, Any]
    mapping: dict[Any, Any]

    def __init__(self, config: Any) -> None:
        self.credit, note = read_config(config), version_note()
        check_environment()
        check(config, self.credit)  # again: a run may not have come through verl's command
        if note is not None:
            logger.warning("gear: %s", note)
        self._writer: RecordWriter | None = None
        self._prompts_agree = False
        self._segment_check = SegmentCheck()
        self._state = dict[str, Any]()
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
            super().__init__(config)  # pyright: ignore[reportCallIssue]

    def _init_resource_pool_mgr(self) -> None:
        """Start our worker in place of verl's, with verl's reference model where that is the teacher."""
        super()._init_resource_pool_mgr()  # pyright: ignore[reportAttributeAccessIssue]
        for role in HYBRID_ROLES:
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(CreditWorker)
        # verl itself loads the reference for a KL term alone.
        if Role.ActorRollout not in self.role_worker_mapping or not reads_reference(self.config, self.credit):
            return
        print(
            "gear: loads verl's reference model, which is the teacher 'base'; gear.teacher=live does without"
        )
        for by_role in (self.role_worker_mapping, self.mapping):
            by_role[Role.ActorRolloutRef] = by_role.pop(Role.ActorRollout)
        ref, rollout = self.config.actor_rollout_ref.ref, self.config.actor_rollout_ref.rollout
        if ref.log_prob_micro_batch_size_per_gpu is None and ref.log_prob_micro_batch_size is None:
            # The worker asserts one, though it computes no log-probs of the reference.
            ref.log_prob_micro_batch_size_per_gpu = rollout.log_prob_micro_batch_size_per_gpu

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        # Before verl's own, which ends by naming the folder the newest.
        replace_file(folder / STATE, json.dumps(self._state).encode())
        super()._save_checkpoint()  # pyright: ignore[reportAttributeAccessIssue]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # pyright: ignore[reportAttributeAccessIssue]
        given = self.config.trainer
        newest = Path(given.default_local_dir) / f"global_step_{self.global_steps}"
        file = Path(given.resume_from_path if given.resume_mode == "resume_path" else newest) / STATE
        if self.global_steps and file.is_file():
            self._state = json.loads(file.read_bytes())

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # verl's rejection of tokens overwrites the mask, and turns are runs of sampled tokens.
        masks = self._columns(batch.keys, batch.partition_id, ("response_mask",))["response_mask"]
        sampled = dict(zip(batch.keys, masks, strict=True))
        batch = super()._compute_advantage(batch, metrics)  # pyright: ignore[reportAttributeAccessIssue]
        with marked_timer("credit", self.timing_raw, color="purple"):
            self.assign_credit(batch, metrics, sampled)
        return batch

    def assign_credit(
        self, batch: KVBatchMeta, metrics: dict[str, Any], sampled: Mapping[str, Tensor]
    ) -> tuple[RolloutBatch, CreditResult]:
        """Replace the advantages of the batch by the method's; returns what they were made from.

        ``sampled`` is the mask of each key before verl rejected any token.
        """
        real = [r for r, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys, credit = [batch.keys[r] for r in real], self.credit
        own = {credit.config.privileged_column, credit.config.teacher_contrast, *PRIVILEGED_COLUMNS}
        names = tuple(dict.fromkeys((*COLUMNS, *sorted(own - {None}))))
        columns = {
            **self._columns(keys, batch.partition_id, names),
            SAMPLED: [sampled[key] for key in keys],
        }
        grouped = compares_groups(self.config)
        rollouts = rollout_batch(columns, keys, self.global_steps - 1, self.tokenizer, grouped=grouped)
        if needs_passes(credit.method):
            check_text(rollouts.prompts, credit.method.name)
        engine = self._engine(batch, real, columns, metrics)
        if needs_context(credit.method) and credit.config.teacher_prompt == "render":
            self._check_prompts(rollouts, columns, engine)
        result = step(rollouts, credit.method, engine, credit.config, privileged=credit.privileged)
        self._segment_check(credit.method, metrics, 0)
        advantage = for_loss(rollouts, result.credit)
        if advantage.dim() > 1:  # else every weight is 1, and what verl computed stays
            lengths = [len(ids) for ids in columns["responses"]]
            self._put(keys, batch.partition_id, {"advantages": jagged_rows(advantage.float(), lengths)})
        if "student_logprob" in result.signals:
            counted = result.trusted_B[:, None] & rollouts.completions.mask  # of others the signals may be 0
            gap = log_prob_gap(columns, result.signals.student_logprob, counted)
            if gap is not None:
                metrics["gear/engine/log_prob_gap"] = gap
        return rollouts, result

    def _engine(
        self, batch: KVBatchMeta, real: list[int], columns: Columns, metrics: dict[str, Any]
    ) -> VerlEngine:
        """The engine of the credit step for this batch."""
        actor_rollout_ref = self.config.actor_rollout_ref
        return VerlEngine(
            tokenizer=self.tokenizer,
            config=self.credit.config,
            passes=self._passes(batch, real),
            # How verl divides what it sends to the actor; `_balance_batch` has queried it.
            parts=max(self.actor_rollout_wg._dispatch_info["actor"]) + 1,
            padding=len(batch.keys) - len(real),
            temperature=float(actor_rollout_ref.rollout.temperature),
            seed=int(actor_rollout_ref.actor.get("data_loader_seed", 0) or 0),
            tools=[row.get("tools") for row in seen_rows(columns, len(real))],
            template_kwargs=dict(self.config.data.get("apply_chat_template_kwargs", None) or {}),
            metrics=metrics,
            state=self._state,
            max_positions=self._max_positions,
            teacher_model=self.credit.config.teacher_model,
            record_sink=None if self.credit.config.record_file is None else self._write,
        )

    @cached_property
    def _max_positions(self) -> int | None:
        """The positions of the model, from its configuration with verl's overrides."""
        model = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)
        return max_positions(model.hf_config)

    def _passes(self, batch: KVBatchMeta, real: list[int]) -> Passes:
        filling = sorted({*range(len(batch.keys))} - {*real})

        def run(places: list[int], rows: list[bytes], order: Order) -> dict[str, list[Tensor]]:
            spare = iter(filling)
            chosen = [next(spare) if place == PADDING else real[place] for place in places]
            keys = [batch.keys[r] for r in chosen]
            self._put(keys, batch.partition_id, {ROW: rows})
            request = KVBatchMeta(
                keys=keys,
                tags=[batch.tags[r] for r in chosen],
                partition_id=batch.partition_id,
                fields=list(FIELDS),
                extra_info={ORDER: order},
            )
            self.actor_rollout_wg.compute_credit_signals(request)
            signals = {signal.name: signal_field(signal.name) for signal in order.needs}
            found = self._columns(keys, batch.partition_id, tuple(signals.values()))
            return {name: found[field] for name, field in signals.items()}

        return run

    def _columns(self, keys: list[str], partition: str, names: tuple[str, ...]) -> dict[str, list[Any]]:
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition, select_fields=list(names))
        return {name: column(data[name]) for name in names if name in set(data.keys())}

    def _put(self, keys: list[str], partition: str, fields: dict[str, Any]) -> None:
        transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=get_tensordict(fields))

    def _check_prompts(self, rollouts: RolloutBatch, columns: Columns, engine: VerlEngine) -> None:
        """Once: check that the template renders the student's prompts again, since the teacher's use it."""
        if self._prompts_agree:
            return
        for ids, shown in zip(columns["prompts"], engine.render(rollouts.prompts, None), strict=True):
            own = ids.tolist()
            if shown[-len(own) :] != own:  # verl cuts a long prompt on the left
                own, shown = (self.tokenizer.decode(side)[-80:] for side in (own, shown))
                raise InputError(
                    "gear.teacher_prompt: 'render' does not make the student's prompt again, since its template "
                    f"or tools are not known here: {own!r} came out as {shown!r}; set it to splice"
                )
        self._prompts_agree = True

    def _write(self, records: list[Record]) -> None:
        config = self.credit.config
        if self._writer is None:
            folder = RunFolder(Path(self.config.trainer.default_local_dir), config.record_file)
            if self.global_steps == 1:
                folder.keep_old_records()
            size = int(config.record_max_mb * 1024 * 1024)
            self._writer = RecordWriter(cast(Path, folder.records), size, resume_step=self.global_steps - 1)
        self._writer.write(records)


@register_trainer("gear_sync")
class GearSync(CreditTrainer, PPOTrainerSync):
    """verl's synchronous trainer with token credit."""

    mode = "sync"


@register_trainer("gear_colocate_async")
class GearColocateAsync(CreditTrainer, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on shared devices, with token credit."""

    mode = "colocate_async"
