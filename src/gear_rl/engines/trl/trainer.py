"""GEAR in TRL: a trainer with a credit assigner.

TRL keeps the rollouts, tools, rewards, base advantage, loss, vLLM, PEFT, sharding and trackers. This file
collects what TRL's hooks show of the rollouts, calls the credit step, and replaces the advantages ``(B,)`` by
``(B, T)``. It knows no method.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from torch import Tensor

from gear_rl.credit.contexts import PrivilegedFunction
from gear_rl.credit.credit_config import PRIVILEGED_COLUMNS
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.prompts import check_untemplated, naming_refused
from gear_rl.credit.step import for_loss, step
from gear_rl.credit.teacher_check import TeacherCheck
from gear_rl.engines.trl.card import complete_card
from gear_rl.engines.trl.config import GEARConfig, check_setup, checked_arguments, is_transformed
from gear_rl.engines.trl.durable import DurableTrainer
from gear_rl.engines.trl.engine import HeldWeights, TRLEngine
from gear_rl.engines.trl.images import images_of
from gear_rl.engines.trl.loss import WEIGHT, attach, loss_with_distillation
from gear_rl.engines.trl.old_pass import OldPass, shares_old_pass
from gear_rl.engines.trl.rollouts import check_row_tools
from gear_rl.engines.trl.templates import warn_of_dropped_thinking
from gear_rl.method_builder import build_method
from gear_rl.model.forwards import head_layer, padding_moves_positions, unwrap_model
from gear_rl.model.teacher import begins_as_nothing
from gear_rl.records import Record, RecordWriter
from gear_rl.signals.table import needs_context, needs_passes, needs_student
from gear_rl.traits import distillation_of, method_settings
from gear_rl.types import CreditAssigner

CHECKED_ROWS = 1000
"""Rows of the dataset whose prompts are shown to the chat template before the training."""


class GEARTrainer(DurableTrainer):
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
        self.old_pass: OldPass | None = None
        """Keeps the states of TRL's pass over the rollouts, if it runs one: the student needs no other then."""
        self.teacher_check = TeacherCheck(every=args.teacher_check_steps)
        self.segment_check = SegmentCheck()
        super().__init__(model, reward_funcs, args, train_dataset, *more, **options)
        check_row_tools(self)
        if needs_passes(credit):
            head_layer(self.model)  # refused here, not after the first rollouts
        self.record_subscribers: list[Callable[[list[Record]], object]] = []
        """Subscribe on every process: records are gathered, then each is called on the first process alone."""
        if self.run_folder.records is not None:
            self.record_subscribers.append(self._write_records)
        self._record_writer: RecordWriter | None = None
        starts_as_base = begins_as_nothing(self.model)
        plugins = cast(Any, self.accelerator.state)
        check_setup(
            credit,
            self.args,
            num_generations=self.num_generations,
            sharding=self.sharding,
            zero_stage=int(getattr(getattr(plugins, "deepspeed_plugin", None), "zero_stage", 0)),
            fsdp_version=getattr(getattr(plugins, "fsdp_plugin", None), "fsdp_version", 2),
            starts_as_base=starts_as_base,
            images=self._is_vlm,
        )
        self.held_weights = HeldWeights(self, starts_as_base=starts_as_base)
        self.add_callback(self.held_weights)

    # --- rollouts -------------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any], *more: Any, **options: Any) -> Any:
        # The only place where TRL shows the final prompts: an environment's reset() may have changed them.
        self.rollouts.prompts = copy.deepcopy(prompts)
        plain = self.rollout_func is None  # else what fails may be the function, which may need no template
        naming = naming_refused(prompts, self._rendered) if plain else nullcontext()
        with naming, self.rollouts.row_tools_shown(self):
            output = super()._generate(prompts, *more, **options)
        self.rollouts.prompt_ends = [str(self._tokenizer.decode(ids[-16:])) for ids in output[0]]
        return output

    def _rendered(self, prompt: Any) -> Any:
        processor: Any = self.processing_class
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
        options |= {"tools": self.tools or None, "chat_template": self.chat_template}
        options |= cast(dict[str, Any], self.chat_template_kwargs)
        return isinstance(prompt, str) or processor.apply_chat_template(prompt, **options)

    def prepare_training(self) -> None:
        """Also checks the prompts of the first rows, as the model will see them; a stream is not read."""
        super().prepare_training()
        self._record_writer = None  # what it continues is read again
        rows = self.train_dataset
        if not isinstance(rows, Dataset) or "prompt" not in rows.column_names or is_transformed(rows):
            return
        if self.rollout_func is not None or self._is_vlm:
            return
        prompts: list[Any] = rows.select_columns(["prompt"])[:CHECKED_ROWS]["prompt"]
        reads_context = needs_context(self.credit) and self.args.teacher_prompt == "render"
        check_untemplated(prompts, self._tokenizer, reads_context=reads_context, name="row")
        with naming_refused(prompts, self._rendered, "row"):
            for prompt in prompts:
                self._rendered(prompt)
        if getattr(self.processing_class, "chat_template", None) and self.accelerator.is_main_process:
            warn_of_dropped_thinking(self._rendered, prompts, has_tools=bool(self.tools))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        shown = inputs
        if getattr(self, "environment_factories", None) is not None:
            # TRL hands every column to the environment's reset(), whose text the student sees.
            hidden = (self.args.privileged_column, PRIVILEGED_COLUMNS[0])
            shown = [{name: value for name, value in row.items() if name not in hidden} for row in inputs]
        self.rollouts.rows, self.rollouts.logged = inputs, {}
        if self.model.training:
            keeps = needs_student(self.credit) and shares_old_pass(self)
            self.old_pass = OldPass() if keeps else None
        output = super()._generate_and_score_completions(shown)
        if self.is_training_batch:
            output["advantages"] = self._run_credit_step(output)
            self.old_pass = None
        return output

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        call = super()._get_per_token_logps_and_entropies
        if self.old_pass is None or unwrap_model(model) is not unwrap_model(self.model):
            return call(model, *args, **options)
        return self.old_pass.run(call, model, *args, **options)

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        super()._log_completion_extra(column, values)
        self.rollouts.logged.setdefault(column, []).extend(values)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *more: Any) -> Any:
        _, self.rollouts.messages, self.rollouts.ids, *_ = more
        # Reward functions see the columns that `reset()` must not see.
        rows = zip(self.rollouts.rows, inputs, self.rollouts.prompt_ends, strict=True)
        whole = [{**row, **shown, "prompt_end": end} for row, shown, end in rows]
        return super()._calculate_rewards(whole, *more)

    # --- the credit step ------------------------------------------------------------------------------------

    def credit_engine(self) -> TRLEngine:
        """The engine of a credit step or a distilling loss; override it for passes or signals of your own."""
        return TRLEngine(self)

    def _run_credit_step(self, output: dict[str, Any]) -> Tensor:
        """The advantages for TRL: of every token, (B, T), or of every completion, (B,)."""
        if needs_passes(self.credit):
            self._warn_of_positions(output["prompt_mask"])
        engine, batch = self.credit_engine(), self.rollouts.batch(self, output)
        engine.images = images_of(output)
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
        advantages = for_loss(batch, result.credit)
        return advantages if advantages.dim() > 1 else output["advantages"]  # TRL's own, bit for bit

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

    # --- what a run leaves ----------------------------------------------------------------------------------

    def configuration(self) -> dict[str, Any]:
        settings = method_settings(self.credit)
        own = {"credit": settings.pop("name")} | {f"credit.{name}": x for name, x in settings.items()}
        return super().configuration() | own

    def weights_by_file(self) -> dict[str, Any]:
        return self.held_weights.by_file() | super().weights_by_file()

    def create_model_card(self, model_name: str | None = None, *more: Any, **named: Any) -> None:
        folder = Path(cast(str, self.args.output_dir))
        super().create_model_card(model_name or folder.name, *more, **named)
        if self.is_world_process_zero():
            config, file = self.model.config, folder / "README.md"
            model = self.model_name or Path(config._name_or_path).name or config.model_type
            card, names = file.read_text(encoding="utf-8"), {"model": model, "folder": str(folder)}
            file.write_text(complete_card(card, self.credit, data=self.data_name, **names), encoding="utf-8")
