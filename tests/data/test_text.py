"""What a reward sees of a completion: the last message, without its reasoning."""

import pytest

from gear_rl.data.rewards.text import final_texts, opens_reasoning, strip_reasoning


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("6", False, "6"),
        ("<think>5?</think>4", False, "4"),
        ("<think>5", False, ""),
        ("5?</think>4", False, "4"),
        ("<think>a</think>b<think>c", False, ""),
        ("<think>a</think>b<think>c</think>d", False, "d"),
        ("<thinking>5</thinking>4", False, "4"),
        ("<reasoning>5</reasoning>\n<answer>4</answer>", False, "\n<answer>4</answer>"),
        ("[THINK]5[/THINK]4", False, "4"),
        # The prompt ends in <think>: what the model writes is reasoning until it closes the tag.
        (r"so \boxed{5}", True, ""),
        (r"so \boxed{5}</think>\boxed{4}", True, r"\boxed{4}"),
        ("<think>5</think>4", True, "4"),
    ],
)
def test_reasoning_is_stripped(text, opened, expected):
    assert strip_reasoning(text, opened) == expected


def test_a_prompt_opens_reasoning_only_at_its_end():
    prompts = [
        "2 = <think>\n",
        "<think>\n\n</think>\n\n",
        "Reason inside <think> tags. 2 =",
        [{"role": "user"}],
        None,
    ]
    assert opens_reasoning({"prompts": prompts}, 5) == [True, False, False, False, False]
    # Behind the chat template it is seen in messages too.
    assert opens_reasoning({"prompts": prompts, "prompt_end": ["", "", "", "assistant\n<think>\n", ""]}, 5)[3]


def test_each_completion_is_read_under_its_own_prompt():
    assert final_texts(["5", "5"], {"prompts": ["a <think>", "a"]}) == ["", "5"]
    assert final_texts([[], [{"role": "assistant", "content": None}]], {}) == ["", ""]
