"""`evidence repository`: check what a branch adds to a git repository of bundles"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import registry_of, writing
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.escapes import printable
from levelfield.report.sheets import labelled
from levelfield.rundir.directory import write_atomically

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.studies.results_repository import Contribution

REPOSITORY = """\
Check a git repository whose folder bundles/ holds archives of `evidence
bundle`, read from git's objects: what a branch adds is verified and computed
again, and must be new. A bundle that is changed or removed, a run that is there
already, any other file, and one above --largest are refused (exit code 4).
docs/results-repository.md has a template with workflows for GitHub and GitLab.

examples:
  run_benchmarks.py evidence repository results --base origin/main
  run_benchmarks.py evidence repository results --base origin/main \\
      --head FETCH_HEAD --comment comment.md --pages site
"""
_MEGABYTES = 8
_WIDTH = 9


def _options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="the repository (default: this folder)")
    option("--base", metavar="COMMIT", help="hold the branch against this one; without it every bundle counts as added")
    option("--head", default="HEAD", metavar="COMMIT", help="the branch (default: HEAD)")
    option("--comment", type=Path, metavar="FILE", help="write the answer and the table as Markdown to this file")
    option("--pages", type=Path, metavar="DIR", help="write pages of all runs on the branch into this folder")
    option("--largest", type=int, default=_MEGABYTES, metavar="MB", help=f"of a bundle (default: {_MEGABYTES})")


def _repository(options: argparse.Namespace) -> int:
    """Return 0 where the branch may be merged. Raises GateFailed with each problem, after the files are written."""
    import levelfield
    from levelfield.studies.results_repository import comment, examined

    if options.largest < 1:
        raise UsageError(f"--largest {options.largest}: expected at least 1")
    registry, largest = registry_of(options), options.largest * 1_000_000
    with Terminal().bytes_progress("reading bundles") as progress:
        found = examined(options.folder, options.base, options.head, registry, largest, progress)
    if options.comment:
        with writing(options.comment, "--comment "):
            write_atomically(options.comment, printable(comment(found, levelfield.__version__)), through_link=True)
    print("\n".join(labelled(*row, _WIDTH) for row in _rows(found)))
    if options.pages:
        print(labelled("pages", _pages(found, options, registry), _WIDTH))
    if found.problems:
        raise GateFailed("\n".join(found.problems))
    return 0


def _pages(found: Contribution, options: argparse.Namespace, registry: Registry) -> str:
    from levelfield.pages.page_building import build_pages
    from levelfield.pages.results import GivenRuns

    built = build_pages(GivenRuns(found.records), options.pages, registry)
    return f"{options.pages}: {built.runs:,} run(s) in {built.series:,} series"


def _rows(found: Contribution) -> Iterator[tuple[str, str]]:
    yield "added", f"{len(found.added)} bundle(s), {len(found.results)} run(s); {len(found.records)} on the branch"
    for result in found.results:
        speed = result.throughput
        rate = f"{speed.tokens_per_second_per_device:,.1f} tokens/s/device" if speed else "no speed"
        yield "run", f"{result.run_id}: {result.status.word}, {rate}"
    for note in found.notes:
        yield "note", note
    yield "answer", "refused" if found.problems else "every figure of what is added follows from its raw files"


COMMANDS = {"evidence repository": Command(REPOSITORY, _options, _repository)}
