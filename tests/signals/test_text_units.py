"""Sentences and lines of tokens, by hand."""

import pytest
import torch

from gear_rl.signals.text_units import LINE_END, SENTENCE_END, unit_ids


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
        # a token belongs where its first character that is not white space does
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
