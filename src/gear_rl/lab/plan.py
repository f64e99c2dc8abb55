"""``gear plan``: what a step of GRPO and of GEAR should take and hold, from an architecture's numbers and rates.

Pure arithmetic: nothing is measured, downloaded or run here. ``benchmarks/calibration.py`` compares it
with real steps.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The numbers of a dense decoder that its cost follows from; norms and biases, below 0.1 %, are left out.

    >>> round(ARCHITECTURES["Qwen/Qwen3-4B"].params / 1e9, 2)
    4.02
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool

    @property
    def body(self) -> int:
        """Weights of the layers."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head(self) -> int:
        """Weights of the language-model head."""
        return self.hidden * self.vocab

    @property
    def params(self) -> int:
        """All weights."""
        return self.body + self.head * (1 if self.tied else 2)

    def body_flop(self, tokens: float, keys: float) -> float:
        """Operations of one forward of the layers over tokens that attend to ``keys`` others on average."""
        return tokens * (2 * self.body + 4 * self.layers * self.heads * self.head_dim * keys)

    def head_flop(self, tokens: float) -> float:
        """Operations of one head product."""
        return tokens * 2 * self.head

    def cache_bytes(self, tokens: float, width: int = 2) -> float:
        """Bytes of the keys and values of so many tokens."""
        return tokens * 2 * self.layers * self.kv_heads * self.head_dim * width


def _qwen(hidden: int, layers: int, heads: int, kv: int, ffn: int, tied: bool, **more: int) -> Architecture:
    sizes = {"head_dim": 128, "vocab": 151936} | more
    return Architecture(hidden=hidden, layers=layers, heads=heads, kv_heads=kv, ffn=ffn, tied=tied, **sizes)


ARCHITECTURES: dict[str, Architecture] = {
    "Qwen/Qwen3-0.6B": _qwen(1024, 28, 16, 8, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen(2048, 28, 16, 8, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen(2560, 36, 32, 8, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen(4096, 36, 32, 8, 12288, tied=False),
    "Qwen/Qwen2.5-0.5B": _qwen(896, 24, 14, 2, 4864, tied=True, head_dim=64),
    "Qwen/Qwen2.5-1.5B": _qwen(1536, 28, 12, 2, 8960, tied=True),
    "Qwen/Qwen2.5-3B": _qwen(2048, 36, 16, 2, 11008, tied=True),
    "Qwen/Qwen2.5-7B": _qwen(3584, 28, 28, 4, 18944, tied=False, vocab=152064),
}
"""Published configurations; any other model is given as a local folder with its config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as its data sheet has it: dense bfloat16 operations a second, bytes a second, GiB.

    >>> round(DEVICES["h100"].flops / DEVICES["h100"].bandwidth)  # operations in the time of one byte
    295
    """

    flops: float
    bandwidth: float
    memory_gib: float
    weight_bytes: int = 2
    """Of a weight, a key or a value while generating."""


DEVICES: dict[str, Device] = {
    "a100": Device(flops=312e12, bandwidth=2.039e12, memory_gib=80e9 / GIB),
    "h100": Device(flops=989e12, bandwidth=3.35e12, memory_gib=80e9 / GIB),
    "h200": Device(flops=989e12, bandwidth=4.8e12, memory_gib=141e9 / GIB),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Which share of the data sheet the parts of a step reach. The defaults are assumed, not measured.

    >>> Rates(train=0)
    Traceback (most recent call last):
    ValueError: train: 0 is no share of a rate; give more than 0
    """

    forward: float = 0.50
    train: float = 0.40
    head: float = 0.70
    decode: float = 0.70
    """Of the bandwidth."""

    def __post_init__(self) -> None:
        for field in ("forward", "train", "head", "decode"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field}: {getattr(self, field)} is no share of a rate; give more than 0")


ASSUMED = Rates()
REPORTED = {"forward": (0.4, 0.5, 0.6), "train": (0.3, 0.4, 0.5), "decode": (0.5, 0.7, 0.9)}
"""Shares that one sees reported; a ratio's range is over all of them that do not train faster than they score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of GRPO: whose sizes, and what the trainer does anyway. Raises ``ValueError``.

    >>> Step(prompts=4, group=8).completions
    32
    """

    prompts: int = 32
    group: int = 8
    prompt: int = 512
    teacher_prompt: int = 1536
    tokens: int = 8192
    """Of a completion, on average."""
    gpus: int = 1
    concurrency: int = 96
    """Completions that a GPU generates at a time, at most."""
    micro_batch: int = 1
    """Completions in one forward of the training, per GPU."""
    checkpointing: bool = True
    old_logprob: bool = True
    """Whether the trainer makes the old-log-prob pass, as TRL does with vLLM; it gives the student's signals."""
    student_pass: bool = False
    """Whether GEAR needs a student pass of its own: no old-log-prob pass, and signals outside the loss."""
    share_prompt: bool = False
    """Whether the teacher's prompt is scored once per group."""
    prefill_each: bool = False
    """Whether the prompt is run for every completion of a group instead of once."""
    teacher: Literal["live", "copy"] = "live"

    def __post_init__(self) -> None:
        for field in (
            "prompts",
            "group",
            "prompt",
            "teacher_prompt",
            "tokens",
            "gpus",
            "concurrency",
            "micro_batch",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: {getattr(self, field)}; give 1 or more")

    @property
    def completions(self) -> int:
        """All of the step's."""
        return self.prompts * self.group


def body_flop(model: Architecture, sequences: float, prompt: float, tokens: float) -> float:
    """Operations of one forward of the layers over whole sequences; every token attends to half of its own.

    >>> model = ARCHITECTURES["Qwen/Qwen3-4B"]
    >>> round(body_flop(model, 1, 0, 1) / model.body, 2)  # two operations a weight, and attention
    2.0
    """
    return model.body_flop(sequences * (prompt + tokens), (prompt + tokens) / 2)


def seconds(model: Architecture, step: Step, device: Device, rates: Rates = ASSUMED) -> dict[str, float]:
    """Seconds of each part of the step, all GPUs at work and none waiting.

    ``generation``: prompts, then one token after another, each at the slower of reading weights and cache, and
    of computing. ``old_logprob``: one forward and head product where the trainer makes them, else 0. ``update``:
    four forwards' worth of layers (three without checkpointing) and four head products. ``teacher``: GEAR's
    forward on the teacher's prompt and the completion, ``signals``: its head product, ``student``: a student pass
    of its own with its head product where it needs one.

    >>> parts = seconds(ARCHITECTURES["Qwen/Qwen3-4B"], Step(), DEVICES["h200"])
    >>> round(parts["generation"]), round(parts["old_logprob"]), round(parts["update"]), round(parts["teacher"])
    (477, 47, 231, 51)
    """
    n = step.completions / step.gpus
    forward_rate = rates.forward * device.flops
    body = body_flop(model, n, step.prompt, step.tokens) / forward_rate
    head = model.head_flop(n * step.tokens) / (rates.head * device.flops)
    teacher = body_flop(model, n, step.teacher_prompt, step.tokens)
    if step.share_prompt:
        teacher -= body_flop(model, n - n / step.group, step.teacher_prompt, 0)
    passes = 4 if step.checkpointing else 3
    layers = body_flop(model, n, step.prompt, step.tokens)
    update = passes * layers / (rates.train * device.flops) + 4 * head
    return {
        "generation": _generation_seconds(model, step, device, rates),
        "old_logprob": body + head if step.old_logprob else 0.0,
        "update": update,
        "teacher": teacher / forward_rate,
        "signals": head,
        "student": body + head if step.student_pass else 0.0,
    }


def _generation_seconds(model: Architecture, step: Step, device: Device, rates: Rates) -> float:
    """The prompts' forwards, then a token of every running completion at a time."""
    n = step.completions / step.gpus
    forward_rate = rates.forward * device.flops
    prefills = n if step.prefill_each else n / step.group
    batch = min(step.concurrency, max(n, 1))
    cached = model.cache_bytes(batch * (step.prompt + step.tokens / 2), device.weight_bytes)
    read = device.weight_bytes * (model.body + model.head) + cached
    work = model.body_flop(batch, step.prompt + step.tokens / 2) + model.head_flop(batch)
    each = max(read / (rates.decode * device.bandwidth), work / forward_rate)
    return body_flop(model, prefills, step.prompt, 0) / forward_rate + n * step.tokens / batch * each


def ratios(parts: dict[str, float]) -> dict[str, float]:
    """Seconds of GRPO's step and of GEAR's, GEAR's over GRPO's, and the same without generation.

    >>> parts = dict.fromkeys(("old_logprob", "signals", "student"), 0.0)
    >>> parts |= {"generation": 6.0, "update": 4.0, "teacher": 1.0}
    >>> ratios(parts)
    {'grpo': 10.0, 'gear': 11.0, 'ratio': 1.1, 'ratio_without_generation': 1.25}
    """
    grpo = parts["generation"] + parts["old_logprob"] + parts["update"]
    gear = grpo + parts["teacher"] + parts["signals"] + parts["student"]
    training = grpo - parts["generation"]
    return {
        "grpo": grpo,
        "gear": gear,
        "ratio": gear / grpo,
        "ratio_without_generation": (gear - parts["generation"]) / training,
    }


def memory(model: Architecture, step: Step) -> dict[str, float]:
    """GiB on each GPU, by what holds it; ``gear`` is what GEAR adds at the fullest moment of the update.

    Full fine-tuning in mixed precision: float32 weights, gradients and two moments (16 bytes a weight), sharded
    over the GPUs; bfloat16 compute. Generation on the same GPUs keeps its own bfloat16 weights. The teacher runs
    before the student: its activations are gone by then, and only the hidden states of one micro-batch and the
    tiles of the head stay.

    >>> held = memory(ARCHITECTURES["Qwen/Qwen3-4B"], Step(gpus=8))
    >>> round(held["weights, gradients, optimizer"], 1), round(held["gear"], 2)
    (7.5, 0.54)
    """
    inner = 2 * model.head_dim * (model.heads + model.kv_heads) + 3 * model.ffn + 8 * model.hidden
    sequence = step.micro_batch * (step.prompt + step.tokens)
    kept_layers = 1 if step.checkpointing else model.layers
    activations = 2 * sequence * (model.layers * model.hidden + kept_layers * inner)
    batch = min(step.concurrency, max(step.completions / step.gpus, 1))
    hidden = 2 * step.micro_batch * step.tokens * model.hidden
    copy = 2 * model.params / step.gpus if step.teacher == "copy" else 0
    held = {
        "weights, gradients, optimizer": 16 * model.params / step.gpus,
        "gathered layer and head": 2 * (model.body / model.layers + model.head),
        "activations": activations,
        "head tile and its gradient": 2 * HEAD_TILE + 4 * model.head,
        "generation: weights": 2 * model.params,
        "generation: cache": model.cache_bytes(batch * (step.prompt + step.tokens)),
        "gear": hidden + 2 * 4 * SIGNAL_TILE + copy,
    }
    return {name: value / GIB for name, value in held.items()}


HEAD_TILE = 4096 * 32768
"""Logits that TRL 1.16 holds at a time."""
SIGNAL_TILE = 4096 * 16384
"""Logits of the student, and as many of the teacher, that the signals hold at a time on a GPU, in float32."""


def planned(model: str, arch: Architecture, gpu: str, step: Step) -> dict[str, Any]:
    """Everything that ``gear plan`` shows, as numbers. Raises ``ValueError`` for an unknown GPU.

    >>> planned("Qwen3-4B", architecture("Qwen3-4B"), "h200", Step())["designs"]["as given"]["ratio"]
    1.071
    """
    if gpu not in DEVICES:
        raise ValueError(f"gpu: {gpu!r} is not one of {', '.join(DEVICES)}")
    device = DEVICES[gpu]
    parts = seconds(arch, step, device)
    held = memory(arch, step)
    return {
        "what": "a model's arithmetic, not a measurement",
        "model": model,
        "params": arch.params,
        "gpu": gpu,
        "step": {field: getattr(step, field) for field in Step.__slots__},
        "rates": {field: getattr(ASSUMED, field) for field in Rates.__slots__},
        "rates_are": "assumed shares of the data sheet; no GPU was measured",
        "seconds": {name: round(value, 2) for name, value in parts.items()},
        "designs": {name: _rounded(ratios(seconds(arch, s, device))) for name, s in _designs(step).items()},
        "range": [round(pick(_possible(arch, step, device)), 3) for pick in (min, max)],
        "memory_gib": {name: round(value, 2) for name, value in held.items()},
        "fullest_gib": {name: round(sum(held[part] for part in of), 1) for name, of in HELD_AT.items()}
        | {"there": round(device.memory_gib, 1)},
        "unknown": list(UNKNOWN),
    }


_STATE = "weights, gradients, optimizer"
GENERATING = (_STATE, "generation: weights", "generation: cache")
UPDATING = (
    _STATE,
    "gathered layer and head",
    "activations",
    "head tile and its gradient",
    "generation: weights",
)
HELD_AT = {"generation": GENERATING, "update, GRPO": UPDATING, "update, GEAR": (*UPDATING, "gear")}
"""What is held at a time, by an engine that gives its cache back before the update."""
UNKNOWN = (
    "communication between GPUs, waiting for the longest completion, and moving weights to generation are not in",
    "rewards, tools and tokenising on the CPU are not in",
    "memory leaves out fragmentation, the CUDA context and buffers of communication",
)
"""What the model cannot know."""


def _designs(step: Step) -> dict[str, Step]:
    """The step, and the same with other sources of the student's signals."""
    inside = replace(step, student_pass=False)
    return {
        "as given": step,
        "old-log-prob pass gives the student's signals": replace(inside, old_logprob=True),
        "the same, teacher's prompt once per group": replace(inside, old_logprob=True, share_prompt=True),
        "no old-log-prob pass, signals inside the loss": replace(inside, old_logprob=False),
        "no old-log-prob pass, a student pass of its own": replace(
            step, old_logprob=False, student_pass=True
        ),
    }


def _possible(arch: Architecture, step: Step, device: Device) -> list[float]:
    """GEAR's step over GRPO's at every combination of the reported shares."""
    rates = (
        Rates(forward=forward, train=train, decode=decode)
        for forward, train, decode in product(*REPORTED.values())
        if train <= forward
    )
    return [ratios(seconds(arch, step, device, each))["ratio"] for each in rates]


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def architecture(model: str) -> Architecture:
    """The numbers of a model of the table, or of a local folder with a config.json; nothing is downloaded.

    Raises ``ValueError`` for a name that is neither, and for a model that is not a dense decoder.

    >>> architecture("Qwen3-8B").layers
    36
    """
    for name in (model, f"Qwen/{model}"):
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not (Path(model) / "config.json").is_file():
        raise ValueError(
            f"model: {model!r} is no folder with a config.json and not in the table "
            f"({', '.join(ARCHITECTURES)}); download it and give the folder"
        )
    from transformers import AutoConfig

    loader: Any = AutoConfig  # partly untyped
    return of_config(loader.from_pretrained(model, local_files_only=True), model)


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configurations of sparse models call their number of experts."""


def of_config(config: Any, model: str) -> Architecture:
    """The numbers of a configuration of transformers; ``ValueError`` where it is not a dense decoder's."""
    config = config.get_text_config()
    if any(getattr(config, field, None) for field in EXPERTS):
        raise ValueError(f"model: {model} has experts; the plan knows dense decoders only")
    try:
        heads = config.num_attention_heads
        return Architecture(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            ffn=config.intermediate_size,
            vocab=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )
    except AttributeError as error:
        raise ValueError(f"model: {model} is no decoder that the plan knows: {error}") from None
