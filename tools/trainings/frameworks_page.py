"""docs/frameworks.md, and every recorded run as CSV, from models/*/tested.json and the code at hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from layouts import ROOT
from levelfield.catalog.code_basis import recorded_runs_path
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import (
    CELL_WORDS,
    LAYOUTS,
    PRECISIONS,
    SHORT_HEADINGS,
    STATES,
    ReferenceState,
    State,
    SupportRow,
    run_faults,
    support_rows,
)
from levelfield.specs.base import load
from levelfield.specs.recorded_runs import LayoutRuns, MatrixRun

PAGE = ROOT / "docs" / "frameworks.md"
FIGURES = ("first_loss", "loss", "grad_norm", "parameter_norm")
# Of a framework's cells in one kind of layout, the one that is shown: the first of these that is among them.
WORST_FIRST: tuple[State, ...] = ("fails", "written", "tested", "some", "chip", "-")


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one version's file. faults: of each run, why it does not count; None where it does."""

    tested: LayoutRuns
    faults: tuple[str | None, ...]


def page(registry: Registry) -> str:
    """docs/frameworks.md, whole."""
    recorded_runs = {label: _recorded(registry, label) for label in registry.framework_labels()}
    recorded = [runs for runs in recorded_runs.values() if runs]
    return (
        "\n".join(
            [
                *INTRODUCTION.splitlines(),
                *("", *_kinds(registry)),
                *(
                    "",
                    *(f"- `{CELL_WORDS[state]}`: {STATES[state]}" for state in WORST_FIRST),
                    "",
                    *MEANING.splitlines(),
                ),
                *("", *DIFFERENCES.splitlines(), "", *_worst(recorded)),
                *("", *REFUSED.splitlines()),
                *("", *PROCESSORS.splitlines()),
            ]
        )
        + "\n"
    )


def all_runs(registry: Registry) -> str:
    """Every recorded run as CSV, a row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("framework", "version", "family", "precision", "run", *FIGURES, "same work", "passed", "counts"))
    for runs in filter(None, (_recorded(registry, label) for label in registry.framework_labels())):
        for run, fault in zip(runs.tested.runs, runs.faults, strict=True):
            head = (runs.tested.framework, runs.tested.version, run.family, run.precision, run.name)
            writer.writerow((*head, *_cells(run), _yes(run.passed), fault or "yes"))
    return text.getvalue()


def _cells(run: MatrixRun) -> Iterator[str]:
    """The differences of a run, and whether weights and tokens were the same; for a failed run its message."""
    if run.difference is None:
        yield from (run.failure or "failed", "", "", "", "")
        return
    for figure in FIGURES:
        value = getattr(run.difference, figure)
        yield "" if value is None else f"{value:.1e}"
    yield _yes(run.difference.same_weights and run.difference.same_tokens)


def _recorded(registry: Registry, label: str) -> RecordedRuns | None:
    """The runs of a version; None for a further version of which none is recorded."""
    implementation, folder = registry.implementation_of_label(label)
    path = recorded_runs_path(implementation, folder)
    if implementation.is_further and not path.exists():
        return None
    tested = load(LayoutRuns, path)
    return RecordedRuns(tested, run_faults(tested, implementation, folder, ReferenceState(registry)))


# ---- its tables


def _kinds(registry: Registry) -> Iterator[str]:
    """Framework x kind of layout: over its families and precisions, the worst that there is to say."""
    heads = ["framework", *(SHORT_HEADINGS.get(key, key) for key in LAYOUTS), "on a processor", "accelerators only"]
    yield from _head(heads)
    support = list(support_rows(registry))
    elsewhere = []
    for label in registry.framework_labels():
        framework_rows = [row for row in support if row.framework == label]
        states = [_worst_state(row.cells[key] for row in framework_rows) for key in LAYOUTS]
        if {*states} <= {"chip", "-"}:
            elsewhere.append(f"{label} ({_precisions_with(framework_rows, ('chip',))})")
            continue
        cells = (CELL_WORDS[state] for state in states)
        yield _line([label, *cells, _on_processors(framework_rows), _precisions_with(framework_rows, ("chip",))])
    if elsewhere:
        yield from ("", f"Only on accelerators, and not run there yet: {'; '.join(elsewhere)}.")


def _worst_state(states: Iterable[State]) -> State:
    present = set(states)
    return next(state for state in WORST_FIRST if state in present)


def _precisions_with(cases: list[SupportRow], states: tuple[State, ...]) -> str:
    """The precisions in which one process has one of these states."""
    return ", ".join(p for p in PRECISIONS if any(r.precision == p and r.cells["one"] in states for r in cases)) or "-"


def _on_processors(cases: list[SupportRow]) -> str:
    some = _precisions_with(cases, ("some",))
    return _precisions_with(cases, ("tested", "fails", "written")) + ("" if some == "-" else f"; {some} on some")


def _worst(recorded: list[RecordedRuns]) -> Iterator[str]:
    """Framework x precision: how many runs passed and count, and the largest differences among them."""
    yield from _head(
        ["framework", "precision", "passed", "count", "step 1", "all steps", "gradient norm", "by parameter"]
    )
    for runs in recorded:
        tested = runs.tested
        for precision in PRECISIONS:
            pairs = [
                (run, fault) for run, fault in zip(tested.runs, runs.faults, strict=True) if run.precision == precision
            ]
            if pairs:
                passed, count = sum(run.passed for run, _ in pairs), counting([fault for _, fault in pairs])
                head = (f"{tested.framework} {tested.version}", precision, f"{passed} of {len(pairs)}", count)
                yield _line([*head, *_largest([run for run, _ in pairs])])
    machines = dict.fromkeys(f"{runs.tested.device_kind} ({runs.tested.machine})" for runs in recorded)
    last = max(run.date for runs in recorded for run in runs.tested.runs)
    yield from ("", f"Trained on: {'; '.join(machines)}; last on {last}.")


def _largest(matrix_runs: list[MatrixRun]) -> Iterator[str]:
    for figure in FIGURES:
        values = [getattr(run.difference, figure) for run in matrix_runs if run.difference]
        differences = [value for value in values if value is not None]
        yield f"{max(differences):.1e}" if differences else "-"


def counting(faults: list[str | None]) -> str:
    """How many of these runs count for the code beside this page. faults: of each run."""
    good = sum(fault is None for fault in faults)
    return {len(faults): "all", 0: "none"}.get(good, f"{good} of {len(faults)}")


def _head(names: list[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


# ---- its words

INTRODUCTION = """# Frameworks: what works where

Made by `make matrix`; do not edit. It trains four small models (GPT, Llama, Qwen, MoE) for 40 steps in every framework
and layout on a CPU, and compares each run with torch in one process.

    python run_benchmarks.py show frameworks
    .venvs/dev/bin/python tools/matrix.py --rows

The first prints each family and precision, the second every run with its differences as CSV.

## What runs

A cell covers every family and precision. A name with a version is a further one, such as a build for CUDA 12.
"""

MEANING = """Z1 to Z3: ZeRO stages. SP: tensor with sequence parallel. CP: context. EP: experts, in the MoE only.
DxT, DxP, TxP: data, tensor and pipeline, two at a time."""

DIFFERENCES = """## How far the runs differ

The largest relative differences from torch's fp32 run in one process: of the loss at step 1 and at any step, of the
global gradient norm, and of each parameter's (steps 1, 2 and 10). Initial weights and tokens are the same.

| precision | limits: step 1, all steps, gradient norm, by parameter |
|---|---|
| fp32 | 1e-6, 1e-5, 1e-4, 1e-4, or 4 times the noise of torch's own runs, at most 100 times the first |
| 16 bits | 1e-3, 5e-3, 0.1; against the fp32 curve, so that they show the layout and not the last digit |

*count*: runs whose code has not changed since ([how this is decided](decisions/recorded-runs.md))."""

REFUSED = """## What is refused

A kind of layout with `-` above, and the choices in `refuses` of `models/<framework>/implementation.yaml`. A plan's
message has the reason."""

PROCESSORS = """## CPUs

Libraries choose kernels by the CPU's instructions. All tests ran on an AMD EPYC with avx512_bf16, without avx512_fp16
and amx; those of tests/models also with oneDNN and torch limited to AVX2, and those in 16 bits with oneDNN limited to
AVX-512 without bf16. With AVX2 the compiled Llama of torch once gave a loss of nan; two repeats did not, and the cause
is not known. No run was on a CPU with avx512_fp16 or amx."""
