"""`framework` (bring your own): a folder that trains, and the suite that checks it
`framework new`: write a framework's folder that trains, to change step by step
`framework check`: train the small models in every offered layout, and compare
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option, add_python_option
from levelfield.cli.terminal import (
    checks_as_json,
    print_check_summary,
    print_checks,
    print_command,
    print_wrapped,
    program_command,
    short_path,
)
from levelfield.errors import GateFailed
from levelfield.report.escapes import printable
from levelfield.specs.readable_json import json_text

_FRAMEWORK_HELP = """\
Bring a framework. docs/writing-a-framework.md shows the steps.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework check acme --plugins DIR --fast
"""
_NEW_HELP = """\
Write a folder for a framework: a whole training of GPT and Llama in numpy, with
the places to replace by the framework's own calls.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework new acme DIR
  run_benchmarks.py framework new acme --package
"""
_CHECK_HELP = """\
Train the small models in every layout, precision and recomputation that the
manifest offers, and compare them with torch's curve. Plant faults, check
events, refusals and ends. Write tested.json. Exit code 4 unless all pass.

examples:
  run_benchmarks.py framework check acme --plugins DIR
  run_benchmarks.py framework check acme --fast --python PATH
"""


def _create(options: argparse.Namespace) -> int:
    """Write the folder or package. Print the commands to check and run it, and the page to read next."""
    from levelfield.catalog.registry import Registry
    from levelfield.testing.scaffold import create_package, create_plugin_folder

    registry, plugins_folder, name = Registry(options.plugins), options.folder or Path.cwd(), options.name
    if options.package:
        package_folder = create_package("framework", name, plugins_folder, registry)
        print_wrapped(f"created  {short_path(package_folder)}, a package with a training that works. Next:")
        plugins_folder = package_folder / f"levelfield_{name.replace('-', '_')}"
    else:
        folder = create_plugin_folder("framework", name, plugins_folder, registry)
        print_wrapped(f"created  {short_path(folder)}, a training that works. Next:")
    plugins_option = (
        ()
        if plugins_folder.absolute() == checkout().absolute()
        else (f"--plugins {short_path(plugins_folder.absolute())}",)
    )
    print_command(f"{program_command()} framework check {name}", *plugins_option, "--fast")
    print_command(f"{program_command()} --case gpt3_6.7B:{name}", *plugins_option)
    print_wrapped("         and then docs/writing-a-framework.md, step by step")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Run the suite. Unless --fast, write tested.json, even if a check failed."""
    from levelfield.testing.framework_kit.framework_subject import FrameworkSubject, ignore_progress
    from levelfield.testing.framework_kit.framework_suite import check_framework, write_tested

    progress = _print_progress if sys.stderr.isatty() or options.verbose else ignore_progress
    subject = FrameworkSubject(options.name, options.plugins, options.device, options.python, progress, _print_progress)
    try:
        findings = print_checks(check_framework(subject, options.fast), 13, quiet=options.json)
        tested_file = None if options.fast else write_tested(subject)
    finally:
        subject.exit_stack.close()
    values = checks_as_json(findings)
    if options.json:
        content = {"framework": options.name, "device": options.device, **values}
        print(json_text({**content, "tested": str(tested_file) if tested_file else None}))
    else:
        if tested_file:
            print_wrapped(f"wrote    {short_path(tested_file)}")
        print_check_summary(options.name, findings)
    return 0 if values["passes"] else GateFailed.exit_code


def _print_progress(line: str) -> None:
    print(f"levelfield: {printable(line)}", file=sys.stderr, flush=True)


def _add_create_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the framework's name")
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="write FOLDER/models/NAME (default: the current folder)"
    )
    parser.add_argument("--package", action="store_true", help="write a package FOLDER/levelfield-NAME for pip instead")


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the framework, also with a version: acme_2.0.3")
    parser.add_argument("--device", default="cpu", metavar="KIND", help="the kind of devices to train on (cpu)")
    add_python_option(parser, "an interpreter with the framework, in place of an environment")
    parser.add_argument("--fast", action="store_true", help="one process only, without planted faults; writes nothing")
    add_json_option(parser)
    parser.add_argument("--verbose", action="store_true", help="print each training to stderr, also without a terminal")


COMMANDS = {
    "framework": Command(_FRAMEWORK_HELP),
    "framework new": Command(_NEW_HELP, _add_create_options, _create),
    "framework check": Command(_CHECK_HELP, _add_check_options, _check),
}
