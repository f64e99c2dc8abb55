"""verl's rollouts as the batch of the credit step. Imports no verl.

verl's columns have one entry per rollout, ids without padding, and keys ``{prompt}_{session}_{output}``. ``SEEN``
of ``extra_fields`` has the facts from our agent loop, ``SAMPLED`` the mask before verl rejected tokens.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gear_rl.engine import Tokenizer, messages_of
from gear_rl.engines.verl.engine import pad_rows
from gear_rl.environments import ANCHOR_STATES, PRIVILEGED_CONTEXT, TURN_REWARDS, texts_of
from gear_rl.errors import InputError
from gear_rl.rollouts import LOGGED, Completions, RolloutBatch, ToolUse, equal_groups, left_padded
from gear_rl.tensor.lists import float_list, int_list

logger = logging.getLogger(__name__)

AGENT_NAME = "gear_env"
"""The value of a dataset's column ``agent_name`` for a row with an environment."""
SEEN, SAMPLED = "gear", "gear_sampled"
COLUMNS = (
    *("prompts", "responses", "response_mask", "advantages", "rm_scores", "old_log_probs"),
    *("raw_prompt", "reward_model", "extra_info", "data_source", "extra_fields"),
)
"""The fields of verl's rollouts that the driver reads; some are not in every dataset."""
LARGEST_GAP = 1.0
"""Nats. On 201 tokens of SmolLM2-135M bfloat16 was .08 off itself at most (padded or not) and .16 off float32, a
prompt that lacks one token 1.7, weights with 5 % of noise 2.6, a shift by one token 8."""

Columns = Mapping[str, Sequence[Any]]


class SeenEnvironment(dict[str, Any]):
    """The facts that an environment gave in the agent loop, with the environment's methods, for the driver."""

    def privileged_context(self) -> Any:
        return self.get(PRIVILEGED_CONTEXT)

    def turn_rewards(self) -> Any:
        return self.get(TURN_REWARDS)

    def anchor_states(self) -> Any:
        return self.get(ANCHOR_STATES)


def rollout_batch(
    columns: Columns, keys: Sequence[str], step: int, tokenizer: Tokenizer, *, grouped: bool = True
) -> RolloutBatch:
    """The rollouts of the whole batch, without padding rows; those of one prompt are a group.

    Turns and messages include the tokens that verl rejected. An advantage is 0 where a group's rewards are equal,
    if it compares them alone (``grouped``). ``ValueError`` where the tokens of a completion have different ones.
    """
    rows, eos = len(keys), getattr(tokenizer, "eos_token_id", None)
    ids = pad_rows(columns["responses"])
    trained = pad_rows([row.long() for row in columns["response_mask"]]).bool()
    sampled = pad_rows([row.long() for row in columns[SAMPLED]]).bool()
    mask = sampled & trained.any(-1, keepdim=True)  # a rollout without a trained token has no turns
    attention = pad_rows([torch.ones_like(row) for row in columns["responses"]])
    prompts = [int_list(row) for row in columns["prompts"]]
    rewards = [float(row.sum()) for row in columns["rm_scores"]]
    seen = seen_rows(columns, rows)
    extra = [(row or {}).get("reward_extra_info") or {} for row in columns.get("extra_fields", [{}] * rows)]
    uids = [key.rsplit("_", 2)[0] for key in keys]
    number = {uid: n for n, uid in enumerate(dict.fromkeys(uids))}
    group = [number[uid] for uid in uids]
    advantage_B = _advantages(columns, trained)
    if grouped:
        advantage_B[torch.tensor(equal_groups(rewards, group))] = 0.0
    agent = any(seen)
    tools = ToolUse(
        counts=[row.get("tool_counts") or {} for row in seen],
        failure_of=lambda b, message: message.get("failure"),
    )
    return RolloutBatch(
        step=step,
        completions=Completions(
            ids=ids,
            attention=attention,
            mask=mask,
            trained=trained,
            truncated=[len(row) == 0 or int(row[-1]) != eos for row in columns["responses"]],
        ),
        student=left_padded(prompts, int(tokenizer.pad_token_id or 0)),
        prompts=[
            row.get("prompt") or list(prompt) for row, prompt in zip(seen, columns["raw_prompt"], strict=True)
        ],
        rows=[dataset_row(columns, b) for b in range(rows)],
        messages=[
            row.get("messages") or messages_of(ids[b], sampled[b], attention[b], tokenizer)
            for b, row in enumerate(seen)
        ],
        advantage_B=advantage_B,
        rewards=rewards,
        rewards_BR=torch.tensor(rewards)[:, None],
        group=group,
        first=0,
        num_rollouts=rows,
        environments=[SeenEnvironment(row) for row in seen] if agent else None,
        logged={name: _logged_values(extra, name) for name in LOGGED if any(name in row for row in extra)},
        tools=tools if agent else None,
    )


def seen_rows(columns: Columns, rows: int) -> list[dict[str, Any]]:
    """The facts of each rollout from our agent loop; empty for one of another loop."""
    return [(row or {}).get(SEEN) or {} for row in columns.get("extra_fields", [{}] * rows)]


def dataset_row(columns: Columns, b: int) -> dict[str, Any]:
    """The row of the dataset: ``extra_info``, columns with a context, the ground truth and the source.

    >>> columns = {"extra_info": [{"answer": "so 4"}], "reward_model": [{"ground_truth": "4"}]}
    >>> dataset_row(columns | {"solution": ["2 + 2 is 4"]}, 0)
    {'answer': 'so 4', 'solution': '2 + 2 is 4', 'ground_truth': '4'}
    """
    entry = {name: values[b] for name, values in columns.items()}
    row = dict(entry.get("extra_info") or {})
    truth = (entry.get("reward_model") or {}).get("ground_truth")
    facts = {name: value for name, value in entry.items() if name not in (*COLUMNS, SAMPLED)}
    facts |= {"ground_truth": truth, "data_source": entry.get("data_source")}
    return row | {name: value for name, value in facts.items() if value is not None and name not in row}


def check_text(prompts: Sequence[Sequence[Mapping[str, Any]]], method: str) -> None:
    """``InputError`` for a prompt with an image, a video or a sound.

    >>> check_text([[{"role": "user", "content": [{"type": "image", "image": ...}]}]], "gear")
    Traceback (most recent call last):
    gear_rl.errors.InputError: raw_prompt: has more than text, which 'gear' would score as if it were text; ...
    """
    for content in (message.get("content") for prompt in prompts for message in prompt):
        if not isinstance(content, str | None) and len(texts_of(content)) < len(content):
            raise InputError(
                f"raw_prompt: has more than text, which {method!r} would score as if it were text; take text "
                "alone, or train with TRL"
            )


def _advantages(columns: Columns, mask: Tensor) -> Tensor:
    """The advantage of each completion; 0 where no token is trained."""
    each = pad_rows([row.float() for row in columns["advantages"]], mask.shape[1])
    low = torch.where(mask, each, torch.inf).amin(-1)
    high = torch.where(mask, each, -torch.inf).amax(-1)
    uneven = (high > low).nonzero()
    if len(uneven):
        b = int(uneven[0])
        raise ValueError(
            f"algorithm.adv_estimator: the tokens of a completion have advantages from {float(low[b]):g} to "
            f"{float(high[b]):g}, but token credit divides one advantage per completion; use grpo, rloo or "
            "another estimator of outcomes"
        )
    return torch.where(mask.any(-1), high, 0.0)


def _logged_values(extras: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values that the reward function returned; lists of numbers may be JSON, since verl averages others."""
    values = [row.get(name) for row in extras]
    as_json = name != "feedback"
    return [json.loads(value) if as_json and isinstance(value, str) else value for value in values]


def log_prob_gap(columns: Columns, logprob: Tensor, counted: Tensor) -> float | None:
    """The largest difference between verl's log-probs of the sampled tokens and ours; None where verl has none.

    Both are of the same weights, except in bypass mode. Warns above ``LARGEST_GAP``.
    """
    if "old_log_probs" not in columns or not counted.any():
        return None
    theirs = pad_rows([row.float() for row in columns["old_log_probs"]], logprob.shape[1])
    gap = max(float_list((theirs - logprob).abs()[counted]))
    if gap > LARGEST_GAP:
        _warn_of_gap()
    return gap


@lru_cache(maxsize=1)
def _warn_of_gap() -> None:
    logger.warning(
        "gear/engine/log_prob_gap: verl's log-prob of a token and ours differ. In bypass mode verl's are the "
        "rollout engine's own. Else both are of the same weights, so one of them is wrong; where it is ours, so "
        "is the credit. Try actor_rollout_ref.model.use_remove_padding=False and "
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    )
