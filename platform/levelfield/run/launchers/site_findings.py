"""The findings of `site check`, and the script by which the checks of several launchers probe a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.node.node_setup import foreign_folder_reason
from levelfield.rundir.event_lines import event_or_none

MIN_FREE_BYTES = 2**30  # for code, events and logs
ENVIRONMENT_BYTES = 10 * 2**30  # what an environment with torch for GPUs needs
# Runs on a host, with any Python 3, and prints one JSON object. Its arguments are Levelfield's folder there, and the
# interpreter that the site's file names or an empty text. It leaves nothing behind.
PROBE_SCRIPT = r"""
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
    """The result of one check. Its fields are those of `site check --json`."""

    subject: str  # a host, or an object of the engine
    word: Literal["ok", "missing", "unknown"]  # missing: a run would fail; unknown: this user may not see it
    says: str  # what was found, as the printed sentence
    do: str = ""  # advice: what to do about it


def ok_finding(subject: str, says: str) -> SiteFinding:
    return SiteFinding(subject, "ok", says)


def missing_finding(subject: str, says: str, advice: str) -> SiteFinding:
    return SiteFinding(subject, "missing", says, advice)


def unknown_finding(subject: str, says: str, advice: str = "") -> SiteFinding:
    return SiteFinding(subject, "unknown", says, advice)


def parse_probe_answer(line: str, key: str, expected_type: type | tuple[type, ...]) -> Mapping[str, Any] | None:
    """Return the JSON object in a probe's last line; None where it has no `key` with a value of the expected type."""
    answer = event_or_none(line) or {}
    return answer if isinstance(answer.get(key), expected_type) else None


def interface_findings(subject: str, interface: str | None, answer: Mapping[str, Any]) -> list[SiteFinding]:
    """Return whether a node has the network interface that the host or the site names; nothing where none is named."""
    interfaces = answer.get("interfaces")
    if interface is None:
        return []
    if not isinstance(interfaces, list):
        return [unknown_finding(subject, f"whether it has the interface {interface} cannot be seen")]
    if interface not in interfaces:
        interface_names = ", ".join(map(str, interfaces))[:200]
        advice = "correct `interface` of the host or of the site"
        return [missing_finding(subject, f"found no interface {interface}; it has {interface_names}", advice)]
    return [ok_finding(subject, f"it has the interface {interface}")]


def folder_finding(subject: str, folder: str, key: str, answer: Mapping[str, Any]) -> SiteFinding:
    """Return whether a run can store its files in a node's folder. key: the key of the site's file with the folder."""
    mode_owner_user = answer.get("own") if isinstance(answer.get("own"), list) else []
    numbers = [number for number in mode_owner_user or () if isinstance(number, int) and 0 <= number < 2**32]
    if len(numbers) == 3 and (reason := foreign_folder_reason(*numbers)):  # mode, owner, user
        advice = f"correct its rights (`chmod 0700 {folder}`), or name another folder as {key}"
        return missing_finding(subject, f"{folder}: {reason}", advice)
    if answer.get("writable") is not True:
        return missing_finding(
            subject, f"{folder} cannot be written: {answer.get('why')}", f"correct {key} or its rights"
        )
    free = answer.get("free")
    if not isinstance(free, int):
        return unknown_finding(subject, f"{folder} can be written; its free space is not known")
    if not free >= MIN_FREE_BYTES:
        advice = f"free some, or name another folder as {key}"
        return missing_finding(subject, f"{folder} has {free / 2**30:.1f} GiB free, expected at least 1", advice)
    if not free >= ENVIRONMENT_BYTES:
        needs = "an environment with torch for GPUs needs about 10"
        return unknown_finding(subject, f"{folder} can be written, {free / 2**30:.1f} GiB free; {needs}")
    return ok_finding(subject, f"{folder} can be written, {free / 2**30:.0f} GiB free")
