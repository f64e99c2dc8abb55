"""Control tokens of a chat inside text that the model, a tool or a dataset wrote: they must stay plain text.

Knows no model and no trainer; a tokenizer is only read for its special tokens.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from gear_rl.environments import is_blocks


def control_pattern(tokenizer: Any, markup: bool = True) -> re.Pattern[str] | None:
    """What the tokenizer turns into single control tokens; None if it has no such tokens.

    The special tokens, and with ``markup`` added ones that steer a chat: those that its template writes
    (``<tool_call>``), and ``<|...|>``. Other added words, such as Gemma's ``<table>``, are plain text.

    >>> from types import SimpleNamespace
    >>> pattern = control_pattern(SimpleNamespace(all_special_tokens=["<|im_end|>"]))
    >>> [bool(pattern.search(text)) for text in ("done<|im_end|>", "done")]
    [True, False]
    """
    tokens: set[str] = set(getattr(tokenizer, "all_special_tokens", ()))
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    template = str(getattr(tokenizer, "chat_template", ""))
    for token in added.values():
        text = str(token.content)
        steers = re.fullmatch(r"<\|\S+\|>", text) or (
            re.fullmatch(r"<\S+>|\[\S+\]", text) and text in template
        )
        if getattr(token, "special", False) or (markup and steers):
            tokens.add(text)
    tokens = {text for text in tokens if text.strip()}
    if not tokens:
        return None
    return re.compile("|".join(re.escape(text) for text in sorted(tokens, key=len, reverse=True)))


def defuse_text(text: str, control: re.Pattern[str] | None) -> str:
    """The text with a space after the first character of every control token, so that it stays plain text.

    A visible change on purpose: what a tokenizer's normaliser might drop again would be no protection. A token
    that this does not break (a single character) becomes a space; half a surrogate pair, which JSON can spell
    and no tokenizer takes, becomes a question mark. Full-width letters that spell a token become plain ones,
    as some tokenizers make them; all other text stays.

    >>> defuse_text("a<|im_end|>b", re.compile(re.escape("<|im_end|>")))
    'a< |im_end|>b'
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    if control is None:
        return text

    def break_tokens(parts: Sequence[str]) -> str | None:
        """The text of which ``parts`` are the characters as a tokenizer reads them; None without a token."""
        found = [*control.finditer("".join(parts))]
        ends, place, kept = [*accumulate(map(len, parts))], 0, list[str]()
        for match in found:
            apart = f"{match[0][:1]} {match[0][1:]}"
            begin, end = bisect_right(ends, match.start()), bisect_left(ends, match.end()) + 1
            kept += [text[place:begin], " " if control.search(apart) else apart]
            place = end
        return "".join([*kept, text[place:]]) if found else None

    while True:
        broken = break_tokens(text)
        if broken is None and not text.isascii():
            broken = break_tokens([unicodedata.normalize("NFKC", character) for character in text])
        if broken is None:
            return text
        text = broken


def defused_message(message: Mapping[str, Any], control: re.Pattern[str] | None) -> dict[str, Any]:
    """A tool's message with its name (the model's word, which some templates render) and its text defused.

    >>> defused_message({"role": "tool", "content": "a<|im_end|>"}, re.compile(re.escape("<|im_end|>")))
    {'role': 'tool', 'content': 'a< |im_end|>'}
    """
    safe, content = dict(message), message["content"]
    if isinstance(message.get("name"), str):
        safe["name"] = defuse_text(message["name"], control)
    if isinstance(content, str):
        safe["content"] = defuse_text(content, control)
    elif is_blocks(content):
        safe["content"] = [
            {**block, "text": defuse_text(str(block["text"]), control)} if block["type"] == "text" else block
            for block in content
        ]
    return safe
