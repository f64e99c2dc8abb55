"""The truth about every token of a completion of "errands": which request it decides, and whether it is right.

Pure functions of ids: knows no model and no method.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gear_rl.arena.codes import CODES
from gear_rl.arena.errands.problem import ITEMS, RIGHT, SEND, WAIT, Call, Problem, Tier, generate
from gear_rl.arena.token_truth import Truth, token_texts

HEADER = "assistant\n<think>\n\n</think>"
"""The header of an assistant turn: one token, before a blank line."""
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_CODE = re.compile(r'"code"\s*:\s*"([0-9]{2})"')
_Made = tuple[tuple[str, str] | None, range]
"""A call as the environment sees it, and the characters of its code."""
_NAME, _ITEM, _CODE_AT = 2, 4, 6
"""Which of a call's ten tokens are the tool's name, the item and the code; the others are always the same."""


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """The decisions of a whole rollout's completion, tool answers included; reads the row's `seed` and `tier`.

    A decision is what the environment counts: the first call for each request, in any turn. Its token is the
    code; waits, tool answers and truncated calls have none. A code in several tokens is one decision in all of
    them.

    The rest of a turn is form while a request is left. Anything but a call as the template writes it, followed by
    the end of the turn, loses all requests that are left; an item that is not left loses the request that was due
    (docs/decisions/0013). The tool and the order of requests are free. Only a turn's first call has a form, and
    none after the last call that counts. Raises KeyError for a row without seed or tier.
    """
    problem = generate(row["seed"], row["tier"])
    facts = Truth.blank(len(ids), len(problem.items), exact=False)
    made: list[tuple[str, str] | None] = []
    places: list[list[int]] = []
    turns = _turns(ids, tokenizer)
    before: list[int] = []
    for turn in turns:
        before.append(len(made))
        pieces = token_texts(ids[turn.start : turn.stop], tokenizer)
        token_of = [t for t, piece in zip(turn, pieces, strict=True) for _ in piece]
        # An open call counts at the end of a truncated completion, but not before a closing token.
        ended = "\0" if ids[turn[-1]] == tokenizer.eos_token_id else ""
        for call, span in _calls("".join(pieces) + ended):
            made.append(call)
            places.append(sorted({token_of[char] for char in span}))
    found, settled = problem.rights(made), problem.settled(made)
    words = {int(tokenizer.convert_tokens_to_ids(word)): word for word in (*ITEMS, *CODES)}
    for turn, number in zip(turns, before, strict=True):
        done = {settled[call] for call in range(number) if call in settled}
        left = tuple(n for n in range(len(problem.items)) if n not in done)
        if not left or number >= Tier(requests=len(problem.items)).calls:
            break
        for t, due, at_stake in _form(ids, turn, problem, left, words, tokenizer):
            facts.right[t], facts.right_id[t], facts.lost[t] = ids[t] == due, due, at_stake
    for number, request in settled.items():
        code = RIGHT[problem.items[request]]
        for t in places[number]:
            facts.decision[t], facts.right[t], facts.lost[t] = request, found[number], ()
            facts.right_id[t] = int(tokenizer.convert_tokens_to_ids(code))
    return facts


def _form(
    ids: Sequence[int],
    turn: range,
    problem: Problem,
    left: tuple[int, ...],
    words: Mapping[int, str],
    tokenizer: Any,
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """The form of a turn's first call: place, right token, requests lost without it.

    Ends at a token after which no call can be completed. `words` are the items and codes by token.
    """
    due = problem.items[left[0]]
    send = _ids(Call(SEND, {"item": due, "code": RIGHT[due]}), tokenizer)
    wait = _ids(Call(WAIT, {}), tokenizer)
    form, item = send, due
    for place, t in enumerate(turn[: len(send)]):
        if place == len(form):
            return
        if place == _NAME and ids[t] in (send[_NAME], wait[_NAME]):
            form = send if ids[t] == send[_NAME] else wait
        elif form is send and place == _ITEM:
            item = words.get(ids[t], "")
            if item == due or item not in (problem.items[n] for n in left):
                yield t, send[_ITEM], left[:1]
            if item not in ITEMS:
                return
        elif form is send and place == _CODE_AT:
            if words.get(ids[t]) not in CODES:
                # Digits are a code in several tokens; anything else settles nothing.
                if item == due and not tokenizer.decode([ids[t]]).isdigit():
                    yield t, send[_CODE_AT], left[:1]
                return
        else:
            yield t, form[place], left
            if ids[t] != form[place]:
                return


def _ids(call: Call, tokenizer: Any) -> list[int]:
    """A turn that makes this call."""
    return [*tokenizer(call.text)["input_ids"], tokenizer.eos_token_id]


def _turns(ids: Sequence[int], tokenizer: Any) -> list[range]:
    """The places of each of the assistant's turns, closing tokens included."""
    header = tokenizer.convert_tokens_to_ids(HEADER)
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
        match _parse_block(block[1]):
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


def _parse_block(block: str) -> Any:
    try:
        return json.loads(block)
    except ValueError:
        return None
