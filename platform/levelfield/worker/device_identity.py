"""The digest of a device's own identity: it shows which device a rank got, without the serial number."""

import hashlib


def identity_digest(kind: str, *texts: str) -> str:
    """Return the digest of a machine's or a device's identity."""
    content = "\0".join(("levelfield", kind, *texts))
    return f"sha256:{hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()}"
