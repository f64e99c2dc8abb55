"""Scoring in child processes that can be killed: what a library does with a model's text may never end.

Computer algebra on a model's text hangs, exhausts memory, and uses signals that only a main thread may use. A
child has all of that to itself. It is a plain ``python -m``, not ``multiprocessing``: that would import the
user's training script again in every child.
"""

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_SECONDS = 180.0
"""How long a child may take to import its library, on a machine that is busy."""
REQUESTS_PER_CHILD = 8
"""A further child is started only for this many requests more: each costs a second and 100 MB."""

Reply = dict[str, Any]
"""What the child answers; ``{"failed": "timeout"}``, ``"crash"`` or ``"error"`` if it did not."""


class Children:
    """A few children of one kind, one request at a time each; one that hangs or dies is replaced.

    ``kind`` names a handler of ``gear_rl.data.rewards.child``. Safe to call from any thread. Children end with
    the interpreter, and by themselves when it is killed.

    >>> Children("echo", limit_s=5.0, most=1).ask([])
    []
    """

    def __init__(self, kind: str, *, limit_s: float, most: int) -> None:
        self.kind = kind
        self.limit_s = limit_s
        self.most = most
        self._lock = threading.Lock()
        self._slots: list[_Child | None] = [None] * most
        self._owner = os.getpid()
        atexit.register(self.close)

    def ask(self, requests: Sequence[Any]) -> list[Reply]:
        """The replies, in order; each request has ``limit_s`` seconds to itself.

        Raises ``RuntimeError`` if a child cannot start at all, for instance because its library is missing.
        """
        if not requests:
            return []
        with self._lock:
            if os.getpid() != self._owner:  # after a fork the pipes are the parent's
                for slot in range(self.most):
                    self._slots[slot] = None
                self._owner = os.getpid()
            replies: list[Reply] = [{} for _ in requests]
            left = deque(enumerate(requests))

            def work(slot: int) -> None:
                while left:
                    try:
                        index, request = left.popleft()
                    except IndexError:  # another thread took the last one
                        return
                    replies[index] = self._ask(slot, request)
                    if replies[index].get("failed") == "crash":
                        # It may have died while it was idle, of another's hunger for memory.
                        replies[index] = self._ask(slot, request)

            busy = min(self.most, -(-len(requests) // REQUESTS_PER_CHILD))
            with ThreadPoolExecutor(max_workers=busy) as threads:
                for done in [threads.submit(work, slot) for slot in range(busy)]:
                    done.result()
            return replies

    def _ask(self, slot: int, request: Any) -> Reply:
        child = self._slots[slot]
        if child is None:
            child = self._slots[slot] = _Child(self.kind, self.limit_s)
        reply = child.ask(request)
        if child.ended:
            self._slots[slot] = None
        return reply

    def close(self) -> None:
        """End every child; the next ``ask`` starts new ones."""
        if os.getpid() == self._owner:
            for slot, child in enumerate(self._slots):
                if child is not None:
                    child.kill()
                    self._slots[slot] = None


class _Child:
    def __init__(self, kind: str, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ended = False
        root = str(Path(__file__).parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            # -P: the current folder must not shadow the standard library. No stderr: the library's own chatter.
            [sys.executable, "-P", "-m", "gear_rl.data.rewards.child", kind, str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            encoding="ascii",
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        hello = self._next(START_SECONDS)
        if "ready" not in hello:
            self.kill()
            raise RuntimeError(hello.get("error") or f"the scoring process did not start: {hello}")

    def ask(self, request: Any) -> Reply:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            self.kill()
            return {"failed": "crash"}
        return self._next(self.limit_s)

    def _next(self, seconds: float) -> Reply:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            return {"failed": "timeout"}
        if line is None:
            self.kill()
            return {"failed": "crash"}
        return json.loads(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def kill(self) -> None:
        self.ended = True
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # what was still to be written has nowhere to go
                self._process.stdin.close()


_SHARED: dict[tuple[str, float, int], Children] = {}


def children(kind: str, *, limit_s: float, most: int) -> Children:
    """The process-wide children of these settings: two rewards with the same ones share them.

    >>> children("echo", limit_s=5.0, most=1) is children("echo", limit_s=5.0, most=1)
    True
    """
    key = (kind, limit_s, most)
    if key not in _SHARED:
        _SHARED[key] = Children(kind, limit_s=limit_s, most=most)
    return _SHARED[key]
