"""Which releases of TRL were run, and what the credit takes from one that was not."""

import logging
from inspect import isfunction

logger = logging.getLogger(__name__)

TESTED = ("1.14.", "1.16.")
INSTALL = "trl>=1.14,!=1.15.*,<1.17"
CREDIT_NAMES = (
    "_async_tool_dicts", "_batch_environments", "_calculate_rewards", "_compute_loss", "_env_tools", "_generate",
    "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_is_vlm", "_log_completion_extra",
    "_metrics", "_sync_tool_dicts", "_tokenize_prompts", "_tokenizer",
)  # fmt: skip
"""The private names of ``GRPOTrainer`` that the credit overrides or reads (tests/engines/trl_names.md)."""


def check_trl(version: str) -> None:
    """Warn of a release that was never run; ``ImportError`` where ``GRPOTrainer`` lacks one of ``CREDIT_NAMES``.

    >>> check_trl(TESTED[-1])  # nothing to say
    """
    if version.startswith(TESTED):
        return
    from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

    methods = [method for method in vars(GRPOTrainer).values() if isfunction(method)]
    known = {*dir(GRPOTrainer)}.union(
        *(method.__code__.co_names for method in methods)
    )  # self's attributes too
    missing = [name for name in CREDIT_NAMES if name not in known]
    if missing:
        raise ImportError(
            f"trl {version}: GRPOTrainer has no {', '.join(missing)}, which token credit needs; install {INSTALL}"
        )
    message = (
        "trl %s was never run with gear-rl, and its loss may read token credit in another way; %s was run"
    )
    logger.warning(message, version, INSTALL)
