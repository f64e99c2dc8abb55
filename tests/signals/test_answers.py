"""The answer's place: regions written down by hand."""

import pytest
import torch

from engines import tiny
from gear_rl.signals.answers import SEARCHED_CHARACTERS, AnswerRegion, answer_regions, check_pattern
from support.batches import PlainEngine, written


def regions(tokens, mask=None, pattern=None):
    """The regions of one row, from its tokens parted by ``|``."""
    texts = tokens.split("|")
    trained = torch.ones(1, len(texts), dtype=torch.bool) if mask is None else torch.tensor([mask]).bool()
    return answer_regions([texts], trained, pattern)[0].tolist()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (r"so|\boxed{|42|}|.", [0, 2, 1, 2, 2]),
        (r"\boxed{\frac|{1}|{2}|}| end", [1, 1, 1, 2, 2]),  # nested braces; the first token holds content too
        (r"a|\boxed{|1|}|b|\boxed{2", [0, 2, 1, 2, 2, 2]),  # the last *balanced* one
        (r"\boxed{|\{|1, 2|\}|}", [2, 1, 1, 1, 2]),
        (r"\boxed{|\}|1|}", [2, 1, 1, 2]),  # an escaped brace closes nothing
        (r"\boxed{|x|}| <answer>|y|</answer>", [2, 1, 2, 2, 2, 2]),  # a box goes before tags
        ("a|<answer>|b|</answer>|c|<answer>| d|</answer>", [0, 0, 0, 0, 0, 2, 1, 2]),
        ("<answer>|b|</answer>|\n####| 9", [2, 1, 2, 2, 2]),  # and tags before hashes
        ("a\n|####| 4|\n|####| 2|\nend", [0, 0, 0, 0, 2, 1, 2]),
        ("a |####| 4|\n|####| Step 2|\nend", [0, 2, 1, 2, 2, 2, 2]),  # inside a line; a heading is no answer
        (r"\boxed{|4||2|}||", [2, 1, 1, 1, 2, 2, 2]),  # a token without text is what stands around it
    ],
)
def test_by_hand(tokens, expected):
    assert regions(tokens) == expected


@pytest.mark.parametrize(
    ("tokens", "mask", "expected"),
    [
        # the last turn that has an answer, not what a tool wrote
        (r"\boxed{|1|}|\boxed{9}|\boxed{|2|}|.", [1, 1, 1, 0, 1, 1, 1, 1], [0, 0, 0, -1, 2, 1, 2, 2]),
        (r"\boxed{|1|}|\boxed{9}|so", [1, 1, 1, 0, 1], [2, 1, 2, -1, 2]),
        # a box goes before the tags of a later turn
        (r"\boxed{|1|}|.|<answer>|2|</answer>", [1, 1, 1, 0, 1, 1, 1], [2, 1, 2, -1, 2, 2, 2]),
        # no box continues over a tool's answer
        (r"\boxed{|1|.|}", [1, 1, 0, 1], [0, 0, -1, 0]),
    ],
)
def test_each_turn_is_searched_by_itself(tokens, mask, expected):
    assert regions(tokens, mask) == expected


@pytest.mark.parametrize(
    ("tokens", "pattern", "expected"),
    [
        ("the |answer is |4|2|.", r"answer is (\d+)", [0, 2, 1, 1, 2]),
        ("a=|1|;b=|2|;a=|3", r"a=(\d)", [0, 0, 0, 0, 2, 1]),
        ("a=|1|;b=|2", r"a=(\d)|b=(?:\d)", [2, 1, 2, 2]),  # where the group took no part there is no answer
        ("x|y", r"x(z*)", [0, 0]),  # no content
        ("p|q|r|s", r"(?<=(p)q)r", [1, 2, 2, 2]),  # the group stands before the match
    ],
)
def test_a_pattern_by_hand(tokens, pattern, expected):
    assert regions(tokens, pattern=pattern) == expected


@pytest.mark.parametrize("pattern", [None, r"(\d+)$", r"(\d+)\s*\Z"])
def test_the_end_token_is_no_text(pattern):
    engine = PlainEngine(tiny.tokenizer())
    batch = written(engine.tokenizer, ["#### 42<|im_end|>", "#### 42"])
    finished, cut_off = AnswerRegion(pattern).compute(batch, engine).tolist()
    assert finished[-1] == 2 and finished[:-1] == cut_off[:-1] and 1 in cut_off
    assert engine.logged["gear/answers"] == 1


def test_a_pattern_that_may_never_end_is_refused():
    for pattern in ("(a+)+", r"(?:\d+,)*x", "(a{2,})*", "(a|b*){3,}"):
        with pytest.raises(ValueError, match="repeats what is itself repeated"):
            check_pattern(pattern)
    for pattern in ("(a++)*", "(a+)b+", "(a+){0,3}", "[(a+)]*", r"\(a+\)*", "(?:a{1,3})*"):
        assert check_pattern(pattern).pattern == pattern


def test_a_pattern_is_sought_at_the_end_of_a_turn_only():
    early, late = ["=1", "x" * SEARCHED_CHARACTERS], ["=1", "x" * (SEARCHED_CHARACTERS - 2)]
    everywhere = torch.ones(1, 2, dtype=torch.bool)
    assert answer_regions([early], everywhere, r"=\d").tolist() == [[0, 0]]
    assert answer_regions([late], everywhere, r"=\d").tolist() == [[1, 2]]
    # The line's beginning is the text's, not the window's.
    assert answer_regions([early], everywhere, r"(?m)^x").tolist() == [[0, 0]]
    # A box is sought everywhere.
    assert answer_regions([["\\boxed{1}", early[1]]], everywhere).tolist() == [[1, 2]]


def test_boxes_that_nobody_closes_cost_their_length():
    """Each of them scanned to the end would be ten thousand million steps, and the test would not return."""
    text = "\\boxed{" * 100_000
    assert regions(text) == [0]
    assert regions(text + "|1|}") == [2, 1, 2]
