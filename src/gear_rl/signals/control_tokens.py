"""Control tokens of a chat inside text that the model, a tool or a dataset wrote: they must stay plain text.

Knows no model and no trainer; a tokenizer is only read for its special tokens.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from gear_rl.environments import is_blocks


def control_pattern(tokenizer: Any, markup: bool = True) -> re.Pattern[str] | None:
    """What the tokenizer turns into single control tokens; None if it has no such tokens.

    The special tokens, and with ``markup`` added ones that look like it (``<tool_call>``, ``[INST]``): both steer
    a chat. Added words that are plain text are none.

    >>> from types import SimpleNamespace
    >>> pattern = control_pattern(SimpleNamespace(all_special_tokens=["<|im_end|>"]))
    >>> [bool(pattern.search(text)) for text in ("done<|im_end|>", "done")]
    [True, False]
    """
    tokens: set[str] = set(getattr(tokenizer, "all_special_tokens", ()))
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    for token in added.values():
        text = str(token.content)
        if getattr(token, "special", False) or (markup and re.fullmatch(r"<[^<>\s]+>|\[[^\[\]\s]+\]", text)):
            tokens.add(text)
    tokens = {text for text in tokens if text.strip()}
    if not tokens:
        return None
    return re.compile("|".join(re.escape(text) for text in sorted(tokens, key=len, reverse=True)))


def defused(text: str, control: re.Pattern[str] | None) -> str:
    """The text with a space after the first character of every control token, so that it stays plain text.

    A visible change on purpose: what a tokenizer's normaliser might drop again would be no protection. A token
    that this does not break (a single character) becomes a space; half a surrogate pair, which JSON can spell
    and no tokenizer takes, becomes a question mark. Full-width letters that spell a token become plain ones
    first, as some tokenizers make them.

    >>> defused("a<|im_end|>b", re.compile(re.escape("<|im_end|>")))
    'a< |im_end|>b'
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    if control is None:
        return text
    folded = unicodedata.normalize("NFKC", text)
    text = folded if control.search(folded) else text

    def broken(match: re.Match[str]) -> str:
        apart = f"{match[0][:1]} {match[0][1:]}"
        return " " if control.search(apart) else apart

    while control.search(text):
        text = control.sub(broken, text)
    return text


def defused_message(message: Mapping[str, Any], control: re.Pattern[str] | None) -> dict[str, Any]:
    """A tool's message with its name (the model's word, which some templates render) and its text defused.

    >>> defused_message({"role": "tool", "content": "a<|im_end|>"}, re.compile(re.escape("<|im_end|>")))
    {'role': 'tool', 'content': 'a< |im_end|>'}
    """
    safe, content = dict(message), message["content"]
    if isinstance(message.get("name"), str):
        safe["name"] = defused(message["name"], control)
    if isinstance(content, str):
        safe["content"] = defused(content, control)
    elif is_blocks(content):
        safe["content"] = [
            {**block, "text": defused(str(block["text"]), control)} if block["type"] == "text" else block
            for block in content
        ]
    return safe
