"""Every command and option with its help. The module of a command is imported when the command is called."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import levelfield
from levelfield.cli.container_options import BASE_HAS_FRAMEWORK, BASE_IMAGE
from levelfield.cli.descriptions import DESCRIPTIONS
from levelfield.cli.store_options import recording_arguments, store_argument

COMMANDS = (
    "run",
    "list",
    "show",
    "plan",
    "sweep",
    "nightly",
    "bisect",
    "report",
    "compare",
    "serve",
    "reveal",
    "collect",
    "store",
    "history",
    "gate",
    "baseline",
    "bundle",
    "verify",
    "align",
    "curves",
    "diagnose",
    "preflight",
    "site",
    "references",
    "audit",
    "case",
    "vendor",
    "framework",
    "environment",
    "image",
    "wheels",
    "data",
    "export",
)

_RUN = "a path, a run id, a part of an id, or latest"


def parser_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed options; without a command's name the command is `run`.

    Ends the process with 2 on wrong usage, 0 after --help.
    """
    given = list(arguments)
    name = given.pop(0) if given and given[0] in COMMANDS else "run"
    program = "run_benchmarks.py" if name == "run" else f"run_benchmarks.py {name}"
    parser = argparse.ArgumentParser(
        prog=program, description=DESCRIPTIONS.get(name), formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    """Return the builder of a command whose own module has its description and options."""

    def build(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(f"levelfield.cli.{name}_command").arguments(parser)

    return build


def _shared(parser: argparse.ArgumentParser, behind_an_action: bool = False) -> None:
    """Add the options that all commands have.

    behind_an_action: the parser is of an action, as in `references list --runs DIR`. Its absent options keep the
    values that were given before the action, as in `references --runs DIR list`.
    """
    absent: dict[str, Any] = {"default": argparse.SUPPRESS} if behind_an_action else {}
    group = parser.add_argument_group("common")
    group.add_argument(
        "--plugins",
        type=Path,
        action="append",
        metavar="DIR",
        help="a folder with more vendors, models and cases; may be repeated",
        **(absent or {"default": []}),
    )
    group.add_argument(
        "--case-file",
        type=Path,
        action="append",
        metavar="FILE",
        help="a case outside of these folders, NAME.yaml, for --case NAME:...",
        **(absent or {"default": []}),
    )
    group.add_argument("--runs", type=Path, metavar="DIR", help="folder of the runs (default: runs/)", **absent)
    if not behind_an_action:
        group.add_argument("--version", action="version", version=f"levelfield {levelfield.__version__}")


def _actions(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return parser.add_subparsers(dest="action", required=True, title="actions (each has --help)")


def _complete(command: str, actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Give every action of the command its description and the common options."""
    for name, action in actions.choices.items():
        action.description = DESCRIPTIONS[f"{command} {name}"]
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        _shared(action, behind_an_action=True)


def _chips(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --chips, for commands that look chips up. Reports need none: the plan of a run holds its chip."""
    parser.add_argument(
        "--chips",
        type=Path,
        metavar="FILE",
        help="private chips and corrections (default: ~/.config/levelfield/chips.yaml, if it exists)",
    )


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size in the engines' notation: 512M, 8G, or bytes. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a size in bytes such as 512M or 8G")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def _run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "run_benchmarks.py --case CASE:FRAMEWORK[:...] [options]\n       run_benchmarks.py COMMAND --help"
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
    what.add_argument(
        "--scale",
        choices=("auto", "smoke", "full"),
        default="auto",
        help="auto: full on an accelerator with enough memory, else smoke",
    )
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
    how.add_argument(
        "--hosts", type=Path, metavar="FILE", help="hosts.yaml, or FlagPerf's cluster_conf.py: the nodes of the plan"
    )
    how.add_argument(
        "--python", metavar="PATH", help="train with this Python; default: an environment that Levelfield makes"
    )
    how.add_argument("--probe", action="store_true", help="measure the matmul peak even if a published one exists")
    how.add_argument(
        "--no-certificate",
        action="store_true",
        help="in 16 bits or at full scale: do not first train the case in fp32 at smoke scale, which takes about a "
        "minute; without that certificate no run is aligned",
    )
    how.add_argument("--save-weights", action="store_true", help="write the weights after the last step")
    _chips(how)
    _output(how)
    recording_arguments(how)
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--runtime",
        choices=("process", "docker", "inside"),
        default="process",
        help="process: a Python environment; docker: a container; inside: this machine is a container",
    )
    where.add_argument(
        "--launcher", metavar="NAME", help="ssh, slurm, kubernetes, or a site's own: runs on other machines"
    )
    where.add_argument(
        "--site",
        metavar="NAME|FILE",
        help="how these machines are reached (default: ~/.config/levelfield/site.yaml, if it exists)",
    )
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


def _output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="machine-readable output on stdout")
    group.add_argument("--quiet", action="store_true", help="print only the result")


def _list(parser: argparse.ArgumentParser) -> None:
    kinds = ("cases", "frameworks", "vendors", "chips", "suites", "published", "runs")
    parser.add_argument("kind", nargs="?", choices=kinds, metavar="KIND", help=", ".join(kinds))
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="the name of a case; `list cases` shows all")
    parser.add_argument("--scale", choices=("full", "smoke"), help="only this scale (default: both)")
    parser.add_argument("--vendor", metavar="NAME", help="add the free fields after this vendor's tuning")
    parser.add_argument("--diff", action="store_true", help="only the vendor's changes: old value, new value, reason")
    parser.add_argument("--framework", metavar="NAME", help="only tuning rows for this framework")
    parser.add_argument("--chip", metavar="NAME", help="only tuning rows for this chip")
    parser.add_argument("--devices", type=int, metavar="N", help="only tuning rows for N devices per node")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="*", metavar="RUN", help=f"{_RUN}; with --html none: the whole store")
    parser.add_argument(
        "--format",
        choices=("table", "markdown", "csv", "json", "flagperf", "oneflow", "osdi"),
        default="table",
        metavar="FORMAT",
        help="table, markdown, csv, json; flagperf, oneflow, osdi: the columns of these reports",
    )
    parser.add_argument(
        "--with-published", action="store_true", help="add published rows of the same case, by one convention"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    parser.add_argument("--html", type=Path, metavar="DIR", help="write pages into this folder; serve shows them")
    store_argument(parser, "with --html: ")
    private = parser.add_argument_group("to publish a part of the figures")
    private.add_argument(
        "--withhold", metavar="FIELDS", help="such as mfu,peak: print 'withheld' and a commitment instead"
    )
    private.add_argument(
        "--bundle", type=Path, metavar="DIR", help="a new folder to publish: every format and the commitments"
    )
    private.add_argument(
        "--reveal", type=Path, metavar="FILE", help="the file to keep secret (default: DIR.reveal.json)"
    )


def _reveal(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    check = actions.add_parser("check", help="print for every cell whether it matches")
    check.add_argument("commitments", type=Path, metavar="COMMITMENTS", help="commitments.json of the bundle")
    check.add_argument("revealed", type=Path, metavar="REVEAL", help="the reveal file, or a part of it")
    check.add_argument("--json", action="store_true", help="machine-readable output")
    _complete("reveal", actions)


def _collect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=_RUN)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 4 if the result differs")


def _baseline(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    importlib.import_module("levelfield.cli.baseline_command").arguments(actions)
    _complete("baseline", actions)


def _store(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    importlib.import_module("levelfield.cli.store_command").arguments(actions)
    _complete("store", actions)


def _align(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=f"{_RUN}; or the word calibrate")
    parser.add_argument("case", nargs="?", metavar="CASE:FRAMEWORK", help="with calibrate: a case string")
    parser.add_argument(
        "--reference", metavar="RUN|NAME", help="another run, or a reference (default: the one of the case)"
    )
    _override(parser, "with calibrate: ")
    recording_arguments(parser, "with calibrate: ")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(parser)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=_RUN)
    parser.add_argument(
        "--against", metavar="FRAMEWORK", help="the other framework (default: the reference's, else torch)"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="the other framework's Python; default: an environment that Levelfield makes"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="search steps 1 to N (default: to the first step beyond noise)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output, with every tensor")
    _chips(parser)


def _references(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    actions.add_parser("list", help="list every reference with its origin and noise")
    promote = actions.add_parser("promote", help="make a valid run the reference of its case")
    promote.add_argument("run", metavar="RUN", help=_RUN)
    promote.add_argument("--why", required=True, metavar="TEXT", help="the reason; the reference stores it")
    promote.add_argument("--replace", action="store_true", help="even if the run fails against the present reference")
    noise = actions.add_parser("noise", help="record how far runs with other arithmetic differ")
    noise.add_argument("name", metavar="NAME", help="the reference")
    noise.add_argument(
        "run", nargs="+", metavar="RUN", help="valid runs of the case with another layout, thread count or framework"
    )
    _override(noise)
    _complete("references", actions)


def _override(parser: argparse.ArgumentParser, when: str = "") -> None:
    parser.add_argument("--replace", action="store_true", help=f"{when}take noise also from runs beyond the limits")
    parser.add_argument("--why", metavar="TEXT", help=f"{when}the reason for --replace; the reference stores it")


def _case(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    new = actions.add_parser("new", help="write a case for the model of a config.json")
    new.add_argument("name", metavar="NAME", help="the case's name")
    new.add_argument(
        "--from", dest="config", type=Path, required=True, metavar="FILE", help="Hugging Face's config.json of a model"
    )
    new.add_argument("--parameters", type=int, metavar="N", help="the published number, to which the model is held")
    new.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="leave out a key that a case cannot say and that changes nothing here; may be repeated",
    )
    new.add_argument("--output", type=Path, metavar="DIR", help="write DIR/configs/cases/NAME.yaml")
    check = actions.add_parser("check", help="count a case's parameters and plan it on every framework; runs nothing")
    check.add_argument("name", metavar="NAME", help="the case's name")
    check.add_argument(
        "--hardware", metavar="HARDWARE", help='plan the full scale for it (default: "1x8 H100-SXM5-80GB")'
    )
    check.add_argument("--json", action="store_true", help="machine-readable output")
    _chips(check)
    _complete("case", actions)


def _vendor(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    new = actions.add_parser("new", help="write a vendor's folder with places to fill in")
    new.add_argument("--package", action="store_true", help="write a package for pip instead of a folder")
    new.add_argument(
        "--output", type=Path, metavar="DIR", help="write DIR/vendors/NAME; with --package DIR/levelfield-NAME"
    )
    check = actions.add_parser("check", help="run the conformance suite, without the chip")
    check.add_argument("--json", action="store_true", help="machine-readable output")
    check.add_argument("--fast", action="store_true", help="leave out the checks that train or wait; takes seconds")
    record = actions.add_parser("record", help="store the output of the vendor's tools, on a machine with the chip")
    record.add_argument(
        "--redact",
        action="store_true",
        help="replace serial numbers, UUIDs and other identities by others of the same form",
    )
    record.add_argument("--force", action="store_true", help="replace existing recordings")
    for action in actions.choices.values():
        action.add_argument("name", metavar="NAME", help="the vendor's name")
    _complete("vendor", actions)


def _framework(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    new = actions.add_parser("new", help="write a framework's folder that trains, to change step by step")
    new.add_argument("name", metavar="NAME", help="the framework's name")
    new.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="write FOLDER/models/NAME (default: the current folder)"
    )
    new.add_argument("--package", action="store_true", help="write a package FOLDER/levelfield-NAME for pip instead")
    check = actions.add_parser("check", help="train the small models in every offered layout, and compare them")
    check.add_argument("name", metavar="NAME", help="the framework, also with a version: acme_2.0.3")
    check.add_argument("--device", default="cpu", metavar="KIND", help="the kind of devices to train on (default: cpu)")
    check.add_argument("--python", metavar="PATH", help="an interpreter with the framework, in place of an environment")
    check.add_argument("--fast", action="store_true", help="one process only, without planted faults; writes nothing")
    check.add_argument("--json", action="store_true", help="machine-readable output")
    check.add_argument("--verbose", action="store_true", help="print each training to stderr, also without a terminal")
    _complete("framework", actions)


def _image(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    build = actions.add_parser("build", help="build the images of these frameworks")
    build.add_argument("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    show = actions.add_parser("show", help="print the Dockerfile")
    show.add_argument("framework", metavar="FRAMEWORK", help="such as torch")
    listing = actions.add_parser("list", help="list Levelfield's images on the engine")
    listing.add_argument("--json", action="store_true", help="machine-readable output")
    prune = actions.add_parser("prune", help="remove old images and the remains of stopped builds")
    prune.add_argument("--all", action="store_true", help="remove every image of Levelfield")
    export = actions.add_parser("export", help="write an image, or its build context, to a tar file")
    export.add_argument("framework", metavar="FRAMEWORK", help="such as torch")
    export.add_argument("--output", type=Path, required=True, metavar="FILE", help="the tar file to write")
    export.add_argument(
        "--context", action="store_true", help="write Dockerfile and wheels, to build elsewhere; needs no engine"
    )
    for name in ("build", "show", "export"):
        of = actions.choices[name]
        of.add_argument("--vendor", default="cpu", help="build for this vendor's devices (default: cpu)")
        of.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)
        of.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK)
        of.add_argument("--offline", action="store_true", help="fetch neither wheels nor images")
    _complete("image", actions)


def _environment(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    make = actions.add_parser("make", help="make the environments of these frameworks")
    make.add_argument("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    make.add_argument("--vendor", default="cpu", help="for this vendor's devices (default: cpu)")
    make.add_argument(
        "--any-driver",
        action="store_true",
        help="whatever driver is here, if any: for `plan --rehearse`, which needs no device",
    )
    _with(make)
    _complete("environment", actions)


def _with(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="uses",
        action="append",
        choices=("fp8", "flash_attn"),
        default=[],
        help="also what this choice needs; may be repeated",
    )


def _wheels(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    fetch = actions.add_parser("fetch", help="download wheels into a folder, for machines without network")
    fetch.add_argument("folder", type=Path, metavar="DIR", help="the folder to fill")
    fetch.add_argument(
        "framework", nargs="*", metavar="FRAMEWORK", help="such as torch or jax_0.10.1 (default: every one)"
    )
    fetch.add_argument("--vendor", default="cpu", help="for this vendor's devices (default: cpu)")
    _with(fetch)
    _complete("wheels", actions)


def _data(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser)
    prepare = actions.add_parser("prepare", help="convert text files to Megatron's indexed .bin/.idx")
    prepare.add_argument(
        "--input", type=Path, action="append", required=True, metavar="FILE|DIR", help="text; may be repeated"
    )
    prepare.add_argument(
        "--tokenizer",
        required=True,
        metavar="bytes|TOKENIZER.json",
        help="bytes: each byte is a token; or a Hugging Face tokenizer file",
    )
    prepare.add_argument("--output", type=Path, required=True, metavar="PREFIX", help="write PREFIX.bin and PREFIX.idx")
    prepare.add_argument(
        "--suffix", action="append", metavar=".txt", help="read only files of DIR with this suffix; may be repeated"
    )
    prepare.add_argument(
        "--field",
        metavar="NAME",
        help="the files are JSON lines, with a document in this field (wikiextractor: text)",
    )
    prepare.add_argument("--end-token", metavar="TEXT", help="the tokenizer's end-of-document token")
    prepare.add_argument("--force", action="store_true", help="replace an existing corpus")
    check = actions.add_parser("check", help="read a whole corpus; print its size and digest")
    check.add_argument("prefix", metavar="PREFIX", help="the path of the corpus without .bin/.idx or _ids.npy")
    _complete("data", actions)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="the name of a case; `list cases` shows all")
    parser.add_argument("--format", choices=("hf",), required=True, help="hf: safetensors and config.json")
    parser.add_argument("--scale", choices=("full", "smoke"), default="smoke", help="default: smoke")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder to write; empty or new")
    parser.add_argument("--force", action="store_true", help="replace what is in the folder")


_BUILDERS = {
    "run": _run,
    "list": _list,
    "show": _show,
    "plan": _described_by("plan"),
    "sweep": _described_by("sweep"),
    "nightly": _described_by("nightly"),
    "bisect": _described_by("bisect"),
    "report": _report,
    "compare": _described_by("compare"),
    "serve": _described_by("serve"),
    "reveal": _reveal,
    "collect": _collect,
    "store": _store,
    "history": _described_by("history"),
    "gate": _described_by("gate"),
    "baseline": _baseline,
    "bundle": _described_by("bundle"),
    "verify": _described_by("verify"),
    "align": _align,
    "curves": _described_by("curves"),
    "diagnose": _diagnose,
    "preflight": _described_by("preflight"),
    "site": _described_by("site"),
    "references": _references,
    "audit": _described_by("audit"),
    "case": _case,
    "vendor": _vendor,
    "framework": _framework,
    "environment": _environment,
    "image": _image,
    "wheels": _wheels,
    "data": _data,
    "export": _export,
}
