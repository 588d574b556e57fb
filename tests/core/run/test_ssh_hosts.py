"""Many hosts by ssh: how many start at once, who is tried again, who is named, and what has a limit.

A shell script is in place of ssh. The hosts are this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import NodesNotReady
from levelfield.node import peer_calls
from levelfield.run.launchers.ssh import connection, host_tasks, ssh_setup
from levelfield.run.launchers.ssh.checks import ssh_findings
from levelfield.run.launchers.ssh.connection import Connection
from levelfield.run.launchers.ssh.peer_paths import find_peer_paths, path_problems, require_peer_paths
from levelfield.run.launchers.ssh.ssh_setup import prepare_nodes
from levelfield.specs.plan import Plan
from levelfield.specs.site import Host, LaunchPlan, Site
from levelfield.testing.rehearsal import DRILL_FOLDER
from plans import make_plan
from stand_ins import stand_in

Quiet = Callable[[str], None]
HOST = (
    'for last; do host=$previous; previous=$last; done; case " $* " in *" -G "*) cat {folder}/settings; exit;; esac\n'
)
READY = """echo '{"ready": {"environment": "3.11.1"}}'; exec sleep 600"""
REFUSED = "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255"


def quiet(sentence: str) -> None: ...


def launch_by(script: str, folder: Path, names: list[str], **site: object) -> LaunchPlan:
    """Return hosts of these names, all reached by the script. Its variable `host` is the host's name."""
    (folder / "settings").write_text("user me\n")
    command = str(stand_in(folder / "ssh", HOST.format(folder=folder) + script))
    content = {"ssh": {"command": [command], "folder": str(folder / "node"), "connect_seconds": 1}, **site}
    hosts = tuple(Host(name=name) for name in names)
    return LaunchPlan(launcher="ssh", site=Site.model_validate(content), hosts=hosts)


def plan_by(script: str, folder: Path, names: list[str]) -> Plan:
    registry = Registry([DRILL_FOLDER, DRILL_FOLDER / "hosts"])
    plan = make_plan(registry, f"drill:drill:drill:{len(names)}:1", scale="smoke", may_lack_hardware=True)
    return plan.model_copy(update={"launch": launch_by(script, folder, names)})


def not_ready(plan: Plan, say: Quiet = quiet) -> NodesNotReady:
    with pytest.raises(NodesNotReady) as error:
        prepare_nodes(plan, say)
    return error.value


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(ssh_setup, "SETTLE_SECONDS", 0.3)


def test_no_more_log_in_at_once_than_a_bastion_takes(tmp_path: Path) -> None:
    """Its sshd may drop the tenth that has not logged in yet (MaxStartups). None is dropped, and all are asked."""
    (tmp_path / "logins").mkdir()
    script = f"""
cd {tmp_path}/logins; touch $$
[ $(ls | wc -l) -le 9 ] || touch ../dropped
sleep 0.2; rm $$
echo 'No route to host' >&2; exit 255
"""
    findings = ssh_findings(launch_by(script, tmp_path, [f"h{k}" for k in range(12)]), quiet)
    unreachable = {finding.subject for finding in findings if "it cannot be reached" in finding.says}
    assert len(unreachable) == 12 and not (tmp_path / "dropped").exists()


def test_a_connection_that_is_dropped_before_its_login_is_tried_again_with_all_that_was_sent(tmp_path: Path) -> None:
    count = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) -gt 3 ]"
    script = stand_in(tmp_path / "ssh", f"{count} || {{ {REFUSED}; }}\nexec cat")
    tried = Connection("h1", [str(script), "h1", "command"])
    tried.send(b"first ")
    received, deadline = b"", time.monotonic() + 20
    while received != b"first second" and time.monotonic() < deadline:
        part = tried.read()
        assert part is not None or not tried.has_ended(), tried.failure()
        received += part or b""
        if tried.seconds_since_start() and received == b"first ":
            tried.send(b"second")
        tried.flush()
        time.sleep(0.01)
    assert received == b"first second" and (tmp_path / "tries").read_text() == "x\n" * 4
    tried.end()


def test_what_is_dropped_at_every_try_is_named_with_what_to_raise(tmp_path: Path) -> None:
    error = not_ready(plan_by(f"echo >> {tmp_path}/tries; {REFUSED}", tmp_path, ["h1"]))
    assert error.cause == "unreachable" and "raise MaxStartups" in str(error)
    assert f"at each of {connection.MAX_TRIES} tries" in str(error)
    assert len((tmp_path / "tries").read_text()) == connection.MAX_TRIES


def test_a_refusal_that_no_try_changes_is_no_reason_for_a_second_one(tmp_path: Path) -> None:
    error = not_ready(plan_by(f"echo >> {tmp_path}/tries; echo 'Permission denied' >&2; exit 255", tmp_path, ["h1"]))
    assert "permission denied" in str(error) and len((tmp_path / "tries").read_text()) == 1


def test_all_hosts_that_fail_are_named(tmp_path: Path) -> None:
    script = f"case $host in h2|h3|h4) echo 'No route to host' >&2; exit 255;; esac\n{READY}"
    error = not_ready(plan_by(script, tmp_path, ["h1", "h2", "h3", "h4"]))
    assert str(error).startswith("h2: it cannot be reached") and str(error).endswith("also not ready: h3, h4")
    assert [(end.node_rank, end.name, end.word) for end in error.nodes] == [
        (1, "h2", "unreachable"), (2, "h3", "unreachable"), (3, "h4", "unreachable"),
    ]  # fmt: skip


def test_all_hosts_with_another_python_are_named(tmp_path: Path) -> None:
    script = "case $host in h3|h4) " + READY.replace("3.11", "3.9").replace("; exec", "\nexec") + f";; esac\n{READY}"
    error = not_ready(plan_by(script, tmp_path, ["h1", "h2", "h3", "h4"]))
    assert error.cause == "node-differs" and str(error).endswith("the same; also not ready: h4")


@pytest.mark.parametrize("script", ["exec sleep 600", "exec >&-; exec sleep 600", "exec >&- 2>&-; exec sleep 600"])
def test_a_host_that_runs_no_command_has_a_limit_and_its_setting_is_named(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `SessionType none` in ssh_config: ssh logs in, and nothing more happens."""
    for module in (ssh_setup, host_tasks):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(host_tasks, "REPORT_SECONDS", 0.2)
    plan, sentences = plan_by(script, tmp_path, ["h1"]), list[str]()
    (tmp_path / "settings").write_text("user me\nsessiontype none\n")
    error = not_ready(plan, sentences.append)
    expected = "h1: no answer within 1.5 s; ssh_config sets `sessiontype none` for it: leave that out for this host"
    assert (error.cause, str(error)) == ("unreachable", expected)
    assert sentences == ["the nodes are prepared: waiting for h1 (at most 1.5 s each)"]
    assert plan.launch
    (finding,) = ssh_findings(plan.launch, sentences.append)
    assert finding.word == "missing" and f"h1: {finding.says}" == expected
    assert sentences[-1] == "the hosts are probed: waiting for h1 (at most 1.5 s each)"


def test_an_ssh_without_input_is_a_sentence(tmp_path: Path) -> None:
    """As with `StdinNull yes` in ssh_config."""
    plan = plan_by('exec sh -c "$last" </dev/null', tmp_path, ["h1"])
    (tmp_path / "settings").write_text("stdinnull yes\n")
    message = str(not_ready(plan))
    assert message.startswith("h1: its command got no standard input from ssh") and "`stdinnull yes`" in message
    assert plan.launch
    (finding,) = ssh_findings(plan.launch, quiet)
    assert finding.word == "missing" and f"h1: {finding.says}" == message


def test_hosts_that_reach_each_other_have_no_problem(tmp_path: Path) -> None:
    launch = launch_by('exec sh -c "$last"', tmp_path, ["localhost", "ip6-localhost"], interface="lo")
    launch = launch.model_copy(update={"hosts": (launch.hosts[0], Host(name="two", address="127.0.0.1"))})
    paths = find_peer_paths(launch, launch.hosts, quiet)
    assert [(found.problem, found.interface, found.unreached) for found in paths] == [(None, "lo", ())] * 2
    assert all(found.rendezvous.startswith("localhost, port ") for found in paths)
    require_peer_paths(launch, quiet)


def test_a_host_that_leads_to_itself_or_prints_something_else_is_named(tmp_path: Path) -> None:
    script = 'case $host in loud) echo hello; exec sleep 600;; esac\nexec sh -c "$last"'
    launch = launch_by(script, tmp_path, ["localhost", "loud", "three"])
    paths = find_peer_paths(launch, launch.hosts, quiet)
    problems = [path_problems(launch, found, launch.hosts[0]) for found in paths]
    assert "the name loud does not resolve here" in problems[0][0][0]
    assert problems[1][0][0] == "it printed 'hello', expected an answer as JSON"
    assert "localhost (127.0.0.1) is a loopback address here" in problems[2][0][0]
    with pytest.raises(NodesNotReady, match=r"^localhost: the name loud .*; likewise loud, three; correct") as error:
        require_peer_paths(launch, quiet)
    assert error.value.cause == "unreachable" and len(error.value.nodes) == 3


def test_who_is_not_reached_is_named_with_the_address_and_the_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program tells a port that nobody listens on, as behind a firewall."""
    program = Path(str(peer_calls.__file__)).read_text()
    (tmp_path / "closed.py").write_text(program.replace("port=numbers[0],", "port=1,"))
    monkeypatch.setattr(peer_calls, "__file__", str(tmp_path / "closed.py"))
    launch = launch_by('exec sh -c "$last"', tmp_path, ["one", "two"], interface="lo")
    first = Host(name="one", address="127.0.0.1")
    launch = launch.model_copy(update={"hosts": (first, Host(name="two", address="127.0.0.1"))})
    paths = find_peer_paths(launch, launch.hosts, quiet)
    ((says, advice),) = path_problems(launch, paths[0], first)
    assert says == "it cannot reach two at 127.0.0.1, port 1: Connection refused"
    assert advice.startswith("let the nodes reach each other on all TCP ports, at least 32768 to 60999, of which")
