"""The entries that the options of a run name, their jobs run or shown, and the exit code."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from levelfield.catalog.lookup import reference_of
from levelfield.catalog.registry import Registry
from levelfield.cli import dry_run
from levelfield.cli.options import registry_of, runs_of
from levelfield.cli.site_options import base_image, hosts_of, launch_of, node_power_of
from levelfield.cli.store_options import intake
from levelfield.cli.terminal import Terminal, plan_digests
from levelfield.compare import scaling
from levelfield.compare.scaling import Scaling, without_batch
from levelfield.errors import INTERRUPTED, GateFailed, LevelfieldError, RunFailed, UnknownName, UsageError
from levelfield.plan.permissions import refuse_unknown
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.publish.flagperf_files import Strategy, read_strategy
from levelfield.report.tables import as_json
from levelfield.run import certificate_maker, runner, scheduler
from levelfield.run.scheduler import CertificateAttempt, Job
from levelfield.rundir.directory import find_run, read_plan
from levelfield.specs.base import MOST_NODES, parse
from levelfield.specs.derivation import Derivation
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.plan import MOST_EXPLAINED
from levelfield.specs.result import Result
from levelfield.specs.selector import MOST, parse_selector
from levelfield.specs.suite import NamedHardware, read_hardware
from levelfield.specs.tuning import TuningChoice
from levelfield.studies.compared_runs import FolderRuns

_MISALIGNED = ("diverged", "different")
_FORM = "expected numbers of nodes with commas between them, such as 1,2,4"
Certify = Callable[[Job], CertificateAttempt]


def run_all(options: argparse.Namespace) -> int:
    """Run what the options name, or show it. Return the exit code of `run`."""
    terminal, runs = Terminal(quiet=options.quiet or options.json, recorded=intake(options)), runs_of(options)
    if options.attach:
        return _ended([_attached(options, terminal)], options, terminal)
    registry = registry_of(options)
    work = scheduler.entries(registry, options.case, options.suite, _request(options))
    if options.nodes:
        work = series_entries(work, node_counts(options.nodes), options.weak)
    elif options.weak:
        raise UsageError("--weak: found no --nodes, expected a series such as --nodes 1,2,4")
    work, strategy = _with_files(_chosen(work, options.entry, options.framework), options)
    jobs = scheduler.jobs(registry, work, None if options.data is None else terminal.checked_corpus(options.data))
    if strategy:
        jobs = _checked(jobs, strategy)
    if options.explain:
        return dry_run.explain([job.plan for job in jobs], registry, options.dry_run)
    if options.dry_run:
        stored = (scheduler.with_stored_certificate(job, terminal.say) for job in jobs)
        known = [certificate_maker.foreseen(registry, job, options.no_certificate) for job in stored]
        return dry_run.show([scheduler.planned(job) for job in known], runs, as_json=options.json)
    certify = certificate_maker.left_out
    if not options.no_certificate:
        certify = certificate_maker.CertificateMaker(registry, runs, terminal.listener()).certify
    return _ended(run_jobs(jobs, runs, terminal, registry, certify), options, terminal)


def _ended(results: list[Result], options: argparse.Namespace, terminal: Terminal) -> int:
    scaled = list(series_scaling(results, runs_of(options))) if options.nodes else []
    if options.json:
        values = [scaling.as_values(found) for found in scaled if not isinstance(found, str)]
        print(as_json(results, plan_digests(results, runs_of(options)), values), end="")
    else:
        terminal.summary(results, runs_of(options))
        terminal.scaled(scaled)
    return exit_code(results)


def _attached(options: argparse.Namespace, terminal: Terminal) -> Result:
    """Return the result of a run whose platform was killed, once its job has ended."""
    if options.case or options.suite or options.dry_run:
        raise UsageError("--attach: found --case, --suite or --dry-run beside it; it takes up one run that was started")
    runs = runs_of(options)
    paths = find_run(runs, options.attach)
    vendor = registry_of(options).vendor(read_plan(paths).hardware.vendor)
    result = runner.attach(paths, vendor, terminal.listener())
    terminal.finished(result)
    return result


def run_jobs(
    jobs: Iterator[Job],
    runs: Path,
    terminal: Terminal,
    registry: Registry,
    certify: Certify = CertificateAttempt,
) -> list[Result]:
    """Run the jobs in order, with sentences on the terminal. Return their results; an interrupted run is the last."""
    results, reference = [], partial(reference_of, registry)
    for result in scheduler.run_all(terminal.announced(jobs), runs, terminal.listener(), reference, certify):
        terminal.finished(result)
        results.append(result)
    return results


def exit_code(results: list[Result]) -> int:
    """Return the exit code of a command with these results."""
    if any(r.status.is_interrupted for r in results):
        return INTERRUPTED
    if any(r.status.word != "valid" for r in results):
        return RunFailed.exit_code
    return GateFailed.exit_code if any(r.alignment.verdict in _MISALIGNED for r in results) else 0


def _request(options: argparse.Namespace) -> UserRequest:
    if options.repeat is not None and not 1 <= options.repeat <= MOST["repeats"]:
        raise UsageError(f"--repeat: found {options.repeat}, expected 1 to {MOST['repeats']}")
    refuse_unknown(options.allow)
    return UserRequest(
        scale=options.scale,
        choice=choice_of(options, _given(options, ("strategy",))),
        base=options.base,
        repeat=options.repeat,
        python=options.python,
        assume=options.dry_run,
        save_weights=options.save_weights,
        explain_steps=_explained(options.explain_step),
        probe=options.probe,
        runtime=options.runtime,
        base_image=base_image(options),
        base_has_framework=options.base_has_framework,
        offline=options.offline,
        container_memory_bytes=options.container_memory,
        allow=tuple(options.allow),
        hardware=_hardware(options.assume_hardware, options.dry_run),
        derivation=parse(Derivation, _given(options, Derivation.model_fields), "command line"),
        launch=launch_of(options),
        preflight=options.preflight,
        quiet_machine=options.quiet_machine,
        devices=_devices(options.devices),
        node_power=node_power_of(options),
    )


def _explained(steps: int | None) -> int | None:
    """Return how many steps are to be recorded after the training; None: none. Raises UsageError."""
    if steps is not None and not 1 <= steps <= MOST_EXPLAINED:
        raise UsageError(f"--explain-step: found {steps}, expected 1 to {MOST_EXPLAINED} steps")
    return steps


def choice_of(options: argparse.Namespace, further: Iterable[str] = ()) -> TuningChoice:
    """Return the free fields that the options choose. further: what else chooses some. Raises UsageError."""
    chosen = _given(options, FREE_FIELDS)
    if options.env:
        chosen["environment"] = dict(map(_variable, options.env))
    if options.base and (named := [*chosen, *further]):
        raise UsageError(f"--base: found {', '.join(named)} as well, expected the defaults alone; leave one out")
    return parse(TuningChoice, chosen, "command line")


def _devices(text: str | None) -> tuple[int, ...]:
    """Return the device numbers of `0-3,6`; empty for None."""
    if text is None:
        return ()
    parts = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part) for part in text.split(",")]
    found = [n for part in parts if part for n in range(int(part[1]), int(part[2] or part[1]) + 1)]
    falls = any(part[2] and int(part[2]) < int(part[1]) for part in parts if part)
    if not all(parts) or falls or len(set(found)) < len(found):
        raise UsageError(f"--devices: found '{text[:40]}', expected different device numbers, such as 0-3 or 0,2,5")
    return tuple(found)


def _given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _hardware(text: str | None, dry_run: bool) -> NamedHardware | None:
    if text is None:
        return None
    if not dry_run:
        raise UsageError("--assume-hardware: found no --dry-run; add it, since a run needs real devices")
    try:
        return read_hardware(text)
    except ValueError as error:
        raise UsageError(f"--assume-hardware: {error}") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env: found '{text}', expected NAME=VALUE")
    return name, value


def _chosen(entries: Sequence[Entry], names: Sequence[str], framework: str | None) -> list[Entry]:
    """Return the entries of these names, all without names, through `framework`. Cases outside of suites stay.

    Raises UsageError where no suite is given, UnknownName for a name that no suite has.
    """
    known = [entry.suite.name for entry in entries if entry.suite]
    if (names or framework) and not known:
        option = "--entry" if names else "--framework"
        raise UsageError(
            f"{option}: found no --suite; it is for the entries of suites. A case string names both itself"
        )
    for name in names:
        if name not in known:
            raise UnknownName("entry of the suites", name, known)
    kept = [entry for entry in entries if not names or entry.suite is None or entry.suite.name in names]
    return [_by(entry, framework) if framework and entry.suite else entry for entry in kept]


def _by(entry: Entry, framework: str) -> Entry:
    case, _, *rest = entry.text.split(":")
    return replace(entry, text=":".join((case, framework, *rest)))


def _with_files(entries: Sequence[Entry], options: argparse.Namespace) -> tuple[list[Entry], Strategy | None]:
    """Return the cases with the strategy's free fields and the hosts' number of nodes, and the strategy.

    The command line's own choices win over the file. Raises UsageError for entries of suites, and for a wrong file.
    """
    launched = any(entry.request.launch for entry in entries)
    if (options.strategy or (options.hosts and not launched)) and any(entry.suite for entry in entries):
        raise UsageError("--strategy and --hosts: found a --suite, whose entries have their own; give --case only")
    found = list(entries)
    if options.hosts:
        nodes = len(hosts_of(options.hosts))
        found = [_launched(entry, nodes) if launched else _on(entry, nodes, options) for entry in found]
    strategy = read_strategy(options.strategy) if options.strategy else None
    if strategy:
        suggestion = Suggestion(strategy.choice, f"file {strategy.path.name}")
        found = [replace(entry, suggestion=suggestion) for entry in found]
    return found, strategy


def _checked(jobs: Iterator[Job], strategy: Strategy) -> Iterator[Job]:
    """Return the jobs; raises UsageError for the first that the strategy's file contradicts, before any runs."""
    listed = list(jobs)
    for job in listed:
        strategy.check(job.plan)
    return iter(listed)


def _launched(entry: Entry, nodes: int) -> Entry:
    """Return the entry on all hosts, where its case string names a chip and no number of nodes."""
    return replace(entry, text=f"{entry.text}:{nodes}") if len(entry.text.split(":")) == 3 else entry


def _on(entry: Entry, nodes: int, options: argparse.Namespace) -> Entry:
    """Return the entry on so many nodes, where its case string names none."""
    parts = entry.text.split(":")
    said = parse_selector(entry.text).nodes if len(parts) > 3 else None
    if said not in (None, nodes):
        raise UsageError(f"--hosts {options.hosts}: found {nodes} hosts, expected {said} as in --case '{entry.text}'")
    if nodes > 1 and not options.dry_run:
        raise UsageError(
            f"--hosts {options.hosts}: found {nodes} hosts; add --launcher ssh to run on them, or --dry-run for a plan"
        )
    if len(parts) < 3 and nodes > 1:
        raise UsageError(f"--hosts {options.hosts}: --case '{entry.text}' names no chip; write case:framework:chip")
    return _launched(entry, nodes)


def node_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of --nodes, the smallest first. Raises UsageError for what is no series."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= MOST_NODES for part in parts):
        raise UsageError(f"--nodes: found '{text[:60]}', {_FORM}")
    counts = tuple(sorted(set(map(int, parts))))
    if len(counts) < len(parts) or len(counts) < 2:
        raise UsageError(f"--nodes: found '{text[:60]}', expected at least two numbers, each once, such as 1,2,4")
    return counts


def series_entries(entries: Sequence[Entry], counts: Sequence[int], is_weak: bool) -> list[Entry]:
    """Return each case on each number of nodes. Raises UsageError for an entry of a suite, and without a chip.

    is_weak: the global batch, which is then given for the smallest number, grows with the nodes.
    """
    return [_on_nodes(entry, nodes, counts[0], is_weak) for entry in entries for nodes in counts]


def _on_nodes(entry: Entry, nodes: int, fewest: int, is_weak: bool) -> Entry:
    if entry.suite is not None:
        raise UsageError("--nodes: found --suite; a suite says itself on how many nodes each entry runs")
    parts = entry.text.split(":")
    if len(parts) < 3:
        raise UsageError(f"--nodes: --case '{entry.text}' names no chip, expected case:framework:chip[:nodes:devices]")
    text = ":".join((*parts[:3], str(nodes), *parts[4:]))
    return replace(entry, text=text, request=_grown(entry, nodes, fewest) if is_weak else entry.request)


def _grown(entry: Entry, nodes: int, fewest: int) -> UserRequest:
    derivation = entry.request.derivation
    batch = derivation.global_batch
    if batch is None:
        raise UsageError("--weak: found no --global-batch, expected that of the smallest number of nodes")
    if batch * nodes % fewest:
        raise UsageError(f"--weak: {batch} x {nodes} / {fewest} sequences is no whole number; change --global-batch")
    return replace(entry.request, derivation=derivation.model_copy(update={"global_batch": batch * nodes // fewest}))


def series_scaling(results: Sequence[Result], runs: Path) -> Iterator[Scaling | str]:
    """Yield the scaling of each training and framework; a sentence where there is none."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        groups.setdefault((without_batch(result.case), result.framework, result.chip), []).append(result.run_id)
    folder = FolderRuns(runs)
    for (case, framework, _), run_ids in groups.items():
        try:
            yield scaling.scaling([folder.record(folder.find(run_id)) for run_id in run_ids])
        except LevelfieldError as error:
            yield f"{case} with {framework}: no scaling: {error}"
