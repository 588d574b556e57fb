"""The launcher ssh on two machines: what is sent, what comes back, and each fault with its word."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import Cluster
from driving import SHORT, TORCH_HERE
from fleet import Fleet, have_ended
from levelfield.node.device_files import lock_device
from levelfield.run.launchers import runtime_and_launcher
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

pytestmark = pytest.mark.machines
RECORDER = """#!/bin/bash
set -o pipefail
mine={folder}/sent.$$
printf '%s\\0' "$@" > $mine.argv
tee $mine.stdin | ssh "$@"
"""


# ---- a whole run


def test_two_machines_train_and_what_was_shown_was_sent(fleet: Fleet, tmp_path: Path) -> None:
    recorder = tmp_path / "record"
    recorder.write_text(RECORDER.format(folder=tmp_path))
    recorder.chmod(0o755)
    fleet.write(command=[str(recorder)])
    done = fleet.run(*fleet.command("--steps", "30", "--env", "API_TOKEN=verysecret"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.result()["status"]["word"] == "valid" and fleet.words() == ["ended", "ended"]

    run = fleet.only_run()
    plan = load(Plan, run / "plan.json")
    runtime, launcher = runtime_and_launcher(plan)
    request = launcher.request(plan, RunPaths(run), runtime).redacted()
    sent = {tuple(argv): lines for argv, *lines in _runs_in(tmp_path, plan.run_id)}
    for submission in request.submissions:
        first_line, second_line = sent[submission.argv[1:]]
        content = json.loads(first_line)
        assert content.pop("secrets") == {"API_TOKEN": "verysecret"}
        assert (json.dumps(content) + "\n", second_line) == (submission.stdin, request.common_stdin)
    files = [path for path in (*run.rglob("*"), *fleet.folder.rglob("*")) if path.is_file()]
    assert len(files) > 20 and not [path for path in files if b"verysecret" in path.read_bytes()]
    facts = [json.loads((run / f"nodes/node{k}.facts.json").read_text()) for k in (0, 1)]
    assert [fact["hostname"] for fact in facts] == list(fleet.cluster.hosts)
    assert all(len((run / f"telemetry/node{k}.raw.jsonl").read_text().splitlines()) >= 3 for k in (0, 1))


def _runs_in(folder: Path, run_id: str) -> Iterator[tuple[list[str], str, str]]:
    """The argv and the first two lines of standard input of every connection that carried a node of the run."""
    for path in folder.glob("sent.*.argv"):
        argv = path.read_text().split("\0")[:-1]
        if "node_agent.py run" in argv[-1]:
            first_line, second_line, *_ = path.with_suffix(".stdin").read_text().splitlines(keepends=True)
            if json.loads(second_line)["run_id"] == run_id:
                yield argv, first_line, second_line


@pytest.mark.thorough
def test_without_secrets_the_bytes_are_the_same(fleet: Fleet, tmp_path: Path) -> None:
    recorder = tmp_path / "record"
    recorder.write_text(RECORDER.format(folder=tmp_path))
    recorder.chmod(0o755)
    fleet.write(command=[str(recorder)])
    assert fleet.run(*fleet.command("--steps", "30")).returncode == 0
    run = fleet.only_run()
    request = json.loads((run / "request.json").read_text())
    submissions = [(sent["argv"][1:], sent["stdin"], request["common_stdin"]) for sent in request["submissions"]]
    assert sorted(submissions) == sorted(_runs_in(tmp_path, run.name))


# ---- faults during the training: the word, the node, no process left, the finished steps kept


def test_a_killed_rank_is_named_with_its_node(fleet: Fleet) -> None:
    process = fleet.begun()
    os.kill(fleet.rank(1), signal.SIGKILL)
    message = fleet.ended(process)
    assert process.returncode == 3, message
    host = fleet.cluster.hosts[1]
    outcome = fleet.outcome()
    assert outcome["cause"] == "rank-failed" and outcome["evidence"].startswith(f"{host}: rank 1 ")
    assert outcome["evidence"].endswith(" SIGKILL")
    assert fleet.words() == ["stopped", "failed"]
    _kept_its_steps(fleet)


@pytest.mark.thorough
def test_a_killed_agent_is_a_lost_node(fleet: Fleet) -> None:
    process = fleet.begun()
    os.kill(fleet.agent(1), signal.SIGKILL)
    message = fleet.ended(process)
    assert process.returncode == 3, message
    assert fleet.outcome()["cause"] == "node-lost" and fleet.cluster.hosts[1] in fleet.outcome()["evidence"]
    assert fleet.words() == ["stopped", "lost"]
    _kept_its_steps(fleet)


def test_a_killed_connection_is_a_lost_node_whose_files_are_fetched(fleet: Fleet) -> None:
    process = fleet.begun()
    (connection,) = fleet.processes("node_agent.py", "ssh ", fleet.cluster.hosts[0])
    os.kill(connection, signal.SIGKILL)
    message = fleet.ended(process)
    assert process.returncode == 3, message
    lost = fleet.outcome()["nodes"][0]
    assert fleet.outcome()["cause"] == "node-lost" and (lost["word"], lost["missing"]) == ("lost", [])
    assert fleet.record(0)[-1]["cause"] == "stopped"  # its last word, which the connection did not bring
    _kept_its_steps(fleet)


@pytest.mark.thorough
def test_a_cancelled_agent_is_a_cancelled_run(fleet: Fleet) -> None:
    process = fleet.begun()
    os.kill(fleet.agent(0), signal.SIGTERM)
    fleet.ended(process)
    assert fleet.outcome()["cause"] == "cancelled" and "signal 15" in fleet.outcome()["evidence"]


@pytest.mark.thorough
def test_an_interrupt_ends_both_nodes(fleet: Fleet) -> None:
    process = fleet.begun()
    process.send_signal(signal.SIGINT)
    fleet.ended(process)
    assert process.returncode == 130 and fleet.words() == ["stopped", "stopped"]
    assert fleet.result()["status"]["failure"] == "interrupted"
    _kept_its_steps(fleet)


@pytest.mark.thorough
def test_a_suspended_rank_is_a_hang(fleet: Fleet) -> None:
    process = fleet.begun()
    os.kill(fleet.rank(1), signal.SIGSTOP)
    message = fleet.ended(process)
    assert fleet.result()["status"]["word"] == "timeout", message
    assert "rank 1" in fleet.outcome()["evidence"] and "no heartbeat" in fleet.outcome()["evidence"]


@pytest.mark.drill
def test_a_killed_platform_leaves_nothing_on_the_nodes(fleet: Fleet) -> None:
    assert fleet.killed_platform_leaves_nothing()


@pytest.mark.thorough
def test_a_cut_network_is_a_lost_node_and_its_ranks_end(fleet: Fleet) -> None:
    process = fleet.begun()
    ranks = [fleet.rank(node) for node in (0, 1)]
    host, switch = fleet.cluster.hosts[1], fleet.cluster.switch
    subprocess.run(["ip", "-n", switch, "link", "set", f"v-{host}", "down"], check=True)
    try:
        message = fleet.ended(process)
        assert process.returncode == 3, message
        lost = fleet.outcome()["nodes"][1]
        assert fleet.outcome()["cause"] == "node-lost" and lost["word"] == "lost"
        assert host in fleet.outcome()["evidence"] and any("record" in name for name in lost["missing"])
        # The node's own part ends its rank by itself: its platform is silent for too long.
        assert have_ended(ranks, 90)
    finally:
        subprocess.run(["ip", "-n", switch, "link", "set", f"v-{host}", "up"], check=True)


@pytest.mark.thorough
def test_two_nodes_whose_network_is_cut_are_both_lost_and_fetched_at_once(fleet: Fleet) -> None:
    process = fleet.begun()
    ranks = [fleet.rank(node) for node in (0, 1)]
    ends = [("ip", "-n", fleet.cluster.switch, "link", "set", f"v-{host}") for host in fleet.cluster.hosts]
    for end in ends:
        subprocess.run([*end, "down"], check=True)
    cut_time = time.monotonic()
    try:
        message = fleet.ended(process)
        assert process.returncode == 3, message
        assert fleet.outcome()["cause"] == "node-lost" and fleet.words() == ["lost", "lost"], fleet.outcome()
        # 15 s until ssh gives up, up to 20 s for the others to end, and the connections of all fetches at once
        assert time.monotonic() - cut_time < 90
        assert have_ended(ranks, 90)
    finally:
        for end in ends:
            subprocess.run([*end, "up"], check=True)


@pytest.mark.thorough
def test_a_network_that_flaps_is_said(fleet: Fleet) -> None:
    """0.3 s away each 1.5 s: the run is valid, and was so without a word."""
    process = fleet.begun("--steps", "400", "--env", "FAKE_STEP_SECONDS=0.05")
    host = fleet.cluster.hosts[1]
    for state in ("down", "up") * 6:
        subprocess.run(["ip", "-n", fleet.cluster.switch, "link", "set", f"v-{host}", state], check=True)
        time.sleep(0.3 if state == "down" else 1.2)
    message = fleet.ended(process)
    assert process.returncode == 0, message
    warnings = [warning for warning in fleet.result()["warnings"] if "its link" in warning]
    assert len(warnings) == 1 and warnings[0].startswith("node1: ")
    assert "link eth0" in warnings[0] and "6 times" in warnings[0]


def _kept_its_steps(fleet: Fleet) -> None:
    for rank in (0, 1):
        text = (fleet.only_run() / f"events/rank{rank}.jsonl").read_text()
        assert text.count('"event":"step"') >= 5
    assert fleet.nothing_is_left()


# ---- faults before the training


@pytest.mark.thorough
def test_a_failing_preflight_stops_the_run_before_the_training(fleet: Fleet, tmp_path: Path) -> None:
    host, failing = fleet.cluster.hosts[1], tmp_path / "python"
    failing.write_text(
        '#!/bin/sh\ncase "$(hostname) $*" in\n'
        f'"{host} "*worker.preflight*) echo "no such library" >&2; exit 7;;\nesac\nexec {sys.executable} "$@"\n'
    )
    failing.chmod(0o755)
    arguments = [word for word in fleet.command("--python", str(failing)) if word != "--no-preflight"]
    done = fleet.run(*arguments)
    status = fleet.result()["status"]
    assert done.returncode == 3 and (status["word"], status["failure"]) == ("not-run", "preflight"), done.stderr
    assert f"{host}: rank 1 " in status["evidence"] and "code 7" in status["evidence"]
    assert "such library" in status["evidence"]
    assert status["evidence"].count(host) == 1 and "stopped" not in status["evidence"], status["evidence"]
    before = "no training yet"
    assert "training" not in done.stderr.replace(before, "")
    assert not list((fleet.only_run() / "events").iterdir())


def test_an_unknown_host_key_is_refused_and_not_learned(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("")
    text = fleet.cluster.ssh_config.read_text()
    config.write_text("\n".join(line for line in text.splitlines() if "KnownHosts" not in line))
    # Even a user's own setting that learns keys does not weaken the check.
    config.write_text(config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking no"))
    config.write_text(config.read_text() + f"\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n")
    fleet.write(config=str(config))
    done = fleet.run(*fleet.command())
    assert done.returncode == 3
    assert fleet.outcome()["cause"] == "unreachable" and "host key" in fleet.outcome()["evidence"]
    assert known_hosts.read_text() == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changed", "ssh", "cause", "words"),
    [
        ({"name": "no-such-host"}, {}, "unreachable", "its name does not resolve"),
        ({"port": 1}, {}, "unreachable", "it cannot be reached"),
        ({"user": "nobody"}, {}, "unreachable", "permission denied"),
        ({"python": "/nothing/python3"}, {}, "environment", "its Python cannot be started"),
        ({}, {"folder": "/proc/levelfield"}, "environment", "/proc/levelfield"),
        ({}, {"command": ["/nothing/ssh"]}, "environment", "/nothing/ssh cannot be started here"),
    ],
)
def test_a_node_that_cannot_be_prepared_is_named(
    fleet: Fleet, changed: dict[str, Any], ssh: dict[str, Any], cause: str, words: str
) -> None:
    broken = fleet.cluster.hosts[1]
    fleet.write(lambda host: {**host, **changed} if host["name"] == broken else host, **ssh)
    done = fleet.run(*fleet.command())
    assert done.returncode == 3, done.stdout + done.stderr
    outcome = fleet.outcome()
    assert outcome["cause"] == cause and words in outcome["evidence"], outcome
    assert outcome["ends"] == [] and len(outcome["nodes"]) == 1


@pytest.mark.thorough
def test_an_old_python_is_named_with_its_version(fleet: Fleet) -> None:
    old = next(iter(sorted(Path("~/.pyenv/versions").expanduser().glob("3.[67].*/bin/python"))), None)
    if old is None:
        pytest.skip("no Python older than 3.10 lies in ~/.pyenv/versions")
    fleet.write(lambda host: {**host, "python": str(old)})
    fleet.run(*fleet.command())
    assert "too old:" in fleet.outcome()["evidence"] and " 3." in fleet.outcome()["evidence"]


@pytest.mark.thorough
def test_a_node_with_other_code_is_refused_before_training(fleet: Fleet) -> None:
    assert fleet.run(*fleet.command("--steps", "30")).returncode == 0
    (code,) = [path for path in (fleet.folder / "code").iterdir() if path.is_dir()]
    with (code / "models/fake/train.py").open("a") as file:
        file.write("# changed on the node\n")
    for path in fleet.runs.glob("*/plan.json"):
        path.parent.rename(fleet.runs.parent / path.parent.name)
    done = fleet.run(*fleet.command("--steps", "30"))
    assert done.returncode == 3
    assert fleet.outcome()["cause"] == "node-differs" and "code differs" in fleet.outcome()["evidence"]
    assert "differs" in fleet.words()
    assert not list((fleet.only_run() / "events").iterdir())


@pytest.mark.thorough
def test_a_taken_device_is_refused_with_its_holder(fleet: Fleet, tmp_path: Path) -> None:
    """The locks of the test machines are their own folders."""
    host = fleet.cluster.hosts[1]
    folder = fleet.cluster.own(host, "/tmp/levelfield-devices")
    with lock_device(folder, "fake-0", "another_run"):
        done = fleet.run(*fleet.command())
    assert done.returncode == 3
    outcome = fleet.outcome()
    assert outcome["cause"] == "device-taken" and f"{host}: device fake-0" in str(outcome)
    assert "run another_run" in str(outcome)
    assert fleet.words() == ["stopped", "device-taken"]


@pytest.mark.thorough
def test_a_first_node_without_a_known_name_is_refused(fleet: Fleet) -> None:
    fleet.write(lambda host: {**host, "address": "no-such-name"})
    fleet.run(*fleet.command())
    assert fleet.outcome()["cause"] == "launch-error"
    assert "name no-such-name" in fleet.outcome()["evidence"]


@pytest.mark.thorough
def test_a_full_disk_of_a_node_is_named(fleet: Fleet) -> None:
    """A file system of one node of 100 kB: the code does not fit."""
    host, place = fleet.cluster.hosts[1], "/var/tmp/levelfield-small"
    mount = f"mkdir -p {place} && mount -t tmpfs -o size=100k,mode=700 small {place}"
    subprocess.run([*fleet.cluster.ssh, host, mount], check=True)
    try:
        fleet.write(folder=place)
        done = fleet.run(*fleet.command())
    finally:
        subprocess.run([*fleet.cluster.ssh, host, f"umount {place}"], check=True)
    assert done.returncode == 3
    evidence = fleet.outcome()["evidence"]
    assert evidence.startswith(f"{host}: {place}") and f"{os.strerror(errno.ENOSPC)}; free" in evidence


@pytest.mark.thorough
def test_clocks_an_hour_apart_change_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """The second node has another monotonic clock, as after another boot, in its ranks and in its own part."""
    shifted = tmp_path / "python"
    shifted.write_text(
        f'#!/bin/sh\nexec unshare --time --monotonic 3600 --boottime 3600 --fork --kill-child {sys.executable} "$@"\n'
    )
    shifted.chmod(0o755)
    second = fleet.cluster.hosts[1]
    fleet.write(lambda host: {**host, "python": str(shifted)} if host["name"] == second else host)
    done = fleet.run(*fleet.command("--steps", "200"))
    assert done.returncode == 0, done.stdout + done.stderr
    facts = [json.loads((fleet.only_run() / f"nodes/node{k}.facts.json").read_text()) for k in (0, 1)]
    assert facts[1]["monotonic_ns"] - facts[0]["monotonic_ns"] > 3500e9
    assert fleet.result()["status"]["word"] == "valid"


# ---- a real training, with folders of each node's own


@pytest.mark.thorough
def test_a_real_training_gives_the_same_as_one_machine(hosts: Cluster, tmp_path: Path) -> None:
    """The same losses, tokens and weights as two ranks of one machine, and the environment given."""
    fleet = Fleet(hosts, tmp_path, Path("/var/tmp/levelfield-test"))
    arguments = (*TORCH_HERE, *SHORT)
    there = fleet.run("--case", "gpt3_6.7B:torch:cpu:2:1", *arguments, "--site", str(tmp_path / "site.json"))
    assert there.returncode == 0, there.stdout + there.stderr
    result = fleet.result()
    assert result["status"]["word"] == "valid" and "aligned" in there.stdout, there.stdout
    assert fleet.nothing_is_left() and sys.executable
