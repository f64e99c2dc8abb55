"""A teacher behind a vLLM server: log-probabilities of single tokens, over HTTP. Knows no trainer.

Sends token ids alone, and writes nothing of a prompt into a log or an error.
"""

import json
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPException
from itertools import count
from typing import Any, Literal, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.model.teacher import Teacher
from gear_rl.rollouts import Completions, Prompts
from gear_rl.tensor.lists import int_list

logger = logging.getLogger(__name__)

PROBED_TOKENS = 256
"""Tokens, spread evenly over the vocabulary, and as many added ones, that both tokenizers have to read alike."""
_NO_ANSWER = OSError, HTTPException, AttributeError, KeyError, IndexError, TypeError, ValueError
"""What is raised where the server gives no answer, or another one than vLLM's."""
REFUSED = range(400, 500)
"""The server will not answer differently when it is asked again."""


class ServedTeacher(Teacher):
    """A teacher that an OpenAI-compatible vLLM server runs: its log-prob of each sampled token, at temperature 1.

    In place of weights of one's own: ``LocalEngine(model, tokenizer, teacher=ServedTeacher(url))``, in TRL the
    setting ``teacher_url``. The server's model reads the student's token ids; another tokenizer is
    refused. With ``top_k`` a method's ``divergence`` is made of the teacher's k likeliest tokens, the sampled
    one, and the rest as one. A request that fails is sent again ``retries`` times; then its completion keeps its
    GRPO advantage (``on_failure="skip"``), or ``ConnectionError`` ends the run ("stop"). Where none comes in
    ``timeout`` seconds, the others of the batch that wait are not sent.

    >>> ServedTeacher("localhost:8000")
    Traceback (most recent call last):
    ValueError: teacher_url: 'localhost:8000' is no address of a server; give one such as http://localhost:8000
    """

    lends = True

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        top_k: int = 0,
        timeout: float = 60.0,
        retries: int = 3,
        on_failure: Literal["skip", "stop"] = "skip",
        requests_at_once: int = 8,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"teacher_url: {url!r} is no address of a server; give one such as http://localhost:8000"
            )
        self.url, self.model = url.rstrip("/").removesuffix("/v1"), model
        self.top_k, self.timeout, self.retries = top_k, timeout, retries
        self.on_failure, self.requests_at_once = on_failure, requests_at_once
        self.unserved = 0
        """Completions of the last batch that got no answer."""
        self._warned = False

    def weights(self, model: nn.Module) -> AbstractContextManager[None]:
        raise ValueError("teacher_url: the teacher's weights are on its server; this method needs them here")

    def check_use(self, tokenizer: Any, temperature: float) -> None:
        """Raise ``ValueError`` for another temperature than 1, no server, or a tokenizer that reads other ids."""
        if temperature != 1.0:
            raise ValueError(
                f"temperature: {temperature}, and a server scores prompts at temperature 1 (teacher_url); sample "
                "at 1, or take a teacher of your own weights"
            )
        size, added = len(tokenizer), [*tokenizer.added_tokens_decoder]
        ids = [
            n for all_ids in (range(size), added) for n in all_ids[:: max(1, len(all_ids) // PROBED_TOKENS)]
        ]
        text = tokenizer.decode(ids)
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        try:
            asked = {"model": self._served_model(), "prompt": text, "add_special_tokens": False}
            theirs = self._answer("/tokenize", asked)["tokens"]
            self._answer("/v1/completions", self._question([size - 1]))
        except _NO_ANSWER as error:
            raise ValueError(
                f"teacher_url: {self.url} does not answer as a vLLM server does ({_reason(error)}); start one "
                "with vllm serve MODEL, and wait until its /health answers"
            ) from None
        if theirs != own:
            raise ValueError(
                f"teacher_url: the model {self.model} at {self.url} has another tokenizer than the student; it "
                "reads the student's token ids, so serve a model with the same tokenizer"
            )

    def scores(
        self, prompts: Prompts, completions: Completions, scored_B: Bool[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T"], Int[Tensor, "B T K"], Float[Tensor, "B T K"]]:
        """The log-prob of each token, and ids and log-probs of the likeliest ones; id -1 fills up.

        NaN in a row that got no answer, 0 in one that is not scored. Raises ``ConnectionError`` for the first
        failure with ``on_failure="stop"``.
        """
        ids = completions.ids if completions.target_ids is None else completions.target_ids
        logprob = torch.zeros(ids.shape, dtype=torch.float32)
        top_id = torch.full((*ids.shape, self.top_k + 1), -1)
        top = torch.zeros(top_id.shape, dtype=torch.float32)
        rows = int_list(scored_B.nonzero()[:, 0])
        shown = [int_list(prompts.ids_BP[b][prompts.attention_BP[b].bool()]) for b in rows]
        sampled = [int_list(completions.ids[b][completions.attention[b].bool()]) for b in rows]
        down = list[BaseException]()

        def ask(b: int, prompt: list[int], completion: list[int]) -> BaseException | None:
            if down:
                return down[0]
            try:
                answer = self._answer("/v1/completions", self._question([*prompt, *completion]))
                entries = cast(list[Any], answer["choices"][0]["prompt_logprobs"])[len(prompt) :]
                targets = int_list(ids[b][: len(completion)])
                for t, (token, entry) in enumerate(zip(targets, entries, strict=True)):
                    found = {int(name): _number(one["logprob"]) for name, one in entry.items()}
                    logprob[b, t] = found.get(token, math.nan)
                    names = [*found][: self.top_k + 1]
                    top_id[b, t, : len(names)] = torch.tensor(names)
                    top[b, t, : len(names)] = torch.tensor([found[name] for name in names])
            except _NO_ANSWER as error:
                if isinstance(error, URLError | TimeoutError) and not isinstance(error, HTTPError):
                    down.append(error)  # the others would only wait for it
                return error
            return None

        with ThreadPoolExecutor(self.requests_at_once) as pool:
            errors = [*pool.map(ask, rows, shown, sampled)]
        failed = [error for error in errors if error is not None]
        for b, error in zip(rows, errors, strict=True):
            if error is not None:
                logprob[b] = math.nan
        self.unserved = len(failed)
        if failed:
            self._report(failed[0], len(rows))
        device = ids.device
        return logprob.to(device), top_id.to(device), top.to(device)

    def _report(self, error: BaseException, asked: int) -> None:
        said = f"teacher_url: {self.url} answered for {asked - self.unserved} of {asked} completions"
        if self.on_failure == "stop":
            raise ConnectionError(f"{said} ({_reason(error)}); start it again and resume") from None
        if not self._warned:
            logger.warning(
                "%s (%s); the others keep their GRPO advantage, counted in gear/fallback/non_finite",
                said,
                _reason(error),
            )
        self._warned = True

    def _question(self, ids: Sequence[int]) -> dict[str, Any]:
        asked = {"model": self._served_model(), "prompt": [[*ids]], "max_tokens": 1, "temperature": 1.0}
        return asked | {"prompt_logprobs": self.top_k}

    def _served_model(self) -> str:
        if self.model is None:
            self.model = str(self._answer("/v1/models")["data"][0]["id"])
        return self.model

    def _answer(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The server's answer, asked for again after an error that may pass."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in count():
            try:
                request = Request(self.url + path, data, {"Content-Type": "application/json"})
                with urlopen(request, timeout=self.timeout) as response:
                    return json.load(response)
            except (OSError, HTTPException) as error:
                refused = isinstance(error, HTTPError) and error.code in REFUSED
                if refused or attempt == self.retries:
                    raise
                time.sleep(min(0.5 * 2**attempt, 8.0))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _reason(error: BaseException) -> str:
    """What went wrong, without a word of what was asked."""
    if isinstance(error, HTTPError):
        long = ": a prompt with its completion may be longer than its --max-model-len"
        return f"HTTP {error.code}{long if error.code == 400 else ''}"
    if isinstance(error, URLError):
        return str(error.reason)
    return "it is no answer of vLLM's" if not isinstance(error, OSError) else str(error or "timed out")
