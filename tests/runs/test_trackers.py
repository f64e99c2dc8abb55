"""A tracker that is not there is one line that says what to install."""

import pytest

from gear_rl.errors import InputError
from gear_rl.runs import trackers
from gear_rl.runs.trackers import EXTRA, check_trackers
from support.commands import gear


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda module: None)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("report_to", "command"),
    [*((name, "pip install 'gear-rl[trackers]'") for name in EXTRA), ("mlflow", "pip install mlflow"),
     ("comet_ml", "pip install comet-ml"), (["none", "wandb"], "gear-rl[trackers]")],
)  # fmt: skip
def test_what_to_install_is_named(report_to, command):
    with pytest.raises(InputError) as refused:
        check_trackers(report_to)
    assert str(refused.value).startswith("report_to: ") and command in str(refused.value)


@pytest.mark.usefixtures("nothing_installed")
def test_none_and_unknown_names_pass():
    for report_to in (None, "none", [], "all", "my_own"):
        check_trackers(report_to)


def test_one_of_two_packages_is_enough(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda module: module == "tensorboardX" or None)
    check_trackers("tensorboard")


@pytest.mark.usefixtures("nothing_installed")
def test_the_command_says_it_in_one_line(tmp_path):
    words = ("--model", "arena", "--dataset", "arena/chain/easy", "--reward", "arena", "--report_to", "wandb")
    done = gear("train", *words, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "report_to: wandb is not installed" in done.stderr
