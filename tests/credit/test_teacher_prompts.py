"""The teacher's prompt: where the context goes, and where it never goes."""

import copy

import pytest

from engines import tiny
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.teacher_prompts import render, teacher_prompts, warn_of_several
from support import batches
from support.batches import PlainEngine

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "first {privileged_context}"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "second"},
]
BLOCKS = [{"type": "image"}, {"type": "text", "text": "q"}]


@pytest.mark.parametrize(
    ("chat", "place", "content"),
    [
        # the first user message; what is filled in is never searched
        (CHAT, 1, "first {privileged_context} | the {prompt} answer | \\boxed{}"),
        (CHAT[:1], 0, "be brief | the {prompt} answer | \\boxed{}"),
        (
            [{"role": "user", "content": BLOCKS}],
            0,
            [{"type": "image"}, {"type": "text", "text": "q | the {prompt} answer | \\boxed{}"}],
        ),
    ],
)
def test_one_message_takes_the_context_and_nothing_else_changes(chat, place, content):
    given = copy.deepcopy(chat)
    shown = render(chat, "the {prompt} answer", "{prompt} | {privileged_context} | \\boxed{}")
    assert shown[place] == {**chat[place], "content": content} and chat == given
    assert [*shown[:place], *shown[place + 1 :]] == [*chat[:place], *chat[place + 1 :]]


def test_the_last_user_message_takes_the_context_where_it_is_asked():
    shown = render(CHAT, "4", "{prompt} | {privileged_context}", "last")
    assert shown == [*CHAT[:3], {"role": "user", "content": "second | 4"}]
    assert render(CHAT[:1], "4", "{prompt} | {privileged_context}", "last")[0]["content"] == "be brief | 4"


@pytest.mark.parametrize(("setting", "warned", "held"), [(None, 1, "a"), ("first", 0, "a"), ("last", 0, "c")])
def test_several_user_messages_are_told_once(setting, warned, held, caplog):
    fast = tiny.tokenizer()
    prompt = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), "abc", strict=True)
    ]
    config = CreditConfig(
        teacher_context_message=setting, teacher_prompt_template="{prompt}={privileged_context}"
    )
    warn_of_several.cache_clear()
    for prompts in ([prompt] * 2, [prompt[:1], prompt]):
        batch = batches.written(fast, ["1", "2"], prompts=prompts)
        shown, _ = teacher_prompts(batch, PlainEngine(fast), config, ["4", "4"])
    assert caplog.text.count("teacher_context_message") == warned
    text = fast.decode(shown.ids_BP[1][shown.attention_BP[1].bool()])
    assert f"{held}=4<|im_end|>" in text and text.count("=4") == 1
