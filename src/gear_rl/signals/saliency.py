"""What the student's own answer depends on: tokens replaced by padding, and gradients to the model's inputs.

Each token before the answer is measured by what it did to the answer, which is read from the positions that
predict its content (``signals.answers``). ``p`` is the softmax of the mean of their logits. Logits are divided by
the temperature, as GRAIL does and OAR's snippet does not. Dropout is off; gradients are of activations only, and
no parameter gets one.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from gear_rl.engine import ForwardRequest
from gear_rl.model.forwards import (
    backbone_of,
    evaluating,
    head_of,
    hidden_states,
    text_config,
    unwrap_model,
)
from gear_rl.rollouts import trained_width
from gear_rl.signals.answers import AnswerRegion
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.logits import Head, predicting_positions


@dataclass(frozen=True)
class _Saliency(PassSignal):
    """A completion without an answer, and one that is not scored, holds 0 and costs nothing."""

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (AnswerRegion(),)

    @torch.no_grad()
    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        answers = _Answers(passes, request)
        answered = answers.content.any(-1) & request.scored_B
        work = self._work(answers, int_list(answered.nonzero()[:, 0]))
        values = torch.zeros(answers.region.shape, device=answers.region.device)
        starts = range(0, len(work), passes.batch_size)
        surplus = passes.largest(len(starts)) - len(starts)
        with _without_dropout(passes.model):
            for start in starts:
                self._fill(answers, values, work[start : start + passes.batch_size])
            for _ in range(surplus if values.numel() else 0):
                self._fill(answers, torch.zeros_like(values), self._work(answers, [0])[:1])
        return values

    def _work(self, answers: "_Answers", rows: list[int]) -> list[Any]:
        """What to run for these rows; a batch takes ``batch_size`` of them."""
        return rows

    @abstractmethod
    def _fill(self, answers: "_Answers", values: Tensor, batch: list[Any]) -> None:
        """Write the values of one batch of that work."""


@dataclass(frozen=True)
class AnswerOcclusion(_Saliency):
    """How far the answer moves when a token is replaced by padding, nats (OAR-P, arXiv:2601.07408).

    ``KL(p || p')``, the token's place and attention left as they are. One forward for every token before the
    answer; 0 elsewhere.
    """

    name = "answer_occlusion"

    def _work(self, answers: "_Answers", rows: list[int]) -> list[tuple[int, int]]:
        """(row, token) for every forward, row by row; token -1 is the row as it is, and comes first."""
        before = answers.before
        return [(row, token) for row in rows for token in (-1, *int_list(before[row].nonzero()[:, 0]))]

    def _fill(self, answers: "_Answers", values: Tensor, batch: list[tuple[int, int]]) -> None:
        rows = [row for row, _ in batch]
        ids = answers.ids(rows, answers.content)  # a copy
        for n, (_, token) in enumerate(batch):
            if token >= 0:
                ids[n, token] = answers.passes.pad_id
        hidden = answers.hidden(rows, ids)
        with answers.head() as head:
            for n, (row, token) in enumerate(batch):
                if not answers.content[row].any():
                    continue
                answer = answers.read(hidden[n], row, head)
                if token < 0:
                    answers.clean = answer
                else:
                    assert answers.clean is not None
                    values[row, token] = _divergence(answers.clean, answer)


def _divergence(clean: Tensor, answer: Tensor) -> Tensor:
    # Where both are impossible the difference is -inf - -inf.
    difference = torch.where(clean == -torch.inf, 0.0, clean - answer)
    return (clean.exp() * difference).sum().clamp(min=0)


@dataclass(frozen=True)
class AnswerGradient(_Saliency):
    """How much the answer's change under noise depends on a token's embedding (OAR-G, arXiv:2601.07408).

    ``|<gradient, e_t>|`` with the token's clean embedding ``e_t``; the gradient of ``KL(p || p~)``, at embeddings
    with noise of ``noise_std`` on the tokens before the answer; 0 elsewhere. The noise depends on the seed and
    the completion's own tokens alone. Without noise that KL is at its minimum and the gradient 0. In bfloat16
    rounding outweighs noise of 0.001.
    """

    name = "answer_gradient"

    noise_std: float = 1e-3

    def _fill(self, answers: "_Answers", values: Tensor, batch: list[int]) -> None:
        ids = answers.ids(batch, answers.content)
        width = ids.shape[1]
        before = answers.before[batch, :width]
        hidden = answers.hidden(batch, ids)
        with answers.head() as head:
            clean = [answers.read(hidden[n].float(), row, head).exp() for n, row in enumerate(batch)]

        def loss(hidden_WD: Tensor, row: int, n: int, head: Head) -> Tensor:
            # What the divergence has besides does not depend on the noisy embeddings.
            return -(clean[n] * answers.read(hidden_WD, row, head)).sum()

        def noise(embedding_NSD: Tensor) -> Tensor:
            drawn = torch.zeros_like(embedding_NSD)
            for n, row in enumerate(batch):
                size = (int(before[n].sum().item()), embedding_NSD.shape[-1])
                here = torch.randn(size, generator=answers.generator(row)) * self.noise_std
                drawn[n, -width:][before[n]] = here.to(drawn)
            return drawn

        gradient, clean_NSD = answers.gradient(batch, ids, answers.content, loss, noise)
        product = (gradient.float() * clean_NSD.float()).sum(-1)[:, -width:].abs()
        values[batch, :width] = torch.where(before, product, 0.0)


@dataclass(frozen=True)
class AnswerActivation(_Saliency):
    """Length of gradient of the answer's loss * activation, where a token is predicted (GRAIL, 2606.04889).

    ``|gradient * e|_2`` of ``-sum log p(y)``, with the embedding ``e``. As released, the loss is over the answer
    and its delimiters, of those behind the content one token.
    """

    name = "answer_activation"

    def _fill(self, answers: "_Answers", values: Tensor, batch: list[int]) -> None:
        span = _box(answers.region)
        ids = answers.ids(batch, span)
        width = ids.shape[1]

        def loss(hidden_WD: Tensor, row: int, n: int, head: Head) -> Tensor:
            return -answers.logprobs(hidden_WD, row, span, head).sum()

        gradient, embedding_NSD = answers.gradient(batch, ids, span, loss)
        length = (gradient.float() * embedding_NSD.float()).square().sum(-1, keepdim=True).sqrt()
        here = predicting_positions(length, width)[..., 0]
        values[batch, :width] = torch.where(answers.completions.mask[batch, :width], here, 0.0)


def _box(region: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the answer, on the delimiters before it, and on one token behind it."""
    content = region == 1
    seen_after = content.flip(-1).cumsum(-1).flip(-1) > 0
    # What rolls over from the last column is the first token, which then has content after it anyway.
    return (region > 0) & (seen_after | content.roll(1, -1))


class _Answers:
    """The completions of a request and their answers, and how both go through the model."""

    def __init__(self, passes: ModelPasses, request: ForwardRequest) -> None:
        # DDP's own forward would get its reducer ready for a backward that never comes.
        replicated = isinstance(passes.model, nn.parallel.DistributedDataParallel)
        self.model: nn.Module = cast(Any, passes.model).module if replicated else passes.model
        self.passes, self.seed = passes, passes.seed + request.step
        self.completions, self.student = request.completions, request.student
        self.region = request.inputs["answer_region"]
        self.content = self.region == 1
        # The tokens before the answer, of rows that have one.
        self.before = (self.region == 0) & (self.content.flip(-1).cumsum(-1).flip(-1) > 0)
        self.clean: Tensor | None = None

    def ids(self, rows: list[int], span: Bool[Tensor, "B T"]) -> Int[Tensor, "N W"]:
        """The completions' ids; columns after the last token of ``span`` do not bear on the answer."""
        return self.completions.ids[rows, : trained_width(span[rows])]

    def hidden(self, rows: list[int], ids: Int[Tensor, "N W"]) -> Float[Tensor, "N W D"]:
        """The states that predict the completions' first tokens, as many as ``ids`` has."""
        prompts, width = self.student.trimmed(torch.tensor(rows)), ids.shape[1]
        ids_BS = torch.cat([prompts.ids_BP, ids], 1)
        attention_BS = torch.cat([prompts.attention_BP, self.completions.attention[rows, :width]], 1)
        return hidden_states(self.model, ids_BS, attention_BS, num_tokens=width)

    @contextmanager
    def head(self) -> Generator[Head]:
        with (self.passes.head_context or nullcontext)(self.model):
            yield head_of(self.model, self.passes.temperature)

    def read(self, hidden_WD: Tensor, row: int, head: Head) -> Tensor:
        """The row's answer, ``log p``; NaN without one."""
        states = hidden_WD[self.content[row, : len(hidden_WD)]]
        return head.logits(states).mean(0).log_softmax(-1)

    def logprobs(self, hidden_WD: Tensor, row: int, span: Tensor, head: Head) -> Tensor:
        here = span[row, : len(hidden_WD)]
        token = self.completions.ids[row, : len(hidden_WD)][here]
        return head.logits(hidden_WD[here]).log_softmax(-1).gather(-1, token[:, None])[:, 0]

    def gradient(
        self,
        rows: list[int],
        ids: Tensor,
        span: Tensor,
        loss: Callable[[Tensor, int, int, Head], Tensor],
        noise: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradient of every row's loss to the embeddings, and these without their noise."""
        seen: list[tuple[Tensor, Tensor]] = []

        def swap(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            clean = output.detach()
            leaf = (clean if noise is None else clean + noise(clean)).requires_grad_()
            seen.append((clean, leaf))
            # A leaf: nothing below it is differentiated, and no parameter gets a gradient.
            return leaf

        inner: Any = unwrap_model(self.model)
        handle = inner.get_input_embeddings().register_forward_hook(swap)
        try:
            with torch.enable_grad():
                hidden = self.hidden(rows, ids)
        finally:
            handle.remove()
        pull = torch.zeros_like(hidden)
        # One row's logits at a time; then one backward for all of them.
        with self.head() as head, torch.enable_grad():
            for n, row in enumerate(rows):
                if span[row].any():
                    # In float32: the head's fast product of bfloat16 states is not one to differentiate.
                    state = hidden[n].detach().float().requires_grad_()
                    (pull[n],) = torch.autograd.grad(loss(state, row, n, head), state)
        clean, leaf = seen[-1]
        (gradient,) = torch.autograd.grad(hidden, leaf, grad_outputs=pull)
        return gradient, clean

    def generator(self, row: int) -> torch.Generator:
        """Drawn from the seed and the row's own tokens, whatever stands beside it and however it is padded."""
        prompt = int_list(self.student.ids_BP[row][self.student.attention_BP[row] > 0])
        completion = int_list(self.completions.ids[row][self.completions.attention[row] > 0])
        digest = hashlib.sha256(repr((self.seed, prompt, completion)).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _decoder_layers(model: nn.Module) -> nn.ModuleList | None:
    count = text_config(unwrap_model(model).config).num_hidden_layers
    lists = (module for module in backbone_of(model).modules() if isinstance(module, nn.ModuleList))
    return next((layers for layers in lists if len(layers) == count), None)


@contextmanager
def _without_dropout(model: nn.Module) -> Generator[None]:
    """Dropout off; gradient checkpointing, which transformers tie to the training mode, goes on without it."""
    checkpoints = any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())
    layers = _decoder_layers(model) if checkpoints else None
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
