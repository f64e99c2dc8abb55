"""GEAR in TRL: ``GRPOTrainer`` with a credit assigner.

Everything that TRL does stays TRL's: rollouts, tools, rewards, the base advantage, the loss, vLLM, PEFT,
sharding, trackers. This file listens to the rollout's prompts, scores the completions that TRL hands over, and
replaces the advantages ``(B,)`` by ``(B, T)``. It does not know any method: it is handed an object.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.evaluation import success_metrics
from gear_rl.engines.tools import ToolGuard, control_pattern, defused_message
from gear_rl.engines.trl.checks import (
    SHARDED,
    check_groups,
    check_importance_level,
    check_reference,
    check_sharding,
    check_signs,
    report_contexts,
)
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.engines.trl.credit import asked_of, for_loss, report, settle
from gear_rl.engines.trl.distillation import attach, check_trainer, loss_with_distillation
from gear_rl.engines.trl.hooks import StudentPass, listened, makes_old_pass, shares, warn_of_positions
from gear_rl.engines.trl.late import ROW, LateCredit, may_wait
from gear_rl.engines.trl.signals import collect, needs_context, needs_passes, of_all_processes
from gear_rl.engines.trl.solve import solve
from gear_rl.records import RecordWriter
from gear_rl.signals.contexts import PrivilegedFunction, check_sources
from gear_rl.signals.forwards import padding_moves_positions, unwrapped
from gear_rl.signals.privileged import PRIVILEGED_COLUMNS
from gear_rl.signals.score import needs_student
from gear_rl.signals.teacher import CopyTeacher, LiveTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.traits import distillation_of
from gear_rl.types import ROW_SIGNALS, Credit, CreditAssigner, TokenSignals

TEACHER_FILE, REFERENCE_FILE = "teacher.safetensors", "reference.safetensors"
"""The teacher's own weights inside a checkpoint, and the reference's, where they have any."""


class GEARTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose advantages are spread over the tokens by ``credit`` (GEAR, arXiv:2605.11853).

    Takes every argument of ``GRPOTrainer``. ``args`` is a ``GEARConfig``; ``credit`` is any
    ``CreditAssigner``. What ``args`` leaves at None and the method brings is the method's, on a copy:
    ``trainer.args`` has it. Evaluation is TRL's own: no credit is assigned there. Raises ``ValueError`` before
    anything is loaded if the dataset has no privileged context for a method that needs a teacher, or if the loss
    would lose the tokens' credit or misread its signs (``docs/engines.md``).
    """

    args: GEARConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    model: Any  # pyright: ignore[reportIncompatibleVariableOverride]
    num_generations: int  # pyright: ignore[reportIncompatibleVariableOverride]
    _tag_names = ["trl", "gear"]  # noqa: RUF012
    _name = "GEAR"
    _paper = {  # noqa: RUF012
        "title": "GEAR: Granularity-Adaptive Advantage Reweighting for LLM Agents via Self-Distillation",
        "id": "2605.11853",
    }

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
        if isinstance(credit, type) or not isinstance(credit, CreditAssigner):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"credit: {credit!r} is not a method; give an object such as Gear() or Uniform()"
            )
        if args is None:
            args = GEARConfig("gear-output")
        if not isinstance(args, GEARConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"args: {type(args).__name__} has no settings of the credit pass; give a GEARConfig, which takes "
                "the same arguments and more"
            )
        args = args.resolved(credit)
        if (
            args.teacher_prompt == "render"
            and options.get("rollout_func") is not None
            and needs_context(credit)
        ):
            raise ValueError(
                "teacher_prompt: 'render' cannot repeat the prompt that a rollout_func builds itself; set it to "
                "'splice'"
            )
        check_importance_level(credit, args.loss_type, args.importance_sampling_level)
        check_signs(credit, args.loss_type, args.off_policy_mask_threshold)
        self.credit = credit
        self.teacher: Teacher | None = None
        self.reference: Teacher | None = None
        self._privileged = privileged
        self._sources = list(args.privileged_sources or ())
        if privileged is not None and "function" not in self._sources:
            self._sources.insert(0, "function")
        self._rollout_prompts: list[Any] = []
        self._rollout_completions: list[Any] = []
        self._rollout_ids: list[list[int]] = []
        self._rows: list[dict[str, Any]] = []
        self._batch_rewards: list[float | None] = []
        self._rewards_each = torch.zeros(0, 0)
        self._feedback: list[str | None] | None = None
        self._turn_rewards: list[Any] | None = None
        self._evaluated: list[list[float | None]] | None = None
        self._records: RecordWriter | None = None
        self._fetches = False
        self._warned_of_positions = False
        self._late: LateCredit | None = None
        self._awaits: Callable[[StudentPass | None], None] | None = None
        self._old_pass: StudentPass | None = None
        check_sources(self._sources, privileged is not None)
        environment = options.get("environment_factory")
        if needs_context(credit) and train_dataset is not None:
            column, contrast = args.privileged_column, str(args.teacher_contrast)
            report_contexts(train_dataset, column, self._sources, environment, contrast, credit.name)
        self._guard = ToolGuard(args.tool_time_limit, args.tool_max_chars)
        if options.get("tools"):
            options["tools"] = [self._guard.tool(tool) for tool in options["tools"]]
        if isinstance(environment, dict):
            made = cast(dict[str, Any], environment)
            options["environment_factory"] = {k: self._guard.environment(v) for k, v in made.items()}
        elif environment is not None:
            options["environment_factory"] = self._guard.environment(environment)
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        self._control = control_pattern(self._tokenizer)
        if getattr(self, "_is_vlm", False) and needs_passes(credit):
            raise ValueError(
                f"model: images cannot be scored yet, and {credit.name!r} needs passes of the model; train a "
                "language model, or use credit 'uniform'"
            )
        check_groups(credit, args, self.num_generations)
        if distillation_of(credit) is not None:
            check_trainer(self)
        if getattr(getattr(self.accelerator.state, "fsdp_plugin", None), "fsdp_version", 2) == 1:
            raise ValueError("fsdp_version: 1 hides the head's weights outside of forward; set it to 2")
        peft = hasattr(self.model, "peft_config")
        check_sharding(str(args.teacher_model_kind), self._sharding, peft)
        check_reference(credit, self._sharding, peft)
        self.add_callback(_FollowStudent(self))

    # --- hooks of TRL ---------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        # The only place where TRL shows the final prompts: an environment's reset() may have changed them.
        self._rollout_prompts = copy.deepcopy(prompts)
        with self._guard.serving():
            return super()._generate(prompts, *more, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        shown = inputs
        if getattr(self, "environment_factories", None) is not None:
            # TRL hands every column to the environment's reset(), whose text the student sees.
            secret = self.args.privileged_column or PRIVILEGED_COLUMNS[0]
            shown = [{name: value for name, value in row.items() if name != secret} for row in inputs]
        self._rows, self._feedback, self._turn_rewards = inputs, None, None
        self._guard.begin()
        if self.model.training and needs_student(self.credit.needs) and makes_old_pass(self) and shares(self):
            self._awaits = self._keep_old_pass
        try:
            output = cast(dict[str, Any], super()._generate_and_score_completions(shown))
            if self.model.training:
                output["advantages"] = self._spread(inputs, output)
        finally:
            self._awaits = self._old_pass = None
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
        awaits = self._awaits
        if awaits is None or unwrapped(model) is not unwrapped(self.model):
            return call(model, *args, **options)
        self._awaits = None  # the first pass is the student's; one with the adapter off may follow
        result, heard = listened(call, model, args, options)
        awaits(heard)
        return result

    def _keep_old_pass(self, heard: StudentPass | None) -> None:
        self._old_pass = heard

    def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> Any:
        # TRL renders an answer and tokenises the whole: `<|im_end|>` in it would become a real end of turn.
        return super()._get_tool_suffix_ids([defused_message(m, self._control) for m in tool_messages])

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        super()._log_completion_extra(column, values)
        if column == "feedback":
            self._feedback = values
        elif column == "turn_rewards":
            self._turn_rewards = values

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, ids: Any, *more: Any
    ) -> Any:
        # A reward function may read the column that reset() must not.
        whole = [{**row, **shown} for row, shown in zip(self._rows, inputs, strict=True)]
        self._rollout_completions, self._rollout_ids = completions, ids
        per_function = super()._calculate_rewards(whole, prompts, completions, ids, *more)
        # As TRL sums them; NaN is a reward function that abstained.
        weighted = cast(Tensor, per_function * self.reward_weights.to(per_function.device)).nansum(1)
        each = per_function * self.reward_weights.to(per_function.device)
        self._rewards_each = torch.where(each.isnan(), 0.0, each)  # as in `nansum`; an infinite one stays
        judged = ~per_function.isnan().all(1)
        self._batch_rewards = [
            value if judge else None for value, judge in zip(weighted.tolist(), judged.tolist(), strict=True)
        ]
        if self._evaluated is not None:
            tries = cast(int, self.num_generations_eval)
            for begin in range(0, len(self._batch_rewards), tries):
                self._evaluated.append(self._batch_rewards[begin : begin + tries])
        return per_function

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """TRL's evaluation, and pass@1 and pass@k (k = ``num_generations_eval``) with 95 % intervals.

        ``eval_dataset={"easy": ..., "hard": ...}`` is evaluated tier by tier. With ``eval_greedy`` every problem
        is solved once more without sampling. The random state of the training is left as it was.
        """
        self._evaluated = []
        try:
            device = self.accelerator.device
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(self.args.seed + self.accelerator.process_index)
                # In the loop's own metrics, callbacks see ours (early stopping), and all is logged once.
                output = super().evaluation_loop(
                    dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
        finally:
            rewards, self._evaluated = self._evaluated, None
        chosen: Any = dataloader.dataset
        sized = hasattr(chosen, "__len__")
        if sized:
            rewards = rewards[: len(chosen)]  # several processes repeat the last problems to fill a batch
        success = cast(float, self.args.success_reward)
        ours = success_metrics(rewards, success, metric_key_prefix)
        if self.args.eval_greedy and sized:
            once = [[reward] for reward in self.solve(list(chosen), greedy=True)]
            greedy = success_metrics(once, success, metric_key_prefix)
            ours |= {n.replace("pass@1", "greedy"): v for n, v in greedy.items() if "pass@1" in n}
        cast(dict[str, float], output.metrics).update(ours)
        return output

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

    def rewards_of_batch(self) -> list[float | None]:
        """The weighted sum of the rewards of the last batch, of all processes; None where none judged."""
        return self._batch_rewards

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if ROW in inputs:
            return cast(LateCredit, self._late).loss(self, model, inputs, super()._compute_loss)
        return loss_with_distillation(self, model, inputs, super()._compute_loss)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        for name, teacher in ((TEACHER_FILE, self.teacher), (REFERENCE_FILE, self.reference)):
            state = {} if teacher is None else teacher.state_dict()
            if state and self.args.should_save:
                kept = {key: p.contiguous().cpu() for key, p in state.items()}
                safetensors.torch.save_file(kept, folder / f".{name}")
                os.replace(folder / f".{name}", folder / name)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        for name, teacher in (
            (TEACHER_FILE, self._ready_teacher()),
            (REFERENCE_FILE, self._ready_reference()),
        ):
            file = Path(checkpoint) / name
            try:
                teacher.load_state_dict(safetensors.torch.load_file(file) if file.exists() else {})
            except ValueError as error:
                fix = (
                    "" if name == TEACHER_FILE else f" ({name}: and with the credit that needs the reference)"
                )
                raise ValueError(f"resume_from_checkpoint: {checkpoint}: {error}{fix}") from None

    # --- the credit pass ------------------------------------------------------------------------------------

    def _ready_teacher(self) -> Teacher:
        if self.teacher is None:
            if needs_context(self.credit):
                kind = cast(TeacherKind, self.args.teacher_model_kind)
                rate = cast(float, self.args.teacher_update_rate)
                steps = cast(int, self.args.teacher_sync_steps)
                self.teacher = make_teacher(kind, self.model, rate, steps)
            else:
                self.teacher = LiveTeacher()  # a copy of the weights that nobody reads would only cost memory
        return self.teacher

    def _ready_reference(self) -> Teacher:
        if self.reference is None:
            if "reference_logprob" not in self.credit.needs:
                self.reference = LiveTeacher()
            elif self._sharding in SHARDED:
                self.reference = make_teacher("base", self.model)
            else:
                # Under PEFT too: without its adapter the model is the first one only if that began as nothing.
                self.reference = CopyTeacher(self.model)
        return self.reference

    @cached_property
    def _padding_moves(self) -> bool:
        return padding_moves_positions(self.model, self.accelerator.device)

    @property
    def _sharding(self) -> str:
        return str(self.accelerator.distributed_type).rpartition(".")[2]

    def _spread(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Tensor:
        """The advantages that TRL is handed: of every token, (B, T), or its own where the credit comes later."""
        begin = time.perf_counter()
        if needs_passes(self.credit):
            warn_of_positions(self, output["prompt_mask"])
        asked = asked_of(self, inputs, output)
        if may_wait(self, asked, GEARTrainer):
            self._late = LateCredit(self, asked, output, begin)
            return output["advantages"]
        old = self._old_pass
        if old is not None and old.logprob is output.get("old_per_token_logps"):
            asked = replace(asked, batch=replace(asked.batch, student_states=old.states))
        settled = settle(self, asked, collect(self, asked.method.needs, asked.batch))
        if settled.credit.distill_weight is not None:
            attach(output, settled.credit, settled.signals, asked.batch.teachers[0], settled.trusted_B)
        report(self, asked, settled, output, time.perf_counter() - begin)
        return for_loss(asked, settled.credit)

    def _credit(self, method: CreditAssigner, advantage_B: Tensor, signals: TokenSignals) -> Credit:
        """The method's credit for this process's completions, beside their siblings on other processes."""
        if not any(name in ROW_SIGNALS for name in method.needs):
            return method(advantage_B, signals)
        everyones_B, everyones, own = of_all_processes(self, advantage_B, signals)
        credit, columns = method(everyones_B, everyones), signals.mask.shape[1]
        distill = credit.distill_weight
        return Credit(
            advantage=credit.advantage[own, :columns],
            segment_id=credit.segment_id[own, :columns],
            distill_weight=None if distill is None else distill[own, :columns],
        )


class _FollowStudent(TrainerCallback):
    """Makes the teacher before the first step, and lets it follow after each."""

    def __init__(self, trainer: GEARTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._ready_teacher()  # pyright: ignore[reportPrivateUsage]
        self.trainer._ready_reference()  # pyright: ignore[reportPrivateUsage]
        if needs_passes(self.trainer.credit):
            _ = self.trainer._padding_moves  # pyright: ignore[reportPrivateUsage]  # on every process, before any step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.teacher is not None:
            self.trainer.teacher.update(self.trainer.model, state.global_step)
