"""`align` (compare chips): hold a training against a reference, layer by layer"""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.catalog.stored_references import reference_of
from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_NAME, chips_option, json_option, registry_of
from levelfield.errors import GateFailed
from levelfield.judge.certification import with_certificate
from levelfield.judge.collector import collect
from levelfield.judge.promotion import reference_from
from levelfield.judge.verdict import against, judged, training_of, training_of_reference, under_status, unless_tampered
from levelfield.report.words import reason_without_limits, wrapped
from levelfield.rundir.directory import default_runs, finished_run, read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Alignment, Identity

_HELP = """\
Compare a run's training with a reference, layer by layer. Exit code 4 unless
the verdict is `aligned` or `consistent`.

examples:
  run_benchmarks.py align latest
  run_benchmarks.py align RUN --reference OTHER_RUN
"""

WIDTH = 14  # of the first column: the longest name is `final weights`


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_NAME)
    parser.add_argument(
        "--reference", metavar="RUN|NAME", help="another run, or a reference (default: the one of the case)"
    )
    json_option(parser)
    chips_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Return 0 when the run is aligned or consistent, else 4. No run that is not valid is."""
    runs, registry = options.runs or default_runs(), registry_of(options)
    found = _verdict(finished_run(runs, options.run), options.reference, registry, runs)
    print(found.to_json() if options.json else "\n".join(lines(found)))
    return 0 if found.verdict in ("aligned", "consistent") else GateFailed.exit_code


def _verdict(paths: RunPaths, name: str | None, registry: Registry, runs: Path) -> Alignment:
    plan, result = read_plan(paths), collect(paths)
    found = unless_tampered(_compared(paths, plan, result.identity, name, registry, runs), result.seal)
    return under_status(with_certificate(found, plan, result.certificate), result.status)


def _compared(
    paths: RunPaths, plan: Plan, identity: Identity, name: str | None, registry: Registry, runs: Path
) -> Alignment:
    own = reference_of(registry, plan)
    raw, work = read_raw(paths), plan.work
    if name is None or name in registry.references:
        return judged(work, raw, identity, registry.reference(name) if name else own)
    other = reference_from(finished_run(runs, name), "compared with, not promoted")
    # the noise of the case's reference also limits the difference of two runs
    known = other.model_copy(update={"noise": own.noise if own and own.identity.work == identity.work else ()})
    return against(training_of(work, raw, identity), training_of_reference(known), known)


def lines(found: Alignment) -> list[str]:
    """Return verdict, layers with value and limit, and FlagPerf's figure, in lines of at most 80 columns."""
    marks = {True: "holds", False: "FAILS", None: "open"}
    text = [f"{found.verdict}: {reason_without_limits(found)}"]
    text += [f"{layer.name:<{WIDTH}}{marks[layer.passed]:<7}{layer.detail}" for layer in found.layers]
    if found.reference:
        text.append(f"{'against':<{WIDTH}}{found.reference}")
    if found.limits:
        text.append(f"{'limits':<{WIDTH}}{found.limits}")
    if found.flagperf_mean_error is not None:
        figure = f"{found.flagperf_mean_error:.2e} (its rule: 2 %)"
        text.append(f"{'FlagPerf':<{WIDTH}}mean relative difference from step 21: {figure}")
    return [wrapped(line, WIDTH) for line in text]


COMMANDS = {
    "align": Command(_HELP, arguments, execute),
}
