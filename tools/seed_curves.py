"""Trains a small GPT with several seeds, and changed ones, for the tests of `measure/curves.py`.

    .venvs/dev/bin/python tools/seed_curves.py

It writes tools/data/loss_curves/seeds.json and prints each change with its answer; some minutes on two cores.
A seed changes the initial weights. The tokens stay the same; another order of them would add to the spread.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from layouts import MODELS, ROOT, Variant, small_job, train
from levelfield.measure.curves import compare_tails

STEPS, SEEDS, MARGIN = 200, 4, 0.01
ONE = Variant("1 process", micro_batch=8)
OUTPUT = ROOT / "tools" / "data" / "loss_curves" / "seeds.json"
SCHEDULE = {"style": "cosine", "peak_lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 10, "decay_steps": STEPS}
OPTIMIZER = {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
# Name to (changes of the model, changes of the training).
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as the case": ({}, {}),
    "rotary positions": ({"positions": "rope", "rope_base": 10000.0}, {}),
    "initial weights twice as large": ({"init_std": 0.04}, {}),
    "beta2 0.999": ({}, {"optimizer": {**OPTIMIZER, "beta2": 0.999}}),
    "no weight decay": ({}, {"optimizer": {**OPTIMIZER, "weight_decay": 0.0}}),
}


def losses(name: str, seed: int) -> list[float]:
    model, training = CHANGES[name]
    job = small_job({**MODELS["gpt"], **model}, ONE, STEPS, seed=seed, schedule=SCHEDULE, **training)
    return [round(loss, 5) for loss in train(job).losses]


def main() -> None:
    runs: dict[str, list[list[float]]] = {}
    for number, name in enumerate(CHANGES):
        count = 2 * SEEDS if name == "as the case" else SEEDS
        runs[name] = [losses(name, seed) for seed in range(100 * number, 100 * number + count)]
        print(name, [round(sum(run[STEPS // 2 :]) / (STEPS - STEPS // 2), 4) for run in runs[name]], flush=True)
    curves = {name: [dict(enumerate(run, 1)) for run in group] for name, group in runs.items()}
    comparisons = {name: compare_tails(group, curves["as the case"], MARGIN) for name, group in curves.items()}
    for name, answer in comparisons.items():
        print(f"| {name} | {answer.difference:+.2%} | {answer.low:+.2%} to {answer.high:+.2%} | {answer.word} |")
    seen = [name for name, answer in comparisons.items() if answer.word == "beyond the margin"]
    OUTPUT.write_text(json.dumps({"steps": STEPS, "seen": seen, "runs": runs}) + "\n")


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
