"""Completions with a marked fault: the lines of a file, and which tokens the marks cover."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engines import tiny
from gear_rl.errors import InputError
from gear_rl.lab.marked import EXAMPLE, marked_material, token_span


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


def places(case: Any, where: Any) -> str:
    return tiny.tokenizer().decode([case.faulty[0][t] for t in where])


def test_a_line_is_read_also_from_other_columns(tmp_path, tiny_model):
    marks = [{"start": 10, "end": 12}, {"text": "= 50"}]
    material = marked_material(written(tmp_path, GOOD | {"decisions": marks}), tiny_model)
    [case] = [pair.case for pair in material.pairs]
    assert places(case, range(len(case.choices))) == GOOD["completion"] + "<|im_end|>"
    assert places(case, case.fault) == "= 52"
    assert places(case, [t for t, choice in enumerate(case.choices) if choice]) == "52= 50"
    prompt = [{"role": "user", "content": "12 + 30 - 2"}]
    assert case.row == {"prompt": prompt, "privileged_context": "12 + 30 = 42, 42 - 2 = 40"}
    assert material.about["other_completion"] == {"solution": 1}
    said = [{"role": "assistant", "content": "it is 3"}]
    sample = {"text": said, "bad": {"start": 6, "end": 7}}
    row = {"question": "1 + 1", "sample": sample, "gold": 2, "correct": "2"}
    columns = {"prompt": "question", "completion": "sample.text", "fault": "sample.bad", "answer": "gold"}
    words = [word for new, old in columns.items() for word in (f"--columns.{new}", old)]
    file = written(tmp_path, row)
    material = marked_material(file, tiny_model, words=[*words, "--chat", "false"])
    [case] = [pair.case for pair in material.pairs]
    assert places(case, case.fault) == " 3" and case.row == {"prompt": "1 + 1", "privileged_context": "2"}
    assert tiny.tokenizer().decode(case.right[0]) == "2<|im_end|>"
    assert material.about["other_completion"] == {"correct": 1}


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
def test_a_line_of_no_use_is_set_aside_and_the_others_stay(tmp_path, tiny_model, change, reason):
    file = written(tmp_path, GOOD, "", GOOD | change, GOOD, "no JSON is read any more")
    material = marked_material(file, tiny_model, n=2)
    assert len(material.pairs) == material.about["n"] == 2
    [aside] = material.about["set_aside"]
    assert aside["line"] == 3 and reason in aside["reason"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([""], "has no line; write one JSON object per line"),
        ([{"prompt": "x"}, GOOD | {"fault": 9}], "can be used; line 1: completion: missing"),
    ],
)
def test_a_file_of_no_use_is_refused_before_a_model_is_loaded(tmp_path, rows, why):
    with pytest.raises(InputError, match=f"^--data: .*mine.jsonl {why}"):
        marked_material(written(tmp_path, *rows), "no/model")
