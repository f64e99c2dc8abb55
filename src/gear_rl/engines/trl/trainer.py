"""GEAR in TRL: ``GRPOTrainer`` with a credit assigner.

Everything that TRL does stays TRL's: rollouts, tools, rewards, the base advantage, the loss, vLLM, PEFT,
sharding, trackers. This file collects what TRL's hooks show of the rollouts, has the credit step score them,
and replaces the advantages ``(B,)`` by ``(B, T)``. It knows no method: it is given an object.
"""

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.credit.config import METHOD_SETTINGS, PRIVILEGED_COLUMNS
from gear_rl.credit.contexts import PrivilegedFunction, needs_context
from gear_rl.credit.informed import TeacherCheck
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.plan import CreditPlan
from gear_rl.credit.step import assign, for_loss, needs_passes, prepare, report
from gear_rl.engines.folder import UNFINISHED, RunFolder
from gear_rl.engines.models import load_frozen_teacher
from gear_rl.engines.tools import ToolGuard
from gear_rl.engines.trl.checkpoints import Checkpoints, Run, fingerprint, skip_epochs
from gear_rl.engines.trl.config import SHARDED, GEARConfig, check_setup, checked_arguments
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.engines.trl.evaluation import evaluate, solve
from gear_rl.engines.trl.late import (
    ROW,
    LateCredit,
    StudentForwards,
    is_deterministic,
    makes_old_pass,
    may_wait,
)
from gear_rl.engines.trl.loss import WEIGHT, FiniteSteps, attach, loss_with_distillation
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.engines.trl.tools import parse_tool_calls
from gear_rl.records import Record, RecordWriter
from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.control_tokens import control_pattern, defused_message
from gear_rl.signals.forwards import padding_moves_positions, unwrapped
from gear_rl.signals.signal import names_of, needs_student
from gear_rl.signals.teacher import CopyTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.traits import distillation_of, method_settings
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)
_SYNCED_REFERENCE = "synced_reference.safetensors"


class GEARTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose advantages are spread over the tokens by ``credit`` (GEAR, arXiv:2605.11853).

    Takes every argument of ``GRPOTrainer``. ``args`` is a ``GEARConfig``; ``credit`` is any ``CreditAssigner``;
    ``privileged`` is the function of the source "function". What ``args`` leaves at None and the method brings
    is the method's, on a copy: ``trainer.args`` has it. Evaluation is TRL's own: no credit is assigned there.
    Raises ``ValueError`` before anything is loaded if the dataset has no privileged context for a method that
    needs a teacher, or if the loss would lose the tokens' credit or misread its signs (``docs/engines.md``).

    >>> from datasets import Dataset
    >>> from gear_rl.methods.gear import Gear
    >>> rows = Dataset.from_list([{"prompt": "1 + 1 ="}])
    >>> GEARTrainer("any/model", len, GEARConfig("out", use_cpu=True), rows, credit=Gear())
    Traceback (most recent call last):
    ValueError: train_dataset: method 'gear' compares the student with a teacher that sees the ground truth, ...
    """

    args: GEARConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    model: Any  # pyright: ignore[reportIncompatibleVariableOverride]
    num_generations: int  # pyright: ignore[reportIncompatibleVariableOverride]
    _tag_names = ["trl", "gear"]  # noqa: RUF012

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GEARConfig | None = None,
        train_dataset: Any = None,
        *more: Any,
        credit: CreditAssigner,
        privileged: PrivilegedFunction | None = None,
        **options: Any,
    ) -> None:
        args = checked_arguments(args, credit, privileged, train_dataset, options)
        self.credit, self.privileged = credit, privileged
        self.teacher: Teacher | None = None
        self.teacher_model: nn.Module | None = None
        self.continues_adapter = hasattr(model, "peft_config")
        self.reference: Teacher | None = None
        self.rollouts, self.student_forwards = Rollouts(), StudentForwards()
        self.late: LateCredit | None = None
        self.teacher_check = TeacherCheck(every=args.teacher_check_steps)
        self.segment_check = SegmentCheck()
        self.tool_guard = ToolGuard(args.tool_time_limit, args.tool_max_chars)
        self.tool_guard.guard_options(options)
        self.run_folder = RunFolder(Path(cast(str, args.output_dir)), args.record_file)
        self.record_subscribers: list[Callable[[list[Record]], object]] = []
        """Each is called with the records of every batch, on the first process; the record file is the first."""
        if self.run_folder.records is not None:
            self.record_subscribers.append(self._write_records)
        self._record_writer: RecordWriter | None = None
        self.run: Run | None = None
        self._finite_steps = FiniteSteps()
        self._fetches, self._warned_of = False, set[str]()
        self._sampler: Any = None
        processing = options.get("processing_class", more[1] if len(more) > 1 else None)
        if processing is not None and (options.get("tools") or options.get("environment_factory")):
            parse_tool_calls(processing)
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        self.checkpoints = Checkpoints(self.run_folder, self.args, self.accelerator)
        self.control_tokens = control_pattern(self._tokenizer)
        plugins: Any = self.accelerator.state
        check_setup(
            credit,
            self.args,
            num_generations=self.num_generations,
            sharding=self.sharding,
            zero_stage=int(getattr(getattr(plugins, "deepspeed_plugin", None), "zero_stage", 0)),
            fsdp_version=getattr(getattr(plugins, "fsdp_plugin", None), "fsdp_version", 2),
            peft=hasattr(self.model, "peft_config"),
            images=bool(getattr(self, "_is_vlm", False)),
        )
        if args.teacher_model is not None and needs_context(credit):
            dtype = {"dtype": str(self.model.dtype).removeprefix("torch.")}
            vocabulary = int(self.model.get_output_embeddings().weight.shape[0])
            teacher = load_frozen_teacher(args.teacher_model, dtype, self._tokenizer, vocabulary)
            self.teacher_model = teacher.to(self.accelerator.device)
        self.add_callback(_FollowStudent(self))

    # --- rollouts -------------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        # The only place where TRL shows the final prompts: an environment's reset() may have changed them.
        self.rollouts.prompts = copy.deepcopy(prompts)
        with self.tool_guard.serving():
            return super()._generate(prompts, *more, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        shown = inputs
        if getattr(self, "environment_factories", None) is not None:
            # TRL hands every column to the environment's reset(), whose text the student sees.
            hidden = (self.args.privileged_column, PRIVILEGED_COLUMNS[0])
            shown = [{name: value for name, value in row.items() if name not in hidden} for row in inputs]
        self.rollouts.begin(inputs)
        self.tool_guard.begin()
        keep_old = (
            self.model.training
            and needs_student(self.credit.needs)
            and self._makes_old_pass
            and self.shares_passes
        )
        with self.student_forwards.for_rollouts(keep_old):
            output = cast(dict[str, Any], super()._generate_and_score_completions(shown))
            if self.model.training:
                output["advantages"] = self._spread(inputs, output)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        # Only what TRL itself fetches to train on surely goes through its loss.
        self._fetches = True
        try:
            return super()._prepare_inputs(generation_batch)
        finally:
            self._fetches = False

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        call = super()._get_per_token_logps_and_entropies
        if unwrapped(model) is not unwrapped(self.model):
            return call(model, *args, **options)
        return self.student_forwards.run(call, model, args, options)

    def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> Any:
        # TRL renders an answer and tokenises the whole: `<|im_end|>` in it would become a real end of turn.
        return super()._get_tool_suffix_ids([defused_message(m, self.control_tokens) for m in tool_messages])

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        super()._log_completion_extra(column, values)
        self.rollouts.logged[column] = values

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, ids: Any, *more: Any
    ) -> Any:
        self.rollouts.messages, self.rollouts.ids = completions, ids
        whole = self.rollouts.whole_rows(inputs)
        per_function = super()._calculate_rewards(whole, prompts, completions, ids, *more)
        if self.model.training:
            self._count_infinite(per_function)
        self.rollouts.judge(per_function, self.reward_weights, cast(int, self.num_generations_eval))
        return per_function

    def _count_infinite(self, per_function: Tensor) -> None:
        # NaN is no reward: TRL takes it, as it takes None, for a function that abstained.
        counts = dict(zip(self.reward_func_names, per_function.isinf().sum(0).tolist(), strict=True))
        total, names = sum(counts.values()), ", ".join(name for name, count in counts.items() if count)
        self._metrics["train"]["gear/rewards/non_finite"].append(float(total))
        if total:
            message = (
                "step %d: %d rewards are infinite (%s); all completions of such a group get no advantage. "
                "gear/rewards/non_finite counts them from here on"
            )
            self._warn_once("rewards", message, self.state.global_step, total, names)

    def _warn_once(self, about: str, *message: Any) -> None:
        if about not in self._warned_of and self.accelerator.is_main_process:
            logger.warning(*message)
        self._warned_of.add(about)

    def evaluation_loop(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, dataloader: Any, *more: Any, metric_key_prefix: str = "eval", **named: Any
    ) -> Any:
        """TRL's evaluation, and pass@1 and pass@k (k = ``num_generations_eval``) with 95 % intervals.

        ``eval_dataset={"easy": ..., "hard": ...}`` is evaluated tier by tier. With ``eval_greedy`` every problem
        is solved once more without sampling. The random state of the training is left as it was.
        """
        own_loop = partial(super().evaluation_loop, dataloader, *more, **named)
        return evaluate(self, own_loop, dataloader, metric_key_prefix)

    def solve(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        greedy: bool = False,
        seed: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[float | None]:
        """The reward of one rollout per row, tools and environments included; nothing is trained or logged.

        Sampled with ``seed``, or the run's own: the same seed draws the same rollouts again. ``advance`` is
        called with the number of rows that each batch has finished.
        """
        return solve(self, rows, greedy=greedy, seed=seed, advance=advance)

    # --- the credit step ------------------------------------------------------------------------------------

    def credit_engine(self, *, in_loss: bool = False) -> TRLEngine:
        """The engine of the next credit step; override it for passes or signals of your own."""
        return TRLEngine(self, in_loss=in_loss)

    def _spread(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Tensor:
        """The advantages for TRL: of every token, (B, T), or its own where the credit is computed in the loss."""
        begin = time.perf_counter()
        if needs_passes(self.credit):
            self._warn_of_positions(output["prompt_mask"])
        engine = self.credit_engine()
        batch = self.rollout_batch(output)
        plan = prepare(batch, self.credit, engine, self.args, self.privileged)
        self.teacher_check(plan, engine, self.args)
        if self._may_wait(plan):
            self.late = LateCredit(plan, output, self.args, self.credit_engine, begin)
            return output["advantages"]
        old = self.student_forwards.old
        if old is not None and old.logprob is output.get("old_per_token_logps"):
            engine.student_states = old.states
        result = assign(plan, engine, self.args)
        if result.credit.distill_weight is not None:
            attach(output, result.credit, result.signals, plan.teachers[0], result.trusted_B)
        report(plan, result, engine, time.perf_counter() - begin)
        return for_loss(plan.batch, result.credit)

    def rollout_batch(self, output: dict[str, Any]) -> RolloutBatch:
        """The rollouts of this process, from what ``_generate_and_score_completions`` returned for them."""
        tools: dict[str, Any] = {}
        if self.tools:
            pairs = zip(self._sync_tool_dicts, self._async_tool_dicts, strict=True)
            names = [sorted({*sync, *anew}) for sync, anew in pairs]
            tools = self.rollouts.tool_facts(
                output, names, self.tool_guard, self._tokenizer, self.control_tokens
            )
        return self.rollouts.batch(
            output,
            step=self.state.global_step,
            group_size=self.num_generations,
            rank=self.accelerator.process_index,
            environments=getattr(self, "environments", None),
            end_ids=cast(list[int], self.eos_token_ids),
            **tools,
        )

    def _may_wait(self, plan: CreditPlan) -> bool:
        """Whether TRL trains on each of these rollouts once, before the next update, by a loss that we know."""
        ours = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")
        return (
            self._fetches
            and all(getattr(type(self), name) is getattr(GEARTrainer, name) for name in ours)
            and self.args.num_iterations == 1
            and not self._makes_old_pass
            and may_wait(plan)
            and self.shares_passes
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.late is not None and ROW in inputs:
            inputs, receive = self.late.waiting(inputs)
            with self.student_forwards.going_to(receive):
                return super()._compute_loss(model, inputs)
        distillation = distillation_of(self.credit) if WEIGHT in inputs else None
        if distillation is None:
            return super()._compute_loss(model, inputs)
        return loss_with_distillation(
            super()._compute_loss,
            model,
            inputs,
            distillation,
            self.credit_engine(),
            accumulation=self.current_gradient_accumulation_steps,
            padding_moves=self.padding_moves,
        )

    def ready_teacher(self) -> Teacher:
        """The teacher's weights, made on first use: before the first step."""
        if self.teacher is None:
            kind = cast(TeacherKind, self.args.teacher_model_kind)
            if not needs_context(self.credit) or self.teacher_model is not None:
                kind = "live"  # a copy of the weights that nobody reads would only cost memory
            # Without an adapter that goes on being trained, it would be another model than the run began with.
            self.teacher = self._lender(kind, copy=self.continues_adapter)
        return self.teacher

    def ready_reference(self) -> Teacher:
        """The weights that the run began with, for a method that needs them; made on first use."""
        if self.reference is None:
            # A copy under PEFT too: without its adapter the model is the first one only if that began as nothing.
            kind = "base" if "reference_logprob" in names_of(self.credit.needs) else "live"
            self.reference = self._lender(kind, copy=True)
        return self.reference

    def _lender(self, kind: TeacherKind, copy: bool) -> Teacher:
        if kind == "base" and copy and self.sharding not in SHARDED:
            return CopyTeacher(self.model)
        rate, steps = cast(float, self.args.teacher_update_rate), cast(int, self.args.teacher_sync_steps)
        return make_teacher(kind, self.model, rate, steps)

    @cached_property
    def padding_moves(self) -> bool:
        """Whether left padding moves the positions of the model's own forward (as in GPT-2)."""
        return padding_moves_positions(self.model, self.accelerator.device)

    @cached_property
    def shares_passes(self) -> bool:
        """Whether the student's hidden states in TRL's forwards are those of a pass of our own; once a training.

        Not where a forward in training mode differs from one that scores (dropout, noise, batch statistics), not
        where TRL's forwards count positions from the padding on, and not where it was never run.
        """
        args = self.args
        return (
            args.student_pass == "auto"
            and self.sharding not in SHARDED
            and not args.use_liger_kernel
            and not args.torch_compile
            and not args.neftune_noise_alpha
            and not getattr(self, "_is_vlm", False)
            and is_deterministic(self.model)
            and not self.padding_moves
        )

    @property
    def _makes_old_pass(self) -> bool:
        return makes_old_pass(self.args, bool(getattr(self, "use_vllm", False)))

    @property
    def sharding(self) -> str:
        """How accelerate distributes the model: NO, MULTI_GPU, FSDP, DEEPSPEED, ..."""
        return str(self.accelerator.distributed_type).rpartition(".")[2]

    def _warn_of_positions(self, attention_BP: Tensor) -> None:
        # Every process comes here: some may have padded prompts, others none.
        if "positions" in self._warned_of or not self.padding_moves:
            return
        if cast(Tensor, self.accelerator.gather((attention_BP == 0).any().long()[None])).any():
            message = (
                "model: %s has absolute positions, and prompts of this batch are padded on the left. TRL's loss "
                "counts positions from the first padding token on, the signals of %r are made at the positions "
                "of the sampling, and the log-probabilities of the two differ. Prompts of one length avoid this, "
                "or one prompt per process and batch of rollouts (per_device_train_batch_size * "
                "steps_per_generation = num_generations), or a model with rotary positions"
            )
            self._warn_once("positions", message, self.model.config.model_type, self.credit.name)

    def _write_records(self, records: list[Record]) -> None:
        if self._record_writer is None:
            path, size = cast(Path, self.run_folder.records), int(self.args.record_max_mb * 1024 * 1024)
            self._record_writer = RecordWriter(path, size, resume_step=self.state.global_step)
        self._record_writer.write(records)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **options: Any) -> Any:
        """TRL's training, in a folder that no other process writes meanwhile.

        ``resume_from_checkpoint`` is a checkpoint's folder, or True or "latest" for the newest whole one of the
        run whose folder ``output_dir`` is; those that are passed over are named in the log. ``ValueError`` for a
        checkpoint that is not whole, or was made with another configuration (``resume_anyway`` goes on as a new
        run). ``FloatingPointError`` before a step whose loss or gradient is not finite (``non_finite_step``). A
        finished run that is resumed does nothing.
        """
        with self.checkpoints.writing():
            parts = self.train_dataset, self.reward_func_names, self.model
            configuration = fingerprint(self.args, self.credit, *parts)
            self.run, checkpoint = self.checkpoints.begin(resume_from_checkpoint, configuration)
            self._record_writer = None  # what it continues is read again
            vars(self).pop("shares_passes", None)
            return super().train(checkpoint, *more, **options)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # In the middle of its rollouts TRL would sample others after a resume, so they are saved too.
        inside = self._step % (cast(int, self.args.steps_per_generation) * int(self.num_iterations))
        self.checkpoints.save(
            cast(Run, self.run),
            self.state,
            Path(super()._get_output_dir(trial)),
            lambda: super(GEARTrainer, self)._save_checkpoint(model, trial),
            self._kept_weights(),
            {"micro_batches": self._step, "rollouts": self._buffered_inputs if inside else None},
        )
        if self.args.push_to_hub:  # only what is whole
            super()._push_from_checkpoint(cast(str, cast(Run, self.run).last_checkpoint))

    def _kept_weights(self) -> dict[str, Any]:
        """What a checkpoint holds beside TRL's own files, by the file's name."""
        kept: dict[str, Any] = {
            "teacher.safetensors": self.ready_teacher(),
            "reference.safetensors": self.ready_reference(),
        }
        if self.args.sync_ref_model:
            kept[_SYNCED_REFERENCE] = self.accelerator.unwrap_model(self.ref_model)
        return kept

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self.checkpoints.writes_aside else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.checkpoints.writes_aside:
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            same, kept = cast(Run, self.run).same, self._kept_weights()
            if not same:
                kept.pop(_SYNCED_REFERENCE, None)  # another run begins with its own
            progress = self.checkpoints.load(Path(checkpoint), kept)
            if progress is not None and same:  # rollouts of other settings may not even fit
                self._step, self._buffered_inputs = progress["micro_batches"], progress["rollouts"]

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _init_training_state(self, max_steps: int, *more: Any, **named: Any) -> tuple[int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        epochs, steps = super()._init_training_state(max_steps, *more, **named)
        skip_epochs(self._sampler, epochs)
        if self.state.global_step >= max_steps:
            # Transformers would train one step more before it looks.
            message = (
                "resume_from_checkpoint: the run is finished (step %d of %d), so nothing is trained; raise "
                "max_steps or num_train_epochs to go on"
            )
            logger.warning(message, self.state.global_step, max_steps)
            return self.state.num_train_epochs, 0
        return epochs, steps

    def create_model_card(self, *names: Any, **named: Any) -> None:
        """TRL's draft of ``README.md`` in ``output_dir``, with the method's settings and the engine's for it."""
        self._name = f"GRPO with the credit method `{self.credit.name}` ({self.credit.source})"
        super().create_model_card(*names, **named)
        if self.is_world_process_zero():
            file = Path(cast(str, self.args.output_dir)) / "README.md"
            card = ModelCard.load(file)
            settings = method_settings(self.credit) | {
                key: getattr(self.args, key) for key in METHOD_SETTINGS
            }
            lines = [f"- `{key}`: {value}\n" for key, value in settings.items()]
            card.text = card.text.replace(
                "### Framework", f"### Credit\n\n{''.join(lines)}\n### Framework", 1
            )
            card.save(file)

    # --- steps that are not finite --------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """TRL's step on one micro-batch; its loss is looked at before the weights change."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._finite_steps.add(loss)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # Under fp16 a gradient that overflows is ordinary: its scaler leaves the step out by itself.
        wrong = self._finite_steps.take(None if getattr(self.accelerator, "scaler", None) else norm)
        if self.accelerator.num_processes > 1:
            own = torch.tensor([float(wrong is not None)], device=self.accelerator.device)
            if bool(cast(Tensor, self.accelerator.gather(own)).any()):
                wrong = (
                    wrong or "the loss of another process"
                )  # all do the same, else their weights would part
        if wrong is not None:
            self._leave_out(model, wrong)
        return norm

    def _leave_out(self, model: nn.Module, wrong: str) -> None:
        """Before the optimizer's step: ``FloatingPointError``, or with 'skip' no gradient to step with."""
        step = self.state.global_step + 1
        if self.args.non_finite_step == "skip":
            model.zero_grad(set_to_none=True)  # an optimizer leaves out what has no gradient
            self._metrics["train"]["gear/skipped_steps"].append(1.0)
            if self.accelerator.is_main_process:
                logger.warning("step %d: not finite (%s); no weight changes in this step", step, wrong)
            return
        applied = self.sharding == "DEEPSPEED"  # its engine steps inside the backward
        state = "DeepSpeed has applied it already" if applied else "no weight was changed by it"
        last = None if self.run is None else self.run.last_checkpoint
        known = f"the last good checkpoint is {last}" if last else "no checkpoint was saved yet"
        raise FloatingPointError(
            f"step {step}: not finite ({wrong}); {state}, and {known}. A lower learning_rate or max_grad_norm, "
            "or looking at the rewards and the data of this step, is the usual cure; non_finite_step: skip "
            "leaves such steps out"
        )


class _FollowStudent(TrainerCallback):
    """Makes the teacher before the first step, and lets it follow after each."""

    def __init__(self, trainer: GEARTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.ready_teacher()
        self.trainer.ready_reference()
        if needs_passes(self.trainer.credit):
            _ = self.trainer.padding_moves  # on every process, before any step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.teacher is not None:
            self.trainer.teacher.update(self.trainer.model, state.global_step)
