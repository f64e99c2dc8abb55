"""A whole GRPO loop with token credit, without a trainer: the shortest way to read what the package does.

    python examples/loop.py --steps 60

Rollouts, rewards and group advantages are made here as GRPO makes them; ``gear_rl.credit.step`` turns the
advantages of completions into those of tokens; the loss is PPO's clipped one. The task is the arena's: sums, one
after the other.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gear_rl import CreditAssigner, Gear, group_relative_advantage
from gear_rl.arena import chain
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load
from gear_rl.credit.batch import ForwardRequest, RolloutBatch
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.passes import PASS_SIGNALS, ModelPasses
from gear_rl.credit.step import step
from gear_rl.signals.score import Completions, Prompts
from gear_rl.signals.teacher import LiveTeacher

GROUP, PROMPTS, NEW_TOKENS, CLIP = 8, 8, 48, 0.2


class OwnEngine:
    """What the credit step needs of us: a tokenizer, forward passes, and somewhere to put numbers."""

    signals, rank, world_size, record_sink = PASS_SIGNALS, 0, 1, None

    def __init__(self, model: Any, tokenizer: Any, config: CreditConfig) -> None:
        self.tokenizer, self.metrics = tokenizer, dict[str, float]()
        same = LiveTeacher()  # the teacher has the student's weights, and sees more
        self.passes = ModelPasses(
            model=model,
            config=config,
            pad_id=tokenizer.pad_token_id,
            teacher=same,
            reference=same,
            batch_size=64,
        )

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        return [ids_of(self.tokenizer, prompt) for prompt in prompts]

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self.passes.run(request)

    def gather(self, x: Tensor) -> Tensor:
        return x

    def gather_objects(self, items: list[Any]) -> list[Any]:
        return items

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics |= metrics


def ids_of(tokenizer: Any, messages: Any) -> list[int]:
    """The ids that a completion of these chat messages follows."""
    options = {"add_generation_prompt": True, "return_dict": False, **CHAT_TEMPLATE_KWARGS}
    return tokenizer.apply_chat_template(messages, **options)


def rollouts(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], number: int) -> RolloutBatch:
    """One completion for each row, sampled, judged, and compared with its group."""
    prompts = [ids_of(tokenizer, row["prompt"]) for row in rows]
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts])
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    options = {"do_sample": True, "top_k": 0, "pad_token_id": tokenizer.pad_token_id}
    with torch.no_grad():
        sampled = model.generate(ids, attention_mask=attention, max_new_tokens=NEW_TOKENS, **options)[
            :, width:
        ]
    ended = (sampled == tokenizer.eos_token_id).cumsum(-1)
    mask = (ended == 0) | ((ended == 1) & (sampled == tokenizer.eos_token_id))
    texts = [
        tokenizer.decode(tokens[kept], skip_special_tokens=True)
        for tokens, kept in zip(sampled, mask, strict=True)
    ]
    rewards = chain.chain_reward(texts, [row["answer"] for row in rows])
    group = [b // GROUP for b in range(len(rows))]
    return RolloutBatch(
        step=number,
        completions=Completions(ids=sampled, attention=mask.long(), mask=mask),
        student=Prompts(ids_BP=ids, attention_BP=attention),
        prompts=[row["prompt"] for row in rows],
        rows=rows,
        messages=texts,
        advantage_B=group_relative_advantage(torch.tensor(rewards), GROUP),
        rewards=rewards,
        rewards_BR=torch.tensor(rewards)[:, None],
        group=group,
        first=0,
        num_rollouts=len(rows),
    )


def logprobs(model: Any, batch: RolloutBatch) -> Tensor:
    """log pi of every completion token, (B, T), with its graph."""
    completions, student = batch.completions, batch.student
    ids = torch.cat([student.ids_BP, completions.ids], 1)
    attention = torch.cat([student.attention_BP, completions.attention], 1)
    logits = model(input_ids=ids, attention_mask=attention).logits[:, student.ids_BP.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, completions.ids[..., None])[..., 0]


def train(
    method: CreditAssigner, steps: int, seed: int = 0, tier: str = "easy", lr: float = 5e-4
) -> list[float]:
    """Train the arena's model; returns the mean reward of each step's rollouts, which it prints too."""
    torch.manual_seed(seed)
    model, tokenizer = load()
    config = CreditConfig(teacher_prompt_template=chain.TEMPLATE).resolved(method)
    engine = OwnEngine(model, tokenizer, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    curve: list[float] = []
    for number in range(steps):
        problems = chain.rows(tier, num=PROMPTS, first_seed=number * PROMPTS)
        batch = rollouts(model, tokenizer, [row for row in problems for _ in range(GROUP)], number)
        credit = step(batch, method, engine, config).credit

        logprob = logprobs(model, batch)
        ratio = (logprob - logprob.detach()).exp()  # one update per batch: the sampling policy is the policy
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        objective = torch.minimum(ratio * credit.advantage, clipped * credit.advantage)
        loss = -objective.sum() / batch.completions.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        curve.append(sum(reward or 0.0 for reward in batch.rewards) / len(batch.rewards))
        share = engine.metrics.get("gear/segments/token_share", 0.0)
        print(f"step {number + 1:3d}  reward {curve[-1]:.3f}  tokens in segments {share:.2f}", flush=True)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(Gear(), options.steps, options.seed)
