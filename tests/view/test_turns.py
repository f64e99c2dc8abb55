"""Turns on lines of their own, in every view, without a number of a trained token changed."""

from gear_rl.records import Record
from gear_rl.view.picture import save_picture
from gear_rl.view.turns import by_turn, has_turns


def record(**changes):
    opens = "\n<|im_start|>user\n<tool_response>\n"
    closes = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    call = ["<tool_call>", "\n{look}\n", "</tool_call>", "<|im_end|>"]
    tokens = [*call, opens, "a\nb", closes, "well\n", "done"]
    asked = "<|im_start|>user\nlook for\nit<|im_end|>\n<|im_start|>assistant\n"
    mask = [1, 1, 1, 1, 0, 0, 0, 1, 1]
    fields = {
        "step": 0, "group": 0, "method": "gear", "tokens": tokens, "ids": list(range(9)), "mask": mask,
        "prompt": f"<|im_start|>system\ntools<|im_end|>\n{asked}",
        "turn": [0, 0, 0, 0, -1, -1, -1, 1, 1], "segment": [0, 1, 1, 2, -1, -1, -1, 3, 4], "reward": 1.0,
        "advantage": 1.0, "credit": [0.1 * t * m for t, m in enumerate(mask)],
        "weight": [0.1 * t * m for t, m in enumerate(mask)],
        "signals": {"divergence": [float(t) * m for t, m in enumerate(mask)]},
    }  # fmt: skip
    return Record(**(fields | changes))


def test_answers_lose_their_frame_and_calls_their_line_breaks():
    laid = by_turn(record())
    assert laid.tokens == [
        "<tool_call>",
        "⏎{look}⏎",
        "</tool_call>",
        "<|im_end|>\n",
        "a\nb\n",
        "well\n",
        "done",
    ]
    assert laid.prompt == "look for\nit"
    assert laid.mask == [1, 1, 1, 1, 0, 1, 1]
    assert laid.turn == [0, 0, 0, 0, -1, 1, 1]
    assert laid.segment == [0, 1, 1, 2, -1, 3, 4]


def test_no_number_of_a_trained_token_changes():
    before, after = record(), by_turn(record())
    for name in ("ids", "credit", "weight", "segment", "turn"):
        old, new = getattr(before, name), getattr(after, name)
        assert [x for x, m in zip(old, before.mask, strict=True) if m] == [
            x for x, m in zip(new, after.mask, strict=True) if m
        ]
    trained = [d for d, m in zip(after.signals["divergence"], after.mask, strict=True) if m]
    assert trained == [0.0, 1.0, 2.0, 3.0, 7.0, 8.0]
    assert by_turn(after) is not after
    assert by_turn(after).tokens == after.tokens, "laying out twice changes nothing"


def test_one_turn_is_left_alone(tmp_path):
    single = record(mask=[1] * 9, turn=[0] * 9)
    assert not has_turns(single)
    assert by_turn(single) is single
    odd = record(prompt="no chat format")
    assert by_turn(odd).prompt == "no chat format"
    save_picture([record(), odd], tmp_path / "a.svg")
    assert "look for" in (tmp_path / "a.svg").read_text()
