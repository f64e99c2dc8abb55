"""Every signal that a method needs of a batch of rollouts, and no other. Knows no method: it reads ``needs``."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from gear_rl.credit.batch import ForwardRequest, RolloutBatch
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.contexts import answer_ids
from gear_rl.credit.engine import Engine
from gear_rl.credit.turns import turn_signals
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.score import Completions, Prompts
from gear_rl.signals.text_units import line_ids, sentence_ids
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner, TokenSignals, signal_of


def collect(
    needs: Sequence[str],
    batch: RolloutBatch,
    teachers: Sequence[Prompts],
    contexts: Sequence[str | None],
    scored_B: Bool[Tensor, " B"],
    engine: Engine,
    config: CreditConfig,
) -> TokenSignals:
    """The signals of every completion of this process; 0 in rows that are not scored, where a pass makes them.

    ``contexts`` are the privileged contexts as text. Every process must call this with the same ``needs``.
    """
    mask = batch.completions.mask
    region, values = _text_signals(needs, batch, engine, config)
    passes = tuple(name for name in needs if signal_of(name).costs_passes)
    if passes:
        group_B, succeeded_B = _outcomes(batch, config) if "transport_distance" in passes else (None, None)
        answers = answer_ids(engine, config, contexts) if "answer_confidence" in passes else ()
        request = ForwardRequest(
            needs=passes,
            step=batch.step,
            completions=batch.completions,
            student=batch.student,
            teachers=teachers,
            scored_B=scored_B,
            answer_region=region,
            answers=answers,
            group_B=group_B,
            succeeded_B=succeeded_B,
        )
        values |= engine.forward(request)
    values |= _rollout_signals(needs, batch)
    if "turn_reward" in needs or "anchor_id" in needs:
        values |= turn_signals(needs, batch, engine, config)
    return TokenSignals(mask=mask, turn_id=turn_ids(mask), **cast(dict[str, Any], values))


def needs_passes(method: CreditAssigner) -> bool:
    """Whether the method costs forward passes of the model.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gigpo", "gear", "opsd") if needs_passes(METHODS[name]())]
    ['gear', 'opsd']
    """
    return distillation_of(method) is not None or any(signal_of(name).costs_passes for name in method.needs)


def judged(batch: RolloutBatch) -> Bool[Tensor, " B"]:
    """True on the completions to which any reward function gave a reward."""
    return torch.tensor([reward is not None for reward in batch.rewards], device=batch.advantage_B.device)


def _text_signals(
    needs: Sequence[str], batch: RolloutBatch, engine: Engine, config: CreditConfig
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Where the completion's answer is, if any signal needs it; and the signals of the text."""
    kinds = {signal_of(name).made_by for name in needs}
    if not kinds & {"text", "saliency"}:
        return None, {}
    mask, values = batch.completions.mask, dict[str, Tensor]()
    texts = _texts(engine, batch.completions)
    if "sentence_id" in needs:
        values["sentence_id"] = sentence_ids(texts, mask)
    if "line_id" in needs:
        values["line_id"] = line_ids(texts, mask)
    if "answer_region" not in needs and "saliency" not in kinds:
        return None, values
    region = answer_regions(texts, mask, config.answer_pattern)
    answered_B = engine.gather((region == 1).any(-1).float())
    engine.log({"gear/answers": float(answered_B.mean()) if len(answered_B) else 0.0})
    if "answer_region" in needs:
        values["answer_region"] = region
    return region, values


def _rollout_signals(needs: Sequence[str], batch: RolloutBatch) -> dict[str, Tensor]:
    """The signals that a rollout has without any pass."""
    mask, values = batch.completions.mask, dict[str, Tensor]()
    if "token_id" in needs:
        values["token_id"] = torch.where(mask, batch.completions.ids.long(), -1)
    if "group_B" in needs:
        values["group_B"] = torch.tensor(batch.group, device=mask.device)
    if "reward_B" in needs:
        values["reward_B"] = _rewards(batch)
    if "rewards_BR" in needs:
        values["rewards_BR"] = batch.rewards_BR
    if "true_advantage" in needs:
        if batch.true_advantage is None:
            raise ValueError(
                "credit: the signal 'true_advantage' is given by the laboratory, and nobody gave it; run the "
                "method in gear compare, as oracle"
            )
        values["true_advantage"] = torch.where(mask, batch.true_advantage, 0.0)
    return values


def _outcomes(batch: RolloutBatch, config: CreditConfig) -> tuple[Tensor, Tensor]:
    """The group of each completion and whether it succeeded; one that nobody judged is compared with none."""
    succeeded_B = _rewards(batch) >= cast(float, config.success_reward)
    own_B = torch.arange(len(succeeded_B), device=succeeded_B.device)
    group_B = torch.tensor(batch.group, device=succeeded_B.device)
    return torch.where(judged(batch), group_B, -1 - own_B), succeeded_B


def _rewards(batch: RolloutBatch) -> Tensor:
    return torch.tensor([reward or 0.0 for reward in batch.rewards], device=batch.advantage_B.device)


def _texts(engine: Engine, completions: Completions) -> list[list[str]]:
    """Every token of every completion, decoded alone."""
    known: dict[int, str] = {}
    texts: list[list[str]] = []
    for ids in map(int_list, completions.ids):
        for token in ids:
            if token not in known:
                known[token] = engine.tokenizer.decode([token])
        texts.append([known[token] for token in ids])
    return texts
