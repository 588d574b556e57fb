"""`report --withhold`: writes a folder to publish, and the reveal file to keep secret."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from levelfield.errors import UsageError
from levelfield.publish.withheld_tables import FILES, published
from levelfield.publish.withholding import commit, parse_fields, published_id, refuse_leaks
from levelfield.report.words import wrapped
from levelfield.rundir.directory import room_left, write_new
from levelfield.specs.base import dump
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result


def publish(options: argparse.Namespace, results: Sequence[Result], plans: Sequence[Plan]) -> str:
    """Write the bundle and the reveal file. Return the text to print. Raises UsageError before anything is written."""
    folder, reveal = _places(options)
    fields = parse_fields(options.withhold)
    _refuse_twice([published_id(result.run_id, fields) for result in results])
    for plan, result in zip(plans, results, strict=True):
        refuse_leaks(plan, result, fields)
    commitments, secret = commit(results, plans, fields)
    texts = published(results, fields)
    files = {FILES[name]: text for name, text in texts.items()} | {"commitments.json": dump(commitments)}
    try:
        _write(folder, files, reveal, dump(secret))
    except OSError as error:
        place = Path(error.filename or folder)
        raise UsageError(f"{place}: cannot be written: {error.strerror}{room_left(error, place)}") from None
    said = (
        f"published  {folder}: {', '.join(files)}",
        f"keep       {reveal}: salts and values; do not publish this file",
    )
    return texts[options.format] + "\n".join(wrapped(line, 11) for line in said) + "\n"


def _places(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the paths of the bundle and the reveal file. Raises UsageError for existing ones.

    An overwritten reveal file is lost, and nothing else can open its commitments.
    """
    if not options.bundle or not options.withhold:
        raise UsageError("report: give --withhold FIELDS and --bundle DIR together; the bundle holds the commitments")
    if options.output:
        raise UsageError(f"--output {options.output}: leave it out; --bundle gets the withheld table in every format")
    folder: Path = options.bundle
    reveal: Path = options.reveal or folder.absolute().with_name(f"{folder.absolute().name}.reveal.json")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--bundle {folder}: exists and is not empty; name a new folder")
    if reveal.exists():
        raise UsageError(f"--reveal {reveal}: exists, and only it opens its commitments; name another file")
    return folder, reveal


def _refuse_twice(runs: list[str]) -> None:
    if twice := sorted({run for run in runs if runs.count(run) > 1}):
        raise UsageError(f"report: found a run twice: {', '.join(twice)}; name each run once")


def _write(folder: Path, files: dict[str, str], reveal: Path, secret: str) -> None:
    """Write the reveal file first: without it the publisher cannot open the bundle. Where one fails, none stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undone:
        write_new(reveal, secret.encode(), 0o600)
        undone.callback(reveal.unlink, missing_ok=True)
        for name, text in files.items():
            write_new(folder / name, text.encode())
            undone.callback((folder / name).unlink, missing_ok=True)
        undone.pop_all()
