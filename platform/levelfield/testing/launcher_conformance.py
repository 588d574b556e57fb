"""The suite for launchers as a test class for an author's own CI. pytest runs it; this module does not import it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import FIRST_NODE, Request
from levelfield.errors import LevelfieldError
from levelfield.node.common_work import COMMON_KEY, NUMBERED_KEY, join_work
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import runner, scheduler
from levelfield.run.launchers import launcher_file, runtime_and_launcher
from levelfield.run.launchers.node_content import SCHEMA
from levelfield.run.runner import Listener
from levelfield.rundir.directory import new_run_id
from levelfield.rundir.follower import StepProgress
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.site import HostsFile, LaunchPlan, Site
from levelfield.specs.tuning import TuningChoice
from levelfield.testing.findings import Fails, NotOk
from levelfield.testing.rehearsal import DRILL_FOLDER
from levelfield.testing.subject import marked_processes

SECRET = "a-conformance-value-that-no-file-may-hold"
MARK_VARIABLE = "DRILL_MARK"
PATIENCE_SECONDS = 10.0  # for processes that were ended and have not gone yet
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
_DYNAMIC_RENDEZVOUS = ("--rdzv", "c10d", "etcd")  # a rendezvous that chooses rank 0 by itself
_FINISHED_STEPS = [1, 2]
_NODE_SCHEMA = f'"{SCHEMA}"'
Check = Callable[["LauncherSubject"], str]


@dataclass(frozen=True)
class LaunchedRun:
    """A run that has ended."""

    result: Result
    paths: RunPaths
    outcome: dict[str, Any]  # the content of outcome.json
    nodes: list[dict[str, Any]]  # the ends of the nodes in outcome.json
    reason: str  # why it ended so
    left: tuple[str, ...]  # processes that still run


def marked_processes_here(mark: str) -> Sequence[str]:
    """Return the processes of this machine with a mark."""
    return [f"process {p.pid} ({p.info['name']})" for p in marked_processes(MARK_VARIABLE, mark)]


@dataclass
class LauncherSubject:
    """The state that all checks of one launcher share."""

    launch: LaunchPlan
    runs: Path  # the folder of runs; for a launcher that shares files, one that the nodes see
    plugins: tuple[Path, ...] = ()
    nodes: int = 2  # or more
    # returns the processes on the nodes whose variable DRILL_MARK has this value
    left: Callable[[str], Sequence[str]] = marked_processes_here
    temporary: object = None  # held so that it is deleted with the subject, such as a temporary folder
    shared: dict[str, LaunchedRun] = field(default_factory=dict)

    def plan(self, fault: str = "none", mark: str = "none") -> Plan:
        """Return the plan of the simulated training. Raises Fails where the platform refuses it."""
        variables = {"DRILL_FAULT": fault, MARK_VARIABLE: mark, "DRILL_TOKEN": SECRET}
        python = self.launch.site.python or sys.executable
        choice = TuningChoice(environment=variables)
        request = UserRequest("smoke", choice, python=python, launch=self.launch, preflight=False)
        registry = Registry([DRILL_FOLDER, DRILL_FOLDER / "hosts", *self.plugins])
        try:
            (job,) = scheduler.plan_jobs(registry, [Entry(f"drill:drill:drill:{self.nodes}:1", request)], None)
        except LevelfieldError as error:
            raise Fails(f"the platform refused the plan: {error}", "correct the site's file or the hosts") from None
        self._vendor = job.vendor
        return job.plan

    def request(self) -> Request:
        """Return a request of a plan that is always the same."""
        plan = self.plan().model_copy(update={"run_id": "20260102T030405Z_drill_drill_drill_abcdef"})
        runtime, launcher = runtime_and_launcher(plan)
        return launcher.request(plan, RunPaths(self.runs / plan.run_id), runtime)

    def run(self, fault: str, interrupted_at: int | None = None) -> LaunchedRun:
        """Run once for each fault. interrupted_at: the step after which the user interrupts."""
        if fault in self.shared:
            return self.shared[fault]
        mark = uuid.uuid4().hex
        plan = self.plan(fault, mark)
        plan = plan.model_copy(update={"run_id": new_run_id("drill", "drill", f"{plan.hardware.vendor}-{fault}")})
        interrupted_steps: list[int] = []

        def step(plan: Plan, progress: StepProgress) -> None:
            if interrupted_at is not None and not interrupted_steps and progress.step >= interrupted_at:
                interrupted_steps.append(progress.step)
                raise KeyboardInterrupt

        listener = Listener(lambda sentence: None, step)
        result = runner.run(plan, self._vendor, self.runs, listener, "conformance")
        paths = RunPaths(self.runs / plan.run_id)
        outcome = json.loads(paths.outcome.read_text(encoding="utf-8"))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := self.left(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        reason = str(outcome.get("evidence") or result.status.evidence)
        self.shared[fault] = LaunchedRun(result, paths, outcome, list(outcome.get("nodes", ())), reason, tuple(left))
        return self.shared[fault]


class LauncherConformance:
    """The base of a test class: a subclass named Test... with `launcher` has one test for each check.

    plugins: folders with launchers/NAME/launcher.py. site: the site's file. hosts: a hosts file. runs: a folder that
    the nodes see, where they must; default: a temporary one. requests_only: no runs, for a machine without the engine.
    """

    launcher: ClassVar[str]
    plugins: ClassVar[Sequence[Path]] = ()
    site: ClassVar[Path | None] = None
    hosts: ClassVar[Path | None] = None
    runs: ClassVar[Path | None] = None
    nodes: ClassVar[int] = 2
    requests_only: ClassVar[bool] = False

    @staticmethod
    def left(mark: str) -> Sequence[str]:
        """Return the processes on the nodes whose variable DRILL_MARK has this value; by default this machine's."""
        return marked_processes_here(mark)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if "launcher_check" in metafunc.fixturenames:
            metafunc.parametrize("launcher_check", REQUEST_CHECKS if self.requests_only else LAUNCHER_CHECKS)

    def test_launcher(self, launcher_check: str) -> None:
        try:
            LAUNCHER_CHECKS[launcher_check](self._subject())
        except NotOk as fault:
            raise AssertionError(f"{launcher_check}: {fault.says}. {fault.do}") from None

    @classmethod
    def _subject(cls) -> LauncherSubject:
        """Return the state of this test class, which its checks share. A temporary folder goes with the process."""
        if cls not in _SUBJECTS:
            temporary = None if cls.runs else tempfile.TemporaryDirectory(prefix="levelfield-launcher-")
            runs = cls.runs or Path(str(temporary and temporary.name))
            site = load(Site, cls.site) if cls.site else Site()
            hosts = load(HostsFile, cls.hosts).hosts[: cls.nodes] if cls.hosts else ()
            code = launcher_file(cls.launcher, cls.plugins)
            launch = LaunchPlan(launcher=cls.launcher, code=code, site=site, hosts=hosts)
            plugins = tuple(path.absolute() for path in cls.plugins)
            _SUBJECTS[cls] = LauncherSubject(launch, runs, plugins, cls.nodes, cls.left, temporary)
        return _SUBJECTS[cls]


_SUBJECTS: dict[type[LauncherConformance], LauncherSubject] = {}


# ---- the checks: each returns a sentence when all is good, or raises NotOk


def pure(subject: LauncherSubject) -> str:
    """Check that a request has no effect, and is the same twice, whatever the variables of the caller say."""
    before = set(subject.runs.rglob("*"))
    first = subject.request()
    variables = dict(os.environ)
    os.environ.update({"LEVELFIELD_CONFORMANCE": "1", "MASTER_ADDR": "192.0.2.1", "RANK": "99"})
    try:
        second = subject.request()
    finally:
        os.environ.clear()
        os.environ.update(variables)
    if first != second:
        raise Fails("two requests of one plan differ", "take nothing from the clock, the environment or a counter")
    if set(subject.runs.rglob("*")) != before:
        raise Fails("request() wrote a file", "write files in execute(); give their text in Submission.files")
    return "two requests are equal, and none wrote a file"


def ranks(subject: LauncherSubject) -> str:
    """Check that every rank of every node is in the request once, in order, with its place."""
    request, world = subject.request(), subject.nodes
    processes = [process for node in request.nodes for process in node.processes]
    rank_numbers = [process.rank for process in processes]
    if rank_numbers != list(range(world)) or [node.node_rank for node in request.nodes] != list(range(subject.nodes)):
        raise Fails(f"ranks {rank_numbers}, expected {list(range(world))}", "use request_for_nodes, and drop no node")
    for process in processes:
        expected = {"RANK": str(process.rank), "WORLD_SIZE": str(world), "NODE_RANK": str(process.rank)}
        wrong = {name for name, value in expected.items() if process.environment.get(name) != value}
        if wrong:
            raise Fails(f"rank {process.rank}: {', '.join(sorted(wrong))} is wrong", "use request_for_nodes")
    return f"{world} ranks on {subject.nodes} nodes"


def submitted(subject: LauncherSubject) -> str:
    """Check that what is sent has the work of every rank once. A dry run prints it."""
    rank_numbers: list[int] = []
    decoder = json.JSONDecoder()
    request = subject.request()
    for submission in request.submissions:
        texts = [*submission.files.values(), f"{submission.stdin or ''}{request.common_stdin}"]
        rests = [decoder.raw_decode(text)[0] for text in texts if text.startswith(f'{{"{COMMON_KEY}": ')]
        for text in texts:  # the JSON of a node, or what all nodes have in common, is one of them or a part of one
            start = text.find(_NODE_SCHEMA)
            while start >= 0:
                try:
                    content, end = decoder.raw_decode(text, text.rfind("{", 0, start))
                except ValueError:
                    content, end = None, start + 1
                if isinstance(content, dict):
                    works = [content]
                    if NUMBERED_KEY in content:
                        numbers = [{"node_rank": node} for node in range(subject.nodes)]
                        works = [join_work(content, rest) for rest in rests or numbers]
                    rank_numbers += [process["rank"] for work in works for process in work.get("processes", ())]
                start = text.find(_NODE_SCHEMA, max(end, start + 1))
    rank_numbers.sort()
    if rank_numbers != list(range(subject.nodes)):
        expected = f"expected {list(range(subject.nodes))} once each"
        raise Fails(
            f"the submissions have ranks {rank_numbers}, {expected}", "put node_content of every node into them"
        )
    return "the submissions have every rank once"


def rendezvous(subject: LauncherSubject) -> str:
    """Check that all ranks have one fixed address and port, which other machines can reach."""
    request, (first, last) = subject.request(), subject.launch.site.ports
    processes = [process for node in request.nodes for process in node.processes]
    addresses = {(p.environment.get("MASTER_ADDR"), p.environment.get("MASTER_PORT")) for p in processes}
    if len(addresses) != 1:
        raise Fails(f"{len(addresses)} rendezvous places, expected one", "give every rank the first node's address")
    address, port = addresses.pop()
    if not str(port).isdecimal() or not first <= int(str(port)) <= last:
        raise Fails(f"MASTER_PORT {port}, expected a number from {first} to {last}", "use request_for_nodes")
    try:
        ip = ipaddress.ip_address(str(address))
        is_local = ip.is_loopback or ip.is_unspecified
    except ValueError:
        is_local = str(address).lower() in _LOCAL_NAMES or not address
    if address != FIRST_NODE and is_local:
        raise Fails(f"MASTER_ADDR {address} is each node itself", f"give the first node's address, or {FIRST_NODE}")
    words = [word for p in processes for word in p.argv if word.startswith(_DYNAMIC_RENDEZVOUS)]
    if words:
        raise Fails(f"argv has {words[0]}", "start ranks as the request has them, without a dynamic rendezvous")
    return f"{address}, port {port}"


def secrets(subject: LauncherSubject) -> str:
    """Check that no text of the request has a secret's value."""
    request = subject.request()
    text = json.dumps([[list(s.argv), dict(s.files), s.stdin] for s in request.submissions])
    if SECRET in text:
        raise Fails("a submission has a secret's value", "use node_content; send secrets_of(plan) in execute() alone")
    if SECRET in json.dumps(request.to_dict()):
        raise Fails("request.json would have a secret's value", "keep secrets in the variables of processes")
    return "no submission has a secret"


def runs(subject: LauncherSubject) -> str:
    """Check a whole run: it is valid, and all evidence of every node is there."""
    run = subject.run("none")
    if run.outcome["cause"] != "exited" or run.result.status.word != "valid":
        raise Fails(f"cause {run.outcome['cause']}, {run.result.status.word}: {run.reason}", "see logs/ of the run")
    if bad := [node["name"] for node in run.nodes if node["word"] != "ended" or node["missing"]]:
        raise Fails(f"nodes {', '.join(bad)}: {run.nodes}", "bring the files of every node into the run directory")
    _check_ends(run, subject.nodes)
    return f"valid on {subject.nodes} nodes, with all evidence"


def secret_arrives(subject: LauncherSubject) -> str:
    """Check that the secret reached every rank, and no file of the run."""
    run = subject.run("none")
    line = f"token {hashlib.sha256(SECRET.encode()).hexdigest()}"
    for rank in range(subject.nodes):
        log = run.paths.logs / f"rank{rank}.log"
        if not log.is_file() or line not in log.read_text(errors="replace"):
            raise Fails(f"rank {rank} did not get the secret", "give each node the variables of secrets_of(plan)")
    files = (path for path in run.paths.root.rglob("*") if path.is_file())
    if holding := [path for path in files if SECRET.encode() in path.read_bytes()]:
        raise Fails(f"{holding[0]} has the secret", "send secrets by a way that leaves no file")
    return "it reached every rank, and no file"


def failure(subject: LauncherSubject) -> str:
    """Check that a killed rank is the cause, with its node's name, and that the finished steps are kept."""
    run = subject.run("killed")
    if run.outcome["cause"] != "rank-failed":
        raise Fails(f"cause {run.outcome['cause']}: {run.reason}", "the first cause decides, not what follows from it")
    last = subject.nodes - 1
    ends = _check_ends(run, subject.nodes)
    if ends[last]["signal"] != 9:
        raise Fails(f"rank {last}: {ends[last]}, expected signal 9", "read ends from each node's record")
    words = [node["word"] for node in run.nodes]
    if words[last] != "failed" or "failed" in words[:last]:
        raise Fails(f"the nodes' words are {words}", "only the node with the killed rank failed")
    if _steps(run, last)[:2] != _FINISHED_STEPS:
        raise Fails(f"steps {_steps(run, last)} of rank {last}", "bring the events also after a failure")
    return str(run.outcome["evidence"])


def interrupted(subject: LauncherSubject) -> str:
    """Check that a user's interrupt ends every rank on every node, and keeps the finished steps."""
    run = subject.run("waits", interrupted_at=2)
    if run.outcome["cause"] != "interrupted":
        raise Fails(f"cause {run.outcome['cause']}: {run.reason}", "return `interrupted` for KeyboardInterrupt")
    _check_ends(run, subject.nodes)
    if _steps(run, 0)[:2] != _FINISHED_STEPS:
        raise Fails(f"steps {_steps(run, 0)} of rank 0", "bring the events also after an interrupt")
    return "every rank ended, and the steps are kept"


def nothing_left(subject: LauncherSubject) -> str:
    """Check that no process of a run is left, however it ended."""
    ended_runs = (subject.run("none"), subject.run("killed"), subject.run("waits", interrupted_at=2))
    if left := [process for run in ended_runs for process in run.left]:
        raise Fails(f"left behind: {', '.join(left[:4])}", "execute() ends every process before it returns or raises")
    return "no process is left after three runs"


REQUEST_CHECKS: Mapping[str, Check] = {
    "pure": pure, "ranks": ranks, "submitted": submitted, "rendezvous": rendezvous, "secrets": secrets,
}  # fmt: skip
LAUNCHER_CHECKS: Mapping[str, Check] = {
    **REQUEST_CHECKS, "runs": runs, "secret-arrives": secret_arrives, "failure": failure, "interrupted": interrupted,
    "nothing-left": nothing_left,
}  # fmt: skip


def _check_ends(run: LaunchedRun, world: int) -> list[dict[str, Any]]:
    """Return the ends of all ranks. Raises Fails where a rank or a node has none."""
    ends: list[dict[str, Any]] = run.outcome["ends"]
    if [end["rank"] for end in ends] != list(range(world)):
        raise Fails(f"ends of ranks {[end['rank'] for end in ends]}", f"report an end for each of {world} ranks")
    if [node["node_rank"] for node in run.nodes] != list(range(world)):
        raise Fails(f"ends of {len(run.nodes)} nodes, expected {world}", "report a NodeEnd for each node")
    return ends


def _steps(run: LaunchedRun, rank: int) -> list[int]:
    path = run.paths.events / f"rank{rank}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [event["step"] for event in map(json.loads, lines) if event.get("event") == "step"]
