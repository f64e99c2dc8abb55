"""An environment of TRL's contract, run by verl's agent loop: several turns, tools, credit on the turns alone."""

from pathlib import Path

import pytest
import torch
from transformers.utils import get_json_schema

from gear_rl.arena.task import get_task
from gear_rl.engines.tools import tool_functions
from gear_rl.records import Record, read_records
from verl_cpu import harness, reference

TURNS = [
    "data.max_prompt_length=320",
    "data.max_response_length=200",
    f"{harness.ROLLOUT}.max_model_len=560",
    f"{harness.ROLLOUT}.max_num_batched_tokens=2048",
    f"{harness.ROLLOUT}.multi_turn.enable=True",
    f"{harness.ROLLOUT}.multi_turn.format=hermes",
    f"{harness.ROLLOUT}.multi_turn.max_assistant_turns=9",
]


@pytest.fixture(scope="module")
def run(errands: Path, tmp_path_factory: pytest.TempPathFactory) -> harness.Run:
    folder = tmp_path_factory.mktemp("errands-run")
    settings = [
        "+gear=gear",
        "gear.environment=arena/errands/easy",
        f"gear.record_file={folder}/records.jsonl",
    ]
    return harness.train(folder, errands, *TURNS, *settings, steps=2, rollouts=(8, 8))


@pytest.fixture(scope="module")
def records(run: harness.Run) -> list[Record]:
    return list(read_records(run.folder / "records.jsonl"))


def test_most_rollouts_call_tools_over_several_turns(run: harness.Run, records: list[Record]):
    assert len(records) == 2 * 64
    assert sum(record.tools.get("calls", 0) > 0 for record in records) > 100
    assert sum(max(record.turn) >= 2 for record in records) > 64
    assert all(0 < reward < 1 for reward in run.column("critic/rewards/mean"))


def test_what_a_tool_said_bears_no_credit(records: list[Record]):
    answers = [value for r in records for value, mask in zip(r.credit, r.mask, strict=True) if not mask]
    assert len(answers) > 1000 and set(answers) == {0.0}


def test_only_the_teacher_sees_what_the_environment_says_in_confidence(
    run: harness.Run, records: list[Record]
):
    texts = {own.privileged_context() for own in run.watched("credit1")["batch"]["environments"]}
    assert len(texts) > 4 and all(texts)
    assert {record.context for record in records} == {"environment"}
    assert not [record.prompt for record in records if any(text in record.prompt for text in texts)]


def test_credit_is_that_of_one_process(run: harness.Run, errands: Path):
    saved = run.watched("credit1")
    environment = get_task("errands").environment
    tools = [get_json_schema(getattr(environment(), name)) for name in tool_functions(environment)]
    alone = reference.credited(saved["batch"], errands / "model", "gear", tools)
    reference.assert_same(saved, alone, at_least=32)
    assert torch.equal(saved["signals"].turn_id, alone["signals"].turn_id)
