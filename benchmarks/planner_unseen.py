#!/usr/bin/env python3
"""The planner against published runs that it was not fitted to: speed, memory, what fits, and the order of layouts.

    python benchmarks/planner_unseen.py                 the runs of benchmarks/data/unseen_runs.json
    python benchmarks/planner_unseen.py --runs FILE     other runs, in the same form; none of them is in a fit
    python benchmarks/planner_unseen.py --runs benchmarks/data/later_runs.json --rows
                                                        those of 2023 to 2026 that were found last
    python benchmarks/planner_unseen.py --rows          every run as well
    python benchmarks/planner_unseen.py --fit           set the rates of all programs again, then print
    python benchmarks/planner_unseen.py --check         fit without writing; exit 4 when the files hold other values
    python benchmarks/planner_unseen.py --quick         fit on a few runs, write nothing, and print a few

Half of the runs in unseen_runs.json and of configs/published, chosen by the digest of their names or by their order,
and of the dense ones in recent_runs.json set the rates of platform/levelfield/specs/constants.py. The errors are those
of the other half. A sweep is a set of runs of one model by one program on equal devices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.specs.residuals import RESIDUALS_FILE
from pages.accuracy_page import page, tables
from pages.goals import REGRET, errors_by_description, goals, goals_lines, goals_of_later_runs
from pages.own_bound import bounded
from pages.program_fit import Rates, fit_rows, fitted_rates, timed_runs, written
from pages.row_errors import residuals, residuals_text
from pages.unseen import CONTEXT_RUNS, RUNS, Judged, Questions, Sweep, judge_runs, runs_of, spread, sweeps_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "planner-accuracy.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS, help="a file of published runs")
    parser.add_argument("--rows", action="store_true", help="print every run")
    parser.add_argument("--fit", action="store_true", help="fit the rates and write them")
    parser.add_argument("--check", action="store_true", help="fit, write nothing, and exit 4 when the files differ")
    parser.add_argument("--quick", action="store_true", help="fit on a few runs, write nothing: for tests")
    options = parser.parse_args()
    if options.fit or options.check:
        if not refit(options.fit):
            return 4
        stale = repage(options.fit)
        if options.check:
            return 4 if stale else 0
    runs = runs_of(options.runs)
    if options.quick:
        questions = Questions(Registry())
        print(_rates_line(fitted_rates([run for run in timed_runs(runs, questions) if run.fitted][::5], 0.1)))
        runs = runs[::20]
    elif options.runs == RUNS:
        print("\n".join([*goals_lines(goals(Registry())), ""]))
        print("a framework's own constants, with what is said of the published program")
        for name, count, middle, high in errors_by_description(Registry()):
            print(f"{name:<50} {middle:>7.1%} {high:>7.1%} {count:>5}")
        print()
    judged_runs = judge_runs(runs, Questions(Registry()))
    if options.runs != RUNS:
        print("\n".join([*goals_lines(goals_of_later_runs(judged_runs, Registry())), *_apart(judged_runs), ""]))
    print("\n".join(report(judged_runs, options.runs == RUNS, options.rows)))
    return 0


def refit(write: bool) -> bool:
    """Fit the rates. Return whether the file holds them. Once they are written the platform has to be loaded again."""
    registry = Registry()
    rows = fit_rows(registry)
    rates = fitted_rates(row for row in rows if row.fitted)
    print(_rates_line(rates))
    path, text = written(rates)
    if path.read_text() == text:
        return True
    if write:
        path.write_text(text)
    print(f"{'written: start again with --fit for the pages' if write else 'differs'}: {path.name}")
    return False


def _rates_line(rates: Rates) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in rates.items())


def repage(write: bool) -> list[Path]:
    """Write docs/planner-accuracy.md and its rows from the files as they are. Return those that differed."""
    questions = Questions(Registry())
    judged_runs, context = judge_runs(runs_of(RUNS), questions), judge_runs(runs_of(CONTEXT_RUNS), questions)
    registry = Registry()
    described = errors_by_description(registry)
    files = {PAGE: page(goals(registry), context, described, registry)}
    files[ROOT / RESIDUALS_FILE] = residuals_text(residuals(registry))
    files.update(
        {
            PAGE.parent / "data" / name: text
            for name, text in tables(judged_runs, context, bounded(registry), registry).items()
        }
    )
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'written' if write else 'differs'}: {path.name}")
        if write:
            path.write_text(files[path])
    return stale


def report(judged_runs: list[Judged], halved: bool, rows: bool = False) -> Iterator[str]:
    """Yield the lines of the report. halved: the constants were fitted on half of these runs."""
    held_out = [j for j in judged_runs if not (halved and j.run.fitted)]
    half = "held out" if halved else "all in no fit"
    out_of_memory = sum(j.run.ran_out for j in judged_runs)
    yield f"{len(judged_runs)} runs, {out_of_memory} of them out of memory; {len(held_out)} {half}"
    yield ""
    yield from _groups(held_out)
    if halved:
        yield from ["", "fitted half, for comparison:", _line("all", [j for j in judged_runs if j.run.fitted])]
    yield from ["", *_fits(judged_runs), "", *_sweeps(sweeps_of(judged_runs))]
    if rows:
        yield from ["", *(_row(j) for j in judged_runs)]


def _groups(judged_runs: list[Judged]) -> Iterator[str]:
    yield f"{'group':<50} {'speed: median':>14} {'p90':>7} {'rows':>5} {'memory: median':>15} {'p90':>7} {'rows':>5}"
    for name in sorted({j.run.group for j in judged_runs}):
        yield _line(name, [j for j in judged_runs if j.run.group == name])
    yield _line("all", judged_runs)


def _line(name: str, judged_runs: Iterable[Judged]) -> str:
    runs = list(judged_runs)
    timed, middle, high = spread(j.speed_off for j in runs)
    weighed, heavy, heaviest = spread(j.memory_off for j in runs)
    return f"{name:<50} {middle:>14.1%} {high:>7.1%} {timed:>5} {heavy:>15.1%} {heaviest:>7.1%} {weighed:>5}"


def _apart(judged_runs: list[Judged]) -> Iterator[str]:
    """Yield the errors of rows that do not state their settings, and the runs that are planned not to fit."""
    count, middle, high = spread(j.rate_off for j in judged_runs if not j.run.speed_stated)
    yield f"rows without all settings: speed median {middle:.1%}, p90 {high:.1%}, {count} rows"
    for j in judged_runs:
        if not j.run.ran_out and not j.estimate.fits:
            partial = "" if j.run.has_all_settings else "; its settings are not all stated"
            yield f"ran, planned not to fit: {j.run.name}, {-j.free_gib:.1f} GiB over{partial}"


def _fits(judged_runs: list[Judged]) -> Iterator[str]:
    ran = [j for j in judged_runs if not j.run.ran_out and j.run.has_all_settings]
    out = [j for j in judged_runs if j.run.ran_out]
    yield f"ran and predicted to fit: {sum(j.estimate.fits for j in ran)} of {len(ran)}"
    yield f"ran out of memory and predicted not to fit: {sum(not j.estimate.fits for j in out)} of {len(out)}"


def _sweeps(sweeps: list[Sweep]) -> Iterator[str]:
    yield f"{'sweep':<72} {'runs':>4} {'first fits':>10} {'behind best':>11} {'tau':>6}"
    for sweep in sweeps:
        tau = "-" if sweep.tau is None else f"{sweep.tau:.2f}"
        ran = "yes" if sweep.first_ran else "NO"
        yield f"{sweep.name:<72} {len(sweep.runs):>4} {ran:>10} {sweep.regret:>11.1%} {tau:>6}"
    taus = [s.tau for s in sweeps if s.tau is not None]
    near = sum(s.first_ran and s.regret <= REGRET for s in sweeps)
    yield (
        f"first-ranked ran in {sum(s.first_ran for s in sweeps)} of {len(sweeps)} sweeps, within 10 % of the best in "
        f"{near}; Kendall's tau {statistics.median(taus) if taus else float('nan'):.2f} in the middle of {len(taus)}"
    )


def _row(j: Judged) -> str:
    speed = ""
    if j.rate_off is not None:
        mark = "" if j.run.speed_stated else "*"  # its settings are not all stated
        speed = f"{j.run.rate:,.0f} -> {j.estimate.tokens_per_second:,.0f} {j.rate_off:+.1%}{mark}"
    memory = "" if j.memory_off is None else f"{(j.run.memory_bytes or 0) / 2**30:.1f} GiB {j.memory_off:+.1%}"
    need = f"{j.estimate.memory.total / 2**30:.1f} GiB{'' if j.estimate.fits else ' (does not fit)'}"
    out = " (ran out)" if j.run.ran_out else ""
    return f"{j.run.name:<75} {'fit' if j.run.fitted else '   '} {speed:>28} {memory:>20} {need}{out}"


if __name__ == "__main__":
    sys.exit(main())
