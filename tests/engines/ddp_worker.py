"""One of two processes: train with TRL's trainer, with Uniform, Gear, Sdpg and Igpo; write down what came out.
Then the same checkpoints once more where FSDP shards the weights."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from engines import probing, resuming, sharding, tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, Shuffled, Uniform
from gear_rl.credit.siblings import credit_beside_siblings
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.methods import Crpo, Gigpo, Igpo, MtGrpo, Sdpg
from gear_rl.signals.score import Scorer


def lopsided(completions, prompts, **kwargs):
    """Half of the groups have no spread, so the two processes score different numbers of completions."""
    flat = [int(prompt[0]["content"].split()[0]) % 2 == 0 for prompt in prompts]
    return [1.0 if same else value for same, value in zip(flat, tiny.vowels(completions), strict=True)]


def main(model: str, folder: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # as in the tests' conftest: a collection around every training, over what the imports made
    rank = int(os.environ["RANK"])
    scored: list[int] = []
    original = Scorer.signals
    batches: list[int] = []

    def watched(scorer, *args, **kw):
        scored.append(int(scorer.row_B.sum()))
        batches.append(scorer.num_batches)
        return original(scorer, *args, **kw)

    Scorer.signals = watched
    found, every = {}, tiny.rows()
    for name, credit in (
        ("grpo", None),
        ("uniform", Uniform()),
        ("late", Gear()),
        ("gear", Gear()),
        ("sdpg", Sdpg(weight=0.5)),
    ):
        changes = (
            {"max_steps": 3}
            if credit is None
            else {"max_steps": 3, "record_file": str(folder / f"{name}.jsonl")}
        )
        if name == "gear":
            changes |= {"student_pass": "own"}
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
    # Groups of four, of which the second is torn: each process has six completions, of other lengths.
    advantage_B, signals = probing.torn()
    own = slice(6 * rank, 6 * rank + 6)
    credits = {
        method.name: credit_beside_siblings(
            method, advantage_B[own], probing.part(signals, own), TRLEngine(trainer)
        ).advantage
        for method in (Gigpo(turn_rewards=True), MtGrpo(), Igpo(), Crpo(), Shuffled(of=Gigpo()))
    }
    torch.save(credits, folder / f"credits-{rank}.pt")
    trainer.reward_funcs[:] = [lambda prompts, **_: [float(p[0]["content"].split()[0]) for p in prompts]]
    found["solved"] = trainer.solve(list(tiny.rows(11)))

    def two_turns(prompts, trainer):
        """The second process's are longer; its completions are siblings of the first's."""
        ids = trainer._tokenize_prompts(prompts)[0]
        turns = [([20 + i, 31, 32, *[33] * (2 * rank)], [50 + i, 51, 2]) for i in range(len(ids))]
        return {
            "prompt_ids": ids,
            "completion_ids": [[*first, 40, 41, *second] for first, second in turns],
            "env_mask": [[*[1] * len(first), 0, 0, *[1] * len(second)] for first, second in turns],
            "logprobs": None,
        }

    changes = {"num_generations": 16, "max_steps": 1, "teacher_prompt": "splice"}
    settings = tiny.settings(folder / "igpo", record_file=str(folder / "igpo.jsonl"), **changes)
    reward = lambda completion_ids, **_: [float(ids[0] + rank) for ids in completion_ids]  # noqa: E731
    GEARTrainer(
        model, reward, GEARConfig(**settings), tiny.rows(), rollout_func=two_turns, credit=Igpo()
    ).train()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    resuming.resume(model, folder / "resuming")
    sharding.resume(model, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
