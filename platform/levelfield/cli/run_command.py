"""`run`: runs the given cases and suites, with progress on stderr and results on stdout."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.catalog.stored_references import reference_of
from levelfield.cli import dry_run, launch_options
from levelfield.cli.container_options import base_image
from levelfield.cli.flagperf_options import checked, with_files
from levelfield.cli.node_series import node_counts, series_entries, series_scaling
from levelfield.cli.plugins import registry_of
from levelfield.cli.store_options import intake
from levelfield.cli.suite_entries import chosen
from levelfield.cli.terminal import Terminal
from levelfield.compare import scaling_sheets
from levelfield.corpus import CorpusFacts
from levelfield.errors import INTERRUPTED, GateFailed, RunFailed, UsageError
from levelfield.plan.permissions import refuse_unknown
from levelfield.plan.request import UserRequest
from levelfield.report.tables import as_json
from levelfield.run import certificate_maker, runner, scheduler
from levelfield.rundir.directory import default_runs, find_run, read_plan
from levelfield.specs.base import parse
from levelfield.specs.derivation import Derivation
from levelfield.specs.hardware import NamedHardware, read_hardware
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result
from levelfield.specs.selector import MOST
from levelfield.specs.tuning import TuningChoice

MISALIGNED = ("diverged", "different")
Certify = Callable[[scheduler.Job], scheduler.CertificateAttempt]


def execute(options: argparse.Namespace) -> int:
    """Run all given cases and suites.

    Return 0 when every run is valid and none differs from its reference, 3 when a run is not valid, 4 when a valid run
    differs from its reference, 130 when interrupted.
    """
    terminal = Terminal(quiet=options.quiet or options.json, recorded=intake(options))
    if options.attach:
        return _ended([_attached(options, terminal)], options, terminal)
    registry = registry_of(options)
    work = scheduler.entries(registry, options.case, options.suite, _request(options))
    if options.nodes:
        work = series_entries(work, node_counts(options.nodes), options.weak)
    elif options.weak:
        raise UsageError("--weak: found no --nodes, expected a series such as --nodes 1,2,4")
    work, strategy = with_files(chosen(work, options.entry, options.framework), options)
    jobs = checked(scheduler.jobs(registry, work, _corpus(options.data, terminal)), strategy)
    if options.explain:
        return dry_run.explain([job.plan for job in jobs], registry, options.dry_run)
    if options.dry_run:
        stored = (scheduler.with_stored_certificate(job, terminal.say) for job in jobs)
        known = [certificate_maker.foreseen(registry, job, options.no_certificate) for job in stored]
        return dry_run.show([scheduler.planned(job) for job in known], _runs(options), as_json=options.json)
    certify = _certify(options, registry, terminal)
    return _ended(run_jobs(jobs, _runs(options), terminal, partial(reference_of, registry), certify), options, terminal)


def _ended(results: list[Result], options: argparse.Namespace, terminal: Terminal) -> int:
    """Print the results and return the exit code."""
    scaled = list(series_scaling(results, _runs(options))) if options.nodes else []
    if options.json:
        values = [scaling_sheets.as_values(found) for found in scaled if not isinstance(found, str)]
        print(as_json(results, values), end="")
    else:
        terminal.summary(results, _runs(options))
        terminal.scaled(scaled)
    return exit_code(results)


def _attached(options: argparse.Namespace, terminal: Terminal) -> Result:
    """Return the result of a run whose platform was killed, once its job has ended."""
    if options.case or options.suite or options.dry_run:
        raise UsageError("--attach: found --case, --suite or --dry-run beside it; it takes up one run that was started")
    runs = _runs(options)
    paths = find_run(runs, options.attach)
    vendor = registry_of(options).vendor(read_plan(paths).hardware.vendor)
    result = runner.attach(paths, vendor, terminal.listener())
    terminal.finished(result, runs)
    return result


def _certify(options: argparse.Namespace, registry: Registry, terminal: Terminal) -> Certify:
    if options.no_certificate:
        return certificate_maker.left_out
    return certificate_maker.CertificateMaker(registry, _runs(options), terminal.listener()).certify


def run_jobs(
    jobs: Iterator[scheduler.Job],
    runs: Path,
    terminal: Terminal,
    reference: Callable[[Plan], Reference | None],
    certify: Certify = scheduler.CertificateAttempt,
) -> list[Result]:
    """Run the jobs in order, with sentences on the terminal. Return their results; an interrupted run is the last."""
    results = []
    for result in scheduler.run_all(terminal.announced(jobs), runs, terminal.listener(), reference, certify):
        terminal.finished(result, runs)
        results.append(result)
    return results


def exit_code(results: list[Result]) -> int:
    """Return the exit code of a command with these results."""
    if any(r.status.is_interrupted for r in results):
        return INTERRUPTED
    if any(r.status.word != "valid" for r in results):
        return RunFailed.exit_code
    return GateFailed.exit_code if any(r.alignment.verdict in MISALIGNED for r in results) else 0


def _request(options: argparse.Namespace) -> UserRequest:
    if options.repeat is not None and not 1 <= options.repeat <= MOST["repeats"]:
        raise UsageError(f"--repeat: found {options.repeat}, expected 1 to {MOST['repeats']}")
    fields = {
        "layout": options.layout,
        "micro_batch": options.micro_batch,
        "virtual_pipeline": options.virtual_pipeline,
        "recompute": options.recompute,
        "compile": options.compile,
        "attention": options.attention,
        "threads": options.threads,
        "environment": dict(_variable(text) for text in options.env) or None,
    }
    choice = parse(TuningChoice, {k: v for k, v in fields.items() if v is not None}, "command line")
    return UserRequest(
        scale=options.scale,
        choice=choice,
        repeat=options.repeat,
        python=options.python,
        assume=options.dry_run,
        save_weights=options.save_weights,
        probe=options.probe,
        runtime=options.runtime,
        base_image=base_image(options),
        base_has_framework=options.base_has_framework,
        offline=options.offline,
        container_memory_bytes=options.container_memory,
        allow=_allowed(options.allow),
        hardware=_hardware(options.assume_hardware, options.dry_run),
        derivation=_derivation(options),
        launch=launch_options.launch_of(options),
        preflight=options.preflight,
        quiet_machine=options.quiet_machine,
    )


def _derivation(options: argparse.Namespace) -> Derivation:
    """Return the changes of the case. Raises UsageError for a number that no case can have."""
    given = {name: getattr(options, name) for name in Derivation.model_fields}
    return parse(Derivation, {name: value for name, value in given.items() if value is not None}, "command line")


def _hardware(text: str | None, dry_run: bool) -> NamedHardware | None:
    if text is None:
        return None
    if not dry_run:
        raise UsageError("--assume-hardware: found no --dry-run; add it, since a run needs real devices")
    try:
        return read_hardware(text)
    except ValueError as error:
        raise UsageError(f"--assume-hardware: {error}") from None


def _allowed(given: list[str]) -> tuple[str, ...]:
    refuse_unknown(given)
    return tuple(given)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env: found '{text}', expected NAME=VALUE")
    return name, value


def _corpus(prefix: str | None, terminal: Terminal) -> CorpusFacts | None:
    if prefix is None:
        return None
    from levelfield.corpus import check

    with terminal.bytes_progress(f"checking {prefix}") as progress:
        return check(prefix, progress=progress)


def _runs(options: argparse.Namespace) -> Path:
    return options.runs or default_runs()
