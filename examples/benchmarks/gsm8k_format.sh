#!/usr/bin/env bash
# Score a checkpoint on rows in GSM8K's format ("question", "answer" ending in "#### 42") with the gsm8k task of
# lm-evaluation-harness. Prompt, generation settings and metric are the task's own; only the rows come from the file.
#
#   bash examples/benchmarks/gsm8k_format.sh CHECKPOINT problems.jsonl [more options of lm-eval, such as --limit 10]
#
# SERVER serves the checkpoint ("vllm serve" by default; "transformers serve" works as well), SERVER_ARGS are more
# words for it, ENV is the folder of the tool's virtual environment, OUT takes the scores, the answers and the log.
set -euo pipefail
model=$(realpath "$1") rows=$(realpath "$2")
shift 2
out=${OUT:-runs/gsm8k_format} env=${ENV:-.venv-lm-eval} port=${PORT:-8124}
mkdir -p "$out"

if [ ! -x "$env/bin/lm-eval" ]; then
    python3 -m venv "$env"
    "$env/bin/pip" install -q "lm-eval[api]==0.4.13"
fi

# The tool's own task on other rows; examples would have to come from a training split, so none are shown.
tasks=$("$env/bin/python" -c "import lm_eval.tasks as t; print(*t.__path__)")
cat > "$out/gsm8k_format.yaml" <<EOF
include: $tasks/gsm8k/gsm8k.yaml
task: gsm8k_format
dataset_path: json
dataset_name: null
dataset_kwargs: {data_files: {test: "$rows"}}
training_split: null
fewshot_split: null
num_fewshot: 0
EOF

${SERVER:-vllm serve} "$model" --host 127.0.0.1 --port "$port" ${SERVER_ARGS:-} > "$out/server.log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
export no_proxy=127.0.0.1 OPENAI_API_KEY=none
until curl -sf "http://127.0.0.1:$port/health" > "$out/health"; do
    kill -0 "$server" || { tail "$out/server.log"; exit 1; }
    sleep 1
done

"$env/bin/lm-eval" run --model local-chat-completions --apply_chat_template --include_path "$out" \
    --tasks gsm8k_format --output_path "$out" --log_samples "$@" \
    --model_args "model=$model,base_url=http://127.0.0.1:$port/v1/chat/completions,num_concurrent=${CONCURRENCY:-8}"
