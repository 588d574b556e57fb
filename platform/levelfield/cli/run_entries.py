"""The entries that the options of a run name: runs or shows them, and gives the exit code."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from levelfield.catalog.lookup import find_reference
from levelfield.catalog.registry import Registry
from levelfield.cli import dry_run
from levelfield.cli.options import registry_of, runs_folder
from levelfield.cli.run_control_command import show_call
from levelfield.cli.site_options import base_image, launch_plan, load_hosts, node_power_site
from levelfield.cli.store_options import run_recorder
from levelfield.cli.terminal import Terminal, repeats_digests
from levelfield.compare import scaling
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, GateFailed, RunFailed, UnknownName, UsageError
from levelfield.plan.permissions import refuse_unknown_permissions
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.publish.flagperf_files import Strategy, read_strategy
from levelfield.report.tables import format_json as results_as_json
from levelfield.run import certificate_maker, runner, scheduler, side_by_side
from levelfield.run.detaching import Detachment, fork_platform
from levelfield.run.scheduler import CertificateAttempt, Job
from levelfield.rundir.detached_calls import new_call_id
from levelfield.specs.base import load, parse
from levelfield.specs.derivation import Derivation
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import MAX_EXPLAINED_STEPS
from levelfield.specs.result import Result
from levelfield.specs.selector import MAX_COUNTS, parse_selector
from levelfield.specs.suite import NamedHardware, read_hardware
from levelfield.specs.tuning import TuningChoice
from levelfield.studies.node_series import node_counts, series_entries, series_scaling

_MISALIGNED_VERDICTS = ("diverged", "different")
Certify = Callable[[Job], CertificateAttempt]  # proves first that the case trains aligned in fp32, where it has to


def run_or_show(options: argparse.Namespace) -> int:
    """Run what the options name, or show it. Return the exit code of `run`."""
    is_quiet, runs = options.quiet or options.json, runs_folder(options)
    terminal = Terminal(quiet=is_quiet, record_run=run_recorder(options.store, options.no_store))
    registry = registry_of(options)
    if options.detach and (options.dry_run or options.explain):
        raise UsageError("--detach: found --dry-run or --explain beside it, which run nothing; leave one of them out")
    detachment = fork_platform(partial(show_call, runs, options.json)) if options.detach else None
    entries = scheduler.list_entries(registry, options.case, options.suite, _user_request(options))
    if options.nodes:
        entries = series_entries(entries, node_counts(options.nodes), options.weak)
    elif options.weak:
        raise UsageError("--weak: found no --nodes, expected a series such as --nodes 1,2,4")
    entries = _select_entries(entries, options.entry, options.framework)
    entries, strategy = _apply_flagperf_files(entries, options.strategy, options.hosts, options.dry_run)
    jobs = scheduler.plan_jobs(registry, entries, None if options.data is None else terminal.check_corpus(options.data))
    if strategy:
        jobs = _check_strategy(jobs, strategy)
    if options.parallel is not None:
        jobs = _check_parallel(list(jobs), options.parallel)
    if options.explain:
        return dry_run.explain([job.plan for job in jobs], registry, options.dry_run)
    if options.dry_run:
        certified = (scheduler.add_stored_certificate(job, terminal.say) for job in jobs)
        previewed = [certificate_maker.preview_certificate(registry, job, options.no_certificate) for job in certified]
        return dry_run.show(list(map(scheduler.plan_with_stored_peak, previewed)), runs, as_json=options.json)
    if detachment:
        jobs = _detach(detachment, list(jobs), options, runs)
    certify = certificate_maker.skip_certification
    if not options.no_certificate:
        certify = certificate_maker.CertificateMaker(registry, runs, terminal.listener()).certify
    if options.parallel is not None:
        return _run_parallel(list(jobs), options, terminal, registry, certify)
    results = run_jobs(jobs, runs, terminal, registry, certify)
    return print_results(results, runs, bool(options.nodes), options.json, terminal)


def _detach(detachment: Detachment, jobs: list[Job], options: argparse.Namespace, runs: Path) -> Iterator[Job]:
    """Leave the shell, and return the jobs. Raises UsageError for a job that its launcher refuses."""
    for job in jobs:
        runner.check_request(job.plan, runs)
    run_ids = [job.plan.run_id for job in jobs]
    name = Path(options.suite[0]).stem if options.suite else "cases"
    detachment.leave_shell(runs, run_ids[0] if len(jobs) == 1 else new_call_id(name), run_ids, options.plugins)
    return iter(jobs)


def print_results(results: list[Result], runs: Path, is_series: bool, as_json: bool, terminal: Terminal) -> int:
    scaling_tables = list(series_scaling(results, runs)) if is_series else []
    if as_json:
        series_values = [scaling.scaling_json(table) for table in scaling_tables if not isinstance(table, str)]
        print(results_as_json(results, repeats_digests(results, runs), series_values), end="")
    else:
        terminal.print_summary(results, runs)
        terminal.print_scaling(scaling_tables)
    return exit_code(results)


def run_jobs(
    jobs: Iterator[Job], runs: Path, terminal: Terminal, registry: Registry, certify: Certify = CertificateAttempt
) -> list[Result]:
    """Run the jobs in order, with sentences on the terminal. Return their results; an interrupted run is the last."""
    results, reference = [], partial(find_reference, registry)
    for result in scheduler.run_jobs(terminal.announce_jobs(jobs), runs, terminal.listener(), reference, certify):
        terminal.show_status(result)
        results.append(result)
    return results


def _check_parallel(jobs: list[Job], at_once: int) -> Iterator[Job]:
    """Return the jobs. Raises UsageError where they cannot run side by side."""
    if at_once < 1:
        raise UsageError(f"--parallel: found {at_once}, expected how many entries run at once, such as 4")
    groups = side_by_side.group_by_entry(jobs)
    if at_once > 1:
        side_by_side.require_separate_places(groups)
    return iter(jobs)


def _run_parallel(
    jobs: list[Job], options: argparse.Namespace, terminal: Terminal, registry: Registry, certify: Certify
) -> int:
    """Run entries side by side, after the certificates that they share. Print one table, and return the exit code."""
    runs, certified_jobs = runs_folder(options), []
    for job in jobs:
        attempt = certify(scheduler.add_stored_certificate(job, terminal.say))
        if attempt.interrupted_result:
            return print_results([attempt.interrupted_result], runs, False, options.json, terminal)
        certified_jobs.append(attempt.job)
    groups = side_by_side.group_by_entry(certified_jobs)

    def run_group(name: str, jobs: Sequence[Job]) -> int:
        return terminal.run_entry(name, lambda narrow: exit_code(run_jobs(iter(jobs), runs, narrow, registry)))

    codes = side_by_side.run_groups(groups, options.parallel, run_group, terminal.show_entry_line)
    paths = [RunPaths(runs / job.plan.run_id) for job in certified_jobs]
    results = [load(Result, run.result) for run in paths if run.result.exists()]
    for run in paths:
        if run.plan.exists() and not run.result.exists():
            terminal.note(f"{run.root.name} has no result; `evidence collect` judges what it measured")
    code = print_results(results, runs, bool(options.nodes), options.json, terminal)
    if INTERRUPTED in codes.values():
        return INTERRUPTED
    # an entry without a result has said why, and its error has the exit code
    have_results = {result.run_id for result in results}
    failed = (codes[name] for name, jobs in groups.items() if any(job.plan.run_id not in have_results for job in jobs))
    return next((failed_code if failed_code > 0 else PLATFORM_FAULT for failed_code in failed), code)


def exit_code(results: list[Result]) -> int:
    """Return the exit code of a command with these results."""
    if any(r.status.is_interrupted for r in results):
        return INTERRUPTED
    if any(r.status.word != "valid" for r in results):
        return RunFailed.exit_code
    return GateFailed.exit_code if any(r.alignment.verdict in _MISALIGNED_VERDICTS for r in results) else 0


def _user_request(options: argparse.Namespace) -> UserRequest:
    if options.explain_step is not None and not 1 <= options.explain_step <= MAX_EXPLAINED_STEPS:
        raise UsageError(f"--explain-step: found {options.explain_step}, expected 1 to {MAX_EXPLAINED_STEPS} steps")
    if options.repeat is not None and not 1 <= options.repeat <= MAX_COUNTS["repeats"]:
        raise UsageError(f"--repeat: found {options.repeat}, expected 1 to {MAX_COUNTS['repeats']}")
    refuse_unknown_permissions(options.allow)
    return UserRequest(
        scale=options.scale,
        choice=tuning_choice(options, _option_values(options, ("strategy",))),
        base=options.base,
        repeats=options.repeat,
        python=options.python,
        may_lack_hardware=options.dry_run,
        save_weights=options.save_weights,
        explain_steps=options.explain_step,
        probe=options.probe,
        runtime=options.runtime,
        base_image=base_image(options.base_image, options.runtime),
        base_has_framework=options.base_has_framework,
        offline=options.offline,
        container_memory_bytes=options.container_memory,
        allow=tuple(options.allow),
        assumed_hardware=_parse_assumed_hardware(options.assume_hardware, options.dry_run),
        derivation=parse(Derivation, _option_values(options, Derivation.model_fields), "command line"),
        launch=launch_plan(options.launcher, options.site, options.hosts, options.plugins),
        preflight=options.preflight,
        quiet_machine=options.quiet_machine,
        devices=_parse_device_numbers(options.devices),
        node_power=node_power_site(options.site),
    )


def tuning_choice(options: argparse.Namespace, other_options: Iterable[str] = ()) -> TuningChoice:
    """Return the free fields that the options choose.

    other_options: options that were set and that also choose free fields, so that --base excludes them.
    Raises UsageError.
    """
    fields = _option_values(options, FREE_FIELDS)
    if options.env:
        variables = [text.partition("=") for text in options.env]
        for name, equals, value in variables:
            if not equals or not name:
                raise UsageError(f"--env: found '{name}{equals}{value}', expected NAME=VALUE")
        fields["environment"] = {name: value for name, _, value in variables}
    if options.base and (conflicting := [*fields, *other_options]):
        raise UsageError(f"--base: found {', '.join(conflicting)} as well, expected the defaults alone; leave one out")
    return parse(TuningChoice, fields, "command line")


def _option_values(options: argparse.Namespace, names: Iterable[str]) -> dict[str, object]:
    """Return the values of those of these options that are set."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _parse_device_numbers(text: str | None) -> tuple[int, ...]:
    """Return the device numbers that `0-3,6` stands for; none for None."""
    if text is None:
        return ()
    parts = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part) for part in text.split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    numbers = [number for numbers in ranges for number in numbers]
    if len(ranges) < len(parts) or not all(ranges) or len(set(numbers)) < len(numbers):
        raise UsageError(f"--devices: found '{text[:40]}', expected different device numbers, such as 0-3 or 0,2,5")
    return tuple(numbers)


def _parse_assumed_hardware(text: str | None, dry_run: bool) -> NamedHardware | None:
    if text is None:
        return None
    if not dry_run:
        raise UsageError("--assume-hardware: found no --dry-run; add it, since a run needs real devices")
    try:
        return read_hardware(text)
    except ValueError as error:
        raise UsageError(f"--assume-hardware: {error}") from None


def _select_entries(entries: Sequence[Entry], names: Sequence[str], framework: str | None) -> list[Entry]:
    """Return the entries with these names, or all where there are none; with `framework`, they run by it.

    Cases outside of suites stay as they are.

    Raises UsageError where no suite is given, UnknownName for a name that no suite has.
    """
    entry_names = [entry.suite_entry.name for entry in entries if entry.suite_entry]
    if (names or framework) and not entry_names:
        option = "--entry" if names else "--framework"
        raise UsageError(
            f"{option}: found no --suite; it is for the entries of suites. A case string names both itself"
        )
    for name in names:
        if name not in entry_names:
            raise UnknownName("entry of the suites", name, entry_names)
    matching = []
    for entry in entries:
        if entry.suite_entry and framework:
            case, _, *rest = entry.text.split(":")
            entry = replace(entry, text=":".join((case, framework, *rest)))
        if not names or entry.suite_entry is None or entry.suite_entry.name in names:
            matching.append(entry)
    return matching


def _apply_flagperf_files(
    entries: Sequence[Entry], strategy_file: Path | None, hosts_file: Path | None, dry_run: bool
) -> tuple[list[Entry], Strategy | None]:
    """Return the cases with the strategy's free fields and the hosts' number of nodes, and the strategy.

    The command line's own choices win over the file. Raises UsageError for entries of suites, and for a wrong file.
    """
    is_launched = any(entry.request.launch for entry in entries)
    if (strategy_file or (hosts_file and not is_launched)) and any(entry.suite_entry for entry in entries):
        raise UsageError("--strategy and --hosts: found a --suite, whose entries have their own; give --case only")
    work = list(entries)
    if hosts_file:
        nodes = len(load_hosts(hosts_file))
        for entry in () if is_launched else work:
            _check_nodes(entry.text, nodes, hosts_file, dry_run)
        # A case string that names a chip and no number of nodes is run on all hosts.
        texts = [f"{entry.text}:{nodes}" if entry.text.count(":") == 2 else entry.text for entry in work]
        work = [replace(entry, text=text) for entry, text in zip(work, texts, strict=True)]
    if strategy_file is None:
        return work, None
    strategy = read_strategy(strategy_file)
    suggestion = Suggestion(strategy.choice, f"file {strategy.path.name}")
    return [replace(entry, suggestion=suggestion) for entry in work], strategy


def _check_nodes(case: str, nodes: int, hosts_file: Path, dry_run: bool) -> None:
    """Raise UsageError for a case string that cannot be planned on so many nodes."""
    parts = case.count(":") + 1
    stated_nodes = parse_selector(case).nodes if parts > 3 else None
    if stated_nodes not in (None, nodes):
        raise UsageError(f"--hosts {hosts_file}: found {nodes} hosts, expected {stated_nodes} as in --case '{case}'")
    if nodes > 1 and not dry_run:
        raise UsageError(
            f"--hosts {hosts_file}: found {nodes} hosts; add --launcher ssh to run on them, or --dry-run for a plan"
        )
    if parts < 3 and nodes > 1:
        raise UsageError(f"--hosts {hosts_file}: --case '{case}' names no chip; write case:framework:chip")


def _check_strategy(jobs: Iterator[Job], strategy: Strategy) -> Iterator[Job]:
    """Return the jobs. Raises UsageError, before any runs, for the first that the strategy's file contradicts."""
    planned = list(jobs)
    for job in planned:
        strategy.check(job.plan)
    return iter(planned)
