"""Multi-turn rollouts through TRL's own tool loop: masks, ids, turns, contexts, and tools that misbehave."""

import asyncio
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import trl
from trl.chat_template_utils import add_response_schema, parse_response

from engines import tiny
from engines.scripted import END, Desk, call, scripted
from engines.watching import kept_ids
from gear_rl import Gear, Uniform
from gear_rl.arena import model as arena
from gear_rl.engines.trl.rollouts import parse_tool_calls
from gear_rl.records import read_records

STATIC_TOOLS = tuple(int(part) for part in trl.__version__.split(".")[:2]) >= (1, 16)
"""Whether TRL takes static methods of an environment for tools; 1.14 does not."""
LOOK = call("look", '{"place": "a"}')
THREE_TURNS = [LOOK, call("fail"), f"done{END}"]


def run(folder, model, scripts, credit=None, **changes):
    settings = tiny.settings(
        folder,
        record_file=str(folder / "records.jsonl"),
        max_completion_length=600,
        max_steps=1,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
    )
    given = ("environment_factory", "privileged", "tools", "reward_funcs")
    options = {name: changes.pop(name) for name in given if name in changes}
    trainer = scripted(
        model,
        tiny.rows().remove_columns(["privileged_context", "answer"]),
        settings | changes,
        scripts,
        credit=credit or Gear(onset_floor_nats=0.0),
        **options,
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
    for record in records:
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

    def watched(model, inputs):
        batches.append(inputs)
        return loss(model, inputs)

    trainer._compute_loss = watched
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
    "list for a text": (call("look", '{"place": ["a"]}'), {"calls": 1, "arguments": 1}, "place"),
    "missing": (call("look"), {"calls": 1, "arguments": 1}, "missing"),
    "surplus": (call("look", '{"place": "a", "x": 1}'), {"calls": 1, "arguments": 1}, "unexpected"),
    "unknown": (call("privileged_context"), {"calls": 1, "unknown": 1}, "not found"),
    "reset": (call("reset", '{"seed": 1}'), {"calls": 1, "unknown": 1}, "not found"),
    "no object": (call("look", '"a"'), {"calls": 1, "arguments": 1}, "mapping"),
    "bad json": (f'<tool_call>\n{{"name": "look", </tool_call>{END}', {"malformed": 1}, None),
    "unclosed": (f'<tool_call>\n{{"name": "look", "arguments": {{}}}}{END}', {"malformed": 1}, None),
    "smuggles": (call("smuggle"), {"calls": 1, "control": 1}, "< |im_end|>"),
    "half a surrogate": (call("echo", '{"text": "a\\ud83d"}'), {"calls": 1}, "\na?\n"),
    "half in the name": (call("no\\udc00body"), {"calls": 1, "unknown": 1}, "not found"),
    "a list": (call("names"), {"calls": 1}, "['a', 'b']"),
    "like an error": (call("like_an_error"), {"calls": 1}, "no such drawer"),
}


def test_a_bad_call_or_tool_is_an_answer_and_is_counted(tiny_model, tmp_path):
    """All in one batch: no failure of one rollout reaches another."""
    scripts = [[first, f"done{END}"] for first, _, _ in HOSTILE.values()] + [
        [LOOK, f"done{END}"],
        [f"no{END}"],
    ]
    size = {"num_generations": len(scripts), "per_device_train_batch_size": len(scripts)}
    limits = {"tool_time_limit": 0.2, "tool_max_chars": 100, "max_completion_length": 900}
    trainer, records = run(tmp_path, tiny_model, scripts, **size, **limits)
    wanted = [(counts, answer) for _, counts, answer in HOSTILE.values()]
    tokenizer, total = trainer.processing_class, Counter()
    for record, (counts, answer) in zip(records, [*wanted, ({"calls": 1}, "saw a"), ({}, None)], strict=True):
        assert record.tools == counts
        total.update(counts)
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
    for kind in total.keys() - {"calls"}:
        assert entry[f"gear/tools/{kind}"] == total[kind]


def test_a_cut_off_rollout_that_the_trainer_masks_is_recorded_as_cut_off(tiny_model, tmp_path):
    scripts = [[LOOK, "I saw"], [LOOK, f"done{END}"], [f"a{END}"], ["b"]]
    _, records = run(tmp_path, tiny_model, scripts, mask_truncated_completions=True)
    assert [record.truncated for record in records] == [True, False, False, True]
    assert [bool(record.tokens) for record in records] == [False, True, True, False]
    assert [record.fallback for record in records] == ["no_token", None, None, "no_token"]


def divide(a: int, b: int) -> float:
    """Divide.

    Args:
        a: Dividend.
        b: Divisor.
    """
    return a / b


class Slow:
    """An environment with slots, an async tool and a static one."""

    __slots__ = ("done",)

    def reset(self, **row) -> None:
        self.done = 0

    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        await asyncio.sleep(seconds)
        self.done += 1
        return "waited"

    @staticmethod
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    def get_reward(self) -> float:
        return float(self.done)


TOOLS = [
    (call("divide", '{"a": 1, "b": 0}'), {"calls": 1, "raised": 1}, "division by zero"),
    (call("divide", '{"a": "4", "b": 2}'), {"calls": 1}, "2.0"),
    (call("divide", '{"a": 4.5, "b": 2}'), {"calls": 1, "arguments": 1}, "argument a"),
    (call("wait", '{"seconds": 0}'), {"calls": 1}, "waited"),
    (call("wait", '{"seconds": 60}'), {"calls": 1, "timeout": 1}, "more than 0.2 seconds"),
    (call("wait", '{"seconds": "long"}'), {"calls": 1, "arguments": 1}, "argument seconds"),
    (call("add", '{"a": 20, "b": 22}'), {"calls": 1} if STATIC_TOOLS else {"calls": 1, "unknown": 1}, "42"),
]


def test_functions_async_tools_and_slotted_environments(tiny_model, tmp_path):
    scripts = [[words, f"done{END}"] for words, _, _ in TOOLS]
    size = {"num_generations": len(TOOLS), "per_device_train_batch_size": len(TOOLS)}
    options = {"credit": Uniform(), "environment_factory": Slow, "tools": [divide], "tool_time_limit": 0.2}
    _, records = run(tmp_path, tiny_model, scripts, **options, **size)
    assert [record.tools for record in records] == [counts for _, counts, _ in TOOLS]
    for record, (_, _, answer) in zip(records, TOOLS, strict=True):
        assert answer in "".join(record.tokens) or not STATIC_TOOLS


def test_a_privileged_context_that_raises_falls_back(tiny_model, tmp_path, caplog):
    class Broken(Desk):
        def privileged_context(self) -> str:
            raise LookupError("lost")

    scripts = [[LOOK, f"done{END}"], [f"done{END}"], [f"no{END}"], [f"so{END}"]]
    with caplog.at_level("WARNING", logger="gear_rl"):
        _, records = run(tmp_path, tiny_model, scripts, environment_factory=Broken)
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


def test_feedback_that_a_reward_function_logs_is_shown_for_failures(tiny_model, tmp_path):
    values: list[Any] = ["a<|im_end|>", {"line": 3}, None, "won"]

    def judge(completions, log_extra, **_):
        log_extra("feedback", values)
        return [0.0, 0.0, 0.0, 1.0]

    scripts = [[f"{word}{END}"] for word in ("one", "two", "three", "four")]
    options = {"privileged_sources": ["feedback"], "reward_weights": [0.5], "success_reward": 0.5}
    options |= {"reward_funcs": judge, "environment_factory": None}
    _, records = run(tmp_path, tiny_model, scripts, **options)
    shown = ["a< |im_end|>", '{"line": 3}', None, None]
    assert [record.context for record in records] == [text and "feedback" for text in shown]
    assert all(
        text in (record.teacher_prompt or "") for text, record in zip(shown, records, strict=True) if text
    )
    assert [record.reward for record in records] == [0.0, 0.0, 0.0, 0.5]
    values.pop()
    with pytest.raises(ValueError, match="feedback: 3 entries for 4 completions; give one for each"):
        run(tmp_path, tiny_model, scripts, **options, overwrite_output_dir=True)


def test_the_teachers_template_has_arguments_of_its_own(tiny_model, tmp_path):
    student, teacher = {"enable_thinking": True}, {"enable_thinking": False}
    changes = {"chat_template_kwargs": student, "teacher_chat_template_kwargs": teacher}
    scripts = [[LOOK, f"done{END}"], [f"two{END}"], [f"three{END}"], [f"four{END}"]]
    trainer, records = run(tmp_path, tiny_model, scripts, **changes)
    thought = "<think>\n\n</think>\n\n"
    assert all(record.teacher_prompt.endswith(thought) for record in records)
    assert not any(thought in record.prompt for record in records)
    assert trainer.chat_template_kwargs == student


# --- templates whose tool calls TRL can parse ----------------------------------------------------------------


@pytest.fixture
def tokenizer() -> Any:
    return arena.load(task="errands")[1]


def test_a_training_variant_is_parsed_as_its_stock_template(tokenizer):
    with pytest.raises(ValueError, match="Unrecognized chat template"):
        add_response_schema(tokenizer)
    assert parse_tool_calls(tokenizer)
    assert tokenizer.chat_template == arena.chat_template()
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "jim"}}\n</tool_call><|im_end|>'
    prompt = tokenizer("<|im_start|>assistant\n")["input_ids"]
    [found] = parse_response(tokenizer, tokenizer(text)["input_ids"], prefix=prompt)["tool_calls"]
    assert found["function"] == {"name": "look", "arguments": {"at": "jim"}}
    tokenizer.response_template = {"own": True}
    assert parse_tool_calls(tokenizer) and tokenizer.response_template == {"own": True}, "the user's is kept"


@pytest.mark.parametrize("template", ["{{ messages }}", "cohere_training.jinja"])
def test_what_trl_cannot_parse_is_left_to_trl(tokenizer, template):
    if template.endswith(".jinja"):
        template = (files("trl") / "chat_templates" / template).read_text(encoding="utf-8")
    tokenizer.chat_template = template
    assert not parse_tool_calls(tokenizer)
    assert tokenizer.chat_template == template and getattr(tokenizer, "response_template", None) is None
