"""Options that several commands share, and the values that they stand for.

Modules that import pydantic are imported where a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.errors import UsageError, write_failure_ending
from levelfield.specs.free_fields import FREE_FIELDS, option_name

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry

RUN_HELP = "a path, a run id, a part of an id, or latest"
ParserOrGroup = argparse.ArgumentParser | argparse._ArgumentGroup
_PYTHON_HELP = "train with this Python; default: an environment that Levelfield makes"


def add_json_option(parser: ParserOrGroup, help_suffix: str = "") -> None:
    parser.add_argument("--json", action="store_true", help=f"machine-readable output{help_suffix}")


def add_format_options(
    parser: ParserOrGroup, formats: tuple[str, ...] = ("table", "markdown", "json"), help_text: str | None = None
) -> None:
    """Add --format, a table by default, and --json for `--format json`."""
    parser.add_argument(
        "--format", choices=formats, default="table", metavar="FORMAT", help=help_text or ", ".join(formats)
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="as --format json")


def add_quiet_option(parser: ParserOrGroup, output_name: str = "result") -> None:
    parser.add_argument("--quiet", action="store_true", help=f"print only the {output_name}")


def add_chips_option(parser: ParserOrGroup) -> None:
    """Add --chips to a command that looks chips up. A report needs none: the plan of a run holds its chip."""
    parser.add_argument(
        "--chips",
        type=Path,
        metavar="FILE",
        help="private chips and corrections (default: ~/.config/levelfield/chips.yaml, if it exists)",
    )


def add_detach_option(parser: ParserOrGroup) -> None:
    parser.add_argument(
        "--detach",
        action="store_true",
        help="check and plan, then go on without this shell (`run status`)",
    )


def add_python_option(parser: ParserOrGroup, help_text: str = _PYTHON_HELP) -> None:
    parser.add_argument("--python", metavar="PATH", help=help_text)


def add_scale_option(parser: ParserOrGroup) -> None:
    parser.add_argument(
        "--scale",
        choices=("auto", "smoke", "full"),
        default="auto",
        help="auto: full on an accelerator with enough memory, else smoke",
    )


def add_free_field_options(parser: ParserOrGroup) -> None:
    """Add an option for each free field of a run, --env, and --base, which ignores tuning files and suites."""
    for name, field in FREE_FIELDS.items():
        if isinstance(field.value_type, tuple):
            parser.add_argument(option_name(name), choices=field.value_type, help=field.help)
        elif field.value_type is bool:
            parser.add_argument(option_name(name), action=argparse.BooleanOptionalAction, help=field.help)
        else:
            metavar = "N" if field.value_type is int else None
            parser.add_argument(option_name(name), type=field.value_type, metavar=metavar, help=field.help)
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="an environment variable of the training process"
    )
    parser.add_argument(
        "--base", action="store_true", help="the case's defaults alone: no tuning, no setting of a suite"
    )


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size as container engines write it: 512M, 8G, or bytes. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None or not int(match[1]):  # an engine takes 0 for no limit
        raise argparse.ArgumentTypeError(f"found '{text}', expected a size in bytes such as 512M or 8G")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def registry_of(options: argparse.Namespace) -> Registry:
    """Return the registry with the named plugins and case files, and with private chips for a command with --chips.

    Raises UsageError for a folder or file that does not exist.
    """
    from levelfield.catalog.registry import Registry, private_chips_file

    chips = private_chips_file(options.chips) if hasattr(options, "chips") else None
    return Registry(options.plugins, chips, options.case_file)


def runs_folder(options: argparse.Namespace) -> Path:
    return options.runs or Path(os.environ.get("LEVELFIELD_RUNS") or checkout() / "runs")


@contextmanager
def usage_error_if_unwritable(path: Path, option_prefix: str = "--output ") -> Iterator[None]:
    """Raise UsageError for an error of writing `path` in the block. option_prefix: "--option ", which names it."""
    try:
        yield
    except OSError as error:
        ending = write_failure_ending(error, path)
        message = f"{option_prefix}{error.filename or path}: cannot be written: {error.strerror}{ending}"
        raise UsageError(message) from None
