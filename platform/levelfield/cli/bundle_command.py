"""`evidence bundle`: write runs into one archive, without names and secrets
`evidence verify`: compute the figures of a bundle again from its raw files
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_NAME, NamedRuns, json_option, registry_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.judge.packing import Packed, members_of, packed
from levelfield.judge.verification import SCHEMA, VerifiedRun, verified
from levelfield.report.words import wrapped
from levelfield.rundir.bundle_archive import archive
from levelfield.rundir.bundle_reader import Bundle, bundle_of, read_bundle
from levelfield.rundir.directory import room_left, write_new
from levelfield.rundir.signature import signed, signer_of
from levelfield.specs.base import dump

BUNDLE = """\
Write runs into one archive: raw files, and the results that follow from them.
`evidence verify` computes every figure again, on any machine, without a GPU.

Secrets, and the names of users, hosts, folders and devices, are replaced
by placeholders; the manifest lists them. Read the archive before you
publish it: no list of forms is complete. Captured tensors and weights are
left out, and long logs keep their last part. --sign adds a signature by a
key of ssh. RUN is a path, a run id, a part of an id, or `latest`.

examples:
  run_benchmarks.py evidence bundle latest --output run.zip
  run_benchmarks.py evidence bundle RUN1 RUN2 --output night.zip
  run_benchmarks.py evidence bundle latest --output run.zip --sign ~/.ssh/id_rsa
"""
VERIFY = """\
Recompute every figure and verdict of a bundle from the raw files in it,
offline, and name what does not follow. Nothing is extracted or started.

It shows that the stated results follow from the raw files, and that these
have not changed since the runs ended. It cannot show that they are true:
a signature, or a digest kept elsewhere, shows whose word they are.

Exit code 0: everything follows. 4: something does not, or the bundle was
changed. 2: the file is no bundle.

examples:
  run_benchmarks.py evidence verify run.zip
  run_benchmarks.py evidence verify run.zip --json
  run_benchmarks.py evidence verify run.zip --allowed-signers FILE --signer NAME
"""
_WIDTH = 11
_VERIFIED_WIDTH = 9
_SHOWN = 12  # contradictions of a run; --json has all


def _bundle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=RUN_NAME)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the archive to write; a new file")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign the manifest by `ssh-keygen -Y sign`")


def _bundle(options: argparse.Namespace) -> int:
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
    print("\n".join(_packed_lines(found, options.output, len(content), options.sign)))
    return 0


def _content(found: Packed, key: Path | None) -> bytes:
    manifest = dump(found.manifest).encode()
    return archive(members_of(manifest, found.runs, signed(manifest, key) if key else None))


def _check(content: bytes, options: argparse.Namespace) -> None:
    """Verify the bundle before anyone gets it. Raises UsageError for a run that others would see refused."""
    registry = registry_of(options)
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


def _packed_lines(found: Packed, path: Path, size: int, key: Path | None) -> Iterator[str]:
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


def _verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="an archive of `evidence bundle`")
    parser.add_argument(
        "--allowed-signers", type=Path, metavar="FILE", help="whose keys count, in the format of `man ssh-keygen`"
    )
    parser.add_argument("--signer", metavar="NAME", help="the one of them who has to have signed")
    json_option(parser, ", with every contradiction")


def _verify(options: argparse.Namespace) -> int:
    """Return 0 when everything follows, else 4. Raises DocumentError for a file that is no bundle."""
    if options.signer and not options.allowed_signers:
        raise UsageError("--signer names one of the allowed signers: give --allowed-signers FILE too")
    bundle = read_bundle(options.bundle)
    signer = _signer(bundle, options)
    runs = _runs(bundle, options)
    if options.json:
        print(json.dumps(_as_json(bundle, signer, runs), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_verified_lines(options.bundle, bundle, signer, runs)))
    return 0 if all(run.word == "follows" for run in runs) else GateFailed.exit_code


def _runs(bundle: Bundle, options: argparse.Namespace) -> list[VerifiedRun]:
    found = []
    with Terminal(quiet=False).bytes_progress(f"recomputing {len(bundle.runs)} run(s)") as progress:
        for run in verified(bundle, registry_of(options)):
            found.append(run)
            progress(len(found), len(bundle.runs))
    return found


def _signer(bundle: Bundle, options: argparse.Namespace) -> str | None:
    """Return who signed, where --allowed-signers is given. Raises GateFailed for a signature that does not hold."""
    if not options.allowed_signers:
        return None
    if bundle.signature is None:
        raise GateFailed(f"{options.bundle}: found no signature, expected one of the allowed signers")
    found = signer_of(bundle.signed, bundle.signature, options.allowed_signers, options.signer)
    return f"{found.name}: {found.key}"


def _as_json(bundle: Bundle, signer: str | None, runs: Sequence[VerifiedRun]) -> dict[str, object]:
    manifest = bundle.manifest
    return {
        "schema": SCHEMA,
        "digest": manifest.digest,
        "platform_version": manifest.platform_version,
        "signed": bundle.signature is not None,
        "signer": signer,
        "runs": [run.as_json() for run in runs],
        "replacements": [each.model_dump(mode="json") for each in manifest.replacements],
    }


def _verified_lines(path: Path, bundle: Bundle, signer: str | None, runs: Sequence[VerifiedRun]) -> Iterator[str]:
    """Yield the findings in lines of at most 80 columns."""
    unchecked = "yes, and not checked: give --allowed-signers FILE" if bundle.signature else "no"
    said = [f"{'bundle':<{_VERIFIED_WIDTH}}{path}, made by levelfield {bundle.manifest.platform_version}"]
    said += [
        f"{'digest':<{_VERIFIED_WIDTH}}{bundle.manifest.digest}",
        f"{'signed':<{_VERIFIED_WIDTH}}{signer or unchecked}",
    ]
    said += [line for run in runs for line in _of_run(run)]
    said.append(f"{'shown':<{_VERIFIED_WIDTH}}{_shown(runs)}")
    yield from (wrapped(line, _VERIFIED_WIDTH) for line in said)


def _of_run(run: VerifiedRun) -> Iterator[str]:
    blank = " " * _VERIFIED_WIDTH
    yield f"{'run':<{_VERIFIED_WIDTH}}{run.name}: {run.word}"
    yield f"{blank}{run.seal.word}{f': {run.seal.reason}' if run.seal.reason else ''}"
    yield f"{blank}code: {run.code}"
    for each in run.contradictions[:_SHOWN]:
        yield f"{blank}{each.field}: stated {each.stated}, recomputed {each.recomputed}"
    if (more := len(run.contradictions) - _SHOWN) > 0:
        yield f"{blank}and {more} more (--json)"
    if run.redacted:
        yield f"{blank}without names, otherwise as sealed: {', '.join(run.redacted)}"
    if run.unbound:
        yield f"{blank}redacted, not held against a seal: {', '.join(run.unbound)}"
    yield from (f"{blank}note: {note}" for note in run.notes)


def _shown(runs: Sequence[VerifiedRun]) -> str:
    if all(run.word == "follows" for run in runs):
        return "every figure and verdict follows from the raw files; not that these are true (docs/evidence.md)"
    wrong = sum(run.word != "follows" for run in runs)
    return f"{wrong} of {len(runs)} run(s) do not follow from their raw files"


COMMANDS = {
    "evidence bundle": Command(BUNDLE, _bundle_options, _bundle),
    "evidence verify": Command(VERIFY, _verify_options, _verify),
}
