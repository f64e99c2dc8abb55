"""GEAR in TRL: ``GRPOTrainer`` with a credit assigner.

Everything that TRL does stays TRL's: rollouts, tools, rewards, the base advantage, the loss, vLLM, PEFT,
sharding, trackers. This file listens to the rollout's prompts, scores the completions that TRL hands over, and
replaces the advantages ``(B,)`` by ``(B, T)``. It does not know any method: it is handed an object.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import copy
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.evaluation import success_metrics
from gear_rl.engines.measures import FALLBACKS, cleaned, finished, finite_rows, measured
from gear_rl.engines.recording import records_of
from gear_rl.engines.tools import ToolGuard, control_pattern, defused_message
from gear_rl.engines.trl_checks import check_sharding, gathered_head, report_contexts
from gear_rl.engines.trl_config import GEARConfig
from gear_rl.engines.trl_rollouts import contexts_of, log_tools, teacher_prompts, tool_report
from gear_rl.engines.trl_solve import solve
from gear_rl.signals.contexts import PrivilegedFunction, check_sources, contrasted, skipping_first
from gear_rl.signals.privileged import PRIVILEGED_COLUMNS
from gear_rl.signals.score import (
    TEACHER_SIGNALS,
    Completions,
    Prompts,
    needs_student,
    needs_teacher,
    score,
)
from gear_rl.signals.teacher import LiveTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.types import Credit, CreditAssigner, Scheduled, TokenSignals
from gear_rl.view.records import RecordWriter

logger = logging.getLogger(__name__)

TEACHER_FILE = "teacher.safetensors"
"""The teacher's own weights inside a checkpoint, where it has any."""


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
            and needs_teacher(credit.needs)
        ):
            raise ValueError(
                "teacher_prompt: 'render' cannot repeat the prompt that a rollout_func builds itself; set it to "
                "'splice'"
            )
        self.credit = credit
        self.teacher: Teacher | None = None
        self._privileged = privileged
        self._sources = list(args.privileged_sources)
        if privileged is not None and "function" not in self._sources:
            self._sources.insert(0, "function")
        self._rollout_prompts: list[Any] = []
        self._rollout_completions: list[Any] = []
        self._rollout_ids: list[list[int]] = []
        self._rows: list[dict[str, Any]] = []
        self._batch_rewards: list[float | None] = []
        self._feedback: list[str | None] | None = None
        self._evaluated: list[list[float | None]] | None = None
        self._records: RecordWriter | None = None
        check_sources(self._sources, privileged is not None)
        environment = options.get("environment_factory")
        if needs_teacher(credit.needs) and train_dataset is not None:
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
        if getattr(self, "_is_vlm", False) and (needs_teacher(credit.needs) or needs_student(credit.needs)):
            raise ValueError(f"model: images cannot be scored yet, and {credit.name!r} needs {credit.needs}")
        if getattr(getattr(self.accelerator.state, "fsdp_plugin", None), "fsdp_version", 2) == 1:
            raise ValueError("fsdp_version: 1 hides the head's weights outside of forward; set it to 2")
        sharding = str(self.accelerator.distributed_type).rpartition(".")[2]
        check_sharding(args.teacher_model_kind, sharding, peft=hasattr(self.model, "peft_config"))
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
        self._rows, self._feedback = inputs, None
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

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, ids: Any, *more: Any
    ) -> Any:
        # A reward function may read the column that reset() must not.
        whole = [{**row, **shown} for row, shown in zip(self._rows, inputs, strict=True)]
        self._rollout_completions, self._rollout_ids = completions, ids
        per_function = super()._calculate_rewards(whole, prompts, completions, ids, *more)
        # As TRL sums them; NaN is a reward function that abstained.
        weighted = cast(Tensor, per_function * self.reward_weights.to(per_function.device)).nansum(1)
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

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        state = {} if self.teacher is None else self.teacher.state_dict()
        if state and self.args.should_save:
            folder = (
                Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            )
            temporary = folder / f".{TEACHER_FILE}"
            safetensors.torch.save_file({name: p.contiguous().cpu() for name, p in state.items()}, temporary)
            os.replace(temporary, folder / TEACHER_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file = Path(checkpoint) / TEACHER_FILE
        state = safetensors.torch.load_file(file) if file.exists() else {}
        try:
            self._ready_teacher().load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"resume_from_checkpoint: {checkpoint}: {error}") from None

    # --- the credit pass ------------------------------------------------------------------------------------

    def _ready_teacher(self) -> Teacher:
        if self.teacher is None:
            if needs_teacher(self.credit.needs):
                kind = cast(TeacherKind, self.args.teacher_model_kind)
                rate, steps = self.args.teacher_update_rate, self.args.teacher_sync_steps
                self.teacher = make_teacher(kind, self.model, rate, steps)
            else:
                self.teacher = LiveTeacher()  # a copy of the weights that nobody reads would only cost memory
        return self.teacher

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

        fallback_B = {name: torch.zeros_like(advantage_B, dtype=torch.bool) for name in FALLBACKS}
        fallback_B["no_token"] = ~mask.any(-1)
        sources: list[str | None] = [None] * len(inputs)
        teachers: list[Prompts] = []
        if needs_teacher(method.needs):
            found, wrong = contexts_of(self, inputs, completions)
            sources = [None if pair is None else pair[0] for pair in found]
            right = [None if pair is None else pair[1] for pair in found]
            missing = torch.zeros_like(fallback_B["no_token"])
            for texts in (right,) if wrong is None else (right, wrong):
                missing |= torch.tensor([text is None for text in texts], device=mask.device)
                teachers.append(teacher_prompts(self, [text or "" for text in texts], student))
            fallback_B["no_context"] = missing & mask.any(-1)
        # Where the advantage is 0 no weight changes anything, so nothing is scored.
        scored_B = mask.any(-1) & ~fallback_B["no_context"] & (advantage_B != 0) & bool(method.needs)
        signals = self._signals(method, completions, student, teachers, scored_B)
        fallback_B["non_finite"] = scored_B & ~finite_rows(signals)
        credit = method(advantage_B, cleaned(signals, ~fallback_B["non_finite"]))
        # A method of the user's may itself divide by zero.
        fallback_B["non_finite"] = fallback_B["non_finite"] | ~credit.advantage.isfinite().all(-1)
        if credit.distill_weight is not None:
            raise ValueError(f"credit: {method.name!r} also distils, which this engine cannot do yet")
        falls = torch.stack(list(fallback_B.values())).any(0)
        if method.needs:
            falls = falls | (advantage_B == 0)  # nothing was seen there, so nothing may be added either
        if falls.any():
            credit = credit.falling_back(falls, advantage_B, mask)
            signals = cleaned(signals, ~fallback_B["non_finite"])

        tools = tool_report(self, completions)
        self._log_credit(credit, signals, advantage_B, scored_B, fallback_B, time.perf_counter() - begin)
        log_tools(self, tools, sources)
        if self.args.record_file is not None:
            self._record(output, credit, signals, scored_B, fallback_B, tools, sources)
        if torch.equal(credit.advantage, torch.where(mask, advantage_B[:, None], 0.0)):
            return advantage_B
        return credit.advantage

    def _signals(
        self,
        method: CreditAssigner,
        completions: Completions,
        student: Prompts,
        teachers: Sequence[Prompts],
        scored_B: Tensor,
    ) -> TokenSignals:
        """What the method needs; ``teachers`` holds the teacher's prompts, and the wrong ones for a contrast."""
        needs, skip = tuple(method.needs), self.args.teacher_skip_first_tokens
        if "teacher_logprob" in needs and "student_logprob" not in needs and (skip or len(teachers) > 1):
            needs = (*needs, "student_logprob")  # what a log-ratio of 0 is measured from
        rows = self.args.credit_batch_size or self.args.per_device_train_batch_size
        batches = torch.tensor(-(-int(scored_B.sum()) // rows), device=scored_B.device)
        # Sharded models need every process in every forward; processes may have different numbers of rows.
        most = int(cast(Tensor, self.accelerator.gather(batches)).max())
        lender = self._ready_teacher()
        passes = [
            score(
                self.model,
                completions,
                student,
                teacher,
                needs=needs if i == 0 else [name for name in needs if name in TEACHER_SIGNALS],
                temperature=self.temperature,
                teacher_weights=None if isinstance(lender, LiveTeacher) else lender.weights,
                head_context=gathered_head,
                row_B=scored_B,
                batch_size=rows,
                num_batches=most,
            )
            for i, teacher in enumerate(teachers or [None])
        ]
        signals = passes[0] if len(passes) == 1 else contrasted(*passes)
        signals = skipping_first(signals, skip)
        if "group_B" in needs:
            first = self.accelerator.process_index * len(scored_B)
            place = torch.arange(first, first + len(scored_B), device=scored_B.device)
            signals = replace(signals, group_B=place // self.num_generations)
        return signals

    def _log_credit(
        self,
        credit: Credit,
        signals: TokenSignals,
        advantage_B: Tensor,
        scored_B: Tensor,
        fallback_B: dict[str, Tensor],
        seconds: float,
    ) -> None:
        sums, largest = measured(credit, signals, advantage_B, scored_B, fallback_B)
        total = cast(Tensor, self.accelerator.reduce(torch.stack(list(sums.values())), reduction="sum"))
        largest = cast(Tensor, self.accelerator.gather(largest)).max()
        metrics = finished(dict(zip(sums, total.tolist(), strict=True)), largest.item(), seconds)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        if metrics["gear/fallback/non_finite"]:
            logger.warning(
                "step %d: %d completions had a NaN or Inf in a signal and kept their GRPO advantage",
                self.state.global_step,
                int(metrics["gear/fallback/non_finite"]),
            )

    def _record(
        self,
        output: dict[str, Any],
        credit: Credit,
        signals: TokenSignals,
        scored_B: Tensor,
        fallback_B: dict[str, Tensor],
        tools: list[dict[str, int]],
        sources: list[str | None],
    ) -> None:
        tokenizer: Any = self._tokenizer
        first = self.accelerator.process_index * len(scored_B)
        prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
        local = records_of(
            step=self.state.global_step,
            method=self.credit.name,
            group=[(first + b) // self.num_generations for b in range(len(scored_B))],
            prompt=[tokenizer.decode(ids[kept]) for ids, kept in prompts],
            reward=self._batch_rewards[first : first + len(scored_B)],
            advantage_B=output["advantages"],
            ids=output["completion_ids"],
            attention=output["completion_mask"].bool() | signals.mask,
            credit=credit,
            signals=signals,
            seen=[name for name in self.credit.needs if name != "group_B"],
            scored_B=scored_B,
            fallback_B=fallback_B,
            tools=tools,
            context=sources,
            truncated=[not ids or ids[-1] not in self.eos_token_ids for ids in self._rollout_ids],
            decode=lambda token: tokenizer.decode([token]),
        )
        everywhere = gather_object(local)
        if self.accelerator.is_main_process:
            if self._records is None:
                size = int(self.args.record_max_mb * 1024 * 1024)
                self._records = RecordWriter(
                    self.args.record_file or "", size, resume_step=self.state.global_step
                )
            self._records.write(everywhere)


class _FollowStudent(TrainerCallback):
    """Makes the teacher before the first step, and lets it follow after each."""

    def __init__(self, trainer: GEARTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._ready_teacher()  # pyright: ignore[reportPrivateUsage]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.teacher is not None:
            self.trainer.teacher.update(self.trainer.model, state.global_step)
