"""What a training run shows its student and what it shows its teacher, id by id."""

from typing import Any

import pytest

from gear_rl.engines.trl import trainer as trl
from gear_rl.rollouts import Prompts
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.passes import ModelPasses


def kept_ids(ids: Any, attention: Any) -> list[list[int]]:
    """The ids of each row that are no padding."""
    return [row[kept.bool()].tolist() for row, kept in zip(ids, attention, strict=True)]


class Watch:
    """What `generate` took and gave, what scored the teacher, and (``told``) what else reads the truth."""

    def __init__(self, patch: pytest.MonkeyPatch, model: Any) -> None:
        self.generated_from: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.teacher: list[list[int]] = []
        self.told: list[list[int]] = []
        self._watch_student(patch, model)
        self._watch_teacher(patch)

    def _watch_student(self, patch: pytest.MonkeyPatch, model: Any) -> None:
        generate = model.generate

        def watched(*args: Any, **kw: Any) -> Any:
            ids = kw["input_ids"]
            self.generated_from += kept_ids(ids, kw["attention_mask"])
            out = generate(*args, **kw)
            self.sampled += out[:, ids.shape[1] :].tolist()
            return out

        patch.setattr(model, "generate", watched)

    def _watch_teacher(self, patch: pytest.MonkeyPatch) -> None:
        scored_by, ahead = ModelPasses.signals, ModelPasses.teacher_states
        confidence = AnswerConfidence.compute
        attach = trl.attach

        def scored(passes: Any, wanted: Any, request: Any, teacher: Any, *more: Any) -> Any:
            if isinstance(teacher, Prompts):
                self.teacher += kept_ids(teacher.ids_BP, teacher.attention_BP)
            return scored_by(passes, wanted, request, teacher, *more)

        def taught(passes: Any, request: Any, teacher: Any, *more: Any) -> Any:
            self.teacher += kept_ids(teacher.ids_BP, teacher.attention_BP)
            return ahead(passes, request, teacher, *more)

        def attached(output: Any, *more: Any) -> None:
            self.told += kept_ids(more[2].ids_BP, more[2].attention_BP)
            attach(output, *more)

        def confident(signal: Any, passes: Any, request: Any) -> Any:
            self.told += [row[row >= 0].tolist() for row in request.inputs["answer_ids_BN"]]
            return confidence(signal, passes, request)

        patch.setattr(ModelPasses, "signals", scored)
        patch.setattr(ModelPasses, "teacher_states", taught)
        patch.setattr(AnswerConfidence, "compute", confident)
        patch.setattr(trl, "attach", attached)
