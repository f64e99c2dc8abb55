"""The answer's place: regions written down by hand, and a walk over characters that defines them."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


PIECES = ["\\boxed{", "{", "}", "x", " ", "", "<answer>", "</answer>", "\n", "####", "4", "\\", "boxed"]


def slow(texts, mask):
    """The answer's place by the definition: try every start of a box, count braces; walk over characters."""
    turns, turn = [], []
    for t, trained in enumerate(mask):
        if trained:
            turn.append(t)
        if turn and (not trained or t == len(mask) - 1):
            turns.append(turn)
            turn = []
    for kind in ("box", "tag", "hash"):
        for turn in reversed(turns):
            text = "".join(texts[t] for t in turn)
            place = {"box": slow_box, "tag": slow_tag, "hash": slow_hash}[kind](text)
            if place is None:
                continue
            opens, begins, ends = place
            content = [i for i in range(begins, ends) if not text[begins : i + 1].isspace()]
            content = [i for i in content if not text[i:ends].isspace()]
            if not content:
                return [0 if m else -1 for m in mask]
            found, at = [], 0
            for t, trained in enumerate(mask):
                if not trained:
                    found.append(-1)
                elif t not in turn:
                    found.append(0 if t < turn[0] else 2)
                else:
                    here = range(at, at + len(texts[t]))
                    inside = not here and content[0] < at <= content[-1]
                    if inside or any(i in here for i in range(content[0], content[-1] + 1)):
                        found.append(1)
                    else:
                        found.append(2 if at + len(texts[t]) > opens else 0)
                    at += len(texts[t])
            return found
    return [0 if m else -1 for m in mask]


def slow_box(text):
    for start in reversed(range(len(text))):
        head = re.match(r"\\boxed\s*\{", text[start:])
        if not head:
            continue
        depth, i = 1, start + head.end()
        while i < len(text):
            if text[i] == "\\":
                i += 2
                continue
            depth += (text[i] == "{") - (text[i] == "}")
            if depth == 0:
                return start, start + head.end(), i
            i += 1
    return None


def slow_tag(text):
    for start in reversed(range(len(text))):
        if text[start:].startswith("<answer>") and "</answer>" in text[start:]:
            ends = max(i for i in range(len(text)) if text[i:].startswith("</answer>"))
            return start, start + len("<answer>"), ends
    return None


def slow_hash(text):
    best = None
    for at in range(len(text)):
        around = text[max(0, at - 1) : at] + text[at + 4 : at + 5]
        if text[at : at + 4] == "####" and "#" not in around:
            line = text[at + 4 :].split("\n")[0]
            word = re.match(r"[ \t]*([^\W\d_]*)", text[at + 4 :])
            # A heading: its first word, of two letters or more, does not end the text.
            if len(word[1]) < 2 or not re.search(r"\w", text[at + 4 + word.end() :]):
                best = at, at + 4, at + 4 + len(line)
    return best


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
            st.sampled_from([True, True, True, True, False]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_agrees_with_the_walk_that_defines_it(row):
    texts, mask = [text for text, _ in row], [trained for _, trained in row]
    assert answer_regions([texts], torch.tensor([mask]))[0].tolist() == slow(texts, mask)
