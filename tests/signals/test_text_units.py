"""Sentences and lines of tokens, by hand and against a loop over characters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.signals.text_units import LINE_END, SENTENCE_END, unit_ids
from gear_rl.tensor.segments import turn_ids


def of(end, texts, mask=None):
    counts = torch.tensor([mask if mask else [1] * len(texts)]).bool()
    [row] = unit_ids([texts], counts, end).tolist()
    return row


@pytest.mark.parametrize(
    ("texts", "sentences", "lines"),
    [
        (["It", " is", " 3", ".", " So", " what", "?"], [0, 0, 0, 0, 1, 1, 1], [0] * 7),
        # no white space follows: a number, a name of a module, an ellipsis inside a word
        (["3", ".", "14", " a", ".b", " wait...what", " x"], [0] * 7, [0] * 7),
        # what closes after the mark belongs to it
        (['"No', '."', " He", " (left", ".)", " **So", ".**", " x"], [0, 0, 1, 1, 1, 2, 2, 3], [0] * 8),
        # an abbreviation, an initial and the number of a list end a sentence: kept simple
        (["J", ".", " Doe"], [0, 0, 1], [0] * 3),
        # Chinese and Japanese: whatever follows
        (
            ["\u597d", "\u3002", "\u4f60", "\u5417", "\uff1f", "\u300d", "\u6211"],
            [0, 0, 1, 1, 1, 1, 2],
            [0] * 7,
        ),
        # a newline ends both, with or without a mark; blank lines belong to the line before
        (["a", "\n", "b", ".", "\n\n", "\n", "c"], [0, 0, 1, 1, 1, 1, 2], [0, 0, 1, 1, 1, 1, 2]),
        # an indentation belongs to its line, a lone blank to the sentence that follows
        (
            ["a", ":", "\n", "   ", "b", "\n\n", "  ", " c"],
            [0, 0, 0, 1, 1, 1, 2, 2],
            [0, 0, 0, 1, 1, 1, 2, 2],
        ),
        # white space alone is no sentence and no line, at neither end
        (["\n", "\n\n", "a", ".", "\n", " ", "\n"], [0] * 7, [0] * 7),
        # tokens without text (a special token) stay where they are, also at the end
        (["a", ".", "", " b", "", "\n", ""], [0, 0, 0, 1, 1, 1, 1], [0] * 7),
        # a token belongs where its first character that is not white space does, and leaves no gap behind
        (["a", ".\nb", "c", "\n", "d"], [0, 0, 1, 1, 2], [0, 0, 1, 1, 2]),
        (["a\nb\nc", "d", "\ne"], [0, 1, 2], [0, 1, 2]),
    ],
)
def test_by_hand(texts, sentences, lines):
    assert of(SENTENCE_END, texts) == sentences
    assert of(LINE_END, texts) == lines


def test_a_turn_begins_a_sentence_and_a_line_and_what_is_masked_is_not_read():
    texts = ["a", " b", "<tool>", ".\n", " c", ".", " d", "pad"]
    mask = [1, 1, 0, 0, 1, 1, 1, 0]
    assert of(SENTENCE_END, texts, mask) == [0, 0, -1, -1, 1, 1, 2, -1]
    assert of(LINE_END, texts, mask) == [0, 0, -1, -1, 1, 1, 1, -1]
    # The turn begins a new one, whether or not a mark stood before the tool output: no number is skipped.
    assert of(SENTENCE_END, ["a", ".", " x", " b"], [1, 1, 0, 1]) == [0, 0, -1, 1]
    assert of(LINE_END, ["a", "\n", " x", "\n", "b"], [1, 1, 0, 1, 1]) == [0, 0, -1, 1, 1]


def test_rows_do_not_know_of_each_other_and_may_be_none():
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 1]]).bool()
    texts = [["a", "\n", "b"], ["x", "\n", "y"], ["\n", "a.", " b"]]
    assert unit_ids(texts, mask, SENTENCE_END).tolist() == [[0, 0, 1], [-1, -1, -1], [-1, 0, 1]]
    assert unit_ids(texts, mask, LINE_END).tolist() == [[0, 0, 1], [-1, -1, -1], [-1, 0, 0]]
    for shape in ((0, 3), (2, 0)):
        found = unit_ids([[""] * shape[1]] * shape[0], torch.ones(shape, dtype=torch.bool), LINE_END)
        assert found.shape == shape and found.dtype == torch.int64


@pytest.mark.parametrize(
    ("piece", "sentences", "lines"),
    [(".", 1, 1), ("\n", 2, 2), (" ", 2, 1), (".)", 1, 1), (")", 1, 1), ("\u3002", 2, 1), ("\n ", 2, 2)],
)
def test_pages_of_one_piece(piece, sentences, lines):
    """A completion that has degenerated; a search that began anew at every piece would be felt here."""
    texts = ["a.", *[piece] * 100_000, "b"]
    for end, number in ((SENTENCE_END, sentences), (LINE_END, lines)):
        ids = of(end, texts)
        assert max(ids) + 1 == number and ids[0] == 0 and ids[-1] == number - 1


# the slow twin


MARKS, CLOSERS = ".!?", "\"'`)]}*_$\u201d\u2019\xbb"
CJK, CJK_CLOSERS = "\u3002\uff01\uff1f\uff61", "\"'\u201d\u2019\u300d\u300f\uff09"


def units_of_characters(text, sentences):
    """For each character the number of its unit, one after the other: the rule as it is written down."""
    number, numbers, t = 0, [], 0
    while t < len(text):
        end = None  # behind the mark that ends the unit, if one stands here
        if text[t] == "\n":
            end = t
        elif sentences and text[t] in MARKS and (t == 0 or text[t - 1] not in MARKS):
            end = t
            while end < len(text) and text[end] in MARKS:
                end += 1
            while end < len(text) and text[end] in CLOSERS:
                end += 1
            end = end if end < len(text) and text[end].isspace() else None
        elif sentences and text[t] in CJK:
            end = t
            while end < len(text) and text[end] in CJK:
                end += 1
            while end < len(text) and text[end] in CJK_CLOSERS:
                end += 1
        if end is None:
            numbers.append(number)
            t += 1
            continue
        numbers += [number] * (end - t)
        blank = end
        while blank < len(text) and text[blank].isspace():
            blank += 1
        run = text[end:blank]
        before = run.rfind("\n") + 1
        numbers += [number] * before + [number + 1] * (len(run) - before)
        number, t = number + 1, blank
    return numbers


def by_the_loop(texts, turns, sentences):
    ids, last = [-1] * len(texts), -1
    for turn in sorted(set(turns) - {-1}):
        tokens = [t for t in range(len(texts)) if turns[t] == turn]
        text = "".join(texts[t] for t in tokens)
        numbers = units_of_characters(text, sentences)
        written = [n for n, character in zip(numbers, text, strict=True) if not character.isspace()]
        place, own, previous = 0, [], None
        for t in tokens:
            here = range(place, place + len(texts[t]))
            place += len(texts[t])
            first = next((i for i in here if not text[i].isspace()), here[0] if here else None)
            unit = previous if first is None else numbers[first]
            # White space outside the text proper goes with what is nearest.
            low, high = (written[0], written[-1]) if written else (0, 0)
            unit = low if unit is None else min(max(unit, low), high)
            previous = unit
            own.append(unit)
        for i, t in enumerate(tokens):
            last += i == 0 or own[i] != own[i - 1]
            ids[t] = last
    return ids


PIECES = ["a", "b", " ", "\n", ".", "?", ")", "\u3002", "\u300d", "1", "\r", ""]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.integers(0, 9)), max_size=12
    )
)
def test_agrees_with_the_loop_over_characters(tokens):
    texts, mask = [text for text, _ in tokens], torch.tensor([[draw > 1 for _, draw in tokens]]).bool()
    mask = mask.view(1, len(texts))
    turns = turn_ids(mask)[0].tolist()
    for end, sentences in ((SENTENCE_END, True), (LINE_END, False)):
        found = unit_ids([texts], mask, end)[0].tolist()
        assert found == by_the_loop(texts, turns, sentences), texts
        numbers = [n for n in found if n >= 0]
        assert numbers == sorted(numbers) and set(numbers) == set(range(len(set(numbers))))
