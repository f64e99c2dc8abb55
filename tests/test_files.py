"""Files are replaced at once; devices, pipes and links stay."""

import os
import stat
import threading

import pytest

from gear_rl.files import replace_file


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "a", b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_an_old_file_keeps_its_permissions_and_a_link_its_place(tmp_path):
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    replace_file(target, b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    replace_file(tmp_path / "dangling", b"x")
    assert (tmp_path / "dangling").is_symlink() and (tmp_path / "later").read_bytes() == b"x"


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"through")
    reader.join(timeout=10)
    assert read == [b"through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_refused_and_a_device_stays(tmp_path):
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path, b"x")
    replace_file(type(tmp_path)(os.devnull), b"x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def dies(handle):
        raise KeyboardInterrupt

    replace_file(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "a", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"
