"""The gradient of every token's log-probability through TRL's real loss, and what it keeps of the weights.

``PYTHONPATH=src:tests python -m engines.loss_grid`` prints the table of ``docs/engines.md``.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.trl.config import LOSS_TYPES, check_loss

LEVELS = ("token", "sequence")
GRID = [(loss_type, level) for loss_type in LOSS_TYPES for level in LEVELS]
NAN = float("nan")
WEIGHT = torch.tensor(
    [
        [0.25, 1.75, 1.0, 1.0, 0.5, 1.5, 1.0],
        [0.25, 1.75, 1.0, 1.0, 1.75, 0.25, 1.0],
        [1.75, 1.0, 0.25, NAN, NAN, NAN, NAN],
        [1.75, 0.25, 1.0, 1.0, NAN, 0.0, 2.0],
        [0.25, 1.75, 1.0, 1.0, 0.5, 1.5, 1.0],
    ]
)
"""Mean 1 in every completion; NaN is padding, and in the fourth completion the answer of a tool."""
MASK = ~WEIGHT.isnan()
ADVANTAGE_B = torch.tensor([0.7, -1.3, 1.1, -0.4, -0.9])
LOG_RATIO = torch.tensor(
    [
        [0.1, -0.1, 0.4, -0.4, 0.05, -0.05, 0.02],
        [0.1, -0.1, 0.4, -0.4, 0.05, -0.05, 0.02],
        [-0.1, 0.2, 0.05, 0.0, 0.0, 0.0, 0.0],
        [0.02, 0.1, 0.4, -0.4, 0.9, -0.05, -0.1],
        [-0.12, -0.11, -0.1, -0.14, -0.13, -0.1, -0.12],
    ]
)
"""Log-probability now less that at sampling: some tokens lie beyond the clip of 0.2, on either side, and the
last completion has become less likely as a whole."""
OPTIONS = {"cispo": {"epsilon_high": 5.0}}
"""With TRL's default of 0.2 every ratio of CISPO would be cut to 0.2, and no ratio could be seen."""


def trainer_of(model: str, folder: Path, loss_type: str, level: str, **changes: Any) -> GEARTrainer:
    """A trainer with that loss. Its method is ``Uniform``, which every pair takes, so all can be measured."""
    options = {"loss_type": loss_type, "importance_sampling_level": level, **OPTIONS.get(loss_type, {})}
    args = GEARConfig(**tiny.settings(folder, **options | changes))
    trainer = GEARTrainer(model, tiny.vowels, args, tiny.rows(), credit=Uniform())
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def gradient(
    trainer: GEARTrainer,
    advantage: Tensor,
    log_ratio: Tensor | None = None,
    mask: Tensor = MASK,
    **more: Tensor,
) -> Tensor:
    """d loss / d log pi of each token, (B, T), by a backward pass through TRL's ``_compute_loss``.

    Without ``log_ratio`` TRL is given no old log-probabilities: all ratios are 1.
    """
    rows, width = mask.shape
    ids = torch.arange(20, 20 + rows * width).reshape(rows, width)
    attention = mask | (mask.flip(-1).cumsum(-1).flip(-1) > 0)  # a tool's answer is attended, padding is not
    inputs = {
        "prompt_ids": torch.arange(30, 33).expand(rows, 3),
        "prompt_mask": torch.ones(rows, 3, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": attention.long(),
        "tool_mask": mask.long(),
        "advantages": advantage,
        "num_items_in_batch": mask.sum(),
        **more,
    }
    original, leaves = GEARTrainer._get_per_token_logps_and_entropies, []

    def with_leaf(*args, **options):
        logprob, *rest = original(trainer, *args, **options)
        leaves.append(logprob.detach().requires_grad_())
        # TRL reads both after this call.
        inputs["ref_per_token_logps"] = logprob.detach() - 0.3
        if log_ratio is not None:
            inputs["old_per_token_logps"] = logprob.detach() - log_ratio
        return leaves[0], *rest

    trainer._get_per_token_logps_and_entropies = with_leaf
    try:
        trainer._compute_loss(trainer.model, inputs).backward()
    finally:
        del trainer._get_per_token_logps_and_entropies
    [leaf] = leaves
    assert leaf.grad is not None
    return leaf.grad


def gradients(trainer: GEARTrainer, log_ratio: Tensor | None = None, **more: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's gradient with ``WEIGHT`` and with weight 1, both less that without any advantage (KL)."""
    advantage = torch.where(MASK, ADVANTAGE_B[:, None], 0.0)
    weighted, plain, none = (
        gradient(trainer, given, log_ratio, **more)
        for given in (advantage * WEIGHT.nan_to_num(), advantage, advantage * 0.0)
    )
    return weighted - none, plain - none


def spread(weighted: Tensor, plain: Tensor) -> float:
    """How unequal the weights are that reach the gradient: ``(max - min) / mean`` inside a completion, mean.

    A token's is its gradient with the weights over that without. Tokens that the loss clips do not count. That of
    ``WEIGHT`` is 1.5 in four completions and 2.0 in one.
    """
    found = []
    for row, reference in zip(weighted, plain, strict=True):
        kept = reference != 0
        if kept.any():
            each = row[kept] / reference[kept]
            found.append((each.max() - each.min()) / each.mean())
    return torch.stack(found).mean().item()


def accepted(loss_type: str, level: str) -> bool:
    """Whether the engine takes the pair for a method that gives tokens credit of their own."""
    try:
        check_loss(Gear(), loss_type, level)
    except ValueError:
        return False
    return True


def table() -> str:
    """Markdown: every pair, whether it is taken, and the spread that was measured with it."""
    lines = [
        "| `loss_type` | level | methods but `uniform` | ratio 1 | other ratios |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny.save(folder / "model")
        for loss_type, level in GRID:
            trainer = trainer_of(model, folder, loss_type, level)
            found = " | ".join(f"{spread(*gradients(trainer, given)):.2f}" for given in (None, LOG_RATIO))
            verdict = "accepted" if accepted(loss_type, level) else "refused"
            lines.append(f"| `{loss_type}` | {level} | {verdict} | {found} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
