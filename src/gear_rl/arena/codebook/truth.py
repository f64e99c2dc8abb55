"""What is true about every token of a completion of "codebook": which decision it is, and whether it is right.

Pure functions of ids: knows no model and no method.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gear_rl.arena.codebook.problem import EXACT, FILLER, LEAD, SYMBOLS, codes_in, decisions
from gear_rl.arena.token_truth import Truth, token_texts


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """The decisions of a completion's token ids, and the symbols that lead to them; reads the row's `answer`.

    A decision is what the reward counts: the first code for each symbol of the prompt. Special tokens are
    skipped, and nothing after the first closing token counts. A code in several tokens is one decision in all of
    them. Where a symbol is due, the next one keeps the form. Another symbol, a number or no word loses its
    decision, the closing token loses all that are left. Anything but a code after a symbol loses its own; that
    credit is a third of what branching rollouts give (docs/arena.md). Raises KeyError for a row without an
    answer.
    """
    answer = str(row["answer"])
    pieces = _pieces(ids, tokenizer)
    codes = codes_in(answer)
    facts = Truth.blank(len(ids), len(codes), exact=answer.startswith(EXACT))
    token_of = [t for t, piece in enumerate(pieces) for _ in piece]
    for index, start, end, right in decisions("".join(pieces), answer):
        for t in {token_of[char] for char in range(start, end)}:
            facts.decision[t], facts.right[t] = index, right
    for t, due, at_stake in _form(codes, facts.decision, pieces):
        facts.right[t], facts.right_id[t], facts.lost[t] = pieces[t] == due, _id(due, tokenizer), at_stake
    values = [*codes.values()]
    for t, number in enumerate(facts.decision):
        if number >= 0:
            facts.right_id[t] = _id(f" {values[number]}", tokenizer)
    return facts


def _form(
    codes: Mapping[str, str], decision: Sequence[int], pieces: Sequence[str]
) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """The tokens that a decision depends on: place, right text, decisions lost without it."""
    left, number_of = dict(enumerate(codes)), {symbol: n for n, symbol in enumerate(codes)}
    before = ""
    for t, piece in enumerate(pieces):
        word, due = piece.strip(), number_of.get(before, -1)
        left.pop(decision[t], None)
        if not left:
            return
        if decision[t] < 0 and due in left:
            yield t, f" {codes[before]}", (due,)
        elif (
            decision[t] < 0
            and word != LEAD
            and word not in FILLER
            and not (before in SYMBOLS and word.isdigit())
        ):
            first = next(iter(left))
            if word == left[first] or word not in left.values():
                yield t, f" {left[first]}", (first,) if piece else tuple(left)
        if not piece:
            return
        before = word


def _id(piece: str, tokenizer: Any) -> int:
    return int(tokenizer.convert_tokens_to_ids(piece))


def _pieces(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token; empty for special tokens and from the closing token on."""
    end = [*ids, tokenizer.eos_token_id].index(tokenizer.eos_token_id)
    return [*token_texts(ids[:end], tokenizer), *[""] * (len(ids) - end)]
