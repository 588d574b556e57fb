"""The options by which a command records its runs in a store, and what then records them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `--help` of every command imports this module
    from levelfield.specs.paths import RunPaths


def recording_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup, before: str = "") -> None:
    """Add --store and --no-store. before: begins their help, where only an action of the command records."""
    store_argument(parser, before)
    parser.add_argument("--no-store", action="store_true", help=f"{before}do not record the runs in a store")


def store_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup, before: str = "") -> None:
    parser.add_argument(
        "--store",
        metavar="FILE|URL",
        help=f"{before}the store of results: a file, or postgresql://... (default: LEVELFIELD_STORE, else "
        "results.sqlite in your data folder)",
    )


def intake(options: argparse.Namespace) -> Callable[[RunPaths], None]:
    """Return what records a finished run, or with --no-store does nothing."""
    from levelfield.store.intake import RunIntake

    return (lambda paths: None) if options.no_store else RunIntake(_say, options.store)


def _say(text: str) -> None:
    """Print a sentence on stderr, also with --quiet: it is about something that the user has to do again."""
    from levelfield.report.words import wrapped

    print(wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)
