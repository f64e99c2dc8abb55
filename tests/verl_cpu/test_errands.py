"""An environment of TRL's contract in verl's agent loop: several turns, tools, credit on the turns alone."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForTokenClassification
from transformers.utils import get_json_schema

from gear_rl.arena.task import get_task
from gear_rl.engines.tools import tool_functions
from gear_rl.records import read_records
from verl_cpu import harness, reference, tasks

METHODS = "gear+agent_opsd+step_scores:prm={prm}"
"""One that makes segments, one that tells turns apart, and one that reads a reward model at the ends of turns."""
TURNS = [
    "data.max_prompt_length=320",
    "data.max_response_length=200",
    f"{harness.ROLLOUT}.max_model_len=560",
    f"{harness.ROLLOUT}.max_num_batched_tokens=2048",
    f"{harness.ROLLOUT}.multi_turn.enable=True",
    f"{harness.ROLLOUT}.multi_turn.format=hermes",
    f"{harness.ROLLOUT}.multi_turn.max_assistant_turns=9",
]


def test_an_environment_trains_over_several_turns(tmp_path: Path):
    errands = tasks.write(tmp_path, "errands", "easy")
    method = METHODS.format(prm=tmp_path / "prm")
    torch.manual_seed(2)
    labelled = Qwen3Config.from_pretrained(errands / "model", num_labels=2)
    for part in (Qwen3ForTokenClassification(labelled), AutoTokenizer.from_pretrained(errands / "model")):
        part.save_pretrained(tmp_path / "prm")
    settings = [
        *("trainer.v1.trainer_mode=gear_sync", f"+gear.credit='{method}'"),
        "+gear.environment=arena/errands/easy",
        f"+gear.record_file={tmp_path}/records.jsonl",
    ]
    run = harness.train(tmp_path, errands, *TURNS, *settings, steps=2, rollouts=(8, 8))
    records = list(read_records(tmp_path / "records.jsonl"))
    assert len(records) == 2 * 64
    assert sum(record.tools.get("calls", 0) > 0 for record in records) > 100
    assert sum(max(record.turn) >= 2 for record in records) > 64
    assert all(0 < reward < 1 for reward in run.column("critic/rewards/mean"))
    # A tool's answer has no credit.
    answers = [value for r in records for value, mask in zip(r.credit, r.mask, strict=True) if not mask]
    assert len(answers) > 1000 and set(answers) == {0.0}
    # The student never sees the privileged context.
    saved = run.watched("credit1")
    texts = {own.privileged_context() for own in saved["batch"]["environments"]}
    assert len(texts) > 4 and all(texts)
    assert {record.context for record in records} == {"environment"}
    assert not [record.prompt for record in records if any(text in record.prompt for text in texts)]
    # The credit is that of one process.
    environment = get_task("errands").environment
    tools = [get_json_schema(getattr(environment(), name)) for name in tool_functions(environment)]
    alone = reference.credited(saved["batch"], errands / "model", method, tools)
    reference.assert_same(saved, alone, at_least=32)
    assert torch.equal(saved["signals"].turn_id, alone["signals"].turn_id)
    scores = [saved["signals"].get("step_score"), alone["signals"].get("step_score")]
    torch.testing.assert_close(*scores)
    assert len(scores[0].unique()) > 100
    # It is that of TRL, too, and so is the loss.
    out = tmp_path / "trl.pt"
    theirs = reference.under_trl(tmp_path / "credit1.pt", errands / "model", out, method, tools)
    reference.assert_trains_as(run, theirs, at_least=32)
