"""A vLLM server on this machine, in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": "", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@contextmanager
def serving(folder: str, log: Path) -> Iterator["Server"]:
    """A server of the model in a folder, in float32, until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "640", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    inherited = {name: x for name, x in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=inherited | ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        server.wait()
        yield server
    finally:
        server.kill()


class Server:
    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url, self.process, self.log = url, process, log

    def wait(self, limit: float = 240.0) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    return
            except requests.RequestException:
                time.sleep(0.5)
        raise TimeoutError(self.log.read_text(errors="replace")[-3000:])

    def kill(self) -> None:
        """End it and its engine at once, as a machine that goes down."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()
