"""`--strategy` and `--hosts`: FlagPerf's own files beside its case strings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from levelfield.cli.launch_options import hosts_of
from levelfield.errors import UsageError
from levelfield.plan.request import Entry, Suggestion
from levelfield.publish.flagperf_files import Strategy, read_strategy
from levelfield.run.scheduler import Job
from levelfield.specs.selector import parse_selector


def with_files(entries: Sequence[Entry], options: argparse.Namespace) -> tuple[list[Entry], Strategy | None]:
    """Return the cases with the strategy's free fields and the hosts' number of nodes, and the strategy.

    The command line's own choices win over the file. Raises UsageError for entries of suites, and for a wrong file.
    """
    launched = any(entry.request.launch for entry in entries)
    if (options.strategy or (options.hosts and not launched)) and any(entry.suite for entry in entries):
        raise UsageError("--strategy and --hosts: found a --suite, whose entries have their own; give --case only")
    found = list(entries)
    if options.hosts:
        hosts = hosts_of(options.hosts)
        found = [_launched(entry, len(hosts)) if launched else _on(entry, len(hosts), options) for entry in found]
    strategy = read_strategy(options.strategy) if options.strategy else None
    if strategy:
        suggestion = Suggestion(strategy.choice, f"file {strategy.path.name}")
        found = [replace(entry, suggestion=suggestion) for entry in found]
    return found, strategy


def checked(jobs: Iterator[Job], strategy: Strategy | None) -> Iterator[Job]:
    """Return the jobs; raises UsageError for the first that the strategy's file contradicts."""
    listed = list(jobs)
    for job in listed if strategy else ():
        strategy.check(job.plan)  # type: ignore[union-attr]
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
    if said is None and len(parts) < 3 and nodes > 1:
        raise UsageError(f"--hosts {options.hosts}: --case '{entry.text}' names no chip; write case:framework:chip")
    return replace(entry, text=f"{entry.text}:{nodes}") if said is None and len(parts) == 3 else entry
