"""BMCs: recorded answers of five makers over HTTPS on loopback, a stand-in for ipmitool, and what may be wrong."""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
from levelfield.run import bmc
from levelfield.run.bmc import BmcError, Ipmi, PowerReaders, Redfish, dcmi_power, password_of, power_of
from levelfield.rundir.directory import read_plan
from levelfield.rundir.telemetry_files import read_node_power
from levelfield.specs.base import dump, parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.site import BmcSite, Site

DATA = Path(__file__).parents[1] / "data"
CERTIFICATE = DATA / "bmc.pem"
RECORDED = {name: each for name, each in json.loads((DATA / "bmcs.json").read_text()).items() if name != "about"}
RACKMOUNT = "DMTF public-rackmount1"
SENSOR, POWER = "/redfish/v1/Chassis/1U/Sensors/TotalPower", "/redfish/v1/Chassis/1U/Power"
SECRET = "correct horse"


@dataclass
class Service:
    """A BMC. answers: by path, an object, a status, or bytes. got: the paths that were asked."""

    answers: dict[str, Any] = field(default_factory=dict)
    got: list[str] = field(default_factory=list)
    wait: threading.Event = field(default_factory=threading.Event)
    address: str = ""


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    wanted = "Basic " + base64.b64encode(f"reader:{SECRET}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.got.append(self.path)
            answer = found.answers.get(self.path, 404)
            if self.headers.get("Authorization") != wanted:
                answer = 401
            if answer == "hang":
                found.wait.wait(20)
            status = answer if isinstance(answer, int) else 200
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Location", f"https://{found.address}/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *given: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        server.handle_error = lambda *given: None  # type: ignore[method-assign]  # of a client that went away
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found.address = f"127.0.0.1:{server.server_port}"
        yield found
        found.wait.set()
        server.shutdown()
        thread.join()


def site(service: Service | None = None, **more: Any) -> BmcSite:
    content = {"address": service.address if service else "{host}-bmc", "user": "reader", "ca_file": str(CERTIFICATE)}
    return parse(BmcSite, {**content, "password_variable": "BMC_PASSWORD", **more}, "site")


def opened(service: Service, **more: Any) -> Redfish:
    return Redfish(service.address, site(service, **more), SECRET)


def served(service: Service, name: str = RACKMOUNT, **changed: Any) -> None:
    service.answers = json.loads(json.dumps(RECORDED[name]["paths"])) | changed


@pytest.mark.parametrize("name", RECORDED)
def test_the_power_of_each_recorded_bmc(service: Service, name: str) -> None:
    served(service, name)
    reader = opened(service)
    assert (reader.read().watts, reader.source) == (RECORDED[name]["watts"], RECORDED[name]["read"])


def test_a_sensor_says_when_it_was_read(service: Service) -> None:
    served(service)
    assert opened(service).read().stamp == "2019-08-13T04:14:33+06:00"
    sensor = {"Reading": 300, "ReadingUnits": "W", "AveragingInterval": "PT1M30S"}
    assert power_of(sensor).period_seconds == 90


WRONG: dict[str, tuple[Any, str]] = {
    "milliwatts by name": ({"Reading": 374000, "ReadingUnits": "mW"}, "found a reading in 'mW', expected W"),
    "BTU by name": ({"Reading": 1276, "ReadingUnits": "BTU/h"}, "in 'BTU/h', expected W"),
    "milliwatts by size": (
        {"PowerControl": [{"PowerConsumedWatts": 344e3, "PowerCapacityWatts": 800}]},
        "another unit",
    ),
    "BTU by size": ({"PowerControl": [{"PowerConsumedWatts": 1174, "PowerCapacityWatts": 800}]}, "another unit"),
    "zero": ({"Reading": 0}, "answers 0 W"),
    "negative": ({"Reading": -5}, "answers -5 W"),
    "NaN": ({"Reading": float("nan")}, "found 'nan', expected a number"),
    "infinite": ({"Reading": float("inf")}, "found 'inf', expected a number"),
    "a text": ({"PowerControl": [{"PowerConsumedWatts": "69"}]}, "found '69', expected a number"),
    "true": ({"Reading": True}, "found 'True', expected a number"),
    "null": ({"PowerWatts": {"Reading": None}}, "gives no power reading"),
    "no control": ({"PowerControl": []}, "empty PowerControl"),
    "swapped controls": (
        {"PowerControl": [{"PowerConsumedWatts": 49}, {"PowerConsumedWatts": 263}]},
        "263 W in another",
    ),
    "another resource": ({"Temperatures": []}, "gives no power reading"),
    "a list": ([1], "gives no power reading"),
}


def test_a_wrong_reading_is_none() -> None:
    for name, (resource, said) in WRONG.items():
        with pytest.raises(BmcError, match=said.replace("(", r"\(")):
            print(name, power_of(resource))


# What the service answers at a path, what is said, and whether it is asked again.
FAULTS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "nothing there": ({"/redfish/v1/Chassis": 404}, "answers 404", False),
    "busy": ({"/redfish/v1/Chassis": 503}, "answers 503", False),
    "a redirect": ({"/redfish/v1/Chassis": 301}, "answers 301: redirects are not followed", True),
    "truncated": ({"/redfish/v1/Chassis": b'{"Members": [{"@odata'}, "no JSON", False),
    "a list": ({"/redfish/v1/Chassis": [1]}, "JSON that is no object", False),
    "too long": ({"/redfish/v1/Chassis": b" " * (2**20 + 1)}, "no JSON of at most 1 MiB", False),
    "deep": ({"/redfish/v1/Chassis": b"[" * 100_000}, "no JSON", False),
    "no chassis": ({"/redfish/v1/Chassis": {"Members": []}}, "found chassis none, expected one", True),
    "a link elsewhere": (
        {"/redfish/v1/Chassis": {"Members": [{"@odata.id": "https://example.org/redfish/v1/Chassis/1U"}]}},
        "found chassis none",
        True,
    ),
    "no power": ({SENSOR: 404, POWER: 404, "/redfish/v1/Chassis/1U/EnvironmentMetrics": {}}, "in chassis none", True),
}


def test_what_a_service_does_wrong_is_said_in_a_word(service: Service) -> None:
    for name, (changed, said, is_final) in FAULTS.items():
        served(service, **changed)
        with pytest.raises(BmcError) as caught:
            opened(service)
        assert said in str(caught.value) and caught.value.is_final == is_final, (name, str(caught.value))
        assert service.address not in str(caught.value)
    assert "/elsewhere" not in service.got


def chassis(number: int, systems: int = 1, **more: Any) -> dict[str, Any]:
    links = {"ComputerSystems": [{"@odata.id": f"/redfish/v1/Systems/{number}{n}"} for n in range(systems)]}
    power = {"@odata.id": f"/redfish/v1/Chassis/{number}/Power"}
    return {"Id": str(number), "ChassisType": "RackMount", "Links": links, "Power": power, **more}


def of_chassis(*every: dict[str, Any]) -> dict[str, Any]:
    members = [{"@odata.id": f"/redfish/v1/Chassis/{each['Id']}"} for each in every]
    return {
        "/redfish/v1/Chassis": {"Members": members},
        **{f"/redfish/v1/Chassis/{each['Id']}": each for each in every},
        **{
            f"/redfish/v1/Chassis/{each['Id']}/Power": {"PowerControl": [{"PowerConsumedWatts": 100 * int(each["Id"])}]}
            for each in every
        },
    }


def test_a_chassis_of_several_nodes_has_the_power_of_none(service: Service) -> None:
    service.answers = of_chassis(chassis(1, systems=4))
    with pytest.raises(BmcError, match="chassis 1 holds 4 systems, and its power is not one node's"):
        opened(service)


def test_of_several_chassis_the_whole_one_is_read_or_the_user_names_it(service: Service) -> None:
    service.answers = of_chassis(chassis(1), chassis(2, ChassisType="Module"), chassis(3, systems=0))
    assert opened(service).read().watts == 100
    service.answers = of_chassis(chassis(1), chassis(2))
    with pytest.raises(BmcError, match="in chassis 1, 2, expected one; name it with `chassis`"):
        opened(service)
    assert opened(service, chassis="2").read().watts == 200
    with pytest.raises(BmcError, match="found chassis 1, 2, expected 7"):
        opened(service, chassis="7")


def test_a_wrong_password_is_tried_once(service: Service, run: RunPaths) -> None:
    served(service)
    trace = read_for(run, service, "another horse", 0.4)
    assert trace.error and trace.error.startswith("answers 401: user or password is wrong") and not trace.readings
    assert len(service.got) == 1, "a second try could lock the user out"


def test_a_certificate_is_checked_unless_the_site_says_no(service: Service) -> None:
    served(service)
    with pytest.raises(BmcError, match="certificate not valid"):
        opened(service, ca_file=None)
    assert service.got == [], "the password went nowhere"
    assert opened(service, ca_file=None, verify=False).read().watts == 374


def test_a_closed_port_and_an_unknown_name() -> None:
    with pytest.raises(BmcError, match="the connection was refused"):
        Redfish("127.0.0.1:1", site(), SECRET)
    with pytest.raises(BmcError, match="ca_file cannot be used"):
        Redfish("127.0.0.1:1", site(ca_file="/nowhere.pem"), SECRET)


def read_for(run: RunPaths, service: Service, password: str, seconds: float, **more: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BMC_PASSWORD", password)
        plan = read_plan(run).model_copy(update={"bmc": site(service, seconds=0.1, **more)})
        with PowerReaders(plan, plan.bmc, run):  # type: ignore[arg-type]
            time.sleep(seconds)
    size = run.node_power.stat().st_size
    broken: list[str] = []
    found = read_node_power(run, broken)[0]
    assert not broken and size == run.node_power.stat().st_size
    assert password not in run.node_power.read_text() and service.address not in run.node_power.read_text()
    return found


def test_readings_become_lines_until_the_block_ends(service: Service, run: RunPaths) -> None:
    served(service)
    trace = read_for(run, service, SECRET, 0.5)
    assert len(trace.readings) >= 2 and {each.watts for each in trace.readings} == {374.0}
    assert trace.source == "Redfish Sensor" and trace.error is None
    times = [each.time_ns for each in trace.readings]
    assert times == sorted(times) and abs(trace.readings[-1].wall_ns - time.time_ns()) < 60e9


def test_a_bmc_that_hangs_is_left(service: Service, run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    served(service, **{SENSOR: "hang"})
    monkeypatch.setattr(bmc, "LEAVE_SECONDS", 0.1)
    assert read_for(run, service, SECRET, 0.2).error == "no answer before the end of the training"


def test_a_bmc_that_is_slow_is_asked_again(service: Service, run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmc, "ANSWER_SECONDS", 0.2)
    served(service, **{"/redfish/v1/Chassis": "hang"})
    trace = read_for(run, service, SECRET, 0.7)
    assert trace.error == "no answer within 0.2 s" and len(service.got) > 1


def test_an_answer_that_nobody_foresaw_ends_nothing(service: Service, run: RunPaths) -> None:
    served(service, **{"/redfish/v1/Chassis/1U": {"Id": "1U", "ChassisType": [], "Links": [], "Power": 7}})
    assert "expected one" in (read_for(run, service, SECRET, 0.2).error or "")


DCMI = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 30 Watts
    Maximum during sampling period:                460 Watts
    Average power reading over sample period:      224 Watts
    IPMI timestamp:                           Tue Aug 23 15:32:10 2026
    Sampling period:                          00000005 Seconds.
    Power reading state is:                   activated


"""


def test_what_ipmitool_prints() -> None:
    assert dcmi_power(DCMI) == (220.0, "Tue Aug 23 15:32:10 2026", None)
    assert dcmi_power(DCMI.replace("Aug 23 15:32:10 2026", "Jan  1 00:00:00 1970")).stamp is None
    for changed, said in (
        (DCMI.replace("activated", "deactivated"), "is deactivated, expected activated"),
        (DCMI.replace("220 Watts", "750 BTU/hr"), "in 'BTU/hr', expected Watts"),
        (DCMI.replace("220 Watts", "220000 mW"), "in 'mW', expected Watts"),
        (DCMI.replace("220 Watts", "0 Watts"), "answers 0 W"),
        (DCMI.replace("220 Watts", "-5 Watts"), "printed no power reading"),
        (DCMI.replace("220 Watts", "nan Watts"), "printed no power reading"),
        (DCMI[:30], "printed no power reading"),
        ("", "printed no power reading"),
    ):
        with pytest.raises(BmcError, match=said):
            print(dcmi_power(changed))


@pytest.fixture
def ipmitool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a stand-in for ipmitool into PATH, which keeps its arguments and variables beside itself."""

    def made(body: str) -> None:
        tool = tmp_path / "ipmitool"
        tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv\nenv > {tmp_path}/env\n{body}\n')
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OF_THE_USER", "1")
    return made


def ipmi_site(**more: Any) -> BmcSite:
    return parse(BmcSite, {"protocol": "ipmi", "address": "{host}-bmc", "user": "reader", **more}, "site")


def test_ipmitool_gets_the_password_by_no_argument(ipmitool: Callable[[str], None], tmp_path: Path) -> None:
    ipmitool(f"cat <<'E'{DCMI}E")
    asked = ipmi_site(password_variable="BMC_PASSWORD")
    assert Ipmi("node1-bmc:6230", asked, SECRET).read().watts == 220
    said = (tmp_path / "argv").read_text()
    assert SECRET not in said and "-I lanplus -H node1-bmc -U reader -L USER -E" in said and "-p 6230" in said
    variables = (tmp_path / "env").read_text()
    assert f"IPMI_PASSWORD={SECRET}" in variables and "OF_THE_USER" not in variables
    assert Ipmi(None, parse(BmcSite, {"protocol": "local"}, "site"), "").read().watts == 220
    assert (tmp_path / "argv").read_text() == "dcmi power reading\n" and SECRET not in (tmp_path / "env").read_text()


def test_ipmitool_that_fails_hangs_or_is_missing(
    ipmitool: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Ipmi("node1-bmc", ipmi_site(password_variable="P"), SECRET)
    noise = 'echo "Unable to Get Channel Cipher Suites" >&2; echo "" >&2;'
    ipmitool(f'{noise} echo "Error: Unable to establish IPMI v2 / RMCP+ session with node1-bmc" >&2; exit 1')
    with pytest.raises(BmcError, match=r"ended with 1: Error: Unable to establish .* not asked again") as caught:
        reader.read()
    assert caught.value.is_final and "node1-bmc" not in str(caught.value)
    ipmitool(f"cat <<'E'{DCMI}E")
    assert reader.read().watts == 220
    ipmitool(f'{noise} echo "Error: Unable to establish IPMI v2 / RMCP+ session" >&2; exit 1')
    with pytest.raises(BmcError, match="Unable to establish") as caught:
        reader.read()
    assert not caught.value.is_final, "the password was right a moment ago"
    ipmitool(f'{noise} echo "    DCMI request failed because: Insufficient privilege level (d4)" >&2; exit 1')
    with pytest.raises(BmcError, match="ended with 1: DCMI request failed because: Insufficient privilege") as caught:
        reader.read()
    ipmitool("sleep 20")
    monkeypatch.setattr(bmc, "ANSWER_SECONDS", 0.2)
    with pytest.raises(BmcError, match=r"no answer within 0\.2 s"):
        reader.read()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BmcError, match="cannot be started") as caught:
        Ipmi("node1-bmc", ipmi_site(password_variable="P"), SECRET).read()
    assert caught.value.is_final


def test_the_variable_of_a_password_is_left_to_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", SECRET)
    assert [password_of(site()), password_of(site())] == [SECRET, SECRET]
    assert "BMC_PASSWORD" not in os.environ
    with pytest.raises(UsageError, match="password_variable ABSENT: found no password"):
        password_of(site(password_variable="ABSENT"))


def test_a_file_with_a_password_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "password"
    asked = site(password_variable=None, password_file=str(path))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        password_of(asked)
    path.write_text(f"{SECRET}\n")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="found mode 640, expected 600"):
        password_of(asked)
    path.chmod(0o600)
    assert password_of(asked) == SECRET
    for content in (b"", b"\n", b"two\nlines\n", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"found (no password|bytes that are no text)"):
            password_of(asked)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a password": ({"password": SECRET}, "found a secret in a file that is shared"),
    "no user": ({"user": None}, "expected address or addresses, user, and one of"),
    "two passwords": ({"password_file": "/p"}, "one of password_variable and password_file"),
    "a file that is not used": ({"verify": False}, "ca_file with `verify: false`: expected one of them"),
    "http": ({"seconds": 0}, "found 0, expected at least 0.1"),
    "TLS of IPMI": ({"protocol": "ipmi"}, "ca_file, verify and chassis are of redfish"),
    "an address of this machine": ({"protocol": "local"}, "expected none"),
    "one BMC for two nodes": ({"addresses": {"a": "x", "b": "x"}}, "found x for two nodes"),
}


def test_a_site_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (changed, said) in REFUSED.items():
        with pytest.raises(DocumentError) as caught:
            site(**changed)
        assert said in str(caught.value) and SECRET not in str(caught.value), (name, str(caught.value))
    path = tmp_path / "site.yaml"
    path.write_text("schema: levelfield.site/1\nbmc: {address: a, user: b, password_variable: ABSENT}\n")
    assert main(["--case", "gpt2_small:torch:cpu:1:1", "--site", str(path)]) == 2
    assert "password_variable ABSENT: found no password, expected one line" in capsys.readouterr().err
    path.write_text("schema: levelfield.site/1\nlauncher: slurm\nbmc: {protocol: local}\n")
    assert main(["--case", "gpt2_small:torch:cpu:2:1", "--site", str(path), "--dry-run"]) == 2
    assert "bmc.protocol: found local with launcher slurm" in capsys.readouterr().err


def test_no_plan_that_is_written_says_where_the_bmcs_are(run: RunPaths) -> None:
    plan = read_plan(run).model_copy(update={"bmc": site()})
    assert "reader" not in dump(plan) and "-bmc" not in dump(plan) and "-bmc" not in repr(plan)
    assert parse(Site, {"schema": "levelfield.site/1", "bmc": {"protocol": "local"}}, "site").bmc == BmcSite(
        protocol="local"
    )
