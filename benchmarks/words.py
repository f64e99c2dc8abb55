"""``benchmarks words``: does the credit of a pretrained model lie on its own mistakes?

Samples completions of word problems or of reasoning-gym's sums, keeps those that are wrong in the wording of the
worked solution, marks the first wrong number, and scores them twice: the teacher is shown the worked solution, or
the answer alone. A control shows the teacher a solution with one false digit.
"""

import json
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import Cells
from gear_rl.credit.teacher_prompts import render
from gear_rl.data.rewards.catalogue import Reward, load_reward
from gear_rl.data.rows import load_rows
from gear_rl.engines.models import load_causal_lm, load_tokenizer
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.lab.localisation import mean_estimate
from gear_rl.lab.marked import marked_material
from gear_rl.lab.run_plan import digest_of_inputs
from gear_rl.lab.sampling import sample
from gear_rl.lab.scoring import score
from gear_rl.lab.teacher_scores import sampling_config, teacher_config
from gear_rl.runs.machine import machine_defaults
from gear_rl.runs.trl_run import make_trainer
from gear_rl.user_objects import code_of

CONTEXTS = {"solution": "worked solution", "answer": "answer alone"}
"""Column that the teacher is shown, and its name."""
USES = {"train": "choosing", "test": "reporting"}
"""Part of the problems, and what it is for."""
BATCH, SAMPLES = 32, 2
"""Completions at a time, and of each prompt."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One run of the experiment.

    >>> data = "benchmarks.word_problems:bare"
    >>> Words(model="runs/warm", data=data, split="test", n=200, runs=Path("runs/words")).file.name
    'wrong-benchmarks.word_problems-bare-test-200.json'
    """

    model: str
    data: str
    """Rows with a worked ``solution`` and an ``answer``: word problems or reasoning-gym's."""
    split: str
    n: int
    """Wrong completions, of as many problems."""
    length: int = 48
    """Tokens of a completion, at most."""
    runs: Path
    """Where the completions are kept; they are sampled only where they are not there."""
    say: Say = lambda text: None

    @property
    def file(self) -> Path:
        """The completions."""
        return self.runs / f"wrong-{re.sub('[/:]', '-', self.data)}-{self.split}-{self.n}.json"


def words(task: Words, methods: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The result of ``score`` on the wrong completions, with each of ``CONTEXTS``.

    ``InputError`` where too few completions are wrong, and for kept ones of another length, model or data.
    """
    rows = [dict(row) for row in load_rows(task.data, split=task.split, chat=True, limit=16 * task.n)]
    digest = digest_of_inputs(code_of(task.data), rows, [task.model])
    inputs = {"model": task.model, "length": task.length, "inputs_sha256": digest}
    if task.file.is_file():
        found: dict[str, Any] = json.loads(task.file.read_text(encoding="utf-8"))
        if not inputs.items() <= found.items():
            why = "has completions of another length, model or data"
            raise InputError(f"--runs: {task.file} {why}; give another folder")
    else:
        found = wrong_completions(task, rows) | inputs
        replace_file(task.file, json.dumps(found).encode())
    document = {
        "what": "absolute credit on sampled wrong completions; the fault is the first digit that differs from "
        "the worked solution",
        "model": Path(task.model).name,
        "data": task.data,
        "use": USES[task.split],
        **{name: found[name] for name in ("sampled", "right", "other_words", "marked")},
        "falsified": falsified_context(task),
    }
    return document | {
        "contexts": {column: _scored(task, methods, found["rows"], column) for column in CONTEXTS}
    }


def wrong_completions(task: Words, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One wrong completion of each of ``n`` of the rows as lines for ``gear score --data``, and what was sampled.

    Right is what the data's own reward says; what is wrong in other words than the solution's cannot be marked.
    """
    counts = dict.fromkeys(("sampled", "right", "other_words", "marked"), 0)
    found: dict[str, Any] = {"model": task.model, **counts, "rows": []}
    settings = ["--max_completion_length", str(task.length), "--per_device_train_batch_size", str(BATCH)]
    family, colon, _ = re.split("([/:])", task.data, maxsplit=1)
    name = f"{family}:reward" if colon == ":" else family  # a module has its own
    config, reward = teacher_config(None, task.model, task.data, name, settings), load_reward(name)
    with tempfile.TemporaryDirectory(prefix="gear-words-") as folder:
        trainer = make_trainer(sampling_config(config, SAMPLES, folder))
        for first in range(0, len(rows), BATCH // SAMPLES):
            some = rows[first : first + BATCH // SAMPLES]
            batch = sample(trainer, some, seed=first)
            texts = [str(message[-1]["content"]).strip() for message in batch.messages]
            _keep_wrong(found, some, texts, reward)
            task.say(f"sampling: {found['sampled']}, of these {len(found['rows'])} of {task.n} wrong")
            if len(found["rows"]) >= task.n:
                return found | {"rows": found["rows"][: task.n]}
    wrong = f"{len(found['rows'])} of {task.n}"
    raise InputError(f"--n: {wrong} wrong completions in {found['sampled']}; give fewer")


def _keep_wrong(
    found: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    reward: Reward,
) -> None:
    """The first marked one of each row: two of one problem would not be independent."""
    for place, row in enumerate(rows):
        mine: list[tuple[str, tuple[int, int]]] = []
        own = texts[SAMPLES * place : SAMPLES * (place + 1)]
        scores = reward(completions=own, **{name: [value] * len(own) for name, value in row.items()})
        for text, got in zip(own, scores, strict=True):
            found["sampled"] += 1
            span = first_wrong_number(text, row["solution"])
            if got == 1.0:
                found["right"] += 1
            elif span is None:
                found["other_words"] += 1
            else:
                found["marked"] += 1
                mine.append((text, span))
        if mine:
            text, (start, end) = mine[0]
            line = {name: row[name] for name in ("prompt", *CONTEXTS)}
            line |= {"completion": text, "correct": row["solution"], "fault": {"start": start, "end": end}}
            found["rows"].append(line | {"decisions": [{"start": a, "end": z} for a, z in results(text)]})


def first_wrong_number(completion: str, solution: str) -> tuple[int, int] | None:
    """The character where the first number leaves the solution's; None if no number does, or words differ.

    Of a number that ends too early, it is the character in place of the next digit.

    >>> first_wrong_number("7 + 8 = 16. The answer is 16.", "7 + 8 = 15. The answer is 15.")
    (9, 10)
    >>> first_wrong_number("It is 15.", "7 + 8 = 15. The answer is 15.")
    """
    ours, right = completion.strip(), solution.strip()
    if re.sub(r"\d+", "#", ours) != re.sub(r"\d+", "#", right):
        return None
    place = next((i for i, (a, b) in enumerate(zip_longest(ours, right)) if a != b), len(ours))
    begin = len(completion) - len(completion.lstrip()) + place
    return (begin, begin + 1) if place < len(ours) else None


def results(completion: str) -> list[tuple[int, int]]:
    """The characters of the numbers after ``=``, which the model has to find.

    >>> results("7 + 8 = 16. The answer is 16.")
    [(8, 10)]
    """
    return [match.span(1) for match in re.finditer(r"=\s*(\d+)", completion)]


def falsified(solution: str, seed: int) -> str:
    """The solution with one digit of one result changed; what is calculated from that result stays as it was.

    >>> falsified("7 + 8 = 15. 15 - 4 = 11. The answer is 11.", seed=0)
    '7 + 8 = 15. 15 - 4 = 10. The answer is 11.'
    """
    draw = random.Random(seed)
    start, end = draw.choice(results(solution))
    place = draw.randrange(start, end)
    others = "0123456789"[place == start :].replace(solution[place], "")  # no number begins with 0
    return solution[:place] + draw.choice(others) + solution[place + 1 :]


@torch.inference_mode()
def falsified_context(task: Words) -> dict[str, Any]:
    """Whether a teacher that is shown a ``falsified`` solution follows it, on the first ``n`` problems.

    The completion is the right solution up to the changed digit. Probabilities are those of the next token: the
    false and the right one with the falsified solution in the prompt, and the right one without a context.
    """
    options = machine_defaults(pretrained=True, full=False).get("model_init_kwargs", {})
    model, tokenizer = load_causal_lm(task.model, options).eval(), load_tokenizer(task.model)

    def next_token(prompt: Any, written: list[int]) -> torch.Tensor:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False) + written
        return model(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float().softmax(-1)

    found: dict[str, list[float]] = {"follows": [], "p_false": [], "p_right": [], "p_right_unaided": []}
    for seed, row in enumerate(load_rows(task.data, split=task.split, chat=True, limit=task.n)):
        shown = falsified(row["solution"], seed)
        texts = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (row["solution"], shown))
        pairs = list(zip(*texts, strict=False))
        place = next(t for t, (right, false) in enumerate(pairs) if right != false)
        right, false = pairs[place]
        written = [token for token, _ in pairs[:place]]
        teacher = next_token(render(row["prompt"], shown), written)
        found["follows"].append(float(teacher.argmax() == false))
        found["p_false"].append(float(teacher[false]))
        found["p_right"].append(float(teacher[right]))
        found["p_right_unaided"].append(float(next_token(row["prompt"], written)[right]))
        task.say(f"falsified context: {seed + 1} of {task.n}")
    document: dict[str, Any] = {"n": len(found["follows"])}
    for name, values in found.items():
        document |= mean_estimate(name, values)
    return document


def _scored(
    task: Words, methods: Mapping[str, dict[str, Any]], rows: Sequence[dict[str, Any]], column: str
) -> dict[str, Any]:
    hidden = [name for name in CONTEXTS if name != column]
    lines = [{name: value for name, value in row.items() if name not in hidden} for row in rows]

    def progress(name: str, done: float, total: int) -> None:
        task.say(f"{CONTEXTS[column]}, {name}: {done:g} of {total}")

    with tempfile.TemporaryDirectory(prefix="gear-words-") as folder:
        data = Path(folder) / "wrong.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        chat = ["--privileged_column", column, "--chat", "true"]
        material = marked_material(data, task.model, words=chat, say=task.say)
        document = score(methods, material, progress=progress)
    return {name: document[name] for name in ("n", "methods", "set_aside")}


def words_cells(result: Mapping[str, Any]) -> Cells:
    """Both AUCs with their intervals, for each context."""
    columns = [f"{CONTEXTS[c]}: {what}" for c in CONTEXTS for what in ("all tokens", "results")]
    contexts = [result["contexts"][column]["methods"] for column in CONTEXTS]
    rows = [
        (name, *(_estimate(methods[name], key) for methods in contexts for key in ("auc", "auc_choices")))
        for name in contexts[0]
    ]
    counts, false = [result["contexts"][c] for c in CONTEXTS], result["falsified"]
    among = max(row["with_choices"] for row in counts[0]["methods"].values())
    below = [
        f"{result['sampled']} completions sampled: {result['right']} right, {result['marked']} wrong and marked, "
        f"{result['other_words']} in other words. {result['use'].capitalize()} only. Among results: {among} of "
        f"{counts[0]['n']} completions, of which the first wrong number is one.",
        f"Shown a solution with one false digit, the teacher follows it in {_estimate(false, 'follows')} of "
        f"{false['n']} problems; p of the false digit {_estimate(false, 'p_false')}, of the right one "
        f"{_estimate(false, 'p_right')}, and without a context {_estimate(false, 'p_right_unaided')}.",
    ]
    return Cells(f"AUC on {result['data']}, {result['model']}", ("", *columns), rows, below)


def _estimate(row: Mapping[str, Any], key: str) -> str:
    mean, ends = row[key], row[f"{key}_interval"]
    if mean is None:
        return "-"
    return f"{mean:.3f}" + ("" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")
