"""From characters to tokens, against the bytes of every token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engines import tiny
from gear_rl.data.spans import token_span


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: a mark for spaces, one before the text, and bytes for what is in no piece."""
    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    bpe.train_from_iterator(["user assistant system 1 plus 2 is 3"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", pad_token="<unk>")


TOKENIZERS = {"byte level": tiny.tokenizer(), "sentencepiece": sentencepiece()}
BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}


def bytes_of(kind: str, token: str) -> bytes:
    if kind == "byte level":
        return bytes(BYTE_OF[letter] for letter in token)
    if token.startswith("<0x"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def slow(kind: str, tokens: list[str], text: str, start: int, end: int) -> list[int]:
    """The tokens of which a byte lies between the first byte of the span and its last."""
    pieces = [bytes_of(kind, token) for token in tokens]
    skipped = 1 if kind == "sentencepiece" else 0  # the mark before the text is no byte of it
    assert b"".join(pieces)[skipped:] == text.encode()
    first, last = len(text[:start].encode()), len(text[:end].encode())
    found, place = [], -skipped
    for t, piece in enumerate(pieces):
        if any(first <= place + k < last for k in range(len(piece))):
            found.append(t)
        place += len(piece)
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None, max_examples=50)
@given(
    text=st.text(alphabet="1 23aplus\n\té日\U0001f642\u0301", min_size=1, max_size=12),
    place=st.tuples(st.integers(0, 11), st.integers(1, 12)),
)
def test_every_span_is_the_one_of_the_bytes(kind, text, place):
    start = min(place[0], len(text) - 1)
    end = min(len(text), start + place[1])
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = token_span(tokenizer, text, ids, start, end)
    assert list(found) == slow(kind, tokenizer.convert_ids_to_tokens(ids), text, start, end)


def test_a_token_with_a_space_and_a_part_of_a_character():
    """Byte-level, with a token that holds a space and the first byte of a character, as GPT-2 has many."""
    wide = Tokenizer(models.BPE(vocab={"Ġ": 0, "æ": 1, "Ġæ": 2, "Ĺ": 3, "¥": 4, "a": 5}, merges=[("Ġ", "æ")]))
    wide.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    wide.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wide)
    text, ids = "a \u65e5a", [5, 2, 3, 4, 5]
    assert tokenizer(text)["input_ids"] == ids and tokenizer.decode(ids) == text
    spans = [token_span(tokenizer, text, ids, place, place + 1) for place in range(4)]
    assert spans == [range(1), range(1, 2), range(1, 4), range(4, 5)]


def test_offsets_serve_where_a_tokenizer_rewrites_the_text():
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    text = "e\u0301 plus 2"  # which it writes with one character less
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) != text
    found = token_span(tokenizer, text, ids, 8, 9)
    assert tokenizer.decode(ids[found.start : found.stop]) == " 2"
    assert token_span(tokenizer, text, ids, 0, 1).start == 0

    class Upper:
        is_fast = False

        def decode(self, ids, **_):
            return "".join(map(chr, ids)).upper()

    assert token_span(Upper(), "ab", [97, 98], 0, 1) is None
