"""`compare duel` (compare chips): A/B run: two cases interleaved on this machine until one is faster"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    add_chips_option,
    add_format_options,
    add_free_field_options,
    add_python_option,
    add_quiet_option,
    add_scale_option,
    registry_of,
    runs_folder,
)
from levelfield.cli.store_options import (
    add_prices_option,
    add_recording_options,
    load_prices,
    record_event,
    run_recorder,
)
from levelfield.cli.terminal import Terminal, print_sheets
from levelfield.errors import UsageError
from levelfield.rundir.directory import utc_now

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.plan.request import UserRequest
    from levelfield.run.scheduler import Job
    from levelfield.series.pairs import Looks
    from levelfield.specs.record import RunRecord
    from levelfield.specs.tuning import TuningChoice

_HELP = """\
A/B run of two cases, interleaved on this machine (A B, B A, A B, ...). It ends
when one is faster, when neither is, or undecided after seven runs of each. It
takes 3 to 7 runs of each, as many as the noise needs; --repeat N takes exactly
N. A drift of the machine hits both alike. The result is printed last, below the
comparison of all metrics. The runs are kept, also after an interruption. Before
a pair it waits while other programs use more than a tenth of the cores, at most
5 minutes in all; then it runs beside that load, and the result names it.

Exit code 0 when it ran to its end, also where it is undecided. 3: a run failed.
4: the two are not comparable. 130: interrupted.

--a and --b take the free options of A or B, in quotes: --layout,
--micro-batch, --virtual-pipeline, --recompute, --recompute-layers, --compile,
--graph, --attention, --threads, --env and --base. So one case can meet itself
in two settings.

examples:
  run_benchmarks.py compare duel gpt3_6.7B:torch gpt3_6.7B:jax
  run_benchmarks.py compare duel gpt3_6.7B:torch gpt3_6.7B:jax --repeat 5
  run_benchmarks.py compare duel gpt3_6.7B:torch gpt3_6.7B:jax --min-effect 3
  run_benchmarks.py compare duel llama3_8b:torch llama3_8b:torch \\
      --a='--layout TP2' --b='--layout TP1PP2 --micro-batch 4'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("case", nargs=2, metavar="CASE", help="a case string, such as gpt3_6.7B:torch; the first is the base")
    for arm in "ab":
        option(
            f"--{arm}",
            default="",
            metavar="OPTIONS",
            help=f"free options of {arm.upper()}, as in --{arm}='--layout TP2'",
        )
    option("--repeat", type=int, metavar="N", help="N runs of each (default: 3 to 7, as many as it takes)")
    option(
        "--min-effect",
        type=float,
        default=1.0,
        metavar="PERCENT",
        help="smallest difference of speed that matters (default: 1)",
    )
    add_scale_option(parser)
    add_python_option(parser)
    add_chips_option(parser)
    output = parser.add_argument_group("where to and how")
    add_prices_option(output)
    add_recording_options(output)
    add_quiet_option(output)
    add_format_options(output)


def execute(options: argparse.Namespace) -> int:
    """Run the duel and print what it shows. Return the exit code of what stopped it, else 0."""
    from levelfield.plan.request import UserRequest
    from levelfield.run.quiet import QuietWait
    from levelfield.studies import duels

    registry, looks = registry_of(options), duels.duel_looks(options.repeat, options.min_effect)
    prices = load_prices(options.prices, registry)
    titles = [" ".join(filter(None, pair)) for pair in zip(options.case, (options.a, options.b), strict=True)]
    request = UserRequest(scale=options.scale, repeats=max(looks.alpha), python=options.python)
    arm_jobs = _plan_arms(registry, options.case, (options.a, options.b), request)
    is_quiet = options.quiet or options.format == "json"
    terminal = Terminal(quiet=is_quiet, record_run=run_recorder(options.store, options.no_store))
    run_arm = _arm_runner(registry, runs_folder(options), arm_jobs, titles, looks, terminal)
    duel = duels.run_duel(titles, looks, run_arm, QuietWait(terminal.say))
    print_sheets(options.format, duels.duel_sheets(duel, prices), duels.duel_json(duel, prices))
    if event := duel.event(utc_now()):
        record_event(event, options.store, options.no_store)
    return duel.exit_code


def _arm_runner(
    registry: Registry,
    runs: Path,
    arm_jobs: Mapping[str, Sequence[Job]],
    titles: Sequence[str],
    looks: Looks,
    terminal: Terminal,
) -> Callable[[str, int], RunRecord]:
    """Return a function that runs an arm once more, shows the progress of the duel, and returns the run's record."""
    from levelfield.catalog.lookup import find_reference
    from levelfield.run import certificate_maker, scheduler
    from levelfield.run.turns import PairProgress
    from levelfield.specs.paths import RunPaths
    from levelfield.studies.compared_runs import FolderRuns
    from levelfield.studies.duels import FIGURE

    listener, folder_runs = terminal.listener(), FolderRuns(runs)
    certify = certificate_maker.CertificateMaker(registry, runs, listener).certify
    labels = {arm: f"{arm.upper()} ({title})" for arm, title in zip("ab", titles, strict=True)}
    progress = PairProgress(FIGURE, terminal.say, min(looks.alpha), max(looks.alpha), labels)
    report_run = progress.wrap_store_run(lambda arm, paths: folder_runs.record(str(paths.root)))

    def run_arm(arm: str, number: int) -> RunRecord:
        job = iter([arm_jobs[arm][number - 1]])
        jobs = terminal.announce_jobs(job) if number == 1 else job
        (result,) = scheduler.run_jobs(jobs, runs, listener, partial(find_reference, registry), certify)
        terminal.show_status(result)
        if result.status.is_interrupted:
            raise KeyboardInterrupt
        return report_run(arm, RunPaths(runs / result.run_id))

    return run_arm


def _parse_arm_options(option: str, text: str) -> tuple[TuningChoice, bool]:
    """Return the free fields that the options of --a or --b choose, and whether they have --base."""
    from levelfield.cli.run_entries import tuning_choice

    parser = argparse.ArgumentParser(prog=option, add_help=False, allow_abbrev=False, exit_on_error=False)
    add_free_field_options(parser)
    try:
        choices, unknown = parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as error:
        raise UsageError(f"{option}: {error}") from None
    if unknown:
        option_names = ", ".join(name for name in parser._option_string_actions if not name.startswith("--no-"))
        raise UsageError(f"{option}: found {' '.join(unknown)}, expected free options of a run: {option_names}")
    return tuning_choice(choices), choices.base


def _plan_arms(
    registry: Registry, cases: Sequence[str], options: Sequence[str], request: UserRequest
) -> dict[str, list[Job]]:
    """Return the planned runs of both arms. All are planned first: a wrong case ends the command before any run.

    Raises GateFailed where their work differs.
    """
    from levelfield.run import scheduler
    from levelfield.store.run_record import series_of
    from levelfield.studies.duels import refuse_other_work

    arm_jobs = {}
    for arm, case, text in zip("ab", cases, options, strict=True):
        choice, base = _parse_arm_options(f"--{arm}", text)
        entries = scheduler.list_entries(registry, [case], [], replace(request, choice=choice, base=base))
        arm_jobs[arm] = list(scheduler.plan_jobs(registry, entries, None))
    refuse_other_work(series_of(arm_jobs["a"][0].plan), series_of(arm_jobs["b"][0].plan))
    return arm_jobs


COMMANDS = {"compare duel": Command(_HELP, add_options, execute, trains=True)}
