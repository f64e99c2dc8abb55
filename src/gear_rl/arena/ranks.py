"""How well signals rank the wrong tokens of completions: what the checks of several tasks share.

Knows no task and no method.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gear_rl.arena.evaluate import prompt_text
from gear_rl.arena.faults import auc
from gear_rl.arena.task import FactTable, Reference
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.signals.score import Completions, Prompts, left_padded, score
from gear_rl.types import TokenSignals

SIGNALS = ("divergence", "log_ratio", "entropy", "shuffled_divergence", "shuffled_log_ratio")
"""What is ranked; a log-ratio with its sign turned, since the teacher thinks little of a wrong token."""
NEEDS = ("divergence", "student_logprob", "teacher_logprob", "student_entropy")
_TEACHERS: tuple[Reference, ...] = ("trace", "shuffled")
Rows = list[dict[str, Any]]
Numbered = tuple[int, list[int]]
"""Which problem, and the token ids of a completion of it."""


def kept_tokens(completions: Sequence[Numbered], device: Any = "cpu") -> Tensor:
    """Which places of the completions, side by side, hold a token.

    >>> kept_tokens([(0, [5, 6]), (1, [7])])
    tensor([[ True,  True],
            [ True, False]])
    """
    width = max(len(ids) for _, ids in completions)
    return torch.tensor([[t < len(ids) for t in range(width)] for _, ids in completions], device=device)


def scored(
    model: Any,
    tokenizer: Any,
    rows: Rows,
    completions: Sequence[Numbered],
    kept: Tensor,
    needs: Sequence[str] = NEEDS,
) -> TokenSignals:
    """Signals at every token of the completions, whose problems are those of `rows`; `kept` says which are
    tokens."""
    padded = [ids + [tokenizer.pad_token_id] * (kept.shape[1] - len(ids)) for _, ids in completions]

    def prompts(teacher: bool) -> Prompts:
        texts = [prompt_text(tokenizer, rows[i], teacher=teacher) for i, _ in completions]
        ids = [TeacherPrompt(tuple(tokenizer(text)["input_ids"])) for text in texts]
        return left_padded(ids, tokenizer.pad_token_id, model.device)

    return score(
        model,
        Completions(ids=torch.tensor(padded, device=model.device), attention=kept.long(), mask=kept),
        prompts(teacher=False),
        prompts(teacher=True),
        needs=needs,
        batch_size=32,
    )


def ranked_signals(
    model: Any, tokenizer: Any, rows: Mapping[Reference, Rows], completions: Sequence[Numbered], kept: Tensor
) -> dict[str, Tensor]:
    """Each of `SIGNALS` at every token of the completions; `rows` are the problems by what the teacher sees,
    "trace" and "shuffled"."""
    informed, blind = (scored(model, tokenizer, rows[seen], completions, kept) for seen in _TEACHERS)
    return {
        "divergence": informed.get("divergence"),
        "log_ratio": _log_ratio(informed),
        "entropy": informed.get("student_entropy"),
        "shuffled_divergence": blind.get("divergence"),
        "shuffled_log_ratio": _log_ratio(blind),
    }


def _log_ratio(signals: TokenSignals) -> Tensor:
    """How much less the teacher thinks of the sampled token: the log-ratio with its sign turned."""
    return signals.get("student_logprob") - signals.get("teacher_logprob")


def ranks_of(values: Mapping[str, Tensor], kept: Tensor, choice: Tensor, wrong: Tensor) -> dict[str, Any]:
    """How well each signal ranks the wrong choices: `auc` against all other tokens that are kept, `auc_choices`
    against right choices; `n` is how many there are.

    >>> kept = torch.tensor([[True, True, True]])
    >>> choice, wrong = torch.tensor([[False, True, True]]), torch.tensor([[False, True, False]])
    >>> ranks_of({"entropy": torch.tensor([[3.0, 2.0, 1.0]])}, kept, choice, wrong)
    {'n': 1, 'auc': {'entropy': 0.5}, 'auc_choices': {'entropy': 1.0}}
    """

    def against(others: Tensor) -> dict[str, float]:
        return {name: auc(value[wrong].tolist(), value[others].tolist()) for name, value in values.items()}

    return {"n": int(wrong.sum()), "auc": against(kept & ~wrong), "auc_choices": against(choice & ~wrong)}


def auc_table(task: str, facts: Mapping[str, Any], kinds: Sequence[str]) -> FactTable:
    """A row for each tier, kind of error, and what the wrong codes are compared with."""
    return FactTable(
        title=f"{task}: AUC of wrong codes against all other tokens and against right codes; 0.5 is chance",
        columns=tuple(name.replace("_", " ") for name in ("tier", "errors", "n", "against", *SIGNALS)),
        rows=[
            (
                tier,
                kind.replace("_", " "),
                str(row[kind]["n"]),
                name,
                *(f"{row[kind][key][s]:.3f}" for s in SIGNALS),
            )
            for tier, row in facts.items()
            for kind in kinds
            for key, name in (("auc", "all tokens"), ("auc_choices", "right codes"))
        ],
    )
