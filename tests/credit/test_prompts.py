"""Prompts that a chat template refuses, and those that went through it already."""

import re
from types import SimpleNamespace

import pytest
from transformers.utils.chat_template_utils import get_json_schema

from engines import tiny
from gear_rl.credit.prompts import check_untemplated, naming_refused

QWEN, LLAMA2 = tiny.tokenizer(), tiny.llama2_tokenizer()


def family(template, *specials, bos=None):
    """A tokenizer with the template of a family, in which a message's content is ``{}``."""

    def apply(messages, **_):
        return template.format(messages[0]["content"])

    return SimpleNamespace(
        chat_template=template, apply_chat_template=apply, all_special_tokens=[*specials], bos_token=bos
    )


LLAMA3 = family(
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    bos="<|begin_of_text|>",
)
GEMMA = family(
    "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    bos="<bos>",
)
BASE = SimpleNamespace(chat_template=None, all_special_tokens=["<|im_start|>"], bos_token=None)


def shown(tokenizer, text, **options):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, **{"add_generation_prompt": True, **options}
    )


TEMPLATED = [
    *((one, shown(one, "2 + 2")) for one in (QWEN, LLAMA2, LLAMA3, GEMMA)),
    (QWEN, shown(QWEN, "2 + 2", add_generation_prompt=False)),
    (QWEN, "\n<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n2 + 2<|im_end|>\n"),
    (LLAMA2, "[INST] 2 + 2 [/INST]"),
    (LLAMA3, shown(LLAMA3, "2 + 2").removeprefix("<|begin_of_text|>")),
]


@pytest.mark.parametrize(("tokenizer", "text"), TEMPLATED)
def test_a_prompt_that_is_templated_already_is_named(tokenizer, text):
    message = "prompt: row 2, .* went through the chat template already; give its messages"
    with pytest.raises(ValueError, match=message) as caught:
        check_untemplated(["2 + 2", text], tokenizer, reads_context=True, name="row")
    assert "\n" not in str(caught.value)
    wrapped = [{"role": "system", "content": "brief"}, {"role": "user", "content": text}]
    with pytest.raises(ValueError, match=r"prompt: prompt 1, system, user: 'brief'"):
        check_untemplated([wrapped], tokenizer, reads_context=False)
    blocks = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    with pytest.raises(ValueError, match="went through the chat template"):
        check_untemplated([blocks], tokenizer, reads_context=False)


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (QWEN, "2 + 2"),
        (QWEN, "What does <|im_start|> mean?"),
        (QWEN, "<think> or not?"),
        (LLAMA2, "Why does [/INST] stand behind a question?"),
        (LLAMA2, "<b>2 + 2</b>"),
        (BASE, "<|im_start|>user"),
    ],
)
def test_other_prompts_are_not(tokenizer, text):
    check_untemplated([text, [{"role": "user", "content": text}]], tokenizer, reads_context=True)
    check_untemplated([[{"role": "assistant", "content": shown(QWEN, text)}]], tokenizer, reads_context=True)


def test_plain_text_may_be_templated_where_nothing_is_put_behind_it():
    check_untemplated([shown(QWEN, "2 + 2")], QWEN, reads_context=False)
    with pytest.raises(ValueError, match="went through the chat template already"):
        check_untemplated([shown(LLAMA3, "2 + 2")], LLAMA3, reads_context=False)  # two first tokens


def test_the_prompt_that_a_template_refuses_is_named_with_its_rule():
    def render(prompt):
        return LLAMA2.apply_chat_template(prompt, tokenize=False)

    right = [{"role": "user", "content": "2 + 2"}]
    wrong = [{"role": "system", "content": "be\nbrief"}, *right]
    message = (
        r"prompt: the model's chat template refuses row 2, system, user: 'be\nbrief' (Conversation roles must "
        "alternate user/assistant/user/assistant/...); give messages that it takes"
    )
    with (
        pytest.raises(ValueError, match=re.escape(message)) as caught,
        naming_refused([right, wrong], render, "row"),
    ):
        render(wrong)
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyError), naming_refused([right], render):
        raise KeyError("another's")


def test_a_tool_that_cannot_be_shown_is_not_taken_for_the_prompts_fault():
    def helper(x: int) -> int:
        return x

    def untyped(x):
        """Help.

        Args:
            x: A number.
        """

    for tool, fault in (
        (helper, "helper because it has no docstring"),
        (untyped, "missing a type hint in func"),
    ):
        refusing = naming_refused([1], lambda _, tool=tool: get_json_schema(tool))
        with pytest.raises(ValueError, match=rf"^tools: .*{fault}.*\. A tool, as every"), refusing:
            get_json_schema(tool)
