"""GEAR in TRL: ``GRPOTrainer`` with a credit assigner.

TRL keeps the rollouts, tools, rewards, base advantage, loss, vLLM, PEFT, sharding and trackers. This file
collects what TRL's hooks show of the rollouts, calls the credit step, and replaces the advantages ``(B,)`` by
``(B, T)``. It knows no method.
"""

import copy
import logging
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gear_rl.credit.config import PRIVILEGED_COLUMNS
from gear_rl.credit.contexts import PrivilegedFunction
from gear_rl.credit.informed import TeacherCheck
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.prompts import check_untemplated, naming_refused
from gear_rl.credit.step import for_loss, needs_passes, step
from gear_rl.engines.folder import UNFINISHED, RunFolder
from gear_rl.engines.models import contiguous_head
from gear_rl.engines.tools import ToolGuard
from gear_rl.engines.trl.card import complete_card
from gear_rl.engines.trl.checkpoints import Checkpoints, fingerprint, skip_epochs
from gear_rl.engines.trl.config import GEARConfig, check_rows, check_setup, checked_arguments
from gear_rl.engines.trl.engine import SYNCED_REFERENCE, HeldWeights, TRLEngine
from gear_rl.engines.trl.evaluation import Evaluating
from gear_rl.engines.trl.loss import WEIGHT, attach, loss_with_distillation
from gear_rl.engines.trl.old_pass import OldPass, shares_old_pass
from gear_rl.engines.trl.printing import SHORT, Health
from gear_rl.engines.trl.rollouts import Rollouts, check_functions, parse_tool_calls
from gear_rl.method_builder import build_method
from gear_rl.records import Record, RecordWriter
from gear_rl.signals.control_tokens import control_pattern, defused_message
from gear_rl.signals.forwards import head_layer, padding_moves_positions, unwrapped
from gear_rl.signals.signal import needs_context, needs_student
from gear_rl.signals.teacher import begins_as_nothing
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)

CHECKED_ROWS = 1000
"""Rows of the dataset whose prompts are shown to the chat template before the training."""


class GEARTrainer(Evaluating):
    """``GRPOTrainer`` whose advantages are spread over the tokens by ``credit`` (GEAR, arXiv:2605.11853).

    Takes every argument of ``GRPOTrainer``. ``args`` is a ``GEARConfig``, ``credit`` a method or its name with
    settings behind a colon ("gear:alpha=2"); ``privileged`` is the function of the source "function". A method
    may set ``METHOD_SETTINGS`` that ``args`` leaves at None. An evaluation is TRL's, without credit.

    Raises ``ValueError`` before anything is loaded if the dataset has no privileged context for a method that
    needs a teacher, or if the loss would lose the tokens' credit or misread its signs (``docs/engines.md``).

    >>> from datasets import Dataset
    >>> rows = Dataset.from_list([{"prompt": "1 + 1 ="}])
    >>> GEARTrainer("any/model", len, GEARConfig("out", use_cpu=True), rows)
    Traceback (most recent call last):
    ValueError: train_dataset: method 'gear' compares the student with a teacher that sees the ground truth, ...
    """

    args: GEARConfig
    num_generations: int  # pyright: ignore[reportIncompatibleVariableOverride]
    _tag_names = ["trl", "gear"]  # noqa: RUF012
    model_name: str | None = None
    """The model's name in the card, where no hub has it; None for its folder's."""
    data_name: str | None = None
    """That of the training rows."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GEARConfig | None = None,
        train_dataset: Any = None,
        *more: Any,
        credit: CreditAssigner | str = "gear",
        privileged: PrivilegedFunction | None = None,
        **options: Any,
    ) -> None:
        credit = build_method(credit)
        args = checked_arguments(args, credit, privileged, train_dataset, options)
        self.credit, self.privileged = credit, privileged
        self.rollouts = Rollouts()
        self.old_pass: OldPass | None = None
        """While TRL makes rollouts to train on, where the student needs no pass of our own."""
        self.teacher_check = TeacherCheck(every=args.teacher_check_steps)
        self.segment_check = SegmentCheck()
        self.signal_means = list[float]()
        self.tool_guard = ToolGuard(args.tool_time_limit, args.tool_max_chars)
        self.tool_guard.guard_options(options)
        self.run_folder = RunFolder(Path(cast(str, args.output_dir)), args.record_file)
        self.record_subscribers: list[Callable[[list[Record]], object]] = []
        """Each is called with the records of every batch, on the first process. The record file is the first."""
        if self.run_folder.records is not None:
            self.record_subscribers.append(self._write_records)
        self._record_writer: RecordWriter | None = None
        self._step_losses = list[Tensor]()
        self._warned_of = set[str]()
        self._sampler: Any = None
        processing = options.get("processing_class", more[1] if len(more) > 1 else None)
        if processing is not None and (options.get("tools") or options.get("environment_factory")):
            parse_tool_calls(processing)
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        check_functions(self)
        contiguous_head(self.model)
        if needs_passes(credit):
            head_layer(self.model)  # refused here, not after the first rollouts
        self.checkpoints = Checkpoints(self.run_folder, self.args, self.accelerator)
        self.control_tokens = control_pattern(self._tokenizer)
        adapter_free, plugins = begins_as_nothing(self.model), cast(Any, self.accelerator.state)
        check_setup(
            credit,
            self.args,
            num_generations=self.num_generations,
            sharding=self.sharding,
            zero_stage=int(getattr(getattr(plugins, "deepspeed_plugin", None), "zero_stage", 0)),
            fsdp_version=getattr(getattr(plugins, "fsdp_plugin", None), "fsdp_version", 2),
            adapter_free=adapter_free,
            images=bool(getattr(self, "_is_vlm", False)),
        )
        self.held_weights = HeldWeights(self, adapter_free=adapter_free)
        self.add_callback(self.held_weights)
        self.add_callback(Health())
        for printer in [one for one in self.callback_handler.callbacks if type(one) in SHORT]:
            self.remove_callback(printer)
            self.add_callback(SHORT[type(printer)])
        if self.eval_dataset is not None and self.args.eval_strategy == "no":
            message = "eval_dataset: nothing evaluates it; set eval_strategy to steps, and eval_steps"
            self._warn_once("evaluation", message)

    # --- rollouts -------------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        # The only place where TRL shows the final prompts: an environment's reset() may have changed them.
        self.rollouts.prompts = copy.deepcopy(prompts)
        with self.tool_guard.serving(), self.rollouts.own_functions(self):
            output = super()._generate(prompts, *more, **options)
        self.rollouts.prompt_ends = [str(self._tokenizer.decode(ids[-16:])) for ids in output[0]]
        return output

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        with naming_refused(prompts, self._rendered):
            return super()._tokenize_prompts(prompts)

    def _rendered(self, prompt: Any) -> object:
        shown: Any = self.processing_class
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
        options |= {"tools": self.tools or None, "chat_template": self.chat_template}
        options |= cast(dict[str, Any], self.chat_template_kwargs)
        return isinstance(prompt, str) or shown.apply_chat_template(prompt, **options)

    def _check_prompts(self) -> None:
        """Those of the first rows, as the model will see them; a stream is not read."""
        rows = self.train_dataset
        if not isinstance(rows, Dataset) or self.rollout_func is not None or getattr(self, "_is_vlm", False):
            return
        prompts: list[Any] = rows.select_columns(["prompt"])[:CHECKED_ROWS]["prompt"]
        reads_context = needs_context(self.credit) and self.args.teacher_prompt == "render"
        check_untemplated(prompts, self._tokenizer, reads_context=reads_context, name="row")
        with naming_refused(prompts, self._rendered, "row"):
            for prompt in prompts:
                self._rendered(prompt)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        shown = inputs
        if getattr(self, "environment_factories", None) is not None:
            # TRL hands every column to the environment's reset(), whose text the student sees.
            hidden = (self.args.privileged_column, PRIVILEGED_COLUMNS[0])
            shown = [{name: value for name, value in row.items() if name not in hidden} for row in inputs]
        self.rollouts.rows, self.rollouts.logged = inputs, {}
        self.tool_guard.answers.clear()
        if self.model.training:
            keeps = needs_student(self.credit.needs) and shares_old_pass(self)
            self.old_pass = OldPass() if keeps else None
        output = cast(dict[str, Any], super()._generate_and_score_completions(shown))
        if None in self.rollouts.rewards:  # TRL counts a group without a reward as one that differs
            mode, size = (
                ("train", self.num_generations)
                if self.model.training
                else ("eval", self.num_generations_eval)
            )
            self._metrics[mode]["frac_reward_zero_std"][-1] = self.rollouts.even_share(size)
        if self.model.training:
            output["advantages"] = self._spread(output)
            self.old_pass = None
        return output

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        call = super()._get_per_token_logps_and_entropies
        if self.old_pass is None or unwrapped(model) is not unwrapped(self.model):
            return call(model, *args, **options)
        return self.old_pass.run(call, model, *args, **options)

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
        # Reward functions see the columns that `reset()` must not see.
        rows = zip(self.rollouts.rows, inputs, self.rollouts.prompt_ends, strict=True)
        whole = [{**row, **shown, "prompt_end": end} for row, shown, end in rows]
        per_function = super()._calculate_rewards(whole, prompts, completions, ids, *more)
        if self.model.training:
            self._count_infinite(per_function)
        self.rollouts.judge(per_function, self.reward_weights, self.num_generations_eval)
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
            self._warn_once("rewards", message, self.state.global_step + 1, total, names)

    def _warn_once(self, about: str, *message: Any) -> None:
        if about not in self._warned_of and self.accelerator.is_main_process:
            logger.warning(*message)
        self._warned_of.add(about)

    # --- the credit step ------------------------------------------------------------------------------------

    def credit_engine(self) -> TRLEngine:
        """The engine of the next credit step; override it for passes or signals of your own."""
        return TRLEngine(self)

    def _spread(self, output: dict[str, Any]) -> Tensor:
        """The advantages for TRL: of every token, (B, T), or of every completion, (B,)."""
        if needs_passes(self.credit):
            self._warn_of_positions(output["prompt_mask"])
        engine, batch = self.credit_engine(), self.rollouts.batch(self, output)
        if self.old_pass is not None:
            engine.student_states = self.old_pass.states_of(output.get("old_per_token_logps"))
        result = step(
            batch,
            self.credit,
            engine,
            self.args,
            privileged=self.privileged,
            teacher_check=self.teacher_check,
        )
        if result.credit.distill_weight is not None:
            attach(output, result.credit, result.signals, result.teachers[0], result.trusted_B)
        return for_loss(batch, result.credit)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
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

    @cached_property
    def padding_moves(self) -> bool:
        """Whether left padding moves the positions of the model's own forward (as in GPT-2)."""
        return padding_moves_positions(self.model, self.accelerator.device)

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

        ``resume_from_checkpoint`` is a checkpoint's folder; True or "latest" mean the newest whole one of the run
        in ``output_dir`` (the log names those that are passed over). A finished run that is resumed does nothing.

        Raises ``ValueError`` for fewer rows than a batch takes, and for a checkpoint that is not whole, or was
        made with another configuration (``resume_anyway`` goes on as a new run). Raises ``FloatingPointError``
        before a step whose loss or gradient is not finite (``non_finite_step``).
        """
        has_template = bool(self.rollout_func or getattr(self.processing_class, "chat_template", None))
        check_rows(self.train_dataset, self.args, has_template=has_template)
        self._check_prompts()
        with self.checkpoints.writing():
            parts = self.train_dataset, self.reward_func_names, self.model
            configuration = fingerprint(self.args, self.credit, *parts)
            checkpoint = self.checkpoints.begin(resume_from_checkpoint, configuration)
            self._record_writer = None  # what it continues is read again
            self.signal_means = []
            return super().train(checkpoint, *more, **options)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # In the middle of its rollouts TRL would sample others after a resume, so they are saved too.
        inside = self._step % (cast(int, self.args.steps_per_generation) * int(self.num_iterations))
        self.checkpoints.save(
            self.state,
            Path(super()._get_output_dir(trial)),
            lambda: super(GEARTrainer, self)._save_checkpoint(model, trial),
            self.held_weights.by_file(),
            {
                "micro_batches": self._step,
                "rollouts": self._buffered_inputs if inside else None,
                "means": self.signal_means,
            },
        )
        if self.args.push_to_hub:  # only what is whole
            super()._push_from_checkpoint(cast(str, self.checkpoints.last))

    def create_model_card(self, model_name: str | None = None, *more: Any, **named: Any) -> None:
        folder = Path(cast(str, self.args.output_dir))
        super().create_model_card(model_name or folder.name, *more, **named)
        if self.is_world_process_zero():
            config, file = self.model.config, folder / "README.md"
            model = self.model_name or Path(config._name_or_path).name or config.model_type
            card, names = file.read_text(encoding="utf-8"), {"model": model, "folder": str(folder)}
            file.write_text(complete_card(card, self.credit, data=self.data_name, **names), encoding="utf-8")

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self.checkpoints.writes_aside else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.checkpoints.writes_aside:
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            same, held = self.checkpoints.same, self.held_weights.by_file()
            if not same:
                held.pop(SYNCED_REFERENCE, None)  # another run begins with its own
            progress = self.checkpoints.load(Path(checkpoint), held)
            if progress is not None and same:  # rollouts of other settings may not even fit
                self._step, self._buffered_inputs = progress["micro_batches"], progress["rollouts"]
                self.signal_means = progress["means"]

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

    # --- steps that are not finite --------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """TRL's step on one micro-batch; its loss is looked at before the weights change."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_losses.append(loss.detach())
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # Under fp16 a gradient that overflows is ordinary: its scaler leaves the step out by itself.
        scaled = norm is None or getattr(self.accelerator, "scaler", None)
        facts: dict[str, Any] = {"loss": sum(self._step_losses), "gradient norm": 0.0 if scaled else norm}
        self._step_losses.clear()
        numbers = {name: float(x.full_tensor() if isinstance(x, DTensor) else x) for name, x in facts.items()}
        wrong = ", ".join(f"{name} {x:g}" for name, x in numbers.items() if not math.isfinite(x))
        if self.accelerator.num_processes > 1:
            # All processes do the same, else their weights would differ.
            own = torch.tensor([float(bool(wrong))], device=self.accelerator.device)
            if bool(cast(Tensor, self.accelerator.gather(own)).any()):
                wrong = wrong or "the loss of another process"
        if wrong:
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
        last = self.checkpoints.last
        known = f"the last good checkpoint is {last}" if last else "no checkpoint was saved yet"
        raise FloatingPointError(
            f"step {step}: not finite ({wrong}); {state}, and {known}. A lower learning_rate or max_grad_norm, "
            "or looking at the rewards and the data of this step, is the usual cure; non_finite_step: skip "
            "leaves such steps out"
        )
