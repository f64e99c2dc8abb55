"""The protocol of an engine that the credit step runs in, and the forward passes that it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.records import Record
from gear_rl.rollouts import Completions, Prompts
from gear_rl.tensor.lists import int_list
from gear_rl.types import Signal

T = TypeVar("T")


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a transformers tokenizer that the credit step uses."""

    pad_token_id: int | None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some token ids."""
        ...

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> Mapping[str, Any]:
        """``input_ids`` of a text; with ``split_special_tokens`` no control token comes out of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRequest:
    """Which signals an engine should compute by forward passes, and from what."""

    needs: Sequence[Signal]
    """Signals that need a forward pass."""
    step: int
    completions: Completions
    student: Prompts
    teachers: Sequence[Prompts]
    """The teacher's prompts, and with a contrast those with the wrong context; empty without a teacher."""
    scored_B: Bool[Tensor, " B"]
    """True on the completions whose signals will be read; the others hold 0."""
    skip_first_tokens: int = 0
    """Tokens at the start of every turn where the teacher is taken to agree."""
    inputs: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What the signals read besides (``PassSignal.reads``), by name; one entry per completion."""


@runtime_checkable
class Engine(Protocol):
    """One process of a training engine, as the credit step sees it.

    The credit step calls the collective methods (``forward``, ``gather``, ``gather_objects``) equally often and
    in the same order on every process. One process is enough for methods that need no signal:

    >>> class Alone(OneProcess):
    ...     tokenizer, max_positions, record_sink, state = None, None, None, {}
    ...     def render(self, prompts, chat_template_kwargs):
    ...         return []
    ...     def forward(self, request):
    ...         return {}
    ...     def log(self, metrics):
    ...         print(metrics)
    >>> isinstance(Alone(), Engine)
    True
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_positions(self) -> int | None:
        """The places of its model, None if unknown: a context that does not fit is not shown."""
        ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def state(self) -> dict[str, Any]:
        """What the method remembers (``traits.Stateful``): empty at first, and part of a checkpoint."""
        ...

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        """Prompts (text or messages) as token ids, through the chat template that the student's went through.

        ``chat_template_kwargs`` replaces the student's arguments of the template; None keeps them.
        """
        ...

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        """Run the passes where the weights are; the signals of ``request.needs`` by name, each (B, T), detached.

        Values may be non-finite: the credit step deals with them. Raises ``ValueError`` for a signal that it
        cannot compute.
        """
        ...

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all processes one after the other (first dimension), in the order of their ranks."""
        ...

    def gather_objects(self, items: list[T]) -> list[T]:
        """The items of all processes one after the other, in the order of their ranks."""
        ...

    def log(self, metrics: Mapping[str, float]) -> None:
        """Put metrics of this step into the engine's own tracker; the numbers are the same on every process."""
        ...

    @property
    def record_sink(self) -> Callable[[list[Record]], object] | None:
        """Where the records of all processes' rollouts go (called on rank 0 only); None to make none.

        All processes agree on whether it is None.
        """
        ...


class OneProcess:
    """The members of an engine that has no other process to gather from."""

    rank, world_size = 0, 1

    def gather(self, x: Tensor) -> Tensor:
        return x

    def gather_objects(self, items: list[T]) -> list[T]:
        return items


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which control tokens of the chat are plain text; none of an empty text."""
    if not text:
        return []
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    return cast(list[int], encoded["input_ids"])


def messages_of(ids: Tensor, mask: Tensor, attention: Tensor, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """A completion as messages: a run of sampled tokens is the assistant's, any other a tool's."""
    kept, messages = attention.bool(), list[dict[str, Any]]()
    tokens = zip(int_list(ids[kept]), int_list(mask[kept]), strict=True)
    for sampled, run in groupby(tokens, key=itemgetter(1)):
        text = tokenizer.decode([token for token, _ in run], skip_special_tokens=True)
        messages.append({"role": "assistant" if sampled else "tool", "content": text})
    return messages


def token_texts(
    tokenizer: Tokenizer, ids: Int[Tensor, "B T"], *, skip_special_tokens: bool = False
) -> list[list[str]]:
    """The text of every token of every row: the first of a row decoded alone, any other behind another token.

    Tokenizers with SentencePiece's decoder drop the space before what they decode.
    """
    first: dict[int, str] = {}
    behind: dict[int, str] = {}
    for token in {*int_list(ids.flatten())}:
        alone, twice = (
            tokenizer.decode([token] * times, skip_special_tokens=skip_special_tokens) for times in (1, 2)
        )
        dropped = twice.removeprefix(alone).removesuffix(alone)
        first[token] = alone
        behind[token] = dropped + alone if dropped.isspace() else alone
    return [[(behind if place else first)[token] for place, token in enumerate(int_list(row))] for row in ids]


def own_texts(
    tokenizer: Tokenizer,
    ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    skip_special_tokens: bool = True,
) -> list[list[str]]:
    """The part of its completion's text that each token adds; empty outside the mask.

    A character that several tokens make is the first one's.
    """
    rows = list[list[str]]()
    for own_ids, own in zip(ids, mask, strict=True):
        sampled, texts, read = int_list(own_ids[own]), [""] * len(own), 0
        text = tokenizer.decode(sampled, skip_special_tokens=skip_special_tokens)
        places = token_places(tokenizer, sampled, skip_special_tokens=skip_special_tokens)
        for t, place in zip(int_list(own.nonzero()[:, 0]), places, strict=True):
            texts[t], read = text[max(read, place.start) : place.stop], place.stop
        rows.append(texts)
    return rows


def token_places(
    tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True
) -> list[range]:
    """The characters of each token in the text; that without special tokens is what rewards see.

    Tokens that make one character share it. Where the texts of the tokens are not the text, each is decoded
    behind the one before it.
    """

    def decode_part(begin: int, end: int) -> str:
        return tokenizer.decode(ids[begin:end], skip_special_tokens=skip_special_tokens)

    row = torch.tensor([ids], dtype=torch.int64)
    [texts] = token_texts(tokenizer, row, skip_special_tokens=skip_special_tokens)
    if "".join(texts) == decode_part(0, len(ids)):
        ends = [*accumulate(map(len, texts), initial=0)]
        return [range(*pair) for pair in pairwise(ends)]
    places, length, before, read = list[range](), 0, 0, 0
    for t in range(1, len(ids) + 1):
        known, text = decode_part(before, read), decode_part(before, t)
        if text.endswith("\ufffd") and t < len(ids) and t - read < 4:  # bytes of a character
            continue
        added = len(text) - len(known)
        places += [range(length, length + added)] * (t - read)
        length += added
        before, read = read if added else before, t
    return places
