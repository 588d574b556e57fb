"""Runs on a simulated cluster whose platform, a process of its own, is left, cancelled or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import Benchmark, until_step
from levelfield.testing.rehearsal import DRILL_FOLDER
from simulated_cluster import Kubelet, SimulatedCluster, served

pytest.importorskip("kubernetes")


class Detached(Benchmark):
    """A detached run of two pods."""

    def __init__(self, folder: Path, play: Callable[[SimulatedCluster], None] | None = None) -> None:
        super().__init__(folder / "runs", folder / "cache", LEVELFIELD_STORE="none")
        self.kubelet = Kubelet(folder / "pods", uuid.uuid4().hex)
        self.api = SimulatedCluster(play or self.kubelet.play)
        self.id = ""
        kubernetes = {"namespace": "benchmarks", "image": "example.org/image:1"}
        site = {"schema": "levelfield.site/1", "launcher": "kubernetes", "kubernetes": kubernetes}
        (folder / "site.json").write_text(json.dumps(site))
        self._folder = folder

    def begin(self, fault: str) -> None:
        plugins = ("--plugins", str(DRILL_FOLDER), "--plugins", str(DRILL_FOLDER / "hosts"))
        options = ("--scale", "smoke", "--no-certificate", "--python", sys.executable, "--detach")
        site = ("--site", str(self._folder / "site.json"))
        secrets = ("--env", f"DRILL_FAULT={fault}", "--env", "DRILL_TOKEN=stays-secret")
        done = self.run("--case", "drill:drill:drill:2:1", *plugins, *options, *site, *secrets)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[1]

    def status(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.run("run", "status", self.id, "--json").stdout)
        return content

    def platform(self) -> int:
        content = json.loads((self.runs / "detached" / self.id / "call.json").read_text())
        return int(content["platform"]["process"])

    def kill(self) -> None:
        os.kill(self.platform(), signal.SIGKILL)

    def living_pods(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.kubelet.processes if process.poll() is None]


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Detached]:
    run = Detached(tmp_path)
    with served(run.api, tmp_path) as config:
        run.variables["KUBECONFIG"] = str(config)
        yield run
        run.stop()
        run.kubelet.end()
    assert not run.living_pods()


def test_pods_go_on_without_their_platform_and_attach_judges_them(detached: Detached) -> None:
    """It is killed when the Job is there, before its pods."""
    play, killed = detached.kubelet.play, []

    def kill_first(api: SimulatedCluster) -> None:
        while not detached.id:
            time.sleep(0.05)
        time.sleep(1)  # the platform watches
        detached.kill()
        killed.append(api.main()["metadata"]["name"])
        play(api)

    detached.api._played = kill_first
    detached.begin("none")
    while not killed or detached.living_pods() or len(detached.kubelet.processes) < 2:
        time.sleep(0.1)
    status = detached.status()
    assert status["state"] == "killed" and status["engine"]["job"] == killed[0]
    assert f"job/{killed[0]} of namespace benchmarks" in status["still_alive"]
    done = detached.run("run", "attach", detached.id)
    assert done.returncode == 0 and "valid" in done.stdout, done.stderr
    assert detached.status()["exit_code"] == 0 and detached.api.objects == {}
    assert not [p for p in detached.runs.rglob("*") if p.is_file() and b"stays-secret" in p.read_bytes()]


@pytest.mark.thorough  # test_run_control.py cancels calls, test_kubernetes_launcher.py ends a Job's pods
@pytest.mark.parametrize("is_killed", [True, False])
def test_cancel_ends_the_pods_and_judges_what_was_measured(detached: Detached, is_killed: bool) -> None:
    detached.begin("waits")
    until_step(detached.runs, 2)
    if is_killed:
        detached.kill()
        assert detached.living_pods()
    done = detached.run("run", "cancel", detached.id)
    assert done.returncode == 0, done.stderr
    result = json.loads((detached.runs / detached.id / "result.json").read_text())
    assert result["status"]["failure"] == "interrupted" and result["steps_done"] == 2
    assert not detached.living_pods() and detached.api.objects == {}
    assert detached.status()["exit_code"] == 130


@pytest.mark.thorough
def test_who_leaves_the_pods_does_not_end_them(detached: Detached) -> None:
    detached.begin("waits")
    until_step(detached.runs, 2)
    detached.kill()
    attached = detached.start("run", "attach", detached.id)
    assert attached.stderr and "attached to job/" in attached.stderr.readline()
    attached.send_signal(signal.SIGINT)
    assert attached.wait(60) == 130
    assert detached.living_pods()
    assert detached.status()["still_alive"]
