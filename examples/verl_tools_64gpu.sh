#!/usr/bin/env bash
# Qwen3-8B learns to call functions with token credit in verl: 8 nodes of 8 GPUs.
#
#   pip install -e '.[verl]' verl==0.9.1 vllm==0.31.0 transformers==5.10.4    on every node, without TRL
#   gear export verl --config examples/tools_qwen3_4b.yaml --out data/verl_tools --prompt-tokens 2048
#   ray start --head                                   on the first node, and on each of the others:
#   ray start --address=FIRST_NODE:6379
#   RAY_ADDRESS=auto bash examples/verl_tools_64gpu.sh on the first; whatever follows goes to verl, and wins
#
# Data, the folder of this file and the runs have to be on a disk that every node sees. The tests compose these
# settings with the installed verl and check them; on GPUs they were not run.
set -euo pipefail
DATA=${DATA:-$PWD/data/verl_tools}
# The environment is a class of examples/tool_env.py; put your own here, importable on every node.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

settings=(
  # +gear=uniform is GRPO, +gear=gigpo and +gear=mt_grpo read the turns and need no teacher.
  +gear=gear
  gear.alpha=1.0
  # A segment ends with its turn.
  gear.end_rule=turn
  gear.teacher_model_kind=live
  gear.environment=examples.tool_env:FunctionDesk
  gear.tool_time_limit=30
  gear.tool_max_chars=20000
  gear.privileged_sources=[environment,row]
  'gear.teacher_prompt_template="{prompt}

These calls would be right:
{privileged_context}

Work through the task yourself, with the tool."'
  gear.credit_batch_size=4
  gear.record_file=records.jsonl

  data.train_files="$DATA/train.parquet"
  data.val_files="$DATA/test.parquet"
  data.train_batch_size=256
  data.max_prompt_length=2048
  data.max_response_length=8192
  data.filter_overlong_prompts=True
  +data.apply_chat_template_kwargs.enable_thinking=False

  algorithm.adv_estimator=grpo
  critic.enable=False
  actor_rollout_ref.model.path=Qwen/Qwen3-8B
  # verl's default. The tests ran it with sdpa; verl takes flash attention, a package of its own, unless told.
  actor_rollout_ref.model.use_remove_padding=True
  #: +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.model.enable_gradient_checkpointing=True

  actor_rollout_ref.actor.strategy=fsdp2
  # Shards within a node, copies between nodes: the weights are gathered over the fast links only.
  actor_rollout_ref.actor.fsdp_config.fsdp_size=8
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.optim.lr_warmup_steps=10
  actor_rollout_ref.actor.ppo_mini_batch_size=256
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.28
  actor_rollout_ref.actor.loss_agg_mode=token-mean

  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.multi_turn.enable=True
  # Six calls and the turn that answers.
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns=7
  actor_rollout_ref.rollout.agent.num_workers=32

  # Rollouts go on while the weights are trained: gear_colocate_async; a step waits for nobody's longest rollout.
  #: trainer.v1.trainer_mode=gear_colocate_async
  trainer.nnodes=8
  trainer.n_gpus_per_node=8
  trainer.total_epochs=2
  trainer.save_freq=25
  trainer.test_freq=25
  trainer.val_before_train=False
  'trainer.logger=[console,wandb]'
  trainer.project_name=gear
  trainer.experiment_name=verl_tools
  trainer.default_local_dir="$PWD/runs/verl_tools"
)
exec python3 -m verl.trainer.main_ppo "${settings[@]}" "$@"
