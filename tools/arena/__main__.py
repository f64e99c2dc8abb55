"""Make a checkpoint of the arena again, or measure the shipped one, from a clone of the repository.

python -m tools.arena chain                  # train it from nothing: a quarter of an hour of one core or less
python -m tools.arena chain --check          # success alone and with references, and what it believes
"""

import argparse
import json
from pathlib import Path

from gear_rl.arena.task import get_task
from tools.arena import chain, check, codebook, errands
from tools.arena.recipe import build

RECIPES = {"chain": chain.RECIPE, "codebook": codebook.RECIPE, "errands": errands.RECIPE}


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tools.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--seed", type=int, default=0, help="of the tokenizer, the model and its training")
    parser.add_argument("--out", type=Path, help="the checkpoint's folder; by default the one in the package")
    parser.add_argument("--check", action="store_true", help="measure the checkpoint in --out instead")
    parser.add_argument("--tier", action="append", help="with --check: only this tier (may be repeated)")
    parser.add_argument("--n", type=int, default=256, help="with --check: held-out problems of each tier")
    options = parser.parse_args()
    task = get_task(options.task)
    out = options.out or task.checkpoint
    if options.check:
        print(json.dumps(check.check(task, out, options.tier or [*task.budgets], options.n), indent=2))
    else:
        build(RECIPES[task.name], out, options.seed)
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
