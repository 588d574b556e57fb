"""A node that freezes, hangs, floods, dies or is disconnected in each phase of a run over ssh.

Each run ends in time with its word, the steps that both ranks finished are judged, and nothing stays on a node.
With `-s` each prints its row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from driving import finished
from fleet import Fleet, running, wait_until

pytestmark = [pytest.mark.machines, pytest.mark.thorough]
STEPS, MAX_SECONDS = 60, 150
PHASES = ("preparing", "starting", "training", "ending", "collecting")
FAULTS = ("freeze", "hang", "flood", "die", "disconnect")
# The second host's Python. At its phase it says so in `arrived`, and waits for `go`. A flood repeats a right line on
# standard output and another on standard error for as long as both are open.
PYTHON = """#!/bin/sh
place={place} python={python}
waits() {{ echo $$ >$place/arrived; while [ ! -e $place/go ]; do sleep 0.05; done; }}
floods() {{ yes "$1" & yes "a line of a driver" >&2 & }}
case "$(hostname) {phase} $*" in
"{host} preparing -c "*) waits; [ {kind} != flood ] || floods '{{"say":"a line of a driver"}}' ;;
"{host} starting "*train.py*) waits ;;
"{host} ending "*train.py*) "$python" "$@"; code=$?; waits; exit $code ;;
"{host} collecting "*"node_agent.py fetch"*) waits; [ {kind} != flood ] || floods '{{"beat":1}}' ;;
"{host} "*"node_agent.py run"*)
  [ {kind} != flood ] || (until [ -e $place/flow ]; do sleep 0.05; [ -d $place ] || exit; done
    floods '{{"beat":1}}') & ;;
esac
exec "$python" "$@"
"""


class Fault:
    """One fault on the second host, at one phase of a run. `happen` makes it, `mend` takes it back."""

    def __init__(self, fleet: Fleet, place: Path, kind: str, phase: str) -> None:
        self._fleet, self._place, self._kind, self._phase = fleet, place, kind, phase
        self.host = fleet.cluster.hosts[1]
        self._sshd = psutil.Process(fleet.cluster.process(f"sshd.{self.host}"))
        self._stopped: list[psutil.Process] = []
        place.mkdir()
        python = place / "python"
        names = {"place": place, "python": sys.executable, "host": self.host, "phase": phase, "kind": kind}
        python.write_text(PYTHON.format(**names))
        python.chmod(0o755)
        fleet.write(lambda host: {**host, "python": str(python)} if host["name"] == self.host else host)
        self.arguments = ("--python", str(python), "--steps", str(STEPS), "--env", "FAKE_STEP_SECONDS=0.02")

    def happen(self, process: subprocess.Popen[str]) -> None:
        """Wait for the phase, and break the host."""
        if self._phase == "collecting":
            self._fleet.wait_for_step(process, 5, 1)
            (connection,) = self._fleet.processes("node_agent.py run", "ssh ", self.host)
            os.kill(connection, signal.SIGKILL)
        if self._phase == "training":
            self._fleet.wait_for_step(process, 5, 1)
        else:
            assert wait_until((self._place / "arrived").exists, 60), finished(process).stderr
        getattr(self, f"_{self._kind}")()
        (self._place / "go").touch()

    def _machine(self) -> list[psutil.Process]:
        """The host's own processes: what sshd started, and what has no parent any more."""
        children = self._sshd.children(recursive=True)
        left = [pid for pid in self._fleet.processes() if _network(pid) == _network(self._sshd.pid)]
        by_number = {process.pid: process for process in children}
        for pid in left:
            with suppress(psutil.NoSuchProcess):
                by_number.setdefault(pid, psutil.Process(pid))
        return list(by_number.values())

    def _freeze(self) -> None:
        """Everything on the machine stands still."""
        self._stop([self._sshd, *self._machine()])

    def _hang(self) -> None:
        """Only what Levelfield started stands still; ssh answers."""
        self._stop([process for process in self._machine() if _name(process) != "sshd"])

    def _stop(self, processes: list[psutil.Process]) -> None:
        self._stopped = processes
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def _flood(self) -> None:
        (self._place / "flow").touch()

    def _die(self) -> None:
        for process in self._machine():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _disconnect(self) -> None:
        self._link("down")

    def _link(self, state: str) -> None:
        subprocess.run(["ip", "-n", self._fleet.cluster.switch, "link", "set", f"v-{self.host}", state], check=True)

    def mend(self) -> None:
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        if self._kind == "disconnect":
            self._link("up")


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _network(process: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{process}/ns/net").readlink())
    return ""


@pytest.fixture
def breaking(fleet: Fleet, tmp_path: Path, kind: str, phase: str) -> Iterator[Fault]:
    fault = Fault(fleet, tmp_path / "place", kind, phase)
    yield fault
    fault.mend()
    assert wait_until(lambda: not [line for _, line in running() if str(tmp_path) in line], 90)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_node_that_breaks_ends_the_run_with_its_word(fleet: Fleet, breaking: Fault, kind: str, phase: str) -> None:
    begun = time.monotonic()
    process = fleet.start(*(word for word in fleet.command(*breaking.arguments)))
    breaking.happen(process)
    try:
        out, err = process.communicate(timeout=MAX_SECONDS)
    finally:
        breaking.mend()
    seconds = time.monotonic() - begun
    assert "Traceback" not in out + err, err
    outcome, steps = fleet.outcome(), fleet.result()["steps_done"]
    words = [node["word"] for node in outcome["nodes"]]
    row = [kind, phase, process.returncode, outcome["cause"], words, steps, round(seconds), outcome["evidence"]]
    print("row:", json.dumps(row))
    if kind == "flood" and phase != "preparing" and row[2] == 0:  # its lines were whole ones, which say nothing
        assert (words, steps) == (["ended", "ended"], STEPS), row
        return
    assert (kind, phase) != ("flood", "ending"), row
    assert row[2] == 3 and breaking.host in outcome["evidence"], row
    if phase == "preparing":
        assert outcome["cause"] in ("unreachable", "environment") and len(words) == 1 and steps == 0, row
    else:
        assert outcome["cause"] == "node-lost" and words[1] == "lost", row
        assert steps >= {"starting": 0, "training": 4, "ending": STEPS - 10, "collecting": 4}[phase], row
