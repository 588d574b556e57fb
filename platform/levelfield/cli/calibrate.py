"""`align calibrate CASE`: runs a case with other arithmetic and records how far the runs differ."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from levelfield.catalog.registry import Registry
from levelfield.catalog.stored_references import reference_of
from levelfield.cli.plugins import registry_of
from levelfield.cli.references_command import override, write
from levelfield.cli.store_options import intake
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, RunFailed, UsageError
from levelfield.judge.promotion import with_noise
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import scheduler
from levelfield.rundir.directory import default_runs, find_run
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.studies.noise_runs import variations


def calibrate(options: argparse.Namespace) -> int:
    """Record one row of noise for every variation that the implementation offers.

    Return 3 when a run fails, else 4 when a run is refused as noise, else 0. The other runs' rows are recorded.
    """
    why = override(options)
    registry, runs = registry_of(options), options.runs or default_runs()
    plan, reference = _start(registry, options.case)
    terminal, failed, refused = Terminal(quiet=options.json, recorded=intake(options)), False, []
    stored = partial(reference_of, registry)
    jobs = scheduler.jobs(registry, variations(registry, plan), None)
    for result in scheduler.run_all(terminal.announced(jobs), runs, terminal.listener(), stored):
        terminal.finished(result, runs)
        if result.status.word != "valid":
            failed = True
            continue
        try:
            reference = with_noise(reference, find_run(runs, result.run_id), why)
        except GateFailed as error:
            refused.append(str(error))
            continue
        write(reference, registry, options.plugins)  # after each run: an interrupted calibration keeps what it has
    if refused and not failed:
        raise GateFailed("\n".join(refused))
    for reason in refused:
        print(reason, file=sys.stderr)
    return RunFailed.exit_code if failed else 0


def _start(registry: Registry, case: str | None) -> tuple[Plan, Reference]:
    if not case:
        raise UsageError("align calibrate: found no case; give one, such as `align calibrate gpt3_6.7B:torch`")
    (job,) = scheduler.jobs(registry, [Entry(case, UserRequest(repeat=1))], None)
    plan = scheduler.planned(job)
    reference = reference_of(registry, plan)
    if reference is None:
        raise UsageError(
            f"{plan.case} has no reference at scale {plan.scale}; make one first: `references promote RUN --why ...`"
        )
    return plan, reference
