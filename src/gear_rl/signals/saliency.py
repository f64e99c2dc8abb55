"""What the student's own answer depends on: tokens struck out, and gradients to the model's inputs.

``score`` looks at each token by itself; here each token before the answer is measured by what it did to the
answer. The gradients are of activations only: no parameter gets one. Knows no method and no trainer; where the
answer stands is handed in (``signals.answers``).
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from gear_rl.signals.forwards import backbone_of, evaluating, head_of, hidden_states, unwrapped
from gear_rl.signals.score import Completions, Prompts
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.logits import Head, predicting_positions
from gear_rl.types import signals_where

SALIENCY_SIGNALS = signals_where(lambda signal: signal.made_by == "saliency")
"""The signals that this file computes; all of them need to know where the answer stands."""

Readout = Literal["mean", "last", "joint"]
Layer = Literal["input", "first", "middle", "last"]
LossSpan = Literal["box", "content"]


@torch.no_grad()
def saliency(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    region: Int[Tensor, "B T"],
    *,
    needs: Sequence[str],
    pad_id: int,
    temperature: float = 1.0,
    readout: Readout = "mean",
    layer: Layer = "input",
    loss_span: LossSpan = "box",
    noise_std: float = 1e-3,
    seed: int = 0,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
) -> dict[str, Tensor]:
    """The saliency signals in ``needs`` of every completion, float32 of shape (B, T), at the present weights.

    ``region`` is ``answer_regions``'s. The answer is read from the positions that predict its content: ``p`` is
    the softmax of the ``mean`` of their logits, or of the ``last`` logits before the answer, which predict its
    first token; ``joint`` is the log-likelihood of its tokens.

    * ``answer_occlusion`` (OAR-P, arXiv:2601.07408): ``KL(p || p')`` with token t replaced by ``pad_id``, its
      place and attention left as they are; with ``joint`` what the summed log-likelihood loses, at least 0. One
      forward for every token before the answer, ``batch_size`` at a time.
    * ``answer_gradient`` (OAR-G): ``|<gradient, e_t>|`` with the token's clean embedding ``e_t``; the gradient of
      ``KL(p || p~)`` (``joint``: of the mean log-likelihood's loss), at embeddings with noise of ``noise_std`` on
      the tokens before the answer. The noise depends on ``seed`` and the completion's own tokens alone. Without
      noise that KL is at its minimum and the gradient 0. In bfloat16 rounding outweighs noise of 0.001.
    * ``answer_activation`` (GRAIL, arXiv:2606.04889): ``|gradient * h|_2`` of the answer's loss
      ``-sum log p(y)``, at the position that predicts token t. ``h`` is the ``input`` embedding, or what the
      ``first``, the ``middle`` or the ``last`` layer but one puts out, as released. The loss is over the ``box``,
      its delimiters included (of those behind the content one token), as released, or over the ``content``.

    A completion without an answer, and one where ``row_B`` is False, holds 0 and costs nothing; so do tokens that
    are not before the answer, except in ``answer_activation``. Logits are divided by ``temperature``, as GRAIL
    does and OAR's snippet does not. Dropout is off; a model with gradient checkpointing keeps it. Under DDP the
    inner model is used. Where the model is sharded all processes must run equally many passes: ``num_batches`` is
    the least number for each signal (``num_saliency_batches``), and surplus ones are computed and dropped. A
    non-finite value is left in place. Raises ``ValueError`` for a setting outside its range.
    """
    _check(needs, readout, layer, loss_span, noise_std, batch_size)
    answered = (region == 1).any(-1)
    rows = int_list((answered if row_B is None else answered & row_B).nonzero()[:, 0])
    passes = _Passes(model, completions, student, region, pad_id, temperature, readout, head_context)
    signals = {name: torch.zeros(region.shape, device=region.device) for name in needs}
    with _steady(model):
        for name, values in signals.items():
            if name == "answer_occlusion":
                _in_batches(passes.occlude, values, passes.occlusions(rows), (0, -1), batch_size, num_batches)
                continue
            if name == "answer_gradient":
                run = partial(passes.lean, noise_std=noise_std, seed=seed)
            else:
                run = partial(passes.activate, layer=layer, loss_span=loss_span)
            _in_batches(run, values, rows, 0, batch_size, num_batches)
    return signals


def _in_batches(
    run: Callable[[Tensor, list[Any]], None],
    values: Tensor,
    work: list[Any],
    surplus: Any,
    batch_size: int,
    num_batches: int,
) -> None:
    batches = [work[i : i + batch_size] for i in range(0, len(work), batch_size)]
    for batch in batches:
        run(values, batch)
    dropped = torch.zeros_like(values)
    for _ in range(num_batches - len(batches) if values.numel() else 0):
        run(dropped, [surplus])


def num_saliency_batches(
    region: Int[Tensor, "B T"],
    needs: Sequence[str],
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
) -> int:
    """How many batches ``saliency`` runs for the costliest of its signals; 0 where nothing is needed or answered.

    The largest of all processes is what a sharded model needs for ``num_batches``. Occlusion runs every answered
    row once as it is and once for each token before its answer.

    >>> region = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])
    >>> num_saliency_batches(region, ["answer_occlusion"], batch_size=2)
    2
    >>> num_saliency_batches(region, ["answer_gradient"], batch_size=2)
    1
    """
    rows = (region == 1).any(-1)
    rows = rows if row_B is None else rows & row_B
    items = int(rows.sum().item()) if set(needs) & set(SALIENCY_SIGNALS) else 0
    if "answer_occlusion" in needs:
        items += int(_before(region)[rows].sum().item())
    return -(-items // batch_size)


def _check(needs: Sequence[str], readout: str, layer: str, loss_span: str, noise_std: float, batch_size: int):
    for name in needs:
        if name not in SALIENCY_SIGNALS:
            raise ValueError(f"needs: {name!r} is not a saliency; choose from {', '.join(SALIENCY_SIGNALS)}")
    for field, value, choices in (
        ("readout", readout, Readout),
        ("layer", layer, Layer),
        ("loss_span", loss_span, LossSpan),
    ):
        if value not in get_args(choices):
            raise ValueError(f"{field}: {value!r} is not one of {', '.join(get_args(choices))}")
    if not 0.0 <= noise_std < float("inf"):
        raise ValueError(f"noise_std: {noise_std} must be a finite number, 0 or more")
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size}; give 1 or more")


def _before(region: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the tokens before the answer, of rows that have one."""
    seen_after = (region == 1).flip(-1).cumsum(-1).flip(-1) > 0
    return (region == 0) & seen_after


def _box(region: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the answer, on the delimiters before it, and on one token behind it."""
    content = region == 1
    seen_after = content.flip(-1).cumsum(-1).flip(-1) > 0
    behind = torch.zeros_like(content)
    behind[:, 1:] = content.narrow(-1, 0, max(content.shape[-1] - 1, 0))
    return (region > 0) & (seen_after | behind)


class _Passes:
    """The forwards and backwards of one call; each of its routines runs one batch and fills in its values."""

    def __init__(
        self,
        model: nn.Module,
        completions: Completions,
        student: Prompts,
        region: Tensor,
        pad_id: int,
        temperature: float,
        readout: str,
        head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None,
    ) -> None:
        # DDP's own forward would get its reducer ready for a backward that never comes.
        replicated = isinstance(model, nn.parallel.DistributedDataParallel)
        self.model: nn.Module = cast(Any, model).module if replicated else model
        self.completions, self.student, self.region = completions, student, region
        self.pad_id, self.temperature, self.readout = pad_id, temperature, readout
        self.head_context = head_context or nullcontext
        self.content, self.before = region == 1, _before(region)
        self.clean: Tensor | None = None

    # --- passes

    def occlusions(self, rows: list[int]) -> list[tuple[int, int]]:
        """(row, token) for every forward, row by row; token -1 is the row as it is, and comes first."""
        return [(row, token) for row in rows for token in (-1, *int_list(self.before[row].nonzero()[:, 0]))]

    def occlude(self, values: Tensor, batch: list[tuple[int, int]]) -> None:
        rows = [row for row, _ in batch]
        width = self._width(self.content[rows])
        ids = self.completions.ids[rows, :width].clone()
        for n, (_, token) in enumerate(batch):
            if token >= 0:
                ids[n, token] = self.pad_id
        hidden = self._hidden(rows, ids)
        with self._head() as head:
            for n, (row, token) in enumerate(batch):
                if not self.content[row].any():
                    continue
                answer = self._answer(hidden[n], row, head)
                if token < 0:
                    self.clean = answer
                else:
                    assert self.clean is not None
                    values[row, token] = self._change(self.clean, answer)

    def lean(self, values: Tensor, rows: list[int], *, noise_std: float, seed: int) -> None:
        width = self._width(self.content[rows])
        ids, before = self.completions.ids[rows, :width], self.before[rows, :width]
        clean: list[Tensor | None] = []
        hidden = self._hidden(rows, ids)
        with self._head() as head:
            for n, row in enumerate(rows):
                known = self.readout != "joint" and self.content[row].any()
                clean.append(self._answer(hidden[n].float(), row, head).exp() if known else None)

        def loss(hidden_WD: Tensor, row: int, n: int, head: Head) -> Tensor:
            answer, p = self._answer(hidden_WD, row, head), clean[n]
            # What the divergence has besides does not depend on the noisy embeddings.
            return -answer.mean() if p is None else -(p * answer).sum()

        def noise(embedding_NSD: Tensor) -> Tensor:
            drawn = torch.zeros_like(embedding_NSD)
            for n, row in enumerate(rows):
                size = (int(before[n].sum().item()), embedding_NSD.shape[-1])
                here = torch.randn(size, generator=self._generator(row, seed)) * noise_std
                drawn[n, -width:][before[n]] = here.to(drawn)
            return drawn

        embedding: Any = unwrapped(self.model)
        gradient, clean_NSD = self._gradient(
            rows, ids, embedding.get_input_embeddings(), self.content, loss, noise
        )
        product = (gradient.float() * clean_NSD.float()).sum(-1)[:, -width:].abs()
        values[rows, :width] = torch.where(before, product, 0.0)

    def activate(self, values: Tensor, rows: list[int], *, layer: str, loss_span: str) -> None:
        span = _box(self.region) if loss_span == "box" else self.content
        width = self._width(span[rows])
        ids = self.completions.ids[rows, :width]

        def loss(hidden_WD: Tensor, row: int, n: int, head: Head) -> Tensor:
            return -self._logprobs(hidden_WD, row, span, head).sum()

        module = _layer_of(self.model, layer)
        gradient, activation_NSD = self._gradient(rows, ids, module, span, loss)
        length = (gradient.float() * activation_NSD.float()).square().sum(-1, keepdim=True).sqrt()
        here = predicting_positions(length, width)[..., 0]
        values[rows, :width] = torch.where(self.completions.mask[rows, :width], here, 0.0)

    # --- what they are made of

    def _gradient(
        self,
        rows: list[int],
        ids: Tensor,
        module: nn.Module,
        span: Tensor,
        loss: Callable[[Tensor, int, int, Head], Tensor],
        noise: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradient of every row's loss to what ``module`` puts out, and that output without its noise."""
        seen: list[tuple[Tensor, Tensor]] = []

        def swap(module: nn.Module, args: Any, output: Any) -> Any:
            whole = cast(tuple[Any, ...], output) if isinstance(output, tuple) else None
            clean = cast(Tensor, output if whole is None else whole[0]).detach()
            leaf = (clean if noise is None else clean + noise(clean)).requires_grad_()
            seen.append((clean, leaf))
            # A leaf: nothing below it is differentiated, and no parameter gets a gradient.
            return leaf if whole is None else (leaf, *whole[1:])

        handle = module.register_forward_hook(swap)
        try:
            with torch.enable_grad():
                hidden = self._hidden(rows, ids)
        finally:
            handle.remove()
        pull = torch.zeros_like(hidden)
        # One row's logits at a time; then one backward for all of them.
        with self._head() as head, torch.enable_grad():
            for n, row in enumerate(rows):
                if span[row].any():
                    # In float32: the head's fast product of bfloat16 states is not one to differentiate.
                    state = hidden[n].detach().float().requires_grad_()
                    (pull[n],) = torch.autograd.grad(loss(state, row, n, head), state)
        clean, leaf = seen[-1]
        (gradient,) = torch.autograd.grad(hidden, leaf, grad_outputs=pull)
        return gradient, clean

    def _answer(self, hidden_WD: Tensor, row: int, head: Head) -> Tensor:
        """The row's answer: log-probabilities of its tokens (``joint``), else of the vocabulary."""
        if self.readout == "joint":
            return self._logprobs(hidden_WD, row, self.content, head)
        place = self.content[row, : len(hidden_WD)].nonzero()[:, 0]
        states = hidden_WD[place[:1] if self.readout == "last" else place]
        return head.logits(states).mean(0).log_softmax(-1)

    def _logprobs(self, hidden_WD: Tensor, row: int, span: Tensor, head: Head) -> Tensor:
        here = span[row, : len(hidden_WD)]
        token = self.completions.ids[row, : len(hidden_WD)][here]
        return head.logits(hidden_WD[here]).log_softmax(-1).gather(-1, token[:, None])[:, 0]

    def _change(self, clean: Tensor, answer: Tensor) -> Tensor:
        if self.readout == "joint":
            return (clean - answer).sum().clamp(min=0)
        # Where both are impossible the difference is -inf - -inf.
        difference = torch.where(clean == -torch.inf, 0.0, clean - answer)
        return (clean.exp() * difference).sum().clamp(min=0)

    def _hidden(self, rows: list[int], ids: Tensor) -> Float[Tensor, "N W D"]:
        """The states that predict the completions' first tokens, as many as ``ids`` has."""
        attention = self.student.attention_BP[rows]
        begin = int(attention.any(0).nonzero().min().item()) if attention.any() else 0
        width = ids.shape[1]
        return hidden_states(
            self.model,
            torch.cat([self.student.ids_BP[rows][:, begin:], ids], 1),
            torch.cat([attention[:, begin:], self.completions.attention[rows, :width]], 1),
            num_tokens=width,
        )

    @staticmethod
    def _width(span: Bool[Tensor, "N T"]) -> int:
        # Columns after the last token of the answer do not bear on it.
        return int(span.any(0).nonzero().max().item()) + 1 if span.any() else 1

    @contextmanager
    def _head(self) -> Generator[Head]:
        with self.head_context(self.model):
            yield head_of(self.model, self.temperature)

    def _generator(self, row: int, seed: int) -> torch.Generator:
        """Drawn from the seed and the row's own tokens, whatever stands beside it and however it is padded."""
        prompt = int_list(self.student.ids_BP[row][self.student.attention_BP[row] > 0])
        completion = int_list(self.completions.ids[row][self.completions.attention[row] > 0])
        digest = hashlib.sha256(repr((seed, prompt, completion)).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _layer_of(model: nn.Module, layer: str) -> nn.Module:
    """The module whose output GRAIL's code calls ``hidden_states[k]``: k = 0, 1, L // 2, or L - 1 of L layers."""
    inner: Any = unwrapped(model)
    if layer == "input":
        return inner.get_input_embeddings()
    layers = _decoder_layers(model)
    if layers is None:
        raise ValueError(
            f"layer: {layer!r} cannot be found, for {type(inner).__name__} has no list of `num_hidden_layers` "
            "layers; use 'input'"
        )
    number = {"first": 1, "middle": len(layers) // 2, "last": len(layers) - 1}[layer]
    return layers[number - 1] if number > 0 else inner.get_input_embeddings()


def _decoder_layers(model: nn.Module) -> nn.ModuleList | None:
    config: Any = unwrapped(model).config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for module in backbone_of(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return module
    return None


@contextmanager
def _steady(model: nn.Module) -> Generator[None]:
    """Dropout off; gradient checkpointing, which transformers tie to the training mode, goes on without it."""
    layers = _decoder_layers(model) if any(_checkpoints(module) for module in model.modules()) else None
    forwards = {layer: vars(layer).get("forward") for layer in layers or ()}
    try:
        for layer in forwards:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        with evaluating(model):
            yield
    finally:
        for layer, forward in forwards.items():
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def _checkpoints(module: nn.Module) -> bool:
    return getattr(module, "gradient_checkpointing", False) is True
