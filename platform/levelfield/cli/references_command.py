"""`align references`: list references, make a run one, record its noise
`align references list`: list every reference with its origin and noise
`align references promote`: make a valid run the reference of its case
`align references noise`: record how far runs with other arithmetic differ
`align calibrate`: run a case with other arithmetic, record how far it differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.options import (
    RUN_HELP,
    add_chips_option,
    add_json_option,
    registry_of,
    runs_folder,
    usage_error_if_unwritable,
)
from levelfield.cli.store_options import add_recording_options, run_recorder
from levelfield.cli.terminal import Terminal, short_path
from levelfield.errors import GateFailed, RunFailed, UsageError
from levelfield.report.words import wrapped
from levelfield.rundir.directory import find_finished_run, find_run, read_plan, write_atomically

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.reference import Reference

_REFERENCES_HELP = """\
List and make references: the trainings that runs are compared with. They are
files in configs/references/.

examples:
  run_benchmarks.py align references list
  run_benchmarks.py align references promote RUN --reason "first run here"
  run_benchmarks.py align references noise NAME RUN1 RUN2
"""
_LIST_HELP = """\
List every reference with its origin and its number of noise rows.

example:
  run_benchmarks.py align references list
"""
_PROMOTE_HELP = """\
Make a valid run the reference of its case. Exit code 4 when the run fails
against the present reference and --replace is not given.

example:
  run_benchmarks.py align references promote RUN --reason "first run here"
"""
_NOISE_HELP = """\
Record in a reference how far runs with other arithmetic are from it. The limits
of later comparisons come from these rows. Exit code 4 when a run is beyond the
present limits: its noise would widen them until it holds. It is recorded anyway
with --replace --reason "...".

examples:
  run_benchmarks.py align references noise NAME RUN1 RUN2
  run_benchmarks.py align references noise NAME BUNDLE.zip:RUN
  run_benchmarks.py align references noise NAME RUN --replace --reason "kernels"
"""
_CALIBRATE_HELP = """\
Train a case with other arithmetic (layouts, threads, frameworks) and record the
noise in its reference. A run beyond the present limits is not recorded (exit
code 4), unless with --replace --reason "...".

example:
  run_benchmarks.py align calibrate gpt3_6.7B:torch
"""

# In a step the losses of the shipped references rise by 2 % at most. Two that rose by 46 and 110 % multiplied rounding
# by a hundred, and honest runs of other frameworks were diverged.
STEEP_RISE = 0.1


def _list_references(options: argparse.Namespace) -> int:
    from levelfield.judge.noise import independent_noise
    from levelfield.measure.calibration import describe_rows

    registry = registry_of(options)
    for name in sorted(registry.references):
        reference = registry.reference(name)
        origin = f"{reference.framework} {reference.framework_version}, {reference.layout}"
        print(f"{name}\n  {origin}, {reference.promoted[:10]} by {reference.by}")
        print(f"  {reference.why}\n  noise of {describe_rows(independent_noise(reference))}")
        for row in reference.noise:
            if row.why is not None:
                print(wrapped(f"  --replace: {row.changed}: {row.why}", 4))
    return 0


def _promote(options: argparse.Namespace) -> int:
    from levelfield.catalog.lookup import find_reference
    from levelfield.judge.promotion import add_bf16_gradients, promoted_reference

    registry, paths = registry_of(options), find_finished_run(runs_folder(options), options.run)
    plan = read_plan(paths)
    reference = promoted_reference(paths, options.reason, find_reference(registry, plan), options.replace)
    reference = add_bf16_gradients(reference, plan, map(registry.reference, sorted(registry.references)))
    _write_reference(reference, registry, options.plugins)
    if remark := jump_remark(reference):
        print(wrapped(remark, 2))
    return 0


def _record_noise(options: argparse.Namespace) -> int:
    """Record one row for each run. Where one is refused, the reference stays as it was."""
    from levelfield.judge.promotion import add_noise

    reason, registry = _override_reason(options.replace, options.reason), registry_of(options)
    reference = registry.reference(options.name)
    selected, run_ids = NamedRuns(runs_folder(options), options.run), set[str]()
    with ExitStack() as bundle_files:
        for paths, result in selected.results(registry, bundle_files):
            reference = add_noise(reference, paths, reason, result)
            run_ids.add(result.run_id)
    selected.raise_errors()
    for row in reference.noise:
        if row.run_id in run_ids:
            print(f"{row.changed}: first step {row.first_step:.1e}, curve {row.curve:.1e}")
    _write_reference(reference, registry, options.plugins)
    return 0


def jump_remark(reference: Reference) -> str | None:
    """Return what to do about a loss that jumps, or None where none does."""
    from levelfield.measure.curves import largest_rise

    step, rise = largest_rise(dict(enumerate(reference.losses, start=1)))
    if rise < STEEP_RISE:
        return None
    return (
        f"remark: the loss rises by {rise:.0%} at step {step}. Such a jump multiplies rounding, so that honest runs of "
        "other frameworks and layouts may be diverged. A smaller learning rate of the case avoids it."
    )


def _override_reason(replaces: bool, reason: str | None) -> str | None:
    """Return the reason of --replace, or None. Raises UsageError when only one of --replace and --reason is given."""
    if replaces and not (reason or "").strip():
        raise UsageError('--replace takes noise from a run beyond the limits: give the reason too, --reason "..."')
    if reason is not None and not replaces:
        raise UsageError("--reason gives the reason of --replace: give both, or neither")
    return reason if replaces else None


def _write_reference(reference: Reference, registry: Registry, plugins: Sequence[Path]) -> None:
    """Write a reference to its file. A new one goes beside its case, if that is in a folder of --plugins."""
    from levelfield.specs.base import dump
    from levelfield.specs.derivation import split_name

    path = registry.references.get(reference.name)
    if path is None:
        case = registry.all_cases.get(split_name(reference.case)[0])
        plugin_folders = [folder for folder in plugins if case and case.absolute().is_relative_to(folder.absolute())]
        folder = next(iter([*plugin_folders, *plugins]), checkout())
        path = folder / "configs" / "references" / f"{reference.name}.json"
    with usage_error_if_unwritable(path, ""):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump(reference), through_link=True)
    print(f"{reference.name}: written, {len(reference.noise)} rows of noise")
    print(wrapped(f"  {short_path(path)}", 2))


def _calibrate(options: argparse.Namespace) -> int:
    """Record one row of noise for every variation that the implementation offers.

    Return 3 when a run fails, else 4 when a run is refused as noise, else 0. The other runs' rows are recorded.
    """
    from levelfield.catalog.lookup import find_reference
    from levelfield.judge.promotion import add_noise
    from levelfield.plan.request import Entry, UserRequest
    from levelfield.run import scheduler
    from levelfield.studies.variations import variation_entries

    reason = _override_reason(options.replace, options.reason)
    registry, runs = registry_of(options), runs_folder(options)
    find_stored_reference = partial(find_reference, registry)
    (job,) = scheduler.plan_jobs(registry, [Entry(options.case, UserRequest(repeats=1))], None)
    plan = scheduler.plan_with_stored_peak(job)
    reference = find_stored_reference(plan)
    if reference is None:
        raise UsageError(
            f"{plan.case} has no reference at scale {plan.scale}; make one first: `align references promote RUN "
            "--reason ...`"
        )
    terminal = Terminal(quiet=options.json, record_run=run_recorder(options.store, options.no_store))
    has_failed_run, refusals = False, list[str]()
    jobs = scheduler.plan_jobs(registry, variation_entries(registry, plan), None)
    for result in scheduler.run_jobs(terminal.announce_jobs(jobs), runs, terminal.listener(), find_stored_reference):
        terminal.show_status(result)
        if result.status.word != "valid":
            has_failed_run = True
            continue
        try:
            reference = add_noise(reference, find_run(runs, result.run_id), reason)
        except GateFailed as error:
            refusals.append(str(error))
            continue
        # After each run: an interrupted calibration keeps what it has.
        _write_reference(reference, registry, options.plugins)
    if refusals and not has_failed_run:
        raise GateFailed("\n".join(refusals))
    for message in refusals:
        print(message, file=sys.stderr)
    return RunFailed.exit_code if has_failed_run else 0


def _add_promote_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--reason", required=True, metavar="TEXT", help="the reason; the reference stores it")
    parser.add_argument("--replace", action="store_true", help="even if the run fails against the present reference")


def _add_noise_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the reference")
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="valid runs of the case with another layout, thread count, framework or device; FILE.zip:RUN is one of a "
        "bundle",
    )
    _add_override_options(parser)


def _add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE:FRAMEWORK", help="a case string")
    _add_override_options(parser)
    add_recording_options(parser)
    add_json_option(parser)
    add_chips_option(parser)


def _add_override_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replace", action="store_true", help="take noise also from runs beyond the limits")
    parser.add_argument("--reason", metavar="TEXT", help="the reason for --replace; the reference stores it")


COMMANDS = {
    "align references": Command(_REFERENCES_HELP),
    "align references list": Command(_LIST_HELP, execute=_list_references),
    "align references promote": Command(_PROMOTE_HELP, _add_promote_options, _promote),
    "align references noise": Command(_NOISE_HELP, _add_noise_options, _record_noise),
    "align calibrate": Command(_CALIBRATE_HELP, _add_calibrate_options, _calibrate, trains=True),
}
