"""What a run says about itself, out of the numbers that a trainer logs. Knows no trainer."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, cast

FEW_STEPS = 10
"""Logged steps below which a conclusion says that they are few."""
TEACH_CALLS = "first fine-tune the model on transcripts with calls of your tools"


def health(logs: Mapping[str, float]) -> str:
    """The line of a step: reward, groups that differ in it, completions scored and cut off, what credit did.

    >>> health({"frac_reward_zero_std": 0.25, "gear/scored": 24.0, "completions/clipped_ratio": 0.5})
    '75% of groups differ in reward, 24 completions scored, 50% cut off'
    >>> health({"frac_reward_zero_std": 1.0, "gear/fallbacks": 8.0, "gear/fallback/long_context": 8.0})
    '0% of groups differ in reward, 8 fallbacks (8 long_context)'
    """
    parts = [f"reward {logs['reward']:.2f}"] if "reward" in logs else []
    parts.append(f"{1 - logs['frac_reward_zero_std']:.0%} of groups differ in reward")
    if "gear/scored" in logs:
        parts.append(f"{logs['gear/scored']:.0f} completions scored")
    if logs.get("completions/clipped_ratio"):
        parts.append(f"{logs['completions/clipped_ratio']:.0%} cut off")
    if logs.get("gear/fallbacks"):
        kinds = {
            key.removeprefix("gear/fallback/"): n for key, n in logs.items() if "/fallback/" in key and n
        }
        why = ", ".join(f"{n:.0f} {kind}" for kind, n in kinds.items())
        parts.append(f"{logs['gear/fallbacks']:.0f} fallbacks ({why})")
    if "gear/segments/token_share" in logs:
        parts.append(f"{logs['gear/segments/token_share']:.0%} of tokens in segments")
    if "gear/divergence/mean" in logs:
        parts.append(f"KL {logs['gear/divergence/mean']:.2f}")
    if "gear/teacher/informed" in logs:
        parts.append(f"teacher informed {logs['gear/teacher/informed']:.2f}")
    return ", ".join(parts)


def nothing_to_learn(logs: Mapping[str, Any]) -> str | None:
    """The likeliest reason why a step could not change the model; None where it could.

    >>> nothing_to_learn({"frac_reward_zero_std": 1.0, "reward": 0.0, "grad_norm": 0.0})
    'every completion got reward 0: the prompts are too hard, or the reward does not see the answer'
    >>> nothing_to_learn({"frac_reward_zero_std": 0.5, "reward": 0.5, "grad_norm": 0.2})
    """
    if logs.get("grad_norm") != 0:
        return None
    if logs.get("completions/clipped_ratio") == 1:
        return "every completion was cut off, so none is trained: raise max_completion_length"
    if logs["reward"] is None:
        return "every reward function gave None for every completion"
    if logs.get("tools/call_frequency") == 0:
        return f"no completion called a tool: {TEACH_CALLS}"
    if logs["frac_reward_zero_std"] < 1:
        return "rewards differ, but the gradient is 0: is any sampled token trained?"
    if logs.get("reward_std") or logs["reward"] not in (0, 1):
        return "the completions of a prompt all got one reward: raise temperature, or take a finer reward"
    if logs["reward"] == 1:
        return "every completion got reward 1: the prompts are too easy"
    return "every completion got reward 0: the prompts are too hard, or the reward does not see the answer"


def conclusion(history: Sequence[Mapping[str, Any]]) -> str:
    """What a whole log says, in a few sentences: what was learned, and what stood in the way.

    >>> logs = [{"reward": 0.1, "frac_reward_zero_std": 0.9, "completions/clipped_ratio": 0.75}] * 3
    >>> print(conclusion(logs))
    The reward went from 0.10 to 0.10 (the first and the last of 3 logged steps, which are few). 75% of
    completions were cut off: raise max_completion_length. In 90% of groups all rewards were equal, which teaches
    nothing: easier or harder prompts, more generations, or a finer reward.
    """

    def mean(key: str) -> float | None:
        values = [cast(float, row[key]) for row in history if isinstance(row.get(key), int | float)]
        return fmean(values) if values else None

    logged = [row["reward"] for row in history if "reward" in row]
    rewards = [cast(float, reward) for reward in logged if reward is not None]
    if not rewards:
        return "Every reward function gave None for every completion." if logged else "No step was logged."
    few = max(1, len(rewards) // 5)
    first, last = fmean(rewards[:few]), fmean(rewards[-few:])
    ends = "the first and the last" if few == 1 else f"means of the first {few} and the last {few}"
    said = f"The reward went from {first:.2f} to {last:.2f} ({ends} of {len(rewards)} logged steps"
    said += ", which are few). " if len(rewards) < FEW_STEPS else "). "
    if len(rewards) == 1:
        said = f"The reward was {last:.2f} in the one logged step. "
    if mean("tools/call_frequency") == 0:
        said += f"No completion called a tool: {TEACH_CALLS}. "
    failed = mean("tools/failure_frequency") or 0.0
    if failed >= 0.3:
        counted = {key for row in history for key, count in row.items() if "gear/tools/" in key and count}
        kinds = sorted({key.rpartition("/")[2] for key in counted} - {"cut", "control"})  # no failures
        which = f" ({', '.join(kinds)})" if kinds else ""
        said += f"{failed:.0%} of tool calls failed{which}. "
    cut, even = mean("completions/clipped_ratio") or 0.0, mean("frac_reward_zero_std") or 0.0
    if cut >= 0.3:
        said += f"{cut:.0%} of completions were cut off: raise max_completion_length. "
    if even >= 0.7:
        said += (
            f"In {even:.0%} of groups all rewards were equal, which teaches nothing: easier or harder prompts, "
            "more generations, or a finer reward. "
        )
    deviation = mean("gear/weight/deviation")  # of weights from 1
    largest = [cast(float, row["gear/weight/max"]) for row in history if "gear/weight/max" in row]
    if mean("gear/fallbacks") and deviation is None:
        said += "Every completion kept its GRPO advantage (gear/fallback/* says why): this was GRPO. "
    elif deviation is not None and deviation < 1e-4 and max(largest) < 1.0005:
        said += "Every weight was 1: this was GRPO. "
    informed = mean("gear/teacher/informed")
    if informed is not None and informed < 0.6:
        said += "The teacher hardly reads its context: `gear teacher` measures it without training. "
    return said.strip()
