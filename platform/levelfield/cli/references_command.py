"""`references`: lists references, makes a run one, and records noise."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.catalog.stored_references import reference_of
from levelfield.checkout import checkout
from levelfield.cli.terminal import shown
from levelfield.errors import UsageError
from levelfield.judge.noise import rows_that_count
from levelfield.judge.promotion import promoted, with_noise
from levelfield.measure.calibration import basis
from levelfield.measure.spikes import largest_rise
from levelfield.report.words import wrapped
from levelfield.rundir.directory import default_runs, read_plan, room_left, write_atomically
from levelfield.rundir.run_state import finished_run
from levelfield.specs.base import dump
from levelfield.specs.derivation import split_name
from levelfield.specs.reference import Reference

# In a step the losses of the shipped references rise by 2 % at most. Two that rose by 46 and 110 % multiplied rounding
# by a hundred, and honest runs of other frameworks were diverged.
STEEP = 0.1


def execute(options: argparse.Namespace) -> int:
    registry, runs = Registry(options.plugins, case_files=options.case_file), options.runs or default_runs()
    {"list": _list, "promote": _promote, "noise": _noise}[options.action](options, registry, runs)
    return 0


def _list(options: argparse.Namespace, registry: Registry, runs: Path) -> None:
    for name in sorted(registry.references):
        found = registry.reference(name)
        origin = f"{found.framework} {found.framework_version}, {found.layout}"
        print(f"{name}\n  {origin}, {found.promoted[:10]} by {found.by}")
        print(f"  {found.why}\n  noise of {basis(rows_that_count(found))}")
        for row in (row for row in found.noise if row.why is not None):
            print(wrapped(f"  --replace: {row.changed}: {row.why}", 4))


def _promote(options: argparse.Namespace, registry: Registry, runs: Path) -> None:
    paths = finished_run(runs, options.run)
    reference = promoted(paths, options.why, reference_of(registry, read_plan(paths)), options.replace)
    write(reference, registry, options.plugins)
    if remark := jump_remark(reference):
        print(wrapped(remark, 2))


def _noise(options: argparse.Namespace, registry: Registry, runs: Path) -> None:
    """Record one row for each run. A run that is refused keeps the reference as it was."""
    why = override(options)
    reference = registry.reference(options.name)
    found = [finished_run(runs, run) for run in options.run]
    for paths in found:
        reference = with_noise(reference, paths, why)
    for row in (row for row in reference.noise if row.run_id in {paths.root.name for paths in found}):
        print(f"{row.changed}: first step {row.first_step:.1e}, curve {row.curve:.1e}")
    write(reference, registry, options.plugins)


def jump_remark(reference: Reference) -> str | None:
    """Return what to do about a loss that jumps, or None."""
    step, rise = largest_rise(dict(enumerate(reference.losses, start=1)))
    if rise < STEEP:
        return None
    return (
        f"remark: the loss rises by {rise:.0%} at step {step}. Such a jump multiplies rounding, so that honest runs of "
        "other frameworks and layouts may be diverged. A smaller learning rate of the case avoids it."
    )


def override(options: argparse.Namespace) -> str | None:
    """Return the reason of --replace, or None. Raises UsageError when only one of --replace and --why is given."""
    if options.replace and not (options.why or "").strip():
        raise UsageError('--replace takes noise from a run beyond the limits: give the reason too, --why "..."')
    if options.why is not None and not options.replace:
        raise UsageError("--why gives the reason of --replace: give both, or neither")
    return options.why if options.replace else None


def write(reference: Reference, registry: Registry, plugins: Sequence[Path]) -> None:
    """Write a reference where it is stored; a new one beside its case, if that is in a folder of --plugins."""
    path = registry.references.get(reference.name)
    if path is None:
        path = _folder(reference, registry, plugins) / "configs" / "references" / f"{reference.name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump(reference))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}{room_left(error, path)}") from None
    print(f"{reference.name}: written, {len(reference.noise)} rows of noise")
    print(wrapped(f"  {shown(path)}", 2))


def _folder(reference: Reference, registry: Registry, plugins: Sequence[Path]) -> Path:
    """Return the folder of --plugins that has the case, else the first one; without any, the checkout."""
    case = registry.cases.get(split_name(reference.case)[0])
    own = [folder for folder in plugins if case and case.absolute().is_relative_to(folder.absolute())]
    return next(iter([*own, *plugins]), checkout())
