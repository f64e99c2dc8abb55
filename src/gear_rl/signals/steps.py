"""The steps of a completion, and a number for each: logged by a reward function, or a process reward model's."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engine import Engine, ForwardRequest, Tokenizer, own_texts, token_places
from gear_rl.model.forwards import positions, takes_positions
from gear_rl.rollouts import RolloutBatch, trained_width
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal
from gear_rl.signals.text_units import unit_ids
from gear_rl.signals.turns import TurnReward
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

logger = logging.getLogger(__name__)

Steps = Literal["turns", "separator", "tokens", "spans"]


@dataclass(frozen=True)
class StepId(BatchSignal):
    """Which step of the completion a token belongs to: 0, 1, 2, ...; -1 outside of every step.

    A step is a turn, a token, what ends with ``separator`` or with the turn, or one of the spans of characters
    that a reward function logged: a token belongs to the first span that it overlaps, and a span without tokens
    is no step. White space alone is no step between separators, nor is a special token.
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
                mark = re.escape(self.separator.replace("\\n", "\n"))
                # Those before the first step end none, and of several in a row the last one ends it.
                end = re.compile(rf"\A(?:\s*{mark})+|({mark}(?:\s*{mark})*)\s*+")
                texts = own_texts(engine.tokenizer, ids, mask)
                return unit_ids(texts, mask & _has_text(texts, mask, mark), end, lines=False)
            case "spans":
                rows = zip(ids, mask, logged_scores(batch), strict=True)
                return torch.stack([_in_spans(engine.tokenizer, *row)[0] for row in rows])


@dataclass(frozen=True)
class StepScore(BatchSignal):
    """The logged score of a token's step, on every token of the step; 0 outside of every step.

    Turns without logged scores have their ``TurnReward``. A rollout without scores, or with another number of
    them than steps, holds NaN; of the latter a warning tells. Raises ``ValueError`` where no reward function
    logged "step_scores", and for what is no list of numbers, or with spans of ``[begin, end, score]``.
    """

    name = "step_score"

    steps: Steps = "separator"
    separator: str = "\n\n"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        if self.steps == "turns" and "step_scores" not in batch.logged:
            return TurnReward().compute(batch, engine)
        step_id, mask = StepId(self.steps, self.separator).compute(batch, engine), batch.completions.mask
        table = torch.zeros(step_id.shape, dtype=torch.float32)
        missing_B = torch.zeros(len(step_id), dtype=torch.bool)
        for b, given in enumerate(logged_scores(batch)):
            scores, count = _numbers(given, self.steps), len({*int_list(step_id[b])} - {-1})
            if self.steps == "spans" and count:  # spans beside all tokens are no steps
                scores = _in_spans(engine.tokenizer, batch.completions.ids[b], mask[b], given)[1]
            missing_B[b] = scores is None or len(scores) != count
            if scores is not None and not missing_B[b]:
                table[b, :count] = torch.tensor(scores)
            elif scores is not None and mask[b].any():
                logger.warning(
                    "step_scores: rollout %d has %d steps (%s), but %d scores were logged; it keeps its GRPO "
                    "advantage", b, count, self.steps, len(scores)
                )  # fmt: skip
        score = on_turns(table.to(step_id.device), step_id)
        return torch.where(missing_B.to(mask.device)[:, None] & mask, math.nan, score)


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
            places = {"position_ids": positions(attention)} if takes_positions(model) else {}
            logits = model(input_ids=ids, attention_mask=attention, **places).logits[:, -width:].float()
            right = logits.softmax(-1)[..., -1] if logits.shape[-1] > 1 else logits[..., 0].sigmoid()
            table[rows] = _at_step_ends(right, step_id[rows])
        return on_turns(table, step_id)


@lru_cache(maxsize=2)
def reward_model(name: str, device: str) -> nn.Module:
    """The token classifier in a folder or of that name, frozen, on a device; loaded once, its size logged."""
    from transformers import AutoModelForTokenClassification

    check_classifier(name)
    model = cast(Any, AutoModelForTokenClassification).from_pretrained(name, dtype="auto")  # partial types
    logger.info("prm: %s takes %.2f GB of %s", name, model.get_memory_footprint() / 1e9, device)
    return model.to(device).eval().requires_grad_(False)


def check_classifier(name: str) -> None:
    """Raise ``ValueError`` for a folder or a name that holds no token classifier."""
    from transformers import AutoConfig

    try:
        kinds = cast(Any, AutoConfig).from_pretrained(name).architectures or ["none"]
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


def logged_scores(batch: RolloutBatch) -> Sequence[Any]:
    """What reward functions logged as "step_scores", one entry per rollout."""
    if "step_scores" not in batch.logged:
        raise ValueError(
            'step_scores: no reward function logged "step_scores"; call log_extra("step_scores", [[...], ...]) '
            "in one, set prm to a process reward model, or steps to turns"
        )
    return batch.logged["step_scores"]


def _numbers(given: Any, steps: Steps) -> list[float] | None:
    """The scores of a rollout; None where it has none."""
    if given is None:
        return None
    if steps == "spans":
        return [score for _, _, score in _spans(given)]
    try:
        if isinstance(given, str):
            raise TypeError
        return [math.nan if score is None else float(score) for score in given]
    except (TypeError, ValueError):
        raise ValueError(
            f"step_scores: {given!r:.80} is no list of numbers; log one for each rollout, or None"
        ) from None


def _spans(given: Any) -> list[tuple[int, int, float]]:
    """The spans of a rollout, in the order of the text."""
    try:
        spans = sorted((int(begin), int(end), float(score)) for begin, end, score in given)
    except (TypeError, ValueError, OverflowError):
        spans = [(1, 0, 0.0)]
    if not all(0 <= begin <= end for begin, end, _ in spans):
        raise ValueError(
            f"step_scores: {given!r:.80}; with steps=spans give each span as [begin, end, score], in characters "
            "of the completion"
        )
    return spans


def _in_spans(
    tokenizer: Tokenizer, ids: Tensor, mask: Tensor, given: Any
) -> tuple[Int[Tensor, " T"], list[float]]:
    """Which step a token belongs to, -1 for none, and the score of each step."""
    spans = [] if given is None else _spans(given)
    step_id, scores, last = [-1] * len(ids), list[float](), -1
    places = token_places(tokenizer, int_list(ids[mask]))
    for t, own in zip(int_list(mask.nonzero()[:, 0]), places, strict=True):
        inside = (n for n, span in enumerate(spans) if span[0] < own.stop and own.start < span[1])
        first = next(inside, None)
        if first is None:
            continue
        if first != last:  # spans are in order, and so are the first of each token
            scores.append(spans[first][2])
            last = first
        step_id[t] = len(scores) - 1
    return torch.tensor(step_id, dtype=torch.int64, device=ids.device), scores


def _has_text(texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"], mark: str) -> Bool[Tensor, "B T"]:
    """Whether the turn of a token says anything but the separator ``mark`` and white space."""
    rows = list[list[bool]]()
    for row, turn in zip(texts, map(int_list, turn_ids(mask).cpu()), strict=True):
        said = dict.fromkeys(turn, "")
        for text, number in zip(row, turn, strict=True):
            said[number] += text
        has_text = {number: bool(re.sub(mark, "", text).strip()) for number, text in said.items()}
        rows.append([has_text[number] for number in turn])
    return torch.tensor(rows, dtype=torch.bool, device=mask.device).view(mask.shape)


def _at_step_ends(value: Float[Tensor, "N W"], step_id: Int[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """The value at the last token of step k in column k; 0 where there is no such step."""
    num_tokens, width = step_id.shape[1], value.shape[1]
    own = step_id[:, :width]
    after = nn.functional.pad(own[:, 1:], (0, 1), value=-1)
    # A step may be interrupted by tool output: the last of its ends wins.
    last = (own >= 0) & (own != after)
    table = value.new_zeros(len(value), num_tokens + 1)
    return table.scatter_(1, torch.where(last, own, num_tokens), value)[:, :num_tokens]
