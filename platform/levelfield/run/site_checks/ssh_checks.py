"""What a hosts file says, against the hosts: reached, Python, interface, folder, room, clock, index, and whether each
reaches the first one at its address. All hosts at once.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from levelfield import installer
from levelfield.contracts.command import completed
from levelfield.errors import UsageError
from levelfield.node.node_setup import not_own
from levelfield.run.launchers.node_content import wheel_files
from levelfield.run.launchers.ssh.connection import Connection, explained, last_line, printable_text, wait_for_output
from levelfield.run.launchers.ssh.ssh_places import ssh_argv
from levelfield.run.site_checks import SiteFinding, missing, ok, unknown
from levelfield.rundir.event_lines import event_or_none
from levelfield.specs.site import Host, LaunchPlan
from levelfield.specs.variables import MASK, SECRET_VALUE
from levelfield.user_folders import user_name

AT_ONCE = 16
ANSWER_SECONDS = 40.0  # beside the seconds that the connection may take
LEAST_BYTES = 2**30  # for code, events and logs
ENVIRONMENT_BYTES = 10 * 2**30  # that an environment with torch for GPUs needs
MOST_SECONDS_APART = 60.0  # certificates and file servers begin to fail; Levelfield compares no two clocks
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
    own = os.lstat(folder)
    found["own"] = [own.st_mode, own.st_uid, os.geteuid()]
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
# Run on the first host, as the rendezvous of a run: it listens on a port, prints it, and gives its word to each caller.
# It ends when its standard input does.
_LISTEN = r"""
import random, select, socket, sys, time
word, first, last, end = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3]), time.time() + float(sys.argv[4])
def listening(port):
    for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            found = socket.socket(family)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            found.bind((place, port)); found.listen(64)
            return found
        except OSError:
            continue
server = None
for port in random.sample(range(first, last + 1), min(50, last + 1 - first)):
    server = server or listening(port)
if server is None:
    sys.exit("none of 50 ports of %d to %d is free" % (first, last))
print(server.getsockname()[1]); sys.stdout.flush()
while time.time() < end:
    ready = select.select([server, sys.stdin], [], [], 1)[0]
    if sys.stdin in ready:
        break
    if ready:
        caller = server.accept()[0]
        try:
            caller.sendall(word)
        except OSError:
            pass
        caller.close()
"""
# Runs on every host: it calls the address that a run's ranks are given.
_CALL = r"""
import json, socket, sys
address, port, word, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), float(sys.argv[4])
found = {"at": [], "why": ""}
try:
    found["at"] = sorted({each[4][0] for each in socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)})
    call, said = socket.create_connection((address, port), seconds), b""
    while len(said) < len(word):
        part = call.recv(len(word) - len(said))
        if not part:
            break
        said += part
    call.close()
    if said != word:
        found["why"] = "another program answers there"
except OSError as error:
    found["why"] = error.strerror or str(error) or "no answer"
print(json.dumps(found))
"""
CALL_SECONDS, LISTEN_SECONDS = 10.0, 600.0
QUIET = "let its start files, such as .bashrc, print only where the shell is interactive"


def ssh_findings(launch: LaunchPlan) -> Iterator[SiteFinding]:
    """Try every host, in the order of the hosts file, and the wheels that would be brought to them."""
    if not launch.hosts:
        yield missing("hosts", "found no hosts", "give --hosts hosts.yaml, or `hosts` in the site's file")
        return
    if not launch.site.python:
        yield from _wheels()
    reached: list[Host] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = pool.map(lambda host: _of_host(launch, host), launch.hosts)
        for host, findings in zip(launch.hosts, tried, strict=True):
            yield from findings
            reached += [host] if findings[0].word == "ok" else []
    if len(reached) > 1 and reached[0] == launch.hosts[0]:
        yield from _rendezvous(launch, reached)


def _wheels() -> Iterator[SiteFinding]:
    """Yield whether the folder of LEVELFIELD_WHEELS has wheels, where one is named."""
    try:
        if folder := installer.wheels_folder():
            yield ok("wheels", f"{len(wheel_files(folder))} file(s) of {folder} are brought to each host")
    except (UsageError, OSError) as error:
        yield missing("wheels", str(error), f"name another folder, or unset {installer.WHEELS}")


def _of_host(launch: LaunchPlan, host: Host) -> list[SiteFinding]:
    folder = launch.site.ssh.folder.replace("{user}", host.user or user_name())
    argv = ssh_argv(launch, host, [host.python, "-c", PROBE, folder, launch.site.python or ""])
    begin = time.time()
    try:
        done = completed(argv, launch.site.ssh.connect_seconds + ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        return [missing(host.name, f"no answer within {error.timeout:g} s", "check that it runs and is not overloaded")]
    except OSError as error:
        return [missing(host.name, f"{argv[0]}: {error.strerror}", "install OpenSSH's client, or correct ssh.command")]
    noise, _, answer = done.stdout.strip().rpartition("\n")
    found = answer_of(answer, "time", (int, float))
    if done.returncode or found is None:
        said = explained(host.name, done.returncode, done.stderr).removeprefix(f"{host.name}: ")
        return [missing(host.name, said + _offending(done.stderr), f"mend that; `{_by_hand(launch, host)}` shows more")]
    if noise:
        return [missing(host.name, f"its shell prints {printable_text(noise, 60)!r}, which ends a run", QUIET)]
    return [
        *_python(host, found),
        *_given_python(host, launch.site.python, found),
        *interface_findings(host.name, host.interface or launch.site.interface, found),
        folder_finding(host.name, folder, "ssh.folder", found),
        _clock(host, found, begin, time.time()),
        _index(host, found),
    ]


def _offending(complaint: str) -> str:
    """Return the file and line of a key that has changed, as ssh prints them."""
    found = re.search(r"Offending .*key in (\S+:\d+)", complaint)
    return f"; the old key is in {printable_text(found[1], 200)}" if found else ""


def _by_hand(launch: LaunchPlan, host: Host) -> str:
    """Return the command with which a user tries the same connection."""
    config = ("-F", launch.site.ssh.config) if launch.site.ssh.config else ()
    port, user = (("-p", str(host.port)) if host.port else ()), (("-l", host.user) if host.user else ())
    return shlex.join((*launch.site.ssh.command, *config, *port, *user, host.name))


def answer_of(line: str, key: str, kind: type | tuple[type, ...]) -> Mapping[str, Any] | None:
    """Return the host's answer, which is its last line; None where it is none. key: one of it, of this kind."""
    found = event_or_none(line) or {}
    return found if isinstance(found.get(key), kind) else None


def _python(host: Host, found: Mapping[str, Any]) -> list[SiteFinding]:
    version = str(found.get("python"))[:20]
    if found.get("old"):
        return [missing(host.name, f"Python {version}, expected 3.8 or newer", "name another as `python` of the host")]
    if not found.get("venv"):
        do = "install its package, such as python3-venv, or give `python` of the site an interpreter with the framework"
        return [ok(host.name, f"reached, Python {version}"), missing(host.name, "its Python makes no environments", do)]
    return [ok(host.name, f"reached, Python {version}")]


def _given_python(host: Host, python: str | None, found: Mapping[str, Any]) -> list[SiteFinding]:
    """Return a finding where the site's file names the Python of all nodes: then no environment is made."""
    if python is None:
        return []
    version, why = (printable_text(str(found.get(key)), 200) for key in ("given", "given_why"))
    if not found.get("given"):
        do = "correct `python` in the site's file, or bring that interpreter to the host"
        says = f"the site's `python`, {python}, does not serve: {why}, expected Python 3.8 or newer"
        return [missing(host.name, says, do)]
    return [ok(host.name, f"the site's `python` is Python {version}")]


def interface_findings(subject: str, name: str | None, found: Mapping[str, Any]) -> list[SiteFinding]:
    """Return a finding where the host or the site names an interface for the collectives. found: a host's answer."""
    known = found.get("interfaces")
    if name is None:
        return []
    if not isinstance(known, list):
        return [unknown(subject, f"whether it has the interface {name} cannot be seen")]
    if name not in known:
        has = ", ".join(map(str, known))[:200]
        do = "correct `interface` of the host or of the site"
        return [missing(subject, f"found no interface {name}; it has {has}", do)]
    return [ok(subject, f"it has the interface {name}")]


def folder_finding(subject: str, folder: str, key: str, found: Mapping[str, Any]) -> SiteFinding:
    """Return whether a run may keep its files in the folder that a key of the site names. found: a host's answer."""
    told = found.get("own") if isinstance(found.get("own"), list) else []
    own = [each for each in told or () if isinstance(each, int) and 0 <= each < 2**32]
    if len(own) == 3 and (foreign := not_own(*own)):
        do = f"correct its rights (`chmod 0700 {folder}`), or name another folder as {key}"
        return missing(subject, f"{folder}: {foreign}", do)
    if found.get("writable") is not True:
        return missing(subject, f"{folder} cannot be written: {found.get('why')}", f"correct {key} or its rights")
    free = found.get("free")
    if not isinstance(free, int):
        return unknown(subject, f"{folder} can be written; its free space is not known")
    if not free >= LEAST_BYTES:
        do = f"free some, or name another folder as {key}"
        return missing(subject, f"{folder} has {free / 2**30:.1f} GiB free, expected at least 1", do)
    if not free >= ENVIRONMENT_BYTES:
        needs = "an environment with torch for GPUs needs about 10"
        return unknown(subject, f"{folder} can be written, {free / 2**30:.1f} GiB free; {needs}")
    return ok(subject, f"{folder} can be written, {free / 2**30:.0f} GiB free")


def _clock(host: Host, found: Mapping[str, Any], begin: float, end: float) -> SiteFinding:
    """Return how far the host's clock is off, as far as the answer's way allows to know."""
    apart = max(begin - found["time"], found["time"] - end, 0.0)
    if not apart <= MOST_SECONDS_APART:
        return unknown(host.name, f"its clock is {apart:.0f} s off; runs do not need it", "start its time service")
    return ok(host.name, f"its clock is at most {apart + end - begin:.0f} s off")


def _index(host: Host, found: Mapping[str, Any]) -> SiteFinding:
    index = found.get("index")
    if not isinstance(index, str):
        return unknown(host.name, "it has no pip; packages then have to be carried over", "set LEVELFIELD_WHEELS here")
    return ok(host.name, f"packages come from {SECRET_VALUE.sub(MASK, index)[:200]}")


def _rendezvous(launch: LaunchPlan, hosts: Sequence[Host]) -> list[SiteFinding]:
    """Let the first host listen as a run's first node does, and every host call its address. No process is left."""
    first, word = hosts[0], secrets.token_hex(8)
    given = (word, *map(str, launch.site.ports), str(LISTEN_SECONDS))
    listener = Connection(first.name, ssh_argv(launch, first, [first.python, "-c", _LISTEN, *given]))
    try:
        port = _first_line(listener, launch.site.ssh.connect_seconds + ANSWER_SECONDS)
        if not port.isdecimal():
            why = last_line(listener.complaint) or port or "it told no port"
            says = f"it does not listen for the others: {printable_text(why, 200)}"
            return [missing(first.name, says, "name other `ports` in the site's file, or look at the machine")]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda host: _called(launch, host, first, port, word), hosts))
    finally:
        listener.close_input()
        _until(listener, listener.has_ended, CALL_SECONDS)
        listener.end()


def _first_line(connection: Connection, seconds: float) -> str:
    """Return the first line that a command prints; an empty one where it ends or is silent."""
    parts: list[bytes] = []

    def is_whole() -> bool:
        parts.append(connection.read() or b"")
        return b"\n" in parts[-1] or connection.is_at_end

    _until(connection, is_whole, seconds)
    return b"".join(parts).partition(b"\n")[0].decode(errors="replace").strip()


def _until(connection: Connection, condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        wait_for_output([connection], 0.1)


def _called(launch: LaunchPlan, host: Host, first: Host, port: str, word: str) -> SiteFinding:
    """Return whether a host reaches the first one at the address that a run gives to every rank."""
    argv = ssh_argv(launch, host, [host.python, "-c", _CALL, first.reached_at, port, word, str(CALL_SECONDS)])
    whom = "itself" if host == first else first.name
    try:
        done = completed(argv, launch.site.ssh.connect_seconds + ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return unknown(host.name, f"whether it reaches {whom} at {first.reached_at} is not known: no answer")
    found = answer_of(done.stdout.strip().rpartition("\n")[2], "why", str)
    if found is None:
        said = explained(host.name, done.returncode, done.stderr).removeprefix(f"{host.name}: ")
        return unknown(host.name, f"whether it reaches {whom} at {first.reached_at} is not known: {said}")
    at = ", ".join(str(each) for each in found.get("at") or ())[:100]
    place = f"{first.reached_at}{f' ({at})' if at and at != first.reached_at else ''}, port {port}"
    if not found["why"]:
        return ok(host.name, f"it reaches {whom} at {place}")
    low, high = launch.site.ports
    do = f"correct `address` of {first.name} in the hosts file, or let the nodes reach its ports {low} to {high}"
    return missing(host.name, f"it cannot reach {whom} at {place}: {printable_text(found['why'], 200)}", do)
