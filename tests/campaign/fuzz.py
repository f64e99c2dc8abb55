"""Seeded fuzzing of everything that a user writes: rows, configurations, overrides, records.

An input either arrives as it was written or is refused in words. What is counted against us: an exception that is
no refusal, a value that silently became another, and a clean input that was refused. Run it as a program
(``python tests/campaign/fuzz.py --inputs 100000``); ``fuzz`` returns the table as a dict.
"""

import argparse
import csv
import io
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from gear_rl.data.prompts import prompt_fault
from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.records import Record, read_records
from gear_rl.runs.config import load_config
from gear_rl.view.packed import laid_out, pack
from gear_rl.view.terminal import rollout_panel

_PLAIN = (
    "007 -0 1.10 1e5 1E-4 .5 5. 0x1F 0o17 0b1 010 1_000 +1 1:30 12:30:45 190:20:30.15 2026-01-02 "
    "2026-01-02T10:00:00Z NA nan NaN .nan -.inf inf Infinity -Infinity null Null ~ true True TRUE false "
    "yes no on off y n None 1e400 1e-400 9223372036854775807 9223372036854775808 "
    "123456789012345678901234567890 3.14159265358979323846 = << - -- --- ... ? : , [ ] { } [] {} [1, "
    "{a: &a *a !x !!int %x @x `x` | > # #x 'a' ''' \"a\" \" \\ \\ud800 \\u0041 {prompt} {a:b} a:b a,b é "
    "日本 \u202e \u200d \u0000x \x1b[2J \ufeff 😀 \x85 \u2028"
)
_SPACED = ["", " ", " 4 ", "a: b", "Q: {prompt}", "x # y", "a\nb", "a\r\nb", "\t", "'", "a" * 300, "9" * 5000]
WORDS = [*_PLAIN.split(" "), *_SPACED]
"""What readers like to take for something else."""
KEYS = ["prompt", "answer", "x", "meta", "a b", "", "é", "prompt ", "Answer", "a.b"]
STRANGERS = [bytes([code]) for code in b'"\n\r\x00\xff{],\\:'] + [b"\xed\xa0\x80", b"\xef\xbb\xbf"]
"""Bytes that mean something to a reader, and two that are no text."""
TYPES: dict[str, Any] = {
    "learning_rate": float,
    "max_steps": int,
    "bf16": bool,
    "run_name": str | None,
    "teacher_prompt_template": str | None,
    "reward_weights": list[float] | None,
}
"""Settings of a trainer, one of each kind."""
BASE = {"model": "m", "dataset": "d", "reward": "r"}


@dataclass
class Tally:
    """What became of the inputs of one kind."""

    inputs: int = 0
    kept: int = 0
    refused: int = 0
    tracebacks: int = 0
    silent_changes: int = 0
    wrongly_refused: int = 0
    examples: list[str] = field(default_factory=list)

    def blame(self, what: str, example: object) -> None:
        """Count a fault and keep the first few."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < 10:
            self.examples.append(f"{what}: {example!s:.600}")


def fuzz(
    inputs: int = 100_000, seed: int = 0, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Fuzz at least so many inputs, the same ones for the same seed; the table as JSON-ready numbers."""
    kinds: dict[str, tuple[Callable[[random.Random, Path, Tally], None], float]] = {
        "jsonl": (_jsonl, 0.4),
        "json": (_json, 0.1),
        "csv": (_csv, 0.2),
        "configuration": (_configuration, 0.06),
        "overrides": (_overrides, 0.12),
        "records": (_records, 0.12),
    }
    begin = time.monotonic()
    logging.getLogger("gear_rl").setLevel(logging.ERROR)
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as folder:
        for name, (attack, share) in kinds.items():
            tally, rng, said = Tally(), random.Random(f"{seed} {name}"), 0
            while tally.inputs < inputs * share:
                attack(rng, Path(folder), tally)
                if tally.inputs >= said:
                    progress(f"{name}: {tally.inputs} inputs, {time.monotonic() - begin:.0f} s")
                    said = tally.inputs + max(1000, int(inputs * share) // 5)
            table[name] = vars(tally)
    whole = Counter[str]()
    for row in table.values():
        whole.update({key: value for key, value in row.items() if isinstance(value, int)})
    return {"seed": seed, "seconds": round(time.monotonic() - begin, 1), "total": dict(whole), "kinds": table}


# --- rows ------------------------------------------------------------------------------------------------------


def _jsonl(rng: random.Random, folder: Path, tally: Tally) -> None:
    """A file of some lines, many of them damaged; those that are kept must be what Python reads in them."""
    clean, template = rng.random() < 0.3, _row(rng)
    lines = [_line(rng, template, nasty=not clean) for _ in range(rng.randint(1, 40))]
    if not clean:
        lines = [_damaged(rng, text) if rng.random() < 0.2 else text for text in lines]
    content = b"\n".join(lines)
    file, aside = folder / "rows.jsonl", folder / "aside.jsonl"
    file.write_bytes(content)
    aside.unlink(missing_ok=True)
    written = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    numbered = [(n, line) for n, line in enumerate(written, 1) if line.strip(b" \t\r")]
    tally.inputs += max(len(numbered), 1)
    stream = rng.random() < 0.2  # of which the first row names the columns
    loaded = _load(file, aside, tally, stream)
    if loaded is None:
        usable = (
            clean
            and not stream
            and any(prompt_fault(json.loads(line).get("prompt")) is None for line in lines)
        )
        if usable and "mixed" not in template.values():
            tally.blame("wrongly_refused", content)
        return
    entries = map(json.loads, filter(None, aside.read_text("utf-8").split("\n") if aside.exists() else ()))
    left_out = {entry["line"] for entry in entries if "line" in entry}
    _compare([_oracle(line) for n, line in numbered if n not in left_out], loaded, content, tally)
    tally.refused += len(left_out)


def _json(rng: random.Random, folder: Path, tally: Tally) -> None:
    template = _row(rng)
    rows = [_filled(rng, template) for _ in range(rng.randint(1, 30))]
    content = json.dumps(rows, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5)
    raw = content.encode("utf-8", "surrogatepass")
    damaged = rng.random() < 0.3
    file = folder / "rows.json"
    file.write_bytes(_damaged(rng, raw) if damaged else raw)
    tally.inputs += len(rows)
    loaded = _load(file, folder / "aside.jsonl", tally, stream=False)
    if loaded is not None and not damaged:
        _compare([row for row in rows if prompt_fault(row.get("prompt")) is None], loaded, content, tally)
    elif loaded is not None:
        tally.kept += len(loaded)


def _csv(rng: random.Random, folder: Path, tally: Tally) -> None:
    """A clean file must come back cell by cell; a damaged one must not raise."""
    names = ["prompt", *rng.sample(["answer", "x", "a b", "é"], rng.randint(0, 3))]
    cells = [word for word in WORDS if "\x00" not in word]
    rows = [[rng.choice(["q", *cells]) for _ in names] for _ in range(rng.randint(1, 40))]
    out = io.StringIO()
    writer = csv.writer(out, quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)), lineterminator="\r\n")
    writer.writerows([names, *rows])
    raw, damaged = out.getvalue().encode("utf-8", "surrogatepass"), rng.random() < 0.4
    file = folder / "rows.csv"
    file.write_bytes(_damaged(rng, raw) if damaged else raw)
    tally.inputs += len(rows)
    loaded = _load(file, folder / "aside.jsonl", tally, rng.random() < 0.2)
    if loaded is not None and not damaged:
        # A line of one empty cell is a blank line.
        expected = [dict(zip(names, row, strict=True)) for row in rows if row != [""]]
        _compare([row for row in expected if row["prompt"].strip()], loaded, raw, tally)
    elif loaded is not None:
        tally.kept += len(loaded)


def _load(file: Path, aside: Path, tally: Tally, stream: bool) -> list[dict[str, Any]] | None:
    try:
        if stream:
            list(load_rows(str(file), chat=False, stream=True))
        return [dict(row) for row in load_rows(str(file), chat=False, quarantine=aside)]
    except InputError:
        tally.refused += 1
    except Exception as error:
        tally.blame("tracebacks", f"{type(error).__name__}: {error!s:.200} from {file.read_bytes()!r:.300}")
    return None


def _compare(expected: list[Any], loaded: list[dict[str, Any]], content: object, tally: Tally) -> None:
    """Every value and its type; a key that a row lacks is null."""
    if len(expected) != len(loaded):
        tally.blame("silent_changes", f"{len(expected)} rows became {len(loaded)}: {content!r:.400}")
        return
    tally.kept += len(loaded)
    for wanted, found in zip(expected, loaded, strict=True):
        if _canonical(wanted) != _canonical(found):
            tally.blame("silent_changes", f"{wanted!r:.200} became {found!r:.200}")


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(inner) for name, inner in value.items() if inner is not None} or None
    return (
        [_canonical(inner) for inner in value]
        if isinstance(value, list)
        else (type(value).__name__, repr(value))
    )


def _oracle(line: bytes) -> Any:
    """What Python's own reader makes of a line that was kept; a word where it should not have been."""

    def pairs(found: list[tuple[str, Any]]) -> Any:
        return dict(found) if len(dict(found)) == len(found) else "a key that stands twice"

    try:
        return json.loads(line.decode("utf-8-sig"), object_pairs_hook=pairs, parse_constant=str)
    except (ValueError, RecursionError) as error:
        return f"kept though {error}"


def _row(rng: random.Random) -> dict[str, str]:
    """The kind of each column of a file."""
    kinds = ("text", "whole", "fraction", "truth", "list", "object", "null") * 3 + ("mixed",)
    columns = {key: rng.choice(kinds) for key in rng.sample(KEYS[1:], rng.randint(0, 4))}
    return {"prompt": rng.choice(("prompt", "messages")), **columns}


def _filled(rng: random.Random, template: dict[str, str]) -> dict[str, Any]:
    row = {key: _value(rng, kind) for key, kind in template.items()}
    return {key: value for key, value in row.items() if rng.random() < 0.95}


def _value(rng: random.Random, kind: str) -> Any:
    if kind == "prompt":
        return rng.choice(["q", "1 + 1", rng.choice(WORDS)])
    if kind == "messages":
        return [{"role": "user", "content": rng.choice(WORDS)} for _ in range(rng.randint(0, 2))]
    if kind == "mixed":
        kind = rng.choice(["text"] * 30 + ["whole", "truth"])
    made: dict[str, Callable[[], Any]] = {
        "text": lambda: rng.choice(WORDS),
        "whole": lambda: rng.choice(
            [0, 1, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63), rng.randint(-(10**6), 10**6)]
        ),
        "fraction": lambda: rng.choice([0.5, -0.0, 1e300, 5e-324, 2.0, rng.random(), 1e16]),
        "truth": lambda: rng.random() < 0.5,
        "list": lambda: [rng.choice(WORDS) for _ in range(rng.randint(0, 3))],
        "object": lambda: {key: rng.choice(WORDS) for key in rng.sample(KEYS[:4], rng.randint(0, 3))},
        "null": lambda: None,
    }
    return made[kind]()


def _line(rng: random.Random, template: dict[str, str], nasty: bool) -> bytes:
    text = json.dumps(_filled(rng, template), ensure_ascii=rng.random() < 0.5)
    if nasty and rng.random() < 0.05:
        wrong = (
            "NaN",
            "-Infinity",
            "1e999",
            "1" * 25,
            '"\\ud800"',
            "[" * 3000,
            "-0",
            "1.10",
            '{"a":1,"a":2}',
        )
        text = text[:-1] + (", " if len(text) > 2 else "") + f'"y": {rng.choice(wrong)}}}'
    return text.encode("utf-8", "surrogatepass")


def _damaged(rng: random.Random, raw: bytes) -> bytes:
    """Cut, flipped, doubled, or with a byte that does not belong there."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(raw) + 1)
        stranger = rng.choice(STRANGERS)
        raw = rng.choice(
            [
                raw[:place],
                raw[place:],
                raw[:place] + stranger + raw[place:],
                raw[:place] + stranger + raw[place + 1 :],
                raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :],
                raw + raw[place:],
            ]
        )
    return raw


# --- configurations and overrides -------------------------------------------------------------------------------


def _configuration(rng: random.Random, folder: Path, tally: Tally) -> None:
    """Lines of ``key: word``; what is accepted must be what stands there."""
    words = {
        key: " ".join(rng.choice(WORDS).splitlines()) for key in rng.sample(list(TYPES), rng.randint(1, 3))
    }
    text = "".join(f"{key}: {word}\n" for key, word in (BASE | words).items())
    raw, damaged = text.encode("utf-8", "surrogatepass"), rng.random() < 0.3
    file = folder / "run.yaml"
    file.write_bytes(_damaged(rng, raw) if damaged else raw)
    tally.inputs += 1
    found = _settings(lambda: load_config(file, types=TYPES), tally, raw)
    for key, word in (words if found is not None and not damaged else {}).items():
        _judge(key, word.strip(), found, tally)


def _overrides(rng: random.Random, folder: Path, tally: Tally) -> None:
    words = {key: rng.choice(WORDS) for key in rng.sample(list(TYPES), rng.randint(1, 3))}
    given = [f"--{key}={word}" for key, word in (BASE | words).items()]
    if rng.random() < 0.1:
        given.insert(rng.randrange(len(given)), rng.choice(WORDS))
        words = {}
    tally.inputs += 1
    found = _settings(lambda: load_config(None, given, types=TYPES), tally, given)
    for key, word in (words if found is not None else {}).items():
        if TYPES[key] == str | None and found.get(key) != word and not _is_spelt(word, found.get(key)):
            tally.blame("silent_changes", f"--{key}={word!r} became {found.get(key)!r}")
        _judge(key, word, found, tally)


def _settings(load: Callable[[], Any], tally: Tally, given: object) -> dict[str, Any] | None:
    try:
        found = load().trainer
    except InputError:
        tally.refused += 1
        return None
    except Exception as error:
        tally.blame("tracebacks", f"{type(error).__name__}: {error!s:.200} from {given!r:.300}")
        return None
    tally.kept += 1
    return found


def _judge(key: str, word: str, found: dict[str, Any], tally: Tally) -> None:
    """Whether an accepted value is the word: the same number, or its truth, or its text."""
    value, right = found.get(key), True
    if isinstance(value, bool):
        spelt = ("true", "false", "yes", "no", "on", "off", "y", "n", "t", "f")
        right = word.strip("'\" ").lower() in spelt or _is_number(word, int(value))
    elif isinstance(value, int | float):
        right = _is_number(word, value)
    elif isinstance(value, str):
        right = (
            value == word
            or _is_spelt(word, value)
            or word.lstrip().startswith(("&", "!", "|", ">", '"', "'"))
        )
        right = right or ("#" in word and word.startswith(value))  # a comment of YAML
    if not right:
        tally.blame("silent_changes", f"{key}: {word!r} became {value!r}")


def _is_number(word: str, value: float) -> bool:
    word = word.partition(" #")[0].strip("'\" \t").replace("_", "")
    if word.lower().lstrip("+-").startswith((".inf", "inf")):
        return value in (float("inf"), float("-inf"))
    try:
        exact = Fraction(int(word, 16)) if word.startswith("0x") else Fraction(word)
    except ValueError:
        return word.endswith(".") and Fraction(word[:-1]) == value
    padded = word.isdigit() and word.startswith("0") and len(word) > 1  # as 010, which means 8 to some
    try:
        return not padded and (exact == value or float(exact) == value)
    except OverflowError:
        return False


def _is_spelt(word: str, value: object) -> bool:
    """null and quotes are written around nothing and around a text."""
    return (word in ("null", "Null", "NULL", "~", "") and value is None) or (
        isinstance(value, str) and word.strip()[:1] in ("'", '"') and value in word
    )


# --- records ----------------------------------------------------------------------------------------------------


def _records(rng: random.Random, folder: Path, tally: Tally) -> None:
    """A record with fields of other kinds, or damaged: refused, or shown with nothing that a terminal obeys."""
    file = folder / "records.jsonl"
    count = rng.randint(1, 3)
    file.write_bytes(b"\n".join(_record(rng) for _ in range(count)))
    tally.inputs += count
    out = io.StringIO()
    try:
        for record in read_records(file):
            Console(file=out, width=80).print(rollout_panel(record))
            pack(laid_out(record))
            tally.kept += 1
    except (
        ValueError,
        TypeError,
    ) as error:  # what `gear view` turns into a line; a page names the record too
        if isinstance(error, TypeError):
            tally.blame("tracebacks", f"{error} from {file.read_bytes()!r:.300}")
        tally.refused += 1
    except Exception as error:
        tally.blame("tracebacks", f"{type(error).__name__}: {error} from {file.read_bytes()!r:.300}")
    raw = {
        c for c in out.getvalue() if (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"
    }
    if raw:
        tally.blame("silent_changes", f"the terminal was sent {raw!r} from {file.read_bytes()!r:.300}")


def _record(rng: random.Random) -> bytes:
    length = rng.randint(0, 4)
    segment = [rng.randint(-1, 3) for _ in range(length)]
    record = Record(
        step=rng.randint(0, 9), group=0, method=rng.choice(WORDS), prompt=rng.choice(WORDS),
        tokens=[rng.choice(WORDS) for _ in range(length)], ids=list(range(length)),
        mask=[rng.randint(0, 1) for _ in range(length)], turn=[0] * length, segment=segment, reward=1.0,
        advantage=rng.choice([0.0, 0.5, -1.0]), credit=[rng.random() for _ in range(length)],
        weight=[1.0] * length,
    )  # fmt: skip
    row: dict[str, Any] = json.loads(record.to_json())
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        name = rng.choice(list(row))
        row[name] = rng.choice(
            [
                None,
                7,
                -1,
                0.5,
                True,
                "x",
                rng.choice(WORDS),
                [],
                {},
                [None],
                ["\x1b[2J"],
                [7] * length,
                [10**30],
            ]
        )
    raw = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return _damaged(rng, raw) if rng.random() < 0.2 else raw


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """The table for a terminal."""
    columns = ("inputs", "kept", "refused", "tracebacks", "silent_changes", "wrongly_refused")
    yield f"{'':14}" + "".join(f"{name:>17}" for name in columns)
    for name, row in [*found["kinds"].items(), ("total", found["total"])]:
        yield f"{name:14}" + "".join(f"{row[column]:>17,}" for column in columns)
    for name, row in found["kinds"].items():
        yield from (f"{name}: {example}" for example in row["examples"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fuzz what users write.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    asked = parser.parse_args()
    result = fuzz(asked.inputs, asked.seed, progress=lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(lines_of(result)))
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["total"]["tracebacks"] or result["total"]["silent_changes"]))
