"""What is true about every token of a completion of "errands": which request it decides, and whether it is right.

Pure functions of ids: knows no model and no method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.arena.calls import FRAME
from gear_rl.arena.errands.problem import RIGHT, decisions, generate, rights
from gear_rl.arena.truth import Truth

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_CODE = re.compile(r'"code"\s*:\s*"([0-9]{2})"')
_Made = tuple[tuple[str, str] | None, range]
"""A call as the environment sees it, and the characters of its code."""


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """The decisions of a whole rollout's completion, tool answers included; reads the row's `seed` and `tier`.

    What counts as a decision is what the environment counts: the first call for each request, in whichever turn.
    Its token is the code; waiting, the rest of a call, tool answers and what is cut off are none. A code in
    several tokens (two digits where one token would do) is one decision in all of them. A turn has to begin with
    a call as long as a request is left: whatever else loses them all. A call that is wasted loses none, since
    there are as many to waste. Raises KeyError for a row without seed or tier.
    """
    problem = generate(row["seed"], row["tier"])
    decision, right, right_id = [-1] * len(ids), [False] * len(ids), [-1] * len(ids)
    made: list[tuple[str, str] | None] = []
    places: list[list[int]] = []
    turns = _turns(ids, tokenizer)
    for turn in turns:
        pieces = [str(tokenizer.decode([ids[t]], skip_special_tokens=True)) for t in turn]
        token_of = [t for t, piece in zip(turn, pieces, strict=True) for _ in piece]
        # A call left open is one where the completion was cut off there, but not before a closing token.
        ended = "\0" if ids[turn[-1]] == tokenizer.eos_token_id else ""
        for call, span in _calls("".join(pieces) + ended):
            made.append(call)
            places.append(sorted({token_of[char] for char in span}))
    found = rights(problem, made)
    settled = decisions(problem, made)
    lost: list[tuple[int, ...]] = [()] * len(ids)
    call = int(tokenizer.convert_tokens_to_ids("<tool_call>"))
    for begin in (turn[0] for turn in turns):
        done = {request for number, request in settled.items() if max(places[number], default=0) < begin}
        lost[begin] = tuple(n for n in range(len(problem.items)) if n not in done)
        if lost[begin]:
            right[begin], right_id[begin] = ids[begin] == call, call
    for number, request in settled.items():
        code = RIGHT[problem.items[request]]
        for t in places[number]:
            decision[t], right[t] = request, found[number]
            right_id[t] = int(tokenizer.convert_tokens_to_ids(code))
    return Truth(
        decision=tuple(decision),
        right=tuple(right),
        right_id=tuple(right_id),
        lost=tuple(lost),
        num_decisions=len(problem.items),
        exact=False,
    )


def _turns(ids: Sequence[int], tokenizer: Any) -> list[range]:
    """The places of each of the assistant's turns, closing tokens included."""
    header = tokenizer.convert_tokens_to_ids(FRAME[-1])
    turns: list[range] = []
    begin: int | None = 0
    for t, token in enumerate(ids):
        if begin is None:
            # The blank line after the header belongs to it.
            begin = t + 2 if token == header else None
        elif t >= begin and token == tokenizer.eos_token_id:
            turns.append(range(begin, t + 1))
            begin = None
    if begin is not None and begin < len(ids):
        turns.append(range(begin, len(ids)))
    return turns


def _calls(turn: str) -> list[_Made]:
    """The calls of a turn that reach a tool; none where one of them cannot be parsed."""
    found: list[_Made] = []
    for block in _CALL.finditer(turn):
        match _parsed(block[1]):
            case {"name": "wait", **rest} if rest.get("arguments", {}) == {}:
                found.append((None, range(0)))
            case {"name": "send", "arguments": {"item": str(item), "code": str(code), **rest}} if not rest:
                spans = [range(*match.span(1)) for match in _CODE.finditer(turn, *block.span(1))]
                found.append(((item, code), spans[-1] if spans else range(0)))
            case {"name": _}:
                pass  # refused before it reaches a tool
            case _:
                return []
    return found


def _parsed(block: str) -> Any:
    try:
        return json.loads(block)
    except ValueError:
        return None
