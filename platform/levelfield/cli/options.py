"""Options that several commands have, and what they stand for. Heavy modules are imported where one is used."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.errors import LevelfieldError

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.paths import RunPaths

Options = argparse.ArgumentParser | argparse._ArgumentGroup

RUN_NAME = "a path, a run id, a part of an id, or latest"
BASE_IMAGE = "base of the image (default: LEVELFIELD_BASE_IMAGE, else the vendor's image)"
BASE_HAS_FRAMEWORK = "the base image brings the framework: install nothing into it"
_HERE = "train with this Python; default: an environment that Levelfield makes"


def json_option(parser: Options, more: str = "") -> None:
    parser.add_argument("--json", action="store_true", help=f"machine-readable output{more}")


def quiet_option(parser: Options, shown: str = "result") -> None:
    parser.add_argument("--quiet", action="store_true", help=f"print only the {shown}")


def chips_option(parser: Options) -> None:
    """Add --chips, for commands that look chips up. Reports need none: the plan of a run holds its chip."""
    parser.add_argument(
        "--chips",
        type=Path,
        metavar="FILE",
        help="private chips and corrections (default: ~/.config/levelfield/chips.yaml, if it exists)",
    )


def python_option(parser: Options, says: str = _HERE) -> None:
    parser.add_argument("--python", metavar="PATH", help=says)


def scale_option(parser: Options) -> None:
    parser.add_argument(
        "--scale",
        choices=("auto", "smoke", "full"),
        default="auto",
        help="auto: full on an accelerator with enough memory, else smoke",
    )


def runtime_option(parser: Options) -> None:
    parser.add_argument(
        "--runtime",
        choices=("process", "docker", "inside"),
        default="process",
        help="process: a Python environment; docker: a container; inside: this machine is a container",
    )


def site_options(parser: Options) -> None:
    """Add --launcher, --site and --hosts, which launch_options.launch_of reads."""
    parser.add_argument(
        "--launcher", metavar="NAME", help="ssh, slurm, kubernetes, or a site's own: runs on other machines"
    )
    parser.add_argument(
        "--site",
        metavar="NAME|FILE",
        help="how these machines are reached (default: ~/.config/levelfield/site.yaml, if it exists)",
    )
    parser.add_argument(
        "--hosts", type=Path, metavar="FILE", help="hosts.yaml, or FlagPerf's cluster_conf.py: the nodes of the plan"
    )


def container_options(parser: Options) -> None:
    """Add --runtime and --base-image of commands that run several builds."""
    parser.add_argument(
        "--runtime",
        choices=("process", "docker"),
        default="process",
        help="process: a Python environment; docker: containers, and each build makes its own image",
    )
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)


def base_image(options: argparse.Namespace) -> str | None:
    """Return the image of --base-image, else for containers that of LEVELFIELD_BASE_IMAGE; None for the vendor's."""
    named: str | None = options.base_image
    return named or (os.environ.get("LEVELFIELD_BASE_IMAGE") if options.runtime == "docker" else None)


def store_option(parser: Options, before: str = "") -> None:
    parser.add_argument(
        "--store",
        metavar="FILE|URL",
        help=f"{before}the store of results: a file, or postgresql://... (default: LEVELFIELD_STORE, else "
        "results.sqlite in your data folder)",
    )


def recording_options(parser: Options) -> None:
    store_option(parser)
    parser.add_argument("--no-store", action="store_true", help="do not record the runs in a store")


def intake(options: argparse.Namespace) -> Callable[[RunPaths], None]:
    """Return what records a finished run, or with --no-store does nothing."""
    from levelfield.store.intake import RunIntake

    return (lambda paths: None) if options.no_store else RunIntake(_say, options.store)


def _say(text: str) -> None:
    """Print a sentence on stderr, also with --quiet: it is about something that the user has to do again."""
    from levelfield.report.words import wrapped

    print(wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size in the engines' notation: 512M, 8G, or bytes. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a size in bytes such as 512M or 8G")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def registry_of(options: argparse.Namespace) -> Registry:
    """Return the registry with the plugins and case files, and where the command has --chips, with private chips.

    Raises UsageError for a folder or file that does not exist.
    """
    from levelfield.catalog.registry import Registry, private_chips

    chips = private_chips(options.chips) if hasattr(options, "chips") else None
    return Registry(options.plugins, chips, options.case_file)


class NamedRuns:
    """The runs of `options.run`, and the errors of those that the command could not take.

    One that goes on or is damaged leaves the others to the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from levelfield.rundir.directory import default_runs

        self._runs, self._names = options.runs or default_runs(), options.run
        self._errors: list[LevelfieldError] = []

    def over(self) -> Iterator[RunPaths]:
        """Return every named run that is over. The error of any other is kept."""
        from levelfield.rundir.directory import finished_run

        for name in self._names:
            with self.kept_error():
                yield finished_run(self._runs, name)

    @contextmanager
    def kept_error(self) -> Iterator[None]:
        """Keep an error of the block for raise_error."""
        try:
            yield
        except LevelfieldError as error:
            self._errors.append(error)

    def raise_error(self) -> None:
        """Raise the first kept error, with the messages of all. Without one nothing happens."""
        if self._errors:
            first, *_ = self._errors
            first.args = ("\n".join(dict.fromkeys(map(str, self._errors))),)
            raise first
