"""`vendor`: creates a vendor's folder, checks it, and records the output of its tools."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.terminal import say_command, shown, this_program
from levelfield.errors import GateFailed
from levelfield.report.words import wrapped
from levelfield.testing.check_suite import check
from levelfield.testing.findings import CheckFinding
from levelfield.testing.recorder import record
from levelfield.testing.scaffold import new_package, new_vendor
from levelfield.testing.subject import VendorSubject
from levelfield.testing.value_checks import readings

INDENT = 25  # the column after a check's name
BLANK = "\0"  # a blank where no line may break
LABELS = {"ok": "ok", "warns": "WARNS", "missing": "missing", "fails": "FAILS", "not applicable": "n/a"}


def execute(options: argparse.Namespace) -> int:
    return {"new": _new, "check": _check, "record": _record}[options.action](options)


def _new(options: argparse.Namespace) -> int:
    registry = Registry(options.plugins)
    if options.package:
        made = new_package(options.name, options.output or Path.cwd(), registry)
        folder = made[0].parent
        _say(f"created  {shown(folder)}, a package. Next:")
        say_command(f"{shown(Path(sys.executable))} -m pip install -e", shown(folder))
        say_command(f"{this_program()} vendor check {options.name}")
        return 0
    made = new_vendor(options.name, options.output or checkout(), registry)
    where = [f"--plugins {shown(options.output)}"] if options.output else []
    _say(f"created  {shown(made[0].parent)}. Next:")
    _say(f"         fill in {shown(made[0])}")
    say_command(f"{this_program()} vendor check {options.name}", *where)
    return 0


def _record(options: argparse.Namespace) -> int:
    registry = Registry(options.plugins)
    subject = VendorSubject(options.name, options.plugins)
    for sentence in record(registry.vendor(options.name), subject.folder, options.redact, options.force):
        _say(sentence)
    return 0


def _check(options: argparse.Namespace) -> int:
    found: list[CheckFinding] = []
    for finding in check(VendorSubject(options.name, options.plugins), options.fast):
        if not options.json:
            _show(finding, found)
        found.append(finding)
    bad = [finding for finding in found if not finding.is_good]
    if options.json:
        report = {"vendor": options.name, "passes": not bad, "checks": [asdict(finding) for finding in found]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _conclude(options.name, found, bad)
    return GateFailed.exit_code if bad else 0


def _show(finding: CheckFinding, before: Sequence[CheckFinding]) -> None:
    """Print the lines of one check. A repeated text becomes the name of the earlier check."""
    same = next((f.check for f in before if (f.says, f.do) == (finding.says, finding.do)), None)
    if same:
        finding = replace(finding, says=f"as {same}", do="")
    _say(f"{LABELS[finding.status]:<8} {finding.check:<15} {_whole(finding.says)}", INDENT)
    if finding.do:
        _say(f"{'':<{INDENT - 2}}> {_whole(finding.do)}", INDENT)
    for line in readings(finding.rows):
        _say(f"{'':<9}{line}", 11)


def _whole(text: str) -> str:
    """Return the text as one line. Runs of blanks that fit a line are marked, so that wrapping keeps them."""
    line = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r"\S+(?: {2,}\S+)+", lambda m: m[0].replace(" ", BLANK) if len(m[0]) <= 80 - INDENT else m[0], line)


def _conclude(name: str, found: Sequence[CheckFinding], bad: Sequence[CheckFinding]) -> None:
    if bad:
        are = "is" if len(bad) == 1 else "are"
        _say(f"{name}: {len(bad)} of {len(found)} checks {are} not well: {', '.join(f.check for f in bad)}")
    else:
        others = sum(finding.status == "not applicable" for finding in found)
        warned = [finding.check for finding in found if finding.status == "warns"]
        said = f"; read the warning{'s' if len(warned) > 1 else ''} of {', '.join(warned)}" if warned else ""
        do = "does" if others == 1 else "do"
        _say(f"{name}: all {len(found) - others} checks that apply are well; {others} {do} not apply{said}")


def _say(text: str, indent: int = 9) -> None:
    print(wrapped(text, indent).replace(BLANK, " "), flush=True)
