"""Files are replaced at once; devices, pipes and links stay."""

import os
import stat

import pytest

from gear_rl.files import replace_file


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


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def dies(handle):
        raise KeyboardInterrupt

    replace_file(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "a", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"
