"""Sampling by a CUDA graph: a token of a small model costs its kernels alone, not some thousand calls of Python.

Once imported, every Llama-like model of Hugging Face samples this way at temperature 1. On an H100 with twelve
processes SmolLM2's ``generate`` took 70 ms a token.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import torch
from transformers import LlamaForCausalLM, StaticCache

from benchmarks.forms import reward

__all__ = ["Sampler", "reward", "sample"]

_ROOM = 32
"""Prompts are padded to a multiple of it, so that few graphs are captured."""
_LOOK = 16
"""Tokens between two looks at whether every row has ended."""


class Sampler:
    """A step of decoding whose buffers stay where they are; captured once on a GPU, called as it is elsewhere."""

    def __init__(self, model: Any, batch: int, prompt: int, new: int, greedy: bool) -> None:
        self.model, self.prompt, self.greedy = model, prompt, greedy
        self.length = prompt + new
        self.cache = StaticCache(config=model.config, max_cache_len=self.length)
        device = model.device
        self.mask = torch.zeros(batch, 1, 1, self.length, dtype=torch.bool, device=device)
        self.position = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.ids = torch.zeros(batch, self.length, dtype=torch.long, device=device)
        self.graph: Any = None

    def draw(self, logits: Any) -> None:
        """The next token of each row, into its slot; an exponential race draws as the softmax says."""
        scores = logits[:, -1].float()
        if not self.greedy:
            scores = scores.softmax(-1) / torch.empty_like(scores).exponential_()
        self.token.copy_(scores.argmax(-1, keepdim=True))
        self.ids.index_copy_(1, self.slot, self.token)

    def step(self) -> None:
        """Read the token in the slot and draw the one after it."""
        self.mask.index_fill_(3, self.slot, True)
        out = self.model(
            input_ids=self.token,
            attention_mask=self.mask,
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.slot += 1
        self.position += 1
        self.draw(out.logits)

    def read(self, ids: Any, attended: Any) -> None:
        """Read the prompts, which are padded on the left, and draw each one's first token."""
        self.cache.reset()
        seen = attended.bool()
        causal = torch.ones(self.prompt, self.length, dtype=torch.bool, device=ids.device).tril()
        keys = torch.nn.functional.pad(seen, (0, self.length - self.prompt))
        itself = torch.eye(self.prompt, self.length, dtype=torch.bool, device=ids.device)
        mask = (causal & keys[:, None]) | itself  # a row of padding that sees nothing would be NaN
        positions = (attended.long().cumsum(-1) - 1).clamp(min=0)
        out = self.model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.ids.zero_()[:, : self.prompt] = ids
        self.mask.zero_()[:, 0, 0, : self.prompt] = seen
        self.position.copy_(positions[:, -1:] + 1)
        self.slot.fill_(self.prompt)
        self.draw(out.logits)

    def capture(self, ids: Any, attended: Any) -> None:
        """Record the step; what it does to the buffers meanwhile is undone by the next ``read``."""
        self.read(ids, attended)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()


@torch.no_grad()
def sample(
    model: Any, input_ids: Any = None, attention_mask: Any = None, generation_config: Any = None, **more: Any
) -> Any:
    """The prompts with what the model writes after them, in place of ``generate``; rows go on after their end."""
    config = generation_config
    greedy = not config.do_sample
    if not greedy and (config.temperature, config.top_p or 1.0, config.top_k or 0) != (1.0, 1.0, 0):
        raise ValueError(f"sampling by a graph is at temperature 1 alone, not by {config}")
    batch, width = input_ids.shape
    room = -width % _ROOM
    ids = torch.nn.functional.pad(input_ids, (room, 0))
    attended = torch.nn.functional.pad(attention_mask, (room, 0))
    new = config.max_new_tokens
    samplers = model.__dict__.setdefault("samplers", {})
    key = (batch, width + room, new, greedy)
    if key not in samplers:
        samplers[key] = Sampler(model, batch, width + room, new, greedy)
        if ids.is_cuda:
            samplers[key].capture(ids, attended)
    sampler = samplers[key]
    sampler.read(ids, attended)
    ends = torch.tensor(_end_tokens(config), device=ids.device)
    ended = torch.zeros(batch, dtype=torch.bool, device=ids.device)
    written = 1
    while written < new:
        for _ in range(min(_LOOK, new - written)):
            sampler.graph.replay() if sampler.graph is not None else sampler.step()
            written += 1
        ended = torch.isin(sampler.ids[:, width + room : width + room + written], ends).any(-1)
        if ended.all():
            break
    return sampler.ids[:, room : width + room + written].clone()


def _end_tokens(config: Any) -> list[int]:
    ends = config.eos_token_id
    return list(ends) if isinstance(ends, (list, tuple)) else [ends]


LlamaForCausalLM.generate = sample  # pyright: ignore[reportAttributeAccessIssue]
