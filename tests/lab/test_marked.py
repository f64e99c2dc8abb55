"""gear score --data: completions with a marked fault, from the file to the numbers."""

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines import tiny
from gear_rl.arena.model import load
from gear_rl.arena.task import get_task
from gear_rl.cli.score import score_table
from gear_rl.credit.config import PRIVILEGED_COLUMNS
from gear_rl.errors import InputError
from gear_rl.lab.marked import EXAMPLE, marked_material, read_marked
from gear_rl.lab.score import (
    ENTROPY_ONSETS,
    UNINFORMED,
    arena_material,
    records_of,
    score,
)
from gear_rl.runs.config import RunConfig
from gear_rl.runs.machine import quiet_libraries
from support.commands import gear, untouched

GOOD = json.loads(EXAMPLE)
LONG = " plus 2 is 3" * 120


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "mine.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


# --- the file ------------------------------------------------------------------------------------------------


def read(folder: Path, *rows: Any, n: int | None = None, **settings: Any):
    run = RunConfig(model="m", dataset="d", **settings)
    return read_marked(written(folder, *rows), run, n)


def test_a_line_is_read(tmp_path):
    [one], _ = read(tmp_path, GOOD)
    assert one.completion[one.start : one.end] == "= 52"
    assert one.row == {
        "prompt": [{"role": "user", "content": "12 + 30 - 2"}],
        "privileged_context": "12 + 30 = 42, 42 - 2 = 40",
    }
    assert (one.line, one.other, one.other_from) == (1, GOOD["solution"], "solution")


def test_characters_a_message_and_a_correct_completion(tmp_path):
    said = [{"role": "assistant", "content": "it is 3"}]
    row = {
        "prompt": "1 + 1",
        "answer": 2,
        "completion": said,
        "fault": {"start": 6, "end": 7},
        "correct": "2",
    }
    [one], _ = read(tmp_path, row, chat=False)
    assert (one.completion, one.start, one.end) == ("it is 3", 6, 7)
    assert (one.other, one.other_from, one.row["privileged_context"]) == ("2", "correct", "2")
    assert one.row["prompt"] == "1 + 1"


def test_decisions_are_spans_too(tmp_path):
    [one], _ = read(tmp_path, GOOD | {"decisions": [{"start": 10, "end": 12}, {"text": "= 50"}]})
    assert [one.completion[slice(*span)] for span in one.decisions] == ["52", "= 50"]
    assert read(tmp_path, GOOD)[0][0].decisions == ()
    for wrong, said in [(3, "3 marks nothing"), ([{"text": "77"}], "'77' stands 0 times")]:
        with pytest.raises(InputError, match=f"line 1: decisions: .*{said}"):
            read(tmp_path, GOOD | {"decisions": wrong})


def test_lines_keep_their_numbers_and_n_counts_those_that_can_be_used(tmp_path):
    bad = GOOD | {"fault": {"start": 3, "end": 3}}
    marked, aside = read(tmp_path, "", bad, GOOD, "", bad, GOOD, "no JSON is read any more", n=2)
    assert [one.line for one in marked] == [3, 6]
    assert [line for line, _ in aside] == [2, 5]


def test_columns_of_another_name(tmp_path):
    row = {"question": "1 + 1", "sample": {"text": "3", "bad": {"text": "3"}}, "gold": "2"}
    columns = {"prompt": "question", "completion": "sample.text", "fault": "sample.bad", "solution": "gold"}
    [one], _ = read(tmp_path, row, columns=columns)
    assert (one.completion, one.other, one.other_from) == ("3", "2", "solution")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fault": {"start": 2, "end": 2}}, 'fault: {"start": 2, "end": 2} marks nothing of 25 characters'),
        ({"fault": {"start": 5, "end": 2}}, "marks nothing"),
        ({"fault": {"text": ""}}, "marks nothing"),
        ({"fault": {"start": 20, "end": 99}}, "marks nothing of 25 characters"),
        ({"fault": {"start": -2, "end": 2}}, "marks nothing"),
        ({"fault": [3, 7]}, "fault: [3, 7] marks nothing"),
        ({"fault": {"start": 3}}, "marks nothing"),
        ({"fault": None}, "fault: null marks nothing"),
        (
            {"fault": {"text": "52"}},
            "fault: '52' stands 2 times in the completion; mark it with start and end",
        ),
        ({"fault": {"text": "53"}}, "fault: '53' stands 0 times"),
        ({"fault": {"text": "aa"}, "completion": "aaa"}, "fault: 'aa' stands 2 times"),
        (
            {"solution": " "},
            "no privileged context for the teacher; fill one of privileged_context, solution",
        ),
        ({"prompt": ""}, "prompt is empty"),
        ({"correct": " "}, "correct: is not the text of one assistant turn"),
        ({"completion": 7}, "completion: is not the text of one assistant turn"),
        (
            {"completion": [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}]},
            "tool calls",
        ),
        ({"completion": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "tool calls"),
    ],
)
def test_what_is_of_no_use_is_set_aside_and_the_rest_stays(tmp_path, change, reason):
    marked, aside = read(tmp_path, GOOD, GOOD | change, GOOD)
    assert [one.line for one in marked] == [1, 3]
    [(line, why)] = aside
    assert line == 2 and reason in why


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {k: v for k, v in GOOD.items() if k != "fault"},
            r"line 1: fault: missing; .*--columns.fault COLUMN",
        ),
        ({"promt": "x", "completion": "y", "fault": {}}, "line 1: prompt: missing; did you mean promt"),
        ('{"prompt": ', "line 1: "),
        ("[1]", "line 1: expected an object, found list"),
    ],
)
def test_a_file_that_is_not_of_the_format_stops_with_its_line(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, row)


def test_a_file_of_nothing_and_a_file_of_nothing_usable(tmp_path):
    with pytest.raises(InputError, match="has no line; write one JSON object per line"):
        read(tmp_path, "")
    bad = GOOD | {"fault": {"text": "53"}}
    with pytest.raises(InputError, match=r"none of the 2 lines of .* can be used; line 1: fault: '53'"):
        marked_material(written(tmp_path, bad, bad), "arena")


def test_prompts_of_two_kinds_need_chat(tmp_path):
    other = GOOD | {"prompt": [{"role": "user", "content": "x"}]}
    assert len(read(tmp_path, GOOD, other)[0]) == 2
    with pytest.raises(InputError, match="prompt is text in some lines and messages in others"):
        read(tmp_path, GOOD, other, chat=False)


# --- the numbers ---------------------------------------------------------------------------------------------


def planted(chosen, tokenizer):
    """The task's cases as lines of a user's file."""
    for case in chosen:
        [wrong], [right] = case.faulty, case.right
        start, end = (len(tokenizer.decode(wrong[:place])) for place in (case.fault.start, case.fault.stop))
        said, better = (tokenizer.decode(ids[:-1]) for ids in (wrong, right))
        yield {**case.row, "completion": said, "correct": better, "fault": {"start": start, "end": end}}


def test_planted_faults_from_a_file_give_the_numbers_of_the_task(tmp_path):
    """The check that it is right: tokens, prompts, rewards and all that follows are those of the task."""
    _, tokenizer = load()
    file = written(tmp_path, *planted(get_task("chain").cases(tokenizer, "hard", 7), tokenizer))
    named = {"by_entropy": {"name": "gear", "onset_signal": "entropy"}, "gear": {"name": "gear"}}
    with untouched(None):
        quiet_libraries()
        ours = score(named, marked_material(file, "arena"))[0]
        theirs = score(named, arena_material(tier="hard", n=7))[0]
    assert ours["n"] == 7 and ours["other_completion"] == {"correct": 7}
    assert ours["methods"].keys() == theirs["methods"].keys()
    # What the task knows besides: which tokens are decisions. It draws the other problem that the last control's
    # teacher is told of, too; a file has its next line.
    known = {"auc_choices", "auc_choices_interval", "with_choices"}
    for name in theirs["methods"].keys() - {UNINFORMED}:
        mine, its = ours["methods"][name], theirs["methods"][name]
        assert {key: mine[key] for key in mine.keys() - known} == {
            key: its[key] for key in mine.keys() - known
        }, name
        assert mine["with_choices"] == 0 and its["with_choices"] == 7 - its["left_out"]["fallback"]
    gear_row, control = theirs["methods"]["gear"], theirs["methods"][ENTROPY_ONSETS]
    assert gear_row["auc"] not in (0.5, 1.0)
    assert control | {"role": "method"} == theirs["methods"]["by_entropy"] != gear_row


ROWS = [
    {"prompt": "1 plus 1", "answer": 2, "completion": "1 plus 1 is 3", "fault": {"text": " 3"}},
    {"prompt": "x", "answer": 2, "completion": "1 plus", "fault": {"start": 6, "end": 7}},
    {
        "prompt": [{"role": "user", "content": "2 plus 2"}],
        "solution": "2 plus 2 is 4",
        "completion": [{"role": "assistant", "content": "\U0001f642 is 5"}],
        "correct": "it is 4",
        "fault": {"start": 0, "end": 1},
    },
    {"prompt": "x", "answer": 2, "completion": LONG * 4, "fault": {"start": 6, "end": 7}},
    {"prompt": "y", "answer": 5, "completion": LONG, "fault": {"start": 1430, "end": 1440}},
]


@pytest.fixture(scope="module")
def document(tiny_model, tmp_path_factory):
    """A model of two thousand weights and five lines, of which two cannot be used; as a user would call it."""
    folder = tmp_path_factory.mktemp("marked")
    file = written(folder, *ROWS)
    words = [
        "--data",
        file.name,
        "--model",
        tiny_model,
        "--methods",
        "gear,rlsd,rlcsd",
        "--max-tokens",
        "900",
    ]
    done = gear("score", *words, "--json", "--report", "report.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, (folder / "report.html").read_text(encoding="utf-8")


def test_a_users_own_completions(document, tiny_model):
    found, told, page = document
    assert (found["data"], found["model"], found["n"]) == ("mine.jsonl", Path(tiny_model).name, 3)
    assert found["other_completion"] == {"answer": 2, "correct": 1}
    assert [line["line"] for line in found["set_aside"]] == [2, 4]
    assert 'line 2: fault: {"start": 6, "end": 7} marks nothing of 6 characters' in told
    assert "line 4: completion: 1920 tokens are more than --max-tokens 900; set aside" in told
    assert "2 of 5 lines are set aside" in told
    roles = {name: row["role"] for name, row in found["methods"].items()}
    assert sorted(roles.values()) == ["ceiling", *["control"] * 5, *["floor"] * 3, *["method"] * 3]
    assert all(row["n"] == 3 for name, row in found["methods"].items() if name != "rlcsd")
    assert found["methods"]["oracle"]["auc"] == 1.0 and found["methods"]["uniform"]["auc"] == 0.5
    assert 0 < found["methods"]["gear"]["auc"] < 1
    assert "a span that was marked" in page and "Where credit lands: mine.jsonl" in page


def test_a_method_that_fell_back_is_not_taken_for_grpo(document):
    """A group of two has no other failure to contrast with, so RLCSD leaves its completions as they are."""
    found = document[0]
    row = found["methods"]["rlcsd"]
    assert (row["n"], row["auc"], row["left_out"]["fallback"]) == (0, None, 3)
    table = score_table(found)
    assert table.columns[-1].header == "n"
    assert [*table.columns[1].cells][[*table.columns[0].cells].index("rlcsd")] == "-"


@pytest.fixture(scope="module")
def seen(tiny_model, tmp_path_factory):
    """The records of GEAR, and what its teacher is told in the control."""
    folder = tmp_path_factory.mktemp("seen")
    with untouched(None):
        quiet_libraries()
        same = ROWS[0] | {"prompt": "3 plus 3"}
        material = marked_material(written(folder, *ROWS, same), tiny_model, max_tokens=900)
        return records_of({"name": "gear"}, material), records_of({"name": "gear"}, material, informed=False)


def test_the_engine_sees_the_completion_the_fault_and_a_negative_advantage(seen):
    tokenizer = tiny.tokenizer()
    chosen, records = seen[0]
    texts = ["1 plus 1 is 3", "\U0001f642 is 5", LONG, "1 plus 1 is 3"]
    faults = [" 3", "\U0001f642", LONG[1430:], " 3"]
    for case, record, text, fault in zip(chosen, records, texts, faults, strict=True):
        assert tokenizer.decode(record.ids) == text + "<|im_end|>"
        assert tokenizer.decode(record.ids[case.fault.start : case.fault.stop]).endswith(fault)
        assert record.reward == 0.0 and record.advantage == pytest.approx(-(0.5**0.5), abs=1e-3)
        assert record.context == "privileged_context" and record.fallback is None
        assert record.mask == [1] * len(record.ids) and record.turn == [0] * len(record.ids)
    assert "<|im_start|>user\n2 plus 2<|im_end|>" in records[1].prompt, "the model's own chat template"
    assert tokenizer.decode(chosen[1].right[0]) == "it is 4<|im_end|>"
    assert len(chosen[0].fault) == 1 and len(chosen[1].fault) == 4, "four bytes, four tokens"


def test_the_uninformed_teacher_is_told_the_next_lines_context(seen):
    (chosen, informed), (others, records) = seen
    assert [case.row["privileged_context"] for case in chosen] == ["2", "2 plus 2 is 4", "5", "2"]
    # After the last comes the first, whose context is the same text: so the one after it.
    assert [case.row["privileged_context"] for case in others] == ["2 plus 2 is 4", "5", "2", "2 plus 2 is 4"]
    for one, other in zip(informed, records, strict=True):
        assert one.ids == other.ids and one.signals["student_entropy"] == pytest.approx(
            other.signals["student_entropy"], abs=1e-3
        )
        assert one.signals["divergence"] != other.signals["divergence"]


def test_without_another_context_the_control_says_nothing(tiny_model, tmp_path):
    with untouched(None):
        quiet_libraries()
        material = marked_material(written(tmp_path, ROWS[0]), tiny_model)
        found, _ = score({"uniform": {"name": "uniform"}}, material)
    assert (found["methods"][UNINFORMED]["n"], found["methods"][UNINFORMED]["auc"]) == (0, None)
    assert found["methods"]["divergence"]["n"] == 1
    assert found["methods"]["divergence"]["with_choices"] == 0, "nobody said where something is decided"
    assert score_table(found).row_count == len(found["methods"])


def test_among_the_decisions_of_a_line_there_is_a_second_auc(tiny_model, tmp_path):
    row = ROWS[0] | {"completion": "2 and 1 plus 1 is 3", "fault": {"text": "3"}}
    marks = [{"start": 0, "end": 1}, {"text": "is 3"}]
    with untouched(None):
        quiet_libraries()
        material = marked_material(written(tmp_path, row | {"decisions": marks}, row), tiny_model)
        found, _ = score({"uniform": {"name": "uniform"}}, material)
    oracle = found["methods"]["oracle"]
    assert (oracle["n"], oracle["with_choices"], oracle["auc_choices"]) == (2, 1, 1.0)
    assert found["methods"]["uniform"]["auc_choices"] == 0.5


def test_two_large_models_never_stand_side_by_side(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("gear_rl.lab.score.LARGE", 1)
    models: list[weakref.ref] = []
    with untouched(None):
        quiet_libraries()
        material = marked_material(written(tmp_path, ROWS[0]), tiny_model)

        def watched(trainer, informed):
            models.append(weakref.ref(trainer.model))
            return material.cases(trainer, informed)

        records_of({"name": "gear"}, replace(material, cases=watched))
    assert models[0]() is None


def test_a_method_that_needs_more_than_a_mark_is_one_line(tiny_model, tmp_path):
    done = gear(
        "score", "--data", str(written(tmp_path, ROWS[0])), "--model", tiny_model, "--methods", "crpo"
    )
    assert done.returncode == 2 and "gear: --methods: crpo: style: no reward function 1" in done.stderr


def test_prompts_that_the_model_cannot_take_are_set_aside(tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    template = folder / "chat_template.jinja"
    refusal = "{% if messages[0].role == 'judge' %}{{ raise_exception('no judges here') }}{% endif %}"
    template.write_text(refusal + template.read_text(encoding="utf-8"), encoding="utf-8")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 300}))
    judge = ROWS[0] | {"prompt": [{"role": "judge", "content": "x"}, {"role": "user", "content": "y"}]}
    nobody = ROWS[0] | {"prompt": [{"role": "assistant", "content": "x"}]}
    # 240 tokens, which fit alone, but not behind a prompt.
    half = ROWS[4] | {"completion": LONG[: len(LONG) // 2], "fault": {"start": 0, "end": 5}}
    file = written(tmp_path, judge, ROWS[0], half, ROWS[0] | {"correct": LONG}, nobody)
    with untouched(None):
        quiet_libraries()
        material = marked_material(file, str(folder))
        chosen, _ = records_of({"name": "uniform"}, material)
    assert len(chosen) == 1
    reasons = [line["reason"] for line in material.about()["set_aside"]]
    assert reasons[0] == "prompt: cannot be shown to the teacher (no judges here)"
    assert reasons[1].startswith("completion: ") and reasons[1].endswith("but the model has 300 places")
    assert reasons[2].startswith("correct: ") and reasons[2].endswith("but the model has 300 places")
    assert "no user or system message" in reasons[3]


def test_the_help_shows_a_line_of_the_format():
    told = " ".join(gear("score", "--help").stdout.split())
    assert " ".join(EXAMPLE.split()) in told


def test_settings_of_the_engine_may_follow(tiny_model, tmp_path):
    """A prompt as text, the teacher's template and the columns: all of `gear train`."""
    row = {"question": "1 plus 1", "gold": "2", "completion": "1 plus 1 is 3", "fault": {"text": "3"}}
    words = ["--columns.prompt", "question", "--chat", "false", "--privileged_column", "gold"]
    words += ["--teacher_prompt_template", "{privileged_context} {prompt}"]
    with untouched(None):
        quiet_libraries()
        file = written(tmp_path, row)
        material = marked_material(file, tiny_model, words=words)
        config = material.config({"name": "gear"}, str(tmp_path))
        [case], [record] = records_of({"name": "gear"}, material)
    assert record.prompt == "1 plus 1"
    assert case.row == {"prompt": "1 plus 1", "privileged_context": "2"}
    assert config.trainer["teacher_prompt_template"] == "{privileged_context} {prompt}"
    assert material.about()["other_completion"] == {"gold": 1}


PAGE = (Path(__file__).parents[2] / "docs" / "laboratory.md").read_text(encoding="utf-8")


def test_the_page_shows_a_line_of_the_format_and_every_field():
    section = PAGE.split("## Your own completions")[1]
    assert f"```json\n{EXAMPLE}\n```" in section
    for name in ("prompt", "completion", "fault", "correct", "decisions", *PRIVILEGED_COLUMNS):
        assert f"`{name}`" in section
