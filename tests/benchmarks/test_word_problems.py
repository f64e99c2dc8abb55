"""Word problems: their arithmetic, and their parts."""

import re

import pytest

from benchmarks.word_problems import reward
from benchmarks.word_problems import rows as word_problems


def test_every_step_is_right_and_follows_from_the_problem():
    rows = word_problems("train", 600) + word_problems("test", 200)
    assert {row["template"] for row in rows} == {"changes", "prices", "together"}
    for row in rows:
        known = {int(number) for number in re.findall(r"\d+", row["prompt"].rpartition("Question:")[2])}
        for a, sign, b, c in re.findall(r"(\d+) ([-+*]) (\d+) = (-?\d+)\.", row["solution"]):
            assert {int(a), int(b)} <= known, row
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(c) >= 0
            known.add(int(c))
        assert row["solution"].endswith(f"= {row['answer']}. The answer is {row['answer']}.")
        assert reward([row["solution"]], [row["answer"]]) == [1.0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("58.", 1.0),
        ("58", 1.0),
        ("$58", 1.0),
        ("58.0", 1.0),
        ("58, or so", 1.0),
        ("58,000", 0.0),
        ("58.5", 0.0),
        ("-58", 0.0),
        ("5", 0.0),
        ("no number", 0.0),
    ],
)
def test_the_whole_number_counts(text, right):
    assert reward([f"The answer is 7. The answer is {text}"], ["58"]) == [right]
    assert reward([f"The answer is {text}"], [58], prompts=["2 = <think>"]) == [0.0]


def test_the_parts_share_no_prompt_and_a_part_is_the_same_every_time():
    train, test = (word_problems(split, 700) for split in ("train", "test"))
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}
    assert word_problems("test", 7) == test[:7]
    assert len({row["prompt"] for row in train}) == 700
