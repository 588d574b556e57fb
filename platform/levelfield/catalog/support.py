"""The support table: framework x family x precision x layout, from declarations and recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from levelfield.catalog.code_basis import recorded_runs_path, training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.specs.architecture import FAMILIES
from levelfield.specs.base import load
from levelfield.specs.case import Precision
from levelfield.specs.implementation import ImplementationFile, Parallelism, Refusable
from levelfield.specs.layout import Layout
from levelfield.specs.recorded_runs import LayoutRuns, MatrixRun, ReferenceCurves
from levelfield.specs.vendor import HOST_KIND

State = Literal["tested", "fails", "written", "some", "chip", "-"]
STATES: dict[State, str] = {
    "tested": "runs on the cpu and trains what torch trains in one process",
    "fails": "was run on the cpu and differs, or does not end",
    "written": "offered on the cpu; not run since its code last changed, or never",
    "some": "offered on a cpu with the instructions for it; the training checks them",
    "chip": "written; needs an accelerator, and has not run on one yet",
    "-": "not offered by the framework or by its implementation",
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "fp8")
# The columns of the table, each with the parallelism that its layouts need.
LAYOUTS: dict[str, tuple[Parallelism, ...]] = {
    "one": (),
    "DP": ("data",),
    "Z1": ("data", "zero1"),
    "Z2": ("data", "zero2"),
    "Z3": ("data", "zero3"),
    "TP": ("tensor",),
    "TP+SP": ("tensor", "sequence"),
    "PP": ("pipeline",),
    "CP": ("context",),
    "EP": ("data", "expert"),
    "DPxTP": ("data", "tensor"),
    "DPxPP": ("data", "pipeline"),
    "TPxPP": ("tensor", "pipeline"),
}
REFERENCE_FRAMEWORK = "torch"
REFERENCES_FILE = "tested-references.json"  # beside torch's manifest


@dataclass(frozen=True)
class SupportRow:
    """A row of the table."""

    framework: str  # with the version of a further one, as in `jax_0.10.1`
    family: str
    precision: Precision
    cells: dict[str, State]  # by column
    note: str | None = None  # why recorded runs do not count, or what is not known of them; None for good ones


def support_rows(registry: Registry) -> Iterator[SupportRow]:
    """Return a row for each version of a framework, family and precision that is offered on any device.

    Raises DocumentError.
    """
    references = ReferenceState(registry)
    for label in registry.framework_labels():
        implementation, folder = registry.implementation_of_label(label)
        path = recorded_runs_path(implementation, folder)
        tested = registry.document_cache.document(LayoutRuns, path) if path.exists() else None
        runs: list[MatrixRun] = []  # that count for the code at hand
        note = None
        if tested is not None and tested.framework != implementation.framework:
            note = f"its recorded runs were of {tested.framework}"
        elif tested is not None and tested.version != implementation.version:
            note = f"its recorded runs were of version {tested.version}"
        elif tested is not None:
            faults = run_faults(tested, implementation, folder, references)
            runs = [run for run, fault in zip(tested.runs, faults, strict=True) if fault is None]
            reasons = Counter(fault for fault in faults if fault is not None)
            for reason, _ in reasons.most_common(1):
                note = f"{reasons.total()} of its {len(faults)} runs do not count: {reason}"
        name = implementation.label
        note = note and f"{name}: {note}; `framework check {name}`"
        for family in implementation.families:
            for precision in PRECISIONS:
                if any(precision in implementation.offered_precisions(kind) for kind in implementation.precisions):
                    row_runs = [run for run in runs if run.family == family and run.precision == precision]
                    cells = {column: _state(implementation, family, precision, column, row_runs) for column in LAYOUTS}
                    yield SupportRow(name, family, precision, cells, note)


def run_faults(
    tested: LayoutRuns, implementation: ImplementationFile, folder: Path, references: ReferenceState
) -> tuple[str | None, ...]:
    """Return for each recorded run why it does not count for the code at hand; None where it does."""
    code = training_code_digest(implementation, folder, tested.device_kind)
    return tuple(
        run.stale_reason(code) or (None if run.reference is None else references.fault(run.family, run.reference))
        for run in tested.runs
    )


def _state(
    implementation: ImplementationFile, family: str, precision: Precision, column: str, runs: list[MatrixRun]
) -> State:
    """Return the state of a cell. "tested" means that every run of this kind of layout passed."""
    passed = [run.passed for run in runs if layout_column(run.layout) == column]
    if passed:
        return "tested" if all(passed) else "fails"
    is_mixture, is_tensor_parallel = "experts" in FAMILIES[family], "tensor" in LAYOUTS[column]
    refusable: dict[Refusable, bool] = {
        "experts with tensor but not sequence parallel": is_mixture
        and is_tensor_parallel
        and "sequence" not in LAYOUTS[column],
        "experts with fp8": is_mixture and precision == "fp8",
        "fp8 with tensor parallel": is_tensor_parallel and precision == "fp8",
    }
    device_kinds = [
        kind
        for kind, offered in implementation.parallelism.items()
        if set(LAYOUTS[column]) <= set(offered) and precision in implementation.offered_precisions(kind)
        if is_mixture or "expert" not in LAYOUTS[column]
        if not any(refusable.get(refusal) for refusal in implementation.refusals(kind))
        if not implementation.is_further or kind in implementation.requirements
    ]
    if not device_kinds:
        return "-"
    if HOST_KIND not in device_kinds:
        return "chip"
    return "some" if precision in implementation.conditions.get(HOST_KIND, {}) else "written"


def layout_column(layout: Layout) -> str | None:
    """Return the column of the layout; None for a mix that no column has."""
    used: list[str] = [] if layout.data == 1 else ["data"]
    used += [f"zero{layout.sharding_stage}"] if layout.sharding_stage else []
    used += ["tensor"] if layout.tensor > 1 else []
    used += ["sequence"] if layout.sequence_parallel else []
    used += ["pipeline"] if layout.pipeline > 1 else []
    used += ["context"] if layout.context > 1 else []
    used += ["expert"] if layout.expert > 1 else []
    return next((column for column, needed in LAYOUTS.items() if list(needed) == used), None)


# Headings of columns and words of cells, for a table in the terminal.
SHORT_HEADINGS = {"TP+SP": "SP", "DPxTP": "DxT", "DPxPP": "DxP", "TPxPP": "TxP"}
CELL_WORDS: dict[State, str] = {
    "tested": "yes",
    "fails": "NO",
    "written": "new",
    "some": "isa",
    "chip": "acc",
    "-": "-",
}


class ReferenceState:
    """torch's recorded curves, and whether each rests on the code at hand."""

    def __init__(self, registry: Registry) -> None:
        implementation, folder = registry.implementation(REFERENCE_FRAMEWORK)
        path = folder / REFERENCES_FILE
        self.recorded = load(ReferenceCurves, path) if path.exists() else None  # not cached: the matrix writes it
        self._code = training_code_digest(implementation, folder, HOST_KIND)

    def fault(self, family: str, key: str) -> str | None:
        """Return why a run that was compared with a curve does not count; None where it does.

        key: the `digest_key` of the curve's figures when the run was recorded.
        """
        curve = None if self.recorded is None else self.recorded.for_family(family)
        if curve is None:
            return f"torch's reference of {family} is not recorded"
        if curve.figures.digest_key != key:
            return f"torch's reference of {family} is another curve now"
        reason = curve.stale_reason(self._code)
        return reason and f"torch's reference of {family}: {reason}"
