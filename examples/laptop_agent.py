"""An agent with tools of your own on a laptop: SmolLM2-135M learns the form of a call, then trains with `gear`.

SmolLM2 never calls a tool by itself, so all its rewards are 0 and nothing can be learned. Sixteen steps of
fine-tuning on transcripts teach it the form; what to look up and what to send is left to the training.

    gear model smollm2
    python examples/laptop_agent.py --output_dir runs/warm   # some five minutes on one core
    export MINE=examples.laptop_agent
    gear train --model runs/warm --dataset $MINE:rows --environment $MINE:Shop --max_completion_length 160 \\
        --per_device_train_batch_size 8 --learning_rate 1e-5 --max_steps 3   # a minute or two a step

Put your environment in place of `Shop`, and your transcripts in place of `transcript`.
"""

import argparse
import random
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import set_seed
from transformers.utils import get_json_schema
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from gear_rl.engines.models import load_tokenizer
from gear_rl.engines.trl.templates import read_template
from gear_rl.runs.model_wheels import resolve_model

ITEMS = ("drum", "bottle", "ribbon", "mask", "boat", "kite", "lamp", "spoon")


class Shop:
    """One rollout: find the code of an item, and send it; half the reward for each.

    >>> shop = Shop()
    >>> shop.reset("kite", "31")
    >>> shop.find("kite"), shop.send("31"), shop.get_reward()
    ('31', 'sent', 1.0)
    """

    def reset(self, item: str, code: str, **row: Any) -> None:
        """Begin the rollout of a row."""
        self._item, self._code = item, code
        self._found, self._sent = False, None

    def find(self, item: str) -> str:
        """Find the code of an item.

        Args:
            item: Item
        """
        right = item.strip().lower() == self._item
        self._found = self._found or right
        return self._code if right else "no such item"

    def send(self, code: str) -> str:
        """Send the item with this code.

        Args:
            code: Code of the item
        """
        self._sent = self._sent or str(code)
        return "sent"

    def get_reward(self) -> float:
        """Half for finding the item, half for sending its code first."""
        return 0.5 * self._found + 0.5 * (self._sent == self._code)

    def privileged_context(self) -> str:
        """What only the teacher sees. It is no tool."""
        return f"Call find with {self._item!r}, then send with {self._code!r}."


def rows(split: str = "train", count: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with the columns of ``Shop.reset``; the same for every split.

    >>> rows()[0]["prompt"][0]["content"]
    'Find the code of the lamp, and send it.'
    """
    draw = random.Random(seed)
    made = [(draw.choice(ITEMS), str(draw.randint(10, 99))) for _ in range(count)]
    return [
        {
            "prompt": [{"role": "user", "content": f"Find the code of the {item}, and send it."}],
            "item": item,
            "code": code,
        }
        for item, code in made
    ]


def transcript(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a rollout that does everything right, tool answers included."""

    def call(name: str, **arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }

    return [
        call("find", item=row["item"]),
        {"role": "tool", "name": "find", "content": row["code"]},
        call("send", code=row["code"]),
        {"role": "tool", "name": "send", "content": "sent"},
        {"role": "assistant", "content": "Done."},
    ]


def demonstrations(tokenizer: Any, count: int, seed: int = 1) -> list[dict[str, str]]:
    """Prompt and completion as text, with the tools in the prompt."""
    shop = Shop()
    tools = [get_json_schema(tool) for tool in (shop.find, shop.send)]
    made: list[dict[str, str]] = []
    for row in rows(count=count, seed=seed):
        prompt = tokenizer.apply_chat_template(
            row["prompt"], tools=tools, add_generation_prompt=True, tokenize=False
        )
        whole = tokenizer.apply_chat_template(row["prompt"] + transcript(row), tools=tools, tokenize=False)
        made.append({"prompt": prompt, "completion": whole.removeprefix(prompt)})
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Fine-tune on transcripts, and save the model with a tokenizer whose template shows tools."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--output_dir", default="runs/warm")
    parser.add_argument("--max_steps", type=int, default=16)
    given = parser.parse_args(words)
    set_seed(0)
    folder = resolve_model(given.model)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = read_template("qwen3_instruct_2507")
    trainer = SFTTrainer(
        folder,
        SFTConfig(
            given.output_dir,
            max_steps=given.max_steps,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            max_length=None,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=Dataset.from_list(demonstrations(tokenizer, 48)),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, target_modules="all-linear"),
    )
    trainer.train()
    trainer.model.merge_and_unload().save_pretrained(given.output_dir)
    tokenizer.save_pretrained(given.output_dir)


if __name__ == "__main__":
    main()
