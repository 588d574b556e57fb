"""The site's command for node power: what it prints, what may be wrong with it, and the lines of a run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import DocumentError
from levelfield.run import node_power
from levelfield.run.node_power import NodePowerError, NodePowerSampler, parse_watts, run_power_command
from levelfield.rundir.directory import read_plan
from levelfield.rundir.telemetry_files import read_node_power
from levelfield.specs.base import dump, parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import NodePowerPlan, NodePowerSite


def site(command: str, **more: Any) -> NodePowerSite:
    return parse(NodePowerSite, {"command": command, "source": "meter", "seconds": 0.1, **more}, "site")


@pytest.mark.parametrize(
    ("printed", "is_alone", "watts"),
    [("  512.5\n\n", True, 512.5), ("b 100\na 200\nc 300\n", False, 200), ("b 100\na 200\n", True, 200)],
)
def test_one_number_or_the_line_of_the_host(printed: str, is_alone: bool, watts: float) -> None:
    assert parse_watts(printed, "a", is_alone) == watts


# What is printed for host a, whether a is the only node, and a part of the reason.
UNUSABLE = {
    "nothing": ("", True, "printed 0 line(s); expected one line 'a WATTS' or one number"),
    "text": ("no reading", True, "printed 1 line(s), the first 'no reading'"),
    "a unit": ("220 Watts", True, "the first '220 Watts'"),
    "a word": ("idle", True, "printed 'idle', expected a positive number of watts"),
    "negative": ("-5", True, "printed '-5'"),
    "zero": ("0", True, "printed '0'"),
    "NaN": ("nan", True, "printed 'nan'"),
    "infinite": ("a inf", False, "printed 'inf'"),
    "two numbers": ("1\n2", True, "printed 2 line(s), the first '1'"),
    "one number for several nodes": ("220", False, "expected one line 'a WATTS'"),
    "another host": ("b 220", True, "the first 'b 220'"),
    "a longer name": ("ab 220", True, "the first 'ab 220'"),
    "the host twice": ("a 220\na 221", False, "printed 2 line(s)"),
    "swapped columns": ("220 a", True, "the first '220 a'"),
}


def test_what_is_no_reading_has_a_reason() -> None:
    for name, (printed, is_alone, reason) in UNUSABLE.items():
        with pytest.raises(NodePowerError) as caught:
            parse_watts(printed, "a", is_alone)
        assert reason in str(caught.value), (name, str(caught.value))


def test_the_command_is_a_line_for_sh_in_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    command = site("echo {host}-bmc $LC_ALL | awk '{print $1, $2}'")
    assert run_power_command(command, "node-1.x") == "node-1.x-bmc C\n"


def test_a_command_that_fails_has_a_reason() -> None:
    for command, reason in {
        "echo 220; echo 'no session' >&2; exit 3": "failed: sh ended with exit code 3: no session",
        "no-such-tool": "exit code 127",
        "(echo 'no session' >&2; exit 1) | cat": "printed nothing: no session",
        "printf 'https:%s' '//me:horse@bmc refused' >&2; exit 1": "(masked)",
    }.items():
        with pytest.raises(NodePowerError) as caught:
            run_power_command(site(command), "a")
        assert reason in str(caught.value) and "horse" not in str(caught.value), (command, str(caught.value))


def test_a_command_that_hangs_is_ended_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_power, "COMMAND_SECONDS", 0.2)
    with pytest.raises(NodePowerError, match=r"did not answer within 0\.2 s"):
        run_power_command(site("sleep 20"), "a")


def test_a_host_name_is_never_code(tmp_path: Path) -> None:
    for host in (f"a; touch {tmp_path}/made", "$(id)", "-rf", "a'b", "a b", ""):
        with pytest.raises(NodePowerError, match=re.escape(repr(host[:40]))):
            run_power_command(site("echo '{host}'"), host)
    assert not any(tmp_path.iterdir())


def sampled(run: RunPaths, command: str, seconds: float, nodes: int = 1) -> dict[int, Any]:
    plan = read_plan(run)
    content = json.loads(dump(plan))
    if nodes > 1:
        hosts = [{"name": f"gpu{node}"} for node in range(nodes)]
        content |= {"launch": {"launcher": "ssh", "site": {}, "hosts": hosts}}
        content["hardware"] |= {"nodes": nodes, "devices_per_node": 1}
    plan = parse(Plan, content, "plan")
    with NodePowerSampler(plan, site(command), run):
        time.sleep(seconds)
    size, broken = run.node_power.stat().st_size, list[str]()
    traces = read_node_power(run, broken)
    time.sleep(0.1)
    assert not broken and size == run.node_power.stat().st_size, "the file is sealed"
    return traces


def test_readings_become_lines_until_the_block_ends(run: RunPaths) -> None:
    trace = sampled(run, "sleep 0.01; echo 374", 0.5)[0]
    assert len(trace.readings) >= 2 and {reading.watts for reading in trace.readings} == {374.0}
    assert trace.source == "meter" and trace.error is None
    times = [reading.time_ns for reading in trace.readings]
    assert times == sorted(times) and abs(trace.readings[-1].epoch_ns - time.time_ns()) < 60e9
    assert abs(trace.readings[-1].time_ns - time.monotonic_ns()) < 60e9
    assert "echo" not in run.node_power.read_text()


def test_one_command_for_all_nodes_and_one_for_each(run: RunPaths) -> None:
    traces = sampled(run, "echo gpu1 220; echo gpu0 110; echo other 1", 0.2, nodes=2)
    assert [{reading.watts for reading in traces[node].readings} for node in (0, 1)] == [{110.0}, {220.0}]
    times = [[reading.time_ns for reading in traces[node].readings] for node in (0, 1)]
    assert times[0] == times[1], "the readings of one start have one time"
    run.node_power.unlink()
    traces = sampled(run, "test {host} = gpu0 && echo 110 || echo 220", 0.2, nodes=2)
    assert [{reading.watts for reading in traces[node].readings} for node in (0, 1)] == [{110.0}, {220.0}]
    run.node_power.unlink()
    traces = sampled(run, "echo gpu1 220", 0.2, nodes=2)
    assert traces[1].readings and not traces[0].readings and "'gpu0 WATTS'" in str(traces[0].error)


def test_a_command_that_never_worked_runs_three_times(run: RunPaths, tmp_path: Path) -> None:
    trace = sampled(run, f"echo x >> {tmp_path}/starts; exit 1", 0.8)[0]
    assert (tmp_path / "starts").read_text().count("x") == 3 and "code 1" in str(trace.error)


def test_one_that_worked_runs_again_after_failures(run: RunPaths, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    trace = sampled(run, f"echo x >> {starts}; test $(wc -l < {starts}) = 1 && echo 220", 1.0)[0]
    assert len(trace.readings) == 1 and starts.read_text().count("x") > 4


def test_a_command_that_hangs_is_ended(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_power, "END_WAIT_SECONDS", 0.1)
    begin = time.monotonic()
    trace = sampled(run, "sleep 60; echo 220", 0.2)[0]
    assert "no answer" in str(trace.error) and not trace.readings
    assert time.monotonic() - begin < 30


def test_a_site_that_is_wrong_is_refused() -> None:
    for changed, reason in (
        ({"command": ""}, "command"),
        ({"source": ""}, "source"),
        ({"seconds": 0}, "found 0, expected at least 0.1"),
        ({"command": "curl https://me:horse@bmc/power"}, "found a secret in a file that is shared"),
        ({"command": "tool --password=horse-horse"}, "found a secret"),
    ):
        with pytest.raises(DocumentError) as caught:
            parse(NodePowerSite, {"command": "c", "source": "s", **changed}, "site")
        assert reason in str(caught.value), (changed, str(caught.value))


def test_no_plan_that_is_written_has_the_command(run: RunPaths) -> None:
    plan = read_plan(run).model_copy(update={"node_power": NodePowerPlan(seconds=1, reader=site("my-command"))})
    assert "my-command" not in dump(plan) and "my-command" not in repr(plan)
    earlier = {"protocol": "redfish", "seconds": 2.0, "verify": False}
    assert parse(NodePowerPlan, earlier, "plan").model_dump() == earlier


def test_site_check_runs_the_command_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        f"schema: levelfield.site/1\nnode_power: {{command: 'echo x >> {tmp_path}/n; echo 374', source: m}}\n"
    )
    assert main(["site", "check", "--site", str(path)]) == 0
    assert "374 W" in capsys.readouterr().out and (tmp_path / "n").read_text() == "x\n"
    path.write_text("schema: levelfield.site/1\nnode_power: {command: 'exit 5', source: m}\n")
    assert main(["site", "check", "--site", str(path)]) == 4
    assert "code 5" in " ".join(capsys.readouterr().out.split())
