"""The reward of each turn of a rollout, and the state in which it began.

An environment may give them (``turn_rewards()``, ``anchor_states()``), or a reward function; else they are read
from the messages. A turn is a run of sampled tokens; the k-th is taken for the k-th message of the assistant. The
two can differ at the end only: a rollout that was cut off may have a last turn without a message, or tool calls
whose answers were dropped.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.engine import Engine
from gear_rl.environments import ANCHOR_STATES, NEVER_RUN, TURN_REWARDS, texts_of, value_of
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How many tools a turn called, and what they answered."""

    calls: int = 0
    answers: tuple[Message, ...] = ()

    @property
    def unanswered(self) -> int:
        """How many of its calls have no answer, because the rollout was cut off."""
        return max(0, self.calls - len(self.answers))


@dataclass(frozen=True)
class TurnReward(BatchSignal):
    """The reward of a token's turn, on every token of the turn, without the completion's own reward.

    Uses the first that is not None for each rollout: the result of its environment's ``turn_rewards()``, one for
    each call that reached it, which are summed over a turn; the values of ``log_extra("turn_rewards", ...)``, one
    for each turn. Without either, a turn is worth 1 if all of its tool calls were answered and none failed, and 0
    otherwise. The value of a last turn that calls nothing may be left out. If an environment gives any other
    number, the rollout's values are NaN and a warning names both; from a reward function that raises
    ``ValueError``.
    """

    name = "turn_reward"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        turn_id = turn_ids(batch.completions.mask)
        values, told = torch.zeros(turn_id.shape, dtype=torch.float32), False
        for b, count in enumerate(_counts(turn_id)):
            turns = turns_of(batch.messages[b], count)
            given, own = _of_environment(batch, b, TURN_REWARDS), turns[:count]
            logged = batch.logged[TURN_REWARDS][b] if TURN_REWARDS in batch.logged else None
            told = told or given is not None or logged is not None or any(turn.calls for turn in own)
            if given is not None:
                numbers = _values(given, TURN_REWARDS, b)
                places = _places(batch, b, turns, len(numbers), TURN_REWARDS) if count else None
                pairs = [*zip(places or (), numbers, strict=False)]
                worth = [sum(number for k, number in pairs if k == turn) for turn in range(count)]
                worth = [math.nan] * count if places is None else worth
            elif logged is not None:
                worth = _of_turns(_values(logged, TURN_REWARDS, b, "a reward function"), own, b)
            else:
                worth = [
                    0 < turn.calls <= len(turn.answers)
                    and all(batch.failure_of(b, answer) is None for answer in turn.answers)
                    for turn in own
                ]
            values[b, :count] = torch.tensor(worth, dtype=torch.float32)
        if not told:
            logger.warning(
                "turn_rewards: all turns of this batch are worth 0, since no environment has turn_rewards(), no "
                'reward function logged "turn_rewards", and no tool was called'
            )
        return on_turns(values.to(turn_id.device), turn_id)


@dataclass(frozen=True)
class AnchorId(BatchSignal):
    """Which state the turn of a token began in: turns of a group that began alike share the number; -1 outside:
    ``anchor_ids``."""

    name = "anchor_id"

    similarity: float = 1.0
    """From which likeness of their texts, 0 to 1, two turns began in one state; 1 means the same text."""

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        # Numbers must agree between siblings, which may be on another process.
        everyone = engine.gather_objects([*zip(anchor_texts(batch), batch.group, strict=True)])
        rows, groups = [row for row, _ in everyone], [group for _, group in everyone]
        return anchor_ids(rows, groups, batch.completions.mask, first=batch.first, similarity=self.similarity)


def turns_of(completion: Any, count: int) -> list[Turn]:
    """The turns of a rollout, at least ``count``, from its messages; of those of plain text nothing is known.

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
    return turns + [Turn()] * (count - len(turns))


def anchor_texts(batch: RolloutBatch) -> list[list[str | None]]:
    """For each turn of each rollout the state that it began in, as text; None where that is not known.

    What ``anchor_states()`` of the environment returned, the state before each call that reached it and after the
    last, or what the model saw since its turn before: the tools' answers, and for the first turn the empty text.
    Answers that hold more than text (images) are not compared. Where the number of states does not fit, no turn
    of the rollout has one.
    """
    texts: list[list[str | None]] = []
    for b, count in enumerate(_counts(turn_ids(batch.completions.mask))):
        turns, given = turns_of(batch.messages[b], count), _of_environment(batch, b, ANCHOR_STATES)
        if given is not None:
            states = _values(given, ANCHOR_STATES, b)
            places = _places(batch, b, turns, len(states), ANCHOR_STATES) if count else None
            states = states if places is not None else []
            before = [sum(place < k for place in places or ()) for k in range(count)]
            texts.append([states[n] if n < len(states) else None for n in before])
        else:
            texts.append(["" if k == 0 else _seen_answers(turns[k - 1]) for k in range(count)])
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

    Turns of a group whose texts are the same share the number; a turn without a text has one of its own. With
    ``similarity`` below 1 texts are the same if ``difflib``'s ratio to the first of their kind, in alphabetical
    order, is at least that. ``texts`` and ``group`` are those of all processes, and ``first`` says where this
    one's ``mask`` begins. Raises ``ValueError`` if a rollout has not as many texts as turns.

    >>> mask = torch.tensor([[True, False, True], [True, False, True]])
    >>> anchor_ids([["", "a key"], ["", "no key"]], [0, 0], mask)
    tensor([[ 0, -1,  1],
            [ 0, -1,  2]])
    """
    number: dict[tuple[int, str], int] = {}
    total = 0
    for g in dict.fromkeys(group):
        rows = [row for row, h in zip(texts, group, strict=True) if h == g]
        kinds = _kinds(sorted({text for row in rows for text in row if text is not None}), similarity)
        number |= {(g, text): total + kind for text, kind in kinds.items()}
        total += len({*kinds.values()})
    turn_id = turn_ids(mask)
    values = torch.full(mask.shape, -1, dtype=torch.int64)
    for i, (row, g) in enumerate(zip(texts, group, strict=True)):
        ids: list[int] = []
        for text in row:
            ids.append(total if text is None else number[g, text])
            total += text is None
        if 0 <= i - first < len(mask):
            values[i - first, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return torch.where(mask, on_turns(values.to(mask.device), turn_id), -1)


def _counts(turn_id: Int[Tensor, "B T"]) -> list[int]:
    """How many turns each rollout has; none where nothing of it is trained."""
    return int_list(turn_id.amax(-1) + 1) if turn_id.shape[1] else [0] * len(turn_id)


def _of_environment(batch: RolloutBatch, b: int, name: str) -> Any:
    return value_of(batch.environments[b], name) if batch.environments else None


def _values(given: Any, what: str, b: int, source: str | None = None) -> list[Any]:
    """The values that the environment, or another ``source``, gave: numbers, or texts of states."""
    is_text, source = what == ANCHOR_STATES, source or f"the environment's {what}()"
    where = f"{what}: rollout {b}: {source}"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"{where} gave {given!r}; give a list of values")
    values: list[Any] = []
    for value in cast(Iterable[Any], given):
        try:
            if is_text and not isinstance(value, str):
                raise TypeError
            values.append(value if is_text else float(value))
        except (TypeError, ValueError):
            kind = "texts" if is_text else "numbers"
            raise ValueError(f"{where} gave {value!r}; give a list of {kind}") from None
    return values


def _places(batch: RolloutBatch, b: int, turns: Sequence[Turn], number: int, what: str) -> list[int] | None:
    """Which turn each of the environment's values belongs to; None, with a warning, where that is not clear.

    An environment sees calls, but no turn and no call that was refused. It may have a value for what follows the
    last call, and for calls whose answers were dropped; the number of values shows whether one that raised has
    any. Where the messages show no call, a value stands for a turn.
    """
    last, of_calls = turns[-1], [(k, None) for k in range(len(turns) - 1)]
    known = any(turn.calls for turn in turns)
    if known:
        answers = [(k, answer) for k, turn in enumerate(turns) for answer in turn.answers]
        of_calls = [(k, batch.failure_of(b, answer)) for k, answer in answers]
    reached = [(k, failure) for k, failure in of_calls if failure not in NEVER_RUN]
    returned = [(k, failure) for k, failure in reached if failure in (None, "cut")]
    end = len(turns) - 1 if last.unanswered or not last.calls else len(turns)
    fitting = list[list[int]]()
    for calls, most in (
        (reached, last.unanswered or 1),
        (
            returned,
            (last.unanswered or 1) if what == ANCHOR_STATES else 0,
        ),  # states begin before the first call
    ):
        more = number - len(calls)
        places = [k for k, _ in calls] + [end] * more
        if 0 <= more <= most and places not in fitting:
            fitting.append(places)
    if len(fitting) == 1:
        return fitting[0]
    seen, one = f"has {len(turns)} turns", "turn"
    if known:
        raised = len(reached) - len(returned)
        seen, one = f"made {len(reached)} calls, of which {raised} raised", "call, also for one that raises"
    result = "its states are unknown" if what == ANCHOR_STATES else "the rollout keeps its GRPO advantage"
    logger.warning(
        "%s: rollout %d %s, but the environment's %s() gave %d; give one for each %s; %s",
        what, b, seen, what, number, one, result,
    )  # fmt: skip
    return None


def _of_turns(values: list[float], turns: Sequence[Turn], b: int) -> list[float]:
    """A reward function's values of these turns; it sees the messages, so another number is its mistake."""
    count = len(turns)
    if count and len(values) == count - 1 and not turns[-1].answers:
        return [*values, 0.0]
    if len(values) > count and (not count or turns[-1].calls):
        return values[:count]  # of turns that never came
    if len(values) != count:
        raise ValueError(
            f"turn_rewards: rollout {b} has {count} turns, but a reward function gave {len(values)}; give one "
            "for each turn"
        )
    return values


def _seen_answers(turn: Turn) -> str | None:
    """What the tools answered to a turn; None where it is not known or holds more than text."""
    texts: list[str] = []
    for answer in turn.answers:
        content = answer.get("content")
        own = texts_of(content)
        if not isinstance(content, str) and len(own) != len(cast(Sequence[Any], content or ())):
            return None
        texts += own
    # The line break keeps an empty answer apart from the prompt.
    return "\n".join(["", *texts]) if turn.answers else None


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
            matchers.append(SequenceMatcher(None, "", text, autojunk=False))
    return kinds
