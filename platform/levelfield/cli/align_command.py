"""`align` (compare chips): hold a training against a reference, layer by layer
`align curves`: compare loss curves of runs that share no weights
"""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_HELP, add_chips_option, add_json_option, registry_of, runs_folder
from levelfield.errors import GateFailed, UsageError
from levelfield.report.result_words import reason_without_limits
from levelfield.report.sheets import labelled_line, pad_row
from levelfield.report.words import wrapped
from levelfield.rundir.directory import find_finished_run
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.measure.curves import LoggedCurve, TailComparison
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.reference import Reference
    from levelfield.specs.result import Alignment

_ALIGN_HELP = """\
Compare a run's training with a reference, layer by layer. Exit code 4 unless
the verdict is `aligned` or `consistent`.

examples:
  run_benchmarks.py align latest
  run_benchmarks.py align RUN --reference OTHER_RUN
"""
_CURVES_HELP = """\
Compare the loss curves of two groups of runs that share no weights: other
seeds, other tools, curves from elsewhere. The mean loss over the tail is
compared, with a 90 % interval over the runs. At least two runs a side are
needed, because one curve does not show how far seeds differ. Equal tails do
not prove equal trainings; `align` compares runs step by step.

Files with the same curve count as one run. With --from-step or --to-step the
default tail of the whole curves is judged too, and both answers are printed.

A curve that lacks a loss, or ends before the others, is broken: many trainers
leave out a loss that is no number. A file may have every tenth step only.

A file is a table (CSV or TSV with a step and a loss), JSON or JSON lines, a
log that `evidence read` reads, such as Megatron's, or a TensorBoard event file.
Exit code 4 unless the answer is `within the margin`.

examples:
  run_benchmarks.py align curves A1.csv A2.csv --against B1.log B2.log
  run_benchmarks.py align curves A*.json --against B*.json --margin 0.2%
"""

LABEL_WIDTH = 14  # of the first column: the longest name is `final weights`
_CURVE_LABEL_WIDTH = 11
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


def _add_align_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", metavar="RUN", help=RUN_HELP)
    option("--reference", metavar="RUN|NAME", help="another run, or a reference (default: the one of the case)")
    add_json_option(parser)
    add_chips_option(parser)


def _align(options: argparse.Namespace) -> int:
    """Return 0 when the run is aligned or consistent, else 4. A run that is not valid is neither."""
    registry, runs, name = registry_of(options), runs_folder(options), options.reference
    paths, reference, other_run = find_finished_run(runs, options.run), None, None
    if name in registry.references:
        reference = registry.reference(name)
    elif name is not None:
        other_run = find_finished_run(runs, name)
    verdict = _verdict(registry, paths, reference, other_run)
    print(verdict.to_json() if options.json else "\n".join(verdict_lines(verdict)))
    return 0 if verdict.verdict in ("aligned", "consistent") else GateFailed.exit_code


def _verdict(registry: Registry, paths: RunPaths, reference: Reference | None, other_run: RunPaths | None) -> Alignment:
    """Return the verdict on a run against another run or a reference, by default that of its case."""
    from levelfield.catalog.lookup import find_reference
    from levelfield.judge.certification import apply_certificate
    from levelfield.judge.collector import collect
    from levelfield.judge.promotion import make_reference
    from levelfield.judge.verdict import (
        compare_with_reference,
        reference_curve,
        run_curve,
        training_verdict,
        verdict_under_status,
        withhold_if_tampered,
    )
    from levelfield.rundir.directory import read_plan
    from levelfield.rundir.raw_files import read_raw

    plan, result = read_plan(paths), collect(paths)
    default, raw, identity = find_reference(registry, plan), read_raw(paths), result.identity
    if other_run is None:
        verdict = training_verdict(plan, raw, identity, reference or default)
    else:
        # the noise of the case's reference also limits the difference of two runs
        noise = default.noise if default and default.identity.work == identity.work else ()
        other_reference = make_reference(other_run, "compared with, not promoted").model_copy(update={"noise": noise})
        verdict = compare_with_reference(
            run_curve(plan.work, raw, identity), reference_curve(other_reference), other_reference
        )
    verdict = apply_certificate(withhold_if_tampered(verdict, result.seal), plan, result.certificate)
    return verdict_under_status(verdict, result.status)


def verdict_lines(verdict: Alignment) -> list[str]:
    """Return the verdict, each layer with value and limit, and FlagPerf's figure, in lines of at most 80 columns."""
    marks = {True: "holds", False: "FAILS", None: "open"}
    rows = [(layer.name, pad_row((marks[layer.passed], layer.detail), (6,), " ")) for layer in verdict.layers]
    rows += [("against", verdict.reference)] if verdict.reference else []
    rows += [("limits", verdict.limits)] if verdict.limits else []
    if verdict.flagperf_mean_error is not None:
        figure = f"{verdict.flagperf_mean_error:.2e} (its rule: 2 %)"
        rows.append(("FlagPerf", f"mean relative difference from step 21: {figure}"))
    first_line = wrapped(f"{verdict.verdict}: {reason_without_limits(verdict)}", LABEL_WIDTH)
    return [first_line, *(labelled_line(*row, LABEL_WIDTH) for row in rows)]


def _add_curves_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("ours", nargs="+", type=Path, metavar="FILE", help="a loss curve for each run of one side")
    option(
        "--against", nargs="+", type=Path, required=True, metavar="FILE", help="a curve for each run of the other side"
    )
    option(
        "--margin",
        type=_parse_margin,
        default=0.01,
        metavar="P%",
        help="the largest difference that counts as none (1%%)",
    )
    option("--from-step", type=int, metavar="N", help="the tail begins here (default: the second half of common steps)")
    option("--to-step", type=int, metavar="N", help="leave out later steps, as of a run that was to be longer")
    option("--tag", metavar="NAME", help="the scalar or column with the loss, where it is not `loss`")
    add_json_option(parser)


def _compare_curves(options: argparse.Namespace) -> int:
    """Return 0 when the tails are within the margin, else 4.

    Raises DocumentError for a file without a curve, and UsageError for one run on both sides.
    """
    from levelfield.measure.curves import compare_tails, first_curve_of_each_run
    from levelfield.publish.foreign_curves import read_curve

    files, our_count = [*options.ours, *options.against], len(options.ours)
    read_curves = [read_curve(path, options.tag) for path in files]
    curves = [curve.losses for curve in read_curves]
    notes = [f"{path}: {note}" for path, curve in zip(files, read_curves, strict=True) for note in curve.notes]
    first_numbers = first_curve_of_each_run(curves)  # for each file: the number of its run's first file
    for number, first in enumerate(first_numbers):
        if number >= our_count > first:  # a run on both sides would draw the two means together
            raise UsageError(
                f"{files[number]}: found the curve of {files[first]}, which stands on the other side; give each run on "
                "one side only. Runs that share weights and tokens are compared by `align`"
            )
    repeat_messages = [
        f"{files[number]} has the curve of {files[first]}: they count as one run"
        for number, first in enumerate(first_numbers)
        if first != number
    ]
    # A run is compared by its longest file.
    longest_files = {first_numbers[n]: n for n in sorted(range(len(files)), key=lambda n: len(curves[n]))}
    sides = [
        sorted({longest_files[first_numbers[n]] for n in side})
        for side in (range(our_count), range(our_count, len(files)))
    ]
    ours, theirs = ([curves[number] for number in side] for side in sides)
    names = [str(files[number]) for side in sides for number in side]
    compared_curves, to_step = (ours, theirs), options.to_step
    if to_step is not None:
        for path, curve in zip(files, curves, strict=True):
            if not min(curve) <= to_step:
                raise UsageError(
                    f"--to-step {to_step}: found {path} from step {min(curve)} on, expected a later --to-step"
                )
        compared_curves = [_truncate(curve, to_step) for curve in ours], [_truncate(curve, to_step) for curve in theirs]
    comparison = compare_tails(*compared_curves, options.margin, options.from_step, names)
    is_restricted = options.from_step is not None or to_step is not None
    default_comparison = compare_tails(ours, theirs, options.margin, names=names) if is_restricted else None
    if options.json:
        counts = {"runs": len(ours), "against": len(theirs), "repeated": repeat_messages, "notes": notes}
        print(
            json_text(
                {**asdict(comparison), **counts, "default_tail": default_comparison and asdict(default_comparison)}
            )
        )
    else:
        print(
            "\n".join(
                _curve_lines(
                    comparison, default_comparison, [*repeat_messages, *notes], f"{len(ours)} against {len(theirs)}"
                )
            )
        )
    return 0 if comparison.word == "within the margin" else GateFailed.exit_code


def _truncate(curve: LoggedCurve, last_step: int) -> dict[int, float | None]:
    return {step: loss for step, loss in curve.items() if step <= last_step}


def _curve_lines(
    comparison: TailComparison, default_comparison: TailComparison | None, notes: list[str], run_counts: str
) -> list[str]:
    """Return word, reason and figures in lines of at most 80 columns. default_comparison: that of the default tail."""
    rows = [("", note) for note in notes]
    if default_comparison is not None:
        steps = (
            f"steps {default_comparison.steps[0]} to {default_comparison.steps[1]}: "
            if default_comparison.steps
            else ""
        )
        rows.append(("default", f"{default_comparison.word}: the default tail, {steps}{default_comparison.reason}"))
    rows.append(("runs", run_counts))
    if comparison.steps and comparison.difference is not None:
        steps = f"steps {comparison.steps[0]} to {comparison.steps[1]}"
        rows.append(("tail", f"{steps}; means differ by {comparison.difference:+.2%}"))
    if comparison.spread is not None:
        rows.append(("spread", f"{comparison.spread:.2%} between the runs of a side (standard deviation)"))
    return [
        wrapped(f"{comparison.word}: {comparison.reason}", _CURVE_LABEL_WIDTH),
        *(labelled_line(*row, _CURVE_LABEL_WIDTH) for row in rows),
    ]


def _parse_margin(text: str) -> float:
    """Return 0.01 for `1%` and for `0.01`."""
    if not (match := _PERCENT.fullmatch(text.strip())):
        raise argparse.ArgumentTypeError(f"found '{text}', expected a share such as 1% or 0.01")
    value = float(match[1]) / (100 if match[2] else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"found {value:.0%}, expected more than 0 % and less than 100 %")
    return value


COMMANDS = {
    "align": Command(_ALIGN_HELP, _add_align_options, _align),
    "align curves": Command(_CURVES_HELP, _add_curves_options, _compare_curves),
}
