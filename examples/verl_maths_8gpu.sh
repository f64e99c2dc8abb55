#!/usr/bin/env bash
# Qwen3-4B on mathematics with token credit in verl: one node of 8 GPUs.
#
#   pip install -e '.[verl,math]' verl==0.9.1 vllm==0.31.0 transformers==5.10.4    in an environment without TRL
#   gear doctor --engine verl                          says what is missing
#   gear export verl --config examples/math_qwen3_4b.yaml --out data/verl_maths    parquet and reward
#   bash examples/verl_maths_8gpu.sh                   whatever follows goes to verl, and wins
#
# The tests compose these settings with the installed verl and check them; on GPUs they were not run. The numbers are
# those of examples/math_qwen3_4b.yaml with a larger batch.
set -euo pipefail
DATA=${DATA:-$PWD/data/verl_maths}

settings=(
  # The group of a method sets the trainer too: +gear=uniform is GRPO, +gear=rlsd another method.
  +gear=gear
  gear.alpha=1.0
  # Whose weights the teacher has: live, or base, for which verl's reference model is loaded.
  gear.teacher_model_kind=live
  'gear.teacher_prompt_template="{prompt}

Here is a reference solution:
{privileged_context}

Solve the problem in your own words, step by step."'
  # Completions in one forward pass of the credit step: 8192 tokens each.
  gear.credit_batch_size=4
  gear.record_file=records.jsonl

  data.train_files="$DATA/train.parquet"
  data.val_files="$DATA/test.parquet"
  data.train_batch_size=128
  data.max_prompt_length=1024
  data.max_response_length=8192
  data.filter_overlong_prompts=True
  +data.apply_chat_template_kwargs.enable_thinking=True
  reward.custom_reward_function.path="$DATA/reward.py"

  algorithm.adv_estimator=grpo
  critic.enable=False
  actor_rollout_ref.model.path=Qwen/Qwen3-4B
  # verl's default. The tests ran it with sdpa; verl takes flash attention, a package of its own, unless told.
  actor_rollout_ref.model.use_remove_padding=True
  #: +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.model.enable_gradient_checkpointing=True

  # Exact signals need the whole vocabulary on a rank: FSDP 2, not Megatron.
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.optim.lr_warmup_steps=10
  actor_rollout_ref.actor.ppo_mini_batch_size=128
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=18432
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.28
  actor_rollout_ref.actor.loss_agg_mode=token-mean

  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6

  trainer.nnodes=1
  trainer.n_gpus_per_node=8
  trainer.total_epochs=4
  trainer.save_freq=50
  trainer.test_freq=25
  trainer.val_before_train=False
  'trainer.logger=[console,tensorboard]'
  trainer.project_name=gear
  trainer.experiment_name=verl_maths
  trainer.default_local_dir="$PWD/runs/verl_maths"
)
exec python3 -m verl.trainer.main_ppo "${settings[@]}" "$@"
