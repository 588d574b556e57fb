"""From what was asked on the command line to runs, one after another, and their results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.contracts.vendor import Vendor
from levelfield.corpus import CorpusFacts
from levelfield.errors import NotHere, UsageError
from levelfield.plan import resolve
from levelfield.plan.peak import Measured
from levelfield.plan.placement import place
from levelfield.plan.resolve import Asked
from levelfield.run import peak_probe, runner
from levelfield.rundir import directory
from levelfield.specs.base import load
from levelfield.specs.hardware import NamedHardware
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference, reference_name
from levelfield.specs.result import Result
from levelfield.specs.selector import parse_selector
from levelfield.specs.suite import EntryUsed, Suite, SuiteEntry


@dataclass(frozen=True)
class Entry:
    """One line of work: a case string, what was asked beside it, and the hardware that a suite names for it."""

    text: str
    asked: Asked
    hardware: NamedHardware | None = None


@dataclass(frozen=True)
class Job:
    """One run to come: makes its plan when the machine's measured peaks are known."""

    plan_with: Callable[[Measured], Plan]
    vendor: Vendor
    reference_of: Callable[[Plan], Reference | None]


def entries(registry: Registry, cases: Sequence[str], suites: Sequence[str], asked: Asked) -> list[Entry]:
    """All work in the order it was asked for. What the command line says wins over a suite's entry."""
    found = [Entry(text, asked) for text in cases]
    for name in suites:
        found += _entries_of(registry, name, asked)
    if not found:
        raise UsageError("nothing to run: give --case CASE:FRAMEWORK or --suite NAME (`list` shows what there is)")
    return found


def jobs(registry: Registry, work: Sequence[Entry], repeat: int | None, corpus: CorpusFacts | None) -> Iterator[Job]:
    """Every run of every entry. All are checked before the first is handed out: a typing error costs no run."""
    made: list[Job] = []
    for entry in work:
        with _blamed(entry.asked.entry):
            made += _jobs_or_refusals(registry, entry, repeat, corpus)
    yield from made


@contextmanager
def _blamed(entry: EntryUsed | None) -> Iterator[None]:
    """Errors name the suite's entry that they come from."""
    try:
        yield
    except UsageError as error:
        if entry is None:
            raise
        raise UsageError(f"suite {entry.suite}, entry '{entry.name}': {error}") from None


def planned(job: Job) -> Plan:
    """The plan as far as it is known before the run: with the peak that an earlier probe of this machine found."""
    plan = job.plan_with(Measured())
    return job.plan_with(peak_probe.known_peaks(plan, platform.node()))


def run_all(work: Iterator[Job], runs: Path, listener: runner.Listener) -> Iterator[Result]:
    """Run one after another, handing out each result as it comes; an interrupted run is the last one."""
    for job in work:
        plan = job.plan_with(Measured())
        if plan.refusal:
            result = runner.refuse(plan, runs, plan.refusal)
        else:
            result = runner.run(job.plan_with, job.vendor, runs, listener, platform.node(), job.reference_of)
        yield result
        if result.status.failure == "interrupted":
            return


def _jobs_or_refusals(registry: Registry, entry: Entry, repeat: int | None, corpus: CorpusFacts | None) -> list[Job]:
    """The entry's runs, once their plans have been made. Of a suite's entry that cannot run here: what says so."""
    try:
        made = list(_jobs_of(registry, entry, repeat, corpus))
        for job in made:
            job.plan_with(Measured())
        return made
    except NotHere as error:
        if entry.asked.entry is None:
            raise
        refused = replace(entry, asked=replace(entry.asked, refusal=str(error)))
        return list(_jobs_of(registry, refused, repeat, corpus))


def _jobs_of(registry: Registry, entry: Entry, repeat: int | None, corpus: CorpusFacts | None) -> Iterator[Job]:
    selector = parse_selector(entry.text)
    selector = selector.model_copy(update={"repeats": repeat or selector.repeats})
    placed = place(registry, selector, entry.asked, entry.hardware)
    found = placed.found
    vendor = registry.vendor(found.vendor.name)
    for number in range(1, selector.repeats + 1):
        run_id = directory.new_run_id(found.case.name, found.implementation.framework, found.vendor.name)

        def plan_with(measured: Measured, run_id: str = run_id, number: int = number) -> Plan:
            return resolve.resolve(found, placed.selector, entry.text, placed.asked, run_id, corpus, measured, number)

        yield Job(plan_with, vendor, lambda plan: reference_of(registry, plan))


def reference_of(registry: Registry, plan: Plan) -> Reference | None:
    """The reference of the plan's case, scale and precision; without one, that of another case that fixes the very
    same work, as cases do that differ at full scale only. Raises DocumentError for a damaged one."""
    name = reference_name(plan.case, plan.scale, plan.work.training.precision)
    if name in registry.references:
        return registry.reference(name)
    others = (registry.reference(other) for other in sorted(registry.references))
    return next((found for found in others if found.identity.work == plan.work_digest), None)


def _suite(registry: Registry, name: str) -> Suite:
    path = Path(name)
    return load(Suite, path) if path.suffix in (".yaml", ".yml", ".json") else registry.suite(name)


def _entries_of(registry: Registry, name: str, asked: Asked) -> list[Entry]:
    suite = _suite(registry, name)
    return [_entry(Path(name).stem, e, e.hardware or suite.hardware, asked) for e in suite.entries]


def _entry(suite: str, entry: SuiteEntry, hardware: NamedHardware | None, asked: Asked) -> Entry:
    if asked.scale == "auto" and entry.scale != "auto":
        asked = replace(asked, scale=entry.scale, why_scale=f"the suite {suite} asks for it")
    used = EntryUsed(suite=suite, name=entry.label, group=entry.group, note=entry.note)
    return Entry(entry.case, replace(asked, suggested=entry.set, suggested_by=f"suite {suite}", entry=used), hardware)
