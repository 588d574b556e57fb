"""`bundle`: writes runs into one archive that others can verify."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.judge.packing import Packed, packed
from levelfield.judge.verification import verified
from levelfield.report.words import wrapped
from levelfield.rundir.bundle_archive import archive
from levelfield.rundir.bundle_reader import bundle_of
from levelfield.rundir.bundle_writer import members_of
from levelfield.rundir.directory import room_left, write_new
from levelfield.rundir.signature import signed
from levelfield.specs.base import dump

_HELP = """\
Write runs into one archive: raw files, and the results that follow from
them. `verify` computes every figure again, on any machine, without a GPU.

Secrets, and the names of users, hosts, folders and devices, are replaced
by placeholders; the manifest lists them. Read the archive before you
publish it: no list of forms is complete. Captured tensors and weights are
left out, and long logs keep their last part. --sign adds a signature by a
key of ssh. RUN is a path, a run id, a part of an id, or `latest`.

examples:
  run_benchmarks.py bundle latest --output run.zip
  run_benchmarks.py bundle RUN1 RUN2 --output night.zip
  run_benchmarks.py bundle latest --output run.zip --sign ~/.ssh/id_ed25519
"""
_WIDTH = 11


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument("run", nargs="+", metavar="RUN", help="a path, a run id, a part of an id, or latest")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the archive to write; a new file")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign the manifest by `ssh-keygen -Y sign`")


def execute(options: argparse.Namespace) -> int:
    """Write the bundle and return 0. Raises GateFailed for a tampered run. Nothing is written where it raises."""
    if options.output.exists():
        raise UsageError(f"--output {options.output}: exists; name a new file")
    named = NamedRuns(options)
    runs = list(named.over())
    named.raise_error()
    with Terminal(quiet=False).bytes_progress(f"packing {len(runs)} run(s)") as progress:
        found = packed(runs, progress)
    content = _content(found, options.sign)
    _check(content, options)
    _write(options.output, content)
    print("\n".join(lines(found, options.output, len(content), options.sign)))
    return 0


def _content(found: Packed, key: Path | None) -> bytes:
    manifest = dump(found.manifest).encode()
    return archive(members_of(manifest, found.runs, signed(manifest, key) if key else None))


def _check(content: bytes, options: argparse.Namespace) -> None:
    """Verify the bundle before anyone gets it. Raises UsageError for a run that others would see refused."""
    registry = Registry(options.plugins, case_files=options.case_file)
    for run in verified(bundle_of(content, str(options.output)), registry):
        for wrong in run.contradictions[:1]:
            raise UsageError(
                f"bundle: {run.name} does not follow from its own files: {wrong.field}: stated {wrong.stated}, "
                f"recomputed {wrong.recomputed}"
            )


def _write(path: Path, content: bytes) -> None:
    try:
        write_new(path, content)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}{room_left(error, path)}") from None


def lines(found: Packed, path: Path, size: int, key: Path | None) -> Iterator[str]:
    """Yield what was written, in lines of at most 80 columns."""
    manifest = found.manifest
    said = [f"{'bundle':<{_WIDTH}}{path}: {len(found.runs)} run(s), {size:,} bytes"]
    for name, run in manifest.runs.items():
        redacted = sum(not entry.is_whole for entry in run.files.values())
        said.append(f"{'run':<{_WIDTH}}{name}: {run.seal.word}, {len(run.files)} files, {redacted} of them redacted")
    times: Counter[str] = Counter()
    for each in manifest.replacements:
        times[each.kind] += each.times
    replaced = ", ".join(f"{kind} {count}x" for kind, count in sorted(times.items()))
    said.append(f"{'replaced':<{_WIDTH}}{replaced or 'nothing'}; {manifest.kept} name(s) kept that are also words")
    said.append(f"{'signed':<{_WIDTH}}{f'with {key}' if key else 'no; --sign KEY does'}")
    said.append(f"{'digest':<{_WIDTH}}{manifest.digest}")
    yield from (wrapped(line, _WIDTH) for line in said)
