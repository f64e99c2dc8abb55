"""The agent that fills in ``forms`` by calls: what the tool pays, and whose tokens perfect credit pays."""

import json

import torch

from benchmarks import form_calls
from engines import tiny
from support import batches


def played(row, *calls):
    desk = form_calls.FormDesk()
    desk.reset(**row)
    return desk, [desk.fill(call) for call in calls]


def test_the_transcript_earns_everything_and_hears_the_tools_answers():
    [row] = form_calls.rows("train", 1)
    messages = form_calls.transcript(row)
    calls = [m["tool_calls"][0]["function"]["arguments"]["fields"] for m in messages if "tool_calls" in m]
    desk, answers = played(row, *calls)
    assert desk.get_reward() == 1.0
    assert answers == [m["content"] for m in messages if m["role"] == "tool"]
    assert desk.anchor_states()[0] in row["prompt"][0]["content"]
    assert json.dumps(row)


def test_every_second_demonstration_shows_what_the_teacher_sees():
    tokenizer = tiny.tokenizer()
    plain, shown = form_calls.demonstrations(tokenizer, 2)
    solutions = [row["solution"] for row in form_calls.rows("warm", 2)]
    assert solutions[0] not in plain["prompt"] and solutions[1] in shown["prompt"]
    assert '"fill"' in plain["prompt"] and plain["completion"].count("<tool_call>") == form_calls.FORMS


def credit_of(text, desk, advantage):
    tokenizer = tiny.tokenizer()
    batch = batches.written(tokenizer, [text], environments=[desk], advantage_B=torch.tensor([advantage]))
    engine = batches.PlainEngine(tokenizer, tiny.model(len(tokenizer)))
    signals = form_calls.forms.TokenSignals(
        mask=batch.completions.mask,
        step_id=form_calls.CallStepId().compute(batch, engine),
        step_score=form_calls.CallStepScore().compute(batch, engine),
    )
    advantage_BT = form_calls.CallTruth()(batch.advantage_B, signals).advantage
    return [
        tokenizer.decode([token])
        for token, own in zip(batch.completions.ids[0], advantage_BT[0], strict=True)
        if own
    ]


ROW = {"asked": ["plural ox; past go", "symbol neon"]}
TURN = '<tool_call>{{"name": "fill", "arguments": {{"fields": "{}"}}}}</tool_call>'


def test_a_wrong_value_is_blamed_alone():
    desk, _ = played(ROW, "ox: oxen; go: goed", "neon: Ne")
    blamed = credit_of(TURN.format("ox: oxen; go: goed") + TURN.format("neon: Ne") + "done", desk, -1.0)
    assert "".join(blamed).strip() in (": goed", "goed")


def test_to_stop_before_the_last_form_is_blamed():
    desk, _ = played(ROW, "ox: oxen; go: went")
    assert "".join(credit_of(TURN.format("ox: oxen; go: went") + "done", desk, -1.0)).strip() == "done"
