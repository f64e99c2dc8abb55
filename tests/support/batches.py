"""Small batches of rollouts, and an engine that runs them with a model in this process."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gear_rl.engine import ForwardRequest, OneProcess
from gear_rl.model.teacher import CopyTeacher, Teacher
from gear_rl.rollouts import Completions, Prompts, RolloutBatch
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import names_of


def batch_of(ids: torch.Tensor, mask: torch.Tensor | None = None, **changes: Any) -> RolloutBatch:
    """Rollouts with these completions; all that is not given is empty, or one group of which each half
    succeeded."""
    rows = len(ids)
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    rewards = [float(b % 2) for b in range(rows)]
    settings: dict[str, Any] = {
        "step": 0,
        "completions": Completions(ids=ids, attention=torch.ones_like(ids), mask=mask),
        "student": Prompts(ids_BP=torch.ones(rows, 2).long(), attention_BP=torch.ones(rows, 2).long()),
        "prompts": [""] * rows,
        "rows": [{}] * rows,
        "messages": [""] * rows,
        "advantage_B": torch.tensor(rewards) - sum(rewards) / max(rows, 1),
        "rewards": rewards,
        "rewards_BR": torch.tensor(rewards)[:, None],
        "group": [0] * rows,
        "first": 0,
        "num_rollouts": rows,
    }
    return RolloutBatch(**{**settings, **changes})


def written(tokenizer: Any, texts: Sequence[str], **changes: Any) -> RolloutBatch:
    """Rollouts with these texts as completions, padded on the right."""
    rows = [tokenizer(text)["input_ids"] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    completions = Completions(ids=ids, attention=mask.long(), mask=mask)
    return batch_of(ids, mask, **{"completions": completions, "messages": [*texts], **changes})


class PlainEngine(OneProcess):
    """An engine of one process: a model, a tokenizer, and lists for what is logged and recorded."""

    max_positions = None

    def __init__(self, tokenizer: Any, model: Any = None) -> None:
        self.state = dict[str, Any]()
        self.tokenizer, self.logged, self.records = tokenizer, dict[str, float](), list[Any]()
        if model is not None:
            self.passes = ModelPasses(
                model=model,
                pad_id=tokenizer.pad_token_id,
                teacher=Teacher(),
                reference=CopyTeacher(model),
            )

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        options = {"add_generation_prompt": True, "return_dict": False, **(chat_template_kwargs or {})}
        return [self.tokenizer.apply_chat_template(prompt, **options) for prompt in prompts]

    def forward(self, request: ForwardRequest) -> dict[str, torch.Tensor]:
        return self.passes.run(request)

    def log(self, metrics: Mapping[str, float]) -> None:
        self.logged |= metrics

    def record_sink(self, records: list[Any]) -> None:
        self.records += records


class Letters:
    """A tokenizer whose every id is a letter."""

    pad_token_id, eos_token_id = 0, 9
    all_special_tokens = ()
    added_tokens_decoder = {}  # noqa: RUF012

    def decode(self, token_ids, **_):
        return "".join(chr(96 + int(i)) for i in token_ids)

    def __call__(self, text, **_):
        return {"input_ids": [ord(letter) - 96 for letter in text]}


class PlacesEngine(PlainEngine):
    """An engine whose passes give numbers that depend on the places of the tokens alone."""

    def render(self, prompts, chat_template_kwargs):
        return [[1, 2] for _ in prompts]

    def forward(self, request):
        mask, draw = request.completions.mask, torch.Generator().manual_seed(0)
        return {
            name: torch.where(mask & request.scored_B[:, None], torch.rand(mask.shape, generator=draw), 0.0)
            for name in names_of(request.needs)
        }
