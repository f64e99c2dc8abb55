"""The last hidden states that a model's own forward computes before its head, and the head itself.

Whatever wraps the model (PEFT, DDP, FSDP 2, a patched forward) does its work; only the head is taken apart. Knows
no signal, no method and no trainer.
"""

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gear_rl.tensor.logits import Head, predicting_positions

_MOVED = 0.02
"""Relative change of hidden states from which positions count as moved. Measured in float32 and bfloat16: 0 for
rotary models and ALiBi, 0.5 and more for untrained ones with absolute positions."""

_OTHER_LOGITS = 0.03
"""Difference of logits, of the largest, from which they are another model's; bfloat16 leaves 0.004."""
_COMPARED = 4096
"""Tokens, the first of the vocabulary, whose logits are compared."""
_HEAD_CHECKED = "_gear_head_checked"
"""Attribute of a model whose logits were compared."""


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Dropout off, which would make the same token diverge from itself; each module's own mode afterwards.

    >>> with evaluating(model := nn.Dropout()):
    ...     model.training
    False
    >>> model.training
    True
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training


def hidden_states(
    model: nn.Module,
    ids_BS: Int[Tensor, "B S"],
    attention_BS: Int[Tensor, "B S"],
    num_tokens: int,
    images: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "B T D"]:
    """The last hidden states that predict the last ``num_tokens`` tokens, through the model's own ``forward``.

    The head computes one position only (``logits_to_keep=1``), so no full logits are built. Raises
    ``ValueError`` if the backbone cannot be found.
    """
    return predicting_positions(last_states(model, ids_BS, attention_BS, images), num_tokens)


def last_states(
    model: nn.Module,
    ids_BS: Int[Tensor, "B S"],
    attention_BS: Int[Tensor, "B S"],
    images: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "B S D"]:
    """The last hidden states of every token, before the head; ``ValueError`` if the backbone cannot be found.

    ``images`` are the model's own arguments for them. It then places the tokens itself, for an image may have
    positions of several dimensions.
    """
    forward = _plain_forward if images else captured_forward
    return forward(
        model,
        input_ids=ids_BS,
        attention_mask=attention_BS,
        use_cache=False,
        logits_to_keep=1,
        **(images or {}),
    )[0]


def captured_forward(model: nn.Module, **given: Any) -> tuple[Float[Tensor, "B S D"], Any]:
    """The last hidden states of a forward with these arguments, and what the model itself gave.

    The model gets each token's ``position_ids`` too, where it takes them: a left-padded row then stands at the
    positions that it has alone, and that ``generate`` gave it.
    """
    if takes_positions(model):
        # After a cache the mask is longer than the ids, which are its last columns.
        num_ids = given["input_ids"].shape[1]
        given["position_ids"] = positions(given["attention_mask"])[:, -num_ids:]
    return _plain_forward(model, **given)


def _plain_forward(model: nn.Module, **given: Any) -> tuple[Float[Tensor, "B S D"], Any]:
    captured: list[Tensor] = []
    with capturing(model, captured.append):
        output = model(**given)
    _check_head(model, captured[-1], output)
    return captured[-1], output


@torch.no_grad()
def _check_head(model: nn.Module, hidden_BSD: Float[Tensor, "B S D"], output: Any) -> None:
    """``ValueError`` where the model's own logits are not those of ``head_of``; computed once a model.

    So it is with models that do more than ``head_of`` reads in their config, as BERT's kind. A head that
    DeepSpeed has divided is not checked.
    """
    inner: Any = unwrap_model(model)
    if hasattr(inner, _HEAD_CHECKED) or not head_layer(model).weight.numel():
        return
    head = head_of(model, temperature=1.0)
    ours = head.slice(0, _COMPARED).to(hidden_BSD.device).logits(hidden_BSD[:, -1])
    whole, theirs = output.logits.shape[-1], output.logits[:, -1, :_COMPARED].float()
    if whole != len(head.weight_VD) or (theirs - ours).abs().max() > _OTHER_LOGITS * theirs.abs().max():
        raise ValueError(
            f"model: {type(inner).__name__} does not compute its logits by its head alone, as the signals do (a "
            "layer before it, a soft-cap of another name, a quantised head); take another model"
        )
    setattr(inner, _HEAD_CHECKED, True)


@contextmanager
def capturing(model: nn.Module, receive: Callable[[Tensor], object]) -> Generator[None]:
    """While it is open, ``receive`` is called with the last hidden states of every forward, with their graph.

    >>> model, states = nn.Module(), []
    >>> model.base_model = nn.Identity()
    >>> with capturing(model, states.append):
    ...     _ = model.base_model((torch.tensor([2.0]),))
    >>> states
    [tensor([2.])]
    """

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        receive(output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0])

    handle = backbone_of(model).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def positions(attention_BS: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """The position of every attended token, counted from 0 in each row; 0 on padding before the first.

    >>> positions(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]))
    tensor([[0, 0, 0, 1],
            [0, 1, 2, 2]])
    """
    return (attention_BS.long().cumsum(-1) - 1).clamp(min=0)


def takes_positions(model: nn.Module) -> bool:
    """Whether the language model's own ``forward`` names ``position_ids``, whatever wraps the model.

    ``generate`` decides by the same name whether to pass them. ALiBi (BLOOM, MPT) and recurrent models (Mamba)
    have no such argument.

    >>> takes_positions(nn.Linear(1, 1))
    False
    """
    return "position_ids" in inspect.signature(type(unwrap_model(model)).forward).parameters


@torch.no_grad()
def padding_moves_positions(model: nn.Module, device: torch.device | str = "cpu") -> bool:
    """Whether left padding changes what the model computes without ``position_ids``.

    So it is with positions that are counted from the first column (GPT-2). Measured by two forwards over rows of
    padding and one token, which attends to itself alone, so that rotary angles leave no rounding. Where the model
    is sharded, every process must call this.
    """
    if not takes_positions(model):
        return False
    inner: Any = unwrap_model(model)
    token_N = torch.arange(min(4, text_config(inner.config).vocab_size), device=device)
    ids_NS = token_N[:, None].expand(-1, 4).contiguous()
    attention_NS = torch.zeros_like(ids_NS)
    attention_NS[:, -1] = 1
    given: dict[str, Any] = {"input_ids": ids_NS, "attention_mask": attention_NS, "use_cache": False}
    with evaluating(model):
        there, here = (
            forward(model, **given, logits_to_keep=1)[0][:, -1].float()
            for forward in (_plain_forward, captured_forward)
        )
    return bool((there - here).square().sum() > _MOVED**2 * here.square().sum())


def text_config(config: Any) -> Any:
    """The configuration of the language model in one that may have more parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def max_positions(config: Any) -> int | None:
    """How many positions the model's configuration allows; None where it does not say.

    Rotary positions may be stretched: then it is their original number times the factor.

    >>> from types import SimpleNamespace
    >>> max_positions(SimpleNamespace(max_position_embeddings=1024))
    1024
    >>> yarn = {"factor": 4.0, "original_max_position_embeddings": 32768}
    >>> max_positions(SimpleNamespace(max_position_embeddings=32768, rope_parameters=yarn))
    131072
    """
    text = text_config(config)
    places: Any = getattr(text, "max_position_embeddings", None)
    if not isinstance(places, int):
        return None
    stretched: Any = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    scaling = cast(dict[str, Any], stretched) if isinstance(stretched, dict) else {}
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings", places)
    if isinstance(factor, int | float) and isinstance(original, int):
        return max(places, int(factor * original))
    return places


def unwrap_model(model: nn.Module) -> nn.Module:
    """The language model inside its wrappers (DDP, DeepSpeed, ``torch.compile``, PEFT).

    >>> unwrap_model(nn.DataParallel(nn.Identity()))
    Identity()
    """
    for attribute in ("module", "_orig_mod"):
        while isinstance(getattr(model, attribute, None), nn.Module):
            model = cast(nn.Module, getattr(model, attribute))
    peft_base: Any = getattr(model, "get_base_model", None)
    return cast(nn.Module, peft_base()) if callable(peft_base) else model


def backbone_of(model: nn.Module) -> nn.Module:
    """The part of the language model that yields hidden states: everything before the head.

    OPT's own forward calls the decoder inside its backbone and not the backbone; that decoder then.

    >>> backbone_of(nn.Identity())
    Traceback (most recent call last):
    ValueError: model: Identity has no `base_model` that yields hidden states; give a transformers causal ...
    """
    inner = unwrap_model(model)
    backbone: Any = getattr(inner, "base_model", None)
    encodes = getattr(getattr(inner, "config", None), "is_encoder_decoder", False)
    if not isinstance(backbone, nn.Module) or backbone is inner or encodes:
        raise ValueError(
            f"model: {type(inner).__name__} has no `base_model` that yields hidden states; give a transformers "
            "causal language model"
        )
    decoder: Any = getattr(backbone, "decoder", None)
    return decoder if isinstance(decoder, nn.Module) and not hasattr(backbone, "encoder") else backbone


def head_of(model: nn.Module, temperature: float) -> Head:
    """The model's head, with the logit scale and soft-cap that its config names.

    Cohere multiplies by ``logit_scale``, Granite and MiniCPM divide by ``logits_scaling`` (HyperCLOVA X
    multiplies by it), Falcon-H1 has ``lm_head_multiplier``, Muse Glimmer ``output_multiplier``; Gemma 2,
    RecurrentGemma and xLSTM bend by a soft-cap. A head sharded as a DTensor (FSDP 2) is gathered. Raises
    ``ValueError`` as ``head_layer`` does.

    >>> from types import SimpleNamespace
    >>> model = nn.Module()
    >>> model.get_output_embeddings = lambda: nn.Linear(2, 3)
    >>> model.config = SimpleNamespace(model_type="granite", logits_scaling=4.0)
    >>> head_of(model, temperature=1.0).scale
    0.25
    """
    layer, config = head_layer(model), text_config(cast(Any, unwrap_model(model)).config)
    factors = [
        getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")
    ]
    scale = next((float(factor) for factor in factors if factor is not None), None)
    divisor = getattr(config, "logits_scaling", None)
    if scale is None and divisor is not None:
        scale = float(divisor) if config.model_type == "hyperclovax" else 1.0 / float(divisor)
    caps = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    softcap = next((cap for name in caps if (cap := getattr(config, name, None)) is not None), None)
    bias = getattr(layer, "bias", None)
    return Head(
        weight_VD=_gather_weight(layer.weight),
        bias_V=None if bias is None else _gather_weight(bias),
        scale=1.0 if scale is None else scale,
        softcap=None if softcap is None else float(softcap),
        temperature=temperature,
    )


def head_layer(model: nn.Module) -> Any:
    """The layer that gives the logits; ``ValueError`` under an adapter, whose part its weights do not show."""
    layer: Any = cast(Any, unwrap_model(model)).get_output_embeddings()
    if hasattr(layer, "base_layer") or hasattr(layer, "modules_to_save"):
        raise ValueError(
            f"model: the head is wrapped by an adapter ({type(layer).__name__}), so its weights alone do not "
            "give the logits; leave it out of target_modules and modules_to_save"
        )
    return layer


def _gather_weight(weight: Any) -> Tensor:
    full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return cast(Tensor, full).detach()


def head_is_trained(model: nn.Module) -> bool:
    """Whether the head has a parameter that requires a gradient.

    >>> model = nn.Module()
    >>> model.get_output_embeddings = lambda: nn.Linear(1, 2).requires_grad_(False)
    >>> head_is_trained(model)
    False
    """
    inner: Any = unwrap_model(model)
    return any(p.requires_grad for p in inner.get_output_embeddings().parameters())
