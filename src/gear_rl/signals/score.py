"""Run the forward passes that a method needs, and nothing else.

Hidden states are taken from the model's own ``forward`` by a hook on its backbone, so that whatever wraps the
model (PEFT, DDP, FSDP 2, a patched forward) does its work; the head is applied in tiles afterwards. Knows no
method, only the names of signals; knows no trainer.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.tensor.divergences import DIVERGENCES, divergences
from gear_rl.tensor.logits import Head, predicting_positions, scattered, token_statistics
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import SIGNAL_NAMES, TokenSignals

TEACHER_SIGNALS = ("teacher_logprob", "divergence", "forward_divergence", "js_divergence", "teacher_entropy")
"""The signals that cost a teacher pass."""
_STUDENT_ALONE = ("student_logprob", "student_entropy", "student_varentropy")
_STUDENT_SIGNALS = (*_STUDENT_ALONE, "divergence", "forward_divergence", "js_divergence")
_COMPUTED = (*_STUDENT_ALONE, *TEACHER_SIGNALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A padded batch of prompts, padded on the left so that the completion follows at once."""

    ids_BP: Int[Tensor, "B P"]
    attention_BP: Int[Tensor, "B P"]
    """1 on prompt tokens, 0 on padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """A padded batch of completions, padded on the right."""

    ids: Int[Tensor, "B T"]
    attention: Int[Tensor, "B T"]
    """1 on tokens, tool output included; 0 on padding."""
    mask: Bool[Tensor, "B T"]
    """True on tokens that are trained."""


def left_padded(prompts: Sequence[TeacherPrompt], pad_id: int, device: torch.device | str = "cpu") -> Prompts:
    """The teacher's prompts as one batch.

    >>> left_padded([TeacherPrompt((5,)), TeacherPrompt((6, 7))], pad_id=0).ids_BP
    tensor([[0, 5],
            [6, 7]])
    """
    width = max((len(prompt.ids) for prompt in prompts), default=0)
    ids = [[pad_id] * (width - len(p.ids)) + list(p.ids) for p in prompts]
    attention = [[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in prompts]
    shape = (len(prompts), width)
    return Prompts(
        ids_BP=torch.tensor(ids, dtype=torch.long, device=device).view(shape),
        attention_BP=torch.tensor(attention, dtype=torch.long, device=device).view(shape),
    )


def needs_teacher(needs: Sequence[str]) -> bool:
    """Whether any of the signals costs a teacher pass.

    >>> needs_teacher(["student_entropy"]), needs_teacher(["divergence"])
    (False, True)
    """
    return any(name in TEACHER_SIGNALS for name in needs)


def needs_student(needs: Sequence[str]) -> bool:
    """Whether any of the signals costs a student pass: a divergence does, what the teacher has alone does not.

    >>> needs_student(["divergence"]), needs_student(["teacher_logprob"]), needs_student([])
    (True, False, False)
    """
    return any(name in _STUDENT_SIGNALS for name in needs)


@torch.no_grad()
def score(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    teacher: Prompts | None = None,
    *,
    needs: Sequence[str],
    temperature: float = 1.0,
    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None = None,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
) -> TokenSignals:
    """The signals of every completion, at the model's present weights, in float32.

    Rows where ``row_B`` is False are not computed and hold 0. ``teacher_weights`` lends the model other weights
    for the teacher's pass; None means the student's own. ``head_context`` wraps every direct use of the head's
    weights (sharded ones are gathered there). Where the model is sharded all processes must run equally many
    forwards: ``num_batches`` is the least number of batches, and surplus ones are computed and dropped.
    Dropout is off. A non-finite value is left in place; the caller decides what to do with it. Raises
    ``ValueError`` for a signal this function does not compute, or for a teacher signal without prompts.
    """
    unknown = [name for name in needs if name not in _COMPUTED and name != "group_B"]
    if unknown:
        raise ValueError(
            f"needs: {unknown[0]!r} is not computed from forward passes; choose from {', '.join(_COMPUTED)}"
        )
    if needs_teacher(needs) and teacher is None:
        raise ValueError(f"teacher: {', '.join(needs)} needs the teacher's prompts, and none were given")
    wanted = [name for name in _COMPUTED if name in needs]
    found = {name: torch.zeros(completions.mask.shape, device=completions.mask.device) for name in wanted}
    if wanted:
        rows = torch.ones_like(completions.mask[:, 0]) if row_B is None else row_B
        index = rows.nonzero()[:, 0]
        batches = [index[i : i + batch_size] for i in range(0, len(index), batch_size)]
        spare = [index.new_zeros(1)] * max(0, num_batches - len(batches)) if len(rows) else []
        scorer = _Scorer(model, completions, student, teacher, wanted, temperature)
        scorer.teacher_weights = teacher_weights
        scorer.head_context = head_context or (lambda _: nullcontext())
        with evaluating(model):
            for batch in batches:
                for name, values in scorer(batch).items():
                    found[name][batch] = values
            for batch in spare:
                scorer(batch)
    return TokenSignals(mask=completions.mask, turn_id=turn_ids(completions.mask), **found)


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Dropout off, which would make the same token diverge from itself; each module's own mode afterwards."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training


class _Scorer:
    """One batch of rows through the student, and through the teacher if anybody asked for it."""

    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None
    head_context: Callable[[nn.Module], AbstractContextManager[Any]]

    def __init__(
        self,
        model: nn.Module,
        completions: Completions,
        student: Prompts,
        teacher: Prompts | None,
        wanted: Sequence[str],
        temperature: float,
    ) -> None:
        self.model, self.completions, self.student, self.teacher = model, completions, student, teacher
        self.wanted, self.temperature = wanted, temperature
        self._teacher_head: Head | None = None

    def __call__(self, batch: Int[Tensor, " N"]) -> dict[str, Tensor]:
        mask = self.completions.mask[batch]
        # Columns after the last trained token of the batch predict nothing that is read.
        width = int((mask.any(0).nonzero().max() + 1).item()) if mask.any() else 1
        keep, token = mask[:, :width], self.completions.ids[batch][:, :width]
        student = teacher = None
        if needs_student(self.wanted):
            student = self._hidden(self.student, batch, width)[keep]
        if self.teacher is not None and needs_teacher(self.wanted):
            with nullcontext() if self.teacher_weights is None else self.teacher_weights(self.model):
                teacher = self._hidden(self.teacher, batch, width)[keep]
                if self.teacher_weights is not None and self._teacher_head is None and self._head_is_trained:
                    # A copy: once the weights are handed back, the parameter is the student's again.
                    with self.head_context(self.model):
                        self._teacher_head = _copied(head_of(self.model, self.temperature))
        with self.head_context(self.model):
            head = head_of(self.model, self.temperature)
            further = [name for name in self.wanted if name in DIVERGENCES]
            plain = [name for name in self.wanted if name not in further]
            values: dict[str, Tensor] = {}
            if plain and student is None:
                # Only the teacher's log-prob is asked for: it takes the student's seat.
                assert teacher is not None
                alone = token_statistics(teacher, token[keep], self._teacher_head or head)
                values = {"teacher_logprob": alone.student_logprob}
            elif plain and student is not None:
                other = teacher if needs_teacher(plain) else None
                both = token_statistics(student, token[keep], head, other, self._teacher_head)
                values = {name: getattr(both, name) for name in plain}
            if further:
                values |= divergences(student, head, teacher, self._teacher_head, names=further)
        pad = (0, mask.shape[1] - width)
        return {name: nn.functional.pad(scattered(value, keep), pad) for name, value in values.items()}

    @property
    def _head_is_trained(self) -> bool:
        inner: Any = unwrapped(self.model)
        return any(p.requires_grad for p in inner.get_output_embeddings().parameters())

    def _hidden(self, prompts: Prompts, batch: Tensor, width: int) -> Float[Tensor, "N W D"]:
        attention = prompts.attention_BP[batch]
        begin = int(attention.any(0).nonzero().min().item()) if attention.any() else 0
        return hidden_states(
            self.model,
            torch.cat([prompts.ids_BP[batch][:, begin:], self.completions.ids[batch][:, :width]], 1),
            torch.cat([attention[:, begin:], self.completions.attention[batch][:, :width]], 1),
            num_tokens=width,
        )


def hidden_states(
    model: nn.Module, ids_BS: Int[Tensor, "B S"], attention_BS: Int[Tensor, "B S"], num_tokens: int
) -> Float[Tensor, "B T D"]:
    """The last hidden states that predict the last ``num_tokens`` tokens, through the model's own ``forward``.

    The head is asked for one position only (``logits_to_keep=1``), so no full logits are built. Raises
    ``ValueError`` if the backbone cannot be found.
    """
    return predicting_positions(last_states(model, ids_BS, attention_BS), num_tokens)


def last_states(
    model: nn.Module, ids_BS: Int[Tensor, "B S"], attention_BS: Int[Tensor, "B S"]
) -> Float[Tensor, "B S D"]:
    """The last hidden states of every token, before the head; ``ValueError`` if the backbone cannot be found."""
    captured: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        captured.append(output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0])

    handle = backbone_of(model).register_forward_hook(keep)
    try:
        model(input_ids=ids_BS, attention_mask=attention_BS, use_cache=False, logits_to_keep=1)
    finally:
        handle.remove()
    return captured[-1]


def unwrapped(model: nn.Module) -> nn.Module:
    """The language model inside its wrappers (DDP, DeepSpeed, ``torch.compile``, PEFT)."""
    for attribute in ("module", "_orig_mod"):
        while isinstance(getattr(model, attribute, None), nn.Module):
            model = cast(nn.Module, getattr(model, attribute))
    peft_base: Any = getattr(model, "get_base_model", None)
    return cast(nn.Module, peft_base()) if callable(peft_base) else model


def backbone_of(model: nn.Module) -> nn.Module:
    """The part of the language model that yields hidden states: everything before the head."""
    inner = unwrapped(model)
    backbone: Any = getattr(inner, "base_model", None)
    if not isinstance(backbone, nn.Module) or backbone is inner:
        raise ValueError(
            f"model: {type(inner).__name__} has no `base_model` that yields hidden states; give a transformers "
            "causal language model"
        )
    return backbone


def head_of(model: nn.Module, temperature: float) -> Head:
    """The model's head, with the logit scale and soft-cap that its config names.

    Cohere multiplies by ``logit_scale``, Granite and MiniCPM divide by ``logits_scaling`` (HyperCLOVA X
    multiplies by it), Falcon-H1 has ``lm_head_multiplier``, Muse Glimmer ``output_multiplier``; Gemma 2 bends
    by ``final_logit_softcapping``. A head sharded as a DTensor (FSDP 2) is gathered. Raises ``ValueError`` for a
    head under an adapter.
    """
    inner: Any = unwrapped(model)
    layer: Any = inner.get_output_embeddings()
    if hasattr(layer, "lora_A") or hasattr(layer, "modules_to_save"):
        raise ValueError(
            f"model: the head is wrapped by an adapter ({type(layer).__name__}), so its weights alone do not "
            "give the logits; leave it out of target_modules and modules_to_save"
        )
    config: Any = inner.config.get_text_config() if hasattr(inner.config, "get_text_config") else inner.config
    factors = [
        getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")
    ]
    scale = next((float(factor) for factor in factors if factor is not None), None)
    divisor = getattr(config, "logits_scaling", None)
    if scale is None and divisor is not None:
        scale = float(divisor) if config.model_type == "hyperclovax" else 1.0 / float(divisor)
    softcap = getattr(config, "final_logit_softcapping", None)
    bias = getattr(layer, "bias", None)
    return Head(
        weight_VD=_gathered(layer.weight),
        bias_V=None if bias is None else _gathered(bias),
        scale=1.0 if scale is None else scale,
        softcap=None if softcap is None else float(softcap),
        temperature=temperature,
    )


def _gathered(weight: Any) -> Tensor:
    full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return cast(Tensor, full).detach()


def _copied(head: Head) -> Head:
    return Head(
        weight_VD=head.weight_VD.clone(),
        bias_V=None if head.bias_V is None else head.bias_V.clone(),
        scale=head.scale,
        softcap=head.softcap,
        temperature=head.temperature,
    )


assert set(_COMPUTED) < set(SIGNAL_NAMES)
