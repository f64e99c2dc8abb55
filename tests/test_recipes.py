"""The recipes of `examples/`: each runs with --smoke, and each option in a comment is valid."""

import doctest
import re
from pathlib import Path

import pytest

from engines import tiny
from examples import laptop_agent
from gear_rl.engines.trl.templates import prepare_processing
from gear_rl.method_builder import build_method
from gear_rl.runs.run_config import RunConfig, load_config, trainer_settings
from support.commands import gear

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "examples").glob("*.yaml"))
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}

every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def blocks(recipe: Path) -> list[str]:
    """Neighbouring lines behind the mark "#:", which a user uncomments together."""
    found = re.findall(r"(?:^#: .+\n)+", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"^#: ", "", block, flags=re.MULTILINE) for block in found]


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


def test_the_transcripts_of_the_laptop_agent_are_calls_that_trl_reads(tmp_path):
    assert doctest.testmod(laptop_agent).failed == 0
    tiny.tokenizer().save_pretrained(tmp_path)
    tokenizer = prepare_processing(str(tmp_path), None, "qwen3_instruct_2507", has_tools=True)
    [shown] = laptop_agent.demonstrations(tokenizer, 1)
    [row] = laptop_agent.rows(count=1, seed=1)
    assert '"name": "send"' in shown["prompt"] and row["code"] not in shown["prompt"]
    turn = shown["completion"].partition("<|im_end|>")[0]
    assert turn == f'<tool_call>\n{{"name": "find", "arguments": {{"item": "{row["item"]}"}}}}\n</tool_call>'


def test_the_laptop_agent_runs_in_smoke():
    mine = "examples.laptop_agent"
    settings = (
        "--dataset",
        f"{mine}:rows",
        "--environment",
        f"{mine}:Shop",
        "--max_completion_length",
        "160",
    )
    done = gear("train", "--model", "Qwen/Qwen3-0.6B", *settings, "--smoke", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[1-9]\d* tool calls", done.stderr)
