"""Reads a bundle in memory, without trust: a closed list of names, limits on sizes, and no bytes between members.

No library extracts anything. A member is written by `unpack_run` alone, under its checked name, into a private folder.
DocumentError: the file is no bundle. GateFailed: it is one, and something about it is not right.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from levelfield.errors import DocumentError, GateFailed
from levelfield.evidence.bundle_archive import FILE_NAME, read_members
from levelfield.rundir.event_lines import JsonObject, check_strict_lines, object_or_none, strict_json
from levelfield.rundir.seal import FACTS_SUFFIX, OUTCOME, compare_with_seal, parse_document, stored_seal
from levelfield.specs.base import json_digest, parse, sha256_of
from levelfield.specs.bounded_reading import bounded_bytes
from levelfield.specs.bundle import MANIFEST, SIGNATURE, BundledRun, Manifest, SealFinding
from levelfield.specs.paths import RunPaths

RESULT = "result.json"  # what the bundle states; every other file of a run is raw


@dataclass(frozen=True)
class RunInBundle:
    """A run of a bundle."""

    name: str
    files: dict[str, bytes]  # by path in its run directory
    entry: BundledRun  # of the manifest

    @property
    def seal(self) -> SealFinding:
        """Whether the files that the bundle lists are those that the run sealed.

        For a redacted file the manifest has the digest before redaction. The bundle cannot reproduce that digest.
        """
        raw = {name: file for name, file in self.entry.files.items() if name not in (RESULT, OUTCOME)}
        if changed := sorted(name for name, file in raw.items() if file.is_whole and file.stored != file.original):
            reason = f"changed and not listed as redacted: {', '.join(changed[:3])}"
            return SealFinding(word="tampered", reason=reason, digest=json_digest({}))
        originals: dict[str, str | None] = {name: file.original for name, file in raw.items()}
        outcome = self.entry.files.get(OUTCOME)
        original_outcome = outcome.original if outcome and not outcome.is_whole else None
        names = [name for name in self.redacted if name.endswith((".json", ".jsonl")) and name in self.files]
        documents = {name: parse_document(name, self.files[name]) for name in names}
        redacted = {name: document for name, document in documents.items() if document is not None}
        return compare_with_seal(self._outcome, originals, redacted, original_outcome)

    @property
    def redacted(self) -> list[str]:
        """The names of the files that differ from those of the run directory."""
        return sorted(name for name, file in self.entry.files.items() if not file.is_whole)

    @property
    def unsealed(self) -> list[str]:
        """The redacted files that no digest of the seal covers.

        For every other redacted file the seal has a second digest, of the content without names of places, persons
        and devices.
        """
        seal = stored_seal(self._outcome or {})
        return [name for name in self.redacted if seal is None or f"{name}{FACTS_SUFFIX}" not in seal.files]

    @property
    def _outcome(self) -> JsonObject | None:
        return object_or_none(self.files.get(OUTCOME, b""))


@dataclass(frozen=True)
class Bundle:
    """A bundle whose members are those of its manifest."""

    manifest: Manifest
    manifest_bytes: bytes  # what a signature signs
    signature: bytes | None
    runs: tuple[RunInBundle, ...]


def read_bundle(path: Path) -> Bundle:
    """Return a bundle. Raises DocumentError for a file that is none, GateFailed for a bundle that breaks a rule."""
    with suppress(OSError):  # else it cannot be read, which bounded_bytes says
        if not path.is_file():
            raise DocumentError(
                f"{path}: found no file, expected a bundle, which `evidence bundle RUN --output FILE` writes"
            )
    return parse_bundle(bounded_bytes(path, "bundle"), str(path))


def parse_bundle(content: bytes, origin: str) -> Bundle:
    """Return the bundle that an archive holds. origin: its name in errors.

    Raises DocumentError for what is no bundle, and GateFailed where members differ from the manifest, or where JSON is
    not strict.
    """
    members = read_members(content, origin)
    manifest = _manifest(members[MANIFEST], origin)
    files = {name: member for name, member in members.items() if name not in (MANIFEST, SIGNATURE)}
    digests_by_member = {
        f"runs/{run}/{name}": file.stored
        for run, entry in manifest.runs.items()
        for name, file in entry.files.items()
        if file.stored is not None
    }
    for name in sorted(files.keys() | digests_by_member.keys()):
        if name not in digests_by_member:
            raise GateFailed(f"{origin}: refused: member '{name}' is not in the manifest: it was added")
        if name not in files:
            raise GateFailed(f"{origin}: refused: member '{name}' of the manifest is missing")
        if sha256_of(files[name]) != digests_by_member[name]:
            raise GateFailed(f"{origin}: refused: member '{name}' differs from its digest in the manifest")
        try:
            if name.endswith((".json", ".jsonl")):
                (strict_json if name.endswith(".json") else check_strict_lines)(files[name])
        except ValueError as error:
            raise GateFailed(f"{origin}: refused: member '{name}': {error}") from None
    runs = []
    for run, entry in manifest.runs.items():
        folder = f"runs/{run}/"
        run_files = {name.removeprefix(folder): member for name, member in files.items() if name.startswith(folder)}
        runs.append(RunInBundle(run, run_files, entry))
    return Bundle(manifest, members[MANIFEST], members.get(SIGNATURE), tuple(runs))


@contextmanager
def unpack_run(run: RunInBundle) -> Iterator[RunPaths]:
    """Write the files of a run into a private folder for the block. Every name was checked when the bundle was read."""
    with tempfile.TemporaryDirectory(prefix="levelfield-bundle-") as folder:
        root = Path(folder) / run.name
        for name, content in run.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
        yield RunPaths(root)


def _manifest(content: bytes, origin: str) -> Manifest:
    """Return the manifest. Raises GateFailed where it was changed.

    It may leave out no file whose name a bundle allows: a verdict could depend on it.
    """
    where = f"{origin}: {MANIFEST}"
    try:
        manifest = parse(Manifest, strict_json(content), where)
    except ValueError as error:
        raise DocumentError(f"{where}: {error}") from None
    if manifest.digest != manifest.content_digest:
        raise GateFailed(f"{where}: found digest {manifest.digest}, expected {manifest.content_digest}: it was changed")
    for run, entry in manifest.runs.items():
        for name, file in entry.files.items():
            if file.stored is None and FILE_NAME.fullmatch(name):
                raise GateFailed(f"{origin}: refused: {name} of run {run} is left out, expected every such file")
    return manifest
