"""Runs over the test machines as a user starts them, with a training that only pretends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster_shared import Cluster
from driving import PRETENDING, Benchmark

INTERFACE = "eth0"


class Fleet(Benchmark):
    """A runs folder, a site's file and a hosts file for the test machines.

    folder: on the nodes. A training that pretends meets its ranks in files, so its folder is one that both see.
    """

    def __init__(self, cluster: Cluster, tmp_path: Path, folder: Path) -> None:
        super().__init__(tmp_path / "runs", tmp_path / "cache", FAKE_DEVICES="2")
        self.cluster, self.folder, self._place = cluster, folder, tmp_path
        self.write()

    def write(self, hosts: Callable[[dict[str, Any]], dict[str, Any]] = dict, **ssh: Any) -> None:
        """Write both files. hosts: changes each host's entry; ssh: the site's ssh part."""
        entries = [
            {"name": host, "address": self.address(host), "interface": INTERFACE, "python": sys.executable}
            for host in self.cluster.hosts
        ]
        document = {"schema": "levelfield.hosts/1", "hosts": [hosts(entry) for entry in entries]}
        (self._place / "hosts.json").write_text(json.dumps(document))
        part = {"config": str(self.cluster.ssh_config), "folder": str(self.folder), "connect_seconds": 5, **ssh}
        site = {"schema": "levelfield.site/1", "launcher": "ssh", "hosts": str(self._place / "hosts.json"), "ssh": part}
        (self._place / "site.json").write_text(json.dumps(site))

    def address(self, host: str) -> str:
        words = [line.split() for line in self.cluster.ssh_config.read_text().splitlines()]
        place = words.index(["Host", host])
        return next(line[1] for line in words[place:] if line[0] == "HostName")

    def command(self, *arguments: str, case: str = "long:fake:F1:2:1") -> tuple[str, ...]:
        options = ("--case", case, *PRETENDING, "--python", sys.executable, "--no-preflight")
        return (*options, "--site", str(self._place / "site.json"), *arguments)

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        """The command, once both ranks have done some steps."""
        process = self.start(*self.command(*arguments))
        for rank in (0, 1):
            self.wait_for_step(process, 5, rank)
        return process

    def ended(self, process: subprocess.Popen[str]) -> str:
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in out + err, err
        return out + err

    def outcome(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.only_run() / "outcome.json").read_text())
        return content

    def words(self) -> list[str]:
        return [node["word"] for node in self.outcome()["nodes"]]

    def record(self, node: int) -> list[dict[str, Any]]:
        path = self.only_run() / f"nodes/node{node}.record.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def processes(self, *words: str) -> list[int]:
        """Return the numbers of the processes of this test's nodes and ranks whose command has all words."""
        mine = (str(self.folder), *words)
        return [pid for pid, line in running() if pid != os.getpid() and all(word in line for word in mine)]

    def nothing_is_left(self) -> bool:
        """Whether no node's part and no rank runs, now or shortly after."""
        return wait_until(lambda: not self.processes(f"{self.folder}/code/"))

    def killed_platform_leaves_nothing(self) -> bool:
        """Kill the platform of a run. Whether its ranks and all else of it ended."""
        process = self.begun()
        ranks = [self.rank(node) for node in (0, 1)]
        process.kill()
        process.communicate(timeout=30)
        return have_ended(ranks) and self.nothing_is_left()

    def agent(self, node: int) -> int:
        return int(next(line for line in self.record(node) if line["event"] == "started")["process"])

    def rank(self, node: int) -> int:
        return int(next(line for line in self.record(node) if line["event"] == "ranks-started")["processes"][0])


def running() -> Iterator[tuple[int, str]]:
    """Return the number and the command of every process of this machine."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            yield int(place.parent.name), place.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def have_ended(processes: list[int], seconds: float = 30) -> bool:
    """Whether these processes ended before long."""
    return wait_until(lambda: not [pid for pid in processes if Path(f"/proc/{pid}").exists()], seconds)


def wait_until(condition: Callable[[], Any], seconds: float = 30) -> bool:
    """Whether the condition came true before long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(condition())
