"""From what an engine has after a batch of rollouts to what a privileged context may be made from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.signals.contexts import Rollout
from gear_rl.signals.privileged import context_text
from gear_rl.tensor.segments import turn_ids


def rollouts_of(
    *,
    completions: Sequence[Any],
    ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    reward: Sequence[float | None],
    group: Sequence[int],
    secrets: Sequence[str | None],
    feedback: Sequence[Any] | None,
    decode: Callable[[list[int]], str],
) -> list[Rollout]:
    """One ``Rollout`` per completion. ``decode`` drops special tokens; ``completions`` are text or messages.

    Without ``feedback`` the tools' answers serve, one per line. ``ValueError`` if not every completion has one.
    """
    if feedback is not None and len(feedback) != len(completions):
        raise ValueError(
            f'log_extra("feedback", ...): {len(feedback)} values for {len(completions)} completions; log one for '
            "each, None where there is nothing to say"
        )
    rollouts: list[Rollout] = []
    for b, turn_id in enumerate(turn_ids(mask)):
        turns = [ids[b][turn_id == turn] for turn in range(int(turn_id.max()) + 1)] if len(turn_id) else []
        texts = [decode(cast(list[int], turn.tolist())).strip() for turn in turns]  # pyright: ignore[reportUnknownMemberType]
        told = context_text(feedback[b]) if feedback is not None else _answers(completions[b])
        rollouts.append(
            Rollout(
                completion=completions[b],
                text="\n".join(text for text in texts if text),
                reward=reward[b],
                group=group[b],
                secret=secrets[b],
                feedback=told,
            )
        )
    return rollouts


def _answers(completion: Any) -> str | None:
    if isinstance(completion, str):
        return None
    messages = cast(Sequence[Mapping[str, Any]], completion)
    answers = [str(message.get("content") or "") for message in messages if message.get("role") == "tool"]
    return "\n".join(answers) or None
