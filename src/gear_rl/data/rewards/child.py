"""The other end of ``children``: reads one JSON request a line and answers each with one line.

Run as ``python -P -m gear_rl.data.rewards.child KIND SECONDS``. Whatever a library prints goes to the error
stream, which nobody reads; only replies reach the pipe.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_MEMORY_BYTES = 4 << 30
"""Address space of a child. Powers of powers fail here, not by taking the machine's memory."""

_MARKUP = re.compile(r"\\boxed|\$|\\\(|\\\[")
_PROSE = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}")


def _math_handler() -> Callable[[Any], dict[str, Any]]:
    """Answers ``{"gold"}`` with whether it can be read, and ``{"gold", "text"}`` with the comparison."""
    from math_verify import parse, verify
    from sympy import Integer

    @lru_cache(maxsize=512)  # a group of completions shares its gold answer
    def gold_of(text: str) -> list[Any]:
        values = parsed(text)
        # Parsing does not compute: a tower of powers fails here, before a completion pays for it.
        verify(values, Integer(0), timeout_seconds=None)
        return values

    def parsed(text: str) -> list[Any]:
        # Without markup only plain numbers are recognised, so bare LaTeX is put into a box first. Not prose: a
        # box would read its words as products of letters.
        if not _MARKUP.search(text) and not _PROSE.search(text):
            boxed = parse(f"\\boxed{{{text}}}", parsing_timeout=0)
            if boxed:
                return boxed
        return parse(text, parsing_timeout=0)

    def handle(request: Any) -> dict[str, Any]:
        gold = gold_of(request["gold"])
        if not gold or "text" not in request:
            return {"gold": bool(gold)}
        values = parse(request["text"], parsing_timeout=0)
        right = bool(values) and verify(gold, values, timeout_seconds=None, raise_on_error=True)
        return {"gold": True, "found": str(values[-1])[:200] if values else None, "right": bool(right)}

    return handle


def _reasoning_gym_handler() -> Callable[[Any], dict[str, Any]]:
    """Answers ``{"generator", "settings", "entry", "text"}`` with the generator's own score."""
    import reasoning_gym  # noqa: F401  # pyright: ignore[reportUnusedImport]  # missing: say so at the start

    from gear_rl.data.adapters.reasoning_gym import scorer, unpack

    def handle(request: Any) -> dict[str, Any]:
        score = scorer(request["generator"], request["settings"]).score_answer
        return {"score": float(score(request["text"], unpack(request["entry"])))}

    return handle


def _echo_handler() -> Callable[[Any], dict[str, Any]]:
    """For the tests: echoes, raises, exits, fills memory or computes for ever, as the request says."""

    def handle(request: Any) -> dict[str, Any]:
        match request:
            case {"raise": text}:
                raise ValueError(text)
            case {"exit": code}:
                os._exit(code)
            case {"fill": count}:
                return {"size": len(bytearray(count))}
            case {"power": base}:
                return {"bits": (base ** (base**base)).bit_length()}  # one C call: no signal interrupts it
            case _:
                print("chatter of a library")
                return {"echo": request, "pid": os.getpid()}

    return handle


_HANDLERS = {"math": _math_handler, "reasoning-gym": _reasoning_gym_handler, "echo": _echo_handler}


def _limits() -> Callable[[float], object]:
    """Bound the memory, and return what ends an orphan that hangs: called with seconds, or 0 for no longer."""
    try:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    except (ImportError, ValueError, OSError):  # not on this system; the parent's limit remains
        return lambda seconds: None
    # The default action of the signal, taken by the kernel, also ends a computation inside C.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)


def _main(kind: str, seconds: str) -> None:
    """Answer requests until the pipe closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)

    def reply(answer: dict[str, Any]) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    try:
        handle = _HANDLERS[kind]()
    except ImportError as error:
        reply({"error": f"{error}; run: pip install 'gear-rl[{_EXTRAS[kind]}]'"})
        return
    reply({"ready": True})
    guard = _limits()
    for line in sys.stdin:
        guard(2 * float(seconds))  # later than the parent, who kills at once
        try:
            answer = handle(json.loads(line))
        except Exception as error:
            answer = {"failed": "error", "error": f"{type(error).__name__}: {str(error)[:200]}"}
        guard(0)  # who waits for work may wait for ever
        reply(answer)


_EXTRAS = {"math": "math", "reasoning-gym": "reasoning-gym", "echo": "math"}

if __name__ == "__main__":
    _main(*sys.argv[1:3])
