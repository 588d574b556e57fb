"""Every command and option, with the words that teach them. Commands are imported when they are called."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import levelfield

_RUN_HELP = """\
Train one case on this machine and judge the run by its own raw files.

examples:
  run_benchmarks.py --case gpt3_6.7B:torch          smoke without accelerator
  run_benchmarks.py --case llama3_8b:torch:cpu:1:2  two processes
  run_benchmarks.py --case gpt3_6.7B:torch --layout TP2PP1 --dry-run
  run_benchmarks.py --suite smoke --repeat 3
  run_benchmarks.py --suite oneflow_gpt --dry-run   as a table

a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
layouts: DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), TP1PP1SH2SP8
(sharding stage and degree), 1n_8g_dp_4bs; +seq adds sequence parallelism

other commands (each has --help):
  list       cases, frameworks, vendors, chips and suites
  show       a case, resolved, with its smoke scale
  plan       every layout of a case on any devices: memory and tokens/s
  sweep      run the plan's best, predicted beside measured
  report     one run or many: table, markdown, csv, json
  reveal     check withheld values against their commitments
  collect    compute a run's result again from its raw files
  align      a run's training against a reference, layer by layer
  diagnose   the first step and tensor in which two frameworks part
  references what runs are held against: list, promote
  audit      published figures, computed again from their own rows
  vendor     a maker's chips: begin a folder, check it, record its tools
  image      images for --runtime docker: build, list, prune, export
  data       prepare a corpus from text, or check one
  export     a case's initial weights in the format of others

exit codes: 0 good, 2 wrong usage or configuration, 3 a run failed, 4 a gate
refused, 5 the platform's own fault, 130 interrupted
"""

COMMANDS = (
    "run",
    "list",
    "show",
    "plan",
    "sweep",
    "report",
    "reveal",
    "collect",
    "align",
    "diagnose",
    "references",
    "audit",
    "vendor",
    "image",
    "data",
    "export",
)


def parser_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; without a command's name the command is `run`. Ends the process with 2 on wrong usage, 0 after --help."""
    given = list(arguments)
    name = given.pop(0) if given and given[0] in COMMANDS else "run"
    program = "run_benchmarks.py" if name == "run" else f"run_benchmarks.py {name}"
    formatter = argparse.RawDescriptionHelpFormatter if name == "run" else argparse.HelpFormatter
    parser = argparse.ArgumentParser(prog=program, formatter_class=formatter)
    parser.set_defaults(command=_later(name))
    _BUILDERS[name](parser)
    _shared(parser)
    if not given and name == "run":
        given = ["--help"]
    return parser.parse_args(given)


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    def call(options: argparse.Namespace) -> int:
        module = importlib.import_module(f"levelfield.cli.{name if name != 'list' else 'listing'}_command")
        code: int = module.execute(options)
        return code

    return call


def _described_by(name: str) -> Callable[[argparse.ArgumentParser], None]:
    """The builder of a command whose own module describes it."""

    def build(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(f"levelfield.cli.{name}_command").arguments(parser)

    return build


def _shared(parser: argparse.ArgumentParser, behind_an_action: bool = False) -> None:
    """behind_an_action: `references list --runs DIR` as well as `references --runs DIR list`; what is not given there
    leaves what was given before."""
    absent: dict[str, Any] = {"default": argparse.SUPPRESS} if behind_an_action else {}
    group = parser.add_argument_group("common")
    group.add_argument(
        "--plugins",
        type=Path,
        action="append",
        metavar="DIR",
        help="more vendors, models and cases",
        **(absent or {"default": []}),
    )
    group.add_argument("--runs", type=Path, metavar="DIR", help="where runs lie (default: runs/)", **absent)
    if not behind_an_action:
        group.add_argument("--version", action="version", version=f"levelfield {levelfield.__version__}")


def _chips(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """For commands that look chips up; what a run had stays in its plan, so reports have no use for it."""
    parser.add_argument(
        "--chips",
        type=Path,
        metavar="FILE",
        help="private chips and corrections (default: ~/.config/levelfield/chips.yaml if it is there)",
    )


def size_in_bytes(text: str) -> int:
    """A size as engines write it: 512M, 8G, or bytes. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a size such as 512M or 8G")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def _run(parser: argparse.ArgumentParser) -> None:
    parser.description = _RUN_HELP
    parser.usage = "run_benchmarks.py --case CASE:FRAMEWORK[:...] [options]\n       run_benchmarks.py COMMAND --help"
    what = parser.add_argument_group("what to run")
    what.add_argument("--case", action="append", default=[], metavar="STRING", help="a case string; may be repeated")
    what.add_argument("--suite", action="append", default=[], metavar="NAME|FILE", help="a list of cases")
    what.add_argument("--repeat", type=int, metavar="N", help="run each N times")
    what.add_argument("--scale", choices=("auto", "smoke", "full"), default="auto", help="auto: full where it fits")
    what.add_argument("--data", metavar="PREFIX", help="a corpus (.bin/.idx or _ids.npy/_idx.npz); else synthetic")
    free = parser.add_argument_group("free choices (all else is fixed by the case)")
    free.add_argument("--layout", help="parallel layout")
    free.add_argument("--micro-batch", type=int, metavar="N", help="sequences per forward pass")
    free.add_argument("--virtual-pipeline", type=int, metavar="N", help="model chunks of each stage, interleaved")
    free.add_argument("--recompute", choices=("none", "selective", "full"), help="activations to compute again")
    free.add_argument("--compile", action=argparse.BooleanOptionalAction, help="compile the model")
    free.add_argument("--attention", choices=("sdpa", "flash_attn"), help="attention kernel")
    free.add_argument("--threads", type=int, metavar="N", help="processor threads per process")
    free.add_argument("--env", action="append", default=[], metavar="K=V", help="a variable for the training process")
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="show exactly what would run, and run nothing")
    how.add_argument(
        "--assume-hardware",
        metavar="HARDWARE",
        help='with --dry-run: plan for "4x8 V100-SXM2-16GB", four nodes of eight, wherever this is',
    )
    how.add_argument("--python", metavar="PATH", help="train with this interpreter instead of a made environment")
    how.add_argument("--probe", action="store_true", help="measure the matmul peak, beside a published one too")
    how.add_argument("--save-weights", action="store_true", help="keep the weights after the last step")
    _chips(how)
    _output(how)
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--runtime",
        choices=("process", "docker", "inside"),
        default="process",
        help="process: an environment made here; docker: a container; inside: this machine is a container already",
    )
    where.add_argument("--base-image", metavar="IMAGE", help="build on it (else LEVELFIELD_BASE_IMAGE, the vendor's)")
    where.add_argument("--offline", action="store_true", help="fetch neither wheels nor images")
    where.add_argument("--container-memory", type=size_in_bytes, metavar="SIZE", help="limit of each container, as 8G")


def _output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="machine-readable output on stdout")
    group.add_argument("--quiet", action="store_true", help="only the result")


def _list(parser: argparse.ArgumentParser) -> None:
    parser.description = "List what there is. Without KIND: everything."
    kinds = ("cases", "frameworks", "vendors", "chips", "suites", "published", "runs")
    parser.add_argument("kind", nargs="?", choices=kinds, metavar="KIND", help=", ".join(kinds))
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a case, resolved: everything it fixes, at full and at smoke scale. With --vendor: also what the vendor's "
        "tuning makes of its free fields; --diff shows only that, row by row, and why."
    )
    parser.add_argument("case")
    parser.add_argument("--scale", choices=("full", "smoke"), help="only this scale (default: both)")
    parser.add_argument("--vendor", metavar="NAME", help="with this vendor's tuning")
    parser.add_argument("--diff", action="store_true", help="what the vendor changes, from what to what, and why")
    parser.add_argument("--framework", metavar="NAME", help="rows for this framework")
    parser.add_argument("--chip", metavar="NAME", help="rows for this chip")
    parser.add_argument("--devices", type=int, metavar="N", help="rows for so many devices of a node")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.description = "Report runs: one in full, several side by side. RUN: a path, an id, a part of one, or latest."
    parser.add_argument("run", nargs="+")
    parser.add_argument(
        "--format",
        choices=("table", "markdown", "csv", "json", "flagperf", "oneflow", "osdi"),
        default="table",
        metavar="FORMAT",
        help="table, markdown, csv, json; flagperf, oneflow, osdi: in exactly the columns of these reports",
    )
    parser.add_argument(
        "--with-published", action="store_true", help="published rows of the same case beside it, by one convention"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of stdout")
    private = parser.add_argument_group("for publishing some of it")
    private.add_argument(
        "--withhold", metavar="FIELDS", help="mfu,peak: these read 'withheld', with a commitment to each"
    )
    private.add_argument("--bundle", type=Path, metavar="DIR", help="the folder to publish: every format, commitments")
    private.add_argument("--reveal", type=Path, metavar="FILE", help="what you keep (default: DIR.reveal.json)")


def _reveal(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check values that a publisher reveals against the commitments that came with the table; exit 4 when one is "
        "not the value that was committed to."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="say for every cell whether it matches")
    check.add_argument("commitments", type=Path, metavar="COMMITMENTS", help="commitments.json of the bundle")
    check.add_argument("revealed", type=Path, metavar="REVEAL", help="the reveal, or a part of it")
    check.add_argument("--json", action="store_true", help="machine-readable output")
    _shared(check, behind_an_action=True)


def _collect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compute result.json and report.md again from a run's raw files: the same bytes."
    parser.add_argument("run", nargs="+")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 4 if the result would differ")


def _align(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say whether a run trains as a reference does, layer by layer; exit 4 unless it is aligned. "
        "`align calibrate CASE:FRAMEWORK` runs a case with other arithmetic and records the noise in its reference."
    )
    parser.add_argument("run", help="a path, an id, a part of one, or latest; or the word calibrate")
    parser.add_argument("case", nargs="?", help="with calibrate: a case string")
    parser.add_argument("--reference", metavar="RUN|NAME", help="another run, or a reference's name (default: its own)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find where a run's framework parts from another's: both are trained again for a few steps, in one process, "
        "and every block's output, every gradient and every updated parameter of a step is compared. Exit 4 when "
        "something differs, 0 when nothing does. The short runs stay in RUN/diagnosis/."
    )
    parser.add_argument("run", help="a path, an id, a part of one, or latest")
    parser.add_argument("--against", metavar="FRAMEWORK", help="the other side (default: the reference's, else torch)")
    parser.add_argument("--python", metavar="PATH", help="the other side's interpreter, instead of a made environment")
    parser.add_argument("--step", type=int, metavar="N", help="search steps 1 to N (default: the first beyond noise)")
    parser.add_argument("--json", action="store_true", help="machine-readable output, with every tensor")
    _chips(parser)


def _references(parser: argparse.ArgumentParser) -> None:
    parser.description = "What runs are held against (configs/references/)."
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="every reference, where it comes from and what noise it knows")
    promote = actions.add_parser("promote", help="make a valid run the reference of its case")
    promote.add_argument("run")
    promote.add_argument("--why", required=True, metavar="TEXT", help="kept in the reference")
    promote.add_argument("--replace", action="store_true", help="although the run fails against the present reference")
    noise = actions.add_parser("noise", help="record how far runs come that differ in arithmetic only")
    noise.add_argument("name", metavar="NAME", help="the reference")
    noise.add_argument("run", nargs="+", help="valid runs of the same case: another layout, thread count or framework")
    for action in actions.choices.values():
        _shared(action, behind_an_action=True)


def _vendor(parser: argparse.ArgumentParser) -> None:
    parser.description = "Bring a maker's chips: docs/writing-a-vendor.md goes through it."
    actions = parser.add_subparsers(dest="action", required=True)
    new = actions.add_parser("new", help="write a vendor's folder, to be filled in")
    new.add_argument("--package", action="store_true", help="a package that pip installs, instead of a folder")
    new.add_argument("--output", type=Path, metavar="DIR", help="DIR/vendors/NAME; with --package DIR/levelfield-NAME")
    check = actions.add_parser("check", help="the conformance suite, without the chip; exit 4 unless all is well")
    check.add_argument("--json", action="store_true", help="machine-readable output")
    check.add_argument("--fast", action="store_true", help="without the checks that train or wait (seconds)")
    record = actions.add_parser("record", help="on a machine with the chip: keep what the maker's tools print")
    record.add_argument(
        "--redact", action="store_true", help="replace serial numbers and UUIDs by others of their form"
    )
    record.add_argument("--force", action="store_true", help="replace recordings that are there")
    for action in actions.choices.values():
        action.add_argument("name", metavar="NAME")
        _shared(action, behind_an_action=True)


def _image(parser: argparse.ArgumentParser) -> None:
    parser.description = "The images that --runtime docker runs in; a run builds its own when it is not there."
    actions = parser.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="build now what runs of these frameworks will need")
    build.add_argument("framework", nargs="+")
    show = actions.add_parser("show", help="print the Dockerfile")
    show.add_argument("framework")
    listing = actions.add_parser("list", help="images of ours on the engine")
    listing.add_argument("--json", action="store_true", help="machine-readable output")
    prune = actions.add_parser("prune", help="remove all but the newest of each, and what stopped builds left")
    prune.add_argument("--all", action="store_true", help="remove every image of ours")
    export = actions.add_parser("export", help="write an image, or what it is built from, to a file")
    export.add_argument("framework")
    export.add_argument("--output", type=Path, required=True, metavar="FILE", help="a tar file")
    export.add_argument("--context", action="store_true", help="Dockerfile and wheels, to build elsewhere; no engine")
    for name in ("build", "show", "export"):
        of = actions.choices[name]
        of.add_argument("--vendor", default="cpu", help="for this vendor's devices (default: cpu)")
        of.add_argument("--base-image", metavar="IMAGE", help="build on it (else LEVELFIELD_BASE_IMAGE, the vendor's)")
        of.add_argument("--offline", action="store_true", help="fetch neither wheels nor images")
    for action in actions.choices.values():
        _shared(action, behind_an_action=True)


def _data(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepare a corpus from text, or check one."
    actions = parser.add_subparsers(dest="action", required=True)
    prepare = actions.add_parser("prepare", help="text files to Megatron's indexed .bin/.idx")
    prepare.add_argument("--input", type=Path, action="append", required=True, metavar="FILE|DIR")
    prepare.add_argument("--tokenizer", required=True, metavar="bytes|TOKENIZER.json")
    prepare.add_argument("--output", type=Path, required=True, metavar="PREFIX")
    prepare.add_argument("--suffix", action="append", metavar=".txt", help="files of a DIR to take; may be repeated")
    prepare.add_argument("--end-token", metavar="TEXT", help="the tokenizer's end-of-document token")
    prepare.add_argument("--force", action="store_true", help="replace an existing corpus")
    check = actions.add_parser("check", help="read a whole corpus and say what it is")
    check.add_argument("prefix", metavar="PREFIX")
    for action in actions.choices.values():
        _shared(action, behind_an_action=True)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write a case's initial weights as others read them."
    parser.add_argument("case")
    parser.add_argument("--format", choices=("hf",), required=True, help="hf: safetensors and config.json")
    parser.add_argument("--scale", choices=("full", "smoke"), default="smoke")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")


_BUILDERS = {
    "run": _run,
    "list": _list,
    "show": _show,
    "plan": _described_by("plan"),
    "sweep": _described_by("sweep"),
    "report": _report,
    "reveal": _reveal,
    "collect": _collect,
    "align": _align,
    "diagnose": _diagnose,
    "references": _references,
    "audit": _described_by("audit"),
    "vendor": _vendor,
    "image": _image,
    "data": _data,
    "export": _export,
}
