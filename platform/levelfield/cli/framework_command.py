"""`framework` (bring your own): a folder that trains, and the suite that checks it
`framework new`: write a framework's folder that trains, to change step by step
`framework check`: train the small models in every offered layout, and compare
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import json_option, python_option
from levelfield.cli.terminal import say_command, shown, this_program
from levelfield.errors import GateFailed
from levelfield.report.escapes import printable
from levelfield.report.words import wrapped
from levelfield.testing.findings import CheckFinding
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject, silent
from levelfield.testing.framework_kit.framework_suite import check_framework, write_tested
from levelfield.testing.scaffold import new_folder, new_package

FRAMEWORK = """\
Bring a framework. docs/writing-a-framework.md shows the steps.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework check acme --plugins DIR --fast
"""
NEW = """\
Write a folder for a framework: a whole training of GPT and Llama in numpy, with
the places to replace by the framework's own calls.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework new acme DIR
  run_benchmarks.py framework new acme --package
"""
CHECK = """\
Train the small models in every layout, precision and recomputation that the
manifest offers, and compare them with torch's curve. Plant faults, check
events, refusals and ends. Write tested.json. Exit code 4 unless all pass.

examples:
  run_benchmarks.py framework check acme --plugins DIR
  run_benchmarks.py framework check acme --fast --python PATH
"""

INDENT = 23  # the column after a check's name
LABELS = {"ok": "ok", "warns": "WARNS", "missing": "missing", "fails": "FAILS", "not applicable": "n/a"}


def _check(options: argparse.Namespace) -> int:
    """Run the suite. tested.json is written when everything was tried, also where something failed."""
    progress = _progress if sys.stderr.isatty() or options.verbose else silent
    subject = FrameworkSubject(options.name, options.plugins, options.device, options.python, progress, _progress)
    found: list[CheckFinding] = []
    try:
        for finding in check_framework(subject, options.fast):
            found.append(finding)
            if not options.json:
                _show(finding)
        written = None if options.fast else write_tested(subject)
    finally:
        subject.close()
    bad = [finding for finding in found if not finding.is_good]
    if options.json:
        checks = [{key: value for key, value in asdict(each).items() if key != "rows"} for each in found]
        said = {"framework": options.name, "device": options.device, "passes": not bad, "checks": checks}
        print(json.dumps({**said, "tested": str(written) if written else None}, indent=2, ensure_ascii=False))
    else:
        _conclude(options.name, found, bad, written)
    return GateFailed.exit_code if bad else 0


def _progress(line: str) -> None:
    print(f"levelfield: {printable(line)}", file=sys.stderr, flush=True)


def _show(finding: CheckFinding) -> None:
    text = f"{LABELS[finding.status]:<8} {finding.check:<13} {printable(finding.says)}"
    print(wrapped(text, INDENT), flush=True)
    if finding.do:
        print(wrapped(f"{'':<{INDENT - 2}}> {printable(finding.do)}", INDENT), flush=True)


def _conclude(name: str, found: Sequence[CheckFinding], bad: Sequence[CheckFinding], written: Path | None) -> None:
    if written:
        _say(f"wrote    {shown(written)}")
    if bad:
        _say(f"{name}: {len(bad)} of {len(found)} checks did not pass: {', '.join(each.check for each in bad)}")
    else:
        _say(f"{name}: all {sum(each.status == 'ok' for each in found)} checks that apply passed")


def _new(options: argparse.Namespace) -> int:
    registry, place = Registry(options.plugins), options.folder or Path.cwd()
    if options.package:
        root = new_package("framework", options.name, place, registry)
        _say(f"created  {shown(root)}, a package with a training that works. Next:")
        return _next(options.name, root / f"levelfield_{options.name.replace('-', '_')}")
    folder = new_folder("framework", options.name, place, registry)
    _say(f"created  {shown(folder)}, a training that works. Next:")
    return _next(options.name, place)


def _next(name: str, plugins: Path) -> int:
    """Print the commands of a first run and of the page that goes on."""
    here = plugins.absolute() == checkout().absolute()
    where = () if here else (f"--plugins {shown(plugins.absolute())}",)
    say_command(f"{this_program()} framework check {name}", *where, "--fast")
    say_command(f"{this_program()} --case gpt3_6.7B:{name}", *where)
    _say("         and then docs/writing-a-framework.md, step by step")
    return 0


def _say(text: str) -> None:
    print(wrapped(text, 9), flush=True)


def _new_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the framework's name")
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="write FOLDER/models/NAME (default: the current folder)"
    )
    parser.add_argument("--package", action="store_true", help="write a package FOLDER/levelfield-NAME for pip instead")


def _check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the framework, also with a version: acme_2.0.3")
    parser.add_argument("--device", default="cpu", metavar="KIND", help="the kind of devices to train on (cpu)")
    python_option(parser, "an interpreter with the framework, in place of an environment")
    parser.add_argument("--fast", action="store_true", help="one process only, without planted faults; writes nothing")
    json_option(parser)
    parser.add_argument("--verbose", action="store_true", help="print each training to stderr, also without a terminal")


COMMANDS = {
    "framework": Command(FRAMEWORK),
    "framework new": Command(NEW, _new_options, _new),
    "framework check": Command(CHECK, _check_options, _check),
}
