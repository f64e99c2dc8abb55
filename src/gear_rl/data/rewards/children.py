"""Scoring in child processes that can be killed: computer algebra on a model's text hangs and exhausts memory.

A child runs ``python -m`` of this file: ``multiprocessing`` would import the user's training script again. It
reads one JSON request per line and writes one line for each.
"""

import atexit
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

STALL_SECONDS = 180.0
"""How long a child may be silent, on a machine that is busy: while it imports its library, or computes."""
REQUESTS_PER_CHILD = 8
"""Requests per started child: a child costs a second and 100 MB."""
_MEMORY_BYTES = 4 << 30
"""Address space of a child, so that a power of powers does not take the machine's memory."""

Reply = dict[str, Any]
"""The handler's answer; ``{"failed": "timeout"}``, ``"crash"`` or ``"error"`` without one."""


class Children:
    """At most ``most`` child processes that run one handler; one that hangs or dies is replaced.

    A request may take ``limit_s`` of processor time, which a busy machine does not stretch. ``handler`` is a
    ``module:function`` that returns the function from request to reply. The children end with this process.
    """

    def __init__(self, handler: str, *, limit_s: float, most: int) -> None:
        self.handler, self.limit_s, self.most = handler, limit_s, most
        self._idle = deque[_Child]()
        owner = os.getpid()  # a fork leaves its parent's children alone
        atexit.register(lambda: self.close() if os.getpid() == owner else None)

    def ask(self, requests: Sequence[Any]) -> list[Reply]:
        """The replies, in order; ``RuntimeError`` if a child cannot start, for instance without its library."""
        if not requests:
            return []
        busy = min(self.most, -(-len(requests) // REQUESTS_PER_CHILD))
        with ThreadPoolExecutor(max_workers=busy) as threads:
            return list(threads.map(self._ask, requests))

    def _ask(self, request: Any) -> Reply:
        reply: Reply = {}
        for _ in range(2):  # an idle child may have been OOM-killed: retried once
            try:
                child = self._idle.pop()
            except IndexError:
                child = _Child(self.handler, self.limit_s)
            reply = child.ask(request)
            if child.process.poll() is None:
                self._idle.append(child)
            if reply.get("failed") != "crash":
                break
        return reply

    def close(self) -> None:
        """End every idle child."""
        while self._idle:
            self._idle.pop().close()


class _Child:
    def __init__(self, handler: str, limit_s: float) -> None:
        root = str(Path(__file__).parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            # -P: the current folder must not shadow the standard library.
            [sys.executable, "-P", "-m", "gear_rl.data.rewards.children", handler, str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            encoding="ascii",
        )
        hello = self._reply()
        if "ready" not in hello:
            self.close()
            raise RuntimeError(f"the scoring process did not start: {hello.get('error', hello)}")

    def ask(self, request: Any) -> Reply:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            self.close()
            return {"failed": "crash"}
        return self._reply()

    def _reply(self) -> Reply:
        assert self.process.stdout is not None
        timer = threading.Timer(STALL_SECONDS, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        self.close()
        return {"failed": "timeout" if self.process.returncode == -signal.SIGPROF else "crash"}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what was still to be written
                pipe.close()


def children(handler: str, *, limit_s: float, most: int) -> Children:
    """The children of these settings that this process shares."""
    return _shared_children(handler, limit_s, most, os.getpid())


@lru_cache
def _shared_children(handler: str, limit_s: float, most: int, pid: int) -> Children:
    return Children(handler, limit_s=limit_s, most=most)


def _main(handler: str, seconds: str) -> None:
    """The child: answer requests until the pipe closes; what a library prints goes to the error stream."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)

    def reply(answer: Reply) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    module, _, name = handler.partition(":")
    try:
        handle: Callable[[Any], Reply] = getattr(import_module(module), name)()
    except ImportError as error:
        reply({"error": str(error)})
        return
    reply({"ready": True})
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on this system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # ends a computation inside C too
        try:
            answer = handle(json.loads(line))
        except Exception as error:
            answer = {"failed": "error", "error": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(answer)


if __name__ == "__main__":
    _main(*sys.argv[1:3])
