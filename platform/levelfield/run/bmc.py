"""The power of whole nodes while a run trains, from their BMCs, into node_power.jsonl. See docs/node-power.md.

Redfish is read over HTTPS and IPMI by `ipmitool`. Each node has a thread; what goes wrong in it becomes a line of the
file and never stops the run. No line has an address, a user or a password.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import platform
import re
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import levelfield
from levelfield.errors import UsageError
from levelfield.node.bounded_command import completed, end_tools
from levelfield.node.regular_files import read_regular
from levelfield.run.site_checks import SiteFinding, missing, ok
from levelfield.rundir.event_lines import listed, mapping
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import BmcSite

NO_BMC = {"LEVELFIELD_BMC": "none"}  # of the environment: a run reads no BMC, whatever the site's file says
ANSWER_SECONDS = 10.0
LEAVE_SECONDS = 4.0  # the longest wait for the last answer, after the training
MOST_BYTES = 2**20  # of an answer
MOST_CHASSIS = 64
_LONGEST_PASSWORD = 1024
_ROOT = "/redfish/v1/"
# Chassis of a node's parts. Their power is not the node's.
_PARTS = ("Module", "Component", "Card", "Cartridge", "StorageEnclosure", "Zone", "Sled")
_DURATION = re.compile(r"PT(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")
_DCMI = re.compile(r"^\s*(Instantaneous power reading|IPMI timestamp|Power reading state is):\s*(\S.*?)\s*$", re.M)
_taken: dict[str, str] = {}  # passwords by the variable that held them


class BmcError(Exception):
    """Why a BMC gave no reading. is_final: asking again does not help, or locks the user out."""

    def __init__(self, said: str, is_final: bool = False) -> None:
        super().__init__(said)
        self.is_final = is_final


class PowerAnswer(NamedTuple):
    """One answer. stamp: when the BMC made it, by the BMC. period_seconds: over which it is an average, where said."""

    watts: float
    stamp: str | None = None
    period_seconds: float | None = None


def password_of(site: BmcSite) -> str:
    """Return the password of a site's BMCs. Its variable is removed, so that no training inherits it.

    Raises UsageError where there is none, and for a file that others may read.
    """
    if site.password_variable:
        if site.password_variable in os.environ:
            _taken[site.password_variable] = os.environ.pop(site.password_variable)
        return _checked(_taken.get(site.password_variable, ""), f"password_variable {site.password_variable}")
    path = Path(str(site.password_file))
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise UsageError(f"bmc: password_file {path}: found mode {mode:03o}, expected 600; run chmod 600 {path}")
        return _checked(read_regular(path, largest=_LONGEST_PASSWORD).decode(), f"password_file {path}")
    except UnicodeDecodeError:
        raise UsageError(f"bmc: password_file {path}: found bytes that are no text") from None
    except OSError as error:
        raise UsageError(f"bmc: password_file {path}: cannot be read: {error.strerror}") from None


def _checked(text: str, origin: str) -> str:
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or not password.isprintable():
        raise UsageError(f"bmc: {origin}: found no password, expected one line of text")
    return password


def power_of(resource: Any) -> PowerAnswer:
    """Return the power in a Redfish resource: a Sensor, EnvironmentMetrics or Power. Raises BmcError without one."""
    found = mapping(resource)
    if "PowerControl" in found:
        return PowerAnswer(_consumed([mapping(each) for each in listed(found["PowerControl"])]))
    reading = mapping(found.get("PowerWatts")) if "PowerWatts" in found else found
    if (unit := reading.get("ReadingUnits", "W")) != "W":
        raise BmcError(f"found a reading in {str(unit)[:20]!r}, expected W")
    time_of = reading.get("ReadingTime")
    return PowerAnswer(
        _watts(reading.get("Reading")), str(time_of) if time_of else None, _seconds(reading.get("AveragingInterval"))
    )


def _consumed(controls: list[dict[str, Any]]) -> float:
    """Return the watts of the first control, which is the whole: others are parts of it."""
    if not controls:
        raise BmcError("found an empty PowerControl, expected the node's")
    watts, capacity = _watts(controls[0].get("PowerConsumedWatts")), controls[0].get("PowerCapacityWatts")
    if capacity is not None and _is_number(capacity) and 0 < capacity < watts:
        raise BmcError(f"found {watts:g} W consumed of {capacity:g} W at most: the reading has another unit")
    parts = [each["PowerConsumedWatts"] for each in controls[1:] if _is_number(each.get("PowerConsumedWatts"))]
    if any(part > watts for part in parts):
        raise BmcError(f"found {watts:g} W in the first of {len(controls)} controls and {max(parts):g} W in another")
    return watts


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _watts(value: Any) -> float:
    if value is None:
        raise BmcError("gives no power reading")
    if not _is_number(value) or not math.isfinite(value):
        raise BmcError(f"found {str(value)[:20]!r}, expected a number of watts")
    if not value > 0:
        raise BmcError(f"answers {value:g} W, which no running node uses: it does not measure")
    return float(value)


def _seconds(duration: Any) -> float | None:
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    return 60 * float(match[1] or 0) + float(match[2] or 0) if match and match.group(1, 2) != (None, None) else None


def dcmi_power(printed: str) -> PowerAnswer:
    """Return the power that `ipmitool dcmi power reading` printed. Raises BmcError without one."""
    found = dict(_DCMI.findall(printed))
    number, _, unit = found.get("Instantaneous power reading", "").partition(" ")
    if (state := found.get("Power reading state is", "activated")) != "activated":
        raise BmcError(f"its power reading is {state[:20]}, expected activated")
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise BmcError("ipmitool printed no power reading")
    if unit.strip() != "Watts":
        raise BmcError(f"found a reading in {unit.strip()[:20]!r}, expected Watts")
    stamp = found.get("IPMI timestamp")
    return PowerAnswer(_watts(int(number)), None if stamp is None or "1970" in stamp else stamp)  # 1970: no clock


class Redfish:
    """A BMC's Redfish service. Redirects are not followed, proxies not used, and only the BMC itself is asked."""

    def __init__(self, address: str, site: BmcSite, password: str) -> None:
        self._site = site
        try:
            context = ssl.create_default_context()
            if site.ca_file:
                context.load_verify_locations(site.ca_file)
        except OSError as error:
            raise BmcError(f"ca_file cannot be used: {error.strerror or type(error).__name__}", True) from None
        if not site.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(address, timeout=ANSWER_SECONDS, context=context)
        login = base64.b64encode(f"{site.user}:{password}".encode()).decode()
        agent = f"levelfield/{levelfield.__version__}"
        self._headers = {"Authorization": f"Basic {login}", "Accept": "application/json", "User-Agent": agent}
        self._place, self.source = self._found()

    def read(self) -> PowerAnswer:
        return power_of(self._get(self._place))

    def _get(self, path: str) -> dict[str, Any]:
        """Return the object at a path of the BMC. Raises BmcError."""
        try:
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
        except Exception as error:  # of the network, of TLS or of HTTP; its text may have the address
            self._connection.close()
            raise _unreachable(error) from None
        if answer.status != http.HTTPStatus.OK:
            self._connection.close()
            raise _refused(answer.status)
        try:
            if len(content) > MOST_BYTES:
                raise ValueError
            found = json.loads(content)
        except (ValueError, RecursionError):
            self._connection.close()
            raise BmcError("answers what is no JSON of at most 1 MiB") from None
        if not isinstance(found, dict):
            raise BmcError("answers JSON that is no object")
        return found

    def _found(self) -> tuple[str, str]:
        """Return the path of the node's power and its kind. Raises BmcError where it cannot be told which it is."""
        links = [_link(each) for each in listed(self._get(f"{_ROOT}Chassis").get("Members"))]
        every = [self._get(link) for link in links[:MOST_CHASSIS] if link]
        named = [c for c in every if self._site.chassis in (None, str(c.get("Id")))]
        if not named:
            ids = ", ".join(str(c.get("Id"))[:40] for c in every) or "none"
            raise BmcError(f"found chassis {ids}, expected {self._site.chassis or 'one'}", True)
        readable = [(c, place) for c in named if (place := self._readable(c))]
        whole = [each for each in readable if _is_whole(each[0])] if len(readable) > 1 else readable
        if len(whole) != 1:
            ids = ", ".join(str(c.get("Id"))[:40] for c, _ in whole or readable) or "none"
            raise BmcError(f"found a power reading in chassis {ids}, expected one; name it with `chassis`", True)
        (chassis, place), systems = whole[0], listed(mapping(whole[0][0].get("Links")).get("ComputerSystems"))
        if len(systems) > 1:
            held = f"chassis {str(chassis.get('Id'))[:40]} holds {len(systems)} systems"
            raise BmcError(f"{held}, and its power is not one node's", True)
        return place

    def _readable(self, chassis: dict[str, Any]) -> tuple[str, str] | None:
        """Return where a chassis has a power reading: in the sensor behind its metrics, in these, or in its Power."""
        for path, kind in self._places(chassis):
            try:
                power_of(self._get(path))
            except BmcError as error:
                if error.is_final:
                    raise
                continue
            return path, f"Redfish {kind}"
        return None

    def _places(self, chassis: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if metrics := _link(chassis.get("EnvironmentMetrics")):
            with suppress(BmcError):
                behind = mapping(self._get(metrics).get("PowerWatts")).get("DataSourceUri")
                if sensor := _link({"@odata.id": behind}):
                    yield sensor, "Sensor"
            yield metrics, "EnvironmentMetrics"
        if power := _link(chassis.get("Power")):
            yield power, "Power"


def _link(value: Any) -> str | None:
    """Return a link's path on the BMC; None for what is none."""
    found = mapping(value).get("@odata.id")
    return found if isinstance(found, str) and re.fullmatch(r"/redfish/v1/[!-~]{1,300}", found) else None


def _is_whole(chassis: dict[str, Any]) -> bool:
    links = mapping(chassis.get("Links"))
    return bool(links.get("ComputerSystems")) and chassis.get("ChassisType") not in _PARTS


def _unreachable(error: Exception) -> BmcError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return BmcError(f"certificate not valid ({error.verify_message}); give ca_file, or `verify: false`", True)
    known = {
        TimeoutError: f"no answer within {ANSWER_SECONDS:g} s",
        ConnectionRefusedError: "the connection was refused",
        socket.gaierror: "the name is not known",
    }
    return BmcError(next((said for kind, said in known.items() if isinstance(error, kind)), type(error).__name__))


def _refused(status: int) -> BmcError:
    if status in (401, 403):
        return BmcError(f"answers {status}: user or password is wrong, or the user may not read; not asked again", True)
    if 300 <= status < 400:
        return BmcError(f"answers {status}: redirects are not followed; give the address that it leads to", True)
    return BmcError(f"answers {status}")


class Ipmi:
    """A BMC that ipmitool asks: over the network, or this machine's own. The password is in no command."""

    def __init__(self, address: str | None, site: BmcSite, password: str) -> None:
        host, _, port = (address or "").rpartition(":") if re.search(r"[^:]:\d+$", address or "") else (address, "", "")
        remote = ("-I", "lanplus", "-H", str(host), "-U", str(site.user), "-L", "USER", "-E", "-N", "2", "-R", "2")
        place = (*remote, *(("-p", port) if port else ())) if address else ()
        self._host = host
        self._argv = ("ipmitool", *place, "dcmi", "power", "reading")
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        if address:  # ipmitool reads the first of these two that is there
            self._environment |= dict.fromkeys(("IPMITOOL_PASSWORD", "IPMI_PASSWORD"), password)
        self._has_answered = False
        self.source = "ipmitool dcmi power reading" + ("" if address else " of this machine")

    def read(self) -> PowerAnswer:
        try:
            found = completed(self._argv, ANSWER_SECONDS, self._environment)
        except subprocess.TimeoutExpired:
            raise BmcError(f"ipmitool gave no answer within {ANSWER_SECONDS:g} s") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise BmcError(f"ipmitool cannot be started: {getattr(error, 'strerror', None)}", True) from None
        if found.returncode:
            lines = [line.strip() for line in found.stderr.splitlines() if line.strip()] or ["it printed nothing"]
            # A wrong password and a BMC that is silent look the same; one that has answered knows the password.
            is_final = not self._has_answered and "session" in lines[-1]
            once = "; not asked again, as a wrong password may lock the user out" if is_final else ""
            said = lines[-1].replace(self._host, "the BMC") if self._host else lines[-1]
            raise BmcError(f"ipmitool ended with {found.returncode}: {said[:120]}{once}", is_final)
        self._has_answered = True
        return dcmi_power(found.stdout)


def reader_of(host: str, site: BmcSite) -> Redfish | Ipmi:
    """Return what reads the BMC of a node. Raises BmcError where it cannot."""
    if site.protocol == "local":
        return Ipmi(None, site, "")
    address = site.address_of(host)
    if address is None:
        raise BmcError("the site's file has no address of this node's BMC", True)
    return (Redfish if site.protocol == "redfish" else Ipmi)(address, site, password_of(site))


def bmc_findings(site: BmcSite, hosts: Sequence[str]) -> Iterator[SiteFinding]:
    """Read the BMC of each host once and return what it said."""
    for host in hosts:
        try:
            reader = reader_of(host, site)
            yield ok(f"BMC of {host}", f"{reader.read().watts:g} W by {reader.source}")
        except BmcError as error:
            yield missing(f"BMC of {host}", str(error), "mend `bmc` in the site's file; runs go on without node power")


def nodes_read(plan: Plan, paths: RunPaths) -> AbstractContextManager[object]:
    """Return what reads the power of the plan's nodes during a block; nothing where the site's file has no BMC."""
    return nullcontext() if plan.bmc is None else PowerReaders(plan, plan.bmc, paths)


class PowerReaders:
    """The threads that read, one for each machine of a run. The block does not wait for a first answer."""

    def __init__(self, plan: Plan, site: BmcSite, paths: RunPaths) -> None:
        self._plan, self._site, self._paths = plan, site, paths
        self._stop, self._writing, self._has_left = threading.Event(), threading.Lock(), False
        nodes = range(plan.hardware.nodes if plan.launch else 1)
        self._threads = [threading.Thread(target=self._read, args=(n,), daemon=True, name=f"bmc{n}") for n in nodes]

    def __enter__(self) -> PowerReaders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for the last readings. A BMC that hangs is left after a while, and what it answers later is dropped."""
        self._stop.set()
        deadline = time.monotonic() + LEAVE_SECONDS
        for node, thread in enumerate(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._write(node, error="no answer before the end of the training")
        with self._writing:
            self._has_left = True  # the file is sealed after this
        for thread in self._threads:
            if thread.is_alive():
                end_tools(thread.ident or 0)

    def _read(self, node: int) -> None:
        """Read until the block ends, and once after that."""
        reader, is_last = None, False
        while not is_last:
            is_last, before = self._stop.is_set(), time.monotonic_ns()
            try:
                reader = reader or self._opened(node)
                if reader:
                    answer, begun = reader, time.monotonic_ns()
                    self._write(node, begun, **_fields(answer.read()))
            except BmcError as error:
                self._write(node, error=str(error))
                if error.is_final:
                    return
            except Exception as error:  # an answer of a shape that nobody foresaw
                self._write(node, error=f"its answer cannot be read ({type(error).__name__})")
            self._stop.wait(max(0.0, self._site.seconds - (time.monotonic_ns() - before) / 1e9))

    def _opened(self, node: int) -> Redfish | Ipmi | None:
        """Return the node's reader; None while the engine has not said which machine the node is."""
        host = _host(self._plan, self._paths, node)
        reader = reader_of(host, self._site) if host else None
        if reader:
            self._write(node, source=reader.source)
        return reader

    def _write(self, node: int, begun_ns: int | None = None, **content: Any) -> None:
        """Write a line. Its time is the middle of the reading, on the clock of this machine's events."""
        now, wall = time.monotonic_ns(), time.time_ns()
        middle = now if begun_ns is None else (begun_ns + now) // 2
        line = {"time_ns": middle, "wall_ns": wall - (now - middle), "node": node, **content}
        with self._writing, suppress(OSError):  # of a full disk, which the run's own files report
            if not self._has_left:
                with self._paths.node_power.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")


def _fields(answer: PowerAnswer) -> dict[str, Any]:
    return {name: value for name, value in answer._asdict().items() if value is not None}


def _host(plan: Plan, paths: RunPaths, node: int) -> str | None:
    """Return the name of a node's machine: of this one, by the hosts file, or by what the node's agent wrote."""
    if plan.launch is None:
        return platform.node()
    if plan.launch.hosts:
        return plan.launch.hosts[node].name
    with suppress(OSError, ValueError):
        found = mapping(json.loads(read_regular(paths.node_facts(node)))).get("hostname")
        return str(found) if found else None
    return None
