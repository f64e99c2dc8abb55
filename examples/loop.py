"""A whole GRPO loop with token credit, without a trainer: the shortest way to read what the package does.

    python examples/loop.py --steps 60

Rollouts, rewards and group advantages are made here as GRPO makes them; ``token_advantages`` turns the advantages
of completions into those of tokens; the loss is PPO's clipped one. The task is the arena's: sums, one after the
other.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gear_rl import (
    CreditAssigner,
    CreditConfig,
    Gear,
    LocalEngine,
    group_relative_advantage,
    make_teacher,
    token_advantages,
)
from gear_rl.arena import chain
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load

GROUP, PROMPTS, NEW_TOKENS, CLIP = 8, 8, 48, 0.2


def sampled(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor, Tensor, int]:
    """One completion for each row: all ids, which are no padding, which were sampled, and the prompt's width."""
    options = {"add_generation_prompt": True, "return_dict": False, **CHAT_TEMPLATE_KWARGS}
    shown = [tokenizer.apply_chat_template(row["prompt"], **options) for row in rows]
    prompts = tokenizer.pad({"input_ids": shown}, padding_side="left", return_tensors="pt")
    width = prompts["input_ids"].shape[1]
    with torch.no_grad():
        ids = model.generate(**prompts, max_new_tokens=NEW_TOKENS, do_sample=True, top_k=0)
    ended = (ids[:, width:] == tokenizer.eos_token_id).cumsum(-1)
    mask = (ended == 0) | ((ended == 1) & (ids[:, width:] == tokenizer.eos_token_id))
    return ids, torch.cat([prompts["attention_mask"], mask.long()], 1), mask, width


def train(
    method: CreditAssigner, steps: int, seed: int = 0, tier: str = "easy", lr: float = 5e-4
) -> list[float]:
    """Train the arena's model; returns the mean reward of each step's rollouts, which it prints too."""
    torch.manual_seed(seed)
    model, tokenizer = load()
    engine = LocalEngine(
        model,
        tokenizer,
        teacher=make_teacher("base", model),
        chat_template_kwargs=CHAT_TEMPLATE_KWARGS,
        batch_size=64,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    curve: list[float] = []
    for number in range(steps):
        problems = chain.rows(tier, num=PROMPTS, first_seed=number * PROMPTS)
        rows = [row for row in problems for _ in range(GROUP)]
        ids, attention, mask, width = sampled(model, tokenizer, rows)
        completions = [own[kept].tolist() for own, kept in zip(ids[:, width:], mask, strict=True)]
        texts = [tokenizer.decode(own, skip_special_tokens=True) for own in completions]
        rewards = chain.chain_reward(texts, [row["answer"] for row in rows])

        rollouts = engine.rollouts(
            rows,
            completions,
            advantages=group_relative_advantage(torch.tensor(rewards), GROUP),
            group=[b // GROUP for b in range(len(rows))],
            rewards=rewards,
            step=number,
        )
        config = CreditConfig(teacher_prompt_template=chain.TEMPLATE)
        credit = token_advantages(rollouts, method, engine, config).credit

        logits = model(input_ids=ids, attention_mask=attention).logits[:, width - 1 : -1]
        logprob = logits.log_softmax(-1).gather(-1, ids[:, width:, None])[..., 0]
        ratio = (logprob - logprob.detach()).exp()  # one update per batch: the sampling policy is the policy
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        objective = torch.minimum(ratio * credit.advantage, clipped * credit.advantage)
        loss = -objective.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        curve.append(sum(rewards) / len(rewards))
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
