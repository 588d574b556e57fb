"""The form of a bundle: a zip archive of raw files under a manifest, with bounds for its readers.

runs/<run id>/<file> for each file, manifest.json with the digest of each, and manifest.json.sig if it is signed.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from levelfield.specs.base import LATER, Document, Value
from levelfield.specs.result import SealFinding

MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"
MOST_BYTES = 64 * 2**20  # of the archive, and of all members together
MOST_MEMBERS = 2000
MOST_RATIO = 200  # of a member to its compressed bytes
_FILE = (
    r"(?:plan|job|request|preflight|provenance|outcome|reference|certificate|result)\.json|telemetry\.jsonl"
    r"|telemetry/node[0-9]{1,6}(?:\.raw)?\.jsonl|events/[A-Za-z0-9][\w.-]{0,99}\.jsonl"
    r"|(?:logs|nodes|image)/[A-Za-z0-9][\w.-]{0,99}"
)
FILE_NAME = re.compile(_FILE, re.ASCII)
RUN_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
MEMBER_NAME = re.compile(rf"{re.escape(MANIFEST)}|{re.escape(SIGNATURE)}|runs/{RUN_NAME.pattern}/(?:{_FILE})", re.ASCII)


class BundledFile(Value):
    """A file of a run. original: its digest in the run directory; of outcome.json the one that the seal holds.

    stored: the digest of the member; None where the file is left out. replaced: texts replaced by placeholders. cut:
    bytes left out at the beginning of a long log.
    """

    original: str
    stored: str | None
    replaced: int = Field(default=0, ge=0)
    cut: int = Field(default=0, ge=0)

    @property
    def is_whole(self) -> bool:
        """Whether the member is the file as the run left it."""
        return self.stored is not None and not self.replaced and not self.cut


class BundledRun(Value):
    """A run of a bundle. seal: the finding on its files before any was redacted.

    software: the digest of its packages and of the vendor's software, for its certificate.
    """

    seal: SealFinding
    software: str | None
    files: dict[str, BundledFile]


class Replacement(Value):
    """What was replaced: its kind (`secret`, `path`, `folder`, `host`, `user`, `device`), by what, and how often."""

    kind: str
    placeholder: str
    times: int = Field(ge=1)


class Manifest(Document):
    """manifest.json. kept: names of users or hosts that are also words of a run and were not replaced: how many.

    result_revision: which fields the results have (specs/result.py). digest: of all other keys.
    """

    KIND: ClassVar[str] = "bundle"

    platform_version: str
    runs: dict[str, BundledRun]
    replacements: tuple[Replacement, ...]
    kept: int = 0
    result_revision: int = Field(default=0, ge=0, json_schema_extra=LATER)
    digest: str

    @property
    def content_digest(self) -> str:
        """The digest that the manifest has to have."""
        return self.model_copy(update={"digest": ""}).fingerprint()
