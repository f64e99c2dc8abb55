"""`gear doctor --engine verl` in an environment that has TRL and no verl: each fault is a line with its fix."""

import pytest

from gear_rl.cli import doctor
from gear_rl.cli.doctor import examine_verl
from gear_rl.engines.verl import checks
from support.commands import gear


def by_subject():
    return {finding.subject: finding for finding in examine_verl()}


def test_trl_in_the_environment_and_a_missing_verl_are_broken_with_their_fix():
    found = by_subject()
    assert found["trl"].state == "broken" and "pip install 'gear-rl[verl]'" in found["trl"].fix
    assert found["verl"].state == found["registration"].state == "broken"
    done = gear("doctor", "--engine", "verl")
    assert done.returncode == 1 and "registration" in done.stdout
    done = gear("doctor", "--engine", "verll")
    assert done.returncode == 2 and "--engine: 'verll' is none; choose from trl, verl" in done.stderr


@pytest.mark.parametrize(("policy", "state"), [("other", "broken"), ("other, gear", "ok")])
def test_a_policy_that_leaves_the_plugin_out_is_named(policy, state, monkeypatch):
    monkeypatch.setattr(checks, "installed_version", lambda package: "0.9.1")
    monkeypatch.setattr(doctor, "registration_fault", lambda: None)
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    found = by_subject()["registration"]
    assert found.state == state and (state == "ok" or "VERL_USE_EXTERNAL_PLUGINS" in found.fact)
