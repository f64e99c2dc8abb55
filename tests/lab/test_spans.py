"""From characters to tokens, by hand."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gear_rl.lab.marked import token_span


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
