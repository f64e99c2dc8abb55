"""Completions with a marked fault: the lines of a file, and which tokens the marks cover."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gear_rl.lab.marked import EXAMPLE, read_marked, token_span
from gear_rl.runs.run_config import RunConfig


def byte_level() -> PreTrainedTokenizerFast:
    """With a token that holds a space and the first byte of a character, as GPT-2 has many."""
    bpe = Tokenizer(models.BPE(vocab={"Ġ": 0, "æ": 1, "Ġæ": 2, "Ĺ": 3, "¥": 4, "a": 5}, merges=[("Ġ", "æ")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2: a mark for a space, another before the text, and bytes for what is in no piece."""
    pieces = ["<unk>", "▁", "a", "▁a", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


@pytest.mark.parametrize("made", [byte_level, sentencepiece])
def test_a_token_overlaps_every_character_that_it_writes_a_part_of(made):
    text, tokenizer = "a 日a", made()
    spans = [token_span(tokenizer, text, place, place + 1) for place in range(4)]
    first_byte = 1 if made is byte_level else 2
    assert spans == [range(1), range(1, 2), range(first_byte, first_byte + 3), spans[3]]
    assert len(spans[3]) == 1 and spans[3].start == first_byte + 3
    assert token_span(tokenizer, text, 1, 4) == range(1, spans[3].stop)


GOOD = json.loads(EXAMPLE)


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "mine.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def read(folder: Path, *rows: Any, n: int | None = None, **settings: Any):
    run = RunConfig(model="m", dataset="d", **settings)
    return read_marked(written(folder, *rows), run, n)


def test_a_line_is_read_also_from_other_columns(tmp_path):
    marks = [{"start": 10, "end": 12}, {"text": "= 50"}]
    [one], _ = read(tmp_path, GOOD | {"decisions": marks})
    assert one.completion[one.start : one.end] == "= 52"
    assert [one.completion[slice(*span)] for span in one.decisions] == ["52", "= 50"]
    prompt = [{"role": "user", "content": "12 + 30 - 2"}]
    assert one.row == {"prompt": prompt, "privileged_context": "12 + 30 = 42, 42 - 2 = 40"}
    assert (one.line, one.other, one.other_from) == (1, GOOD["solution"], "solution")
    said = [{"role": "assistant", "content": "it is 3"}]
    sample = {"text": said, "bad": {"start": 6, "end": 7}}
    row = {"question": "1 + 1", "sample": sample, "gold": 2, "correct": "2"}
    columns = {"prompt": "question", "completion": "sample.text", "fault": "sample.bad", "answer": "gold"}
    [one], _ = read(tmp_path, row, columns=columns, chat=False)
    assert (one.completion, one.start, one.end, one.row["prompt"]) == ("it is 3", 6, 7, "1 + 1")
    assert (one.other, one.other_from, one.row["privileged_context"]) == ("2", "correct", "2")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fault": {"start": 2, "end": 2}}, 'fault: {"start": 2, "end": 2} marks nothing of 25 characters'),
        ({"fault": {"text": "aa"}, "completion": "aaa"}, "fault: 'aa' stands 2 times"),
        ({"decisions": [{"text": "77"}]}, "decisions: '77' stands 0 times"),
        ({"solution": " "}, "no privileged context for the teacher; fill one of privileged_context"),
        ({"completion": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "tool calls"),
    ],
)
def test_a_line_of_no_use_is_set_aside_and_the_others_stay(tmp_path, change, reason):
    marked, aside = read(tmp_path, GOOD, "", GOOD | change, GOOD, "no JSON is read any more", n=2)
    assert [one.line for one in marked] == [1, 4]
    [(line, why)] = aside
    assert line == 3 and reason in why
