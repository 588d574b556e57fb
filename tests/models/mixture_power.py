"""The power of the alignment for mixtures of experts: planted faults, honest runs, and how far a changed choice goes.

    PYTHONPATH=platform python tests/models/mixture_power.py [--docs]

trains the small mixtures of test_torch_mixture.py by torch in float32, 10 steps each. Limits are learned from the
variations of `align calibrate`, by the platform's own rules. `--docs` writes the tables into docs/alignment.md. They
take about seven minutes of one core.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from judging import training_of
from layouts import ROOT, SINGLE, Curve, Variant, job_of, planted, train
from levelfield.measure import alignment as rules
from levelfield.measure.calibration import limits_of, noise_between
from levelfield.measure.rerouting import IN_FLOAT32, rerouting
from matrix import VARIANTS
from power import PAGE, documented_between
from test_torch_mixture import FAULTS, KINDS

STEPS, LONG = 10, 40
BEGIN = "<!-- written by tests/models/mixture_power.py: begin -->"
LEARNT = {
    "half the micro-batch": Variant("half", micro_batch=1),
    "twice the micro-batch": Variant("twice", micro_batch=4),
    **{name: VARIANTS[name] for name in ("DP2", "TP2", "PP2", "EP2")},
}
# latent attention has no tensor parallelism, whose runs give a limit and are judged
JUDGED = tuple(kind for kind in KINDS if kind != "latent")
HONEST = {
    "micro-batch 8": VARIANTS["accumulation 1"],
    **{name: VARIANTS[name] for name in ("EP2 of DP4", "ZeRO 2, EP2 of DP4", "ZeRO 3, DP2")},
    **{name: VARIANTS[name] for name in ("TP2 sequence parallel", "recompute full")},
}
# Weights perturbed in their last bits before step 1: the arithmetic of another machine, many times over.
PERTURBED = """
import training, torch
right = training.Trainer.launch
def launch(self, batch):
    if batch.step == 1:
        random = torch.Generator().manual_seed({seed})
        for weights in self.model.parameters():
            weights.data.mul_(1 + {size} * torch.randn(weights.shape, generator=random))
    right(self, batch)
training.Trainer.launch = launch
"""
PERTURBATIONS = tuple((size, seed) for size in (3e-6, 1e-5, 1e-4) for seed in (1, 2))


def curve_of(kind: str, variant: Variant, code: str | None = None, steps: int = STEPS) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        script = planted(Path(folder), "torch", code) if code else None
        return train(job_of(KINDS[kind], variant, steps), script)


def limits_for(kind: str, right: rules.TrainingCurve) -> rules.AlignmentLimits:
    """Return the limits that the variations give; none of them changes a choice in these steps."""
    rows = []
    for name, variant in LEARNT.items():
        run = training_of(curve_of(kind, variant))
        assert rerouting(run.routing, right.routing).first is None, name
        rows.append(noise_between(run, right)._replace(kind=name, setting=name))
    return replace(limits_of(rows, "the small mixture's noise"), routing=IN_FLOAT32)


def judged(name: str, kind: str, curve: Curve, right: rules.TrainingCurve, limits: rules.AlignmentLimits) -> str:
    """Return a row of the table: the verdict, the layers that failed, and what became of the routing."""
    found = rules.align(training_of(curve), right, limits)
    failed = [layer.name for layer in found.layers if layer.passed is False]
    first = next((layer for layer in found.layers if layer.passed is False and layer.value is not None), None)
    number = f"{first.value:.1e}, limit {first.limit:.1e}" if first and first.limit is not None else ""
    moved = rerouting(curve.experts, right.routing)
    return f"| {name} | {kind} | {found.verdict} | {', '.join(failed)} | {number} | {moved.sentence} |"


def fault_rows(kinds: Sequence[str] = JUDGED) -> Iterator[str]:
    """Return a row for each fault, and for each honest run that gave no limit."""
    for kind in kinds:
        right = training_of(curve_of(kind, SINGLE))
        limits = limits_for(kind, right)
        for name, (own, variant, code) in FAULTS.items():
            if own == kind:
                yield judged(name, kind, curve_of(kind, variant, code), right, limits)
        for name, variant in HONEST.items():
            yield judged(f"*honest:* {name}", kind, curve_of(kind, variant), right, limits)


def jump_rows() -> Iterator[str]:
    """Return a row for each perturbation: how far the two trainings part, before and from the first changed choice."""
    right = training_of(curve_of("mixture", SINGLE, steps=LONG))
    for size, seed in PERTURBATIONS:
        run = training_of(curve_of("mixture", SINGLE, PERTURBED.format(size=size, seed=seed), LONG))
        yield jump_row(f"{size:.0e}, {seed}", run, right)


def jump_row(name: str, run: rules.TrainingCurve, right: rules.TrainingCurve) -> str:
    moved = rerouting(run.routing, right.routing)
    first = moved.first or LONG + 1
    losses = {d.place: d.value for d in rules.curve_differences(run, right)}
    before = max((v for s, v in losses.items() if isinstance(s, int) and s < first), default=0.0)
    after = max((v for s, v in losses.items() if isinstance(s, int) and s >= first), default=0.0)
    gradients = max((d.value for d in rules.gradient_differences(run, right)), default=0.0)
    weights = max((d.value for d in rules.weight_differences(run, right)), default=0.0)
    at = f"{first} | {moved.changed[first]}" if moved.first else "none | 0"
    share = max(moved.changed.values()) / moved.choices
    return f"| {name} | {at} | {share:.2%} | {before:.1e} | {after:.1e} | {gradients:.1e} | {weights:.1e} |"


def section() -> str:
    faults = ["| fault or honest run | mixture | verdict | layers that fail | the first of them | routing |"]
    faults += ["|---|---|---|---|---|---|", *fault_rows()]
    jumps = [
        "| perturbation, seed | first step with a change | changes in it | most in a later step | loss before | loss "
        "from there | gradients of step 10 | final weights |",
        "|---|---|---|---|---|---|---|---|",
        *jump_rows(),
    ]
    return "\n".join(faults) + "\n\n" + "\n".join(jumps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge planted faults and honest runs of small mixtures")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    text = section()
    print(text)
    if options.docs:
        PAGE.write_text(documented_between(BEGIN, PAGE.read_text(), text))


if __name__ == "__main__":
    main()
