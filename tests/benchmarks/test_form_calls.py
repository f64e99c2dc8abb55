"""The agent that fills in ``forms`` by calls: what the tool pays, and whose tokens perfect credit pays."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import form_calls, forms
from engines import tiny
from gear_rl.types import TokenSignals
from support import batches


def played(row, *calls):
    desk = form_calls.FormDesk()
    desk.reset(**row)
    return desk, [desk.fill(call) for call in calls]


def test_the_transcript_earns_everything_with_the_tools_answers():
    [row] = form_calls.rows("train", 1)
    messages = form_calls.transcript(row)
    calls = [m["tool_calls"][0]["function"]["arguments"]["fields"] for m in messages if "tool_calls" in m]
    desk, answers = played(row, *calls)
    assert desk.get_reward() == 1.0
    assert answers == [m["content"] for m in messages if m["role"] == "tool"]
    assert desk.anchor_states()[0] in row["prompt"][0]["content"]
    assert json.dumps(row)


def test_the_files_hold_the_rows_of_the_agent(tmp_path):
    forms.write_rows(tmp_path, 7, form_calls.rows)
    [row] = form_calls.rows("train", 1, 7)
    assert json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0]) == row


def test_every_second_demonstration_shows_what_the_teacher_sees():
    plain, shown = form_calls.demonstrations(2)
    solutions = [row["solution"] for row in form_calls.rows("warm", 2)]
    assert (
        solutions[0] not in plain["prompt"][-1]["content"] and solutions[1] in shown["prompt"][-1]["content"]
    )
    assert json.loads(plain["tools"])[0]["function"]["name"] == "fill"


TRUTH = form_calls.CallTruth()


def credited(text, desk, advantage, method=TRUTH, truncated=()):
    """The text of the tokens that get credit."""
    tokenizer = tiny.tokenizer()
    batch = batches.written(tokenizer, [text], environments=[desk], advantage_B=torch.tensor([advantage]))
    batch = replace(batch, completions=replace(batch.completions, truncated=truncated))
    engine = batches.PlainEngine(tokenizer, tiny.model(len(tokenizer)))
    needed = {signal.name: signal.compute(batch, engine) for signal in method.needs}
    signals = TokenSignals(mask=batch.completions.mask, **needed)
    credit = method(batch.advantage_B, signals).advantage[0]
    return tokenizer.decode(batch.completions.ids[0][credit != 0])


ROW = {"asked": ["plural ox; past go", "symbol neon"]}
TURN = '<tool_call>{{"name": "fill", "arguments": {{"fields": "{}"}}}}</tool_call>'


def test_a_wrong_value_is_blamed_alone():
    desk, _ = played(ROW, "ox: oxen; go: goed", "neon: Ne")
    text = TURN.format("ox: oxen; go: goed") + TURN.format("neon: Ne") + "done"
    assert credited(text, desk, -1.0) == " goed"
    assert credited(text, desk, 1.0) == '{ox: oxen; go:"{neon: Ne"d'


def test_to_stop_before_the_last_form_is_blamed():
    desk, _ = played(ROW, "ox: oxen; go: went")
    assert credited(TURN.format("ox: oxen; go: went") + "done", desk, -1.0) == "done"


def test_a_call_too_many_is_blamed_and_earns_nothing():
    desk, answers = played(ROW, "ox: oxen; go: went", "neon: Ne", "neon: Ne")
    assert answers[1:] == ["done", "done"] and desk.get_reward() == 1.0
    assert desk.turn_rewards() == [1.0, 1.0, 0.0]
    assert desk.anchor_states() == ["plural ox; past go", "symbol neon", "done", "done"]
    text = TURN.format("ox: oxen; go: went") + TURN.format("neon: Ne") * 2 + "done"
    assert credited(text, desk, -1.0) == "{"


def test_a_call_that_is_cut_off_is_judged_as_far_as_it_goes():
    desk, _ = played(ROW, "ox: oxen; go: went")
    text = TURN.format("ox: oxen; go: went") + TURN.format("neon: N").partition('"}')[0]
    assert credited(text, desk, -1.0, truncated=[True]) == " N"
    assert credited(text, desk, -1.0).endswith(
        '{"name": "fill", "arguments": {"fields": "neon: N'
    )  # by itself


def test_a_key_that_is_cut_off_is_not_blamed():
    text = TURN.format("ox: oxes; g").partition('"}')[0]
    assert credited(text, played(ROW)[0], -1.0, truncated=[True]) == " oxes"


def test_escapes_are_refused_so_that_every_call_is_found():
    desk, _ = played(ROW)
    with pytest.raises(ValueError, match="plain text"):
        desk.fill("ox: oxen\ngo: went")
    assert form_calls.call_spans("nothing", played(ROW, "ox: oxen")[0]) is None


def test_the_control_credits_decisions_alike():
    desk, _ = played(ROW, "ox: oxen; go: goed", "neon: Ne")
    text = TURN.format("ox: oxen; go: goed") + TURN.format("neon: Ne") + "done"
    assert credited(text, desk, -1.0, form_calls.CallTruth(blind=True)) == '{ox: oxen; go: goed"{neon: Ne"d'
