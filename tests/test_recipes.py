"""The recipes of `examples/`: each runs with --smoke, and each option in a comment is valid."""

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


def blocks(recipe: Path) -> list[str]:
    """Neighbouring lines behind the mark "#:", which a user uncomments together."""
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


EVERY_COMMAND = [
    pytest.param(recipe, line, id=f"{recipe.stem}: {line[:70]}")
    for recipe in RECIPES
    for line in commands(recipe)
]


@every_recipe
def test_every_option_in_a_comment_is_valid_alone_and_with_its_neighbours(recipe, tmp_path):
    for block in blocks(recipe):
        built(with_options(recipe, block, tmp_path))
        for line in block.splitlines():
            config = with_options(recipe, line, tmp_path)
            key = line.split(":")[0]
            assert key in RunConfig.model_fields or key in trainer_settings()
            assert key in config.trainer or key in config.model_fields_set
            built(config)


@pytest.mark.parametrize(("recipe", "command"), EVERY_COMMAND)
def test_every_command_in_a_comment_is_valid(recipe, command, monkeypatch, capsys):
    """accelerate parses and validates it on a CPU, then its plugins read the workers' environment."""
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


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("num_generations: 8", "num_generation: 8", "num_generation: no such setting; did you mean num_g"),
        ("  {privileged_context}", "  {privileged}", r"teacher_prompt_template: .* lacks \{privileged_cont"),
        ("smoke_rows:", "", "smoke_rows: missing; 'openai/gsm8k' may be far away"),
    ],
)
def test_a_mistake_in_a_recipe_is_named(right, wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    before, found, after = (ROOT / "examples/math_qwen3_4b.yaml").read_text().partition(right)
    assert found
    (tmp_path / "recipe.yaml").write_text(before + (wrong and wrong + after))
    with pytest.raises(InputError, match=message):
        smoke(load_config(tmp_path / "recipe.yaml"))


FUNCTIONS = [
    {"name": "weather", "parameters": {"city": {"type": "str"}, "units": {"type": "str", "default": "C"}}},
    {"name": "book", "parameters": {"guests": {"type": "int"}, "note": {"type": "str, optional"}}},
]
CALLS = [
    {"name": "weather", "arguments": {"city": "Oslo"}},
    {"name": "weather", "arguments": {"city": "Lima"}},
    {"name": "book", "arguments": {"guests": 2}},
]


def test_the_example_environment_shows_the_functions_hides_the_calls_and_rewards_them():
    desk = runpy.run_path(str(ROOT / "examples" / "tool_env.py"))["FunctionDesk"]()
    shown = desk.reset(functions=json.dumps(FUNCTIONS), calls=json.dumps(CALLS), id=7)
    assert '"name": "weather"' in shown and "Oslo" not in shown
    lines = [json.loads(line) for line in desk.privileged_context().splitlines()]
    assert lines[1] == {"name": "call", "arguments": {"function": "weather", "arguments": {"city": "Lima"}}}
    assert len(lines) == 3
    for function, arguments, message in (
        ("whether", {"city": "Oslo"}, "no function 'whether'; there are weather, book"),
        ("weather", {"city": "Oslo", "day": 1}, r"unknown arguments \['day'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            desk.call(function, arguments)
    assert desk.get_reward() == 0.0
    desk.call("weather", {"city": "Lima", "units": "C"})  # a default that is spelled out changes nothing
    assert desk.get_reward() == 2 * 1 / (1 + 3)
    desk.call("book", {"guests": 2})
    desk.call("weather", {"city": "Oslo"})
    assert desk.get_reward() == 1.0
    desk.call("weather", {"city": "Oslo"})  # once more is one too many
    assert desk.get_reward() == 2 * 3 / (4 + 3)
