"""Packs runs into a bundle, with the result that follows from the redacted files, and compares it with the original.

The same runs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import levelfield
from levelfield.errors import UsageError
from levelfield.evidence.bundle_archive import MAX_BUNDLE_BYTES, MAX_MEMBERS, RUN_NAME
from levelfield.evidence.bundle_reader import RESULT, RunInBundle, unpack_run
from levelfield.evidence.bundle_redaction import load_run, make_placeholders, redact_run
from levelfield.judge.certification import software_digest
from levelfield.judge.collector import collect
from levelfield.judge.verdict import Redaction
from levelfield.specs.base import dump, repeated_names, sha256_of
from levelfield.specs.bundle import MANIFEST, SIGNATURE, BundledFile, BundledRun, Manifest, Replacement
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result

# Texts of a result that name what was measured. Redaction may change any other text, and no number.
_UNREDACTED_TEXTS = (
    "run_id", "case", "scale", "framework", "framework_version", "vendor", "chip", "device_is", "precision", "layout",
    "identity", "runtime", "recompute",
)  # fmt: skip


class PackedRuns(NamedTuple):
    """The runs of a bundle as it holds them, and its manifest."""

    runs: tuple[RunInBundle, ...]
    manifest: Manifest


def pack_runs(runs: Sequence[RunPaths], progress: Callable[[int, int], None]) -> PackedRuns:
    """Return the runs with placeholders, results and manifest. progress: called with the runs done, and with all.

    Raises GateFailed for a tampered run, and UsageError for a run given twice or one that cannot be redacted without
    changing what it shows.
    """
    results = [collect(paths) for paths in runs]
    names = [result.run_id for result in results]
    if duplicates := repeated_names(names):
        raise UsageError(f"bundle: found run {duplicates[0]} twice; name each run once")
    if invalid := [name for name in names if not RUN_NAME.fullmatch(name)]:
        raise UsageError(f"bundle: found run id {invalid[0]!r}, expected letters, digits, '.', '_' and '-'")
    ordered_runs = sorted(zip(results, runs, strict=True), key=lambda pair: pair[0].run_id)
    whole_runs = [load_run(paths, result.run_id) for result, paths in ordered_runs]
    placeholders, bundled = make_placeholders(whole_runs), list[RunInBundle]()
    for (result, paths), run in zip(ordered_runs, whole_runs, strict=True):
        bundled.append(_add_result(redact_run(run, placeholders), paths, result))
        progress(len(bundled), len(runs))
    counts = sorted(placeholders.counts.items())
    draft = Manifest(
        platform_version=levelfield.__version__,
        runs={run.name: run.entry for run in bundled},
        replacements=tuple(Replacement(kind=kind, placeholder=text, times=n) for (kind, text), n in counts),
        kept=placeholders.unredacted_count,
        digest="",
    )
    return PackedRuns(tuple(bundled), draft.model_copy(update={"digest": draft.content_digest}))


def _add_result(run: RunInBundle, paths: RunPaths, original: Result) -> RunInBundle:
    """Return the run with the result of its redacted files, which a reader computes again."""
    seal, software = run.entry.seal, software_digest(paths)
    with unpack_run(run) as folder:
        result = collect(folder, redaction=Redaction(seal, software))
    if changed := next(_changed_values(original, result), None):
        raise UsageError(
            f"bundle: {run.name}: without names and paths, {changed} is another than in the run directory; report this "
            "fault. `evidence collect RUN --check` shows whether the run directory itself is whole"
        )
    text = dump(result).encode()
    entries = {**run.entry.files, RESULT: BundledFile(original=sha256_of(text), stored=sha256_of(text))}
    entry = BundledRun(seal=seal, software=software, files=dict(sorted(entries.items())))
    return RunInBundle(run.name, {**run.files, RESULT: text}, entry)


def _changed_values(before: Result, after: Result) -> Iterator[str]:
    """Yield the name of each number, and of each text of _UNREDACTED_TEXTS, that redaction has changed."""
    yield from (name for name in _UNREDACTED_TEXTS if getattr(before, name) != getattr(after, name))
    words = ("status.word", before.status.word, after.status.word), (
        "alignment.verdict", before.alignment.verdict, after.alignment.verdict,
    )  # fmt: skip
    yield from (name for name, old, new in words if old != new)
    old, new = (dict(json_leaves(result.model_dump(mode="json"))) for result in (before, after))
    numbers = (name for name, value in old.items() if not isinstance(value, str))
    yield from (name for name in numbers if new.get(name) != old[name])


def json_leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield every number, text and null below a JSON value, with its path such as `utilisation[0].value`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from json_leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from json_leaves(inner, f"{name}[{number}]")
    else:
        yield name, value


def bundle_members(manifest: bytes, runs: Sequence[RunInBundle], signature: bytes | None) -> dict[str, bytes]:
    """Return every member of the archive by its name. Raises UsageError for more than a reader takes."""
    members = {f"runs/{run.name}/{name}": content for run in runs for name, content in run.files.items()}
    members |= {MANIFEST: manifest, **({SIGNATURE: signature} if signature else {})}
    size = sum(map(len, members.values()))
    if size > MAX_BUNDLE_BYTES or len(members) > MAX_MEMBERS:
        largest = max(members, key=lambda name: len(members[name]))
        raise UsageError(
            f"bundle: found {len(members):,} files of {size:,} bytes, expected at most "
            f"{MAX_MEMBERS:,} of {MAX_BUNDLE_BYTES:,}; the largest is {largest}. Give fewer runs"
        )
    return members
