"""The table of set-ups in docs/engines.md: every test that it names is there, and every refusal is the code's."""

import re
from pathlib import Path

import pytest

from engines import tiny
from gear_rl import Gear, GEARConfig
from gear_rl.engines.trl.config import check_setup, checked_arguments
from gear_rl.engines.verl.rollouts import check_text
from gear_rl.method_builder import build_method
from runs.test_verl_hydra_settings import check, config_of

ROOT = Path(__file__).parents[1]
KINDS = ("tested", "untested", "refused", "not offered", "yours")
ENGINES = ("TRL", "verl", "own loop")


def parts_of_table() -> list[tuple[str, str, str]]:
    """Set-up, engine, and each part of the cell."""
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    table = page.partition("<!-- setups -->\n")[2].partition("<!-- /setups -->")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [
        (name, engine, part)
        for name, *cells in rows
        for engine, cell in zip(ENGINES, cells, strict=True)
        for part in cell.split("; ")
    ]


PARTS = parts_of_table()


def refused_by_trl(credit: str, **setup):
    def refuse(folder: Path) -> None:
        method = build_method(credit)
        args = GEARConfig(**tiny.settings(folder)).resolved(method)
        args.use_liger_kernel = setup.pop("liger", False)
        check_setup(method, args, num_generations=4, **setup)

    return refuse


def refused_by_verl(key: str, value):
    return lambda folder: check(config_of({}, {key: value}))


def served(folder: Path) -> None:
    args = GEARConfig(**tiny.settings(folder, teacher_url="http://localhost:8000"))
    checked_arguments(args, Gear(), None, None, {})


REFUSALS = {
    ("teacher behind a server", "TRL"): served,
    ("DeepSpeed ZeRO-2", "TRL"): refused_by_trl("rlsd", sharding="DEEPSPEED", zero_stage=2),
    ("DeepSpeed ZeRO-3", "TRL"): refused_by_trl("opsd", sharding="DEEPSPEED", zero_stage=3),
    ("FSDP 2", "TRL"): refused_by_trl("opsd", sharding="FSDP"),
    ("images", "TRL"): refused_by_trl("igpo", images=True),
    ("images", "verl"): lambda _: check_text([[{"role": "user", "content": [{"type": "image"}]}]], "gear"),
    ("Liger, fused kernels", "TRL"): refused_by_trl("opsd", liger=True),
    ("Liger, fused kernels", "verl"): refused_by_verl("actor_rollout_ref.model.use_fused_kernels", True),
    ("Megatron, sequence parallel", "verl"): refused_by_verl("actor_rollout_ref.actor.strategy", "megatron"),
    ("asynchronous", "verl"): refused_by_verl("trainer.v1.trainer_mode", "separate_async"),
}


@pytest.mark.parametrize(("name", "engine", "part"), PARTS)
def test_a_cell_says_what_it_is_and_names_tests_that_exist(name, engine, part):
    kind = next((kind for kind in KINDS if part.startswith(kind)), None)
    assert kind, f"{name}, {engine}: begin with one of {', '.join(KINDS)}, not {part!r}"
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", part)
    assert bool(named) == (kind == "tested"), f"{name}, {engine}"
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_what_is_refused_is_refused_in_these_words(tmp_path):
    shown = {(name, engine): part for name, engine, part in PARTS if part.startswith("refused")}
    assert shown.keys() == REFUSALS.keys()
    for place, refuse in REFUSALS.items():
        [words] = re.findall(r"^refused `(.+?)`", shown[place])
        with pytest.raises(ValueError) as error:
            refuse(tmp_path)
        assert words in str(error.value), place
