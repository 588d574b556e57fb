"""The launcher for Kubernetes with the real client, a simulated API, and pods whose command really runs here."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import NodeWord, NodeWork, Outcome, ProcessWork, Request
from levelfield.run.launchers.kubernetes import cluster_api, cluster_run
from levelfield.run.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from levelfield.run.launchers.kubernetes.pod_watch import PodState
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import KubernetesSite, LaunchPlan, Site
from levelfield.testing.rehearsal import DRILL_FOLDER
from plans import make_plan
from simulated_cluster import Kubelet, SimulatedCluster, served

SECRET = "a-value-that-stays-secret"
MARK = "LEVELFIELD_TEST_MARK"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}


class Cluster:
    """A simulated cluster for one run of the drill, and what the launcher made of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.said: list[str] = []
        self.kubelet = Kubelet(folder / "pods", self.mark)
        self.api = SimulatedCluster(self.kubelet.play)
        self.paths = RunPaths(folder / "runs" / "a-run")
        self.paths.root.mkdir(parents=True)
        self._monkeypatch = monkeypatch

    def plan(self, fault: str = "none", nodes: int = 2, **site: Any) -> Plan:
        registry = Registry([DRILL_FOLDER, DRILL_FOLDER / "hosts"])
        settings = {"namespace": "benchmarks", "image": "example.org/image:1", **site}
        launch = LaunchPlan(launcher="kubernetes", site=Site(kubernetes=KubernetesSite(**settings)))
        environment = {"DRILL_FAULT": fault, "DRILL_TOKEN": SECRET}
        plan = make_plan(
            registry, f"drill:drill:drill:{nodes}:1", scale="smoke", environment=environment, may_lack_hardware=True
        )
        run_id = f"run-{self.mark[:8]}"  # the port follows from it, and tests at the same time are on one machine
        return plan.model_copy(update={"launch": launch, "run_id": run_id})

    def request(self, plan: Plan) -> Request:
        launcher = KubernetesLauncher()
        return launcher.request(plan, self.paths, launcher.runtime(plan))

    def execute(self, plan: Plan, watch: Callable[[], None] = lambda: None) -> Outcome:
        with served(self.api, self.folder) as config:
            self._monkeypatch.setenv("KUBECONFIG", str(config))
            return KubernetesLauncher().saying(self.said.append).execute(self.request(plan), watch)

    def steps(self, rank: int) -> list[int]:
        lines = (self.paths.events / f"rank{rank}.jsonl").read_text().splitlines()
        return [event["step"] for event in map(json.loads, lines) if event["event"] == "step"]

    def left(self) -> list[psutil.Process]:
        deadline = time.monotonic() + 5
        while processes := list(self._running()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return processes

    def _running(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:
                continue


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(cluster_run, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(cluster_run, "CREATE_SECONDS", 3.0)
    monkeypatch.setattr(cluster_api, "RETRY_SECONDS", 0.1)
    simulated = Cluster(tmp_path, monkeypatch)
    yield simulated
    for process in simulated.left():
        process.kill()


def played(*statuses: dict[str, Any], then: Callable[[SimulatedCluster], None] = lambda api: None) -> Any:
    """Return a play in which the pods get these statuses, in order, and nothing runs."""

    def play(api: SimulatedCluster) -> None:
        for index, status in enumerate(statuses):
            api.pod(index, status, "ADDED")
        api.is_seen()
        then(api)

    return play


def test_a_run_sends_the_printed_manifest_and_brings_all_evidence_without_the_secret(cluster: Cluster) -> None:
    plan = cluster.plan()
    request = cluster.request(plan)
    (sent,) = request.submissions
    assert SECRET not in sent.files["manifest.yaml"] and SECRET not in json.dumps(request.to_dict())
    outcome = cluster.execute(plan)
    assert outcome.cause == "exited", outcome
    assert [node.word for node in outcome.nodes] == ["ended", "ended"]
    assert [(end.rank, end.exit_code) for end in outcome.ends] == [(0, 0), (1, 0)]
    assert all(node.missing == () for node in outcome.nodes), outcome.nodes
    assert cluster.steps(0) == cluster.steps(1) == list(range(1, 13))
    assert cluster.api.objects == {} and cluster.left() == []
    created = [body for method, path, body in cluster.api.requests if method == "POST" and body["kind"] != "Secret"]
    assert created == list(yaml.safe_load_all(sent.files["manifest.yaml"]))
    owned = [body for method, path, body in cluster.api.requests if method == "PATCH"]
    assert {body["metadata"]["ownerReferences"][0]["kind"] for body in owned} == {"Job"} and len(owned) == 4
    assert [secret["stringData"] for secret in cluster.api.secrets] == [{"DRILL_TOKEN": SECRET}]
    texts = [path.read_bytes() for path in cluster.paths.root.rglob("*") if path.is_file()]
    assert len(texts) > 8 and not any(SECRET.encode() in text for text in texts)
    line = f"token {hashlib.sha256(SECRET.encode()).hexdigest()}"
    assert all(line in (cluster.paths.logs / f"rank{rank}.log").read_text() for rank in (0, 1))


def test_broken_connections_and_an_expired_watch_lose_nothing(cluster: Cluster) -> None:
    cluster.api.broken_logs, cluster.api.broken_watches = 4, 3
    cluster.api.fail("EVENT", "/pods", 410, "too old resource version: 100 (140)", times=2)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "exited" and all(node.missing == () for node in outcome.nodes), outcome
    assert cluster.api.broken_logs == 0 and cluster.api.broken_watches == 0 and cluster.api.faults[0].times == 0
    assert cluster.steps(0) == cluster.steps(1) == list(range(1, 13))


def test_a_killed_rank_is_the_cause_and_the_other_node_is_stopped(cluster: Cluster) -> None:
    outcome = cluster.execute(cluster.plan("killed"))
    assert outcome.cause == "rank-failed" and "node1" in str(outcome.evidence)
    assert outcome.nodes[1].word == "failed" and outcome.ends[1].signal == signal.SIGKILL
    assert cluster.steps(1) == [1, 2]
    assert cluster.api.objects == {} and cluster.left() == []


def test_an_interrupt_deletes_the_job_and_ends_every_process(cluster: Cluster) -> None:
    raised: list[bool] = []

    def watch() -> None:
        if not raised and (cluster.paths.events / "rank1.jsonl").exists() and cluster.steps(1)[-1:] == [2]:
            raised.append(True)
            raise KeyboardInterrupt

    outcome = cluster.execute(cluster.plan("waits"), watch)
    assert outcome.cause == "interrupted"
    assert {node.word for node in outcome.nodes} <= {"stopped", "ended"}
    assert cluster.api.objects == {} and cluster.left() == []
    assert all("last record" not in node.missing for node in outcome.nodes), outcome.nodes


@pytest.mark.thorough
def test_a_step_that_never_ends_is_a_hang(cluster: Cluster) -> None:
    plan = cluster.plan("waits")
    limits = plan.work.limits.model_copy(update={"step_seconds": 2.0})
    outcome = cluster.execute(plan.model_copy(update={"work": plan.work.model_copy(update={"limits": limits})}))
    assert outcome.cause == "hang" and "no step" in str(outcome.evidence)
    assert cluster.api.objects == {} and cluster.left() == []


def failed(reason: str, message: str = "") -> dict[str, Any]:
    """A pod that the cluster ended while its container ran."""
    return {**container("Failed", "terminated", exitCode=137, reason="Error"), "reason": reason, "message": message}


def container(phase: str, state: str, **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": "node", "state": {state: fields}}]}


PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.mark.parametrize(
    ("status", "cause", "word", "words"),
    [
        (failed("Evicted", "The node was low on resource: memory."), "node-lost", "lost", "low on resource"),
        pytest.param(
            *({**RUNNING, "conditions": [PREEMPTED]}, "preempted", "preempted", "PreemptionByScheduler"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(failed("NodeLost", "Node is gone"), "node-lost", "lost", "Node is gone"), marks=pytest.mark.thorough
        ),
        pytest.param(
            *(failed("DeadlineExceeded"), "time-limit", "time-limit", "DeadlineExceeded"), marks=pytest.mark.thorough
        ),
        (container("Pending", "waiting", reason="InvalidImageName"), "launch-error", "unreachable", "InvalidImageName"),
        (container("Failed", "terminated", exitCode=4, reason="Error"), "node-differs", "differs", "differs"),
        (container("Failed", "terminated", exitCode=137, reason="OOMKilled"), "rank-failed", "failed", "OOMKilled"),
    ],
)
def test_what_the_cluster_does_to_a_pod_has_its_word(
    cluster: Cluster, status: dict[str, Any], cause: str, word: str, words: str
) -> None:
    cluster.api = SimulatedCluster(played(RUNNING, status))
    outcome = cluster.execute(cluster.plan())
    assert (outcome.cause, outcome.nodes[1].word) == (cause, word), outcome
    assert words in str(outcome.evidence) and "node1" in str(outcome.evidence)
    assert outcome.nodes[0].word == "stopped" and "last record" in outcome.nodes[0].missing
    assert outcome.oom_kills == (1 if "OOMKilled" in words else 0)
    assert cluster.api.objects == {}


def test_a_job_that_somebody_else_deletes_is_cancelled(cluster: Cluster) -> None:
    def delete(api: SimulatedCluster) -> None:
        path = next(path for path in api.objects if "/jobs/" in path)
        api.deleted(path)

    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=delete))
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "cancelled" and "somebody else" in str(outcome.evidence)
    assert [node.word for node in outcome.nodes] == ["cancelled", "cancelled"]
    assert cluster.api.objects == {}


def test_the_job_s_own_limit_is_its_word(cluster: Cluster) -> None:
    def expire(api: SimulatedCluster) -> None:
        condition = {
            "type": "Failed",
            "status": "True",
            "reason": "DeadlineExceeded",
            "message": "Job was active too long",
        }
        api.main()["status"] = {"conditions": [condition]}
        for index in range(2):
            api.pod(index, RUNNING, "DELETED")

    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=expire))
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "time-limit" and "too long" in str(outcome.evidence)


def test_a_queue_that_suspends_a_running_job_has_preempted_it(cluster: Cluster) -> None:
    def suspend(api: SimulatedCluster) -> None:
        api.main()["spec"]["suspend"] = True
        for index in range(2):
            api.pod(index, RUNNING, "DELETED")

    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=suspend))
    assert cluster.execute(cluster.plan()).cause == "preempted"


@pytest.mark.parametrize(
    ("refused", "status", "message"),
    [(("POST", "/jobs"), 403, "jobs.batch is forbidden"), (("POST", "/configmaps"), 403, "configmaps is forbidden")],
)
def test_a_refusal_is_the_evidence_and_nothing_is_left(
    cluster: Cluster, refused: tuple[str, str], status: int, message: str
) -> None:
    cluster.api.fail(*refused, status, message)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "launch-error" and f"{message} ({status})" in str(outcome.evidence)
    assert cluster.api.objects == {}


def test_an_object_of_another_run_is_not_deleted(cluster: Cluster) -> None:
    plan = cluster.plan()
    name = cluster.request(plan).submissions[0].name
    taken = f"/apis/batch/v1/namespaces/benchmarks/jobs/{name}"
    cluster.api.objects[taken] = {"kind": "Taken", "metadata": {"name": name}}
    outcome = cluster.execute(plan)
    assert outcome.cause == "launch-error" and "(409)" in str(outcome.evidence)
    assert list(cluster.api.objects) == [taken]


def test_a_cluster_that_does_not_answer_is_unreachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cluster.plan()
    request = cluster.request(plan)
    with served(cluster.api, cluster.folder) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
    outcome = KubernetesLauncher().execute(request, lambda: None)
    assert outcome.cause == "unreachable" and "127.0.0.1" in str(outcome.evidence)


def test_a_log_that_is_no_frames_ends_the_run_and_names_the_node(cluster: Cluster) -> None:
    def play(api: SimulatedCluster) -> None:
        name = api.main()["metadata"]["name"]
        frame = b'{"file": "../../escape", "at": 0, "data": "x"}\n'
        api.logs[f"{name}-1-abcde"] = lambda: iter([b"a line of the container\n", frame])
        played(RUNNING, RUNNING)(api)

    cluster.api = SimulatedCluster(play)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "node-lost" and str(outcome.evidence).startswith("node1: ")
    assert "'../../escape'" in str(outcome.evidence)
    assert (cluster.paths.logs / "pod1.log").read_bytes() == b"a line of the container\n"


def test_an_object_that_cannot_be_deleted_is_named_with_the_command(cluster: Cluster) -> None:
    cluster.api = SimulatedCluster(played(RUNNING, failed("NodeLost")))
    plan = cluster.plan()
    name = cluster.request(plan).submissions[0].name
    cluster.api.fail("DELETE", f"/jobs/{name}", 403, "jobs.batch is forbidden")
    outcome = cluster.execute(plan)
    assert outcome.cause == "node-lost" and [path.rpartition("/")[2] for path in cluster.api.objects] == [name]
    assert "-n benchmarks" in outcome.warnings[0] and f" delete job/{name}`" in outcome.warnings[0]


def test_waiting_is_said_with_its_reason(cluster: Cluster) -> None:
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    full["message"] = "0/3 nodes: Insufficient\x1b[31m"
    pending = {"phase": "Pending", "conditions": [full]}

    def interrupt(api: SimulatedCluster) -> None:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    cluster.api = SimulatedCluster(played(pending, pending, then=interrupt))
    assert cluster.execute(cluster.plan()).cause == "interrupted"
    assert [
        message for message in cluster.said if "2 pods: Unschedulable:" in message and "0/3" in message
    ] == cluster.said[-1:]
    assert "\x1b" not in "".join(cluster.said)


STANDARD = 'Error creating: pods "a" is forbidden: violates PodSecurity "restricted:latest"'
QUOTA = 'Error creating: pods "a" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8'


def warned(*messages: str) -> SimulatedCluster:
    """A cluster that makes no pod, and says why at one time after another."""

    def play(api: SimulatedCluster) -> None:
        for minute, message in enumerate(messages):
            api.warn(api.main()["metadata"]["name"], message, f"2026-01-01T00:0{minute}:00Z")

    return SimulatedCluster(play)


def test_pods_that_the_cluster_forbids_end_the_run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.0)
    monkeypatch.setattr(cluster_run, "REFUSED_SECONDS", 0.5)
    cluster.api = warned(QUOTA, STANDARD)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "launch-error" and f" FailedCreate: {STANDARD}" in str(outcome.evidence)
    assert [node.word for node in outcome.nodes] == ["unreachable", "unreachable"]


def test_a_quota_is_waited_for_and_said(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.0)
    monkeypatch.setattr(cluster_run, "REFUSED_SECONDS", 0.0)
    cluster.api = warned(STANDARD, QUOTA)
    looks: list[None] = []

    def watch() -> None:
        looks.append(None)
        if len(looks) == 4:
            raise KeyboardInterrupt

    assert cluster.execute(cluster.plan(), watch).cause == "interrupted"
    assert any("2 pods: FailedCreate:" in message and "quota: gpus" in message for message in cluster.said)


@pytest.mark.thorough
def test_without_the_right_to_read_events_a_run_waits_as_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.0)
    cluster.api.fail("GET", "/events", 403, "events is forbidden")
    assert cluster.execute(cluster.plan()).cause == "exited"


PENDING = PodState(0, "pod-0", "pending", "waits for its node")
PLACED = PodState(0, "pod-0", "running", "runs on a", machine="a")
DELETED = PodState(0, "pod-0", "ended", "pod pod-0 was deleted", "cancelled", "cancelled")
EVICTED = PodState(0, "pod-0", "ended", "Evicted", "lost", "node-lost", machine="a")


@pytest.mark.parametrize(
    ("state", "others", "word", "is_ended_by_us"),
    [
        (None, "stopped", "unreachable", True),
        (PENDING, "stopped", "unreachable", True),  # it never ran
        (PENDING, "time-limit", "time-limit", True),
        (PLACED, "stopped", "stopped", True),
        (PLACED, "preempted", "preempted", True),
        (DELETED, "cancelled", "cancelled", True),
        (EVICTED, "stopped", "lost", False),  # its own end explains those of its ranks
    ],
)
def test_a_pod_without_a_word_of_its_own_has_that_of_the_run(
    tmp_path: Path, state: PodState | None, others: NodeWord, word: str, is_ended_by_us: bool
) -> None:
    node = NodeWork(0, "", (ProcessWork(0, (), {}, "log"),))
    request = Request("kubernetes", "kubernetes", (node,), str(tmp_path / "events"), 60, 60, 60)
    (end,), (rank,) = cluster_run.node_ends(request, {0: state} if state else {}, others)
    assert (end.word, rank.stopped_by_us) == (word, is_ended_by_us)
    assert state is None or f"pod {state.pod}" in str(end.detail)
