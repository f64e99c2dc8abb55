"""`--smoke`: what is swapped, what is not, and what a recipe that does nothing is told."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gear_rl.errors import InputError
from gear_rl.runs.config import RunConfig
from gear_rl.runs.smoke import SPREAD, smoke, swapped
from gear_rl.runs.tiny_model import save_tiny_model

ROWS = [{"q": f"{i} plus {i}", "a": str(2 * i)} for i in range(4)]
CALL = '{"name": "look", "arguments": {"place": "a"}}'


def recipe(**changes) -> RunConfig:
    own = {"model": "big/model", "dataset": "big/data", "columns": {"prompt": "q", "answer": "a"}}
    own |= {"reward": "think_format_reward", "smoke_rows": ROWS}
    config = RunConfig(**(own | {k: v for k, v in changes.items() if k in RunConfig.model_fields}))
    config.trainer = {k: v for k, v in changes.items() if k not in RunConfig.model_fields}
    return config


def test_what_costs_is_swapped_and_what_can_be_wrong_is_not(tmp_path):
    settings = {"use_vllm": True, "vllm_mode": "server", "deepspeed": "zero3.json"}
    kept = {"learning_rate": 3e-6, "epsilon_high": 0.28, "teacher_model_kind": "ema", "temperature": 0.7}
    more = {"reward_weights": [2.0], "record_file": "/runs/r.jsonl", "max_completion_length": 8192}
    own = {"held_out": 100, "lora": {"r": 64, "lora_alpha": 128}, "credit": {"name": "rlsd"}}
    config = recipe(**settings, **kept, **more, **own, output_dir="runs/x")
    small, swaps = swapped(config, tmp_path)
    assert small.columns == config.columns and small.credit == {"name": "rlsd"}
    assert kept.items() <= small.trainer.items()
    assert small.reward == ["think_format_reward", SPREAD] and small.trainer["reward_weights"] == [2.0, 1.0]
    assert small.lora == {"r": 4, "lora_alpha": 128}
    assert small.held_out == 1
    assert small.trainer["use_vllm"] is False
    assert not {"vllm_mode", "deepspeed"} & small.trainer.keys()
    assert small.trainer["max_completion_length"] == 32
    assert small.trainer["output_dir"].startswith(str(tmp_path))
    assert small.trainer["record_file"] == "records.jsonl"
    lines = Path(small.dataset).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS, "raw rows, so that the columns are really mapped"
    assert "vllm_mode, deepspeed" in swaps["left out"]
    assert config.trainer["output_dir"] == "runs/x", "the recipe itself stays as it was"


def test_every_tier_of_an_evaluation_is_swapped_and_a_local_dataset_needs_no_rows(tmp_path):
    small, _ = swapped(recipe(eval_dataset={"easy": "big/a", "hard": "big/b"}), tmp_path)
    assert small.eval_dataset == {"easy": small.dataset, "hard": small.dataset}
    local = small.dataset
    small, _ = swapped(recipe(smoke_rows=None, dataset=local), tmp_path)
    assert small.dataset == local


def completions(folder, count=64):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is where?"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=False, enable_thinking=False
    )
    torch.manual_seed(0)
    found = model.generate(ids.repeat(count, 1), do_sample=True, max_new_tokens=24)[:, ids.shape[1] :]
    return [tokenizer.decode(row).split("<|endoftext|>")[0] for row in found]


def test_the_tiny_model_calls_tools_and_also_does_not(tmp_path):
    texts = completions(save_tiny_model(tmp_path, [CALL]))
    called = sum(text == f"<tool_call>\n{CALL}\n</tool_call><|im_end|>" for text in texts)
    assert 20 < called < 64
    assert "ok<|im_end|>" in texts
    texts = completions(save_tiny_model(tmp_path / "plain"))
    stopped = sum(text.endswith("<|im_end|>") for text in texts)
    assert len(set(texts)) > 50 and 40 < stopped <= 64
    assert not any("<tool_call>\n" in text for text in texts)


MINE = '''
def length(completions, **columns):
    return [float(len(c[-1]["content"])) for c in completions]

def silent(completions, **columns):
    return [None] * len(completions)

def broken(completions, **columns):
    return [float(columns["anwser"][0])] * len(completions)

class Mute:
    def reset(self, **row):
        pass

    def look(self, place: str) -> str:
        """Look somewhere.

        Args:
            place: Where.
        """
        return f"nothing at {place}"

    def get_reward(self) -> float:
        return 0.0

    def privileged_context(self):
        return None

class Undocumented(Mute):
    def search(self, place: str) -> str:
        return ""
'''


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": "smoke_mine:silent"}, "reward: silent judged none of .* rows have .*answer"),
        ({"reward": "smoke_mine:broken"}, r"reward: smoke_mine:broken raised KeyError: 'anwser' .*, line 9"),
        (
            {"environment": "smoke_mine:Mute", "reward": None, "columns": {"prompt": "q", "gold": "a"}},
            "credit: none of .* completions had a privileged context, so 'gear' did nothing",
        ),
        (
            {"environment": "smoke_mine:Undocumented"},
            "tools: search: Cannot generate JSON schema .* no docstring",
        ),
        ({"smoke_rows": [*ROWS, {"q": " ", "a": "0"}]}, "smoke_rows: 1 have no usable prompt"),
        ({"smoke_rows": None}, "smoke_rows: missing; 'big/data' may be far away"),
        ({"smoke_rows": ROWS[:2]}, "smoke_rows: 2 rows are too few"),
        ({"vllm_importance_sampling_clip_min": 5.0, "use_vllm": True}, "vllm_importance_sampling_clip_min"),
        (
            {"output_dir": "runs/x", "record_file": "runs/x/r.jsonl"},
            "record_file: runs/x/r.jsonl is relative to .* runs/x; write r.jsonl",
        ),
    ],
)
def test_a_recipe_that_does_nothing_or_breaks_is_told_why(tmp_path, monkeypatch, changes, message):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "smoke_mine", raising=False)
    (tmp_path / "smoke_mine.py").write_text(MINE)
    with pytest.raises(InputError, match=f"(?s){message}"):
        smoke(recipe(**{"reward": "smoke_mine:length"} | changes))
