"""Every framework in every layout that runs on a cpu, against torch in one process.

    .venvs/dev/bin/python tools/matrix.py [FRAMEWORK[_VERSION] ...] [--precision fp32]

makes models/<framework>/tested.json, or tested-VERSION.json of a further version, from 40 steps of each, or of those
in one precision, and docs/frameworks.md from these files; each environment is made as for a run. A recorded run whose
files have not changed is not trained again, so a matrix that was stopped goes on. torch's curves, which all runs are
compared with, are trained again first where their code has changed (tools/trainings/references.py); `--references` does
only this. `--docs` only writes the page, and `--rows` prints every recorded run. The tests run a part of the same list.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layouts import COMMON_MODELS, MODELS, SINGLE, Curve, Variant, compare, script_of, small_job, train
from levelfield.catalog.code_basis import recorded_runs_path, training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import ReferenceState, run_faults
from levelfield.plan.environment import plan_environment
from levelfield.run.runtimes.environments import use_environment
from levelfield.specs.architecture import Model
from levelfield.specs.base import dump, load
from levelfield.specs.case import Precision
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.layout import Layout
from levelfield.specs.recorded_runs import Difference, LayoutRuns, MatrixRun, ReferenceCurve, ReferenceNoise
from levelfield.testing.framework_kit.layout_checks import changed_code_fault, row_provenance
from levelfield.testing.framework_kit.small_jobs import (
    SEQUENCE_PARALLEL,
    STANDARD_VARIANTS,
    offered_variants,
    zero_layout,
)
from trainings.frameworks_page import PAGE, all_runs, page
from trainings.references import HONEST, curve_of, honest_noise, machine, train_references
from trainings.rehearsed_page import REHEARSED, REHEARSED_ROWS, rehearsed_page, rehearsed_rows

STEPS = 40

# Beside the layouts of `framework check`: mixes of more kinds, and what only some frameworks have.
FURTHER = (
    Variant("ZeRO 2, DP2, recompute full", zero_layout(2), recompute="full"),
    Variant("ZeRO 3, DP2, recompute full", zero_layout(3), recompute="full"),
    Variant("ZeRO 3, DP2, recompute selective", zero_layout(3), recompute="selective"),
    Variant("ZeRO 1, DP4", zero_layout(1, 4, 4), micro_batch=1),
    Variant("ZeRO 3, DP4", zero_layout(3, 4, 4), micro_batch=1),
    Variant("ZeRO 1, DP2 x TP2 sequence parallel", zero_layout(1, **SEQUENCE_PARALLEL)),
    Variant("ZeRO 1, DP2 x PP2, recompute full", zero_layout(1, pipeline=2), recompute="full"),
    Variant("ZeRO 3, DP2, recompute full of 1 layer", zero_layout(3), recompute="full", recompute_layers=1),
    Variant(
        "ZeRO 1, DP2 x PP2, recompute full of 1 layer", zero_layout(1, pipeline=2), recompute="full", recompute_layers=1
    ),
    Variant("EP2, recompute full of 1 layer", {"data": 2, "expert": 2}, recompute="full", recompute_layers=1),
    Variant("DP2 x PP2 interleaved", {"data": 2, "pipeline": 2}, virtual_pipeline=2),
    Variant("TP2 x PP2 interleaved", {"tensor": 2, "pipeline": 2}, virtual_pipeline=2),
    Variant("ZeRO 1, DP2 x PP2 interleaved", zero_layout(1, pipeline=2), virtual_pipeline=2),
    Variant("DP2 x CP2", {"data": 2, "context": 2}),
    Variant("CP2 x TP2", {"context": 2, "tensor": 2}),
    Variant("CP2 x TP2 sequence parallel", {"context": 2, **SEQUENCE_PARALLEL}),
    Variant("CP2 x PP2", {"context": 2, "pipeline": 2}),
    Variant("ZeRO 1, CP2", zero_layout(1, 1, context=2)),
    Variant("ZeRO 3, CP2, recompute full", zero_layout(3, 1, context=2), recompute="full"),
    Variant("ZeRO 3 over 2 of DP2 x CP2", zero_layout(3, context=2)),
    Variant("EP2, recompute full", {"data": 2, "expert": 2}, recompute="full"),
    Variant("EP2 of DP4", {"data": 4, "expert": 2}),
    Variant("ZeRO 1, EP2", zero_layout(1, expert=2)),
    Variant("ZeRO 1, EP2 of DP4", zero_layout(1, 4, 4, expert=2)),
    Variant("ZeRO 2, EP2 of DP4", zero_layout(2, 4, 4, expert=2), micro_batch=1),
    Variant("ZeRO 3, EP2 of DP4, recompute full", zero_layout(3, 4, 4, expert=2), micro_batch=1, recompute="full"),
    Variant("ZeRO 1, EP2 of DP2 x CP2", zero_layout(1, degree=4, context=2, expert=2)),
    Variant("ZeRO 1, EP2 of DP4 x PP2", zero_layout(1, 4, 4, expert=2, pipeline=2), micro_batch=1),
    Variant("EP2 x TP2 sequence parallel", {"data": 2, "expert": 2, **SEQUENCE_PARALLEL}),
    Variant("EP2 of CP2", {"context": 2, "expert": 2}),
    Variant("ZeRO 1, EP4 of DP2 x CP2", zero_layout(1, degree=4, context=2, expert=4)),
    Variant("EP2 x PP2", {"data": 2, "expert": 2, "pipeline": 2}),
)
VARIANTS = {variant.name: variant for variant in (*STANDARD_VARIANTS, *FURTHER)}
# Of a family that not every framework has, the layouts of the tests: those that divide its own parts.
DIVIDING = {"qwen": ("ZeRO 3, DP2", "TP2 sequence parallel")}
# The layouts of the tests where they are not all that are offered: each of jax's ranks compiles for six seconds.
IN_THE_TESTS = {"jax": ("TP2 sequence parallel", "DP2")}


@dataclass(frozen=True)
class PlannedRun:
    """One run of the matrix."""

    framework: str
    family: str
    precision: Precision
    variant: Variant

    def __str__(self) -> str:
        return f"{self.framework} {self.family} {self.precision} {self.variant.name}"


@functools.cache
def families(framework: str) -> tuple[str, ...]:
    """The small models whose parts the framework has, by its manifest."""
    parts = set(Registry().implementation(framework)[0].architecture)
    return tuple(name for name, model in MODELS.items() if parts >= set(Model.model_validate(model).parts))


def matrix(framework: str, precisions: tuple[Precision, ...]) -> Iterator[PlannedRun]:
    """Every run of a framework: all that its manifest offers of the layouts above, for each of its small models."""
    implementation = Registry().implementation(framework)[0]
    for precision in precisions:
        for family in families(framework):
            for variant in offered_variants(implementation, "cpu", MODELS[family], precision, VARIANTS.values()):
                yield PlannedRun(framework, family, precision, variant)


def reduced() -> Iterator[PlannedRun]:
    """For the tests, in float32: every layout in one family of COMMON_MODELS, by turns, and one process in both; later
    families in the layouts of DIVIDING.

    Of each framework the first one is the long run.
    """
    turns = itertools.cycle(COMMON_MODELS)
    for framework in Registry().frameworks:
        runs = [run for run in matrix(framework, ("fp32",)) if run.family != "mixture"]
        names = IN_THE_TESTS.get(framework, dict.fromkeys(run.variant.name for run in runs))
        chosen = [] if framework == "torch" else [(family, SINGLE.name) for family in COMMON_MODELS]
        chosen += zip(turns, [name for name in names if name != SINGLE.name], strict=False)
        chosen += [(family, name) for family, dividing in DIVIDING.items() for name in dividing]
        for key in chosen:
            yield from (run for run in runs if (run.family, run.variant.name) == key)


def left_to_thorough(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """What `make test` leaves out: all but a few runs that have every feature of every framework between them.

    Greedy: the most new features for each rank first. Some are left out for their cost: torch's compiler, which calls a
    C++ compiler for half a minute, oneflow under tensor parallelism, whose waiting threads keep a core busy and which
    test_oneflow.py trains too, and a run of jax, whose ranks compile for seconds.
    """
    test_runs = list(runs)
    rest = [run for run in test_runs if not _is_slow(run)]
    chosen: list[PlannedRun] = []
    covered: set[tuple[str, object]] = set()
    while rest:
        best = max(rest, key=lambda run: len(_features(run) - covered) / run.variant.ranks)
        if _features(best) <= covered:
            break
        chosen.append(best)
        covered |= _features(best)
        rest.remove(best)
    return [run for run in test_runs if run not in chosen]


def _is_slow(planned: PlannedRun) -> bool:
    divides = planned.framework == "oneflow" and planned.variant.layout.get("tensor", 1) > 1
    return planned.variant.compile or divides or (planned.framework == "jax" and planned.variant.name == "DP2")


def _features(planned: PlannedRun) -> set[tuple[str, object]]:
    variant, layout = planned.variant, planned.variant.layout
    divided = (name for name in ("data", "tensor", "pipeline", "context", "expert") if layout.get(name, 1) > 1)
    sharding = layout.get("sharding_stage", 0), layout.get("sharding_degree", 1) < layout.get("data", 1)
    tuning = variant.recompute, variant.recompute_layers, variant.micro_batch, variant.virtual_pipeline
    others = enumerate((*sharding, layout.get("sequence_parallel", False), *tuning))
    return {(planned.framework, feature) for feature in (planned.family, *divided, *others)}


def difference(
    planned: PlannedRun, python: Path | None, reference: Curve, model: dict[str, Any] | None = None
) -> Difference:
    """Of one run from torch's curve in one process in float32, in as many steps. Raises RuntimeError for a rank that
    fails. model: the one of `reference`, if it is not the family's."""
    return compare(train(*training_of_run(planned, python, len(reference.losses), model)), reference)


def training_of_run(
    planned: PlannedRun, python: Path | None, steps: int, model: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Path, Path | None]:
    """The job, the script and the interpreter of a run."""
    scale = {"loss_scale": {"initial": 256.0, "growth_interval": 1000}} if planned.precision == "fp16" else {}
    job = small_job(model or MODELS[planned.family], planned.variant, steps, precision=planned.precision, **scale)
    return job, script_of(planned.framework), python


def noise_of(model: dict[str, Any], reference: Curve) -> ReferenceNoise:
    """The largest differences of torch's honest runs of `model` from its one process."""
    return honest_noise(model, reference, [VARIANTS[name] for name in HONEST])


def measure(registry: Registry, label: str, precision: Precision | None = None, again: bool = False) -> None:
    """Train what the matrix of a framework's version asks on the cpu, and write its file after each run.

    precision: only these runs. again: also what the file has of the same code on a processor of the same name.
    """
    implementation, folder = registry.implementation_of_label(label)
    framework, path = implementation.framework, recorded_runs_path(implementation, folder)
    planned_runs = list(matrix(framework, implementation.precisions["cpu"]))
    record = RunRecord(path, implementation, folder)
    for family in dict.fromkeys(planned.family for planned in planned_runs):
        reference_of(family)  # before: what it says of the recorded runs
    current = record.current(ReferenceState(registry))
    done = set() if again else current
    code = functools.partial(training_code_digest, implementation, folder, "cpu")
    environment = plan_environment(
        implementation, "cpu", implementation.requirements["cpu"].environment_packages(), None, "process"
    )
    with use_environment(environment, print):
        for planned_run in planned_runs:
            if str(planned_run) in done or precision not in (None, planned_run.precision):
                continue
            run = record.runs[str(planned_run)] = _run(
                planned_run, Path(environment.python), reference_of(planned_run.family), code
            )
            print(f"{planned_run}: {'passed' if run.passed else run}", flush=True)
            record.write([str(planned) for planned in planned_runs])


class RunRecord:
    """The runs of one file, by what was asked."""

    def __init__(self, path: Path, implementation: ImplementationFile, folder: Path) -> None:
        self.path, self.implementation, self.folder = path, implementation, folder
        self.head = {
            "framework": implementation.framework,
            "version": implementation.version,
            "device_kind": "cpu",
            "machine": machine(),
        }
        self.runs: dict[str, MatrixRun] = {}

    def current(self, references: ReferenceState) -> set[str]:
        """Read the file. What it has of another version or machine is dropped. Return the passed runs that count."""
        old = load(LayoutRuns, self.path) if self.path.exists() else None
        if old is None or any(getattr(old, key) != value for key, value in self.head.items()):
            return set()
        self.runs = {f"{old.framework} {run.family} {run.precision} {run.name}": run for run in old.runs}
        faults = run_faults(old, self.implementation, self.folder, references)
        runs_with_faults = zip(self.runs.items(), faults, strict=True)
        return {name for (name, run), fault in runs_with_faults if run.passed and fault is None}

    def write(self, names: Iterable[str]) -> None:
        """Write the runs of these names, in their order."""
        runs = tuple(self.runs[name] for name in names if name in self.runs)
        self.path.write_text(dump(LayoutRuns(**self.head, runs=runs)))


@functools.cache
def reference_of(family: str) -> ReferenceCurve:
    """torch's curve, trained again where its code has changed."""
    return train_references(Registry(), [family])[family]


def _run(planned: PlannedRun, python: Path, reference: ReferenceCurve, code: Callable[[], str]) -> MatrixRun:
    """Train once. code: gives the digest of the code at hand."""
    run_difference, failure, before = None, None, code()
    try:
        curve = train(*training_of_run(planned, python, STEPS))
        failure = changed_code_fault(before, code())
        run_difference = None if failure else compare(curve, curve_of(reference.figures))
    except RuntimeError as error:
        failure = str(error).strip().splitlines()[-1][:200]
    return MatrixRun(
        **row_provenance(before),
        name=planned.variant.name,
        family=planned.family,
        precision=planned.precision,
        layout=Layout(**planned.variant.layout),
        steps=STEPS,
        difference=run_difference,
        failure=failure,
        noise=reference.noise,
        reference=reference.figures.digest_key,
    )


def main() -> None:
    registry = Registry()
    parser = argparse.ArgumentParser(description="Run the matrix of frameworks and layouts; write what it shows")
    frameworks = f"of {', '.join(registry.frameworks)}, also with a further version; all when none is given"
    parser.add_argument("framework", nargs="*", help=frameworks)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16", "fp8"), help="only the runs in this one")
    parser.add_argument("--again", action="store_true", help="also the runs that are recorded of this very code")
    parser.add_argument("--references", action="store_true", help="only torch's curves, where their code has changed")
    parser.add_argument("--docs", action="store_true", help="only write the page from the files that are there")
    parser.add_argument("--rows", action="store_true", help="only print every recorded run, as CSV")
    options = parser.parse_args()
    if options.rows:
        print(all_runs(registry), end="")
        return
    if options.references or not options.docs:
        train_references(registry, MODELS)
    if not options.docs and not options.references:
        for label in options.framework or registry.frameworks:
            measure(registry, label, options.precision, options.again)
    PAGE.write_text(page(registry))
    REHEARSED.write_text(rehearsed_page(registry))
    REHEARSED_ROWS.write_text(rehearsed_rows(registry))


if __name__ == "__main__":
    main()
