#!/usr/bin/env bash
# Score a checkpoint's function calls with the Berkeley Function Calling Leaderboard's own tool, on the data it ships.
#
#   bash examples/benchmarks/bfcl.sh CHECKPOINT [CATEGORIES [LIMIT]]     (the first LIMIT cases of each category)
#
# BFCL_MODEL is the tool's entry whose prompt format the checkpoint follows (its table of supported models); the
# default writes ChatML and puts the functions into the prompt. VLLM serves the checkpoint, VLLM_ARGS are more words for it;
# ENV is the folder of the tool's virtual environment, OUT takes the answers, the scores and the log.
set -euo pipefail
model=$(realpath "$1") categories=${2:-simple_python,multiple,parallel,irrelevance} limit=${3:-}
entry=${BFCL_MODEL:-Qwen/Qwen3-0.6B} env=${ENV:-.venv-bfcl} port=${PORT:-8124}
export BFCL_PROJECT_ROOT=$(realpath -m "${OUT:-runs/bfcl}")
mkdir -p "$BFCL_PROJECT_ROOT"

if [ ! -x "$env/bin/bfcl" ]; then
    python3.11 -m venv "$env" # its pins need Python 3.11 or 3.12
    "$env/bin/pip" install -q --no-deps bfcl-eval==2026.3.23
    # All that it requires, without what only the memory categories use (sentence-transformers brings torch).
    # soundfile is imported by qwen-agent, which does not say so; transformers reads the checkpoint's tokenizer.
    "$env/bin/python" -c "import importlib.metadata as m; print(*m.requires('bfcl-eval'), sep='\n')" |
        grep -Ev "extra ==|sentence-transformers|faiss" > "$env/requirements.txt"
    "$env/bin/pip" install -q -r "$env/requirements.txt" soundfile transformers
fi

${VLLM:-vllm} serve "$model" --host 127.0.0.1 --port "$port" ${VLLM_ARGS:-} > "$BFCL_PROJECT_ROOT/server.log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
export no_proxy=127.0.0.1 REMOTE_OPENAI_BASE_URL="http://127.0.0.1:$port/v1"
until curl -sf "http://127.0.0.1:$port/health"; do
    kill -0 "$server" || { tail "$BFCL_PROJECT_ROOT/server.log"; exit 1; }
    sleep 1
done

"$env/bin/python" - "$categories" "${limit:-1000000}" <<'EOF' # the file that names the cases to run
import json, sys
from bfcl_eval.constants.eval_config import TEST_IDS_TO_GENERATE_PATH
from bfcl_eval.utils import load_dataset_entry
names, limit = sys.argv[1].split(","), int(sys.argv[2])
cases = {name: [case["id"] for case in load_dataset_entry(name)][:limit] for name in names}
TEST_IDS_TO_GENERATE_PATH.write_text(json.dumps(cases))
EOF
"$env/bin/bfcl" generate --model "$entry" --local-model-path "$model" --skip-server-setup --run-ids \
    --num-threads "${CONCURRENCY:-16}" --temperature "${TEMPERATURE:-0.001}"

# The scorer passes text of the model to Python's eval: it gets no network and none of the user's variables.
# ISOLATE="" scores without that; do it in a container.
${ISOLATE-unshare --map-root-user --net --} env -i PATH="$PATH" BFCL_PROJECT_ROOT="$BFCL_PROJECT_ROOT" \
    "$env/bin/bfcl" evaluate --model "$entry" --test-category "$categories" --partial-eval
