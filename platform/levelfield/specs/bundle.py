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
    """A file of a run."""

    original: str  # its digest in the run directory; of outcome.json the one that the seal holds
    stored: str | None  # the digest of the bundle's member; None where the file is left out
    replaced: int = Field(default=0, ge=0)  # how many texts were replaced by placeholders
    cut: int = Field(default=0, ge=0)  # bytes left out at the beginning of a long log

    @property
    def is_whole(self) -> bool:
        """Whether the member is the file as the run left it."""
        return self.stored is not None and not self.replaced and not self.cut


class BundledRun(Value):
    """A run of a bundle."""

    seal: SealFinding  # the finding on its files before any was redacted
    software: str | None  # the digest of its packages and of the vendor's software, for its certificate
    files: dict[str, BundledFile]


class Replacement(Value):
    """A text that was replaced, without the text itself."""

    kind: str  # `secret`, `path`, `folder`, `host`, `user` or `device`
    placeholder: str  # what stands in its place
    times: int = Field(ge=1)


class Manifest(Document):
    """manifest.json of a bundle."""

    KIND: ClassVar[str] = "bundle"

    platform_version: str
    runs: dict[str, BundledRun]
    replacements: tuple[Replacement, ...]
    kept: int = 0  # how many names of users or hosts were not replaced, because they are also words of a run
    # Bundles of 2026-11 have it, and it counts in their digest. Nothing else reads it.
    result_revision: int = Field(default=0, ge=0, json_schema_extra=LATER)
    digest: str  # of all other keys

    @property
    def content_digest(self) -> str:
        """The digest of all keys but `digest`, which has to be equal to it."""
        return self.model_copy(update={"digest": ""}).fingerprint()
