"""Completions that share a prompt: its forward is run once, and each of them goes on from its cache."""

import copy
import inspect
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gear_rl.model.forwards import captured_forward, text_config, unwrap_model

LEAST_SAVED = 0.2
"""Share of a batch's tokens that must be prompts run more than once, from which sharing them pays.

Measured on a CPU at widths 128 and 256: 0.80 to 0.90 of the time at a quarter, 0.94 to 1.06 at a tenth to a
seventh, where the second forward and the copies of the cache cost what is saved."""
MOST_CACHE_BYTES = 1 << 30
"""How much of the cache is copied at a time; more rows go on one part after the other."""

_REFUSED = "_gear_keeps_no_plain_cache"


def shared_prompts(
    prompt_BP: Int[Tensor, "B P"], attention_BP: Int[Tensor, "B P"], num_tokens: int
) -> tuple[list[int], list[int]] | None:
    """The first row of each prompt and the prompt of each row; None where sharing saves too little.

    >>> prompts = torch.tensor([[5, 6, 7], [8, 9, 7], [5, 6, 7]])
    >>> shared_prompts(prompts, torch.ones_like(prompts), num_tokens=1)
    ([0, 1], [0, 1, 0])
    >>> shared_prompts(prompts, torch.ones_like(prompts), num_tokens=30)
    """
    rows, width = prompt_BP.shape
    if rows < 2 or (rows - 1) * width < LEAST_SAVED * rows * (width + num_tokens):
        return None
    number: dict[tuple[int, ...], int] = {}
    first: list[int] = []
    of_row: list[int] = []
    both = torch.cat([prompt_BP, attention_BP.to(prompt_BP.dtype)], 1)
    keys = cast(list[list[int]], both.tolist())  # pyright: ignore[reportUnknownMemberType]
    for b, key in enumerate(keys):
        place = number.setdefault(tuple(key), len(number))
        if place == len(first):
            first.append(b)
        of_row.append(place)
    saved = (rows - len(first)) * width
    return (first, of_row) if saved >= LEAST_SAVED * rows * (width + num_tokens) else None


def states_after_shared_prompts(
    model: nn.Module,
    prompt_BP: Int[Tensor, "B P"],
    attention_BP: Int[Tensor, "B P"],
    ids: Int[Tensor, "B T"],
    attention: Int[Tensor, "B T"],
) -> Float[Tensor, "B T D"] | None:
    """The hidden states that predict each of ``ids``, every prompt run once; None where that does not pay.

    None too for a model whose cache is not plain keys and values of every token (sliding windows, recurrent
    layers), or whose rotary angles depend on the longest position of a forward: such a model is tried once.
    """
    plan = None if getattr(model, _REFUSED, False) else shared_prompts(prompt_BP, attention_BP, ids.shape[1])
    if plan is None:
        return None
    first, of_row = (torch.tensor(numbers, device=ids.device) for numbers in plan)
    hidden, output = captured_forward(
        model,
        input_ids=prompt_BP[first],
        attention_mask=attention_BP[first],
        use_cache=True,
        logits_to_keep=1,
    )
    name = _cache_name(model)
    cache: Any = getattr(output, name, None)
    if not _is_plain(cache, prompt_BP.shape[1]) or _turns_by_length(model):
        setattr(model, _REFUSED, True)
        return None
    # The prompt's last state predicts the first token, and each token but the last one the next.
    states = [hidden[of_row, -1:]]
    go_on = ids.shape[1] - 1
    if go_on:
        after = torch.cat([attention_BP, attention[:, :go_on].to(attention_BP.dtype)], 1)
        row_bytes = sum(layer.keys[0].nbytes + layer.values[0].nbytes for layer in cache.layers)
        rows = max(1, MOST_CACHE_BYTES // row_bytes)
        parts: list[Tensor] = []
        for i in range(0, len(ids), rows):
            copied = _select_rows(cache, of_row[i : i + rows])
            part, _ = captured_forward(
                model,
                input_ids=ids[i : i + rows, :go_on],
                attention_mask=after[i : i + rows],
                use_cache=True,
                logits_to_keep=1,
                **{name: copied},
            )
            parts.append(part)
        states.append(torch.cat(parts))
    return torch.cat(states, 1)


def _cache_name(model: nn.Module) -> str:
    """Name of the cache in the model's forward and output: transformers 5.24 renamed ``past_key_values``."""
    taken = inspect.signature(type(unwrap_model(model)).forward).parameters
    return "cache" if "cache" in taken else "past_key_values"


def _is_plain(cache: Any, tokens: int) -> bool:
    layers: Any = getattr(cache, "layers", None)
    return bool(layers) and all(
        type(layer).__name__ == "DynamicLayer"
        and isinstance(getattr(layer, "keys", None), Tensor)
        and layer.keys.shape[-2] == tokens
        for layer in layers
    )


def _turns_by_length(model: nn.Module) -> bool:
    config = text_config(getattr(unwrap_model(model), "config", None))
    kinds = str([getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")])
    return "dynamic" in kinds or "longrope" in kinds


def _select_rows(cache: Any, rows: Int[Tensor, " N"]) -> Any:
    """The cache of these rows of it, in its own copies; the cache itself stays."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen
