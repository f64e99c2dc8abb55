"""Turns have lines of their own, and no number of a trained token changes."""

from gear_rl.records import Record
from gear_rl.view.turns import by_turn

MASK = [1, 1, 1, 1, 0, 0, 0, 1, 1]


def record(**changes):
    opens = "\n<|im_start|>user\n<tool_response>\n"
    closes = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    call = ["<tool_call>", "\n{look}\n", "</tool_call>", "<|im_end|>"]
    prompt = "<|im_start|>system\ntools<|im_end|>\n<|im_start|>user\nlook for\nit<|im_end|>\n"
    fields = {
        "step": 0, "group": 0, "method": "gear", "tokens": [*call, opens, "a\nb", closes, "well\n", "done"],
        "ids": list(range(9)), "mask": MASK, "prompt": prompt, "turn": [0, 0, 0, 0, -1, -1, -1, 1, 1],
        "segment": [0, 1, 1, 2, -1, -1, -1, 3, 4], "reward": 1.0, "advantage": 1.0,
        "credit": [0.1 * t * m for t, m in enumerate(MASK)], "weight": [0.2 * t * m for t, m in enumerate(MASK)],
        "signals": {"divergence": [float(t) * m for t, m in enumerate(MASK)]},
    }  # fmt: skip
    return Record(**(fields | changes))


def test_answers_lose_their_frame_and_calls_their_line_breaks():
    before, after = record(), by_turn(record())
    call = ["<tool_call>", "⏎{look}⏎", "</tool_call>", "<|im_end|>\n"]
    assert after.tokens == [*call, "a\nb\n", "well\n", "done"]
    assert after.prompt == "look for\nit" and by_turn(record(prompt="no chat")).prompt == "no chat"
    kept = [0, 1, 2, 3, 4, 7, 8]
    for name in ("ids", "mask", "turn", "segment", "credit", "weight"):
        assert getattr(after, name) == [getattr(before, name)[t] for t in kept]
    assert after.signals == {"divergence": [0.0, 1.0, 2.0, 3.0, 0.0, 7.0, 8.0]}
    assert by_turn(after).tokens == after.tokens, "laying out twice changes nothing"
    single = record(mask=[1] * 9, turn=[0] * 9)
    assert by_turn(single) is single
