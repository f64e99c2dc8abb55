"""``benchmarks calibration``: real steps of GRPO and GEAR on this machine against what ``gear plan`` says.

The shares of the machine's matrix rate that generation, the update and the credit pass reach are fitted on one
model, and the steps of other models and lengths are predicted with them; how far off those are is the error.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback

from gear_rl.arena.task import DEFAULT_TASK, DEFAULT_TIER, TEMPLATE, get_task
from gear_rl.errors import InputError
from gear_rl.lab.plan import Architecture, Device, Rates, Step, of_config, ratios, seconds
from gear_rl.runs.arena import arena_config
from gear_rl.runs.smoke import SPREAD
from gear_rl.runs.trainer import make_trainer

METHODS = ("uniform", "gear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model and one size of step that is trained for real.

    >>> print(Shape(hidden=64, layers=2, rollouts=8, tokens=16))
    H 64, 2 layers, V 8192, 8 x 16 tokens
    """

    hidden: int
    layers: int
    rollouts: int
    tokens: int
    vocab: int = 8192

    def __str__(self) -> str:
        return (
            f"H {self.hidden}, {self.layers} layers, V {self.vocab}, {self.rollouts} x {self.tokens} tokens"
        )


_FITTED = Shape(hidden=384, layers=6, rollouts=32, tokens=48)
CHECKED = (
    Shape(hidden=512, layers=8, rollouts=16, tokens=64),
    Shape(hidden=384, layers=6, rollouts=16, tokens=128),
    Shape(hidden=256, layers=8, rollouts=32, tokens=96, vocab=16384),
)
"""Other widths, depths, lengths and vocabularies than the fitted one."""


@dataclass(slots=True)
class _Seen:
    """CPU seconds and tokens of one training run, step by step; the first step is not counted."""

    step: list[float] = field(default_factory=list)
    generation: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    """Tokens, padding included, in forwards with gradient."""
    scored: list[list[tuple[int, int]]] = field(default_factory=list)
    """Rows and tokens of the forwards without, outside of generation."""

    def least(self) -> tuple[float, float]:
        """Seconds of the fastest counted step, and of its generation."""
        fastest = min(range(1, len(self.step)), key=lambda i: self.step[i])
        return self.step[fastest], self.generation[fastest]


def calibrate(
    *,
    fitted: Shape = _FITTED,
    checked: Sequence[Shape] = CHECKED,
    steps: int = 3,
    repeats: int = 2,
    say: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Predicted and measured CPU seconds of GRPO's and GEAR's steps, and the error where nothing was fitted.

    Random weights, the engine's own steps on the arena's task, one thread, the least of the counted steps; the
    two methods take turns. Raises ``InputError`` for fewer than 2 steps, of which the first warms up.

    >>> calibrate(steps=1)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --steps 1 --repeats 2: give 2 steps or more, and 1 repeat or more
    """
    if steps < 2 or repeats < 1:
        raise InputError(f"--steps {steps} --repeats {repeats}: give 2 steps or more, and 1 repeat or more")
    say("matrix products")
    device = Device(flops=_matrix_rate(), bandwidth=_bandwidth(), memory_gib=0, weight_bytes=4)
    rows: list[dict[str, Any]] = []
    rates = Rates(forward=1, train=1, head=1, decode=1)
    for shape in (fitted, *checked):
        row, arch, step = _steps_of(shape, steps, repeats, say)
        if not rows:
            rates = _fitted(row["measured"], seconds(arch, step, device, rates))
        predicted = ratios(predicted_parts(arch, step, device, rates))
        row["predicted"] = {name: round(predicted[name], 3) for name in ("grpo", "gear", "ratio")}
        row["error"] = {
            name: round(row["predicted"][name] / row["measured"][name] - 1, 3)
            for name in ("grpo", "gear", "ratio")
        }
        rows.append(row)
    return {
        "what": "predicted and measured CPU seconds of one training step, one thread",
        "gflops": round(device.flops / 1e9, 1),
        "gbytes_per_second": round(device.bandwidth / 1e9, 1),
        "shares": {name: round(getattr(rates, name), 3) for name in ("forward", "train", "decode")},
        "steps": steps,
        "repeats": repeats,
        "shapes": rows,
        "error_step": max(abs(row["error"][name]) for row in rows[1:] for name in ("grpo", "gear"))
        if checked
        else None,
        "error_ratio": max(abs(row["error"]["ratio"]) for row in rows[1:]) if checked else None,
    }


def predicted_parts(arch: Architecture, step: Step, device: Device, rates: Rates) -> dict[str, float]:
    """The plan's seconds; generation has one share for reading and computing, since its products are small."""
    generation = seconds(arch, step, device, replace(rates, forward=rates.decode))["generation"]
    return seconds(arch, step, device, rates) | {"generation": generation}


def _fitted(measured: dict[str, float], bare: dict[str, float]) -> Rates:
    """The shares at which the model gives the measured parts back; ``bare`` are its seconds at the full rate.

    The head's share is the update's: a step does not separate them.
    """
    train = bare["update"] / measured["update"]
    # In a step of milliseconds the noise can be larger than the credit pass.
    credit = max(measured["credit"], 0.01 * measured["update"])
    heads = bare["signals"] * (2 if bare["student"] else 1)
    layers = bare["teacher"] + bare["student"] + bare["signals"] - heads
    left = credit - heads / train
    forward = layers / left if left > 0 else (layers + heads) / credit
    return Rates(forward=forward, train=train, head=train, decode=bare["generation"] / measured["generation"])


def _steps_of(
    shape: Shape, steps: int, repeats: int, say: Callable[[str], None]
) -> tuple[dict[str, Any], Architecture, Step]:
    """The measured parts of a shape, and its sizes as the plan has them, padding included."""
    config, seen = _runs_of(shape, steps, repeats, say)
    trained, scored = seen["uniform"][0].trained[-1], seen["gear"][0].scored[-1]
    prompt = trained // shape.rollouts - shape.tokens
    teacher_prompt, shares = _teacher_prompt(scored, shape)
    # The longest forward is the teacher's; the same width as TRL's own is a student's pass.
    own_pass = (shape.rollouts, prompt + shape.tokens) in scored
    measured = _parts_of(seen)
    step = Step(
        prompts=shape.rollouts // 8,
        group=8,
        prompt=prompt,
        teacher_prompt=teacher_prompt,
        tokens=shape.tokens,
        concurrency=shape.rollouts,
        checkpointing=False,
        old_logprob=False,
        student_pass=own_pass,
        share_prompt=shares,
        prefill_each=True,
    )
    row: dict[str, Any] = {
        "shape": str(shape),
        "params": of_config(config, "calibration").params,
        "prompt": prompt,
        "teacher_prompt": teacher_prompt,
        "student_pass": own_pass,
        "share_prompt": shares,
        "measured": {name: round(value, 3) for name, value in measured.items()},
    }
    return row, of_config(config, "calibration"), step


def _runs_of(
    shape: Shape, steps: int, repeats: int, say: Callable[[str], None]
) -> tuple[Any, dict[str, list[_Seen]]]:
    """The model's configuration, and what each run of each method spent; the two methods take turns."""
    seen: dict[str, list[_Seen]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory(prefix="gear-plan-") as folder:
        config = _save_model(shape, Path(folder))
        for repeat in range(repeats):
            for name in METHODS if repeat % 2 == 0 else METHODS[::-1]:
                say(f"{name}, {shape}")
                seen[name].append(_train(name, shape, folder, steps))
    return config, seen


def _parts_of(seen: dict[str, list[_Seen]]) -> dict[str, float]:
    """CPU seconds of the fastest step of GRPO and of GEAR, their ratio, and of the parts between them."""
    plain, gear = (min(run.least() for run in seen[name]) for name in METHODS)
    return {
        "grpo": plain[0],
        "gear": gear[0],
        "ratio": gear[0] / plain[0],
        "generation": min(plain[1], gear[1]),
        "update": plain[0] - plain[1],
        "credit": (gear[0] - gear[1]) - (plain[0] - plain[1]),
    }


def _teacher_prompt(scored: Sequence[tuple[int, int]], shape: Shape) -> tuple[int, bool]:
    """Tokens of the teacher's prompt, and whether the completions of a group went on from one forward of it.

    >>> shape = Shape(hidden=64, layers=1, rollouts=16, tokens=9)
    >>> _teacher_prompt([(16, 40)], shape), _teacher_prompt([(2, 31), (16, 8)], shape)
    ((31, False), (31, True))
    """
    shares = (shape.rollouts, shape.tokens - 1) in scored
    longest = max(width for _, width in scored)
    return (longest, True) if shares else (longest - shape.tokens, False)


def _train(name: str, shape: Shape, folder: str, steps: int) -> _Seen:
    """Train a fresh copy for so many steps, and count."""
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS

    config = arena_config(
        DEFAULT_TASK,
        DEFAULT_TIER,
        name,
        seed=0,
        steps=steps,
        output_dir=f"{folder}/run",
        rollouts_per_step=shape.rollouts,
        reward=[SPREAD],
        chat_template_kwargs=CHAT_TEMPLATE_KWARGS,
        answer_pattern=get_task(DEFAULT_TASK).answer_pattern,
        teacher_prompt_template=TEMPLATE,
        model_init_kwargs={"dtype": "float32"},
    )
    config.model = folder
    config.trainer["max_completion_length"] = shape.tokens
    trainer = make_trainer(config)
    with _watched(trainer) as seen:
        trainer.train()
    return seen


@contextmanager
def _watched(trainer: Any) -> Generator[_Seen]:
    """Count what the trainer spends: a callback on steps, a wrapper of generation, a hook on the layers."""
    seen, state = _Seen(), {"generating": False}
    generate = trainer._generate

    def timed(*args: Any, **options: Any) -> Any:
        begin, state["generating"] = time.process_time(), True
        try:
            return generate(*args, **options)
        finally:
            state["generating"] = False
            seen.generation[-1] += time.process_time() - begin

    def count(module: Any, args: Any, options: dict[str, Any]) -> None:
        given = options.get("input_ids", options.get("inputs_embeds"))
        if given is None and args:
            given = args[0]
        if given is None or state["generating"] or not seen.step:
            return
        rows, width = given.shape[:2]
        if torch.is_grad_enabled():
            seen.trained[-1] += rows * width
        else:
            seen.scored[-1].append((rows, width))

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            seen.generation.append(0.0)
            seen.trained.append(0)
            seen.scored.append([])
            seen.step.append(-time.process_time())

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            seen.step[-1] += time.process_time()

    trainer._generate = timed
    trainer.add_callback(Clock())
    hook = trainer.accelerator.unwrap_model(trainer.model).base_model.register_forward_pre_hook(
        count, with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()
        del trainer._generate


def _save_model(shape: Shape, folder: Path) -> Any:
    """A random Qwen3 of that shape with the arena's tokenizer, which draws its end token once in thousands."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from gear_rl.arena.model import load

    _, tokenizer = load()
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        num_key_value_heads=max(shape.hidden // 128, 1),
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return config


def _matrix_rate(tokens: int = 2048, width: int = 1024) -> float:
    """Operations a second of a square float32 product, the size of those in a training step."""
    a, b = torch.randn(tokens, width), torch.randn(width, width)
    out = torch.empty(tokens, width)
    return 2 * tokens * width * width / _least_seconds(lambda: torch.mm(a, b, out=out), warm_up=3)


def _bandwidth(size: int = 1 << 25) -> float:
    """Bytes a second that one thread reads and writes."""
    a, b = torch.zeros(size), torch.zeros(size)
    return 8 * size / _least_seconds(lambda: b.copy_(a), warm_up=2)


def _least_seconds(run: Callable[[], object], warm_up: int) -> float:
    """CPU seconds of the fastest of five calls, after some that do not count."""
    for _ in range(warm_up):
        run()
    seconds: list[float] = []
    for _ in range(5):
        begin = time.process_time()
        run()
        seconds.append(time.process_time() - begin)
    return min(seconds)
