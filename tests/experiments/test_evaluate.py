"""`gear eval` without the tools: what they are asked, what is read of their files, and how they are kept apart.

The tool is a script in the place of an environment's Python; its files are as the real tools wrote them.
"""

import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gear_rl.errors import InputError
from gear_rl.experiments import evaluate as evaluation
from gear_rl.experiments import tool_environments
from gear_rl.experiments.serving import Endpoint
from gear_rl.experiments.suites import bfcl, inspect_evals, tau2
from gear_rl.experiments.suites.inside import bfcl_task
from gear_rl.experiments.suites.request import Request
from gear_rl.experiments.tool_environments import Tool, can_isolate, environment, run_tool
from support.commands import gear

ENDPOINT = Endpoint(url="http://127.0.0.1:1/v1", model="m", about={"server": "given"})
TOOL = '''#!{python} -I
"""Answers as the environments of both tools do."""
import json, os, pathlib, sys
words = sys.argv[1:]
if "-c" in words:
    print(json.dumps({{name: "1.0" for name in words[3:]}}))
elif words[1].endswith("inspect_about.py"):
    known = {{"folder": "gsm8k", "samples": 1319, "assets": ["openai/gsm8k (huggingface)"]}}
    print(json.dumps(known if json.loads(words[2])["suite"] == "gsm8k" else {{"names": ["gsm8k"]}}))
elif "inspect_ai" in words:
    if words[4].startswith("inspect_evals/"):
        sys.exit("Couldn't reach 'openai/gsm8k' on the Hub")
    pathlib.Path("logs").mkdir()
    pathlib.Path("logs/1.json").write_text({log!r})
elif words[1].endswith("tau2_task.py"):
    asked = json.loads(words[2])
    if "domains" in asked:
        print(json.dumps({{name: "abc" for name in asked["domains"]}}))
    else:
        print(pathlib.Path(asked["file"]).read_text())
elif "tau2.cli" in words:
    folder = pathlib.Path(words[words.index("--save-to") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text({metrics!r})
    (folder / "known").write_text(json.dumps([words, dict(os.environ)]))
elif len(words) == 3:
    print(json.dumps({{"parallel": "abc"}}))
else:
    part = "result" if "generate" in words else "score"
    folder = pathlib.Path(os.environ["BFCL_PROJECT_ROOT"]) / part / "served" / "non_live"
    folder.mkdir(parents=True)
    lines = {{"result": {result!r}, "score": {score!r}}}[part]
    (folder / f"BFCL_v4_parallel_{{part}}.json").write_text(lines)
    pathlib.Path(f"known_{{part}}").write_text(json.dumps([words[2:], sorted(os.environ)]))
'''
RESULT = """{"id": "parallel_0", "result": "[f(a=1)]", "input_token_count": 5}
{"id": "parallel_1", "result": "Error during inference: Connection error.", "traceback": "..."}
{"id": "parallel_2", "result": "no", "input_token_count": 5}
{"id": "parallel_3", "result": "no", "input_token_count": 5}
"""
SCORE = """{"accuracy": 0.25, "correct_count": 1, "total_count": 4}
{"id": "parallel_1", "valid": false, "error_type": "ast_decoder:decoder_failed"}
"""
METRICS = {"reward": 0.625, "pass_hat": {"1": 0.625, "2": 0.5}, "errors": 1, "tasks": {"a": 1.0, "b": 0.25}}
LOG = {
    "status": "success",
    "eval": {
        "metadata": {"full_task_version": "2-A"},
        "task_args": {"rows": "/secret/rows", "settings": None},
    },
    "results": {
        "scores": [
            {"name": "match", "metrics": {"accuracy": {"name": "accuracy", "value": 0.5}, "stderr": {}}}
        ]
    },
    "reductions": [
        {"scorer": "match", "samples": [{"value": 1.0}, {"value": 0.5}, {"value": 0.5}, {"value": 0.0}]}
    ],
}


@pytest.fixture
def env(tmp_path, monkeypatch):
    """A folder that looks like a tool's environment; where the test runs, a file of rows."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    own = {"log": json.dumps(LOG), "metrics": json.dumps(METRICS), "result": RESULT, "score": SCORE}
    python.write_text(TOOL.format(python=sys.executable, **own))
    python.chmod(0o755)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    monkeypatch.setattr(evaluation, "given_endpoint", lambda url, model: ENDPOINT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str):
    return gear(
        "eval", "--model", "m", "--endpoint", "http://x", "--env", "env", "--out", "out", "--json", *words
    )


def test_bfcls_numbers_are_those_of_its_files(env):
    done = run("--suite", "bfcl", "--categories", "parallel", *(() if can_isolate() else ("--network",)))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((env / "out" / "eval.json").read_text())
    [row] = document["scores"]
    assert (row["category"], row["n"], row["score"], row["errors"]) == ("parallel", 4, 0.25, 1)
    assert [round(end, 3) for end in row["interval"]] == [0.046, 0.699]
    assert document["data"] == {"BFCL_v4_parallel.json": "abc"} and document["tool"]["bfcl-eval"] == "1.0"
    assert document["scored_without_network"] == can_isolate()
    assert str(env) not in done.stdout


@pytest.mark.skipif(
    not can_isolate(), reason="the kernel gives this user no namespace; the test below runs everywhere"
)
def test_the_scorer_knows_nothing_of_the_users_environment(env, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run("--suite", "bfcl", "--categories", "parallel", "--limit", "4").returncode == 0
    generate, evaluate = (
        json.loads((env / "out" / f"known_{part}").read_text()) for part in ("result", "score")
    )
    assert "--run-ids" in generate[0] and "--partial-eval" in evaluate[0]
    assert "HF_TOKEN" in generate[1] and "HF_TOKEN" not in evaluate[1] and "HOME" not in evaluate[1]


def test_rows_of_a_file_stand_in_for_the_hubs(env):
    done = run("--suite", "gsm8k", "--data", "rows.jsonl", "--task-arg", "fewshot=0")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    [row] = document["scores"]
    assert (row["category"], row["metric"], row["n"], row["score"]) == ("match", "accuracy", 4, 0.5)
    assert row["interval"][0] < 0.5 < row["interval"][1]
    assert list(document["data"]) == ["rows.jsonl"] and "secret" not in done.stdout


def test_tau2s_numbers_are_those_of_its_metrics(env, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OTHER_API_KEY", "key")
    words = ["--suite", "tau2", "--categories", "mock", "--limit", "4", "--max-tokens", "9", "--network"]
    done = run(*words, "--task-arg", "num-trials=2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    [row] = document["scores"]
    assert (row["category"], row["n"], row["score"], row["errors"]) == ("mock", 2, 0.625, 1)
    assert row["interval"][0] < 0.625 < row["interval"][1]
    assert document["pass_hat"] == {"mock": {"1": 0.625, "2": 0.5}} and document["data"] == {"mock": "abc"}
    assert document["user"] == "the model itself" and document["tool"]["tau2"] == "1.0"
    asked, known = json.loads((env / "out" / "mock" / "known").read_text())
    options = dict(zip(asked[4:-1:2], asked[5::2], strict=False))
    assert asked[:4] == ["-I", "-m", "tau2.cli", "run"] and options["--num-tasks"] == "4"
    agent = {"api_base": ENDPOINT.url, "temperature": 0.0, "max_tokens": 9}
    assert json.loads(options["--agent-llm-args"]) == agent and options["--num-trials"] == "2"
    assert (options["--agent-llm"], options["--user-llm"]) == ("openai/m", "openai/m")
    assert known["OPENAI_API_KEY"] == "key" and not known.keys() & {"HF_TOKEN", "OTHER_API_KEY", "HOME"}
    assert "key" not in asked, "the tool writes its arguments into its results"


def test_simulations_of_the_same_go_on_and_of_another_are_refused(env):
    words = ["--suite", "tau2", "--categories", "mock", "--network", "--task-arg", "num-trials=2"]
    assert run(*words).returncode == 0
    done = run(*words)
    assert done.returncode == 2 and "out is not empty" in done.stderr, "it is finished"
    (env / "out" / "eval.json").unlink()
    (env / "out" / "mock" / "known").unlink()
    done = run(*words, "--limit", "9")
    assert done.returncode == 0, done.stderr
    asked, _ = json.loads((env / "out" / "mock" / "known").read_text())
    assert asked[-1] == "--auto-resume" and "--num-tasks" in asked
    (env / "out" / "eval.json").unlink()
    done = run(*words, "--temperature", "0.5")
    said = "--out: out was begun with temperature None, now it is 0.5; ask for the same to go on"
    assert done.returncode == 2 and said in done.stderr
    (env / "out" / "asked.json").unlink()
    assert "out is not empty" in run(*words).stderr, "nobody knows whose they are"


def test_a_domain_of_which_nothing_was_scored_is_an_error(env):
    python = env / "env" / "bin" / "python"
    nothing = json.dumps({"reward": 0.0, "pass_hat": {}, "errors": 3, "tasks": {}})
    python.write_text(python.read_text().replace(json.dumps(METRICS), nothing))
    done = run("--suite", "tau2", "--categories", "mock", "--network")
    assert done.returncode == 2 and "no simulation of mock came to its end (3 failed); see" in done.stderr


def test_another_model_may_play_the_user(monkeypatch):
    def asked(**changes):
        request = Request(suite="tau2", folder=Path("out"), network=True, **changes)
        words = tau2.command(request, ENDPOINT, Path("python"), "retail")
        return words[words.index("--user-llm") + 1], json.loads(words[words.index("--user-llm-args") + 1])

    assert asked(user_model="gpt-4.1") == ("gpt-4.1", {"temperature": 0.0})
    there = {"temperature": 0.0, "api_base": "http://y/v1"}
    assert asked(user_model="big", user_endpoint="http://y/v1/") == ("openai/big", there)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    for user, named in ((None, False), ("claude", True)):
        request = Request(suite="tau2", folder=Path("out"), user_model=user)
        assert ("ANTHROPIC_API_KEY" in tau2.variables(request)) == named


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "gsm8k"], "gsm8k needs openai/gsm8k (huggingface): run it once where that is reached"),
        (["--suite", "gsm8kk"], "--suite: 'gsm8kk' is none; did you mean gsm8k?"),
        (["--suite", "tau2-bench"], "--suite: 'tau2-bench' is none; it is called tau2"),
        (["--suite", "tau2"], "run it in a container, and say --network"),
        (["--suite", "tau2", "--network", "--user-endpoint", "http://y"], "with --user-model NAME"),
        (
            ["--suite", "tau2", "--network", "--task-arg", "domain=x"],
            "--task-arg: domain is set by gear eval",
        ),
        (["--suite", "bfcl", "--user-model", "gpt-4.1"], "--user-model: bfcl has no such choice"),
        (["--suite", "bfcl", "--data", "rows.jsonl"], "--data: bfcl has no such choice"),
        (["--suite", "gsm8k", "--categories", "live"], "--categories: gsm8k has no such choice"),
        (["--suite", "gsm8k", "--data", "no.jsonl"], "--data: no.jsonl is no file"),
        (["--suite", "gsm8k", "--examples", "rows.jsonl"], "give those too, with --data FILE"),
        (["--suite", "bfcl", "--limit", "0"], "--limit: 0; give 1 or more"),
        (["--suite", "gsm8k", "--task-arg", "fewshot"], "--task-arg: 'fewshot' is no setting"),
        (["--suite", "gsm8k", "--server-args", "'x"], "close the quotes"),
        (["--suite", "gsm8k", "--out", "env"], "--out: env is not empty"),
        (
            ["--suite", "gsm8k", "--env", "nowhere"],
            "--env: nowhere is no virtual environment with inspect-evals",
        ),
    ],
)
def test_what_is_wrong_is_one_line(env, words, said):
    done = run(*words)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_without_isolation_bfcl_is_not_scored_unless_the_user_says_so(env, monkeypatch):
    monkeypatch.setattr(bfcl, "can_isolate", lambda: False)
    done = run("--suite", "bfcl")
    assert done.returncode == 2 and "say --network" in done.stderr


def test_the_tools_are_asked_for_what_the_user_wants():
    request = Request(
        suite="bfcl", folder=Path("out"), max_tokens=9, temperature=0.0, concurrency=4, tools=True
    )
    generate, evaluate = bfcl.commands(request, ENDPOINT, Path("python"), ["a", "b"])
    assert json.loads(generate[3]) == {
        "model": "m", "tools": True, "max_tokens": 9, "categories": ["a", "b"], "limit": None
    }  # fmt: skip
    chosen = ["--test-category", "a,b"]
    assert generate[4:] == [
        "generate",
        "--model",
        "served",
        "--num-threads",
        "4",
        *chosen,
        "--temperature",
        "0.0",
    ]
    assert evaluate[4:] == ["evaluate", "--model", "served", *chosen]
    request = Request(suite="aime2024", folder=Path("out"), limit=3, settings={"n": 2})
    words = " ".join(inspect_evals.command(request, ENDPOINT, Path("python"), "aime2024"))
    assert (
        "eval inspect_evals/aime2024 --model openai-api/served/m --model-base-url http://127.0.0.1:1/v1"
        in words
    )
    assert words.endswith("--max-connections 1 --limit 3 -T n=2")


def test_bfcls_handler_sends_the_limit_and_nothing_of_openais_own(monkeypatch):
    sent, table = [], {}

    class Handler:
        def _build_client_kwargs(self):
            return {"base_url": "u"}

        def generate_with_backoff(self, **kwargs):
            sent.append(kwargs)

    modules = {
        "constants.model_config": {"MODEL_CONFIG_MAPPING": table, "ModelConfig": SimpleNamespace},
        "model_handler.api_inference.openai_completion": {"OpenAICompletionsHandler": Handler},
    }
    for name in ("bfcl_eval", "constants", "model_handler", "model_handler.api_inference", *modules):
        full = name if name == "bfcl_eval" else f"bfcl_eval.{name}"
        module = ModuleType(full)
        module.__dict__.update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, full, module)
    bfcl_task.register({"model": "m", "tools": False, "max_tokens": 7})
    entry = table["served"]
    handler = entry.model_handler()
    handler.generate_with_backoff(store=False, temperature=0)
    assert sent == [{"temperature": 0, "max_tokens": 7}] and handler._build_client_kwargs()["timeout"] > 3600
    assert (entry.model_name, entry.is_fc_model) == ("m", False)


@pytest.mark.skipif(
    not can_isolate(), reason="the kernel gives this user no namespace; the test below runs everywhere"
)
def test_an_isolated_process_reaches_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = "import os, socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        command = [sys.executable, "-c", code, str(listener.getsockname()[1])]
        run_tool(command, tmp_path / "open.log", {})
        with pytest.raises(InputError, match="Network is unreachable"):
            run_tool(command, tmp_path / "closed.log", {}, isolated=True)
    with pytest.raises(InputError, match="did not end within 1 s"):
        run_tool([sys.executable, "-c", "9**9**9"], tmp_path / "slow.log", {}, isolated=True, seconds=1)
    assert "HF_TOKEN" in os.environ


def test_an_environment_is_made_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_CACHE", str(tmp_path / "cache"))
    made = []

    def make(tool: Tool, folder: Path) -> None:
        made.append(folder)
        if len(made) == 1:
            raise InputError("no space")
        (folder / "bin").mkdir(parents=True)
        (folder / "complete").touch()

    monkeypatch.setattr(tool_environments, "_make", make)
    tool = Tool(package="a-tool", version="1.0", requirements=tmp_path / "list.txt", megabytes=1)
    with pytest.raises(InputError, match="no space"):
        environment(tool, None, lambda text: None)
    said: list[str] = []
    for _ in range(2):
        python = environment(tool, None, said.append)
    assert python == tmp_path / "cache" / "tools" / "a-tool-1.0" / "bin" / "python"
    assert len(made) == 2 and said == [
        f"making an environment for a-tool 1.0, once: 1 MB in {python.parents[1]}"
    ]


def test_a_tool_of_a_repository_is_cloned_and_installed_with_its_own_python(tmp_path, monkeypatch):
    ran: list[list[str]] = []

    def done(command, **_):
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    tool = Tool(
        package="t", version="1", requirements=tmp_path / "list.txt", megabytes=1, pythons=("2.1", "2.0"),
        source=("https://x/y", "v1"),
    )  # fmt: skip
    monkeypatch.setattr(tool_environments.subprocess, "run", done)
    with pytest.raises(
        InputError, match=r"t runs with Python 2.1 or 2.0, and there is no python2.1 on the PATH"
    ):
        tool_environments._make(tool, tmp_path / "t")
    monkeypatch.setattr(
        tool_environments.shutil, "which", lambda name: "/p2.0" if name == "python2.0" else None
    )
    tool_environments._make(tool, tmp_path / "t")
    clone = str(tmp_path / "t" / "source")
    assert ran[0][:3] == ["/p2.0", "-m", "venv"] and ran[1][-2:] == ["-r", str(tmp_path / "list.txt")]
    assert ran[2] == ["git", "clone", "-q", "--depth", "1", "--branch", "v1", "https://x/y", clone]
    assert ran[3][-3:] == ["--no-deps", "-e", clone] and (tmp_path / "t" / "complete").exists()


TOOLS = [tool_environments.BFCL, tool_environments.INSPECT, tool_environments.TAU2]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.package)
def test_every_package_of_a_tools_environment_is_pinned(tool):
    lines = [line for line in tool.requirements.read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    if tool.source is None:
        assert f"{tool.package}=={tool.version}" in lines
    else:
        assert tool.source[1] == f"v{tool.version}"
    assert not any(line.startswith(("torch==", "nvidia")) for line in lines)
