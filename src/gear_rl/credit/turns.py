"""What is known of the single turns of a rollout: what each was worth, and in which state it began.

An environment may say so (``turn_rewards()``, ``anchor_states()``), or a reward function; where nobody does,
it is read off the messages. A turn is a run of sampled tokens; the k-th is taken for the k-th message of the
assistant. The two can come apart at the end only: a rollout that was cut off may have a last turn without a
message, or tool calls whose answers were dropped again.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.credit.batch import RolloutBatch
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.engine import Engine
from gear_rl.environments import ANCHOR_STATES, TURN_REWARDS, texts_of, value_of
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.segments import turn_ids

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]


class _MisfitError(ValueError):
    """Not as many values as turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of one turn: how many tools it called, and what they answered.

    >>> Turn(calls=2, answers=({"role": "tool", "content": "a key"},)).known
    True
    """

    calls: int = 0
    answers: tuple[Message, ...] = ()
    known: bool = True
    """False where the rollout's messages do not show it: there are none, or this one is missing."""


def turn_signals(
    needs: Sequence[str], batch: RolloutBatch, engine: Engine, config: CreditConfig
) -> dict[str, Tensor]:
    """``turn_reward`` and ``anchor_id``, as far as they are needed."""
    mask, values = batch.completions.mask, dict[str, Tensor]()
    if "turn_reward" in needs:
        values["turn_reward"] = turn_reward_values(
            completions=batch.messages,
            mask=mask,
            failed=batch.call_failed,
            environment=_environment_values(batch, TURN_REWARDS),
            logged=batch.turn_rewards,
        )
    if "anchor_id" in needs:
        states = _environment_values(batch, ANCHOR_STATES)
        texts = anchor_texts(completions=batch.messages, mask=mask, environment=states)
        # Numbers must agree between siblings, which may be on another process.
        everyone = engine.gather_objects([*zip(texts, batch.group, strict=True)])
        values["anchor_id"] = anchor_ids(
            [row for row, _ in everyone],
            [group for _, group in everyone],
            mask,
            first=batch.first,
            similarity=config.anchor_similarity,
        )
    return values


def _environment_values(batch: RolloutBatch, name: str) -> list[Any] | None:
    if not batch.environments:
        return None
    return [value_of(environment, name) for environment in batch.environments]


def turns_of(completion: Any, count: int) -> list[Turn]:
    """The ``count`` turns of a rollout, from its messages; plain text has turns of which nothing is known.

    >>> look = {"role": "assistant", "tool_calls": [{}]}
    >>> answer = {"role": "tool", "name": "look", "content": "a key"}
    >>> [(turn.calls, len(turn.answers)) for turn in turns_of([look, answer, {"role": "assistant"}], 2)]
    [(1, 1), (0, 0)]
    """
    turns: list[Turn] = []
    for message in () if isinstance(completion, str) else cast(Sequence[Message], completion):
        if message.get("role") == "assistant":
            turns.append(Turn(calls=len(message.get("tool_calls") or ())))
        elif message.get("role") == "tool" and turns:
            last = turns[-1]
            turns[-1] = Turn(calls=last.calls, answers=(*last.answers, message))
    missing = Turn(known=False)
    return [turns[k] if k < len(turns) else missing for k in range(count)]


def turn_reward_values(
    *,
    completions: Sequence[Any],
    mask: Bool[Tensor, "B T"],
    failed: Callable[[int, Message], bool],
    environment: Sequence[Any] | None = None,
    logged: Sequence[Any] | None = None,
) -> Float[Tensor, "B T"]:
    """The reward of each token's turn; 0 where the mask is False.

    For each rollout the first that has something to say: ``environment``, what its ``turn_rewards()`` returned;
    ``logged``, what a reward function gave to ``log_extra("turn_rewards", ...)``; else 1 for a turn that called
    tools of which all answered and none ``failed(rollout, answer)``, and 0 for any other turn. A value is due for
    every turn. An environment does not see a turn that calls nothing: the value of such a last turn may be left
    out, and is 0. Where the last turn called a tool, no turn came after it, and values for one are dropped. If an
    environment gives any other number (it does not see a call that was refused before it), the rollout's values
    are NaN and a warning names both; from a reward function that raises ``ValueError``, as does a value that is
    no number.

    >>> call = {"role": "assistant", "tool_calls": [{}]}
    >>> rollout = [call, {"role": "tool", "name": "look", "content": "a key"}, {"role": "assistant"}]
    >>> mask = torch.tensor([[True, False, True]])
    >>> turn_reward_values(completions=[rollout], mask=mask, failed=lambda b, answer: False)
    tensor([[1., 0., 0.]])
    """
    turn_id = turn_ids(mask)
    for name, given in ((f"{TURN_REWARDS}()", environment), (f'log_extra("{TURN_REWARDS}", ...)', logged)):
        _check_rows(name, given, completions)
    values = torch.zeros(mask.shape, dtype=torch.float32)
    for b, count in enumerate(_counts(turn_id)):
        turns = turns_of(completions[b], count)
        for name, given in (
            (f"the environment's {TURN_REWARDS}()", environment),
            ("a reward function", logged),
        ):
            said = None if given is None else given[b]
            if said is not None:
                numbers = [_number(value, b, name) for value in _listed(said, TURN_REWARDS, b, name)]
                try:
                    worth = _fitted(numbers, turns, 0.0, f"{TURN_REWARDS}: rollout {b}", name)
                except _MisfitError as error:
                    if given is logged:
                        raise ValueError(str(error)) from None
                    # Not the environment's fault: it does not see a call that the guard refused.
                    logger.warning("%s; the rollout keeps its GRPO advantage", error)
                    worth = [math.nan] * count
                break
        else:
            worth = [
                float(
                    turn.calls > 0 and len(turn.answers) >= turn.calls and not _any(failed, b, turn.answers)
                )
                for turn in turns
            ]
        values[b, :count] = torch.tensor(worth, dtype=torch.float32)
    return on_turns(values.to(mask.device), turn_id)


def anchor_texts(
    *,
    completions: Sequence[Any],
    mask: Bool[Tensor, "B T"],
    environment: Sequence[Any] | None = None,
) -> list[list[str | None]]:
    """For each turn of each rollout the state that it began in, as text; None where that is not known.

    What ``anchor_states()`` of the environment returned, or, where it is None, what the model saw since its turn
    before: the tools' answers, and for the first turn the prompt, which the group shares and which is the empty
    text here. Answers that hold more than text (images) are not compared. As many states are due as there are
    turns, as for ``turn_reward_values``; a last turn that was left out has no known state, and where the number
    does not fit, no turn of the rollout has.

    >>> call = {"role": "assistant", "tool_calls": [{}]}
    >>> rollout = [call, {"role": "tool", "name": "look", "content": "a key"}, {"role": "assistant"}]
    >>> anchor_texts(completions=[rollout], mask=torch.tensor([[True, False, True]]))
    [['', '\\na key']]
    """
    _check_rows(f"{ANCHOR_STATES}()", environment, completions)
    texts: list[list[str | None]] = []
    for b, count in enumerate(_counts(turn_ids(mask))):
        turns = turns_of(completions[b], count)
        said = None if environment is None else environment[b]
        if said is not None:
            where, name = f"{ANCHOR_STATES}: rollout {b}", f"the environment's {ANCHOR_STATES}()"
            states = [_text(state, b) for state in _listed(said, ANCHOR_STATES, b, name)]
            try:
                texts.append(_fitted(states, turns, None, where, name))
            except _MisfitError as error:
                logger.warning("%s; its states are taken for unknown", error)
                texts.append([None] * count)
        else:
            seen = ["" if k == 0 else _seen(turns[k - 1]) for k in range(count)]
            texts.append(seen)
    return texts


def anchor_ids(
    texts: Sequence[Sequence[str | None]],
    group: Sequence[int],
    mask: Bool[Tensor, "B T"],
    *,
    first: int = 0,
    similarity: float = 1.0,
) -> Int[Tensor, "B T"]:
    """A number for the state in which each token's turn began; -1 where the mask is False.

    Turns of a group whose texts are the same share the number, others do not; a turn without a text has one
    of its own. ``texts`` and ``group`` are those of all processes' rollouts, in order, and ``first`` says
    where this process's ``mask`` begins among them: every process then counts alike. The numbers depend on
    the texts of a group and not on the order of its rollouts.

    With ``similarity`` below 1 texts are the same if ``difflib``'s ratio to the first of their kind is at least
    that (0.95 in GiGPO's released option). The release takes for the first whichever rollout came first; here
    it is the first in alphabetical order. Raises ``ValueError`` for a similarity outside (0, 1], and if a rollout
    has not as many texts as turns.

    >>> mask = torch.tensor([[True, False, True], [True, False, True]])
    >>> anchor_ids([["", "a key"], ["", "no key"]], [0, 0], mask)
    tensor([[ 0, -1,  1],
            [ 0, -1,  2]])
    """
    if not 0.0 < similarity <= 1.0:
        raise ValueError(f"similarity: {similarity} must be above 0 and at most 1 (the same text)")
    if len(texts) != len(group):
        raise ValueError(f"group: {len(group)} numbers for {len(texts)} rollouts; give one for each")
    number: dict[tuple[int, str], int] = {}
    total = 0
    for g in dict.fromkeys(group):
        own = {
            text for row, h in zip(texts, group, strict=True) if h == g for text in row if text is not None
        }
        kinds = _kinds(sorted(own), similarity)
        number |= {(g, text): total + kind for text, kind in kinds.items()}
        total += len({*kinds.values()})
    turn_id = turn_ids(mask)
    counts = _counts(turn_id)
    values = torch.full(mask.shape, -1, dtype=torch.int64)
    for i, (row, g) in enumerate(zip(texts, group, strict=True)):
        ids: list[int] = []
        for text in row:
            ids.append(total if text is None else number[g, text])
            total += text is None
        b = i - first
        if 0 <= b < len(counts):
            if len(ids) != counts[b]:
                raise ValueError(
                    f"texts: rollout {b} has {counts[b]} turns, but {len(ids)} states; give one for each turn"
                )
            values[b, : counts[b]] = torch.tensor(ids, dtype=torch.int64)
    return torch.where(mask, on_turns(values.to(mask.device), turn_id), -1)


def _counts(turn_id: Int[Tensor, "B T"]) -> list[int]:
    """How many turns each rollout has; none where nothing of it is trained."""
    if turn_id.shape[1] == 0:
        return [0] * len(turn_id)
    return cast(list[int], (turn_id.amax(-1) + 1).tolist())  # pyright: ignore[reportUnknownMemberType]


def _check_rows(name: str, given: Sequence[Any] | None, completions: Sequence[Any]) -> None:
    if given is not None and len(given) != len(completions):
        raise ValueError(
            f"{name}: {len(given)} values for {len(completions)} completions; give one list for each, None where "
            "there is nothing to say"
        )


def _fitted(values: list[Any], turns: Sequence[Turn], left_out: Any, where: str, source: str) -> list[Any]:
    """The values, one for each turn: without those for turns that never came, and with one for a last that is
    left out."""
    count = len(turns)
    if count == 0:
        return []  # nothing of the rollout is trained
    last = turns[-1]
    if len(values) == count - 1 and not last.answers:
        return [*values, left_out]
    if len(values) > count and last.calls > 0:
        return values[:count]
    if len(values) != count:
        raise _MisfitError(
            f"{where} has {count} turns, but {source} gave {len(values)}; give one for each turn"
        )
    return values


def _any(failed: Callable[[int, Message], bool], b: int, answers: Sequence[Message]) -> bool:
    return any(failed(b, answer) for answer in answers)


def _listed(said: Any, what: str, b: int, source: str) -> list[Any]:
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise ValueError(
            f"{what}: rollout {b}: {source} gave {said!r}; give a list with one value for each turn"
        )
    return [*cast(Iterable[Any], said)]


def _number(value: Any, b: int, source: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{TURN_REWARDS}: rollout {b}: {source} gave {value!r}; give a number for each turn"
        ) from None


def _text(state: Any, b: int) -> str:
    if not isinstance(state, str):
        raise ValueError(
            f"{ANCHOR_STATES}: rollout {b}: the environment's {ANCHOR_STATES}() gave {state!r}; give a text for "
            "each turn"
        )
    return state


def _seen(turn: Turn) -> str | None:
    """What the tools answered to a turn; None where there is no telling."""
    texts: list[str] = []
    for answer in turn.answers:
        content = answer.get("content")
        own = texts_of(content)
        if not isinstance(content, str) and len(own) != len(cast(Sequence[Any], content or ())):
            return None
        texts += own
    # The line break keeps an empty answer apart from the prompt.
    return "\n".join(["", *texts]) if turn.known and turn.answers else None


def _kinds(texts: Sequence[str], similarity: float) -> dict[str, int]:
    """Number the kinds of these different texts: one joins the first kind whose first text it is like."""
    kinds: dict[str, int] = {}
    matchers: list[SequenceMatcher[str]] = []
    for text in texts:
        for kind, matcher in enumerate(matchers if similarity < 1.0 else ()):
            matcher.set_seq1(text)
            # The first two are quick, and never below the third.
            if (
                matcher.real_quick_ratio() >= similarity
                and matcher.quick_ratio() >= similarity
                and matcher.ratio() >= similarity
            ):
                kinds[text] = kind
                break
        else:
            kinds[text] = len(matchers)
            matchers.append(SequenceMatcher(None, "", text))
    return kinds
