"""What tests of many machines share: the machines' names and files, and questions to Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driving import ROOT, Benchmark


@dataclass(frozen=True)
class Cluster:
    """The machines of `.ci/cluster`. folder: of its daemons' files."""

    ssh_config: Path
    hosts: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.ssh_config.parent

    @property
    def ssh(self) -> tuple[str, ...]:
        return ("ssh", "-F", str(self.ssh_config))

    @property
    def switch(self) -> str:
        """The network namespace of the bridge: a host's end of it is called v-HOST."""
        return self.hosts[0].removesuffix("host1") + "sw"

    def process(self, daemon: str) -> int:
        """Return the process number of a daemon: `slurmctld`, `slurmd.HOST`, `sshd.HOST`."""
        return int((self.folder / "run" / f"{daemon}.pid").read_text())

    def on(self, host: str, *command: str) -> None:
        """Run a command on a host, with its network, name and files."""
        process = str(self.process(f"sshd.{host}"))
        argv = ["nsenter", "--target", process, "--mount", "--uts", "--net", *command]
        subprocess.run(argv, check=True, capture_output=True, timeout=20)

    @contextmanager
    def firewall(self) -> Iterator[None]:
        """The commonest firewall: ssh and the rendezvous pass, and calls of others to high ports are dropped."""
        rule = ("INPUT", "-i", "eth0", "-p", "tcp", "--syn", "--dport", "32768:60999", "-j", "DROP")
        for host in self.hosts:
            self.on(host, "iptables", "--append", *rule)
        try:
            yield
        finally:
            for host in self.hosts:
                self.on(host, "iptables", "--delete", *rule)

    @contextmanager
    def own_names_on_loopback(self, folder: Path) -> Iterator[None]:
        """As Debian installs a machine: /etc/hosts of each host gives its own name 127.0.1.1."""
        lines = (self.folder / "hosts").read_text().splitlines()
        for host in self.hosts:
            host_lines = [f"127.0.1.1 {host}" if line.endswith(f" {host}") else line for line in lines]
            (folder / f"hosts.{host}").write_text("\n".join(host_lines) + "\n")
            self.on(host, "mount", "--bind", str(folder / f"hosts.{host}"), "/etc/hosts")
        try:
            yield
        finally:
            for host in self.hosts:
                self.on(host, "umount", "/etc/hosts")

    def own(self, host: str, path: str) -> Path:
        """Return where this machine sees a path below one of a host's own folders."""
        return self.folder / host / path.lstrip("/")


def cluster_at(ssh_config: Path) -> Cluster:
    words = [line.split() for line in ssh_config.read_text().splitlines()]
    return Cluster(ssh_config, tuple(w[1] for w in words if w[:1] == ["Host"] and w[1] != "*"))


def answer(*argv: str) -> str:
    """Return what a command of Slurm printed; an empty text where it failed."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def idle_nodes(cluster: Cluster, seconds: float) -> bool:
    """Return whether all nodes are idle, now or within some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        idle = answer("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()
        if set(idle) == set(cluster.hosts):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def jobs_of(states: str = "PENDING,RUNNING,COMPLETING") -> list[str]:
    """Return the numbers of all jobs in these states."""
    return answer("squeue", "-h", "-t", states, "-o", "%i").split()


def jobs_left(before: set[str], seconds: float) -> list[str]:
    """Return the jobs beside these that have not ended within some seconds."""
    deadline = time.monotonic() + seconds
    while left := sorted(set(jobs_of()) - before):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.2)
    return []


# A site of the tests: the nodes' own network, and folders that both nodes see.
SITE = {"schema": "levelfield.site/1", "launcher": "slurm", "interface": "eth0"}
PRETENDED = ("--plugins", str(ROOT / "tests/core/plugins"), "--plugins", str(ROOT / "tests/containers/plugins"))
LONG = ("--case", "long:fake:fake:2:1", *PRETENDED, "--python", sys.executable)  # time to break something
TINY = ("--case", "tiny:fake:fake:2:1", *PRETENDED, "--python", sys.executable)


def site(folder: Path, **slurm: object) -> tuple[str, ...]:
    """Return the arguments of a site with these settings of Slurm. Its file is written to the folder."""
    path = folder / "site.json"
    path.write_text(json.dumps({**SITE, "slurm": slurm}))
    return ("--site", str(path))


def slurm_job_number(run: Path) -> str:
    """Return the number of a run's job."""
    return str(json.loads((run / "nodes" / "engine.json").read_text())["job"])


def node_agent(run: Path, node: int) -> int:
    """Return the process number of a node's agent, which has begun."""
    lines = (run / f"nodes/node{node}.record.jsonl").read_text().splitlines()
    return int(next(event for event in map(json.loads, lines) if event["event"] == "started")["process"])


def print_before(benchmark: Benchmark, folder: Path, text: str, *commands: str) -> None:
    """Let commands of Slurm print a text before their answers, as the wrapper of a site does."""
    folder.mkdir()
    for name in commands:
        (folder / name).write_text(f"#!/bin/sh\necho '{text}'\nexec /usr/bin/{name} \"$@\"\n")
        (folder / name).chmod(0o755)
    benchmark.variables["PATH"] = f"{folder}:{benchmark.variables['PATH']}"


@contextmanager
def epilog(cluster: Cluster, seconds: int) -> Iterator[None]:
    """Let each job's end take so long on its nodes. Nodes that still clean up at the block's end do so afterwards."""
    script, conf = cluster.folder / "epilog", cluster.folder / "slurm.conf"
    content = conf.read_text()
    script.write_text(f"#!/bin/sh\nsleep {seconds}\n")
    script.chmod(0o755)
    try:
        conf.write_text(f"{content}Epilog={script}\n")
        subprocess.run(["scontrol", "reconfigure"], check=True, timeout=20)
        yield
    finally:
        conf.write_text(content)
        subprocess.run(["scontrol", "reconfigure"], check=True, timeout=20)
        script.unlink()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.1)


def restarted(lost: str | None = None) -> None:
    """Start the daemons of the cluster that a test has ended. lost: a node whose jobs Slurm has to give up at once.

    Else Slurm asks the node again and again how its job ended, which a daemon that was killed does not know.
    """
    subprocess.run([str(ROOT / ".ci/cluster"), "up"], check=True, capture_output=True, timeout=120)
    for state in ("DOWN", "RESUME") if lost else ():
        argv = ["scontrol", "update", f"NodeName={lost}", f"State={state}", "Reason=lost by a test"]
        subprocess.run(argv, check=True, capture_output=True, timeout=20)
