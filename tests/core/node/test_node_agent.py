"""The node's own part, as a process with real ranks: each way to end has its word, and leaves no process behind."""

from __future__ import annotations

import errno
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agents import AGENT, BEATING, MARK, SLEEP, Node, frames, received, send_many, wait_until
from levelfield.node.control_groups import MemoryKillWatch
from levelfield.node.device_files import lock_device
from levelfield.node.node_duty import NodeRecord
from levelfield.plan.resolution import code_digest
from levelfield.run.launchers.node_content import work_lines
from live_groups import control_group

KILL_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
MODELS = AGENT.parents[3] / "models"


def test_ranks_that_end_well_give_zero(node: Node) -> None:
    assert node.run(node.work("print('one')", "print('two')")) == 0
    assert [(node.root / f"logs/rank{rank}.log").read_text() for rank in (0, 1)] == ["one\n", "two\n"]
    last = node.ended()
    assert last["cause"] == "exited"
    assert last["ends"][1] == {"rank": 1, "exit_code": 0, "signal": None, "stopped_by_us": False}


def test_what_all_nodes_have_in_common_is_the_second_line(node: Node) -> None:
    work = node.work("print('one')")
    (first_line, _), common = work_lines([work, {**work, "node_rank": 1, "name": "host2"}])
    process = node.start(json.loads(first_line))
    assert process.stdin and len(first_line) < 100
    process.stdin.write(common.encode())
    process.stdin.flush()
    assert process.wait(60) == 0 and node.ended()["cause"] == "exited"


def test_a_failed_rank_ends_the_others(node: Node) -> None:
    assert node.run(node.work(SLEEP, "raise SystemExit(9)")) == 1
    last = node.ended()
    assert last["cause"] == "rank-failed"
    assert [end["stopped_by_us"] for end in last["ends"]] == [True, False]
    assert node.ranks() == []


@pytest.mark.parametrize(
    ("scripts", "evidence"),
    [
        pytest.param((SLEEP, "raise SystemExit(9)"), "rank 1 ended with exit code 9", marks=pytest.mark.thorough),
        ((KILL_ITSELF, SLEEP), "rank 0 ended with signal 9"),
    ],
)
def test_a_failed_rank_is_named_with_its_exit_code_or_signal(node: Node, scripts: list[str], evidence: str) -> None:
    assert node.run(node.work(*scripts)) == 1
    assert node.ended()["evidence"] == evidence


def test_a_rank_that_the_kernel_kills_for_memory_is_told(node: Node) -> None:
    limit = str(64 * 2**20)
    first = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    with control_group("memory", first, {"memory.max": limit, "memory.swap.max": "0"}) as group:
        if MemoryKillWatch()._log is None:
            pytest.skip("the kernel's log does not tell this machine's processes")
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        fill = "parts = [bytes([1]) * 2**20 for _ in range(4096)]"
        assert node.run(node.work(join + fill, SLEEP)) == 1
    last = node.ended()
    assert (last["ends"][0]["signal"], last["oom_kills"]) == (signal.SIGKILL, 1)
    assert "kernel's log" in last["oom_evidence"]


def test_a_rank_without_a_heartbeat_is_a_hang(node: Node) -> None:
    limits = {"start_seconds": 60, "step_seconds": 60, "heartbeat_seconds": 1}
    process = node.start(node.work(BEATING, BEATING, limits=limits))
    assert wait_until(lambda: all((node.root / f"events/rank{rank}.alive").exists() for rank in (0, 1)))
    frozen = next(rank for rank in node.ranks() if "rank1.alive" in " ".join(rank.cmdline()))
    frozen.send_signal(signal.SIGSTOP)
    assert process.wait(30) == 7
    assert node.ended()["cause"] == "hang"
    for part in ("rank 1", "no heartbeat", "limit 1 s"):
        assert part in node.ended()["evidence"]
    assert node.ranks() == []


def test_the_end_of_standard_input_ends_the_ranks(node: Node) -> None:
    process = node.start(node.work(SLEEP))
    assert wait_until(node.ranks) and process.stdin
    process.stdin.close()
    assert process.wait(30) == 3
    assert node.ended()["cause"] == "stopped" and "standard input" in node.ended()["evidence"]
    assert node.ranks() == []


def test_a_platform_that_falls_silent_ends_the_ranks(node: Node) -> None:
    """A network that is cut closes no connection: the node ends by itself."""
    limits = {"start_seconds": 60, "step_seconds": 60, "heartbeat_seconds": 60, "platform_seconds": 1}
    process = node.start(node.work(SLEEP, limits=limits))
    assert process.wait(30) == 3
    for part in ("platform", "sent nothing", "limit 1 s"):
        assert part in node.ended()["evidence"]
    assert node.ranks() == []


def test_a_platform_that_sends_is_not_silent(node: Node) -> None:
    limits = {"start_seconds": 60, "step_seconds": 60, "heartbeat_seconds": 60, "platform_seconds": 1.5}
    process = node.start(node.work("import time; time.sleep(3)", limits=limits))
    assert process.stdin
    while process.poll() is None:
        with_line = process.stdin
        try:
            with_line.write(b"\n")
            with_line.flush()
        except BrokenPipeError:
            break
        wait_until(lambda: process.poll() is not None, 0.2)
    assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough)])
def test_a_signal_from_outside_ends_the_ranks(node: Node, number: int) -> None:
    process = node.start(node.work(SLEEP))
    assert wait_until(node.ranks)
    process.send_signal(number)
    assert process.wait(30) == 3
    assert node.ended()["evidence"] == f"signal {number:d} from outside" and node.ranks() == []


def test_many_signals_at_once_end_the_ranks(node: Node) -> None:
    process = node.start(node.work(SLEEP))
    assert wait_until(node.ranks)
    send_many(process, signal.SIGTERM)
    assert process.wait(30) == 3
    assert node.ended()["evidence"] == f"signal {signal.SIGTERM:d} from outside" and node.ranks() == []


@pytest.mark.drill
def test_workers_of_a_killed_agent_end_as_orphans(node: Node) -> None:
    platform = str(AGENT.parents[2])
    worker = f"import sys, time\nsys.path.insert(0, {platform!r})\n"
    worker += "from levelfield.worker.heartbeat import start_heartbeat\n"
    worker += "start_heartbeat('events/rank{rank}.alive')\ntime.sleep(600)\n"
    work = node.work(worker)
    work["processes"][0]["argv"].remove("-S")  # the worker needs numpy
    process = node.start(work)
    assert wait_until((node.root / "events/rank0.alive").exists)
    process.kill()
    assert wait_until(lambda: node.running() == [])
    assert [line["event"] for line in node.record()] == ["started", "ranks-started"]  # no last word


def test_a_node_that_its_engine_has_lost_ends_by_the_platform_s_file(node: Node, tmp_path: Path) -> None:
    """As after slurmstepd was killed: no signal of the engine reaches the node's part. Before, the engine ends it."""
    file = tmp_path / "node0.json"
    file.write_text(json.dumps(node.work(SLEEP)))
    command = f"{shlex.join((sys.executable, str(AGENT), 'run', str(file)))} & wait"
    engine = subprocess.Popen(["sh", "-c", command], env={**os.environ, MARK: node.mark})
    node.started.append(engine)
    log = node.root / "nodes/node0.record.jsonl"
    assert wait_until(lambda: log.exists() and "ranks-started" in log.read_text())
    (node.root / "nodes/stop").touch()
    assert not wait_until(lambda: "ended" in log.read_text(), 0.7)
    engine.kill()
    assert wait_until(lambda: not node.running())
    assert node.ended()["cause"] == "stopped" and "engine" in node.ended()["evidence"]


def test_a_rank_that_cannot_start_is_a_launch_error(node: Node) -> None:
    work = node.work(SLEEP, SLEEP)
    work["processes"][1]["argv"] = ["/nothing/python"]
    assert node.run(work) == 1
    assert node.ended()["cause"] == "launch-error"
    assert node.ended()["evidence"] == f"/nothing/python: {os.strerror(errno.ENOENT)}"
    assert node.ranks() == []


def test_a_full_disk_ends_the_work_and_not_the_node(node: Node) -> None:
    """Only what fits is written: the facts do not, so no rank starts."""
    process = node.start(
        node.work(SLEEP), "--stream", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
    )
    assert process.stdout
    printed = process.stdout.read()
    assert process.wait(30) == 1 and frames(printed)[-1] == {"end": 1}
    assert node.ended()["cause"] == "launch-error" and os.strerror(errno.EFBIG) in node.ended()["evidence"]


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small file system needs root")
def test_a_disk_that_gets_full_takes_no_last_word(node: Node) -> None:
    """The rank fills the disk of its node. How it ended is recorded, and that the disk was full."""
    node.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "small", str(node.root)], check=True)
    try:
        fill = "file = open('events/rank0.jsonl', 'w')\nwhile True:\n    file.write('x' * 4096)\n    file.flush()\n"
        assert node.run(node.work(fill)) == 1
        last = node.ended()
    finally:
        subprocess.run(["umount", str(node.root)], check=True)
    assert last["cause"] == "rank-failed" and last["ends"][0]["exit_code"] == 1
    assert last["disk_free_bytes"] < 4096


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small file system needs root")
def test_only_the_last_line_of_a_record_is_written_to_a_full_disk(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(tmp_path)], check=True)
    try:
        record = NodeRecord(tmp_path / "node0.record.jsonl")
        with pytest.raises(OSError) as full, (tmp_path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert full.value.errno == errno.ENOSPC
        record.write("lost", text="x" * 9000)
        record.write_last("ended", text="y" * 9000)
        lines = [json.loads(line) for line in (tmp_path / "node0.record.jsonl").read_text().splitlines()]
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert [(line["event"], line["text"], line["disk_free_bytes"]) for line in lines] == [("ended", "y" * 9000, 0)]


# ---- checks before the start


def test_other_code_is_refused_before_any_rank_starts(node: Node) -> None:
    folder = str(MODELS / "torch")
    right = code_digest(MODELS / "torch")
    assert node.run(node.work("pass", expected={"code": right, "folder": folder})) == 0
    assert node.run(node.work("open('ran', 'w')", expected={"code": "sha256:" + "0" * 64, "folder": folder})) == 4
    refused = node.record()[-2]
    assert (refused["event"], refused["cause"]) == ("refused", "node-differs")
    assert f"found {right[:19]}," in refused["evidence"] and refused["evidence"].endswith(f"sha256:{'0' * 12}")
    assert not (node.root / "ran").exists()


def test_a_changed_file_changes_the_nodes_digest(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("1")
    expected = {"code": code_digest(folder), "folder": str(folder)}
    assert node.run(node.work("pass", expected=expected)) == 0
    (folder / "train.py").write_text("2")
    assert node.run(node.work("pass", expected=expected)) == 4
    assert node.run(node.work("pass", expected={**expected, "folder": str(tmp_path / "absent")})) == 4


def test_the_nodes_last_record_has_the_digest_of_its_code_at_the_end(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("1")
    planned = code_digest(folder)
    expected = {"code": planned, "folder": str(folder)}
    assert node.run(node.work("pass", expected=expected)) == 0 and node.ended()["code"] == planned
    change = f"open({str(folder / 'table.txt')!r}, 'w').write('other')"
    assert node.run(node.work(change, expected=expected)) == 0
    assert node.ended()["code"] == code_digest(folder) != planned


@pytest.mark.parametrize(
    "stamp",
    ["absent", '{"digest": "other"}', *(pytest.param(text, marks=pytest.mark.thorough) for text in ("{", "[]", "7"))],
)
def test_another_environment_is_refused(node: Node, tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "stamp.json"
    if stamp != "absent":
        path.write_text(stamp)
    expected = {"environment": "sha256:right", "stamp": str(path)}
    assert node.run(node.work("pass", expected=expected)) == 4
    assert node.ended()["cause"] == "node-differs"
    for part in ("environment differs", f"no stamp in {path}" if stamp != '{"digest": "other"}' else "found other"):
        assert part in node.ended()["evidence"]
    path.write_text('{"digest": "sha256:right"}')
    assert node.run(node.work("pass", expected=expected)) == 0


def test_a_taken_port_is_refused_on_the_first_node_only(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert node.run(node.work("pass", port=port)) == 5
        assert node.ended()["cause"] == "port-taken" and f"port {port}" in node.ended()["evidence"]
        assert node.run(node.work("pass", port=port, node_rank=1)) == 0


def test_a_first_node_whose_name_is_unknown_is_refused_on_the_others(node: Node) -> None:
    limits = {"start_seconds": 60, "step_seconds": 60, "heartbeat_seconds": 60, "resolve_seconds": 0}
    assert node.run(node.work("pass", first_node="no.such.name.invalid", node_rank=1, limits=limits)) == 5
    refused = node.record(1)[-1]
    assert refused["cause"] == "name-unknown" and "no.such.name.invalid" in refused["evidence"]
    assert node.run(node.work("pass", first_node="no.such.name.invalid")) == 0  # the first one does not look it up


def test_a_taken_device_is_refused_with_its_holder(node: Node, tmp_path: Path) -> None:
    with lock_device(tmp_path / "locks", "fake-0", "another_run"):
        assert node.run(node.work("pass", locks=["fake-1", "fake-0"])) == 6
    assert node.ended()["cause"] == "device-taken"
    for part in ("device fake-0", "run another_run"):
        assert part in node.ended()["evidence"]
    assert node.run(node.work("pass", locks=["fake-1", "fake-0"])) == 0


# ---- variables


def test_variables_are_filled_and_secrets_come_from_outside(node: Node) -> None:
    secret = "from the line"
    work = node.work(
        "import os, json; print(json.dumps({k: os.environ.get(k) for k in ('A', 'B', 'TOKEN', 'OWN', 'GONE')}))",
        port=23456,
        inherit=["TOKEN", "OWN"],
        secrets={"TOKEN": secret},
        removed=["GONE"],
    )
    work["processes"][0]["environment"] = {"A": "{first_node}:{port}", "B": "plain", "TOKEN": "***"}
    assert node.run(work, environment={"OWN": "from outside", "GONE": "x"}) == 0
    variables = json.loads((node.root / "logs/rank0.log").read_text())
    expected = {"A": "10.0.0.1:23456", "B": "plain", "TOKEN": secret, "OWN": "from outside", "GONE": None}
    assert variables == expected
    files = [path for path in node.root.rglob("*") if path.is_file() and path.name != "rank0.log"]
    assert files and not any(secret.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"schema": "levelfield.node/9"}, "key 'schema'"),
        pytest.param({"run_id": 7}, "key 'run_id': found int, expected str", marks=pytest.mark.thorough),
        pytest.param({"node_rank": True}, "key 'node_rank'", marks=pytest.mark.thorough),
        ({"limits": {}}, "key 'start_seconds': found NoneType, expected a number"),
        pytest.param({"processes": ["x"]}, "expected objects", marks=pytest.mark.thorough),
        ({"files": {"../outside": "x"}}, "found '../outside'"),
        pytest.param({"files": {"/outside": "x"}}, "found '/outside'", marks=pytest.mark.thorough),
    ],
)
def test_work_that_cannot_be_read_names_the_key(node: Node, changed: dict[str, Any], fault: str) -> None:
    process = node.start(node.work("pass", **changed), stderr=subprocess.PIPE)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 2 and fault in complaint.decode()
    assert not node.root.exists()


def test_a_placeholder_without_a_value_is_refused(node: Node) -> None:
    work = node.work("pass", first_node=None)
    work["processes"][0]["environment"] = {"MASTER_ADDR": "{first_node}"}
    assert node.run(work, stderr=subprocess.DEVNULL) == 2


def test_a_file_gives_the_work_of_the_engines_rank(node: Node, tmp_path: Path) -> None:
    work = node.work("import os; print(os.environ['MASTER_ADDR'])", node_rank=3, first_node=None)
    work["processes"][0]["environment"] = {"MASTER_ADDR": "{first_node}"}
    (tmp_path / "node3.json").write_text(json.dumps(work))
    argv = [sys.executable, str(AGENT), "run", str(tmp_path / "node{node_rank}.json"), "--first-node", "localhost"]
    done = subprocess.run(argv, env={**os.environ, "SLURM_NODEID": "3"}, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and (node.root / "logs/rank0.log").read_text() == "localhost\n"
    assert node.record(3)[-1]["cause"] == "exited"


# ---- facts, samples and frames


def tool(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_facts_have_the_host_and_the_tools(node: Node, tmp_path: Path) -> None:
    commands = {
        "good": {"argv": [tool(tmp_path, "good", "echo 'driver 1'")], "timeout_seconds": 5},
        "hangs": {"argv": [tool(tmp_path, "hangs", "sleep 60")], "timeout_seconds": 0.3},
        "binary": {"argv": [tool(tmp_path, "binary", "printf '\\377\\376'")], "timeout_seconds": 5},
        "absent": {"argv": ["no-such-tool-here"], "timeout_seconds": 5},
    }
    assert node.run(node.work("pass", facts=commands)) == 0
    facts = json.loads((node.root / "nodes/node0.facts.json").read_text())
    assert facts["hostname"] == socket.gethostname() and facts["memory_bytes"] > 2**20
    assert facts["usable_cores"] == len(os.sched_getaffinity(0))
    tools = facts["tools"]
    assert tools["good"]["text"] == "driver 1\n"
    assert str(tmp_path / "hangs") in tools["hangs"]["reason"] and "0.3 s" in tools["hangs"]["reason"]
    assert "UTF-8" in tools["binary"]["reason"]
    assert tools["absent"]["absent"] and "text" not in tools["absent"]


def test_samples_stand_in_the_nodes_own_file(node: Node, tmp_path: Path) -> None:
    samples = {
        "commands": [{"argv": [tool(tmp_path, "smi", "echo 41 W")], "timeout_seconds": 5}],
        "interval_seconds": 0.1,
    }
    sleep = "import time; time.sleep(0.6)"
    assert node.run(node.work(sleep, samples=samples)) == 0
    lines = [json.loads(line) for line in (node.root / "telemetry/node0.raw.jsonl").read_text().splitlines()]
    assert [line.get("before") for line in lines[:2]] == [True, True] and "before" not in lines[-1]
    assert lines[0]["outputs"] == [] and lines[1]["outputs"][0]["text"] == "41 W\n" and len(lines) > 3
    assert all(b["host"]["busy_seconds"] >= a["host"]["busy_seconds"] for a, b in pairwise(lines))


def test_a_tool_that_hangs_does_not_hold_up_the_end(node: Node, tmp_path: Path) -> None:
    started = tool(tmp_path, "smi", f"test -f {tmp_path}/first && sleep 600; touch {tmp_path}/first; echo 1")
    samples = {"commands": [{"argv": [started], "timeout_seconds": 300}], "interval_seconds": 0.1}
    sleep = "import time; time.sleep(0.5)"
    assert node.run(node.work(sleep, samples=samples)) == 0
    assert wait_until(lambda: node.running() == [])


def test_the_frames_are_the_files(node: Node) -> None:
    script = (
        "import sys; b = sys.stdout.buffer; b.write('\u00e9'.encode() * 20001); b.write(bytes(range(256)));"
        "b.write(b'\\x01' * 30000); open('events/rank0.jsonl', 'w').write('{}\\n');"
        "open('events/rank0.alive', 'w').write('7')"
    )
    process = node.start(node.work(script), "--stream")
    assert process.stdout
    printed = process.stdout.read()
    sent = frames(printed)
    assert process.wait(30) == 0 and sent[-1] == {"end": 0} and any("beat" in frame for frame in sent)
    assert max(map(len, printed.splitlines(keepends=True))) <= 64 * 1024
    names = {frame["file"] for frame in sent if "file" in frame} - {"events/rank0.alive"}
    assert names == {
        "events/rank0.jsonl", "logs/rank0.log", "nodes/node0.facts.json", "nodes/node0.record.jsonl",
        "telemetry/node0.raw.jsonl",
    }  # fmt: skip
    for name in names:
        assert received(sent, name) == (node.root / name).read_bytes()
    assert {"file": "events/rank0.alive", "at": 0, "data": "7"} in sent


def test_a_receiver_that_goes_away_ends_the_ranks(node: Node) -> None:
    process = node.start(node.work(SLEEP), "--stream")
    assert wait_until(node.ranks) and process.stdout
    process.stdout.close()
    assert process.wait(30) == 3
    assert "standard output" in node.ended()["evidence"]


def test_a_receiver_that_stops_reading_does_not_hold_up_the_ranks(node: Node) -> None:
    script = "print('x' * 2000000)\nopen('done', 'w')"
    process = node.start(node.work(script), "--stream")
    assert wait_until((node.root / "done").exists)
    assert wait_until(lambda: node.record()[-1]["event"] == "ended")
    assert process.wait(30) == 0  # after the bounded wait for the receiver
