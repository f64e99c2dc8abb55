"""What a user can mend is one line everywhere, with a traceback on request; what is ours keeps its traceback."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from cli.test_view import write
from gear_rl.cli.console import DEBUG, user_errors
from gear_rl.data.objects import context_fault, guarded, import_object, reward_fault, rollouts_fault
from gear_rl.errors import InputError
from gear_rl.records import read_records
from support.commands import gear


def ended(error: BaseException | type[BaseException]) -> int:
    @user_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as end:
        command()
    return end.value.exit_code


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("--n: 0; give more"), "gear: --n: 0; give more"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            "gear: [Errno 28] No space left on device (",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/a\x1b[2J"),
            "gear: [Errno 13] Permission denied: '/a\\x1b[2J' (",
        ),
        (EOFError("Ran out of input"), "gear: Ran out of input (gear"),
        (InputError("two\nlines"), "gear: two⏎lines"),
    ],
)
def test_an_error_of_the_user_or_the_machine_is_one_line(capsys, monkeypatch, error, line):
    monkeypatch.delenv(DEBUG, raising=False)
    assert ended(error) == 2
    told = capsys.readouterr().err
    assert told.startswith(line) and told.count("\n") == 1


def test_the_traceback_comes_on_request_with_what_lay_behind(capsys, monkeypatch):
    def reads() -> None:
        try:
            raise KeyError("the cause")
        except KeyError:
            raise InputError("data: no answer") from None

    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(typer.Exit):
        user_errors(reads)()
    told = capsys.readouterr().err
    assert "KeyError: 'the cause'" in told and told.endswith("gear: data: no answer\n")


@pytest.mark.parametrize("error", [KeyError("ours"), RecursionError(), ValueError("ours"), AssertionError()])
def test_an_error_of_ours_keeps_its_traceback(error):
    @user_errors
    def command() -> None:
        raise error

    with pytest.raises(type(error)):
        command()


def test_interrupted_is_130(capsys):
    assert ended(KeyboardInterrupt) == 130
    assert capsys.readouterr().err == "gear: interrupted\n"


SLEEPER = """
import sys, tempfile, time
from gear_rl.cli.console import user_errors
import typer
app = typer.Typer()
@app.command()
@user_errors
def run():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        time.sleep(60)
app([])
"""


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_a_command_with_one_line_and_leaves_no_temporary_folder(tmp_path, number, code, word):
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    begin = time.monotonic()
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (code, f"gear: {word}\n")
    assert time.monotonic() - begin < 20
    assert not list(tmp_path.iterdir())


# --- commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "line 1: not JSON (maximum recursion"),
        (b'{"step": ', "line 1: not JSON (Expecting value"),
        (b'{"step": 1}', "line 1: not a credit record, it lacks"),
    ],
)
def test_a_record_that_is_none_is_one_line(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_bytes(line)
    done = gear("view", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("step", '"\\u001b[2J"', "step is str"),
        ("method", "5", "method is int"),
        ("weight", "{}", "weight is dict"),
        ("advantage", '"a"', "advantage is str"),
        ("format", '"1"', "format is str"),
    ],
)
def test_a_field_of_another_kind_is_named_and_never_reaches_the_terminal_raw(tmp_path, field, value, message):
    write(tmp_path / "a.jsonl", "gear")
    row = json.loads((tmp_path / "a.jsonl").read_text()) | {field: json.loads(value)}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match="not a credit record"):
        list(read_records(tmp_path / "a.jsonl"))
    done = gear("view", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "\x1b[2J" not in done.stderr + done.stdout


def test_an_output_is_never_an_input_a_folder_or_behind_a_file(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    before = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "link.html").symlink_to("a.jsonl")
    (tmp_path / "folder.html").mkdir()
    for out, message in (
        ("a.jsonl", "--html: a.jsonl is read here too"),
        ("link.html", "--html: link.html is read here too"),
        ("folder.html", "Is a directory"),
        ("a.jsonl/x.html", "a.jsonl"),
    ):
        done = gear("view", "a.jsonl", "--html", out, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"a.jsonl", "link.html", "folder.html"}


def test_debug_is_an_option_of_every_command(tmp_path, monkeypatch):
    monkeypatch.setenv(DEBUG, "")
    (tmp_path / "a.jsonl").write_text("{")
    done = gear("--debug", "view", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" in done.stderr and "JSONDecodeError" in done.stderr
    monkeypatch.setenv(DEBUG, "")
    assert "Traceback" not in gear("view", "a.jsonl", cwd=tmp_path).stderr


# --- the user's own functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [":", "a:", ":b", ".a:b", "a..b:c", "a"])
def test_a_name_of_no_object_is_said(path):
    with pytest.raises(InputError, match=r"reward: .* names no object; write package.module:object"):
        import_object(path, "reward")


def test_a_module_that_fails_to_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("x = 1\ny = {}['z']\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r"importing 'broken_module' fails: KeyError: 'z' \(broken_module.py, line 2\)"
    ):
        import_object("broken_module:x", "reward")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "1 values for 2 completions; return one for each"),
        (["x", "y"], r"\"\['x', 'y'\]\"; return a list with a number"),
        ([1.0, [2.0]], r"'\[1.0, \[2.0\]\]'; return a list"),
        ([1j, 2], "'.*1j.*'; return a list"),
        (None, "'None'; return a list"),
        (1.0, "'1.0'; return a list"),
        ("ab", "'ab'; return a list"),
    ],
)
def test_a_reward_of_the_wrong_kind_is_named(result, message):
    def reward(completions, **row):
        return result

    with pytest.raises(InputError, match=f"reward: mine:reward gave {message}"):
        guarded(reward, "reward", "mine:reward", reward_fault)(prompts=[], completions=["a", "b"])


def test_rewards_that_are_right_pass_as_they_are():
    def reward(completions, **row):
        return given

    for given in ([1, None], [True, 0.5], [float("nan"), 1]):
        assert guarded(reward, "reward", "mine:reward", reward_fault)(completions=["a", "b"]) is given
    assert guarded(reward, "reward", "x", reward_fault).__name__ == "reward"


def test_what_a_function_raises_names_its_line():
    def hint(row, rollout):
        return row["hint"]

    line = hint.__code__.co_firstlineno + 1
    with pytest.raises(
        InputError, match=rf"mine:hint raised KeyError: 'hint' \({Path(__file__).name}, line {line}\)"
    ):
        guarded(hint, "privileged", "mine:hint", context_fault)({}, None)
    with pytest.raises(InputError, match="privileged: mine:hint gave int; return text"):
        guarded(hint, "privileged", "mine:hint", context_fault)({"hint": 7}, None)
    for value, message in (
        (None, "NoneType without 'prompt_ids'"),
        ({"prompt_ids": []}, "dict without 'compl"),
    ):
        assert (rollouts_fault(value, {}) or "").startswith(message)
