"""A model's own forward, listened to: last hidden states before the head, and the head itself.

Whatever wraps the model (PEFT, DDP, FSDP 2, a patched forward) does its work; only the head is taken apart. Knows
no signal, no method and no trainer.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from gear_rl.tensor.logits import Head, predicting_positions


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
    return listened_forward(
        model, input_ids=ids_BS, attention_mask=attention_BS, use_cache=False, logits_to_keep=1
    )[0]


def listened_forward(model: nn.Module, **given: Any) -> tuple[Float[Tensor, "B S D"], Any]:
    """The last hidden states of a forward with these arguments, and what the model itself gave."""
    captured: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        captured.append(output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0])

    handle = backbone_of(model).register_forward_hook(keep)
    try:
        output = model(**given)
    finally:
        handle.remove()
    return captured[-1], output


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


def copied(head: Head) -> Head:
    return Head(
        weight_VD=head.weight_VD.clone(),
        bias_V=None if head.bias_V is None else head.bias_V.clone(),
        scale=head.scale,
        softcap=head.softcap,
        temperature=head.temperature,
    )
