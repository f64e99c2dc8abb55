"""Rewards of single turns and the states they began in, from environments, reward functions and messages."""

import math
from typing import Any

import pytest
import torch

from gear_rl.signals.turns import anchor_ids, anchor_texts, turn_reward_values, turns_of


def call(count: int = 1) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{}] * count}


def said(text: Any, name: str = "look") -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": text}


END = {"role": "assistant", "content": "done"}
WRONG = "{'error': 'no such drawer'}"
THREE = [call(), said("a key"), call(2), said("open"), said(WRONG), END]
"""Three turns: one call that was answered, two calls of which one failed, and the end."""


def masks(*rows: str) -> torch.Tensor:
    """``"xx..x"`` is a turn of two tokens, tool output, and a turn of one."""
    return torch.tensor([[token == "x" for token in row] for row in rows], dtype=torch.bool)


def fails(b: int, answer: Any) -> bool:
    return answer["content"] == WRONG


def rewards(completion: Any, row: str, **given: Any) -> list[float]:
    given = {name: [values] for name, values in given.items()}
    return turn_reward_values(completions=[completion], mask=masks(row), failed=fails, **given)[0].tolist()


def test_a_turn_has_the_calls_of_its_message_and_the_answers_after_it():
    turns = turns_of(THREE, 3)
    assert [(t.calls, [a["content"] for a in t.answers]) for t in turns] == [
        (1, ["a key"]),
        (2, ["open", WRONG]),
        (0, []),
    ]
    assert turns_of(THREE, 5)[3:] == turns_of("text", 2)
    assert turns_of([END, END], 1) == turns_of([END], 1)
    assert turns_of([said("of nobody"), {"role": "assistant", "tool_calls": None}], 1)[0].calls == 0


def test_a_turn_is_worth_1_if_all_its_calls_were_answered_without_a_failure():
    assert rewards(THREE, "xx.x.x") == [1, 1, 0, 0, 0, 0]
    assert rewards([call(2), said("a"), said("b"), END], "x..x") == [1, 0, 0, 0]
    assert rewards([call(2), said("a"), END], "x..x") == [0, 0, 0, 0], "one call was not answered"
    assert rewards([call(), said(WRONG), call(), said("a"), END], "x.x.x") == [0, 0, 1, 0, 0]
    assert rewards([END], "xx") == [0, 0], "a turn without calls is worth nothing"
    assert rewards("text", "x.x") == [0, 0, 0]


def test_a_rollout_that_was_cut_off_is_no_error():
    # the answers did not fit and were dropped; the last turn has no message; there is no last turn
    assert rewards([call(), said("a"), call()], "x.xx") == [1, 0, 0, 0]
    assert rewards([call(), said("a")], "x.xx") == [1, 0, 0, 0]
    assert rewards([call(), said("a")], "xx..") == [1, 1, 0, 0]
    assert rewards([call(), said("a"), END], "....") == [0, 0, 0, 0]
    assert rewards([], "") == []


def test_failed_gets_the_rollout_and_its_answer():
    seen = []

    def failed(b: int, answer: Any) -> bool:
        seen.append((b, answer["content"]))
        return b == 1

    found = turn_reward_values(
        completions=[[call(), said("a"), END], [call(), said("b"), END]],
        mask=masks("x.x", "x.x"),
        failed=failed,
    )
    assert found.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert seen == [(0, "a"), (1, "b")]


def test_the_environment_comes_first_then_a_reward_function_then_the_calls():
    assert rewards(THREE, "x.x.x", environment=[0.5, -1, 2.5]) == [0.5, 0, -1, 0, 2.5]
    assert rewards(THREE, "x.x.x", logged=[4, 5, True]) == [4, 0, 5, 0, 1]
    assert rewards(THREE, "x.x.x", environment=[1, 2, 3], logged=[4, 5, 6]) == [1, 0, 2, 0, 3]
    assert rewards(THREE, "x.x.x", environment=None, logged=None) == [1, 0, 0, 0, 0]
    both = turn_reward_values(
        completions=[THREE, THREE, THREE],
        mask=masks("x.x.x", "x.xxx", "x.x.x"),
        failed=fails,
        environment=[None, [7.0, 8.0], None],
        logged=[[4.0, 5.0, 6.0], [0.0, 0.0], None],
    )
    assert both.tolist() == [[4, 0, 5, 0, 6], [7, 0, 8, 8, 8], [1, 0, 0, 0, 0]]
    assert both.dtype == torch.float32


def test_the_value_of_a_last_turn_that_called_nothing_may_be_left_out():
    assert rewards(THREE, "x.x.x", environment=[0.5, -1]) == [0.5, 0, -1, 0, 0]
    assert rewards("text", "xx", logged=[]) == [0, 0]
    # a turn without a message
    assert rewards([call(), said("a")], "x.xx", environment=[3]) == [3, 0, 0, 0]


def test_values_for_turns_that_never_came_are_dropped():
    rolled_back = [call(), said("a"), call()]  # the tool ran, but its answer did not fit
    assert rewards(rolled_back, "x.x", environment=[1, 2, 3]) == [1, 0, 2]
    assert rewards([call(), said("a")], "xx..", environment=[1, 2]) == [1, 1, 0, 0]
    assert rewards(THREE, "......", environment=[1, 2, 3]) == [0] * 6, "nothing of it is trained"


@pytest.mark.parametrize(
    ("completion", "row", "values", "message"),
    [
        (THREE, "x.x.x", [1], "rollout 0 has 3 turns, but the environment's turn_rewards() gave 1"),
        (THREE, "x.x.x", [1, 2, 3, 4], "rollout 0 has 3 turns, but the environment's turn_rewards() gave 4"),
        (THREE, "x.x.x", [], "has 3 turns, but the environment's turn_rewards() gave 0"),
        ([call(), said("a")], "xx..", [], "has 1 turns, but the environment's turn_rewards() gave 0"),
        ("text", "x.x", [1, 2, 3], "has 2 turns, but the environment's turn_rewards() gave 3"),
    ],
)
def test_another_number_of_values_than_turns_names_both(completion, row, values, message, caplog):
    """An environment does not see a call that was refused: the rollout falls back, and the run goes on."""
    found = rewards(completion, row, environment=values)
    assert all(math.isnan(v) for v, kept in zip(found, row, strict=True) if kept == "x")
    assert all(v == 0 for v, kept in zip(found, row, strict=True) if kept != "x")
    assert message in caplog.text and "keeps its GRPO advantage" in caplog.text
    by_hand = message.replace("the environment's turn_rewards()", "a reward function")
    with pytest.raises(ValueError, match="give one for each turn") as error:
        rewards(completion, row, logged=values)
    assert by_hand in str(error.value)


def test_what_is_no_number_and_a_missing_list_are_named():
    with pytest.raises(
        ValueError, match=r"turn_rewards: rollout 0: a reward function gave 'much'; give a num"
    ):
        rewards([END], "x", logged=["much"])
    with pytest.raises(ValueError, match=r"turn_rewards: rollout 0: the environment's .* gave None"):
        rewards([END], "x", environment=[None])
    for wrong in (0.5, "12"):
        with pytest.raises(
            ValueError, match=r"rollout 0: .* gave .*; give a list with one value for each turn"
        ):
            rewards([END], "x", environment=wrong)
    with pytest.raises(ValueError, match=r'log_extra\("turn_rewards", ...\): 2 values for 1 completions'):
        turn_reward_values(completions=[[END]], mask=masks("x"), failed=fails, logged=[None, None])
    assert math.isnan(rewards([END], "x", logged=[math.nan])[0]), "the engine sees to what is not finite"


def texts(completion: Any, row: str, *environment: Any) -> list[str | None]:
    given = None if not environment else [environment[0]]
    return anchor_texts(completions=[completion], mask=masks(row), environment=given)[0]


def test_a_turn_begins_in_what_the_tools_answered_to_the_one_before():
    assert texts(THREE, "x.x.x") == ["", "\na key", f"\nopen\n{WRONG}"]
    assert texts([END], "xx") == [""]
    assert texts(THREE, ".....") == []
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert texts([call(), said(blocks), END], "x.x") == ["", "\na\nb"]
    assert texts([call(), said(""), END], "x.x") == ["", "\n"], "an empty answer is not the prompt"


def test_where_the_state_is_unknown_there_is_none():
    assert texts("text", "x.x") == ["", None]
    assert texts([call(), said("a")], "x.x.x") == ["", "\na", None]
    image = [{"type": "text", "text": "a"}, {"type": "image", "image": object()}]
    assert texts([call(), said(image), END], "x.x") == ["", None], "two images may differ"
    assert texts([END, END], "x.x") == ["", None], "no tool answered"


def test_the_environments_states_come_first(caplog):
    assert texts(THREE, "x.x.x", ["hall", "attic", "hall"]) == ["hall", "attic", "hall"]
    assert texts(THREE, "x.x.x", ["hall", "attic"]) == ["hall", "attic", None]
    assert texts(THREE, "x.x.x", None) == ["", "\na key", f"\nopen\n{WRONG}"]
    assert texts([call(), said("a"), call()], "x.x", ["hall", "attic", "cellar"]) == ["hall", "attic"]
    assert texts(THREE, "x.x.x", ["hall"] * 5) == [None, None, None]
    assert "anchor_states: rollout 0 has 3 turns, but the environment's anchor_states() gave 5" in caplog.text
    with pytest.raises(ValueError, match=r"anchor_states: rollout 0: .* gave 3; give a text for each turn"):
        texts([END], "x", [3])
    with pytest.raises(
        ValueError, match=r"anchor_states: rollout 0: .* gave 'a'; give a list with one value"
    ):
        texts([END], "x", "a")
    with pytest.raises(ValueError, match=r"anchor_states\(\): 0 values for 1 completions"):
        anchor_texts(completions=[[END]], mask=masks("x"), environment=[])


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


def test_the_numbers_depend_on_the_texts_and_not_on_the_order_of_the_rollouts():
    order = [2, 1, 0, 3, 4]
    turned = anchor_ids([TEXTS[i] for i in order], GROUPS, masks(*(ROWS[i] for i in order)))
    assert torch.equal(turned, anchor_ids(TEXTS, GROUPS, masks(*ROWS))[order])


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


def test_texts_are_compared_with_the_first_of_a_kind_in_alphabetical_order():
    """a-b and b-c are alike by 0.75, a-c are not: with b first all are one kind; here a is first."""
    a, b, c = "aabbccdd", "aabbccxx", "aabbxxyy"
    for row in ([a, b, c], [c, b, a], [b, a, c]):
        found = anchor_ids([row], [0], masks("x.x.x"), similarity=0.75)[0, ::2].tolist()
        assert dict(zip(row, found, strict=True)) == {a: 0, b: 0, c: 1}


def test_groups_are_never_alike():
    found = anchor_ids([["a"], ["a"]], [0, 1], masks("x", "x"), similarity=0.1)
    assert found.tolist() == [[0], [1]]


def test_no_rollout_and_no_column_are_fine():
    none = torch.zeros(0, 4, dtype=torch.bool)
    assert turn_reward_values(completions=[], mask=none, failed=fails).shape == (0, 4)
    assert anchor_ids([], [], none).shape == (0, 4)
    empty = torch.zeros(1, 0, dtype=torch.bool)
    assert anchor_texts(completions=[[END]], mask=empty) == [[]]
    assert anchor_ids([[]], [0], empty).shape == (1, 0)
