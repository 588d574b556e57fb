"""Plans the work of the command line, runs it in order, and returns the results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.contracts.vendor import Vendor
from levelfield.corpus import CorpusFacts
from levelfield.errors import NotHere, UsageError
from levelfield.plan.decision import Decision
from levelfield.plan.peak import with_peak
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.run import peak_probe, runner
from levelfield.rundir import directory
from levelfield.specs.hardware import NamedHardware
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference, reference_name
from levelfield.specs.result import Result
from levelfield.specs.suite import EntryUsed, Suite, SuiteEntry


@dataclass(frozen=True)
class Job:
    """A planned run. reference: a callback that reads the run's reference at its start."""

    plan: Plan
    vendor: Vendor
    reference: Callable[[], Reference | None]


def entries(registry: Registry, cases: Sequence[str], suites: Sequence[str], request: UserRequest) -> list[Entry]:
    """Return all work in the order of the command line, cases first. Raises UsageError without any."""
    found = [Entry(text, request) for text in cases]
    for name in suites:
        found += _entries_of(registry, name, request)
    if not found:
        raise UsageError("nothing to run: give --case CASE:FRAMEWORK or --suite NAME (`list` shows the names)")
    return found


def jobs(registry: Registry, work: Sequence[Entry], corpus: CorpusFacts | None) -> Iterator[Job]:
    """Return every run of every entry. All plans are made first, so that a typing error stops before any run."""
    made: list[Job] = []
    for entry in work:
        with _named_in_errors(entry.suite):
            made += _jobs_or_refusals(registry, entry, corpus)
    yield from made


@contextmanager
def _named_in_errors(entry: EntryUsed | None) -> Iterator[None]:
    """Add the suite's entry to the message of a UsageError in the block."""
    try:
        yield
    except UsageError as error:
        if entry is None:
            raise
        raise UsageError(f"suite {entry.suite}, entry '{entry.name}': {error}") from None


def planned(job: Job) -> Plan:
    """Return the plan before the run, with the peak of an earlier probe of this machine."""
    return with_peak(job.plan, peak_probe.known_peaks(job.plan, platform.node()))


def run_all(work: Iterator[Job], runs: Path, listener: runner.Listener) -> Iterator[Result]:
    """Run the jobs in order and yield each result. An interrupted run is the last one."""
    for job in work:
        if job.plan.refusal:
            result = runner.refuse(job.plan, runs, job.plan.refusal)
        else:
            result = runner.run(job.plan, job.vendor, runs, listener, platform.node(), job.reference())
        yield result
        if result.status.failure == "interrupted":
            return


def _jobs_or_refusals(registry: Registry, entry: Entry, corpus: CorpusFacts | None) -> list[Job]:
    """Return the entry's runs. A suite's entry that cannot run here gives runs that record the reason."""
    try:
        return list(_jobs_of(registry, place(registry, entry), corpus))
    except NotHere as error:
        if entry.suite is None:
            raise
        return list(_jobs_of(registry, place(registry, entry, refusal=str(error)), corpus))


def _jobs_of(registry: Registry, decision: Decision, corpus: CorpusFacts | None) -> Iterator[Job]:
    """Return one job for each repeat. Only the run id and the number of the repeat differ in their plans."""
    found, first = decision.found, None
    for number in range(1, decision.selector.repeats + 1):
        run_id = directory.new_run_id(found.case.name, found.implementation.framework, found.vendor.name)
        first = first or resolve(decision, run_id, corpus)
        plan = first.model_copy(update={"run_id": run_id, "repeat": number})
        yield Job(plan, registry.vendor(found.vendor.name), partial(reference_of, registry, plan))


def reference_of(registry: Registry, plan: Plan) -> Reference | None:
    """Return the reference of the plan's case, scale and precision, else that of another case with the same work.

    Cases that differ at full scale only have the same work at smoke scale. Raises DocumentError for a damaged one.
    """
    name = reference_name(plan.case, plan.scale, plan.work.training.precision)
    if name in registry.references:
        return registry.reference(name)
    others = (registry.reference(other) for other in sorted(registry.references))
    return next((found for found in others if found.identity.work == plan.work_digest), None)


def _suite(registry: Registry, name: str) -> Suite:
    path = Path(name)
    return registry.document(Suite, path) if path.suffix in (".yaml", ".yml", ".json") else registry.suite(name)


def _entries_of(registry: Registry, name: str, request: UserRequest) -> list[Entry]:
    suite = _suite(registry, name)
    return [_entry(Path(name).stem, e, e.hardware or suite.hardware, request) for e in suite.entries]


def _entry(suite: str, entry: SuiteEntry, hardware: NamedHardware | None, request: UserRequest) -> Entry:
    return Entry(
        entry.case,
        request,
        scale=entry.scale,
        suggestion=Suggestion(entry.set, f"suite {suite}"),
        hardware=hardware,
        suite=EntryUsed(suite=suite, name=entry.label, group=entry.group, note=entry.note),
    )
