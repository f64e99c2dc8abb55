"""verl as it is, with nothing of ours but the CPU: what every other test here stands on."""

import math

from verl_cpu import harness
from verl_cpu.harness import Run


def test_a_stock_run_samples_with_vllm_and_updates_the_policy(stock: Run):
    assert all(0 < reward < 1 for reward in stock.column("critic/rewards/mean"))
    assert all(math.isfinite(loss) for loss in stock.column("actor/pg_loss"))
    assert all(norm > 0 for norm in stock.column("actor/grad_norm"))
    # After the first update vLLM must sample from the updated weights: else it and the actor disagree in step 2.
    assert stock.column("training/rollout_probs_diff_max")[1] < 1e-4


def test_no_process_of_a_run_is_left(stock: Run):
    assert not harness.processes(stock.mark)
