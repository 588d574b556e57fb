"""`verify`: recomputes the figures and verdicts of a bundle from its raw files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.judge.verification import SCHEMA, VerifiedRun, verified
from levelfield.report.words import wrapped
from levelfield.rundir.bundle_reader import Bundle, read_bundle
from levelfield.rundir.signature import signer_of

_HELP = """\
Recompute every figure and verdict of a bundle from the raw files in it,
offline, and name what does not follow. Nothing is extracted or started.

It shows that the stated results follow from the raw files, and that these
have not changed since the runs ended. It cannot show that they are true:
a signature, or a digest kept elsewhere, shows whose word they are.

Exit code 0: everything follows. 4: something does not, or the bundle was
changed. 2: the file is no bundle.

examples:
  run_benchmarks.py verify run.zip
  run_benchmarks.py verify run.zip --json
  run_benchmarks.py verify run.zip --allowed-signers FILE --signer NAME
"""
_WIDTH = 9
_SHOWN = 12  # contradictions of a run; --json has all


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="an archive of `bundle`")
    parser.add_argument(
        "--allowed-signers", type=Path, metavar="FILE", help="whose keys count, in the format of `man ssh-keygen`"
    )
    parser.add_argument("--signer", metavar="NAME", help="the one of them who has to have signed")
    parser.add_argument("--json", action="store_true", help="machine-readable output, with every contradiction")


def execute(options: argparse.Namespace) -> int:
    """Return 0 when everything follows, else 4. Raises DocumentError for a file that is no bundle."""
    if options.signer and not options.allowed_signers:
        raise UsageError("--signer names one of the allowed signers: give --allowed-signers FILE too")
    bundle = read_bundle(options.bundle)
    signer = _signer(bundle, options)
    runs = _runs(bundle, options)
    if options.json:
        print(json.dumps(as_json(bundle, signer, runs), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(options.bundle, bundle, signer, runs)))
    return 0 if all(run.word == "follows" for run in runs) else GateFailed.exit_code


def _runs(bundle: Bundle, options: argparse.Namespace) -> list[VerifiedRun]:
    found = []
    with Terminal(quiet=False).bytes_progress(f"recomputing {len(bundle.runs)} run(s)") as progress:
        for run in verified(bundle, Registry(options.plugins, case_files=options.case_file)):
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


def as_json(bundle: Bundle, signer: str | None, runs: Sequence[VerifiedRun]) -> dict[str, object]:
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


def lines(path: Path, bundle: Bundle, signer: str | None, runs: Sequence[VerifiedRun]) -> Iterator[str]:
    """Yield the findings in lines of at most 80 columns."""
    unchecked = "yes, and not checked: give --allowed-signers FILE" if bundle.signature else "no"
    said = [f"{'bundle':<{_WIDTH}}{path}, made by levelfield {bundle.manifest.platform_version}"]
    said += [f"{'digest':<{_WIDTH}}{bundle.manifest.digest}", f"{'signed':<{_WIDTH}}{signer or unchecked}"]
    said += [line for run in runs for line in _of_run(run)]
    said.append(f"{'shown':<{_WIDTH}}{_shown(runs)}")
    yield from (wrapped(line, _WIDTH) for line in said)


def _of_run(run: VerifiedRun) -> Iterator[str]:
    blank = " " * _WIDTH
    yield f"{'run':<{_WIDTH}}{run.name}: {run.word}"
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
