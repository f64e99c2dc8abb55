"""What a prompt is: text or chat messages that say something; its checksum decides what is held out."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from gear_rl.data.rewards.text import content_text


def checksum(prompt: Any) -> float:
    """Where in [0, 1) a prompt falls, by the sha256 of its text; white space and chat wrapping do not count.

    >>> checksum("2 + 2") == checksum([{"role": "user", "content": " 2 +\\n2"}]) != checksum("2 + 3")
    True
    """
    messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    parts = [
        [message["role"], " ".join(content_text(message.get("content")).split())] for message in messages
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48  # 48 bits: the quotient is exact, and below 1


def prompt_fault(prompt: Any) -> str | None:
    """What is wrong with a prompt, in a few words; None for text or chat messages that say something.

    >>> prompt_fault("2 + 2"), prompt_fault(" "), prompt_fault(7), prompt_fault([{"role": "user"}])
    (None, 'prompt is empty', 'prompt is neither text nor messages but int', 'prompt is empty')
    """
    if prompt is None:
        return "prompt is missing"
    if isinstance(prompt, str):
        return None if prompt.strip() else "prompt is empty"
    if not isinstance(prompt, list):
        return f"prompt is neither text nor messages but {type(prompt).__name__}"
    said = False
    for message in cast(list[Any], prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return "prompt holds a message without a role"
        content = message.get("content")
        if not isinstance(content, str | list | None):
            return f"prompt holds a message whose content is {type(content).__name__}"
        # An image is content too.
        said = said or bool(content_text(content).strip() if isinstance(content, str) else content)
    return None if said else "prompt is empty"
