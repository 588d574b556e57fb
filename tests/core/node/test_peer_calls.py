"""Whether nodes reach each other as their collectives will: the program that ssh brings, as a process."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Node
from levelfield.node import peer_calls
from levelfield.node.peer_calls import INTERFACE_VARIABLES, NoInterface, call_all, own_address, route_to

WORD = "word"


@contextmanager
def peer(**changed: Any) -> Iterator[subprocess.Popen[str]]:
    request = {"word": WORD, "interface": "lo", "peer": "10.0.0.2", "ports": None, **changed}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, peer_calls.__file__], stdin=pipe, stdout=pipe, text=True)
    try:
        ask(process, request)
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream
            stream.close()


def ask(process: subprocess.Popen[str], content: object) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(content) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    content: dict[str, Any] = json.loads(process.stdout.readline())
    return content


def test_nodes_call_each_other_and_name_who_does_not_answer() -> None:
    with peer() as first, peer() as second, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # without listen: a call is refused
        answers = [answer(first), answer(second)]
        assert [(a["address"], a["interface"], a["rendezvous"]) for a in answers] == [("127.0.0.1", "lo", None)] * 2
        places = [(a["address"], a["port"]) for a in answers]
        ask(first, [places[1], closed.getsockname(), ("no-such-name.invalid", 1)])
        ask(second, [places[0]])
        assert answer(second)["failed"] == []
        failed = dict(answer(first)["failed"])
        assert set(failed) == {1, 2} and failed[1] == "Connection refused", failed
        assert first.stdin
        first.stdin.close()
        assert first.wait(20) == 0  # nothing is left where the platform ended


def test_the_first_node_listens_on_a_port_of_the_rendezvous() -> None:
    with peer(ports=[23000, 23999]) as first:
        ports = answer(first)
        assert 23000 <= ports["rendezvous"] <= 23999 != ports["port"]
        assert call_all([("127.0.0.1", ports["rendezvous"])], WORD.encode()) == {}
        assert call_all([("127.0.0.1", ports["rendezvous"])], b"another") == {0: "another program answers there"}


def test_a_node_that_takes_the_call_and_says_nothing_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_calls, "CALL_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert call_all([silent.getsockname()], b"word") == {0: "no answer within 0.3 s, as behind a firewall"}


@pytest.mark.parametrize(
    ("interface", "address", "words"),
    [
        (None, "127.0.0.1", "127.0.0.1 (127.0.0.1) is a loopback address here, expected the other node's"),
        (None, "127.0.1.1", "is a loopback address here"),  # what Debian gives a machine's own name
        (None, "localhost", "is a loopback address here"),
        (None, "no-such-name.invalid", "the name no-such-name.invalid does not resolve here"),
        ("no-such", "10.0.0.2", "the interface no-such has no address here; there are lo"),
    ],
)
def test_a_node_without_a_way_to_its_peers_says_why(interface: str | None, address: str, words: str) -> None:
    with pytest.raises(NoInterface) as error:
        own_address(interface, address)
    assert words in str(error.value)
    with peer(interface=interface, peer=address) as process:
        assert words in answer(process)["error"]


def test_the_interface_of_the_collectives_follows_from_the_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipaddress.IPv4Address, "is_loopback", False)
    assert route_to("127.0.0.1") == ("127.0.0.1", "lo")
    assert peer_calls.interface_variables("127.0.0.1") == dict.fromkeys(INTERFACE_VARIABLES, "lo")


def test_a_node_whose_peer_is_itself_starts_no_rank(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.run(node.work("raise SystemExit(3)", peer="127.0.1.1")) == 1
    assert node.ended()["cause"] == "launch-error" and "loopback address here" in node.ended()["evidence"]
    assert not [line for line in node.record() if line["event"] == "ranks-started"]
