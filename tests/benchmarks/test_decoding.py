"""Sampling by a CUDA graph writes what Hugging Face's ``generate`` writes; here without the graph."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

NEW, END = 12, 2


@pytest.fixture
def sample() -> Iterator[Any]:
    from benchmarks.gpu import decoding

    LlamaForCausalLM.generate = decoding.sample
    yield decoding.sample
    del LlamaForCausalLM.generate


def _model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=60, tie_word_embeddings=True, initializer_range=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _settings(**changed: Any) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=NEW, eos_token_id=END, pad_token_id=0, **changed)


def _until_end(ids: torch.Tensor) -> list[list[int]]:
    rows = ids[:, 9:].tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]


def test_the_most_likely_tokens_are_those_of_generate(sample: Any) -> None:
    """Prompts of several lengths, twice: the second call meets used buffers."""
    model, greedy = _model(), _settings(do_sample=False)
    for seed in (1, 2):
        torch.manual_seed(seed)
        ids, mask = torch.randint(3, 60, (5, 9)), torch.ones(5, 9, dtype=torch.long)
        for row in range(5):
            mask[row, :row] = 0
        ours = model.generate(ids, mask, greedy)
        theirs = super(LlamaForCausalLM, model).generate(ids, attention_mask=mask, generation_config=greedy)
        assert _until_end(ours) == _until_end(theirs)


def test_tokens_are_drawn_as_the_softmax_says(sample: Any) -> None:
    model = _model()
    ids = torch.randint(3, 60, (1, 9)).expand(4000, -1)
    drawn = sample(model, ids, torch.ones_like(ids), _settings(do_sample=True, temperature=1.0, top_k=0))[
        :, 9
    ]
    with torch.no_grad():
        wanted = model(ids[:1]).logits[0, -1].softmax(-1)
    seen = torch.bincount(drawn, minlength=60) / len(drawn)
    torch.testing.assert_close(seen, wanted, atol=0.03, rtol=0)


def test_another_temperature_is_refused(sample: Any) -> None:
    with pytest.raises(ValueError, match="at temperature 1 alone"):
        sample(_model(), None, None, _settings(do_sample=True, temperature=0.5, top_k=0))
