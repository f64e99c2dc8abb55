"""The steps of a completion, and a number for each: logged by a reward function, or a process reward model's."""

import itertools
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import ForwardRequest, RolloutBatch, trained_width
from gear_rl.signals.engine import Engine, Tokenizer, token_texts
from gear_rl.signals.forwards import positions, takes_positions
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal
from gear_rl.signals.text_units import unit_ids
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

logger = logging.getLogger(__name__)

Steps = Literal["turns", "separator", "tokens", "spans"]


@dataclass(frozen=True)
class StepId(BatchSignal):
    """Which step of the completion a token belongs to: 0, 1, 2, ...; -1 outside of every step.

    A step is a turn, a token, what ends with ``separator`` or with the turn, or one of the spans of characters
    that a reward function logged.
    """

    name = "step_id"

    steps: Steps = "turns"
    separator: str = "\n\n"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        mask, ids = batch.completions.mask, batch.completions.ids
        match self.steps:
            case "turns":
                return turn_ids(mask)
            case "tokens":
                return torch.where(mask, mask.cumsum(-1) - 1, -1)
            case "separator":
                end = re.compile(rf"({re.escape(self.separator)})\s*+")
                return unit_ids(token_texts(engine.tokenizer, ids), mask, end)
            case "spans":
                rows = zip(ids, mask, logged_scores(batch), strict=True)
                return torch.stack([_in_spans(engine.tokenizer, *row) for row in rows])


@dataclass(frozen=True)
class StepScore(BatchSignal):
    """The logged score of a token's step, on every token of the step; 0 outside of every step.

    A rollout without scores, and one with another number of them than steps, holds NaN; of the latter a warning
    names both numbers. Raises ``ValueError`` where no reward function logged "step_scores", and for spans that
    are not ``[begin, end, score]``.
    """

    name = "step_score"

    steps: Steps = "separator"
    separator: str = "\n\n"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        step_id = StepId(self.steps, self.separator).compute(batch, engine)
        table = torch.zeros(step_id.shape, dtype=torch.float32)
        for b, given in enumerate(logged_scores(batch)):
            count = int(step_id[b].max()) + 1 if step_id.shape[1] else 0
            if given is None:
                table[b] = math.nan
            elif self.steps == "spans":
                table[b, :count] = torch.tensor([score for _, _, score in _spans(given)[:count]])
            elif len(given) == count:
                table[b, :count] = torch.tensor(given, dtype=torch.float32)
            else:
                logger.warning(
                    "step_scores: rollout %d has %d steps (%s), but %d scores were logged; it keeps its GRPO "
                    "advantage", b, count, self.steps, len(given)
                )  # fmt: skip
                table[b] = math.nan
        return on_turns(table.to(step_id.device), step_id)


@dataclass(frozen=True)
class PrmScore(PassSignal):
    """How likely a process reward model calls the step of a token right, on every token of the step.

    The model is a token classifier of transformers over the policy's vocabulary. It reads what the policy read
    and wrote, and its last class is read at the last token of each step. Every process loads it whole, once; it
    is frozen. Raises ``ValueError`` for a model that is none.
    """

    name = "step_score"

    prm: str
    steps: Steps = "turns"
    separator: str = "\n\n"

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (StepId(self.steps, self.separator),)

    @torch.no_grad()
    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        completions = request.completions
        step_id = torch.where(completions.mask, request.inputs["step_id"], -1)  # verl pads it with 0
        model = reward_model(self.prm, str(completions.ids.device))
        table = torch.zeros(step_id.shape, device=step_id.device)
        scored = request.scored_B.nonzero()[:, 0]
        for rows in torch.split(scored, passes.batch_size) if len(scored) else ():
            prompts, width = request.student.trimmed(rows), trained_width(step_id[rows] >= 0)
            ids = torch.cat([prompts.ids_BP, completions.ids[rows, :width]], 1)
            attention = torch.cat([prompts.attention_BP, completions.attention[rows, :width]], 1)
            _check_vocabulary(self.prm, model, ids)
            places = {"position_ids": positions(attention)} if takes_positions(model) else {}
            logits = model(input_ids=ids, attention_mask=attention, **places).logits[:, -width:].float()
            right = logits.softmax(-1)[..., -1] if logits.shape[-1] > 1 else logits[..., 0].sigmoid()
            table[rows] = _at_step_ends(right, step_id[rows])
        return on_turns(table, step_id)


@lru_cache(maxsize=2)
def reward_model(name: str, device: str) -> nn.Module:
    """The token classifier in a folder or of that name, frozen, on a device; loaded once, with its memory logged."""
    from transformers import AutoConfig, AutoModelForTokenClassification

    config, classifier = cast(Any, AutoConfig), cast(Any, AutoModelForTokenClassification)  # partial types
    try:
        kinds = config.from_pretrained(name).architectures or ["none"]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"prm: {name!r} cannot be loaded ({str(error).splitlines()[0]}); give a folder or a name of a token "
            "classifier"
        ) from error
    if not kinds[0].endswith("ForTokenClassification"):  # transformers would give it a head of random numbers
        raise ValueError(
            f"prm: {name!r} is a {kinds[0]}, which has no score for a token; give a token classifier, as TRL's "
            "PRMTrainer saves one"
        )
    model = classifier.from_pretrained(name, dtype="auto")
    logger.info("prm: %s takes %.2f GB of %s", name, model.get_memory_footprint() / 1e9, device)
    return model.to(device).eval().requires_grad_(False)


def logged_scores(batch: RolloutBatch) -> Sequence[Any]:
    """What reward functions logged as "step_scores", one entry per rollout."""
    if batch.step_scores is None:
        raise ValueError(
            'step_scores: no reward function logged "step_scores"; call log_extra("step_scores", [[...], ...]) '
            "in one, set prm to a process reward model, or steps to turns"
        )
    return batch.step_scores


def _spans(given: Sequence[Any]) -> list[tuple[int, int, float]]:
    """The spans of a rollout, in the order of the text."""
    try:
        spans = sorted((int(begin), int(end), float(score)) for begin, end, score in given)
    except (TypeError, ValueError):
        spans = [(0, 0, 0.0)]
    if not all(0 <= begin < end for begin, end, _ in spans):
        raise ValueError(
            f"step_scores: {given!r}; with steps=spans give each span as [begin, end, score], in characters of "
            "the completion"
        )
    return spans


def _in_spans(tokenizer: Tokenizer, ids: Tensor, mask: Tensor, given: Any) -> Int[Tensor, " T"]:
    """The number of the first span that a token's characters overlap; -1 for none."""
    spans = [] if given is None else _spans(given)
    found, begin = [-1] * len(ids), 0
    places = int_list(mask.nonzero()[:, 0])
    for t, text in zip(places, plain_texts(tokenizer, int_list(ids[mask])), strict=True):
        end = begin + len(text)
        inside = (n for n, span in enumerate(spans) if span[0] < end and begin < span[1])
        found[t], begin = next(inside, -1), end
    return torch.tensor(found, dtype=torch.int64, device=ids.device)


def plain_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token without special tokens; joined they are the completion that rewards see.

    A character of several tokens belongs to the first of them.
    """
    alone = [tokenizer.decode([token], skip_special_tokens=True) for token in ids]
    texts = list[str]()
    for broken, run in itertools.groupby(range(len(ids)), key=lambda t: "\ufffd" in alone[t]):
        tokens = list(run)
        whole = tokenizer.decode([ids[t] for t in tokens], skip_special_tokens=True)
        texts += [whole, *[""] * (len(tokens) - 1)] if broken else [alone[t] for t in tokens]
    return texts


def _at_step_ends(value: Float[Tensor, "N W"], step_id: Int[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """The value at the last token of step k in column k; 0 where there is no such step."""
    num_tokens, width = step_id.shape[1], value.shape[1]
    own = step_id[:, :width]
    after = nn.functional.pad(own[:, 1:], (0, 1), value=-1)
    # A step may be interrupted by tool output: the last of its ends wins.
    last = (own >= 0) & (own != after)
    table = value.new_zeros(len(value), num_tokens + 1)
    return table.scatter_(1, torch.where(last, own, num_tokens), value)[:, :num_tokens]


def _check_vocabulary(name: str, model: Any, ids: Tensor) -> None:
    size, largest = int(model.get_input_embeddings().num_embeddings), int(ids.max())
    if largest >= size:
        raise ValueError(
            f"prm: {name!r} has {size} tokens, and the rollouts hold token {largest}; take a model with the "
            "policy's tokenizer"
        )
