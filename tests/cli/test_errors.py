"""Errors that a user can correct are one line with exit code 2; others keep their traceback."""

import asyncio
import errno
import inspect
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer

from cli.test_view import write
from gear_rl.cli.app import app, export
from gear_rl.cli.console import DEBUG, user_errors
from gear_rl.data.objects import context_fault, guard_function, reward_fault, rollouts_fault
from gear_rl.errors import InputError
from support.commands import gear


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("--n: 0; give more"), 2, "gear: --n: 0; give more\n"),
        (InputError("two\nlines"), 2, "gear: two⏎lines\n"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2, "gear: [Errno 28] No space left on device ("),
        (PermissionError(errno.EACCES, "Denied", "/a\x1b[2J"), 2, "gear: [Errno 13] Denied: '/a\\x1b[2J' ("),
        (KeyboardInterrupt(), 130, "gear: interrupted\n"),
    ],
)
def test_an_error_of_the_user_or_the_machine_is_one_line(capsys, monkeypatch, error, code, line):
    @user_errors
    def command() -> None:
        raise error

    monkeypatch.delenv(DEBUG, raising=False)
    with pytest.raises(typer.Exit) as end:
        command()
    stderr = capsys.readouterr().err
    assert end.value.exit_code == code and stderr.startswith(line) and stderr.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback_and_debug_shows_every_one(tmp_path, monkeypatch):
    @user_errors
    def command() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        command()
    monkeypatch.setenv(DEBUG, "")  # and back to what it was, whatever the command sets
    (tmp_path / "a.jsonl").write_text("{")
    done = gear("--debug", "view", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" in done.stderr and "JSONDecodeError" in done.stderr


SLEEPER = """
import sys, tempfile, time
from gear_rl.cli.console import user_errors
from gear_rl.engines.tools import ToolGuard
import typer
app = typer.Typer()
@app.command()
@user_errors
def run():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        guard = ToolGuard()
        with guard.serving():
            guard.tool(wait)()
def wait() -> str:  # a tool that the model calls
    print("ready", flush=True)
    time.sleep(60)
app([])
"""


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_a_command_with_one_line_and_leaves_no_temporary_folder(tmp_path, number, code, word):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (code, f"gear: {word}\n")
    assert not list(tmp_path.iterdir())


def test_an_output_is_never_an_input_a_folder_or_behind_a_file(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    before = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "link.html").symlink_to("a.jsonl")
    (tmp_path / "folder.html").mkdir()
    for option, out, message in (
        ("--picture", "a.jsonl", "--picture: a.jsonl is read here too"),
        ("--html", "link.html", "--html: link.html is read here too"),
        ("--html", "folder.html", "Is a directory"),
    ):
        done = gear("view", "a.jsonl", option, out, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"a.jsonl", "link.html", "folder.html"}


# --- the user's own functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "1 values for 2 completions; return one for each"),
        (["x", "y"], r"\"\['x', 'y'\]\"; return a list with a number"),
        ({0.0, 1.0}, r"'\{0.0, 1.0\}'; return a list with a number"),  # a set has no order
        ([True, None], None),
    ],
)
def test_a_reward_of_the_wrong_kind_is_named(result, message):
    def reward(completions, **row):
        return result

    checked = guard_function(reward, "reward", "mine:reward", reward_fault)
    if message is None:
        assert checked(prompts=[], completions=["a", "b"]) is result and checked.__name__ == "reward"
    else:
        with pytest.raises(InputError, match=f"reward: mine:reward gave {message}"):
            checked(prompts=[], completions=["a", "b"])


def test_an_exception_of_a_function_names_its_line():
    def hint(row, rollout):
        return row["hint"]

    checked = guard_function(hint, "privileged", "mine:hint", context_fault)
    where = rf"{Path(__file__).name}, line {hint.__code__.co_firstlineno + 1}"
    with pytest.raises(InputError, match=rf"mine:hint raised KeyError: 'hint' \({where}\)"):
        checked({}, None)
    with pytest.raises(InputError, match="privileged: mine:hint gave int; return text"):
        checked({"hint": 7}, None)
    assert (rollouts_fault({"completion_ids": [[1], []]}, {}) or "").startswith("no token for completion 1")


class Judge:
    def __call__(self, completions, scores, **row):
        return scores["right"]


async def later(completions, scores, **row):
    return scores["right"]


@pytest.mark.parametrize("reward", [Judge(), partial(Judge()), later], ids=["object", "partial", "async"])
def test_rewards_that_are_no_plain_functions_are_guarded_too(reward):
    checked = guard_function(reward, "reward", "mine:judge", reward_fault)
    assert inspect.iscoroutinefunction(checked) == inspect.iscoroutinefunction(reward) and checked.__name__

    def call(scores):
        made = checked(completions=["a"], scores=scores)
        return asyncio.run(made) if inspect.iscoroutine(made) else made

    assert call({"right": [1.0]}) == [1.0]
    with pytest.raises(InputError, match=r"reward: mine:judge raised KeyError: 'right' .*test_errors.py"):
        call({})
    with pytest.raises(InputError, match="reward: mine:judge gave 2 values for 1 completions"):
        call({"right": [1.0, 0.0]})


def test_the_summary_of_every_command_is_a_sentence():
    commands = [*app.registered_commands, *export.registered_commands]
    summaries = [inspect.getdoc(command.callback).partition("\n\n")[0] for command in commands]
    assert len(summaries) > 10 and all(summary.endswith((".", "?")) for summary in summaries), summaries
