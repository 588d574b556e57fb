"""From what was asked on the command line to runs, one after another, and their results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield import catalog, peaks, resolve, rundir, runner
from levelfield.contracts.vendor import Vendor
from levelfield.corpus import CorpusFacts
from levelfield.errors import UsageError
from levelfield.measured import Measured
from levelfield.registry import Registry
from levelfield.resolve import Asked
from levelfield.specs.base import load
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference, reference_name
from levelfield.specs.result import Result
from levelfield.specs.selector import parse_selector
from levelfield.specs.suite import Suite, SuiteEntry
from levelfield.specs.tuning import TuningChoice


@dataclass(frozen=True)
class Entry:
    """One line of work: a case string and what was asked beside it."""

    text: str
    asked: Asked


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
        found += [_entry(e, asked) for e in _suite(registry, name).entries]
    if not found:
        raise UsageError("nothing to run: give --case CASE:FRAMEWORK or --suite NAME (`list` shows what there is)")
    return found


def jobs(registry: Registry, work: Sequence[Entry], repeat: int | None, corpus: CorpusFacts | None) -> Iterator[Job]:
    """Every run of every entry. All are checked before the first is handed out: a typing error costs no run."""
    made = [job for entry in work for job in _jobs_of(registry, entry, repeat, corpus)]
    for job in made:
        job.plan_with(Measured())
    yield from made


def planned(job: Job) -> Plan:
    """The plan as far as it is known before the run: with the peak that an earlier probe of this machine found."""
    plan = job.plan_with(Measured())
    return job.plan_with(peaks.known_peaks(plan, platform.node()))


def run_all(work: Iterator[Job], runs: Path, listener: runner.Listener) -> Iterator[Result]:
    """Run one after another, handing out each result as it comes; an interrupted run is the last one."""
    for job in work:
        result = runner.run(job.plan_with, job.vendor, runs, listener, platform.node(), job.reference_of)
        yield result
        if result.status.failure == "interrupted":
            return


def _jobs_of(registry: Registry, entry: Entry, repeat: int | None, corpus: CorpusFacts | None) -> Iterator[Job]:
    selector = parse_selector(entry.text)
    selector = selector.model_copy(update={"repeats": repeat or selector.repeats})
    found = catalog.find(registry, selector)
    vendor = registry.vendor(found.vendor.name)
    for number in range(1, selector.repeats + 1):
        run_id = rundir.new_run_id(found.case.name, found.implementation.framework, found.vendor.name)

        def plan_with(measured: Measured, run_id: str = run_id, number: int = number) -> Plan:
            return resolve.resolve(found, selector, entry.text, entry.asked, run_id, corpus, measured, number)

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


def _entry(entry: SuiteEntry, asked: Asked) -> Entry:
    own = entry.set.model_dump(exclude_none=True)
    choice = TuningChoice.model_validate({**own, **asked.choice.model_dump(exclude_none=True)})
    scale = entry.scale if asked.scale == "auto" else asked.scale
    return Entry(entry.case, replace(asked, scale=scale, choice=choice))
