"""What `site check` finds, and the probe of a node that the checks of several launchers run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.node.node_setup import foreign_folder_reason
from levelfield.rundir.event_lines import event_or_none

MIN_FREE_BYTES = 2**30  # for code, events and logs
ENVIRONMENT_BYTES = 10 * 2**30  # what an environment with torch for GPUs needs
# Runs on the host, with any Python 3. It leaves nothing behind.
PROBE = r"""
import json, os, shutil, subprocess, sys, tempfile, time
folder = os.path.expanduser(sys.argv[1])
found = {"python": "%d.%d.%d" % sys.version_info[:3], "time": time.time(), "host": os.uname()[1]}
found["old"] = sys.version_info < (3, 8)
place = folder
while not os.path.isdir(place):
    place = os.path.dirname(place) or "/"
try:
    handle, name = tempfile.mkstemp(dir=place); os.close(handle); os.unlink(name); found["writable"] = True
except OSError as error:
    found["writable"] = False; found["why"] = "%s: %s" % (place, error.strerror)
try:
    status = os.lstat(folder)
    found["own"] = [status.st_mode, status.st_uid, os.geteuid()]
except OSError:
    found["own"] = None
if sys.argv[2]:
    try:
        code = "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 8))"
        done = subprocess.run([sys.argv[2], "-I", "-c", code], timeout=20, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        found["given"] = done.stdout.decode().strip() if done.returncode == 0 else None
        found["given_why"] = done.stdout.decode().strip() or "exit code %d" % done.returncode
    except OSError as error:
        found["given"] = None; found["given_why"] = error.strerror
    except subprocess.TimeoutExpired:
        found["given"] = None; found["given_why"] = "it did not end within 20 s"
found["interfaces"] = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else None
found["free"] = shutil.disk_usage(place).free
found["venv"] = True
try:
    import ensurepip, venv
except ImportError:
    found["venv"] = False
try:
    out = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], timeout=20,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    found["index"] = out or "pip's default index"
except Exception:
    found["index"] = None
print(json.dumps(found))
"""


@dataclass(frozen=True)
class SiteFinding:
    """The result of one check."""

    subject: str  # a host, or an object of the engine
    word: Literal["ok", "missing", "unknown"]  # missing: a run would fail; unknown: this user may not see it
    says: str  # the sentence that is printed
    do: str = ""  # what to do about it


def ok(subject: str, says: str) -> SiteFinding:
    return SiteFinding(subject, "ok", says)


def missing(subject: str, says: str, do: str) -> SiteFinding:
    return SiteFinding(subject, "missing", says, do)


def unknown(subject: str, says: str, do: str = "") -> SiteFinding:
    return SiteFinding(subject, "unknown", says, do)


def probe_answer(line: str, key: str, kind: type | tuple[type, ...]) -> Mapping[str, Any] | None:
    """Return what a probe printed as its last line; None where that has no `key` with a value of this kind."""
    answer = event_or_none(line) or {}
    return answer if isinstance(answer.get(key), kind) else None


def interface_findings(subject: str, name: str | None, answer: Mapping[str, Any]) -> list[SiteFinding]:
    """Return whether a node has the interface that the host or the site names for the collectives, if one is named."""
    interfaces = answer.get("interfaces")
    if name is None:
        return []
    if not isinstance(interfaces, list):
        return [unknown(subject, f"whether it has the interface {name} cannot be seen")]
    if name not in interfaces:
        has = ", ".join(map(str, interfaces))[:200]
        do = "correct `interface` of the host or of the site"
        return [missing(subject, f"found no interface {name}; it has {has}", do)]
    return [ok(subject, f"it has the interface {name}")]


def folder_finding(subject: str, folder: str, key: str, answer: Mapping[str, Any]) -> SiteFinding:
    """Return whether a run can store its files in a node's folder. key: the key of the site's file that names it."""
    status = answer.get("own") if isinstance(answer.get("own"), list) else []
    numbers = [number for number in status or () if isinstance(number, int) and 0 <= number < 2**32]
    if len(numbers) == 3 and (reason := foreign_folder_reason(*numbers)):  # mode, owner, user
        do = f"correct its rights (`chmod 0700 {folder}`), or name another folder as {key}"
        return missing(subject, f"{folder}: {reason}", do)
    if answer.get("writable") is not True:
        return missing(subject, f"{folder} cannot be written: {answer.get('why')}", f"correct {key} or its rights")
    free = answer.get("free")
    if not isinstance(free, int):
        return unknown(subject, f"{folder} can be written; its free space is not known")
    if not free >= MIN_FREE_BYTES:
        do = f"free some, or name another folder as {key}"
        return missing(subject, f"{folder} has {free / 2**30:.1f} GiB free, expected at least 1", do)
    if not free >= ENVIRONMENT_BYTES:
        needs = "an environment with torch for GPUs needs about 10"
        return unknown(subject, f"{folder} can be written, {free / 2**30:.1f} GiB free; {needs}")
    return ok(subject, f"{folder} can be written, {free / 2**30:.0f} GiB free")
