"""The code that all recipes share: a new tokenizer and model, demonstrations, two stages of training.

Stage 1 teaches the task, with a reference and without. Stage 2 teaches the mistakes of the student without its
problem's reference, so that it errs often and the same weights with the reference hardly.
"""

import math
import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from gear_rl.arena.codes import CODES
from gear_rl.arena.model import EOS, PAD, chat_template
from gear_rl.arena.task import FIRST_TRAIN_SEED, TEMPLATE, Completion, Problem

Stage = Literal["early", "late", "settle"]
"""The beginning of stage 1, the rest of it, and stage 2."""
Demonstration = tuple[str, Completion]
Counted = tuple[list[int], list[bool]]
"""One demonstration: its token ids, and which of them the loss counts."""
Batch = tuple[torch.Tensor, torch.Tensor]

_SPECIAL = (PAD, "<|im_start|>", EOS)
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a checkpoint is made; numbers measured on one CPU core."""

    atoms: tuple[str, ...]
    """Each of these is one token, so that one decision is one token."""
    texts: Callable[[random.Random], Iterable[str]]
    """Texts for the tokenizer's merges."""
    demonstration: Callable[[random.Random, int, Stage], Demonstration]
    """From random numbers, the longest problem and the stage to a user message and the completion."""
    counted: Callable[[Any, list[Demonstration]], list[Counted]]
    """Demonstrations as the tokenizer's ids."""
    drill: Callable[[Any, random.Random, int], Iterator[Batch]] | None = None
    """Other batches, of so many tokens, for every second step from `drill_from` until the rates fall."""
    drill_from: int = 0
    vocab_size: int = 512
    """Bytes and merges, without the atoms."""
    circles: bool = False
    """Whether numbers begin as neighbours of each other."""
    steps: int
    """Stage 1."""
    early_steps: int
    short_steps: int
    """The first steps, with problems of at most three decisions."""
    grow_steps: int
    """Then the longest problem grows by one decision after this many steps."""
    longest: int
    fall_steps: int
    """Steps at the end of stage 1 over which the learning rates fall."""
    settle_steps: int
    """Stage 2, at a small rate."""
    settle_fall_steps: int
    settle_rate: float
    batch_tokens: int
    draws: int = 256
    """Demonstrations that are batched by length at a time."""


def build(recipe: Recipe, out: Path, seed: int) -> None:
    """Write the checkpoint's folder; the same bytes for the same seed and machine. Needs torch 2.9 for Muon."""
    with _one_thread():
        rng = random.Random(seed)
        tokenizer = build_tokenizer(recipe.texts(rng), recipe.atoms, recipe.vocab_size)
        model = build_model(tokenizer, seed, circles=recipe.circles)
        # Muon is for hidden matrices; AdamW alone takes several times as long.
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        muon = torch.optim.Muon(
            matrices, lr=3e-3, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
        _train(model, _learning(recipe, tokenizer, rng), [muon, adamw], recipe.steps, recipe.fall_steps)
        adamw = torch.optim.AdamW(
            model.parameters(), lr=recipe.settle_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        settling = _batches(recipe, tokenizer, rng, lambda _: (recipe.longest, "settle"))
        _train(model, settling, [adamw], recipe.settle_steps, recipe.settle_fall_steps)
        _save(model, tokenizer, out)


@contextmanager
def _one_thread() -> Generator[None]:
    """Two threads are slower on a model this small, and sums would depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def build_tokenizer(texts: Iterable[str], atoms: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer whose merges come from ``texts``; any text survives encoding and decoding."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    # No word splitting, so that boilerplate becomes few tokens. A blank line stays a token: the prompt ends with
    # one, and no merge may reach into the completion.
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # Training does not cut at added tokens (encoding does), so the pieces between them are cut here.
    added = sorted((*_SPECIAL, *_MARKUP, *atoms), key=len, reverse=True)
    cut = re.compile("|".join(re.escape(token) for token in added))
    bpe.train_from_iterator(
        [piece for text in texts for piece in cut.split(text) if piece],
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=8,
            special_tokens=list(_SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(token, normalized=False) for token in (*_MARKUP, *atoms)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def build_model(tokenizer: Any, seed: int, *, circles: bool) -> Any:
    """An untrained model of 0.8 million parameters."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        # Large next to the layers' output; the last norm keeps the tied head's logits small.
        embedding = model.get_input_embeddings().weight
        embedding.mul_(4)
        if circles:  # learns the facts in a minute instead of five
            angles = 2 * math.pi * torch.arange(100.0)[:, None] * torch.arange(1.0, 33.0)[None] / 100
            first: int = tokenizer.convert_tokens_to_ids(CODES[0])
            embedding[first : first + 100, :64] = 0.16 * torch.cat([angles.cos(), angles.sin()], dim=1)
        model.model.norm.weight.fill_(0.25)
    return model


def _learning(recipe: Recipe, tokenizer: Any, rng: random.Random) -> Iterator[Batch]:
    """Stage 1: problems grow, and every other step may be a drill."""

    def now(made: int) -> tuple[int, Stage]:
        grown = 3 + max(0, made - recipe.short_steps) // recipe.grow_steps
        return min(grown, recipe.longest), "early" if made < recipe.early_steps else "late"

    batches = _batches(recipe, tokenizer, rng, now)
    drill = batches if recipe.drill is None else recipe.drill(tokenizer, rng, recipe.batch_tokens)
    for step in range(recipe.steps):
        drilled = recipe.drill_from <= step < recipe.steps - recipe.fall_steps and step % 2 == 1
        yield next(drill if drilled else batches)


def _batches(
    recipe: Recipe, tokenizer: Any, rng: random.Random, now: Callable[[int], tuple[int, Stage]]
) -> Iterator[Batch]:
    """Batches of similar length; ``now`` maps the number made so far to the longest problem and the stage."""
    made = 0
    while True:
        longest, stage = now(made)
        drawn = [recipe.demonstration(rng, longest, stage) for _ in range(recipe.draws)]
        rows = recipe.counted(tokenizer, drawn)
        batches: list[list[Counted]] = [[]]
        for row in sorted(rows, key=lambda row: len(row[0])):
            if (len(batches[-1]) + 1) * len(row[0]) > recipe.batch_tokens:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        for batch in batches:
            width = max(len(ids) for ids, _ in batch)
            pad: int = tokenizer.pad_token_id
            yield (
                torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch]),
                torch.tensor([counts + [False] * (width - len(counts)) for _, counts in batch]),
            )
        made += len(batches)


def counted_chats(tokenizer: Any, chats: list[Demonstration]) -> list[Counted]:
    """Demonstrations of one turn; the loss counts on completions."""
    (mark,) = tokenizer("assistant\n")["input_ids"]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": content}, {"role": "assistant", "content": completion}],
            tokenize=False,
        )
        for content, (completion,) in chats
    ]
    rows: list[list[int]] = tokenizer(texts)["input_ids"]
    return [(row, [t >= row.index(mark) for t in range(len(row))]) for row in rows]


def shown(problem: Problem, context: str | None) -> str:
    """The user message, with the privileged context if there is one."""
    if context is None:
        return problem.text
    return TEMPLATE.format(prompt=problem.text, privileged_context=context)


def informed_prompts(generate: Callable[[int, str], Problem], tier: str, rng: random.Random) -> Iterator[str]:
    """Prompts of one turn, for the tokenizer to learn from."""
    for _ in range(400):
        problem = generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)
        content = shown(problem, problem.reference("trace", seed=0))
        yield f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def _train(model: Any, batches: Iterator[Batch], optimizers: list[Any], steps: int, fall_steps: int) -> None:
    """Next-token training; the rates warm up, stay flat, then fall to 2 % over the last steps."""
    top_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    model.train()
    for step in range(steps):
        scale = min(1.0, (step + 1) / 20, max(0.02, (steps - step) / max(1, fall_steps)))
        ids, counts = next(batches)
        loss = model(input_ids=ids, labels=torch.where(counts, ids, -100)).loss
        model.zero_grad()
        loss.backward()
        for optimizer, top_rate in zip(optimizers, top_rates, strict=True):
            optimizer.param_groups[0]["lr"] = scale * top_rate
            optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    """The weights in bfloat16, and the tokenizer without its chat template, which is the package's."""
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(out, state_dict=weights)
    tokenizer.backend_tokenizer.no_padding()  # the last call's padding would be saved otherwise
    tokenizer.chat_template = None
    tokenizer.save_pretrained(out)
