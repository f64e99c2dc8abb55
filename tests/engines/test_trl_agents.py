"""Multi-turn rollouts through TRL's own tool loop: masks, ids, turns, contexts, and tools that misbehave."""

from dataclasses import replace

import pytest

from engines import tiny
from engines.scripted import END, Desk, call, scripted
from engines.watching import kept_ids
from gear_rl import Gear
from gear_rl.records import read_records

LOOK = call("look", '{"place": "a"}')
THREE_TURNS = [LOOK, call("fail"), f"done{END}"]


def run(folder, model, scripts, environment=Desk, credit=None, peft=None, **changes):
    settings = tiny.settings(
        folder,
        record_file=str(folder / "records.jsonl"),
        max_completion_length=600,
        max_steps=1,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
    )
    trainer = scripted(
        model,
        tiny.rows().remove_columns(["privileged_context", "answer"]),
        settings | changes,
        scripts,
        credit=credit or Gear(onset_floor_nats=0.0),
        environment_factory=environment,
        peft_config=peft,
    )
    trainer.train()
    return trainer, list(read_records(folder / "records.jsonl"))


def suffix(tokenizer, text):
    """The ids between a turn's end and the next turn, spelled out from Qwen3's format."""
    middle = (
        f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    return tokenizer(middle, add_special_tokens=False)["input_ids"]


def test_three_turns_with_a_tool_error_and_a_truncated_one_token_by_token(tiny_model, tmp_path):
    cut = ["look and look and look"]  # no call and no end: the sampler stopped
    scripts = [THREE_TURNS, [LOOK, "I saw"], cut, [f"done{END}"]]
    trainer, records = run(tmp_path, tiny_model, scripts)
    tokenizer = trainer.processing_class
    ids = {text: tokenizer(text)["input_ids"] for script in scripts for text in script}
    saw = suffix(tokenizer, "saw a")
    error = suffix(tokenizer, str({"error": "'no such drawer'"}))
    wanted = [
        [(ids[LOOK], 0), (saw, -1), (ids[THREE_TURNS[1]], 1), (error, -1), (ids[THREE_TURNS[2]], 2)],
        [(ids[LOOK], 0), (saw, -1), (ids["I saw"], 1)],
        [(ids[cut[0]], 0)],
        [(ids[f"done{END}"], 0)],
    ]
    for record, parts in zip(records, wanted, strict=True):
        assert "".join(record.tokens) == tokenizer.decode([token for part, _ in parts for token in part])
        assert record.ids == [token for part, _ in parts for token in part]
        assert record.turn == [turn for part, turn in parts for _ in part]
        assert record.mask == [int(turn >= 0) for part, turn in parts for _ in part]
        outside = [t for t, trained in enumerate(record.mask) if not trained]
        assert [record.credit[t] for t in outside] == [0.0] * len(outside)
        assert [record.segment[t] for t in outside] == [-1] * len(outside)
        turn_of = {}
        for segment, turn in zip(record.segment, record.turn, strict=True):
            assert segment == -1 or turn_of.setdefault(segment, turn) == turn, "a segment crossed a turn"
        assert record.advantage != 0.0
        assert sum(record.weight) == pytest.approx(sum(record.mask), rel=1e-4)
    assert [record.truncated for record in records] == [False, True, True, False]
    assert [record.tools for record in records] == [{"calls": 2, "raised": 1}, {"calls": 1}, {}, {}]
    assert [record.context for record in records] == ["environment"] * 4
    for record in records:
        assert "look in the drawer" in record.teacher_prompt
        assert "look in the drawer" not in replace(record, teacher_prompt="").to_json(), "nowhere else"
        shown, taught = record.prompt, record.teacher_prompt
        # In the first user turn, behind the same tools: every later turn is shifted equally.
        assert taught.split("<|im_start|>user")[0] == shown.split("<|im_start|>user")[0]
        assert taught.count("<|im_start|>") == shown.count("<|im_start|>")
        assert "privileged_context" not in shown, "it is no tool"


def test_the_ids_of_the_loss_are_the_ids_of_the_sampler(tiny_model, tmp_path):
    """No retokenisation drift: prompt, sampled turns and tool answers reach the loss id for id."""
    batches = []
    scripts = [THREE_TURNS, [LOOK, f"a  b\n\n c{END}"], [f"\u00e9\u4e2d {END}"], ["12 3  4 5"]]
    settings = tiny.settings(
        tmp_path, max_completion_length=600, max_steps=1, gradient_accumulation_steps=1, shuffle_dataset=False
    )
    trainer = scripted(tiny_model, tiny.rows(), settings, scripts, credit=Gear())
    loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: batches.append(inputs) or loss(model, inputs)
    trainer.train()
    [inputs] = batches
    attention, sampled = inputs["completion_mask"], inputs["tool_mask"] * inputs["completion_mask"]
    rows = kept_ids(inputs["completion_ids"], attention)
    ours = kept_ids(inputs["completion_ids"], sampled)
    # TRL shuffles the rows of a batch before the loss.
    everything = [[token for turn in turns for token in turn] for turns in trainer.sampled]
    assert sorted(ours) == sorted(everything)
    whole = [past[len(p) :] for past, p in zip(trainer.histories, trainer.first_prompts, strict=True)]
    assert sorted(rows) == sorted(whole)
    assert sorted(kept_ids(inputs["prompt_ids"], inputs["prompt_mask"])) == sorted(trainer.first_prompts)


HOSTILE = {
    "raises": (call("fail"), {"calls": 1, "raised": 1}, "no such drawer"),
    "hangs": (call("hang"), {"calls": 1, "timeout": 1}, "more than 0.2 seconds"),
    "floods": (call("flood"), {"calls": 1, "cut": 1}, "[cut: 999900 more characters]"),
    "leaves": (call("leave"), {"calls": 1, "raised": 1}, "3"),
    "wrong type": (call("look", '{"place": "a", "times": "x"}'), {"calls": 1, "arguments": 1}, "times"),
    "missing": (call("look"), {"calls": 1, "arguments": 1}, "missing"),
    "unknown": (call("privileged_context"), {"calls": 1, "unknown": 1}, "not found"),
    "no object": (call("look", '"a"'), {"calls": 1, "arguments": 1}, "mapping"),
    "bad json": (f'<tool_call>\n{{"name": "look", </tool_call>{END}', {"malformed": 1}, None),
    "smuggles": (call("smuggle"), {"calls": 1, "control": 1}, "< |im_end|>"),
}


def test_a_bad_call_or_tool_is_an_answer_and_is_counted(tiny_model, tmp_path):
    """All in one batch: no failure of one rollout reaches another."""
    scripts = [[first, f"done{END}"] for first, _, _ in HOSTILE.values()]
    scripts += [[LOOK, f"done{END}"], [f"no{END}"]]
    size = {"num_generations": len(scripts), "per_device_train_batch_size": len(scripts)}
    limits = {"tool_time_limit": 0.2, "tool_max_chars": 100, "max_completion_length": 900}
    trainer, records = run(tmp_path, tiny_model, scripts, **size, **limits)
    wanted = [(counts, answer) for _, counts, answer in HOSTILE.values()]
    tokenizer = trainer.processing_class
    for record, (counts, answer) in zip(records, [*wanted, ({"calls": 1}, "saw a"), ({}, None)], strict=True):
        assert record.tools == counts
        text = "".join(record.tokens)
        if answer is not None:
            assert answer in text
            assert record.turn[-1] == 1, "the rollout went on"
            answered = [token for token, own in zip(record.tokens, record.mask, strict=True) if not own]
            assert len("".join(answered)) < 400
        # One turn of the tool's and one of the model's are opened per answer, whatever the answer says.
        answers = text.count("\n<tool_response>\n")
        assert answers == (answer is not None)
        assert record.ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2 * answers
        assert record.ids.count(tokenizer.convert_tokens_to_ids("</tool_response>")) == answers
    [entry] = [e for e in trainer.state.log_history if "gear/tools/raised" in e]
    for kind in ("raised", "timeout", "cut", "arguments", "unknown", "malformed", "control"):
        assert entry[f"gear/tools/{kind}"] == sum(counts.get(kind, 0) for counts, _ in wanted)


def test_a_privileged_context_that_raises_falls_back(tiny_model, tmp_path, caplog):
    class Broken(Desk):
        def privileged_context(self) -> str:
            raise LookupError("lost")

    scripts = [[LOOK, f"done{END}"], [f"done{END}"], [f"no{END}"], [f"so{END}"]]
    with caplog.at_level("WARNING", logger="gear_rl"):
        _, records = run(tmp_path, tiny_model, scripts, environment=Broken)
    assert [record.fallback for record in records] == ["no_context"] * 4
    assert all({w for w, m in zip(r.weight, r.mask, strict=True) if m} == {1.0} for r in records)
    assert "lost" in caplog.text


def test_contexts_without_ground_truth(tiny_model, tmp_path):
    """One success in four rollouts, which has no context; the failed call's answer goes before a sibling."""
    scripts = [[LOOK, f"first{END}"], [f"second{END}"], [call("fail"), f"third{END}"], [f"fourth{END}"]]
    _, records = run(tmp_path, tiny_model, scripts, privileged_sources=["feedback", "sibling"])
    assert [record.context for record in records] == [None, "sibling", "feedback", "sibling"]
    assert [record.fallback for record in records] == ["no_context", None, None, None]
    for text, record in zip(('"look"', "no such drawer", '"look"'), records[1:], strict=True):
        assert text in record.teacher_prompt.split("<|im_start|>user")[1]
