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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
import trl
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.measures import FALLBACKS, finished, measured
from gear_rl.engines.recording import records_of
from gear_rl.engines.trl_config import GEARConfig
from gear_rl.signals.privileged import (
    PRIVILEGED_COLUMNS,
    TeacherPrompt,
    fill,
    privileged_context,
    render,
    source_counts,
    splice,
)
from gear_rl.signals.score import Completions, Prompts, left_padded, needs_student, needs_teacher, score
from gear_rl.signals.teacher import LiveTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.types import Credit, CreditAssigner, TokenSignals
from gear_rl.view.records import RecordWriter

logger = logging.getLogger(__name__)

TEACHER_FILE = "teacher.safetensors"
"""The teacher's own weights inside a checkpoint, where it has any."""
COUNTED_ROWS = 100_000
"""Rows of the dataset whose privileged context is looked for before the training; every batch counts its own."""


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
        self._rollout_prompts: list[Any] = []
        self._rows: list[dict[str, Any]] = []
        self._records: RecordWriter | None = None
        if needs_teacher(credit.needs) and train_dataset is not None:
            _report_contexts(train_dataset, args.privileged_column, credit.name)
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        if getattr(self, "_is_vlm", False) and (needs_teacher(credit.needs) or needs_student(credit.needs)):
            raise ValueError(f"model: images cannot be scored yet, and {credit.name!r} needs {credit.needs}")
        if getattr(getattr(self.accelerator.state, "fsdp_plugin", None), "fsdp_version", 2) == 1:
            raise ValueError("fsdp_version: 1 hides the head's weights outside of forward; set it to 2")
        sharding = str(self.accelerator.distributed_type).rpartition(".")[2]
        _check_sharding(args.teacher_model_kind, sharding, peft=hasattr(self.model, "peft_config"))
        self.add_callback(_FollowStudent(self))

    # --- hooks of TRL ---------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        # The only place where TRL shows the final prompts: an environment's reset() may have changed them.
        self._rollout_prompts = copy.deepcopy(prompts)
        return super()._generate(prompts, *more, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        shown = inputs
        if getattr(self, "environment_factories", None) is not None:
            # TRL hands every column to the environment's reset(), whose text the student sees.
            secret = self.args.privileged_column or PRIVILEGED_COLUMNS[0]
            shown = [{name: value for name, value in row.items() if name != secret} for row in inputs]
        self._rows = inputs
        output = cast(dict[str, Any], super()._generate_and_score_completions(shown))
        if self.model.training:
            output["advantages"] = self._spread(inputs, output)
        return output

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *more: Any) -> Any:
        # A reward function may read the column that reset() must not.
        whole = [{**row, **shown} for row, shown in zip(self._rows, inputs, strict=True)]
        return super()._calculate_rewards(whole, *more)

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

        fallback_B = {name: torch.zeros_like(advantage_B, dtype=torch.bool) for name in FALLBACKS}
        fallback_B["no_token"] = ~mask.any(-1)
        teacher: Prompts | None = None
        if needs_teacher(self.credit.needs):
            contexts = [privileged_context(row, self.args.privileged_column) for row in inputs]
            missing = [found is None for found in contexts]
            fallback_B["no_context"] = torch.tensor(missing, device=mask.device) & mask.any(-1)
            teacher = self._teacher_prompts(
                ["" if found is None else found[1] for found in contexts], student
            )
        # Where the advantage is 0 no weight changes anything, so nothing is scored.
        scored_B = mask.any(-1) & ~fallback_B["no_context"] & (advantage_B != 0) & bool(self.credit.needs)
        signals = self._signals(completions, student, teacher, scored_B)
        fallback_B["non_finite"] = scored_B & ~_finite(signals)
        credit = self.credit(advantage_B, _cleaned(signals, ~fallback_B["non_finite"]))
        # A method of the user's may itself divide by zero.
        fallback_B["non_finite"] = fallback_B["non_finite"] | ~credit.advantage.isfinite().all(-1)
        if credit.distill_weight is not None:
            raise ValueError(f"credit: {self.credit.name!r} also distils, which this engine cannot do yet")
        falls = torch.stack(list(fallback_B.values())).any(0)
        if self.credit.needs:
            falls = falls | (advantage_B == 0)  # nothing was seen there, so nothing may be added either
        if falls.any():
            credit = credit.falling_back(falls, advantage_B, mask)
            signals = _cleaned(signals, ~fallback_B["non_finite"])

        self._log_credit(credit, signals, advantage_B, scored_B, fallback_B, time.perf_counter() - begin)
        if self.args.record_file is not None:
            self._record(output, credit, signals, scored_B, fallback_B)
        if torch.equal(credit.advantage, torch.where(mask, advantage_B[:, None], 0.0)):
            return advantage_B
        return credit.advantage

    def _teacher_prompts(self, contexts: Sequence[str], student: Prompts) -> Prompts:
        """What the teacher is shown, one prompt per row; a row without context is shown the student's."""
        template = self.args.template
        if self.args.teacher_prompt == "splice":
            tokenizer: Any = self._tokenizer
            own = [
                ids[kept.bool()].tolist()
                for ids, kept in zip(student.ids_BP, student.attention_BP, strict=True)
            ]
            hints = [fill(template, privileged_context=context) if context else "" for context in contexts]
            hint_ids = [
                # The context may hold control tokens of the chat; as part of a hint they are plain text.
                tokenizer(hint, add_special_tokens=False, split_special_tokens=True)["input_ids"]
                if hint
                else []
                for hint in hints
            ]
            prompts = [splice(hint, ids) for hint, ids in zip(hint_ids, own, strict=True)]
        else:
            shown = [
                render(prompt, context, template) if context else prompt
                for prompt, context in zip(self._rollout_prompts, contexts, strict=True)
            ]
            student_kwargs = self.chat_template_kwargs
            try:
                if self.args.teacher_chat_template_kwargs is not None:
                    self.chat_template_kwargs = cast(dict[str, Any], self.args.teacher_chat_template_kwargs)
                prompts = [TeacherPrompt(tuple(ids)) for ids in self._tokenize_prompts(shown)[0]]
            finally:
                self.chat_template_kwargs = student_kwargs
        return left_padded(
            prompts, pad_id=cast(int, self._tokenizer.pad_token_id), device=student.ids_BP.device
        )

    def _signals(
        self, completions: Completions, student: Prompts, teacher: Prompts | None, scored_B: Tensor
    ) -> TokenSignals:
        rows = self.args.credit_batch_size or self.args.per_device_train_batch_size
        batches = torch.tensor(-(-int(scored_B.sum()) // rows), device=scored_B.device)
        # Sharded models need every process in every forward; processes may have different numbers of rows.
        most = int(cast(Tensor, self.accelerator.gather(batches)).max())
        lender = self._ready_teacher()
        signals = score(
            self.model,
            completions,
            student,
            teacher,
            needs=self.credit.needs,
            temperature=self.temperature,
            teacher_weights=None if isinstance(lender, LiveTeacher) else lender.weights,
            head_context=_gathered_head,
            row_B=scored_B,
            batch_size=rows,
            num_batches=most,
        )
        if "group_B" in self.credit.needs:
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
    ) -> None:
        tokenizer: Any = self._tokenizer
        first = self.accelerator.process_index * len(scored_B)
        prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
        local = records_of(
            step=self.state.global_step,
            method=self.credit.name,
            group=[(first + b) // self.num_generations for b in range(len(scored_B))],
            prompt=[tokenizer.decode(ids[kept]) for ids, kept in prompts],
            reward=self._rewards(first, len(scored_B)),
            advantage_B=output["advantages"],
            ids=output["completion_ids"],
            attention=output["completion_mask"].bool() | signals.mask,
            credit=credit,
            signals=signals,
            seen=[name for name in self.credit.needs if name != "group_B"],
            scored_B=scored_B,
            fallback_B=fallback_B,
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

    def _rewards(self, first: int, count: int) -> list[float | None]:
        """The weighted sum of the rewards, as TRL forms it; None where every reward function abstained."""
        columns = [list(self._logs["rewards"][name]) for name in self.reward_func_names]
        world = count * self.accelerator.num_processes
        rewards: list[float | None] = []
        for row in range(first, first + count):
            values = [column[len(column) - world + row] for column in columns]
            parts = [w * v for w, v in zip(self.reward_weights.tolist(), values, strict=True) if v == v]
            rewards.append(sum(parts) if parts else None)
        return rewards


class _FollowStudent(TrainerCallback):
    """Makes the teacher before the first step, and lets it follow after each."""

    def __init__(self, trainer: GEARTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._ready_teacher()  # pyright: ignore[reportPrivateUsage]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.teacher is not None:
            self.trainer.teacher.update(self.trainer.model, state.global_step)


def _check_sharding(kind: str, sharding: str, peft: bool) -> None:
    """Refuse a teacher that would keep a copy of weights of which this process holds a part only.

    >>> _check_sharding("ema", "MULTI_GPU", peft=False)
    >>> _check_sharding("base", "FSDP", peft=True)
    >>> _check_sharding("ema", "FSDP", peft=False)
    Traceback (most recent call last):
    ValueError: teacher_model_kind: 'ema' keeps a copy of the weights, which was never run under FSDP; use
    'live', or 'base' with a PEFT adapter
    """
    copies = kind not in ("live", "base") or (kind == "base" and not peft)
    if copies and sharding in ("FSDP", "DEEPSPEED"):
        raise ValueError(
            f"teacher_model_kind: {kind!r} keeps a copy of the weights, which was never run under {sharding}; "
            "use 'live', or 'base' with a PEFT adapter"
        )


def _report_contexts(dataset: Any, column: str | None, method: str) -> None:
    """Log where the privileged contexts come from; ``ValueError`` if there are none at all."""
    names: list[str] | None = getattr(dataset, "column_names", None)
    if names is None:
        return  # a stream that does not say its columns: each batch counts its own fallbacks
    wanted = (column,) if column is not None else (*PRIVILEGED_COLUMNS, "reward_model")
    present = [name for name in wanted if name in names]
    choice = f"{column!r}" if column is not None else f"any of {', '.join(PRIVILEGED_COLUMNS)}"
    if not present:
        raise ValueError(
            f"train_dataset: method {method!r} compares the student with a teacher that sees the ground truth, "
            f"but the columns are {', '.join(names)}, without {choice}; add one, name it with "
            "privileged_column, or use credit 'uniform'"
        )
    if not hasattr(dataset, "__len__"):
        return
    looked_at = min(len(dataset), COUNTED_ROWS)
    counts = source_counts(list(dataset.select_columns(present).select(range(looked_at))), column)
    without = counts.pop("none", 0)
    if not counts:
        raise ValueError(
            f"train_dataset: all {without} rows of {', '.join(present)} are empty, so the teacher would see "
            "nothing; fill the column or use credit 'uniform'"
        )
    sources = ", ".join(f"{name} for {count} rows" for name, count in counts.items())
    logger.info("privileged context: %s%s", sources, "" if looked_at == len(dataset) else " (of the first)")
    if without:
        logger.warning("privileged context: none for %d rows; they keep their GRPO advantage", without)


def _finite(signals: TokenSignals) -> Tensor:
    """Which rows hold no NaN or Inf on a token that counts, shape (B,)."""
    finite = torch.ones_like(signals.mask[:, 0])
    for name in ("student_logprob", "teacher_logprob", "student_entropy", "divergence"):
        value: Tensor | None = getattr(signals, name)
        if value is not None:
            finite = finite & (value.isfinite() | ~signals.mask).all(-1)
    return finite


def _cleaned(signals: TokenSignals, keep_B: Tensor) -> TokenSignals:
    """The same signals with 0 in every other row, so that a NaN there reaches neither method nor loss."""
    clean: dict[str, Tensor] = {}
    for name in ("student_logprob", "teacher_logprob", "student_entropy", "divergence"):
        value: Tensor | None = getattr(signals, name)
        if value is not None:
            clean[name] = torch.where(keep_B[:, None], value, 0.0)
    return replace(signals, **cast(Mapping[str, Any], clean))


def _gathered_head(model: nn.Module) -> AbstractContextManager[Any]:
    """Under DeepSpeed ZeRO-3 the head's weights are only whole inside TRL's gathering context."""
    gather: Callable[..., AbstractContextManager[Any]] | None = getattr(
        trl.trainer.utils, "maybe_gather_lm_head_ctx", None
    )
    layer: Any = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if gather is None or layer is None:
        return nullcontext()
    return gather(*(p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None))
