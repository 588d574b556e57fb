"""`vendor` (bring your own): add a vendor's chips: a folder, its checks, its recordings
`vendor new`: write a vendor's folder with places to fill in
`vendor check`: run the conformance suite, without the chip
`vendor record`: store the output of the vendor's tools, on a machine with the chip
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option
from levelfield.cli.terminal import (
    NON_BREAKING_SPACE,
    print_check,
    print_command,
    print_wrapped,
    program_command,
    short_path,
)
from levelfield.errors import GateFailed
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.testing.findings import CheckFinding

_VENDOR_HELP = """\
Add a vendor's chips. docs/writing-a-vendor.md shows the steps.

examples:
  run_benchmarks.py vendor new acme
  run_benchmarks.py vendor check acme --fast
  run_benchmarks.py vendor record acme --redact
"""
_NEW_HELP = """\
Write a folder for a vendor, with the places to fill in.

examples:
  run_benchmarks.py vendor new acme
  run_benchmarks.py vendor new acme --package --output DIR
"""
_CHECK_HELP = """\
Check a vendor with the conformance suite. No chip is needed. Exit code 4 unless
every check passes, warns or does not apply.

examples:
  run_benchmarks.py vendor check acme
  run_benchmarks.py vendor check acme --fast --plugins DIR
"""
_RECORD_HELP = """\
Run the vendor's tools and store their output as recordings. Run this on a
machine with the chip. Exit code 4 where the rules of vendor.yaml find no device
in them.

example:
  run_benchmarks.py vendor record acme --redact
"""

TEXT_COLUMNS = 80 - 25  # columns after a check's name


def _create(options: argparse.Namespace) -> int:
    from levelfield.catalog.registry import Registry
    from levelfield.testing.scaffold import create_package, create_plugin_folder

    registry = Registry(options.plugins)
    if options.package:
        folder = create_package("vendor", options.name, options.output or Path.cwd(), registry)
        print_wrapped(f"created  {short_path(folder)}, a package. Next:")
        print_command(f"{short_path(Path(sys.executable))} -m pip install -e", short_path(folder))
        print_command(f"{program_command()} vendor check {options.name}")
        return 0
    folder = create_plugin_folder("vendor", options.name, options.output or checkout(), registry)
    plugins_option = [f"--plugins {short_path(options.output)}"] if options.output else []
    print_wrapped(f"created  {short_path(folder)}. Next:")
    print_wrapped(f"         fill in {short_path(folder / 'vendor.yaml')}")
    print_command(f"{program_command()} vendor check {options.name}", *plugins_option)
    return 0


def _record(options: argparse.Namespace) -> int:
    from levelfield.catalog.registry import Registry
    from levelfield.testing.recorder import has_rules, record_tools, unread_recordings
    from levelfield.testing.subject import VendorSubject

    registry = Registry(options.plugins)
    subject = VendorSubject(options.name, options.plugins)
    for sentence in record_tools(registry.vendor(options.name), subject.folder, options.redact, options.force):
        print_wrapped(sentence)
    if not (unread_messages := list(unread_recordings(subject))):
        return 0
    redact_option = ["--redact"] if options.redact else []
    command = shlex.join(
        ("run_benchmarks.py", "vendor", "record", options.name, *redact_option, "--force", *subject.plugin_options)
    )
    sentence = (
        f"{'. '.join(unread_messages)}. The text is kept. Where a device is in it, write the rules and run `vendor "
        f"check`; where none is, remove the cause and run `{command}`, which replaces it"
    )
    if has_rules(subject.file):
        raise GateFailed(sentence)
    print_wrapped(sentence)
    return 0


def _check(options: argparse.Namespace) -> int:
    from levelfield.testing.check_suite import run_checks
    from levelfield.testing.subject import VendorSubject

    findings: list[CheckFinding] = []
    for finding in run_checks(VendorSubject(options.name, options.plugins), options.fast):
        if not options.json:
            _print_finding(finding, findings)
        findings.append(finding)
    failed_checks = [finding.check for finding in findings if not finding.is_good]
    if options.json:
        report = {
            "vendor": options.name,
            "passes": not failed_checks,
            "checks": [asdict(finding) for finding in findings],
        }
        print(json_text(report))
    else:
        print_wrapped(f"{options.name}: {_conclusion(findings, failed_checks)}")
    return GateFailed.exit_code if failed_checks else 0


def _print_finding(finding: CheckFinding, earlier: Sequence[CheckFinding]) -> None:
    """Print the lines of one finding. A text that an earlier check had is replaced by the name of that check."""
    from levelfield.testing.value_checks import reading_lines

    same_check = next(
        (other.check for other in earlier if (other.says, other.do) == (finding.says, finding.do)),
        None,
    )
    says, do = (f"as {same_check}", "") if same_check else (_single_line(finding.says), _single_line(finding.do))
    print_check(replace(finding, says=says, do=do), 15)
    for line in reading_lines(finding.rows):
        print_wrapped(f"         {line}", 11)


def _single_line(text: str) -> str:
    """Return the text as one line. Words with several blanks between them stay together if they fit a line."""
    line = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(
        r"\S+(?: {2,}\S+)+",
        lambda match: match[0].replace(" ", NON_BREAKING_SPACE) if len(match[0]) <= TEXT_COLUMNS else match[0],
        line,
    )


def _conclusion(findings: Sequence[CheckFinding], failed_checks: Sequence[str]) -> str:
    if failed_checks:
        return f"{len(failed_checks)} of {len(findings)} checks failed: {', '.join(failed_checks)}"
    not_applicable_count = sum(finding.status == "not applicable" for finding in findings)
    warning_checks = [finding.check for finding in findings if finding.status == "warns"]
    warnings = (
        f"; read the warning{'s' if len(warning_checks) > 1 else ''} of {', '.join(warning_checks)}"
        if warning_checks
        else ""
    )
    return f"all {len(findings) - not_applicable_count} checks passed; {not_applicable_count} not applicable{warnings}"


def _add_create_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--package", action="store_true", help="write a package for pip instead of a folder")
    option("--output", type=Path, metavar="DIR", help="write DIR/vendors/NAME; with --package DIR/levelfield-NAME")
    _add_name_option(parser)


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    parser.add_argument("--fast", action="store_true", help="leave out the checks that train or wait; takes seconds")
    _add_name_option(parser)


def _add_record_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace serial numbers, UUIDs and other identities by others of the same form",
    )
    parser.add_argument("--force", action="store_true", help="replace existing recordings")
    _add_name_option(parser)


def _add_name_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the vendor's name")


COMMANDS = {
    "vendor": Command(_VENDOR_HELP),
    "vendor new": Command(_NEW_HELP, _add_create_options, _create),
    "vendor check": Command(_CHECK_HELP, _add_check_options, _check),
    "vendor record": Command(_RECORD_HELP, _add_record_options, _record),
}
