"""The folder of a run: its lock, and where its records go."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gear_rl.engines.folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from gear_rl.engines.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.held():
    folder.begin()
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_names_its_process_and_dies_with_it(tmp_path):
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        message = rf"output_dir: process {holder.pid} on .* {tmp_path}"
        with pytest.raises(ValueError, match=message), RunFolder(tmp_path).held():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunFolder(tmp_path).held():
        pass


def test_records_are_in_the_folder_unless_they_are_named_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder(Path("runs/a"), "more/r.jsonl").records == Path("runs/a/more/r.jsonl")
    with pytest.raises(ValueError, match=r"^record_file: runs/a/r.jsonl is relative to .*a; write r.jsonl$"):
        RunFolder(Path("runs/a"), "runs/a/r.jsonl")
    other, link = tmp_path / "other.jsonl", tmp_path / "a" / "link.jsonl"
    link.parent.mkdir()
    link.symlink_to(other)
    for name in (str(other), "link.jsonl"):
        folder = RunFolder(tmp_path / "a", name)
        other.unlink(missing_ok=True)
        folder.check_records()
        other.write_text("{}\n")
        message = r"^record_file: .* holds records already, .* outside of .*a; name a new"
        with pytest.raises(ValueError, match=message):
            folder.check_records()
        folder.clear()
        assert other.read_text() == "{}\n"
