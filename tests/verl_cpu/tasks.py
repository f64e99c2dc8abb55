"""The arena for verl: a task's model as a folder, its problems as a parquet file, its reward function."""

from pathlib import Path
from typing import Any

from datasets import Dataset

from gear_rl.arena.model import load
from gear_rl.arena.task import get_task

THINKING_OFF = "{%- set enable_thinking = false -%}\n"
"""Before the chat template: the empty think block then ends the prompt, whoever renders it."""


def write(folder: Path, task: str, tier: str, *, num: int = 512) -> Path:
    """The folder, with `model/` in float32 and `train.parquet`: so many training problems of a tier."""
    model, tokenizer = load(task=task)
    tokenizer.chat_template = THINKING_OFF + tokenizer.chat_template
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = get_task(task).rows(tier, num=num)
    table = [_row(task, index, row) for index, row in enumerate(rows)]
    Dataset.from_list(table).to_parquet(folder / "train.parquet")
    return folder


def _row(task: str, index: int, row: dict[str, Any]) -> dict[str, Any]:
    """One row of verl: what is judged, what an environment is reset with, and who plays it."""
    own = ("prompt", "privileged_context")
    extra = {name: value for name, value in row.items() if name not in own}
    more = {"agent_name": "gear_env"} if get_task(task).agent else {own[1]: row[own[1]]}
    return more | {
        "data_source": f"arena/{task}",
        "prompt": row["prompt"],
        "reward_model": {"style": "rule", "ground_truth": row.get("answer", "")},
        "extra_info": extra | {"index": index},
    }


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> dict[str, float]:
    """verl's custom reward function: the task's own, of one completion."""
    reward = get_task(data_source.removeprefix("arena/")).reward
    assert reward is not None, f"the environment of {data_source} gives the reward"
    [score] = reward(completions=[[{"role": "assistant", "content": solution_str}]], answer=[ground_truth])
    return {"score": score, "acc": score}
