"""The power of the alignment for mixtures of experts: planted faults and honest runs.

    .venvs/dev/bin/python tools/mixture_power.py [--docs]

trains the small mixtures of faults_in_mixtures.py by torch in float32, 10 steps each. All follow the choices of experts
of one of them. Limits are learned from the variations of `align calibrate`, by the platform's own rules. All is trained
once more in bf16, for `bf16_alone`: the verdict without a certificate. `--docs` writes every verdict into
docs/data/mixture_power.json, and a summary of it into docs/alignment.md. It takes about twenty minutes of one core.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.in_mixtures import FAULTS, KINDS
from faults.judging import training_of
from layouts import ROOT, SINGLE, Variant, events, launch, planted, read_curve, small_job
from levelfield.measure import alignment as rules
from levelfield.measure.calibration import noise_between, tolerance_limits
from levelfield.measure.raw_facts import ComparedChoices
from levelfield.measure.routing import FP32_CHOICE_LIMITS, summarise_own_choices
from levelfield.specs.architecture import Experts
from levelfield.worker.choices import digest_of, joined
from matrix import VARIANTS
from power import ORDER, PAGE, documented_between, write_data

EXPERTS = {kind: Experts.model_validate(model["experts"]) for kind, model in KINDS.items()}
Fault = tuple[str, Variant, str]
STEPS = 10
DATA = ROOT / "docs" / "data" / "mixture_power.json"
BEGIN = "<!-- written by tools/mixture_power.py: begin -->"
LEARNT = {
    "half the micro-batch": Variant("half", micro_batch=1),
    "twice the micro-batch": Variant("twice", micro_batch=4),
    **{name: VARIANTS[name] for name in ("DP2", "TP2", "PP2", "EP2")},
}
# latent attention has no tensor parallelism, whose runs give a limit and are judged
JUDGED = tuple(kind for kind in KINDS if kind != "latent")
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
# Scores that differ in their last bits: own choices change where two are equal but for rounding, and nothing else does.
NEAR_TIES = """
import routing, torch
right = routing.best
random = torch.Generator().manual_seed(1)
routing.best = lambda scores, number: right(scores * (1 + 3e-7 * torch.randn(scores.shape, generator=random)), number)
"""
HONEST = {
    "micro-batch 8": (VARIANTS["accumulation 1"], None),
    **{name: (VARIANTS[name], None) for name in ("EP2 of DP4", "ZeRO 2, EP2 of DP4", "ZeRO 3, DP2")},
    **{name: (VARIANTS[name], None) for name in ("TP2 sequence parallel", "recompute full", "DP2 x PP2")},
    "two threads": (SINGLE, "import torch; torch.set_num_threads(2)"),
    "scores perturbed by 3e-7": (SINGLE, NEAR_TIES),
    "weights perturbed by 1e-7": (SINGLE, PERTURBED.format(size=1e-7, seed=1)),
}


@functools.cache
def chosen(kind: str, precision: str) -> tuple[rules.TrainingCurve, str]:
    """The training that makes its own choices, and these choices, which all other runs of a kind follow."""
    return _trained(kind, SINGLE, None, precision, None)


def training(kind: str, variant: Variant, code: str | None = None, precision: str = "fp32") -> rules.TrainingCurve:
    """Return a training that follows the reference's choices."""
    return _trained(kind, variant, code, precision, chosen(kind, precision)[1])[0]


def reference(kind: str, precision: str = "fp32") -> rules.TrainingCurve:
    """Return the reference: its own choices, by their digest."""
    free_training, choices = chosen(kind, precision)
    return replace(free_training, choices_digest=digest_of(choices))


def _trained(
    kind: str, variant: Variant, code: str | None, precision: str, followed: str | None
) -> tuple[rules.TrainingCurve, str]:
    """Return the training, and its own choices where it recorded them."""
    job = {**small_job(KINDS[kind], variant, STEPS, precision=precision), "choices": {"known": followed}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = launch(job, folder, planted(folder, "torch", code) if code else None)
        if failed := [end.output[-3000:] for end in ends if end.returncode]:
            raise RuntimeError("\n".join(failed))
        ranks = range(len(ends))
        curve = read_curve([events(folder, rank) for rank in ranks])
        choice_events = [(rank, event) for rank in ranks for event in _lines(folder / f"rank{rank}.choices.jsonl")]
    compared_choices = [
        ComparedChoices(
            rank=rank,
            step=event["step"],
            layer=event["layer"],
            choices=event["choices"],
            changed=event["changed"],
            margin=float(event["margin"]),
            followed_gate_sum=float(event["gates"]),
        )
        for rank, event in choice_events
        if event["event"] == "compared"
    ]
    choices_digest = next(event["follows"] for _, event in choice_events if event["event"] == "choices")
    chosen_experts = {
        (event["step"], event["layer"]): event["experts"] for _, event in choice_events if event["event"] == "chosen"
    }
    shape = (job["training"]["global_batch"], job["training"]["sequence_length"], KINDS[kind]["experts"]["chosen"])
    packed = [chosen_experts[place] for place in sorted(chosen_experts)]
    whole = joined(packed, shape, KINDS[kind]["experts"]["count"]) if packed else ""
    return replace(
        training_of(curve),
        choices_digest=choices_digest,
        own_choices=summarise_own_choices(compared_choices, EXPERTS[kind]),
    ), whole


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@functools.cache
def limits_for(kind: str, precision: str = "fp32") -> rules.AlignmentLimits:
    """Return the limits that the variations give. In 16 bits own choices are not judged."""
    right = reference(kind, precision)
    rows = [
        noise_between(training(kind, variant, None, precision), right)._replace(kind=name, setting=name)
        for name, variant in LEARNT.items()
    ]
    routing = FP32_CHOICE_LIMITS if precision == "fp32" else None
    return replace(tolerance_limits(rows, "the small mixture's noise", precision), routing=routing)


def bf16_verdict(kind: str, variant: Variant, code: str | None) -> str:
    """Return the verdict on the same in bf16, without a certificate. `failed`: the planted code has no form in bf16."""
    try:
        run = training(kind, variant, code, "bf16")
    except RuntimeError:
        return "failed"
    return rules.align(run, reference(kind, "bf16"), limits_for(kind, "bf16")).verdict


def judge_run(name: str, honest: bool, kind: str, variant: Variant, code: str | None) -> dict[str, Any]:
    """Return a run's verdicts, the layers that failed, the first one's number, and what became of the own choices."""
    run = training(kind, variant, code)
    alignment = rules.align(run, reference(kind), limits_for(kind))
    first = next((layer for layer in alignment.layers if layer.passed is False and layer.value is not None), None)
    return {
        "run": name,
        "honest": honest,
        "mixture": kind,
        "verdict": alignment.verdict,
        "failed": [layer.name for layer in alignment.layers if layer.passed is False],
        "value": first and rounded(first.value),
        "limit": first and rounded(first.limit),
        "changed_choices": sum(choices.changed for choices in run.own_choices.values()),
        "widest_margin": rounded(max(choices.margin for choices in run.own_choices.values())),
        "bf16_alone": bf16_verdict(kind, variant, code),
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2e}")


def judged_rows(
    kinds: Sequence[str] = JUDGED,
    faults: Mapping[str, Fault] = FAULTS,
    honest: Mapping[str, tuple[Variant, str | None]] = HONEST,
) -> Iterator[dict[str, Any]]:
    """Return a row for each fault, and for each honest run that gave no limit."""
    for kind in kinds:
        runs: list[tuple[str, bool, Variant, str | None]] = [
            *((name, False, variant, code) for name, (mixture, variant, code) in faults.items() if mixture == kind),
            *((name, True, variant, code) for name, (variant, code) in honest.items()),
        ]
        for name, is_honest, variant, code in runs:
            yield judge_run(name, is_honest, kind, variant, code)


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what stands between the marks of docs/alignment.md: the rows, counted for each mixture."""
    kinds = list(dict.fromkeys(row["mixture"] for row in rows))
    faults = {kind: [row for row in rows if row["mixture"] == kind and not row["honest"]] for kind in kinds}
    honest = {kind: [row for row in rows if row["mixture"] == kind and row["honest"]] for kind in kinds}
    first = {kind: Counter(row["failed"][0] for row in faults[kind] if row["failed"]) for kind in kinds}
    layers = [word for word in ORDER if any(first[kind][word] for kind in kinds)]
    lines = [
        ("model", *kinds),
        ("faults", *(len(faults[kind]) for kind in kinds)),
        *((f"decided by {word}", *(first[kind][word] for kind in kinds)) for word in layers),
        ("faults that are aligned", *(aligned(faults[kind], "verdict") for kind in kinds)),
        ("faults that bf16 alone calls aligned", *(aligned(faults[kind], "bf16_alone") for kind in kinds)),
        ("the fault nearest to its limit", *(nearest(faults[kind]) for kind in kinds)),
        (
            "honest runs that are aligned",
            *(f"{aligned(honest[kind], 'verdict')} of {len(honest[kind])}" for kind in kinds),
        ),
    ]
    head, *body = (f"| {' | '.join(map(str, cells))} |" for cells in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body])


def aligned(rows: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return how many rows are aligned by `field`; None in a row says that it was not measured."""
    if any(row[field] is None for row in rows):
        return "not measured"
    return str(sum(row[field] == "aligned" for row in rows))


def nearest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the fault whose number is the least multiple of its limit. Some fail by a count, below the limit."""
    beyond = [
        (row["value"] / row["limit"], row["run"]) for row in rows if row["limit"] and row["value"] >= row["limit"]
    ]
    return "{1}: {0:.1f} times".format(*min(beyond)) if beyond else "none has a number"


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge planted faults and honest runs of small mixtures")
    parser.add_argument("--docs", action="store_true", help=f"write {DATA.relative_to(ROOT)} and its summary")
    options = parser.parse_args()
    rows = []
    for row in judged_rows():
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(section(rows))
    if options.docs:
        write_data(DATA, {"runs": rows})
        PAGE.write_text(documented_between(BEGIN, PAGE.read_text(), section(rows)))


if __name__ == "__main__":
    main()
