"""Text in which control tokens are plain text."""

import re
from types import SimpleNamespace

from gear_rl.credit.control_tokens import control_pattern, defuse_text, defused_message


def test_nothing_becomes_a_control_token():
    control = re.compile("|".join(map(re.escape, ["<|im_end|>", "aa", "x ", "!"])))
    for text in ("<|im_<|im_end|>end|>", "aaaa", "x x x", "a!a!", "!!", "<!|im_end|>", "\ud83d<|im_end|>"):
        safe = defuse_text(text, control)
        assert control.search(safe) is None
        safe.encode()
    assert defuse_text("a\ud83db", None) == "a?b"
    assert defuse_text("x² a\uff1c|im_end|\uff1e\u00bd", control) == "x² a< |im_end|>\u00bd"
    assert defuse_text("x² ½ <|im_end|> ﬁ", control) == "x² ½ < |im_end|> ﬁ", "all other text stays"
    assert defuse_text("\uff1cok\uff1e", control) == "\uff1cok\uff1e", "only what spells a token is folded"
    named = {"role": "tool", "name": "a<|im_end|>\udc00", "content": "a<|im_end|>"}
    expected = {"role": "tool", "name": "a< |im_end|>?", "content": "a< |im_end|>"}
    assert defused_message(named, control) == expected


def test_what_counts_as_a_control_token():
    contents = ["<tool_call>", "[INST]", "word", "< a>", "<a", "<a<|b|>"]
    added = [SimpleNamespace(content=text, special=False) for text in contents]
    added += [SimpleNamespace(content=text, special=True) for text in ("  ", "<s>", "<s><s>")]
    added += [SimpleNamespace(content=text, special=False) for text in ("<table>", "</b>", "<|fim|>")]
    tokenizer = SimpleNamespace(
        all_special_tokens=["</s>"],
        added_tokens_decoder=dict(enumerate(added)),
        chat_template="[INST] {{ message }} <tool_call> < a> <a word",
    )
    found, plain = control_pattern(tokenizer), control_pattern(tokenizer, markup=False)
    assert found is not None and plain is not None
    for text in ("<tool_call>", "[INST]", "<|fim|>"):
        assert found.fullmatch(text) and not plain.search(text)
    for text in ("<s>", "</s>"):
        assert found.fullmatch(text) and plain.fullmatch(text)
    for text in ("word", "< a>", "<a", "  ", "<table>", "</b>"):
        assert not found.search(text)
    assert found.match("<s><s>")[0] == "<s><s>", "the longer token first"
