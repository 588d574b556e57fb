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
from levelfield.cli.named_runs import RUN_NAME, finished_run
from levelfield.cli.options import chips_option, json_option, registry_of
from levelfield.errors import GateFailed, UsageError
from levelfield.report.result_words import reason_without_limits
from levelfield.report.sheets import labelled, padded
from levelfield.report.words import wrapped
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from levelfield.measure.curves import LoggedCurve, TailComparison
    from levelfield.specs.result import Alignment

ALIGN = """\
Compare a run's training with a reference, layer by layer. Exit code 4 unless
the verdict is `aligned` or `consistent`.

examples:
  run_benchmarks.py align latest
  run_benchmarks.py align RUN --reference OTHER_RUN
"""
CURVES = """\
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

WIDTH = 14  # of the first column: the longest name is `final weights`
_CURVE_WIDTH = 11
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


def _align_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", metavar="RUN", help=RUN_NAME)
    option("--reference", metavar="RUN|NAME", help="another run, or a reference (default: the one of the case)")
    json_option(parser)
    chips_option(parser)


def _align(options: argparse.Namespace) -> int:
    """Return 0 when the run is aligned or consistent, else 4. No run that is not valid is."""
    found = _verdict(options)
    print(found.to_json() if options.json else "\n".join(lines(found)))
    return 0 if found.verdict in ("aligned", "consistent") else GateFailed.exit_code


def _verdict(options: argparse.Namespace) -> Alignment:
    """Return the verdict on the run against --reference, a run or a name, by default that of its case."""
    from levelfield.catalog.lookup import reference_of
    from levelfield.judge.certification import with_certificate
    from levelfield.judge.collector import collect
    from levelfield.judge.promotion import reference_from
    from levelfield.judge.verdict import (
        against,
        training_of,
        training_of_reference,
        training_verdict,
        under_status,
        unless_tampered,
    )
    from levelfield.rundir.directory import read_plan
    from levelfield.rundir.raw_files import read_raw

    registry, name = registry_of(options), options.reference
    paths = finished_run(options, options.run)
    plan, result = read_plan(paths), collect(paths)
    own, raw, identity = reference_of(registry, plan), read_raw(paths), result.identity
    if name is None or name in registry.references:
        verdict = training_verdict(plan, raw, identity, registry.reference(name) if name else own)
    else:
        other = reference_from(finished_run(options, name), "compared with, not promoted")
        # the noise of the case's reference also limits the difference of two runs
        noise = own.noise if own and own.identity.work == identity.work else ()
        reference = other.model_copy(update={"noise": noise})
        verdict = against(training_of(plan.work, raw, identity), training_of_reference(reference), reference)
    return under_status(
        with_certificate(unless_tampered(verdict, result.seal), plan, result.certificate), result.status
    )


def lines(found: Alignment) -> list[str]:
    """Return verdict, layers with value and limit, and FlagPerf's figure, in lines of at most 80 columns."""
    marks = {True: "holds", False: "FAILS", None: "open"}
    rows = [(layer.name, padded((marks[layer.passed], layer.detail), (6,), " ")) for layer in found.layers]
    rows += [("against", found.reference)] if found.reference else []
    rows += [("limits", found.limits)] if found.limits else []
    if found.flagperf_mean_error is not None:
        figure = f"{found.flagperf_mean_error:.2e} (its rule: 2 %)"
        rows.append(("FlagPerf", f"mean relative difference from step 21: {figure}"))
    said = wrapped(f"{found.verdict}: {reason_without_limits(found)}", WIDTH)
    return [said, *(labelled(*row, WIDTH) for row in rows)]


def _curves_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("ours", nargs="+", type=Path, metavar="FILE", help="a loss curve for each run of one side")
    option(
        "--against", nargs="+", type=Path, required=True, metavar="FILE", help="a curve for each run of the other side"
    )
    option(
        "--margin", type=_margin, default=0.01, metavar="P%", help="the largest difference that counts as none (1%%)"
    )
    option("--from-step", type=int, metavar="N", help="the tail begins here (default: the second half of common steps)")
    option("--to-step", type=int, metavar="N", help="leave out later steps, as of a run that was to be longer")
    option("--tag", metavar="NAME", help="the scalar or column with the loss, where it is not `loss`")
    json_option(parser)


def _curves(options: argparse.Namespace) -> int:
    """Return 0 when the tails are within the margin, else 4.

    Raises DocumentError for a file without a curve, and UsageError for one run on both sides.
    """
    from levelfield.measure.curves import compare_tails, first_of_each_run
    from levelfield.publish.foreign_curves import read_curve

    files, count = [*options.ours, *options.against], len(options.ours)
    curves = [read_curve(path, options.tag) for path in files]
    firsts = first_of_each_run(curves)
    _refuse_shared(files, firsts, count)
    repeats = [
        f"{files[number]} has the curve of {files[first]}: they count as one run"
        for number, first in enumerate(firsts)
        if first != number
    ]
    longest = {firsts[n]: n for n in sorted(range(len(files)), key=lambda n: len(curves[n]))}
    sides = [sorted({longest[firsts[n]] for n in side}) for side in (range(count), range(count, len(files)))]
    ours, theirs = ([curves[number] for number in side] for side in sides)
    names = [str(files[number]) for side in sides for number in side]
    _check_end(files, curves, options.to_step)
    until, until_theirs = ([_up_to(curve, options.to_step) for curve in side] for side in (ours, theirs))
    comparison = compare_tails(until, until_theirs, options.margin, options.from_step, names)
    is_restricted = options.from_step is not None or options.to_step is not None
    usual = compare_tails(ours, theirs, options.margin, names=names) if is_restricted else None
    if options.json:
        more = {"runs": len(ours), "against": len(theirs), "repeated": repeats}
        print(json_text({**asdict(comparison), **more, "default_tail": usual and asdict(usual)}))
    else:
        print("\n".join(_curve_lines(comparison, usual, repeats, f"{len(ours)} against {len(theirs)}")))
    return 0 if comparison.word == "within the margin" else GateFailed.exit_code


def _check_end(files: list[Path], curves: Sequence[LoggedCurve], to_step: int | None) -> None:
    for path, curve in zip(files, curves, strict=True):
        if to_step is not None and not min(curve) <= to_step:
            raise UsageError(f"--to-step {to_step}: found {path} from step {min(curve)} on, expected a later --to-step")


def _up_to(curve: LoggedCurve, to_step: int | None) -> LoggedCurve:
    return {step: loss for step, loss in curve.items() if to_step is None or step <= to_step}


def _curve_lines(found: TailComparison, usual: TailComparison | None, repeats: list[str], runs: str) -> list[str]:
    """Return word, reason and figures, in lines of at most 80 columns. usual: what the default tail gives."""
    rows = [("", said) for said in repeats]
    if usual is not None:
        steps = f"steps {usual.steps[0]} to {usual.steps[1]}: " if usual.steps else ""
        rows.append(("default", f"{usual.word}: the default tail, {steps}{usual.reason}"))
    rows.append(("runs", runs))
    if found.steps and found.difference is not None:
        steps = f"steps {found.steps[0]} to {found.steps[1]}"
        rows.append(("tail", f"{steps}; means differ by {found.difference:+.2%}"))
    if found.spread is not None:
        rows.append(("spread", f"{found.spread:.2%} between the runs of a side (standard deviation)"))
    return [wrapped(f"{found.word}: {found.reason}", _CURVE_WIDTH), *(labelled(*row, _CURVE_WIDTH) for row in rows)]


def _refuse_shared(files: list[Path], firsts: list[int], count: int) -> None:
    """Raise UsageError where a run stands on both sides: it would draw the two means together."""
    for number, first in enumerate(firsts):
        if number >= count > first:
            raise UsageError(
                f"{files[number]}: found the curve of {files[first]}, which stands on the other side; give each run on "
                "one side only. Runs that share weights and tokens are compared by `align`"
            )


def _margin(text: str) -> float:
    """Return 0.01 for `1%` and for `0.01`."""
    if not (found := _PERCENT.fullmatch(text.strip())):
        raise argparse.ArgumentTypeError(f"found '{text}', expected a share such as 1% or 0.01")
    value = float(found[1]) / (100 if found[2] else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"found {value:.0%}, expected more than 0 % and less than 100 %")
    return value


COMMANDS = {
    "align": Command(ALIGN, _align_options, _align),
    "align curves": Command(CURVES, _curves_options, _curves),
}
