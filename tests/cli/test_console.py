"""Errors that a user can correct are one line with exit code 2; others keep their traceback."""

import errno
import io
import os
import signal
import subprocess
import sys

import pytest
import typer
from rich.console import Console

from cli.test_view import write
from gear_rl.cli.console import DEBUG, progress_bar, user_errors
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


def test_a_name_in_the_progress_bar_is_no_markup():
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with progress_bar(console, "scoring ") as progress:
        progress("a[/b]", 1, 2)
    assert "scoring a[/b]" in console.file.getvalue()


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


def test_an_option_may_be_written_as_a_key_is(tmp_path):
    gear("init", "mine", cwd=tmp_path)
    done = gear("train", "--config", "run.yaml", "--dry_run", "--max_steps", "7", cwd=tmp_path / "mine")
    assert (done.returncode, "max_steps: 7" in done.stdout) == (0, True), done.stderr


def test_an_option_that_is_not_there_brings_the_names_of_those_that_are():
    done = gear("score", "--jsn")
    assert (done.returncode, done.stderr) == (
        2,
        "gear: --jsn: no such option; did you mean --json or --n?\n",
    )
