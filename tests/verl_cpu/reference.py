"""The credit step with a model in this process, as under TRL: what verl's workers must arrive at too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, Qwen3ForCausalLM

from gear_rl.credit.batch import RolloutBatch
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.plan import CreditResult
from gear_rl.credit.step import step
from gear_rl.methods import METHODS
from support.batches import PlainEngine


def credited(batch: Mapping[str, Any], model: Path, method: str) -> CreditResult:
    """What the credit step makes of the rollouts of a run, with the weights in a folder."""
    assigner = METHODS[method]()
    config = CreditConfig(teacher_model_kind="live").resolved(assigner)
    weights = Qwen3ForCausalLM.from_pretrained(model, local_files_only=True).eval()
    engine = PlainEngine(AutoTokenizer.from_pretrained(model), weights, config)
    return step(RolloutBatch(**batch), assigner, engine, config)
