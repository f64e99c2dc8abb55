"""The recipes of `examples/`: each runs with --smoke, and each option in a comment is known to its parser."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from gear_rl.errors import InputError
from gear_rl.runs.config import RunConfig, build_method, load_config, trainer_settings
from gear_rl.runs.smoke import smoke
from support.commands import gear

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "examples").glob("*.yaml"))
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}

every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def options(recipe: Path) -> list[str]:
    """The lines behind the mark "#:", which a user takes away."""
    return re.findall(r"^#: (.+)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)


def blocks(recipe: Path) -> list[str]:
    """Neighbouring options, taken together: a later one wins over an earlier one of the same key."""
    found = re.findall(r"(?:^#: .+\n)+", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"^#: ", "", block, flags=re.MULTILINE) for block in found]


def commands(recipe: Path) -> list[str]:
    """The commands behind the mark "#$", with their continued lines joined."""
    lines = re.findall(r"^#\$ (.+)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def with_options(recipe: Path, text: str, folder: Path) -> RunConfig:
    """The recipe with these lines in place of its own of the same keys; the last of each key."""
    file, whole = folder / "recipe.yaml", recipe.read_text(encoding="utf-8")
    entries = {entry.partition(":")[0]: entry for entry in re.split(r"\n(?=\w)", text.strip())}
    for key in entries:
        whole = re.sub(rf"^{key}:.*\n(?:[ -].*\n)*", "", whole, flags=re.MULTILINE)
    file.write_text("\n".join([whole, *entries.values(), ""]), encoding="utf-8")
    return load_config(file)


def built(config: RunConfig) -> None:
    """Everything of a configuration that can be built without a model: TRL's, PEFT's and the method's checks."""
    from peft import LoraConfig

    from gear_rl.engines.trl.config import GEARConfig

    assert build_method(config.credit).name
    GEARConfig(**({"output_dir": "never-written"} | config.trainer | CPU))
    if config.lora is not None:
        LoraConfig(task_type="CAUSAL_LM", **config.lora)


EVERY_OPTION = [
    pytest.param(recipe, line, id=f"{recipe.stem}: {line}") for recipe in RECIPES for line in options(recipe)
]
EVERY_BLOCK = [
    pytest.param(recipe, block, id=f"{recipe.stem}: {block.splitlines()[0]}")
    for recipe in RECIPES
    for block in blocks(recipe)
]
EVERY_COMMAND = [
    pytest.param(recipe, line, id=f"{recipe.stem}: {line[:70]}")
    for recipe in RECIPES
    for line in commands(recipe)
]


@pytest.mark.parametrize(("recipe", "line"), EVERY_OPTION)
def test_every_option_in_a_comment_is_one(recipe, line, tmp_path):
    config = with_options(recipe, line, tmp_path)
    key = line.split(":")[0]
    assert key in RunConfig.model_fields or key in trainer_settings()
    assert key in config.trainer or key in config.model_fields_set
    built(config)


@pytest.mark.parametrize(("recipe", "block"), EVERY_BLOCK)
def test_options_that_stand_together_go_together(recipe, block, tmp_path):
    built(with_options(recipe, block, tmp_path))


@pytest.mark.parametrize(
    "wrong", ["vllm_modus: colocate", "lora: {rank: 4}", "credit: {name: rlsd, lambda: 1}"]
)
def test_an_option_that_is_none_would_be_caught(wrong, tmp_path):
    recipe = ROOT / "examples" / "math_qwen3_4b.yaml"
    with pytest.raises((InputError, TypeError), match=r"no such setting|unexpected keyword"):
        built(with_options(recipe, wrong, tmp_path))


@pytest.mark.parametrize(("recipe", "command"), EVERY_COMMAND)
def test_every_command_in_a_comment_is_one(recipe, command, monkeypatch, capsys):
    """As far as a CPU goes: accelerate parses and validates it, and its plugins read what it would export."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    accelerate, launch, *rest = shlex.split(command)
    assert (accelerate, launch) == ("accelerate", "launch")
    args = launch_command_parser().parse_args(rest)
    assert args.module and args.training_script == "gear_rl.cli.app"
    subcommand, *words = args.training_script_args
    assert subcommand == "train" and words[:2] == ["--config", str(recipe.relative_to(ROOT))]
    built(load_config(recipe, words[2:]))
    args, _, _ = _validate_launch_command(args)
    assert args.num_processes == 8 and args.mixed_precision == "bf16"
    assert [args.multi_gpu, args.use_fsdp, args.use_deepspeed].count(True) == 1
    if args.use_fsdp:
        for name, value in prepare_multi_gpu_env(args).items():
            if name.startswith("FSDP_"):
                monkeypatch.setenv(name, value)
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2, "version 1 hides the head, and the trainer refuses it"
        assert plugin.reshard_after_forward is True
    elif args.use_deepspeed:
        assert (args.zero_stage, args.zero3_init_flag) == (3, "true")


def test_the_three_methods_are_one_line_apart():
    for name in ("math_qwen3_4b", "tools_qwen3_4b"):
        recipe = ROOT / "examples" / f"{name}.yaml"
        active = [
            line for line in recipe.read_text(encoding="utf-8").splitlines() if line.startswith("credit:")
        ]
        assert active == ["credit: gear"]
        assert {"credit: uniform", "credit: {name: rlsd}"} <= set(options(recipe))


@every_recipe
def test_every_recipe_runs_in_smoke(recipe, tmp_path):
    before = set(ROOT.glob("runs/*"))
    done = gear("train", "--config", str(recipe.relative_to(ROOT)), "--smoke", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(
        rf"smoke: examples/{recipe.name} works: 2 steps, [1-9]\d* completions scored", done.stderr
    )
    assert set(ROOT.glob("runs/*")) == before, "a smoke run leaves nothing behind"
    if recipe.stem == "tools_qwen3_4b":
        assert re.search(r"[1-9]\d* tool calls", done.stderr), "the tiny model calls the environment's tools"
    if recipe.stem != "chain":
        assert "smoke: model: a random Qwen3 of two layers, for Qwen/Qwen3-4B" in done.stderr
        assert "smoke_rows, for" in done.stderr


def test_rlsd_runs_in_smoke_with_an_adapter():
    words = ["--smoke", "--credit", "{name: rlsd}", "--lora", "{r: 16, target_modules: all-linear}"]
    done = gear("train", "--config", "examples/math_qwen3_4b.yaml", *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[1-9]\d* completions scored for rlsd", done.stderr)
    assert "smoke: lora: r 4" in done.stderr


def mistaken(recipe: str, right: str, wrong: str, folder: Path) -> Path:
    text = (ROOT / "examples" / f"{recipe}_qwen3_4b.yaml").read_text(encoding="utf-8")
    assert right in text
    file = folder / "recipe.yaml"
    cut = text.split(right)[0] if wrong == "" else text.replace(right, wrong, 1)
    file.write_text(cut, encoding="utf-8")
    return file


MISTAKES = [
    (
        "math",
        "num_generations: 8",
        "num_generation: 8",
        "num_generation: no such setting; did you mean num_generations",
    ),
    ("math", "reward: math", "reward: maths", "reward: no reward 'maths'; did you mean math"),
    (
        "math",
        "prompt: question",
        "prompt: qestion",
        "columns.prompt: .* has no column 'qestion'; did you mean question",
    ),
    ("math", "credit: gear", "credit: geer", "credit: no method 'geer'; did you mean gear"),
    ("math", "loss_type: dapo", "loss_type: dappo", "loss_type: 'dappo'"),
    (
        "math",
        "  {privileged_context}",
        "  {privileged}",
        r"teacher_prompt_template: .* lacks \{privileged_context\}",
    ),
    (
        "math",
        "#: teacher_model_kind: live",
        "teacher_model_kind: alive",
        "teacher_model_kind: 'alive' is not one of",
    ),
    ("math", "smoke_rows:", "", "smoke_rows: missing; 'openai/gsm8k' may be far away"),
    (
        "tools",
        "tool_env:FunctionDesk",
        "tool_env:FunctionDeks",
        "environment: 'examples.tool_env' has no 'FunctionDeks'; did you mean FunctionDesk",
    ),
    (
        "tools",
        "functions: tools",
        "function: tools",
        r"tool_env\.py, line \d+: KeyError|missing 1 required .*functions",
    ),
    (
        "tools",
        "privileged_sources: [environment, row]",
        "privileged_sources: [env]",
        "privileged_sources: 'env' is not",
    ),
]


@pytest.mark.parametrize(("recipe", "right", "wrong", "message"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_in_a_recipe_is_named(recipe, right, wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)
    file = mistaken(recipe, right, wrong, tmp_path)
    with pytest.raises(InputError, match=message):
        smoke(load_config(file))


def test_a_mistake_is_one_line_on_the_command_line(tmp_path):
    file = mistaken("math", "reward: math", "reward: maths", tmp_path)
    done = gear("train", "--config", str(file), "--smoke", cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("gear: reward: no reward 'maths'; did you mean math")


def desk():
    found = runpy.run_path(str(ROOT / "examples" / "tool_env.py"))["FunctionDesk"]()
    functions = [
        {
            "name": "weather",
            "parameters": {"city": {"type": "str"}, "units": {"type": "str", "default": "C"}},
        },
        {"name": "book", "parameters": {"guests": {"type": "int"}, "note": {"type": "str, optional"}}},
    ]
    calls = [
        {"name": "weather", "arguments": {"city": "Oslo"}},
        {"name": "weather", "arguments": {"city": "Lima"}},
        {"name": "book", "arguments": {"guests": 2}},
    ]
    shown = found.reset(functions=json.dumps(functions), calls=json.dumps(calls), id=7)
    return found, shown


def test_the_example_environment_shows_the_functions_and_keeps_the_calls_to_itself():
    found, shown = desk()
    assert '"name": "weather"' in shown and "Oslo" not in shown
    lines = [json.loads(line) for line in found.privileged_context().splitlines()]
    assert lines[1] == {"name": "call", "arguments": {"function": "weather", "arguments": {"city": "Lima"}}}
    assert len(lines) == 3


def test_the_example_environment_rewards_the_calls_made():
    found, _ = desk()
    assert found.get_reward() == 0.0
    found.call("weather", {"city": "Lima", "units": "C"})  # a default that is spelled out changes nothing
    assert found.get_reward() == 2 * 1 / (1 + 3)
    found.call("book", {"guests": 2})
    found.call("weather", {"city": "Oslo"})
    assert found.get_reward() == 1.0
    found.call("weather", {"city": "Oslo"})  # once more is one too many
    assert found.get_reward() == 2 * 3 / (4 + 3)
    desk_without = desk()[0]
    desk_without.reset(functions="[]", calls="[]")
    assert desk_without.get_reward() == 1.0, "nothing was wanted, and nothing was done"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("whether", {"city": "Oslo"}, "no function 'whether'; there are weather, book"),
        ("weather", {}, r"weather: unknown arguments \[\], missing arguments \['city'\]"),
        ("weather", {"city": "Oslo", "day": 1}, r"unknown arguments \['day'\]"),
    ],
)
def test_the_example_environment_refuses_calls_that_are_none(function, arguments, message):
    found, _ = desk()
    with pytest.raises(ValueError, match=message):
        found.call(function, arguments)
    assert found.get_reward() == 0.0
