"""Signatures over a bundle's manifest, by OpenSSH: the key that a user has already, and a file of allowed signers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from levelfield.errors import GateFailed, UsageError

NAMESPACE = "levelfield"
_SECONDS = 120  # a key may need its passphrase


class Signer(NamedTuple):
    """Who signed, as the file of allowed signers names them, and ssh-keygen's words about the key."""

    name: str
    key: str


def signed(content: bytes, key: Path) -> bytes:
    """Return the signature of `content`. Raises UsageError for a key that does not sign."""
    if not key.is_file():
        raise UsageError(f"--sign {key}: found no file, expected a private key of ssh (or the public one of an agent)")
    done = _ssh_keygen(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], content)
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise UsageError(f"--sign {key}: ssh-keygen made no signature: {_said(done)}")
    return done.stdout


def signer_of(content: bytes, signature: bytes, allowed: Path, name: str | None) -> Signer:
    """Return who signed `content`. name: the only signer that counts; None: any that the file allows.

    Raises GateFailed for a signature that does not hold, UsageError for a missing file.
    """
    if not allowed.is_file():
        raise UsageError(f"--allowed-signers {allowed}: found no file, expected one as in `man ssh-keygen`")
    with tempfile.TemporaryDirectory(prefix="levelfield-signature-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        names = [name] if name else _principals(allowed, path)
        for each in names:
            words = ["-Y", "verify", "-n", NAMESPACE, "-f", str(allowed), "-I", each, "-s", str(path)]
            done = _ssh_keygen(words, content)
            if done.returncode == 0:
                return Signer(each, _said(done))
    who = f"'{name}'" if name else "a signer whom the file allows"
    raise GateFailed(f"the signature is not of {who}, or the manifest was changed after it was signed")


def _principals(allowed: Path, signature: Path) -> list[str]:
    """Return whose key made the signature, by the file of allowed signers."""
    done = _ssh_keygen(["-Y", "find-principals", "-f", str(allowed), "-s", str(signature)], b"")
    listed = done.stdout.decode(errors="replace") if done.returncode == 0 else ""
    return [name for line in listed.splitlines() for name in line.split(",") if name]


def _ssh_keygen(words: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *words], input=content, capture_output=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise UsageError("ssh-keygen is not on PATH; install OpenSSH 8.2 or later to sign and to check") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"ssh-keygen did not answer: {error}") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join((done.stderr or done.stdout).decode(errors="replace").split())[:200] or "no words"
