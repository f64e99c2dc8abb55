"""bfcl-eval with one more model, the one at an endpoint; run by the Python of that tool's environment.

Prompts, parsers, checkers and files are the tool's own. A model is added to its table as its guide for
contributors says, without touching a file of it. Imports nothing of gear_rl, which is not there.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

NAME = "served"
"""The model's name in the tool's table and folders; it has no underscore, which the tool takes for a slash."""


def about(request: dict[str, Any]) -> dict[str, Any]:
    """The single categories behind the ``categories`` of the request, and the checksum of each one's data."""
    from bfcl_eval.constants.eval_config import PROMPT_PATH
    from bfcl_eval.utils import parse_test_category_argument

    try:
        names = parse_test_category_argument(request["categories"])
    except Exception as error:
        raise SystemExit(f"--categories: {error}") from None
    files = {name: PROMPT_PATH / f"BFCL_v4_{name}.json" for name in names}
    return {
        name: hashlib.sha256(f.read_bytes()).hexdigest() if f.exists() else None for name, f in files.items()
    }


def register(request: dict[str, Any]) -> None:
    """Put the endpoint's model into the table, with the tool's handler of OpenAI endpoints."""
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
    from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

    class Served(OpenAICompletionsHandler):
        def _build_client_kwargs(self) -> dict[str, Any]:
            # A slow machine is not an error: the tool's handlers of local models wait as long.
            return super()._build_client_kwargs() | {"timeout": 72000}

        def generate_with_backoff(self, **sent: Any) -> Any:
            sent.pop("store", None)  # OpenAI's own; servers of others may refuse it
            if request["max_tokens"] is not None:
                sent["max_tokens"] = request["max_tokens"]
            return super().generate_with_backoff(**sent)

    MODEL_CONFIG_MAPPING[NAME] = ModelConfig(
        model_name=request["model"],
        display_name=NAME,
        url="",
        org="",
        license="",
        model_handler=Served,
        is_fc_model=request["tools"],
        underscore_to_dot=request["tools"],
    )


def choose_first(categories: list[str], limit: int) -> None:
    """Write the file by which the tool runs chosen cases alone: the first ``limit`` of every category."""
    from bfcl_eval.constants.eval_config import TEST_IDS_TO_GENERATE_PATH
    from bfcl_eval.utils import load_dataset_entry

    chosen = {name: [entry["id"] for entry in load_dataset_entry(name)][:limit] for name in categories}
    Path(TEST_IDS_TO_GENERATE_PATH).write_text(json.dumps(chosen), encoding="utf-8")


def main() -> None:
    """``request`` as JSON, then the words of the tool's own command line; without words, print ``about``."""
    request, words = json.loads(sys.argv[1]), sys.argv[2:]
    os.environ.setdefault("OPENAI_API_KEY", "none")  # its client refuses to be made without one
    if not words:
        print(json.dumps(about(request)))
        return
    register(request)
    if "--run-ids" in words:
        choose_first(request["categories"], request["limit"])
    from bfcl_eval.__main__ import cli

    cli(words)


if __name__ == "__main__":
    main()
