"""The findings of `site check`, and the script by which the checks of several launchers probe a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.node.node_setup import foreign_folder_reason
from levelfield.rundir.event_lines import object_or_none

MIN_FREE_BYTES = 2**30  # for code, events and logs
ENVIRONMENT_BYTES = 10 * 2**30  # what an environment with torch for GPUs needs
# Runs on a host, with any Python 3, and prints one JSON object. Its arguments are Levelfield's folder there, and the
# interpreter that the site's file names or an empty text. It leaves nothing behind.
PROBE_SCRIPT = r"""
import json, os, shutil, subprocess, sys, tempfile, time
folder = os.path.expanduser(sys.argv[1])
facts = {"python": "%d.%d.%d" % sys.version_info[:3], "time": time.time(), "host": os.uname()[1]}
facts["is_too_old"] = sys.version_info < (3, 8)
existing = folder
while not os.path.isdir(existing):
    existing = os.path.dirname(existing) or "/"
try:
    handle, name = tempfile.mkstemp(dir=existing); os.close(handle); os.unlink(name); facts["is_writable"] = True
except OSError as error:
    facts["is_writable"] = False; facts["write_error"] = "%s: %s" % (existing, error.strerror)
try:
    status = os.lstat(folder)
    facts["mode_owner_user"] = [status.st_mode, status.st_uid, os.geteuid()]
except OSError:
    facts["mode_owner_user"] = None
if sys.argv[2]:
    try:
        code = "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 8))"
        completed = subprocess.run([sys.argv[2], "-I", "-c", code], timeout=20, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        facts["site_python"] = completed.stdout.decode().strip() if completed.returncode == 0 else None
        facts["site_python_error"] = completed.stdout.decode().strip() or "exit code %d" % completed.returncode
    except OSError as error:
        facts["site_python"] = None; facts["site_python_error"] = error.strerror
    except subprocess.TimeoutExpired:
        facts["site_python"] = None; facts["site_python_error"] = "it did not end within 20 s"
facts["interfaces"] = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else None
facts["free_bytes"] = shutil.disk_usage(existing).free
facts["has_venv"] = True
try:
    import ensurepip, venv
except ImportError:
    facts["has_venv"] = False
try:
    out = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], timeout=20,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    facts["index"] = out or "pip's default index"
except Exception:
    facts["index"] = None
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class SiteFinding:
    """The result of one check. Its fields are those of `site check --json`."""

    subject: str  # a host, or an object of the engine
    word: Literal["ok", "missing", "unknown"]  # missing: a run would fail; unknown: this user may not see it
    says: str  # what was found, as the printed sentence
    do: str = ""  # advice: what to do about it


def ok_finding(subject: str, message: str) -> SiteFinding:
    return SiteFinding(subject, "ok", message)


def missing_finding(subject: str, message: str, advice: str) -> SiteFinding:
    """Return a finding that would make a run fail: something is absent, wrong or too small."""
    return SiteFinding(subject, "missing", message, advice)


def unknown_finding(subject: str, message: str, advice: str = "") -> SiteFinding:
    return SiteFinding(subject, "unknown", message, advice)


def parse_probe_answer(line: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a probe's last line; None where it is none, or has no time."""
    answer = object_or_none(line) or {}
    return answer if isinstance(answer.get("time"), (int, float)) else None


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
    mode_owner_user = answer.get("mode_owner_user") if isinstance(answer.get("mode_owner_user"), list) else []
    numbers = [number for number in mode_owner_user or () if isinstance(number, int) and 0 <= number < 2**32]
    if len(numbers) == 3 and (reason := foreign_folder_reason(*numbers)):  # mode, owner, user
        advice = f"correct its rights (`chmod 0700 {folder}`), or name another folder as {key}"
        return missing_finding(subject, f"{folder}: {reason}", advice)
    if answer.get("is_writable") is not True:
        return missing_finding(
            subject, f"{folder} cannot be written: {answer.get('write_error')}", f"correct {key} or its rights"
        )
    free = answer.get("free_bytes")
    if not isinstance(free, int):
        return unknown_finding(subject, f"{folder} can be written; its free space is not known")
    if not free >= MIN_FREE_BYTES:
        advice = f"free some, or name another folder as {key}"
        return missing_finding(subject, f"{folder} has {free / 2**30:.1f} GiB free, expected at least 1", advice)
    if not free >= ENVIRONMENT_BYTES:
        needs = "an environment with torch for GPUs needs about 10"
        return unknown_finding(subject, f"{folder} can be written, {free / 2**30:.1f} GiB free; {needs}")
    return ok_finding(subject, f"{folder} can be written, {free / 2**30:.0f} GiB free")
