"""Puts a bundle together: the manifest over the files of redacted runs, and every member of the archive.

The same runs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import levelfield
from levelfield.errors import UsageError
from levelfield.rundir.bundle_format import (
    MANIFEST,
    MOST_BYTES,
    MOST_MEMBERS,
    SIGNATURE,
    BundledRun,
    Manifest,
    Replacement,
)
from levelfield.rundir.bundle_redaction import RedactedRun
from levelfield.rundir.placeholders import Placeholders
from levelfield.specs.result import REVISION


def manifest_of(runs: Mapping[str, BundledRun], placeholders: Placeholders) -> Manifest:
    """Return the manifest with its digest."""
    listed = [
        Replacement(kind=kind, placeholder=text, times=times)
        for (kind, text), times in sorted(placeholders.counts.items())
    ]
    draft = Manifest(
        platform_version=levelfield.__version__,
        runs=dict(runs),
        replacements=tuple(listed),
        kept=placeholders.kept,
        result_revision=REVISION,
        digest="",
    )
    return draft.model_copy(update={"digest": draft.content_digest})


def members_of(manifest: bytes, runs: Sequence[RedactedRun], signature: bytes | None) -> dict[str, bytes]:
    """Return every member of the archive by its name. Raises UsageError for more than a reader takes."""
    members = {f"runs/{run.name}/{name}": content for run in runs for name, content in run.files.items()}
    members |= {MANIFEST: manifest, **({SIGNATURE: signature} if signature else {})}
    size = sum(map(len, members.values()))
    if size > MOST_BYTES or len(members) > MOST_MEMBERS:
        largest = max(members, key=lambda name: len(members[name]))
        raise UsageError(
            f"bundle: found {len(members):,} files of {size:,} bytes, expected at most "
            f"{MOST_MEMBERS:,} of {MOST_BYTES:,}; the largest is {largest}. Give fewer runs"
        )
    return members
