"""A model behind an endpoint of this machine; the server is a script that starts, answers, dies or hangs."""

import os
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from gear_rl.errors import InputError
from gear_rl.experiments import serving
from gear_rl.experiments.serving import given_endpoint, served, server_command

SERVER = """#!{python} -I
import http.server, os, pathlib, signal, subprocess, sys, time
print("starting", *sys.argv[1:], flush=True)
how = os.environ["HOW"]
if how == "fails":
    sys.exit("no memory left")
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "hangs":
    time.sleep(60)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(os.environ["PIDS"]).write_text(f"{{os.getpid()}} {{child.pid}}")

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = {{"/version": b'{{"version": "9.9"}}', "/v1/models": b'{{"data": [{{"id": "m"}}]}}'}}
        body = known.get(self.path, b"{{}}")
        if self.path == "/die":
            os._exit(3)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A command vllm on the PATH that answers; the environment's HOW says what else it does."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("HOW", "answers")
    monkeypatch.setattr(serving, "_dtype", lambda: "float32")
    (tmp_path / "models" / "mine").mkdir(parents=True)
    return tmp_path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@contextmanager
def of(vllm: Path, seconds: float = 30):
    options = ("--max-model-len", "64")
    with served(str(vllm / "models" / "mine"), "vllm", vllm / "log", options, seconds) as endpoint:
        yield endpoint


def test_it_answers_while_it_is_open_and_ends_with_its_children(vllm):
    with pytest.raises(KeyError), of(vllm) as endpoint:
        assert endpoint.model == "mine" and endpoint.about["version"] == "9.9"
        assert str(vllm) not in str(endpoint.about)
        assert endpoint.about["command"].endswith("--dtype float32 --max-model-len 64")
        urllib.request.urlopen(endpoint.url).close()
        pids = [int(pid) for pid in (vllm / "pids").read_text().split()]
        assert all(map(alive, pids))
        raise KeyError
    assert gone(pids)


def test_one_that_is_deaf_ends_too_where_the_waiting_is_interrupted(vllm, monkeypatch):
    monkeypatch.setenv("HOW", "deaf")

    wait, calls = serving.subprocess.Popen.wait, []

    def interrupted_once(child, timeout=None):
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(child, timeout)

    with pytest.raises(KeyboardInterrupt), of(vllm):
        pids = [int(pid) for pid in (vllm / "pids").read_text().split()]
        monkeypatch.setattr(serving.subprocess.Popen, "wait", interrupted_once)
    assert gone(pids)


@pytest.mark.parametrize(
    ("how", "words"), [("fails", "no memory left"), ("hangs", "did not answer within 1 s")]
)
def test_one_that_never_answers_is_an_error_with_its_last_words(vllm, monkeypatch, how, words):
    monkeypatch.setenv("HOW", how)
    with pytest.raises(InputError, match=words), of(vllm, 30 if how == "fails" else 1):
        raise AssertionError("it was given out")


def test_one_that_died_meanwhile_makes_the_scores_worthless(vllm):
    with pytest.raises(InputError, match="died before the end"), of(vllm) as endpoint:
        with pytest.raises(OSError):
            urllib.request.urlopen(endpoint.url.removesuffix("/v1") + "/die")
        assert gone([int((vllm / "pids").read_text().split()[0])])


def test_a_given_endpoint_has_to_answer_and_to_have_the_model(vllm):
    with of(vllm) as endpoint:
        assert given_endpoint(endpoint.url + "/", "m").url == endpoint.url
        with pytest.raises(InputError, match=r"--model: 'n' is none at .*; it has m"):
            given_endpoint(endpoint.url, "n")
    with pytest.raises(InputError, match=f"--endpoint: {endpoint.url}: no OpenAI endpoint"):
        given_endpoint(endpoint.url, "m")


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "find_spec", lambda package: None)
    monkeypatch.setattr(serving, "_dtype", lambda: "float32")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        InputError, match=r"needs fastapi, uvicorn, openai; run: pip install 'gear-rl\[serve\]'"
    ):
        server_command("transformers", "m", 1)
    with pytest.raises(InputError, match="no command vllm on the PATH"):
        server_command("vllm", "m", 1)
    with pytest.raises(InputError, match="gear arena check"), served("arena", "vllm", tmp_path / "log"):
        pass


@pytest.mark.lm
def test_transformers_really_serves(tiny_model, tmp_path):
    pytest.importorskip("fastapi")
    import json

    with served(tiny_model, "transformers", tmp_path / "log") as endpoint:
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 2}
        request = urllib.request.Request(
            f"{endpoint.url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        answer = json.loads(urllib.request.urlopen(request).read())
    assert answer["usage"]["completion_tokens"] <= 2
