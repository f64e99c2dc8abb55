"""One of two processes, in TRL's environment: gives TRL's trainer the rollouts and advantages that a run of verl
saved, and saves the credit that it assigns and its loss.

`python under_trl.py SAVED MODEL OUT OPTIONS`, where OPTIONS are those of `replay`, as JSON.
"""

import json
import sys
import tempfile
from dataclasses import fields
from typing import Any

import torch
from datasets import Dataset

import gear_rl.engines.trl.trainer as engine
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.method_builder import build_method


class Replayed(GEARTrainer):
    """Samples what was sampled already."""

    rollouts_of: dict[str, list[Any]]
    """Prompts and completions as ids, which of them are sampled, and advantages, in TRL's order."""
    schemas: list[Any]
    """The tools that the prompts show."""

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        own, self.tools = self.tools, self.schemas
        try:
            return super()._tokenize_prompts(prompts)
        finally:
            self.tools = own

    def _generate(self, prompts: list[Any]) -> Any:
        ids, completions, _, *more = super()._generate(prompts)
        return ids, completions, self.rollouts_of["masks"], *more

    def _generate_single_turn(self, prompt_ids: list[list[int]], *more: Any, **options: Any) -> Any:
        assert prompt_ids == self.rollouts_of["prompts"], "TRL renders the prompts in another way than verl"
        return self.rollouts_of["completions"], None

    def _run_credit_step(self, output: dict[str, Any]) -> Any:
        output["advantages"] = torch.tensor(self.rollouts_of["advantages"])  # TRL's divide by another epsilon
        return super()._run_credit_step(output)


def replay(
    batch: dict[str, Any], model: str, credit: str, tools: list[Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """What TRL's trainer makes of a batch of rollouts with a method, in the order of the batch."""
    order = sorted(range(len(batch["rows"])), key=lambda b: batch["group"][b])
    size = batch["group"].count(0)
    student, completions = batch["student"], batch["completions"]
    rows = [{**batch["rows"][b], "prompt": batch["prompts"][b]} for b in order[::size]]
    if batch["environments"] is not None:
        contexts = [batch["environments"][b].privileged_context() for b in order[::size]]
        rows = [{**row, "privileged_context": text} for row, text in zip(rows, contexts, strict=True)]
    rewards = [batch["rewards"][b] for b in order]
    results = []
    step = engine.step
    engine.step = lambda *given, **more: results.append(step(*given, **more)) or results[-1]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GEARConfig(
            folder,
            **settings,
            per_device_train_batch_size=len(order),
            num_generations=size,
            max_completion_length=completions.ids.shape[1],
            max_steps=1,
            shuffle_dataset=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Replayed(
            model,
            lambda **_: rewards,
            arguments,
            Dataset.from_list(rows),
            credit=build_method(credit),
        )
        trainer.schemas = tools
        trainer.rollouts_of = {
            "prompts": [student.ids_BP[b][student.attention_BP[b].bool()].tolist() for b in order],
            "completions": [completions.ids[b][completions.attention[b].bool()].tolist() for b in order],
            "masks": [completions.mask[b][completions.attention[b].bool()].int().tolist() for b in order],
            "advantages": batch["advantage_B"][order].tolist(),
        }
        loss = trainer.train().training_loss
    [result] = results
    return {**restored(result, order), "loss": loss}


def restored(result: Any, order: list[int]) -> dict[str, Any]:
    """The result in the order that the rollouts came in."""
    back = torch.tensor(order).argsort()

    def taken(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value[back]
        if isinstance(value, dict):
            return {name: taken(one) for name, one in value.items()}
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value)(**{name: taken(one) for name, one in named.items() if one is not None})

    return {name: taken(getattr(result, name)) for name in ("signals", "credit", "scored_B")}


if __name__ == "__main__":
    saved, model, out, options = sys.argv[1:]
    torch.save(replay(torch.load(saved, weights_only=False)["batch"], model, **json.loads(options)), out)
