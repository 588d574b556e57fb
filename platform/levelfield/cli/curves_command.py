"""`align curves`: compare loss curves of runs that share no weights"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import json_option
from levelfield.errors import GateFailed, UsageError
from levelfield.measure.curves import Curve, TailComparison, compare_tails, first_of_each_run
from levelfield.publish.foreign_curves import read_curve
from levelfield.report.words import wrapped

_HELP = """\
Compare the loss curves of two groups of runs that share no weights: other
seeds, other tools, curves from elsewhere. The mean loss over the tail is
compared, with a 90 % interval over the runs. At least two runs a side are
needed, because one curve does not show how far seeds differ. Equal tails do
not prove equal trainings; `align` compares runs step by step.

Files with the same curve count as one run. With --from-step the default tail
is judged too, and both answers are printed.

A file is a table (CSV or TSV with a step and a loss), JSON or JSON lines, a
log of Megatron, FlagPerf or PaddleNLP, or a TensorBoard event file.
Exit code 4 unless the answer is `within the margin`.

examples:
  run_benchmarks.py align curves A1.csv A2.csv --against B1.log B2.log
  run_benchmarks.py align curves A*.json --against B*.json --margin 0.2%
"""
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ours", nargs="+", type=Path, metavar="FILE", help="a loss curve for each run of one side")
    parser.add_argument(
        "--against", nargs="+", type=Path, required=True, metavar="FILE", help="a curve for each run of the other side"
    )
    parser.add_argument(
        "--margin", type=_margin, default=0.01, metavar="P%", help="the largest difference that counts as none (1%%)"
    )
    parser.add_argument(
        "--from-step", type=int, metavar="N", help="the tail begins here (default: the second half of common steps)"
    )
    parser.add_argument("--tag", metavar="NAME", help="the scalar or column with the loss, where it is not `loss`")
    json_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Return 0 when the tails are within the margin, else 4.

    Raises DocumentError for a file without a curve, and UsageError for one run on both sides.
    """
    files = [*options.ours, *options.against]
    curves = [read_curve(path, options.tag) for path in files]
    firsts, count = first_of_each_run(curves), len(options.ours)
    _refuse_shared(files, firsts, count)
    ours, theirs = (_runs(curves, firsts, side) for side in (range(count), range(count, len(files))))
    found = compare_tails(ours, theirs, options.margin, options.from_step)
    usual = None if options.from_step is None else compare_tails(ours, theirs, options.margin)
    counts = {"runs": len(ours), "against": len(theirs)}
    repeats = list(_repeats(files, firsts))
    if options.json:
        default = None if usual is None else asdict(usual)
        print(json.dumps(asdict(found) | counts | {"repeated": repeats, "default_tail": default}, indent=2))
    else:
        print("\n".join(lines(found, usual, repeats, **counts)))
    return 0 if found.word == "within the margin" else GateFailed.exit_code


def lines(
    found: TailComparison, usual: TailComparison | None, repeats: list[str], runs: int, against: int
) -> list[str]:
    """Return word, reason and figures, in lines of at most 80 columns. usual: what the default tail gives."""
    text = [f"{found.word}: {found.reason}", *(f"{'':<11}{said}" for said in repeats)]
    if usual is not None:
        steps = f"steps {usual.steps[0]} to {usual.steps[1]}: " if usual.steps else ""
        text.append(f"{'default':<11}{usual.word}: the default tail, {steps}{usual.reason}")
    text.append(f"{'runs':<11}{runs} against {against}")
    if found.steps and found.difference is not None:
        text.append(f"{'tail':<11}steps {found.steps[0]} to {found.steps[1]}; means differ by {found.difference:+.2%}")
    if found.spread is not None:
        text.append(f"{'spread':<11}{found.spread:.2%} between the runs of a side (standard deviation)")
    return [wrapped(line, 11) for line in text]


def _refuse_shared(files: list[Path], firsts: list[int], count: int) -> None:
    """Raise UsageError where a run stands on both sides: it would draw the two means together."""
    for number, first in enumerate(firsts):
        if number >= count > first:
            raise UsageError(
                f"{files[number]}: found the curve of {files[first]}, which stands on the other side; give each run on "
                "one side only. Runs that share weights and tokens are compared by `align`"
            )


def _runs(curves: list[dict[int, float]], firsts: list[int], side: range) -> list[Curve]:
    """Return one curve for each run of a side."""
    return [curves[number] for number in side if firsts[number] == number]


def _repeats(files: list[Path], firsts: list[int]) -> Iterator[str]:
    """Yield a sentence for each file that counts for nothing."""
    for number, first in enumerate(firsts):
        if first != number:
            yield f"{files[number]} has the curve of {files[first]}: they count as one run"


def _margin(text: str) -> float:
    """Return 0.01 for `1%` and for `0.01`."""
    if not (found := _PERCENT.fullmatch(text.strip())):
        raise argparse.ArgumentTypeError(f"found '{text}', expected a share such as 1% or 0.01")
    value = float(found[1]) / (100 if found[2] else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"found {value:.0%}, expected more than 0 % and less than 100 %")
    return value


COMMANDS = {
    "align curves": Command(_HELP, arguments, execute),
}
