"""Rewards of single turns and the states they began in, from environments, reward functions and messages."""

import math
import random
from typing import Any

import pytest
import torch

from gear_rl.rollouts import ToolUse
from gear_rl.signals.turns import TurnReward, anchor_ids, anchor_texts
from support.batches import PlainEngine, batch_of


def call(count: int = 1) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{}] * count}


def said(text: Any, name: str = "look") -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": text}


END = {"role": "assistant", "content": "done"}
WRONG = "{'error': 'no such drawer'}"
REFUSED = "{'error': 'no tool named loook'}"
THREE = [call(), said("a key"), call(2), said("open"), said(WRONG), END]
"""Three turns: one call that was answered, two calls of which one failed, and the end."""


def masks(*rows: str) -> torch.Tensor:
    """``"xx..x"`` is a turn of two tokens, tool output, and a turn of one."""
    return torch.tensor([[token == "x" for token in row] for row in rows], dtype=torch.bool)


def fails(b: int, answer: Any) -> str | None:
    return {WRONG: "raised", REFUSED: "unknown"}.get(answer["content"])


def batch_with(completions, rows, environments=None, name="turn_rewards", failed=fails, **more):
    """A batch; ``environments`` are what the method ``name`` of each gives."""
    mask = masks(*rows)
    if environments is not None:
        environments = [type("Env", (), {name: lambda self, x=x: x})() for x in environments]
    tools = ToolUse(counts=[{}] * len(rows), failure_of=failed)
    return batch_of(mask.long(), mask, messages=completions, environments=environments, tools=tools, **more)


def turn_rewards(completions, rows, failed=fails, environments=None, logged=None):
    logged = {} if logged is None else {"turn_rewards": logged}
    batch = batch_with(completions, rows, environments, failed=failed, logged=logged)
    return TurnReward().compute(batch, PlainEngine(None))


def rewards(completion: Any, row: str, **given: Any) -> list[float]:
    return turn_rewards([completion], [row], **{name: [values] for name, values in given.items()})[0].tolist()


TWO = [call(), said("a"), END]
AFTER_REFUSED = [call(), said(REFUSED), call(2), said("a"), said("b"), END]
CUT_OFF = [call(), said("a"), call()]
"""The tool of its last turn ran, but the answer did not fit and was dropped."""


@pytest.mark.parametrize(
    ("completion", "row", "given", "expected"),
    [
        # a turn is worth 1 if all its calls were answered without a failure
        (THREE, "xx.x.x", {}, [1, 1, 0, 0, 0, 0]),
        ([call(2), said("a"), said("b"), END], "x..x", {}, [1, 0, 0, 0]),
        ([call(2), said("a"), END], "x..x", {}, [0, 0, 0, 0]),
        ([call(), said(WRONG), call(), said("a"), END], "x.x.x", {}, [0, 0, 1, 0, 0]),
        ("text", "x.x", {}, [0, 0, 0]),
        # a rollout that was cut off: the last turn has no answer, or no message, or there is none
        (CUT_OFF, "x.xx", {}, [1, 0, 0, 0]),
        (TWO, "....", {}, [0, 0, 0, 0]),
        ([], "", {}, []),
        # the environment comes first, then a reward function, then the calls
        (THREE, "x.x.x", {"environments": [0.5, -1, 2.5], "logged": [4, 5, 6]}, [0.5, 0, 1.5, 0, 0]),
        (THREE, "x.x.x", {"environments": None, "logged": [4, 5, 6]}, [4, 0, 5, 0, 6]),
        (THREE, "x.x.x", {"environments": None, "logged": None}, [1, 0, 0, 0, 0]),
        # the environment's are of calls, and those of a turn are summed; that which raised may have none
        (THREE, "x.x.x", {"environments": [0.5, -1]}, [0.5, 0, -1, 0, 0]),
        (THREE, "x.x.x", {"environments": [0.5, -1, 2.5, 4]}, [0.5, 0, 1.5, 0, 4]),
        # a call that was refused reached no environment
        (AFTER_REFUSED, "x.x.x", {"environments": [3, 4]}, [0, 0, 7, 0, 0]),
        (AFTER_REFUSED, "x.x.x", {"environments": [3, 4, 5]}, [0, 0, 7, 0, 5]),
        # calls of a rollout that was cut off: their answers were dropped, or no turn came after them
        (CUT_OFF, "x.xx", {"environments": [1, 2]}, [1, 0, 2, 2]),
        (CUT_OFF, "x.xx", {"environments": [1]}, [1, 0, 0, 0]),
        (CUT_OFF[:2], "xx..", {"environments": [1, 2]}, [1, 1, 0, 0]),
        (THREE, "xx....", {"environments": [1, 2, 3]}, [1, 1, 0, 0, 0, 0]),
        (THREE, "......", {"environments": [1, 2, 3]}, [0] * 6),
        # where no message shows a call, and from a reward function, they are of turns
        ("text", "x.x", {"environments": [1]}, [1, 0, 0]),
        ("text", "x.x", {"environments": [1, 2]}, [1, 0, 2]),
        (THREE, "x.x.x", {"logged": [4, 5]}, [4, 0, 5, 0, 0]),
        (CUT_OFF[:1], "xx..", {"logged": [1, 2]}, [1, 1, 0, 0]),
    ],
)
def test_the_reward_of_a_turn(completion, row, given, expected):
    assert rewards(completion, row, **given) == expected


def test_each_rollout_has_its_own_values_and_failures():
    seen = []
    found = turn_rewards(
        [THREE, THREE, TWO],
        ["x.x.x", "x.xxx", "x.x.."],
        failed=lambda b, answer: seen.append((b, answer["content"])),
        environments=[None, [7.0, 8.0, 1.0], None],
        logged=[[4.0, 5.0, 6.0], [0.0, 0.0], None],
    )
    assert found.tolist() == [[4, 0, 5, 0, 6], [7, 0, 9, 9, 9], [1, 0, 0, 0, 0]]
    assert found.dtype == torch.float32 and seen == [(1, "a key"), (1, "open"), (1, WRONG), (2, "a")]


def test_turns_that_nothing_rewards_are_told_of(caplog):
    rewards(TWO, "x.x")
    rewards("text", "x.x", logged=[0.0, 0.0])
    rewards("text", "x.x", environments=[0.0, 0.0])
    assert not caplog.text
    rewards("text", "x.x")
    assert "all turns of this batch are worth 0" in caplog.text


@pytest.mark.parametrize(
    ("completion", "row", "values", "message"),
    [
        (THREE, "x.x.x", [1], "made 3 calls, of which 1 raised, but the environment's turn_rewards() gave 1"),
        (AFTER_REFUSED, "x.x.x", [1] * 4, "made 2 calls, of which 0 raised, but"),
        ("text", "x.x", [1, 2, 3], "has 2 turns, but the environment's turn_rewards() gave 3"),
    ],
)
def test_another_number_of_values_names_both(completion, row, values, message, caplog):
    """The rollout falls back, and the run goes on; but a reward function sees the turns."""
    found = rewards(completion, row, environments=values)
    assert all(math.isnan(v) for v, kept in zip(found, row, strict=True) if kept == "x")
    assert all(v == 0 for v, kept in zip(found, row, strict=True) if kept != "x")
    assert message in caplog.text and "keeps its GRPO advantage" in caplog.text
    count = (len(row) + 1) // 2
    message = f"has {count} turns, but a reward function gave {len(values)}; give one for each turn"
    with pytest.raises(ValueError, match=message):
        rewards(completion, row, logged=values)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logged": ["much"]}, "turn_rewards: rollout 0: a reward function gave 'much'; give a list of num"),
        ({"environments": 0.5}, "rollout 0: .* gave 0.5; give a list of values"),
    ],
)
def test_what_is_no_number_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        rewards([END], "x", **given)
    with pytest.raises(ValueError, match="turn_rewards: 2 entries for 1 completions; give one for each"):
        turn_rewards([[END]], ["x"], logged=[None, None])
    assert math.isnan(rewards([END], "x", logged=[math.nan])[0]), "the engine sees to what is not finite"


def texts(completion: Any, row: str, *states: Any) -> list[str | None]:
    return anchor_texts(batch_with([completion], [row], states or None, "anchor_states"))[0]


BLOCKS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
IMAGE = [BLOCKS[0], {"type": "image", "image": object()}]


@pytest.mark.parametrize(
    ("completion", "row", "environment", "expected"),
    [
        # what the tools answered to the turn before; an empty answer is not the prompt
        (THREE, "x.x.x", [], ["", "\na key", f"\nopen\n{WRONG}"]),
        ([END], "xx", [], [""]),
        ([call(), said(""), END], "x.x", [], ["", "\n"]),
        # unknown: no message, no answer, or an image, of which two may differ
        ("text", "x.x", [], ["", None]),
        ([call(), said(IMAGE), END], "x.x", [], ["", None]),
        ([END, END], "x.x", [], ["", None]),
        # the environment's come first: before each call, and after the last
        (TWO, "x.x", [["hall", "attic"]], ["hall", "attic"]),
        (TWO, "x.x", [["hall"]], ["hall", None]),
        (AFTER_REFUSED, "x.x.x", [["hall", "attic", "loft"]], ["hall", "hall", "loft"]),
        (AFTER_REFUSED, "x.x.x", [["hall", "attic"]], ["hall", "hall", None]),
        (THREE, "x.x.x", [["hall", "attic", "loft", "roof"]], ["hall", "attic", "roof"]),
        (THREE, "x.x.x", [None], ["", "\na key", f"\nopen\n{WRONG}"]),
        # of three calls one raised: three states are before each, or before and after the others
        (THREE, "x.x.x", [["hall", "attic", "hall"]], [None, None, None]),
        (THREE, "x.x.x", [["hall"] * 5], [None, None, None]),
    ],
)
def test_the_state_in_which_a_turn_begins(completion, row, environment, expected):
    assert texts(completion, row, *environment) == expected


def test_states_that_do_not_fit_are_named(caplog):
    texts(THREE, "x.x.x", ["hall"] * 5)
    assert (
        "anchor_states: rollout 0 made 3 calls, of which 1 raised, but the environment's anchor_states() gave 5"
        in caplog.text
    )
    with pytest.raises(ValueError, match="gave 3; give a list of texts"):
        texts([END], "x", [3])


TEXTS = [["", "a", "b"], ["", "b"], ["", "a", "", None], ["", "a"], [None]]
GROUPS = [3, 3, 3, 1, 1]
ROWS = ["x.x.x..", "xx.x...", "x.x.x.x", "x.xx...", "xx....."]


def test_turns_that_began_alike_in_a_group_share_a_number():
    found = anchor_ids(TEXTS, GROUPS, masks(*ROWS))
    # group 3 has "", a, b: 0, 1, 2;  group 1 has "", a: 3, 4;  then those without a text
    assert found.tolist() == [
        [0, -1, 1, -1, 2, -1, -1],
        [0, 0, -1, 2, -1, -1, -1],
        [0, -1, 1, -1, 0, -1, 5],
        [3, -1, 4, 4, -1, -1, -1],
        [6, 6, -1, -1, -1, -1, -1],
    ]
    assert found.dtype == torch.int64


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_each_process_counts_as_all_of_them_together(first):
    whole = anchor_ids(TEXTS, GROUPS, masks(*ROWS))
    part = anchor_ids(TEXTS, GROUPS, masks(*ROWS[first : first + 2]), first=first)
    assert torch.equal(part, whole[first : first + 2])


def test_texts_that_are_alike_enough_share_a_number():
    # of 10 and 10 letters, 9 in common: ratio 2 * 9 / 20
    near, far = ["0123456789", "012345678x"], "01234xxxxx"
    row = [*near, far]
    mask = masks("x.x.x")
    for similarity, expected in ((1.0, [0, 1, 2]), (0.95, [0, 1, 2]), (0.9, [0, 0, 1]), (0.5, [0, 0, 0])):
        found = anchor_ids([row], [0], mask, similarity=similarity)
        assert found[0, ::2].tolist() == expected, similarity
    # the same letters in another order have the quick ratios of a twin
    found = anchor_ids([["abcdef", "fedcba"]], [0], masks("x.x"), similarity=0.9)
    assert found[0].tolist() == [0, -1, 1]
    # long texts of few letters, which difflib takes for junk unless told otherwise
    grid = "".join(random.Random(0).choices("01", k=400))
    assert anchor_ids([[grid, f"{grid[:99]}2{grid[100:]}"]], [0], masks("x.x"), similarity=0.9)[0, 2] == 0
    # groups are never alike
    assert anchor_ids([["a"], ["a"]], [0, 1], masks("x", "x"), similarity=0.1).tolist() == [[0], [1]]
