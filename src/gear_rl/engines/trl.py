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
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.evaluation import success_metrics
from gear_rl.engines.measures import FALLBACKS, cleaned, finite_rows, without
from gear_rl.engines.tools import ToolGuard, control_pattern, defused_message
from gear_rl.engines.trl_checks import (
    SHARDED,
    check_groups,
    check_reference,
    check_sharding,
    report_contexts,
)
from gear_rl.engines.trl_config import GEARConfig
from gear_rl.engines.trl_distill import attach, check_trainer, loss_with_distillation
from gear_rl.engines.trl_report import log_credit, record
from gear_rl.engines.trl_rollouts import contexts_of, log_tools, teacher_prompts, tool_report
from gear_rl.engines.trl_signals import (
    Batch,
    collect,
    judged,
    needs_context,
    needs_passes,
    of_all_processes,
    without_first,
)
from gear_rl.engines.trl_solve import solve
from gear_rl.signals.contexts import PrivilegedFunction, check_sources
from gear_rl.signals.privileged import PRIVILEGED_COLUMNS
from gear_rl.signals.score import Completions, Prompts, needs_teacher
from gear_rl.signals.teacher import CopyTeacher, LiveTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.types import (
    ROW_SIGNALS,
    Credit,
    CreditAssigner,
    Scheduled,
    TokenSignals,
    distillation_of,
    is_additive,
)
from gear_rl.view.records import RecordWriter

TEACHER_FILE, REFERENCE_FILE = "teacher.safetensors", "reference.safetensors"
"""The teacher's own weights inside a checkpoint, and the reference's, where they have any."""


class GEARTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose advantages are spread over the tokens by ``credit`` (GEAR, arXiv:2605.11853).

    Takes every argument of ``GRPOTrainer``. ``args`` is a ``GEARConfig``; ``credit`` is any
    ``CreditAssigner``. Evaluation is TRL's own: no credit is assigned there. Raises ``ValueError`` before
    anything is loaded if the dataset has no privileged context for a method that needs a teacher.
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
        if (
            args.teacher_prompt == "render"
            and options.get("rollout_func") is not None
            and needs_context(credit)
        ):
            raise ValueError(
                "teacher_prompt: 'render' cannot repeat the prompt that a rollout_func builds itself; set it to "
                "'splice'"
            )
        self.credit = credit
        self.teacher: Teacher | None = None
        self.reference: Teacher | None = None
        self._privileged = privileged
        self._sources = list(args.privileged_sources)
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
        check_sources(self._sources, privileged is not None)
        environment = options.get("environment_factory")
        if needs_context(credit) and train_dataset is not None:
            column, contrast = args.privileged_column, args.teacher_contrast
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
        check_sharding(args.teacher_model_kind, self._sharding, peft)
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
        output = cast(dict[str, Any], super()._generate_and_score_completions(shown))
        if self.model.training:
            output["advantages"] = self._spread(inputs, output)
        return output

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
        ours = success_metrics(rewards, self.args.success_reward, metric_key_prefix)
        if self.args.eval_greedy and sized:
            once = [[reward] for reward in self.solve(list(chosen), greedy=True)]
            greedy = success_metrics(once, self.args.success_reward, metric_key_prefix)
            ours |= {n.replace("pass@1", "greedy"): v for n, v in greedy.items() if "pass@1" in n}
        cast(dict[str, float], output.metrics).update(ours)
        return output

    def solve(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        greedy: bool = False,
        seed: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> list[float | None]:
        """The reward of one rollout per row, tools and environments included; nothing is trained or logged.

        ``advance`` is called with the number of rows that each batch has finished.
        """
        return solve(self, rows, greedy=greedy, seed=seed, advance=advance)

    def rewards_of_batch(self) -> list[float | None]:
        """The weighted sum of the rewards of the last batch, of all processes; None where none judged."""
        return self._batch_rewards

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
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
                rate, steps = self.args.teacher_update_rate, self.args.teacher_sync_steps
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

    @property
    def _sharding(self) -> str:
        return str(self.accelerator.distributed_type).rpartition(".")[2]

    def _spread(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Tensor:
        """The advantage of every token, shape (B, T); TRL's own tensor if every weight is 1.

        One number per completion then, so that GRPO stays GRPO bit for bit in every loss: where TRL works on
        whole sequences, the same number repeated T times is summed in another order.
        """
        begin = time.perf_counter()
        advantage_B: Tensor = output["advantages"]
        attention: Tensor = output["completion_mask"]
        mask = (attention * output["tool_mask"] if "tool_mask" in output else attention).bool()
        completions = Completions(ids=output["completion_ids"], attention=attention, mask=mask)
        student = Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"])
        step = self.state.global_step
        method = self.credit.at_step(step) if isinstance(self.credit, Scheduled) else self.credit
        asks = bool(method.needs) or distillation_of(method) is not None

        fallback_B = {name: torch.zeros_like(advantage_B, dtype=torch.bool) for name in FALLBACKS}
        fallback_B["no_token"] = ~mask.any(-1)
        sources: list[str | None] = [None] * len(inputs)
        right: list[str | None] = [None] * len(inputs)
        teachers: list[Prompts] = []
        if needs_context(method):
            found, wrong = contexts_of(self, inputs, completions)
            sources = [None if pair is None else pair[0] for pair in found]
            right = [None if pair is None else pair[1] for pair in found]
            missing = torch.zeros_like(fallback_B["no_token"])
            # Only a teacher's signals are contrasted: a term of the loss or an answer's confidence is not.
            contrasts = wrong is not None and needs_teacher(method.needs)
            for texts in (right, wrong or []) if contrasts else (right,):
                missing |= torch.tensor([text is None for text in texts], device=mask.device)
                teachers.append(teacher_prompts(self, [text or "" for text in texts], student))
            fallback_B["no_context"] = missing & mask.any(-1)
        scored_B = mask.any(-1) & ~fallback_B["no_context"] & asks
        if not is_additive(method):
            # Where the advantage is 0 no weight changes anything, so nothing is scored.
            scored_B = scored_B & (advantage_B != 0)
        batch = Batch(
            completions=completions, student=student, teachers=teachers, contexts=right, scored_B=scored_B
        )
        signals = collect(self, method.needs, batch)
        finite_B = finite_rows(signals)
        fallback_B["non_finite"] = scored_B & ~finite_B
        falls = torch.stack(list(fallback_B.values())).any(0)
        # The others must not be compared with signals that a completion does not have.
        absent_B = (falls & ~fallback_B["no_token"]) | ~finite_B
        if "reward_B" in method.needs or "rewards_BR" in method.needs:
            # Nobody judged it, which is no reward of 0: TRL leaves it out of its group as well.
            absent_B = absent_B | ~judged(self, completions)
        falls = falls | absent_B
        asked_B = torch.where(falls, 0.0, advantage_B) if asks else advantage_B
        alone = len(self._batch_rewards)  # no group of the batch has this number
        credit = self._credit(method, asked_B, without(signals, absent_B, alone))
        # A method of the user's may itself divide by zero.
        finite_B = credit.advantage.isfinite().all(-1)
        if credit.distill_weight is not None:
            finite_B = finite_B & credit.distill_weight.isfinite().all(-1)
        fallback_B["non_finite"] = fallback_B["non_finite"] | ~finite_B
        falls = falls | fallback_B["non_finite"]
        if asks and not is_additive(method):
            falls = falls | (advantage_B == 0)  # nothing was seen there, so nothing may be added either
        if falls.any():
            credit = credit.falling_back(falls, advantage_B, mask)
            signals = cleaned(signals, ~fallback_B["non_finite"])
        if credit.distill_weight is not None:
            if not teachers:
                raise ValueError(
                    f"credit: {method.name!r} gives distill_weight, but has no `distillation` that says which "
                    "term it weighs; see gear_rl.types.Distilling"
                )
            credit = without_first(credit, signals, self.args.teacher_skip_first_tokens)
            attach(output, credit, signals, teachers[0], scored_B & ~falls)

        tools = tool_report(self, completions)
        log_credit(self, credit, signals, advantage_B, scored_B, fallback_B, time.perf_counter() - begin)
        log_tools(self, tools, sources)
        if self.args.record_file is not None:
            record(self, output, credit, signals, scored_B, fallback_B, tools, sources)
        if torch.equal(credit.advantage, torch.where(mask, advantage_B[:, None], 0.0)):
            return advantage_B
        return credit.advantage

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

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.teacher is not None:
            self.trainer.teacher.update(self.trainer.model, state.global_step)
