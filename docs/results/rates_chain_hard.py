"""GRPO at two learning rates and GEAR at one, on the chain's hard tier: is GEAR's lead more than a larger step?

    OMP_NUM_THREADS=1 python docs/results/rates_chain_hard.py docs/results/rates_chain_hard.json

Two seeds, each trained model sampled six times on 512 held-out problems; 15 to 40 core-minutes. A run that is in
the file already is not repeated.
"""

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from gear_rl.arena import chain
from gear_rl.arena.evaluate import accuracy
from gear_rl.cli.arena_runs import arena_config
from gear_rl.cli.train import make_trainer, quiet_libraries, use_few_threads

RUNS = [("uniform", 3e-5), ("uniform", 3.3e-5), ("gear", 3e-5)]
SEEDS, STEPS, SAMPLINGS, PROBLEMS = (0, 1), 34, 6, 512


def trained(credit: str, rate: float, seed: int) -> list[float]:
    """The accuracy of each sampling after training."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            arena_config(
                "chain", "hard", credit, seed=seed, steps=STEPS, output_dir=folder, learning_rate=rate
            )
        )
        trainer.train()
        rows = chain.rows("hard", num=PROBLEMS, first_seed=chain.HELD_OUT.start)
        samplings = [
            accuracy(trainer.model, trainer.processing_class, rows, seed=1000 * seed + sampling)
            for sampling in range(SAMPLINGS)
        ]
    return [sum(one) / len(one) for one in samplings]


def main(file: Path) -> None:
    quiet_libraries(Console(quiet=True))
    use_few_threads()
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for seed in SEEDS:
        for credit, rate in RUNS:
            if any((row["credit"], row["rate"], row["seed"]) == (credit, rate, seed) for row in found):
                continue
            samplings = trained(credit, rate, seed)
            mean = round(sum(samplings) / len(samplings), 4)
            found.append(
                {"credit": credit, "rate": rate, "seed": seed, "accuracy": mean, "samplings": samplings}
            )
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
