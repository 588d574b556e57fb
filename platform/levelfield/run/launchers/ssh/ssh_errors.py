"""What a failure of ssh means, and what to do about it."""

from __future__ import annotations

import re

_MEANINGS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed. Find out why; then correct known_hosts. Nothing was sent",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "its host key is not known. Compare its fingerprint, and add it to known_hosts; `ssh {host}` by hand does both",
    ),
    (
        r"Permission denied",
        "permission denied. `ssh {host}` must work by hand without a password: load the key into ssh-agent, or name it "
        "in ssh_config",
    ),
    (r"Could not resolve hostname", "its name does not resolve. Correct it in the hosts file or in ssh_config"),
    (
        r"Connection refused|Connection timed out|No route to host|Network is unreachable|Operation timed out",
        "it cannot be reached. Check that it runs, and its address and port",
    ),
    (r"Too many authentication failures", "permission denied: too many keys. Name one in ssh_config (IdentityFile)"),
    (
        r"found Python (\d[\d.]*)",
        "its Python is too old: found {0}, expected 3.8 or newer. Name another as `python` of the host",
    ),
    (
        r"not found|No such file or directory|command not found",
        "its Python cannot be started. Install python3 there, or name its path as `python` of the host",
    ),
)  # fmt: skip
_NOISE = re.compile(r"^(Warning: Permanently added|\*\* |debug\d:)")


def explained(host: str, code: int | None, complaint: str) -> str:
    """Return a sentence about a connection that failed: the host, the meaning, and the last line of ssh."""
    said = last_line(complaint)
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, complaint):
            what = meaning.format(*found.groups(), host=host)
            return f"{host}: {what} ({said})" if said else f"{host}: {what}"
    return f"{host}: the connection ended with exit code {code}" + (f": {said}" if said else "")


def last_line(complaint: str) -> str:
    """Return the last line of an error output, without control characters and without ssh's warnings."""
    lines = (line.strip() for line in complaint.splitlines())
    kept = [line for line in lines if line and not _NOISE.match(line)]
    return "".join(c for c in kept[-1] if c.isprintable())[:300] if kept else ""
