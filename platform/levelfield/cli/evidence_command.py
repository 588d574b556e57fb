"""`evidence` (compare chips): archives of results with raw files: collect, bundle, verify
`evidence collect`: recompute the result of a run from its raw files
`evidence bundle`: write runs into one archive (a bundle), without names and secrets
`evidence verify`: recompute the metrics of a bundle from its raw files
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.options import RUN_HELP, add_json_option, registry_of, runs_folder, usage_error_if_unwritable
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.node.regular_files import read_regular
from levelfield.report.sheets import LabelledText, labelled_line
from levelfield.rundir.directory import write_new_file
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.evidence.bundle_reader import Bundle
    from levelfield.evidence.packing import PackedRuns
    from levelfield.evidence.verification import RunVerification
    from levelfield.specs.paths import RunPaths

_EVIDENCE_HELP = """\
Archive results with their raw files, and recompute them on any machine.
docs/evidence.md says what each of these shows.

examples:
  run_benchmarks.py evidence bundle latest --output run.zip
  run_benchmarks.py evidence verify run.zip
"""
_COLLECT_HELP = """\
Compute result.json and report.md of a run again from its raw files. The same
raw files give the same bytes.

examples:
  run_benchmarks.py evidence collect latest
  run_benchmarks.py evidence collect RUN --check
"""
_BUNDLE_HELP = """\
Write runs into one archive: raw files, and the results that follow from them.
`evidence verify` recomputes every metric, on any machine, without a GPU.

Secrets, and the names of users, hosts, folders and devices, are replaced
by placeholders. So are environment variables, but for those
that trainings are known to read. The manifest lists them. Read the archive
before you publish it: a secret of an unknown form is not recognised. Captured
tensors and weights are left out, and long logs keep their last part. --sign
adds a signature by a key of ssh.

RUN is a path, a run id, a part of an id, or `latest`.

examples:
  run_benchmarks.py evidence bundle latest --output run.zip
  run_benchmarks.py evidence bundle RUN1 RUN2 --output night.zip
  run_benchmarks.py evidence bundle latest --output run.zip --sign ~/.ssh/id_rsa
"""
_VERIFY_HELP = """\
Recompute every metric and verdict of a bundle from the raw files in it,
offline, and name what does not reproduce. Nothing is extracted or started.

It shows that the stated results reproduce from the raw files, and that these
have not changed since the runs ended. It cannot show that they are true:
a signature, or a digest kept elsewhere, shows who states them.

Exit code 0: everything reproduces. 4: something does not, or the bundle was
changed. 2: the file is no bundle.

examples:
  run_benchmarks.py evidence verify run.zip
  run_benchmarks.py evidence verify run.zip --json
  run_benchmarks.py evidence verify run.zip --allowed-signers FILE --signer NAME
"""
_MAX_CONTRADICTIONS = 12  # printed for a run; --json has all


def _add_collect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 4 if the result differs")


def _collect(options: argparse.Namespace) -> int:
    """Collect every run that can be collected. Raises the errors of the other runs at the end."""
    selected = NamedRuns(runs_folder(options), options.run)
    for paths in selected.finished_runs():
        with selected.collecting_errors():
            _check_result(paths) if options.check else _write_result(paths)
    selected.raise_errors()
    return 0


def _write_result(paths: RunPaths) -> None:
    """Write result and report. Raises GateFailed for a tampered run, whose result then says so."""
    from levelfield.report.result_words import status_in_words
    from levelfield.run.runner import finish

    result = finish(paths)
    print(f"{result.run_id}: {status_in_words(result)}")
    if result.seal and result.seal.word == "tampered":
        raise GateFailed(f"{result.run_id} is tampered: {result.seal.reason}")


def _check_result(paths: RunPaths) -> None:
    from levelfield.judge.collector import collect
    from levelfield.specs.base import dump

    try:
        text = read_regular(paths.result, "result").decode(errors="replace")
    except OSError:  # no file, or no regular one
        text = ""
    if text != dump(collect(paths)):
        raise GateFailed(
            f"{paths.result} is not what its raw files give; `evidence collect` without --check writes it again"
        )
    print(f"{paths.result}: the raw files give the same result")


def _add_bundle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the archive to write; a new file")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign the manifest by `ssh-keygen -Y sign`")


def _bundle(options: argparse.Namespace) -> int:
    """Write the bundle and return 0. Raises GateFailed for a tampered run, and then writes nothing."""
    from levelfield.evidence.bundle_archive import make_archive, make_signature
    from levelfield.evidence.bundle_reader import parse_bundle
    from levelfield.evidence.packing import bundle_members, pack_runs
    from levelfield.evidence.verification import verify_run
    from levelfield.specs.base import dump

    path, key = options.output, options.sign
    if path.exists():
        raise UsageError(f"--output {path}: exists; name a new file")
    selected = NamedRuns(runs_folder(options), options.run)
    runs = list(selected.finished_runs())
    selected.raise_errors()
    with Terminal().bytes_progress(f"packing {len(runs)} run(s)") as progress:
        bundle = pack_runs(runs, progress)
    manifest = dump(bundle.manifest).encode()
    content = make_archive(bundle_members(manifest, bundle.runs, make_signature(manifest, key) if key else None))
    reread, registry = parse_bundle(content, str(path)), registry_of(options)
    for run in reread.runs:  # verified here, so that nobody gets a bundle which `evidence verify` would refuse
        for contradiction in verify_run(run, registry, reread).contradictions[:1]:
            raise UsageError(
                f"bundle: {run.name} does not follow from its own files: {contradiction.field}: "
                f"stated {contradiction.stated}, recomputed {contradiction.recomputed}"
            )
    with usage_error_if_unwritable(path):
        write_new_file(path, content)
    print("\n".join(labelled_line(*row, 11) for row in _packed_rows(bundle, path, len(content), key)))
    return 0


def _packed_rows(bundle: PackedRuns, path: Path, size: int, key: Path | None) -> Iterator[LabelledText]:
    manifest, replacement_counts = bundle.manifest, Counter[str]()
    yield "bundle", f"{path}: {len(bundle.runs)} run(s), {size:,} bytes"
    for name, run in manifest.runs.items():
        redacted = sum(not entry.is_whole for entry in run.files.values())
        yield "run", f"{name}: {run.seal.word}, {len(run.files)} files, {redacted} of them redacted"
    for replacement in manifest.replacements:
        replacement_counts[replacement.kind] += replacement.times
    replaced = ", ".join(f"{kind} {count}x" for kind, count in sorted(replacement_counts.items()))
    unredacted = (
        f"{manifest.kept} name(s) left, which are also ordinary words" if manifest.kept else "no name left unredacted"
    )
    yield "replaced", f"{replaced or 'nothing'}; {unredacted}"
    yield "signed", f"with {key}" if key else "no; --sign KEY does"
    yield "digest", manifest.digest


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("bundle", type=Path, metavar="BUNDLE", help="an archive of `evidence bundle`")
    option("--allowed-signers", type=Path, metavar="FILE", help="whose keys count, in the format of `man ssh-keygen`")
    option("--signer", metavar="NAME", help="the one of them who has to have signed")
    add_json_option(parser, ", with every contradiction")


def _verify(options: argparse.Namespace) -> int:
    """Return 0 when everything follows, else 4. Raises DocumentError for a file that is no bundle."""
    from levelfield.evidence.bundle_archive import verify_signature
    from levelfield.evidence.bundle_reader import read_bundle
    from levelfield.evidence.verification import SCHEMA, verify_run

    if options.signer and not options.allowed_signers:
        raise UsageError("--signer names one of the allowed signers: give --allowed-signers FILE too")
    bundle = read_bundle(options.bundle)
    if options.allowed_signers and bundle.signature is None:
        raise GateFailed(f"{options.bundle}: found no signature, expected one of the allowed signers")
    signer = None
    if options.allowed_signers and bundle.signature is not None:
        signer_key = verify_signature(bundle.manifest_bytes, bundle.signature, options.allowed_signers, options.signer)
        signer = f"{signer_key.name}: {signer_key.key}"
    runs: list[RunVerification] = []
    with Terminal().bytes_progress(f"recomputing {len(bundle.runs)} run(s)") as progress:
        registry = registry_of(options)
        for run in bundle.runs:
            runs.append(verify_run(run, registry, bundle))
            progress(len(runs), len(bundle.runs))
    if options.json:
        manifest = bundle.manifest
        content = {
            "schema": SCHEMA,
            "digest": manifest.digest,
            "platform_version": manifest.platform_version,
            "signed": bundle.signature is not None,
            "signer": signer,
            "runs": [run.json_object() for run in runs],
            "replacements": [replacement.model_dump(mode="json") for replacement in manifest.replacements],
        }
        print(json_text(content))
    else:
        print("\n".join(labelled_line(*row, 9) for row in _verification_rows(options.bundle, bundle, signer, runs)))
    return 0 if all(run.conclusion == "follows" for run in runs) else GateFailed.exit_code


def _verification_rows(
    path: Path, bundle: Bundle, signer: str | None, runs: Sequence[RunVerification]
) -> Iterator[LabelledText]:
    unchecked = "yes, and not checked: give --allowed-signers FILE" if bundle.signature else "no"
    yield "bundle", f"{path}, made by levelfield {bundle.manifest.platform_version}"
    yield "digest", bundle.manifest.digest
    yield "signed", signer or unchecked
    for run in runs:
        yield "run", f"{run.name}: {run.conclusion}"
        yield from (("", line) for line in _verified_run_lines(run))
    conclusion = "all metrics reproduce from the raw files; their authenticity is not proven (docs/evidence.md)"
    if failed := sum(run.conclusion != "follows" for run in runs):
        conclusion = f"{failed} of {len(runs)} run(s) do not reproduce from their raw files"
    yield "shown", conclusion


def _verified_run_lines(run: RunVerification) -> Iterator[str]:
    yield f"{run.seal.word}{f': {run.seal.reason}' if run.seal.reason else ''}"
    yield f"code: {run.code}"
    for contradiction in run.contradictions[:_MAX_CONTRADICTIONS]:
        yield f"{contradiction.field}: stated {contradiction.stated}, recomputed {contradiction.recomputed}"
    if (more := len(run.contradictions) - _MAX_CONTRADICTIONS) > 0:
        yield f"and {more} more (--json)"
    if run.redacted:
        yield f"without names, otherwise as sealed: {', '.join(run.redacted)}"
    if run.unsealed:
        yield f"redacted, not held against a seal: {', '.join(run.unsealed)}"
    yield from (f"note: {note}" for note in run.notes)


COMMANDS = {
    "evidence": Command(_EVIDENCE_HELP),
    "evidence collect": Command(_COLLECT_HELP, _add_collect_options, _collect),
    "evidence bundle": Command(_BUNDLE_HELP, _add_bundle_options, _bundle),
    "evidence verify": Command(_VERIFY_HELP, _add_verify_options, _verify),
}
