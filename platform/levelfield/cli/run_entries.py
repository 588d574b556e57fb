"""The entries of a run after its options: parts of suites, FlagPerf's own files, and series of numbers of nodes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from levelfield.cli.launch_options import hosts_of
from levelfield.compare.scaling import Scaling, scaling, without_batch
from levelfield.errors import LevelfieldError, UnknownName, UsageError
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.publish.flagperf_files import Strategy, read_strategy
from levelfield.run.scheduler import Job
from levelfield.specs.base import MOST_NODES
from levelfield.specs.result import Result
from levelfield.specs.selector import parse_selector
from levelfield.studies.compared_runs import FolderRuns

_FORM = "expected numbers of nodes with commas between them, such as 1,2,4"


def chosen(entries: Sequence[Entry], names: Sequence[str], framework: str | None) -> list[Entry]:
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
            yield scaling([folder.record(folder.find(run_id)) for run_id in run_ids])
        except LevelfieldError as error:
            yield f"{case} with {framework}: no scaling: {error}"
