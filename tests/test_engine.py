"""The text of every token: with a tokenizer of bytes each decoded alone, with Llama 2's the spaces as well."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engines import tiny
from gear_rl.engine import token_places, token_texts
from gear_rl.signals.answers import AnswerRegion
from gear_rl.signals.steps import StepId
from gear_rl.signals.text_units import SentenceId
from support import batches
from support.batches import PlainEngine

BYTES, LLAMA = tiny.tokenizer(), tiny.llama2_tokenizer()


def texts_of(tokenizer, ids, **options):
    [texts] = token_texts(tokenizer, torch.tensor([ids]), **options)
    return texts


def unigram():
    pieces = [("<unk>", 0.0), ("▁It", -1.0), ("▁is", -1.0), ("▁", -2.0), ("4", -2.0), (".", -2.0)]
    words = Tokenizer(models.Unigram(pieces, unk_id=0))
    words.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=200, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, len(BYTES) - 1), min_size=1, max_size=9))
def test_a_tokenizer_of_bytes_decodes_each_token_alone(skip, ids):
    alone = [BYTES.decode([token], skip_special_tokens=skip) for token in ids]
    assert texts_of(BYTES, ids, skip_special_tokens=skip) == alone


@pytest.mark.parametrize(
    ("tokenizer", "ids", "texts"),
    [
        (LLAMA, LLAMA("It is 42.")["input_ids"], ["It", " is", " 42", "."]),
        (LLAMA, LLAMA("\n  é")["input_ids"], ["", "\n", " ", " ", "\ufffd", "\ufffd"]),
        (unigram(), [1, 2, 3, 4, 5, 1, 3, 3], ["It", " is", " ", "4", ".", " It", " ", " "]),
    ],
)
def test_a_token_keeps_its_space_behind_another(tokenizer, ids, texts):
    assert texts_of(tokenizer, ids) == texts


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text("It is 42.\né", min_size=1, max_size=20))
def test_places_are_those_of_the_whole_text(text):
    ids = LLAMA(text, add_special_tokens=False)["input_ids"]
    whole, places = LLAMA.decode(ids), token_places(LLAMA, ids)
    assert [place.start for place in places] == sorted(place.start for place in places)
    assert "".join(whole[p.start : p.stop] for p in dict.fromkeys(places)) == whole


@pytest.mark.parametrize("pattern", [r"Ответ: (\d+)", "答案\uff1a(\\d+)", r"✅ (\d+)"])
def test_an_answer_is_found_behind_characters_of_several_tokens(pattern):
    ids = BYTES("是 " + pattern.replace(r"(\d+)", "42") + ".")["input_ids"]
    batch = batches.batch_of(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    region = AnswerRegion(pattern).compute(batch, PlainEngine(BYTES))[0]
    assert BYTES.decode([ids[t] for t in (region == 1).nonzero()[:, 0]]) == "42"


def test_a_sentence_ends_with_a_mark_of_several_tokens():
    texts = ["今日は\uff01", "明日は\uff1f", "はい"]
    batch = batches.written(BYTES, ["".join(texts)])
    sizes = [len(BYTES(text)["input_ids"]) for text in texts]
    sentences = [n for n, size in enumerate(sizes) for _ in range(size)]
    assert SentenceId().compute(batch, PlainEngine(BYTES))[0].tolist() == sentences


def test_sentences_answers_and_steps_are_found_where_spaces_were_lost():
    ids = LLAMA("It is 42. So the answer is 42.")["input_ids"]
    engine, mask = PlainEngine(LLAMA), torch.ones(1, len(ids), dtype=torch.bool)
    batch = batches.batch_of(torch.tensor([ids]), mask)
    before = len(LLAMA("It is 42.")["input_ids"])
    sentences = SentenceId().compute(batch, engine)[0].tolist()
    assert sentences == [0] * before + [1] * (len(ids) - before)
    region = AnswerRegion(r"answer is (\d+)").compute(batch, engine)[0]
    assert LLAMA.decode([ids[t] for t in (region == 1).nonzero()[:, 0]]) == "42"
    by_mark = StepId("separator", ". ").compute(batch, engine)[0]
    assert by_mark.max() == 1
