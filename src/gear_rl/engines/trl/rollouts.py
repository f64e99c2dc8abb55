"""The batch of rollouts under way: TRL's hooks show it piece by piece, the credit step gets it whole."""

import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from trl.chat_template_utils import add_response_schema

from gear_rl.files import without_null
from gear_rl.rollouts import Completions, Prompts, RolloutBatch, ToolUse, equal_groups
from gear_rl.tensor.lists import float_list, int_list
from gear_rl.tensor.segments import turn_ids

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

logger = logging.getLogger(__name__)


class Rollouts:
    """What TRL shows of the rollouts of this process, and the rewards of all processes.

    >>> rollouts, no = Rollouts(), torch.nan
    >>> rollouts.judge(torch.tensor([[1.0, no], [no, no]]), weights=torch.tensor([0.5, 1.0]), num_tries=1)
    >>> rollouts.rewards
    [0.5, None]
    """

    def __init__(self) -> None:
        self.prompts: list[Any] = []
        """The final prompts; an environment's ``reset()`` may have changed them."""
        self.prompt_ends: list[str] = []
        """The last tokens of each prompt behind its chat template: a reward sees whether it opens reasoning."""
        self.rows: list[dict[str, Any]] = []
        """The whole dataset rows, with the columns that ``reset()`` must not see."""
        self.messages: list[Any] = []
        """The completions as reward functions see them."""
        self.ids: list[list[int]] = []
        self.rewards: list[float | None] = []
        """The weighted sums of the rewards; None where no function judged."""
        self.rewards_each = torch.zeros(0, 0)
        """(rollouts, functions); 0 where a function abstained."""
        self.logged: dict[str, list[Any]] = {}
        """What reward functions logged for each rollout, by name; the last function's come last."""
        self.evaluated: list[list[float | None]] | None = None
        """During an evaluation: the rewards of every problem's tries."""

    @contextmanager
    def row_tools_shown(self, trainer: "GEARTrainer") -> Generator[None]:
        """Prompts show the functions of their row's column ``tools``: TRL does this for environments alone."""
        functions = [functions_of(row.get("tools")) for row in self.rows]
        if trainer.tools or trainer.environment_factories is not None or not any(functions):
            yield
            return
        trainer.environment_factories, trainer._env_tools = {}, dict(enumerate(functions))
        trainer._batch_environments = [*range(len(functions))]
        try:
            yield
        finally:
            trainer.environment_factories = None

    def judge(self, per_function: Tensor, weights: Tensor, num_tries: int) -> None:
        """Keep the rewards of a batch, (rollouts, functions); NaN is a function that abstained.

        In an evaluation they are the rewards of ``num_tries`` rollouts for each problem.
        """
        each = per_function * weights.to(per_function.device)
        sums = float_list(each.nansum(1))  # as TRL sums them
        self.rewards_each = torch.where(each.isnan(), 0.0, each)  # as in `nansum`; an infinite one stays
        judged = int_list(~per_function.isnan().all(1))
        self.rewards = [value if judge else None for value, judge in zip(sums, judged, strict=True)]
        if self.evaluated is not None:
            for begin in range(0, len(self.rewards), num_tries):
                self.evaluated.append(self.rewards[begin : begin + num_tries])

    def even_share(self, size: int) -> float:
        """The share of groups in which no two completions got different rewards.

        >>> rollouts = Rollouts()
        >>> rollouts.rewards = [1.0, 0.0, None, None, 1.0, None]
        >>> rollouts.even_share(2)
        0.6666666666666666
        """
        groups = [self.rewards[begin : begin + size] for begin in range(0, len(self.rewards), size)]
        return sum(len({*group} - {None}) < 2 for group in groups) / len(groups)

    def batch(self, trainer: "GEARTrainer", output: Mapping[str, Any]) -> RolloutBatch:
        """What the credit step reads; ``output`` is what ``_generate_and_score_completions`` returned."""
        first = trainer.accelerator.process_index * len(self.rows)
        own = slice(first, first + len(self.rows))
        groups = [b // trainer.num_generations for b in range(len(self.rewards))]
        compared: list[Any] = self.rewards
        if trainer.args.multi_objective_aggregation == "normalize_then_sum":  # each function by itself
            compared = [tuple(float_list(each)) for each in self.rewards_each]
        equal = equal_groups(compared, groups)
        advantage_B: Tensor = output["advantages"]
        ends = cast(list[int], trainer.eos_token_ids)
        cut_off = [len(ids) == 0 or ids[-1] not in ends for ids in self.ids]
        completions = replace(completions_of(output), truncated=cut_off)
        return RolloutBatch(
            step=trainer.state.global_step,
            completions=completions,
            student=Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
            prompts=self.prompts,
            rows=self.rows,
            messages=self.messages,
            advantage_B=advantage_B.masked_fill(torch.tensor(equal[own], device=advantage_B.device), 0.0),
            rewards=self.rewards[own],
            rewards_BR=self.rewards_each[own].to(completions.mask.device),
            group=groups[own],
            first=first,
            num_rollouts=len(self.rewards),
            environments=getattr(trainer, "environments", None) or None,
            logged={name: values[-len(self.rows) :] for name, values in self.logged.items()},
            tools=self._tool_use(trainer, completions) if trainer.tools else None,
        )

    def _tool_use(self, trainer: "GEARTrainer", completions: Completions) -> ToolUse:
        guard = trainer.tool_guard
        pairs = zip(trainer._sync_tool_dicts, trainer._async_tool_dicts, strict=True)
        names = [sorted({*sync, *anew}) for sync, anew in pairs]
        last = [
            str(trainer._tokenizer.decode(ids[(turn == turn.max()) & (turn >= 0)]))
            for ids, turn in zip(completions.ids, turn_ids(completions.mask), strict=True)
        ]

        def failure_of(b: int, message: Mapping[str, Any]) -> str | None:
            return guard.failure_of(message, names[b])

        rollouts = zip(self.messages, last, names, strict=True)
        counts = [guard.report(*rollout, trainer.control_tokens) for rollout in rollouts]
        return ToolUse(counts=counts, failure_of=failure_of)


def completions_of(output: Mapping[str, Any]) -> Completions:
    """The completions of a batch of TRL's, or of a micro-batch."""
    attention: Tensor = output["completion_mask"]
    mask = (attention * output["tool_mask"] if "tool_mask" in output else attention).bool()
    return Completions(ids=output["completion_ids"], attention=attention, mask=mask)


def functions_of(value: Any) -> list[Any]:
    """The functions, as JSON schemas, that a row's column ``tools`` holds as a list or as its JSON text.

    >>> functions_of('[{"type": "function", "function": {"name": "add"}}]'), functions_of(None)
    ([{'type': 'function', 'function': {'name': 'add'}}], [])
    >>> functions_of("calculator")
    Traceback (most recent call last):
    ValueError: tools: 'calculator' is no list of functions; write their JSON schemas, or rename the column
    """

    def read(item: Any) -> Any:
        return json.loads(item) if isinstance(item, str) else without_null(item)

    try:
        given: Any = read(value or [])
        functions = [read(item) for item in ([given] if isinstance(given, Mapping) else given)]
        if not all(isinstance(function, Mapping) for function in functions):
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(
            f"tools: {value!r:.100} is no list of functions; write their JSON schemas, or rename the column"
        ) from None
    return functions


def check_row_tools(trainer: "GEARTrainer") -> None:
    """Warn where no prompt will show the column ``tools``; ``ValueError`` where it holds no functions."""
    dataset: Any = trainer.train_dataset
    if "tools" not in (getattr(dataset, "column_names", None) or ()):
        return
    row: Any = next(iter(dataset))
    template = trainer.chat_template or getattr(trainer.processing_class, "chat_template", "")
    if trainer.tools or trainer.environment_factories is not None:
        why = "the run's own tools and environments are shown; rename the column"
    elif isinstance(row.get("prompt"), str):
        why = "the prompts are text; use messages, or write the functions into the text"
    elif "tools" not in str(template):
        why = "the chat template has no place for them; write them into the system message"
    else:
        functions_of(row["tools"])
        return
    logger.warning("train_dataset: no prompt shows the functions of the column 'tools': %s", why)


def parse_tool_calls(processing: Any) -> bool:
    """Whether the tokenizer or processor can now parse calls, or could before; its template stays as it is.

    TRL gives its parser to templates whose text is a stock one's. A model saved with TRL's training variant
    writes its calls in the same way, so it gets the same parser. TRL refuses any other template.

    >>> from types import SimpleNamespace
    >>> parse_tool_calls(SimpleNamespace(chat_template="{{ messages }}"))
    False
    """
    tokenizer = getattr(processing, "tokenizer", processing)
    if any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema")):
        return True
    given, folder = processing.chat_template, files("trl") / "chat_templates"
    for file in folder.iterdir():
        stock = folder / file.name.replace("_training.jinja", ".jinja")
        if file.name.endswith("_training.jinja") and file.read_text(encoding="utf-8") == given:
            try:
                processing.chat_template = stock.read_text(encoding="utf-8")
                add_response_schema(processing)
                return True
            except (OSError, ValueError):  # no stock template, or one whose calls TRL cannot parse
                continue
            finally:
                processing.chat_template = given
    return False
