"""A node's frames: what a right one sends arrives, and nothing else reaches the run directory."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.execution import DISK_IS_FULL, NodeWork, ProcessWork, Submission
from levelfield.node import file_stream
from levelfield.node.file_stream import MAX_LINE_BYTES, PART_BYTES, file_frame, frame_line
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.run.launchers import node_stream
from levelfield.run.launchers.node_records import node_remarks
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh import host_tasks, ssh_launcher
from levelfield.run.launchers.ssh.connection import Connection
from levelfield.run.launchers.ssh.node_run import NodeRun
from levelfield.run.launchers.ssh.ssh_launcher import FileFetch

NAME = "events/rank2.jsonl"


@pytest.fixture
def stream(tmp_path: Path) -> NodeStream:
    return NodeStream(tmp_path / "run", 1, [2, 3])


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def file(**changed: Any) -> bytes:
    return frame_line({"file": NAME, "at": 0, "data": "x", **changed})


def test_frames_in_any_parts_become_the_files(stream: NodeStream, root: Path) -> None:
    sent = b"".join(
        [
            file(data="one\n"),
            frame_line({"beat": 1}),
            file(at=4, data="zwé\n"),
            frame_line({"file": "logs/node1.log", "at": 0, "base64": "//4="}),
            frame_line({"end": 3}),
        ]
    )
    for byte in sent:
        stream.receive(bytes([byte]))
    assert (root / NAME).read_text() == "one\nzwé\n" and (root / "logs/node1.log").read_bytes() == b"\xff\xfe"
    assert stream.exit_code == 3 and stream.is_complete() and stream.frame_count == 5


def test_a_heartbeat_replaces_the_last_one(stream: NodeStream, root: Path) -> None:
    path = root / "events/rank3.alive"
    stream.receive(frame_line({"file": "events/rank3.alive", "at": 0, "data": "7"}))
    before = path.stat().st_mtime_ns
    stream.receive(frame_line({"file": "events/rank3.alive", "at": 0, "data": "12"}))
    assert path.read_text() == "12" and path.stat().st_mtime_ns > before


WRONG = {
    "not JSON": b"hello\n",
    "not an object": b"[1]\n",
    "not ASCII": b'{"beat": "\xff"}\n',
    "a motd": b"Welcome to host1!\n",
    "nested": b"[" * 60000 + b"\n",
    "a huge number": b'{"beat":' + b"9" * 5000 + b"}\n",
    "nan": b'{"beat": NaN}\n',
    "a negative beat": frame_line({"beat": -1}),
    "a beat that is a word": frame_line({"beat": "1"}),
    "a beat that is a truth": frame_line({"beat": True}),
    "no keys": frame_line({}),
    "an unknown key": frame_line({"beat": 1, "more": 2}),
    "data twice": file(base64="eA=="),
    "no data": frame_line({"file": NAME, "at": 0}),
    "another node's rank": file(file="events/rank0.jsonl"),
    "another node's record": file(file="nodes/node0.record.jsonl"),
    "the plan": file(file="plan.json"),
    "the result": file(file="result.json"),
    "a folder above": file(file="events/../../outside"),
    "above by name": file(file="../outside"),
    "from the root": file(file="/tmp/outside"),
    "another spelling": file(file="events//rank2.jsonl"),
    "an empty name": file(file=""),
    "no name": file(file=None),
    "a list as name": file(file=[NAME]),
    "a gap": file(at=1),
    "an offset before the start": file(at=-1),
    "an offset with a point": file(at=0.0),
    "data of another kind": file(data=7),
    "a lone surrogate": b'{"file":"events/rank2.jsonl","at":0,"data":"\\ud800"}\n',
    "wrong base64": frame_line({"file": NAME, "at": 0, "base64": "*"}),
    "a heartbeat elsewhere": frame_line({"file": "events/rank2.alive", "at": 5, "data": "1"}),
    "a long heartbeat": frame_line({"file": "events/rank2.alive", "at": 0, "data": "1" * 21}),
    "a long line": b"x" * (MAX_LINE_BYTES + 1),
    "a long whole line": b'{"beat":' + b" " * MAX_LINE_BYTES + b"1}\n",
    "an exit code of a word": frame_line({"end": "0"}),
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_is_a_broken_stream(stream: NodeStream, root: Path, what: str) -> None:
    with pytest.raises(BrokenStream):
        stream.receive(WRONG[what])
    assert [path for path in root.parent.rglob("*") if path.is_file()] == []


def test_a_part_that_repeats_is_broken_and_one_after_the_end_is_left_out(stream: NodeStream, root: Path) -> None:
    stream.receive(file(data="ab"))
    with pytest.raises(BrokenStream, match=r"offset 0\D*2$"):
        stream.receive(file(data="ab"))
    stream.receive(frame_line({"end": 0}) + b"a driver says good bye\n")
    stream.receive(file(at=2, data="cd"))
    assert stream.exit_code == 0
    assert (root / NAME).read_text() == "ab"


def test_a_truncated_stream_is_not_complete(stream: NodeStream, root: Path) -> None:
    stream.receive(file(data="ab") + file(at=2, data="cd")[:-1])
    assert not stream.is_complete() and (root / NAME).read_text() == "ab"


def test_a_file_has_a_limit(stream: NodeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_stream, "MAX_FILE_BYTES", 10)
    stream.receive(file(data="x" * 10))
    with pytest.raises(BrokenStream, match=r"\b10 bytes"):
        stream.receive(file(at=10))


@pytest.mark.parametrize(("size", "missing"), [(30, ()), (31, (f"{NAME} (its end)",))])
def test_a_file_that_is_cut_is_named_though_the_stream_is_complete(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, missing: tuple[str, ...]
) -> None:
    for module in (node_stream, file_stream):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 31)  # the longest that counts as whole has one byte less
    (tmp_path / "there/events").mkdir(parents=True)
    (tmp_path / "there" / NAME).write_bytes(b"x" * size + b"y" * 9 * (size > 30))
    node = node_run(root)
    read, write = os.pipe()
    sender = file_stream.FileStream(tmp_path / "there", 1, [2], write, lambda: None)
    sender.end(0)
    os.close(write)
    with os.fdopen(read, "rb") as frames:
        node.stream.receive(frames.read())
    end = ssh_launcher.NodeFiles(root, node, Submission("host1", ("ssh",)), {}).node_end()
    assert node.stream.is_complete() and node.stream.received[NAME] == size and end.missing == missing


def fetch_one(connection: Connection, question: str, stream: NodeStream) -> None:
    ssh_launcher.fetch_files([FileFetch(connection, question, stream)], lambda sentence: None)


def test_the_files_of_all_lost_nodes_are_fetched_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of eight nodes stays silent: together they take as long as one."""
    monkeypatch.setattr(ssh_launcher, "FETCH_SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(host_tasks, "REPORT_SECONDS", 0.2)
    sentences: list[str] = []
    fetches = [FileFetch(Connection(f"host{k}", ["sleep", "600"]), "{}\n", NodeStream(root, k, [k])) for k in range(8)]
    start = time.monotonic()
    ssh_launcher.fetch_files(fetches, sentences.append)
    assert time.monotonic() - start < 7 and all(fetch.connection.has_ended() for fetch in fetches)
    assert sentences and "waiting for host0, host1, host2, host3, host4 and 3 more (at most 600 s each)" in sentences[0]


def test_a_fetch_that_never_ends_has_a_limit(stream: NodeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_launcher, "FETCH_SECONDS", 0.5)
    connection, start = Connection("host1", ["sleep", "600"]), time.monotonic()
    fetch_one(connection, "{}\n", stream)
    assert time.monotonic() - start < ssh_launcher.FETCH_SILENCE_SECONDS / 2
    assert connection.code == -signal.SIGKILL and not stream.is_complete()


def test_a_fetch_brings_the_recorded_steps_whole(stream: NodeStream, root: Path, tmp_path: Path) -> None:
    there = tmp_path / "there/profile"
    there.mkdir(parents=True)
    records = {f"rank2.step{number}.json.gz": os.urandom(5 * PART_BYTES + number) for number in range(2)}
    for name, content in {**records, "rank2.step2.json.gz": b"not asked for"}.items():
        (there / name).write_bytes(content)
    offsets = {f"profile/{name}": 0 for name in records}
    question = {"root": str(there.parent), "node_rank": 1, "ranks": [2, 3], "offsets": offsets}
    whole = NodeStream(root, 1, [2, 3], offsets)
    agent = Path(file_stream.__file__).with_name("node_agent.py")
    fetch_one(Connection("host1", [sys.executable, str(agent), "fetch"]), json.dumps(question) + "\n", whole)
    assert whole.is_complete()
    assert {path.name: path.read_bytes() for path in (root / "profile").iterdir()} == records
    with pytest.raises(BrokenStream, match=r"rank2\.step0\.json\.gz"):  # what was not asked for
        stream.receive(frame_line({"file": "profile/rank2.step0.json.gz", "at": 0, "data": "x"}))


def test_a_full_disk_here_ends_a_fetch_and_no_run(stream: NodeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    frame = file().decode().replace('"', '\\"')
    fetch_one(Connection("host1", ["sh", "-c", f'echo "{frame}"; sleep 20']), "{}\n", stream)
    assert not stream.is_complete()


FLOOD = "read asked; {} exec timeout 20 yes '{{\"beat\":1}}'"


@pytest.mark.parametrize(("prefix", "is_whole"), [("", False), ("echo '{\"end\":0}';", True)])
def test_a_node_that_prints_without_end_does_not_hold_a_fetch(
    stream: NodeStream, monkeypatch: pytest.MonkeyPatch, prefix: str, is_whole: bool
) -> None:
    monkeypatch.setattr(ssh_launcher, "FETCH_SILENCE_SECONDS", 60 if is_whole else 0.5)
    connection = Connection("host1", ["sh", "-c", FLOOD.format(prefix)])
    fetch_one(connection, "{}\n", stream)
    assert stream.is_complete() == is_whole and connection.code == -signal.SIGKILL


def test_a_link_in_the_run_directory_is_not_followed(stream: NodeStream, root: Path, tmp_path: Path) -> None:
    (root / "events").mkdir()
    (root / NAME).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        stream.receive(file())
    assert not (tmp_path / "victim").exists()


@given(st.binary(max_size=3 * PART_BYTES))
def test_every_content_fits_into_frames_and_arrives(content: bytes) -> None:
    offset = 0
    with tempfile.TemporaryDirectory() as folder:
        stream, path = NodeStream(Path(folder), 1, [2, 3]), Path(folder) / NAME
        while offset < len(content):
            frame, size = file_frame(NAME, offset, content[offset : offset + PART_BYTES])
            assert len(frame) <= MAX_LINE_BYTES and size > 0
            stream.receive(frame)
            offset += size
        assert (path.read_bytes() if content else b"") == content


@pytest.mark.parametrize("text", ["\x00" * PART_BYTES, "\U0001f600" * (PART_BYTES // 4), "\u00e9" * (PART_BYTES // 2)])
def test_the_longest_frames_are_short_enough(text: str) -> None:
    frame, size = file_frame(NAME, file_stream.MAX_FILE_BYTES, text.encode())
    assert len(frame) <= MAX_LINE_BYTES and size == len(text.encode())


# ---- the record of a node, which another machine wrote


def node_run(root: Path, *lines: object) -> NodeRun:
    process = ProcessWork(2, ("train",), {}, "log")
    connection = Connection("host1", ["true"])
    while not connection.has_ended():
        time.sleep(0.01)
    node = NodeRun(NodeWork(1, "10.0.0.1", (process,), name="host1"), root, connection, WatchedTime(time.monotonic))
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    if text:
        node.stream.receive(frame_line({"file": "nodes/node1.record.jsonl", "at": 0, "data": text}))
    node.is_open = False
    connection.end()
    return node


END = {"rank": 2, "exit_code": None, "signal": 9, "stopped_by_us": False}
LAST = {"event": "ended", "cause": "rank-failed", "evidence": "rank 2 ended with signal 9", "ends": [END]}


def test_the_last_word_of_a_node_is_its_end(root: Path) -> None:
    cause, end = node_run(root, {"event": "started"}, LAST).cause_and_end()
    assert (cause, end.node_rank, end.name, end.word) == ("rank-failed", 1, "host1", "failed")
    assert str(end.detail).startswith("host1: ") and "rank 2" in str(end.detail) and "SIGKILL" in str(end.detail)
    full = {**LAST, "disk_free_bytes": 0}
    _, end = node_run(root, full).cause_and_end()
    assert DISK_IS_FULL in str(end.detail) and "(0 bytes" in str(end.detail)


@pytest.mark.parametrize(
    "line",
    [
        "not JSON\n", "[" * 9999 + "\n", "[]\n", {"event": "ended"}, {"event": "ended", "cause": ["x"], "ends": 7},
        {**LAST, "cause": "valid"}, {"event": "ended", "cause": "nothing", "ends": [{"rank": 2}]},
        {"event": "ended", "cause": None, "ends": [{**END, "exit_code": "0"}]}, {"event": "started"},
    ],
)  # fmt: skip
def test_a_record_that_says_no_known_end_is_a_lost_node(root: Path, line: object) -> None:
    node = node_run(root, line)
    cause, end = node.cause_and_end()
    assert (cause, end.word) == ("node-lost", "lost")
    assert all(isinstance(end.rank, int) for end in node.ends())
    assert line != {"event": "started"} or (node.ends()[0].exit_code, node.ends()[0].signal) == (None, None)


@pytest.mark.parametrize(
    ("lines", "is_stopped", "meaning"),
    [
        ((), False, ("unreachable", "unreachable")),  # it sent nothing at all
        ((), True, ("unreachable", "unreachable")),
        (({"event": "started"},), False, ("node-lost", "lost")),
        (({"event": "started"},), True, ("node-lost", "lost")),  # a node that lives writes its last record
        (({**LAST, "cause": "stopped"},), False, ("cancelled", "cancelled")),
        (({**LAST, "cause": "stopped"},), True, ("exited", "stopped")),
        (({**LAST, "cause": "hang"},), True, ("hang", "failed")),
    ],
)
def test_a_node_that_the_platform_ended_is_stopped_and_explains_no_failure(
    root: Path, lines: tuple[object, ...], is_stopped: bool, meaning: tuple[str, str]
) -> None:
    node = node_run(root, *lines)
    node.is_stopped = is_stopped
    cause, end = node.cause_and_end()
    assert (cause, end.word) == meaning


@pytest.mark.parametrize(("number", "kills"), [(1, 1), (0, 0), (-1, 0), ("1", 0), (True, 0), (None, 0), (1.5, 0)])
def test_memory_kills_are_a_number_of_the_node(root: Path, number: object, kills: int) -> None:
    node = node_run(root, {**LAST, "oom_kills": number, "oom_evidence": "log\x1b[31m"})
    assert node.memory_kills() == (kills, "host1: log[31m" if kills else None)


@pytest.mark.parametrize(
    ("boots", "names"),
    [
        (("a", "b", "c"), []),
        (("a", "b", "a"), ["node0, node2 are one machine"]),
        (("a", "a", "a"), ["node0, node1, node2 are one machine"]),
        (("a", None, None), []),  # unknown is not the same
        (("a", "damaged", None), []),
    ],
)
def test_nodes_of_one_machine_are_named(root: Path, boots: tuple[str | None, ...], names: list[str]) -> None:
    (root / "nodes").mkdir()
    for node, boot in enumerate(boots):
        text = '{"boot_id": "a"' if boot == "damaged" else json.dumps({"boot_id": boot})
        (root / f"nodes/node{node}.facts.json").write_text(text)
    assert [message.partition(":")[0] for message in node_remarks(root, 3, False)] == names
