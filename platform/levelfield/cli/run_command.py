"""`run`: run the given cases and suites; the word may be left out"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from levelfield.catalog.lookup import reference_of
from levelfield.catalog.registry import Registry
from levelfield.cli import dry_run, launch_options
from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    BASE_HAS_FRAMEWORK,
    BASE_IMAGE,
    base_image,
    chips_option,
    intake,
    json_option,
    python_option,
    quiet_option,
    recording_options,
    registry_of,
    runtime_option,
    scale_option,
    site_options,
    size_in_bytes,
)
from levelfield.cli.run_entries import checked, chosen, node_counts, series_entries, series_scaling, with_files
from levelfield.cli.terminal import Terminal
from levelfield.compare import scaling
from levelfield.corpus.facts import CorpusFacts
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

_HELP = """\
Train cases and compute their results from the raw files. `plan` predicts what
fits, `show cases` lists the cases. The word `run` may be left out.

examples:
  run_benchmarks.py --case gpt3_6.7B:torch          smoke without accelerator
  run_benchmarks.py --case llama3_8b:torch:cpu:1:2  two processes
  run_benchmarks.py --case gpt3_6.7B:torch --layout TP2PP1 --dry-run
  run_benchmarks.py --suite smoke --repeat 3
  run_benchmarks.py --suite oneflow_gpt --dry-run   as a table

a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
versions: those of the framework's manifest; without one, its default
layouts: DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), TP1PP1SH2SP8
(sharding stage and degree), 1n_8g_dp_4bs; +seq adds sequence parallelism

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted
"""

MISALIGNED = ("diverged", "different")
Certify = Callable[[scheduler.Job], scheduler.CertificateAttempt]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "run_benchmarks.py --case CASE:FRAMEWORK[:...] [options]"
    what = parser.add_argument_group("what to run")
    what.add_argument("--case", action="append", default=[], metavar="STRING", help="a case string; may be repeated")
    what.add_argument(
        "--suite", action="append", default=[], metavar="NAME|FILE", help="a list of cases; may be repeated"
    )
    what.add_argument(
        "--entry", action="append", default=[], metavar="NAME", help="only this entry of the suites; may be repeated"
    )
    what.add_argument("--framework", metavar="NAME", help="run the suites' entries through this framework")
    what.add_argument("--repeat", type=int, metavar="N", help="run each case N times")
    what.add_argument(
        "--nodes", metavar="N,N,...", help="each case on these numbers of nodes, such as 1,2,4, with a table of scaling"
    )
    what.add_argument(
        "--weak",
        action="store_true",
        help="with --nodes: --global-batch is the smallest run's and grows with the nodes",
    )
    scale_option(what)
    what.add_argument(
        "--explain", action="store_true", help="with --dry-run: the arithmetic of the predicted memory and time"
    )
    what.add_argument(
        "--data", metavar="PREFIX", help="a corpus, PREFIX.bin/.idx or PREFIX_ids.npy/_idx.npz (default: synthetic)"
    )
    derived = parser.add_argument_group("changes of the case (they make a derived case, compared with no other)")
    derived.add_argument("--steps", type=int, metavar="N", help="training steps")
    derived.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a sequence")
    derived.add_argument("--global-batch", type=int, metavar="N", help="sequences of a step")
    derived.add_argument("--seed", type=int, metavar="N", help="seed of the weights and of the data's order")
    free = parser.add_argument_group("free choices (the case fixes everything else)")
    free.add_argument("--layout", help="parallel layout, such as DP4TP2PP1")
    free.add_argument("--micro-batch", type=int, metavar="N", help="sequences per forward pass")
    free.add_argument("--virtual-pipeline", type=int, metavar="N", help="interleaved model chunks per pipeline stage")
    free.add_argument(
        "--recompute", choices=("none", "selective", "full"), help="activations to recompute in the backward pass"
    )
    free.add_argument("--compile", action=argparse.BooleanOptionalAction, help="compile the model")
    free.add_argument("--attention", choices=("sdpa", "flash_attn"), help="attention kernel")
    free.add_argument("--threads", type=int, metavar="N", help="processor threads per process")
    free.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="an environment variable of the training process"
    )
    free.add_argument(
        "--strategy", type=Path, metavar="FILE", help="FlagPerf's config_*.py: its layout, batch and recomputation"
    )
    how = parser.add_argument_group("how to run it")
    how.add_argument("--dry-run", action="store_true", help="show the plan with all commands, and run nothing")
    how.add_argument(
        "--assume-hardware",
        metavar="HARDWARE",
        help='with --dry-run: plan for this hardware, such as "4x8 V100-SXM2-16GB" (nodes x devices)',
    )
    python_option(how)
    how.add_argument("--probe", action="store_true", help="measure the matmul peak even if a published one exists")
    how.add_argument(
        "--no-certificate",
        action="store_true",
        help="in 16 bits or at full scale: do not first train the case in fp32 at smoke scale, which takes about a "
        "minute; without that certificate no run is aligned",
    )
    how.add_argument("--save-weights", action="store_true", help="write the weights after the last step")
    chips_option(how)
    json_option(how, " on stdout")
    quiet_option(how)
    recording_options(how)
    where = parser.add_argument_group("where it runs")
    runtime_option(where)
    site_options(where)
    where.add_argument(
        "--attach",
        metavar="RUN",
        help="watch a run whose platform was killed while its job goes on, such as one of Slurm, and collect it",
    )
    where.add_argument(
        "--preflight",
        action=argparse.BooleanOptionalAction,
        help="measure the nodes and their collectives before the training (default: with several named hosts)",
    )
    where.add_argument(
        "--quiet-machine",
        action="store_true",
        help="measure that first, and train nothing where others use a device or the processors",
    )
    where.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)
    where.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK)
    where.add_argument("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    where.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help="give a vendor's container more of the host, such as ipc:host or device:/dev/acme*; may be repeated",
    )
    where.add_argument(
        "--container-memory", type=size_in_bytes, metavar="SIZE", help="memory limit per container in bytes, or as 8G"
    )


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
        values = [scaling.as_values(found) for found in scaled if not isinstance(found, str)]
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
    from levelfield.corpus.integrity import check

    with terminal.bytes_progress(f"checking {prefix}") as progress:
        return check(prefix, progress=progress)


def _runs(options: argparse.Namespace) -> Path:
    return options.runs or default_runs()


COMMANDS = {
    "run": Command(_HELP, arguments, execute, trains=True),
}
