"""Checks of a node before its ranks start: its code, its environment, its port."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from levelfield.node.code_digest import code_digest
from levelfield.node.regular_files import read_regular_text


class Refusal(NamedTuple):
    """Why a node must not train: a word for the cause, and what was found."""

    cause: str
    evidence: str


def check_code(expected: Mapping[str, Any]) -> Refusal | None:
    """Compare the digest of the node's code with the plan's. expected: code and folder; no code: nothing to compare."""
    if not expected.get("code"):
        return None
    found = digest_here(expected)
    if found == expected["code"]:
        return None
    return Refusal("node-differs", f"the code differs: found {_short(found)}, expected {_short(expected['code'])}")


def digest_here(expected: Mapping[str, Any]) -> str:
    """Return the digest of the node's code, or why it cannot be read."""
    try:
        return code_digest(Path(str(expected.get("folder"))))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def check_environment(expected: Mapping[str, Any]) -> Refusal | None:
    """Compare the digest in the environment's stamp with the plan's."""
    if not expected.get("environment") or not expected.get("stamp"):
        return None
    path = Path(expected["stamp"])
    try:
        found = str(json.loads(read_regular_text(path))["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        found = f"no stamp in {path}"
    if found == expected["environment"]:
        return None
    wanted = _short(expected["environment"])
    return Refusal("node-differs", f"the environment differs: found {_short(found)}, expected {wanted}")


def check_port(port: int) -> Refusal | None:
    """Check that nothing listens on the rendezvous port of this node."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that lingers does not count
        try:
            probe.bind(("", port))
        except OSError as error:
            return Refusal("port-taken", f"port {port} of this node is taken: {error.strerror}")
    return None


def check_name(address: str) -> Refusal | None:
    """Check that this node knows the address of the first one."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        why = f"the first node's name {address} does not resolve here: {error.strerror}; give its address"
        return Refusal("name-unknown", why)
    return None


def _short(digest: str) -> str:
    return digest[:19] if digest.startswith("sha256:") else digest
