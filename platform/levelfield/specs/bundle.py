"""The manifest of a bundle, and the finding on the seal of a run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import LATER, Document, Value

MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"


class SealFinding(Value):
    """Whether the raw files are those that the run left when it ended."""

    word: Literal["sealed", "unsealed", "tampered"] = Field(
        description="`sealed`: no raw file has changed since. `unsealed`: there is no seal. `tampered`: a file has "
        "changed, was added or is missing."
    )
    reason: str | None = Field(default=None, description="Why it is not `sealed`, with the file.")
    digest: str | None = Field(default=None, description="Digest of the raw files as they are.")


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

    result_revision: what bundles of 2026-11 have; only their digest counts it. digest: of all other keys.
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
