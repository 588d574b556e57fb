"""docs/planner-unseen.md: the planner against published runs that it was not fitted to."""

from __future__ import annotations

import csv
import io
import statistics
import textwrap
from collections.abc import Iterable, Iterator

from levelfield.catalog.registry import Registry
from pages.chip_ratios import ratio_lines
from pages.goals import REGRET, Goal, goals_table
from pages.own_bound import Bounded, bound_table
from pages.own_runs import own_runs, own_runs_table
from pages.program_fit import LEFT_OUT, RANGES, committed_rates
from pages.row_errors import row_errors_lines
from pages.unseen import Judged, Sweep, spread, sweeps_of

FAR = 0.2
# Why rows are far off, by the start of their names; the first counts.
REASONS = (
    (
        "aa-13B-s2048-64",
        "no global batch is stated: see planner.md",
    ),
    (
        "aa-30B-s2048-256-TP4PP1",
        "no cause was found; the rows without pipeline on 256 devices lose more than the exchange of gradients costs",
    ),
    ("gist-ds3-full-mb8-gb128", "the source's table has micro-batch 8, and its note says that it was likely 16"),
    ("mpt-30b-s8192", "no cause was found; micro-batch 1 of a model that nearly fills the memory"),
    (
        "titan-",
        "no cause was found; unequal parts of the causal mask would lose as much (15/8 of attention's time over eight "
        "ranks)",
    ),
    (
        "sc21-1.7B",
        "no cause was found; the smallest of five models of one program",
    ),
)


# Why the first-ranked layout is far behind the best one, by the start of a sweep's name.
MISSES = {
    "aa_13B_2048_32_seqpar": (
        "The best needs nearly all of the memory, and would not be first without that rule. The planner puts two "
        "stages with micro-batch 2 before micro-batch 1 by 7 %, for the gaps of twice as many calls and the reading of "
        "weights; published they are 3 % behind it. A gap that longer kernels hide would move default plans."
    ),
    "aa_13B_8192_128": ("The best needs nearly all of the memory. Without that rule it is first, as it is predicted."),
    "aa_30B_2048_256": (
        "Two stages are predicted before four. Published, they lose 5.8 s of a step of 29.6 s, four stages 1.1 s of "
        "26.1 s. The exchange of gradients and weights does not explain it: without any overlap it takes 0.44 s for "
        "two stages, and the row with the same exchange loses 1.5 s where all is recomputed. Nor does the size of "
        "the weights: four stages without tensor ranks hold as many, and lose 0.3 s of 29.2 s. No cause was found."
    ),
}


def page(
    goals: list[Goal],
    runs: list[Judged],
    context: list[Judged],
    own_plans: list[Bounded],
    described: Iterable[tuple[str, int, float, float]],
    registry: Registry,
) -> str:
    """Return the page. own_plans: the rehearsed plans. described: the errors of own constants, as more is known."""
    lines = [
        "# The planner against runs that it was not fitted to",
        "",
        "Written by `python benchmarks/planner_unseen.py --fit`; do not edit. The runs are in",
        "benchmarks/data/unseen_runs.json and configs/published, with their sources. Half of them sets the four",
        "rates of all programs; the errors are those of the other half. The first line is what a program has to expect",
        "of which no run is published: each program is predicted by rates that the others set.",
        "",
        *goals_table(goals),
        "",
        "[data/planner_unseen_groups.csv](data/planner_unseen_groups.csv) has each group of unseen_runs.json,",
        "[data/planner_constants.csv](data/planner_constants.csv) the rates and their ranges.",
        "",
        *_described(described),
        "",
        *ratio_lines(registry),
        "",
        *row_errors_lines(registry),
        "",
        "## Order of the layouts",
        "",
        *_sweeps(sweeps_of(runs)),
        "",
        *_missed(sweeps_of(runs)),
        "",
        "## Rows that are off by more than a fifth",
        "",
        "| row | speed | memory | reason |",
        "|---|---|---|---|",
        *(_far_row(j) for j in runs if _is_far(j)),
        "",
        *_context(context),
        "",
        *_own_runs(),
        "",
        *_own_plans(own_plans),
        "",
        "## In no fit",
        "",
        *(f"- {group}: {reason}" for group, reason in LEFT_OUT.items()),
        "- rows whose source does not state micro-batch, chunks and recomputation (megatron_readme_2024), or the unit",
        "  of the speed (deepspeed_gist), and programs without a row here",
    ]
    return "\n".join(lines) + "\n"


def _described(rows: Iterable[tuple[str, int, float, float]]) -> Iterator[str]:
    yield from [
        "A default plan is of models/*. Its constants describe that code: they are within the goal on what chips ran",
        "of it (below). The published rows are of other code: FlashAttention of 2022, norms of many calls. So they are",
        "off on these rows. The same constants with what is said of the published program, one thing after another,",
        "and no rate changed:",
        "",
        "| what is known of the program | rows | in the middle | at p90 |",
        "|---|---|---|---|",
        *(f"| {name} | {count} | {middle:.1%} | {high:.1%} |" for name, count, middle, high in rows),
    ]


def _own_runs() -> Iterator[str]:
    yield from [
        "## Own code on chips",
        "",
        "Every valid run of models/* at full scale, without --compile, whose result lies in docs/verified, beside its",
        "plan of now. No rate or constant was fitted to them. jax always compiles; no plan says what a compiler joins.",
        "",
        *own_runs_table(own_runs()),
    ]


def _own_plans(bounds: list[Bounded]) -> Iterator[str]:
    yield from [
        "## Own code beside a bound",
        "",
        "Every rehearsed plan (docs/verified/rehearsed.md) beside the time that its counted products, attention's core",
        "and its messages take at the chip's full rates. The last columns share the plan's time beyond that.",
        "",
        *bound_table(bounds),
    ]


def tables(runs: list[Judged], context: list[Judged]) -> dict[str, str]:
    """Return the rows behind the page, as CSV by the name of the file."""
    held_out = [j for j in runs if not j.run.fitted]
    groups = [["group", *_ERRORS]]
    for name in sorted({j.run.group for j in held_out}):
        groups.append([name.replace("|", ", "), *_numbers([j for j in held_out if j.run.group == name])])
    constants = [["rate", "fitted", "from", "to"]]
    constants += [
        [name, f"{committed_rates()[name]:g}", f"{low:g}", f"{high:g}"] for name, (low, high) in RANGES.items()
    ]
    head = ["run", "layout", "tokens", "tokens/s/device", "predicted", "off", "memory_off", "GiB_over", "reason"]
    return {
        "planner_unseen_groups.csv": _csv(groups),
        "planner_constants.csv": _csv(constants),
        "planner_context.csv": _csv([head, *map(_context_row, context)]),
    }


_ERRORS = ("speed_median", "speed_p90", "speed_rows", "memory_median", "memory_p90", "memory_rows")


def _csv(rows: list[list[str]]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def _cells(name: str, runs: Iterable[Judged]) -> str:
    return f"| {name} | {' | '.join(_numbers(runs))} |"


def _numbers(runs: Iterable[Judged]) -> list[str]:
    listed_runs = list(runs)
    return [*_errors(j.speed_off for j in listed_runs), *_errors(j.memory_off for j in listed_runs)]


def _errors(errors: Iterable[float | None]) -> list[str]:
    count, middle, high = spread(errors)
    return [f"{middle:.1%}", f"{high:.1%}", str(count)] if count else ["", "", ""]


def _sweeps(sweeps: list[Sweep]) -> Iterator[str]:
    yield "| sweep | runs | the first-ranked ran | behind the best | Kendall's tau |"
    yield "|---|---|---|---|---|"
    for s in sweeps:
        tau = "" if s.tau is None else f"{s.tau:.2f}"
        name = s.name.replace("|", ", ")
        yield f"| {name} | {len(s.runs)} | {'yes' if s.first_ran else 'no'} | {s.regret:.1%} | {tau} |"
    taus = [s.tau for s in sweeps if s.tau is not None]
    ran, near = sum(s.first_ran for s in sweeps), sum(s.regret <= 0.1 for s in sweeps)
    middle = f"{statistics.median(taus):.2f}" if taus else ""
    yield f"| **all** | | {ran} of {len(sweeps)} | {near} within 10 % | {middle} in the middle |"


def _context(runs: list[Judged]) -> Iterator[str]:
    """Yield the section of the runs with context parallelism, row by row."""
    ring, gathered = ([j for j in runs if j.run.framework == name] for name in ("megatron", "torch"))
    yield from [
        "## Context parallelism",
        "",
        "The runs of benchmarks/data/context_runs.json, in no fit: Megatron passes keys and values round a ring,",
        "torchtitan gathers them. [data/planner_context.csv](data/planner_context.csv) has each run, and those of the",
        "same sources without CP; GiB_over: by how much one is predicted not to fit, though it ran.",
        "",
        "| with context parallelism | speed: median | p90 | rows | memory: median | p90 | rows |",
        "|---|---|---|---|---|---|---|",
        _cells("megatron, ring", [j for j in ring if j.run.tuning.layout.context > 1]),
        _cells("torchtitan, gathered", [j for j in gathered if j.run.tuning.layout.context > 1]),
    ]


def _context_row(j: Judged) -> list[str]:
    run, off = j.run, j.speed_off or 0
    reason = next((cause for start, cause in REASONS if run.name.startswith(start)), "no cause was found")
    return [
        *(run.name, str(run.tuning.layout), str(run.row["sequence_length"])),
        *(f"{run.rate:.0f}", f"{j.estimate.tokens_per_second:.0f}", f"{off:+.1%}"),
        "" if j.memory_off is None else f"{j.memory_off:+.1%}",
        "" if j.estimate.fits else f"{-j.free_gib:.1f}",
        reason if abs(off) > FAR else "",
    ]


def _is_far(j: Judged) -> bool:
    return any(off is not None and abs(off) > FAR for off in (j.speed_off, j.memory_off))


def _far_row(j: Judged) -> str:
    reason = next((cause for start, cause in REASONS if j.run.name.startswith(start)), "no cause was found")
    speed, memory = ("" if off is None else f"{off:+.0%}" for off in (j.speed_off, j.memory_off))
    fitted = ", fit" if j.run.fitted else ""
    return f"| {j.run.name}{fitted} | {speed} | {memory} | {reason} |"


def _missed(sweeps: list[Sweep]) -> Iterator[str]:
    """Yield the sweeps whose first-ranked layout is more than REGRET behind the best, with numbers and the reason."""
    yield "Where the first-ranked is behind, tokens/s of a device:"
    yield ""
    yield "| sweep | layout | published | predicted | GiB | |"
    yield "|---|---|---|---|---|---|"
    missed = [s for s in sweeps if s.regret > REGRET]
    for s in missed:
        best = max(s.runs, key=lambda j: j.run.rate or 0)
        for which, j in (("best", best), ("first-ranked", s.first)):
            if j is not None:
                tuning = j.run.tuning
                layout = f"{which}: {tuning.layout}, micro-batch {tuning.micro_batch}, {tuning.recompute} again"
                speeds = f"{j.run.rate or 0:,.0f} | {j.estimate.tokens_per_second:,.0f}"
                need = f"{j.estimate.memory.total / 2**30:.1f}"
                yield f"| {_title(s)} | {layout} | {speeds} | {need} | {'tight' if j.is_tight else ''} |"
    for s in missed:
        yield ""
        reason = next((cause for name, cause in MISSES.items() if s.name.startswith(name)), "no cause was found")
        yield from textwrap.wrap(f"- {_title(s)}: {reason}", 118, subsequent_indent="  ")


def _title(sweep: Sweep) -> str:
    """Return the source's name of a sweep, without what follows from it."""
    return sweep.name.split(" aa_")[0].replace("|", ", ")
