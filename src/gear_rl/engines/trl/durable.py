"""TRL's trainer for runs that last: checkpoints that are whole, exact resume, guarded tools, finite steps.

Knows no credit: a step is TRL's. What a subclass keeps beside the model goes into ``run_state`` and
``weights_by_file``.
"""

import logging
import math
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gear_rl.credit.control_tokens import control_pattern, defused_message
from gear_rl.engines.folder import UNFINISHED, RunFolder
from gear_rl.engines.models import contiguous_head
from gear_rl.engines.tools import ToolGuard
from gear_rl.engines.trl.checkpoints import Checkpoints, fingerprint, skip_epochs
from gear_rl.engines.trl.config import GEARConfig, check_rows
from gear_rl.engines.trl.evaluation import Evaluating
from gear_rl.engines.trl.printing import SHORT, Health
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.engines.trl.templates import check_template, prepare_processing
from gear_rl.model.forwards import max_positions, unwrap_model

logger = logging.getLogger(__name__)

SYNCED_REFERENCE = "synced_reference.safetensors"
"""TRL does not save the reference that ``sync_ref_model`` moves."""


class DurableTrainer(Evaluating):
    """``GRPOTrainer`` that stops before a step that is not finite, and resumes a run that was killed.

    Takes every argument of ``GRPOTrainer``; of ``args`` it reads the settings of folders, tools, evaluation and
    failures.
    """

    args: GEARConfig
    _tag_names = ["trl", "gear"]  # noqa: RUF012
    num_generations: int

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: GEARConfig,
        train_dataset: Any = None,
        *more: Any,
        **options: Any,
    ) -> None:
        self.rollouts = Rollouts()
        self.run_state = dict[str, Any]()
        """What a checkpoint holds of a subclass's own, beside weights; empty when a run begins."""
        self.tool_guard = ToolGuard(args.tool_time_limit, args.tool_max_chars)
        self.tool_guard.guard_options(options)
        self.run_folder = RunFolder(Path(cast(str, args.output_dir)), args.record_file)
        self._step_losses = list[Tensor]()
        self._warned_of = set[str]()
        self._sampler: Any = None
        given = options.get("processing_class", more[1] if len(more) > 1 else None)
        has_tools = bool(options.get("tools") or options.get("environment_factory"))
        named = cast(dict[str, Any], args.model_init_kwargs or {}) if isinstance(model, str) else {}
        loading = {"revision": named.get("revision"), "trust_remote_code": args.trust_remote_code}
        processing = prepare_processing(
            model, given, args.chat_template_path, has_tools=has_tools, loading=loading
        )
        if given is None and processing is not None:
            more, options = more[:1], options | {"processing_class": processing}
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        if not self.rollout_func:
            check_template(train_dataset, self.processing_class)
        contiguous_head(self.model)
        self.checkpoints = Checkpoints(self.run_folder, self.args, self.accelerator)
        self.control_tokens = control_pattern(self._tokenizer)
        self.add_callback(Health())
        for printer in [one for one in self.callback_handler.callbacks if type(one) in SHORT]:
            self.remove_callback(printer)
            self.add_callback(SHORT[type(printer)])
        if self.eval_dataset is not None and self.args.eval_strategy == "no":
            message = "eval_dataset, held_out: nothing evaluates these rows; set eval_strategy and eval_steps"
            self._warn_once("evaluation", message)

    @property
    def sharding(self) -> str:
        """How accelerate distributes the model: NO, MULTI_GPU, FSDP, DEEPSPEED, ..."""
        return str(self.accelerator.distributed_type).rpartition(".")[2]

    def _warn_once(self, about: str, *message: Any) -> None:
        if about not in self._warned_of and self.accelerator.is_main_process:
            logger.warning(*message)
        self._warned_of.add(about)

    # --- rollouts -------------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        with self.tool_guard.serving():
            return super()._generate(prompts, *more, **options)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *more: Any, **options: Any) -> Any:
        longest, places = max(map(len, prompt_ids)), max_positions(unwrap_model(self.model).config)
        if places is not None and longest >= places:
            message = "step %d: a prompt has %d tokens, and the model %d positions; leave such rows out"
            self._warn_once("positions", message, self.state.global_step + 1, longest, places)
        return super()._generate_single_turn(prompt_ids, *more, **options)

    def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> Any:
        # TRL renders an answer and tokenises the whole: `<|im_end|>` in it would become a real end of turn.
        return super()._get_tool_suffix_ids([defused_message(m, self.control_tokens) for m in tool_messages])

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.tool_guard.answers.clear()
        self.is_training_batch = bool(self.model.training)
        output = cast(dict[str, Any], super()._generate_and_score_completions(inputs))
        # TRL's continuous batching leaves the model in the mode of training.
        self.model.train(self.is_training_batch)
        if None in self.rollouts.rewards:  # TRL counts a group without a reward as one that differs
            size = self.num_generations if self.is_training_batch else self.num_generations_eval
            shares = self._metrics["train" if self.is_training_batch else "eval"]["frac_reward_zero_std"]
            shares[-1] = self.rollouts.even_share(size)
        return output

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *more: Any) -> Any:
        try:
            per_function = super()._calculate_rewards(inputs, *more)
        except (TypeError, ValueError) as error:
            if not re.search("too many dimensions|must be real number", str(error)):
                raise
            names = ", ".join(self.reward_func_names)
            raise ValueError(
                f"reward_funcs: of {names}, one returned what is no number ({error}); return a list with a "
                "number or None for each completion"
            ) from error
        if self.is_training_batch:
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

    # --- checkpoints ----------------------------------------------------------------------------------------

    def prepare_training(self) -> None:
        """Before anything is written: ``ValueError`` for rows that cannot be trained on."""
        places = max_positions(unwrap_model(self.model).config)
        check_rows(self.train_dataset, self.args, positions=places)

    def configuration(self) -> dict[str, Any]:
        """What a resumed run must share."""
        return fingerprint(self.args, self.train_dataset, self.reward_func_names, self.model)

    def weights_by_file(self) -> dict[str, Any]:
        """What has a ``state_dict`` that a checkpoint holds beside TRL's own files, by the file's name."""
        synced = self.args.sync_ref_model
        return {SYNCED_REFERENCE: self.accelerator.unwrap_model(self.ref_model)} if synced else {}

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **options: Any) -> Any:
        """TRL's training, in a folder that no other process writes meanwhile.

        ``resume_from_checkpoint`` is a checkpoint's folder; True or "latest" mean the newest whole one of the run
        in ``output_dir`` (the log names those that are passed over). A finished run that is resumed does nothing.

        Raises ``ValueError`` for fewer rows than a batch takes, and for a checkpoint that is not whole, or was
        made with another configuration (``resume_anyway`` goes on as a new run). Raises ``FloatingPointError``
        before a step whose loss or gradient is not finite (``non_finite_step``).
        """
        self.prepare_training()
        with self.checkpoints.writing():
            checkpoint = self.checkpoints.begin(resume_from_checkpoint, self.configuration())
            self.run_state = {}
            self.checkpoints.limit = self.args.save_total_limit
            self.args.save_total_limit = None  # transformers would delete a user's copies too
            try:
                return super().train(checkpoint, *more, **options)
            finally:
                self.args.save_total_limit = self.checkpoints.limit

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # In the middle of its rollouts TRL would sample others after a resume, so they are saved too.
        inside = self._step % (cast(int, self.args.steps_per_generation) * int(self.num_iterations))
        self.checkpoints.save(
            self.state,
            Path(super()._get_output_dir(trial)),
            lambda: super(DurableTrainer, self)._save_checkpoint(model, trial),
            self.weights_by_file(),
            {
                "micro_batches": self._step,
                "rollouts": self._buffered_inputs if inside else None,
                "state": self.run_state,
            },
        )
        if self.args.push_to_hub:  # only what is whole
            super()._push_from_checkpoint(cast(str, self.checkpoints.last))

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self.checkpoints.writes_aside else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.checkpoints.writes_aside:
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            same, weights = self.checkpoints.same, self.weights_by_file()
            if not same:
                weights.pop(SYNCED_REFERENCE, None)  # another run begins with its own
            progress = self.checkpoints.load(Path(checkpoint), weights)
            if progress is not None:
                self._step, self._buffered_inputs = progress["micro_batches"], progress["rollouts"]
                self.run_state = progress["state"]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing, unexpected = load_result.missing_keys, load_result.unexpected_keys
        if missing and unexpected:  # tied weights are missing alone
            raise ValueError(
                "resume_from_checkpoint: transformers finds the model's weights under other names than it looks "
                f"for ({unexpected[0]}, not {missing[0]}), and would go on from the first ones; set model to the "
                "checkpoint's folder and begin a new run, or train with LoRA"
            )
        super()._issue_warnings_after_load(load_result)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _init_training_state(self, max_steps: int, *more: Any, **named: Any) -> tuple[int, int]:
        epochs, steps = super()._init_training_state(max_steps, *more, **named)
        skip_epochs(self._sampler, epochs)
        if not hasattr(self.train_dataset, "__len__") and (self.state.epoch or 0.0) > 1.0:
            logger.warning(
                "resume_from_checkpoint: the stream was read to its end before, and transformers does not find "
                "its place in a later pass, so other rows follow than without the interruption"
            )
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
