"""One of two processes: train with TRL's trainer, with Uniform, Gear and Sdpg; write down what came out."""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines import trl_signals as engine
from gear_rl.methods import Sdpg


def lopsided(completions, prompts, **kwargs):
    """Half of the groups have no spread, so the two processes score different numbers of completions."""
    flat = [int(prompt[0]["content"].split()[0]) % 2 == 0 for prompt in prompts]
    return [1.0 if same else value for same, value in zip(flat, tiny.vowels(completions), strict=True)]


def main(model: str, folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    scored: list[int] = []
    original = engine.score
    batches: list[int] = []

    def watched(*args, **kw):
        scored.append(int(kw["row_B"].sum()))
        batches.append(kw["num_batches"])
        return original(*args, **kw)

    engine.score = watched
    found, every = {}, tiny.rows()
    for name, credit in (
        ("grpo", None),
        ("uniform", Uniform()),
        ("gear", Gear()),
        ("sdpg", Sdpg(weight=0.5)),
    ):
        changes = (
            {"max_steps": 3}
            if credit is None
            else {"max_steps": 3, "record_file": str(folder / f"{name}.jsonl")}
        )
        settings = tiny.settings(folder / name, **changes)
        cls, config, extra = (
            (GRPOTrainer, GRPOConfig, {}) if credit is None else (GEARTrainer, GEARConfig, {"credit": credit})
        )
        # Few rows have a context, so that one process may have nothing to distil while the other has.
        rows = [
            {**row, "privileged_context": None, "answer": ""} if i > 2 else row for i, row in enumerate(every)
        ]
        dataset = Dataset.from_list(rows) if name == "sdpg" else every
        trainer = cls(model, lopsided, config(**settings), dataset, **extra)
        trainer.train()
        weights = trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()
        torch.save(weights, folder / f"{name}-{rank}.pt")
        found[name] = {
            "wrapped": type(trainer.model_wrapped).__name__,
            "history": [h for h in trainer.state.log_history if "loss" in h],
            "scored": scored[-3:] if credit else [],
            "batches": batches[-3:] if credit else [],
        }

    def first_of_rank_0(completions, **kwargs):
        return [float(rank == 0 and i == 0) for i in range(len(completions))]

    # One group of sixteen over both processes: the only success is on the first.
    changes = {"num_generations": 16, "privileged_sources": ["sibling"], "max_steps": 1}
    settings = tiny.settings(folder / "sibling", record_file=str(folder / "sibling.jsonl"), **changes)
    bare = tiny.rows().remove_columns(["privileged_context", "answer"])
    trainer = GEARTrainer(model, first_of_rank_0, GEARConfig(**settings), bare, credit=Gear())
    trainer.train()
    trainer.reward_funcs[:] = [lambda prompts, **_: [float(p[0]["content"].split()[0]) for p in prompts]]
    found["solved"] = trainer.solve(list(tiny.rows(11)))
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
