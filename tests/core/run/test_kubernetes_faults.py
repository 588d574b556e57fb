"""Faults of a cluster's API, its kubelets and its machines: each end of a run is judged by what really happened.

The API is simulated (tests/core/simulated_cluster.py), the client is real, and the pods' command really runs here.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from levelfield.run.launchers.kubernetes import cluster_api, cluster_run, pod_watch
from levelfield.specs.plan import Plan, job_content
from simulated_cluster import RESET, SILENT, SimulatedCluster
from test_kubernetes_launcher import RUNNING, Cluster, cluster, container, played

__all__ = ["cluster"]  # the fixture
Status = dict[str, Any]
STEPS = list(range(1, 13))  # of the drill
FIRST = {"phase": "Pending", "conditions": []}


def limited(plan: Plan, **limits: float) -> Plan:
    changed = plan.work.limits.model_copy(update=limits)
    return plan.model_copy(update={"work": plan.work.model_copy(update={"limits": changed})})


# ---- faults that pass: the training ends well, and nothing is left

PASSING: dict[str, Callable[[SimulatedCluster], None]] = {
    "one 401 on a list": lambda api: api.fail("GET", "/pods", 401, "Unauthorized", times=1),
    "one 403 on a list": lambda api: api.fail("GET", "/pods", 403, "pods is forbidden", times=1),
    "one 404 on a list": lambda api: api.fail("GET", "/pods", 404, "the server could not find it", times=1),
    "a proxy's 502 on a list": lambda api: api.fail("GET", "/pods", 502, text="<html>Bad Gateway</html>", times=2),
    "a list that breaks": lambda api: api.fail("GET", "/pods", RESET, times=2),
    "one 403 on a watch": lambda api: api.fail("WATCH", "/pods", 403, "pods is forbidden", times=1),
    "one 410 on a watch": lambda api: api.fail("WATCH", "/pods", 410, "too old resource version", times=1),
    "one 429 on a POST": lambda api: api.fail("POST", "/jobs", 429, "too many requests", times=1, pause_seconds=1),
    "one 503 on a POST": lambda api: api.fail("POST", "/configmaps", 503, "not ready", times=1, pause_seconds=1),
    "one 401 on a POST": lambda api: api.fail("POST", "/services", 401, "Unauthorized", times=1),
    "a webhook's 500 on a POST": lambda api: api.fail("POST", "/jobs", 500, "failed calling webhook", times=2),
    "a Job made, and 504": lambda api: api.fail("POST", "/jobs", 504, "timeout", times=1, is_late=True),
    "a Secret made, no answer": lambda api: api.fail("POST", "/secrets", RESET, times=1, is_late=True),
    "one 503 on a PATCH": lambda api: api.fail("PATCH", "-code", 503, "not ready", times=1, pause_seconds=1),
    "one 404 on the Job": lambda api: api.fail("GET", "/jobs", 404, "not found", times=1),
    "one 404 on a log": lambda api: api.fail("GET", "/log", 404, "pods not found", times=1),
    "one 403 on a log": lambda api: api.fail("GET", "/log", 403, "pods/log is forbidden", times=2),
    "two 500 on a log": lambda api: api.fail("GET", "/log", 500, "dial tcp 10.0.0.7:10250", times=2),
    "two 500 on a DELETE": lambda api: api.fail("DELETE", "", 500, "etcdserver: request timed out", times=2),
    "a DELETE done, and 504": lambda api: api.fail("DELETE", "-code", 504, "timeout", times=1, is_late=True),
}


def one_of_each(api: SimulatedCluster) -> None:
    for name, plant in PASSING.items():
        if "404 on the Job" not in name:
            plant(api)


ALL = {"one of each": one_of_each}


@pytest.mark.parametrize("fault", [*ALL, *(pytest.param(name, marks=pytest.mark.thorough) for name in PASSING)])
def test_a_fault_that_passes_ends_no_training(cluster: Cluster, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "CREATE_SECONDS", 20.0, raising=False)
    monkeypatch.setattr(cluster_api, "MAX_RETRY_SECONDS", 0.3, raising=False)
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.3)
    {**PASSING, **ALL}[fault](cluster.api)
    if "Job" in fault:
        path = f"/jobs/{cluster.request(cluster.plan()).submissions[0].name}"
        cluster.api.faults[0].path = path if "GET" in cluster.api.faults[0].method else cluster.api.faults[0].path
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "exited" and all(node.missing == () for node in outcome.nodes), outcome
    assert cluster.steps(0) == cluster.steps(1) == STEPS and outcome.warnings == ()
    assert [fault for fault in cluster.api.faults if fault.times != 0] == []
    assert cluster.api.objects == {} and cluster.left() == []


def test_an_answer_that_is_no_list_deletes_no_pod(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def then(api: SimulatedCluster) -> None:
        api.fail("GET", "/pods", 200, text="{}", times=2)
        api.fail("EVENT", "/pods", 410, "too old resource version", times=1)
        while any(fault.times for fault in api.faults):
            time.sleep(0.05)
        for index in range(2):
            api.pod(index, container("Succeeded", "terminated", exitCode=0, reason="Completed"))

    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=then))
    monkeypatch.setattr(cluster_run, "LOG_SECONDS", 0.5, raising=False)
    assert cluster.execute(cluster.plan()).cause == "exited"


# ---- faults that stay


def test_a_watch_that_always_fails_asks_less_and_less_often(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_SECONDS", 0.2, raising=False)
    monkeypatch.setattr(cluster_run, "LOG_SECONDS", 0.5, raising=False)

    def then(api: SimulatedCluster) -> None:
        time.sleep(3.0)
        for index in range(2):
            api.pod(index, container("Succeeded", "terminated", exitCode=0, reason="Completed"))

    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=then))
    cluster.api.fail("EVENT", "/pods", 500, "etcdserver: leader changed")
    assert cluster.execute(cluster.plan()).cause == "exited"
    paths = [path for method, path, _ in cluster.api.requests if method == "GET" and path.endswith("/pods")]
    assert len(paths) < 30, len(paths)


@pytest.mark.parametrize(
    ("method", "path", "status", "cause", "words"),
    [
        ("GET", "/pods", 403, "launch-error", "pods cannot be watched: planted (403)"),
        pytest.param(*("GET", "/pods", 404, "launch-error", "planted (404)"), marks=pytest.mark.thorough),
        pytest.param(*("POST", "/jobs", 503, "launch-error", "planted (503)"), marks=pytest.mark.thorough),
        pytest.param(*("GET", "/log", 403, "node-lost", "its log cannot be read"), marks=pytest.mark.thorough),
    ],
)
def test_a_refusal_that_stays_ends_the_run_at_its_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int, cause: str, words: str
) -> None:
    monkeypatch.setattr(cluster_run, "REFUSED_SECONDS", 1.5)
    monkeypatch.setattr(pod_watch, "REFUSED_SECONDS", 1.5, raising=False)
    if path != "/log":  # no pod has to run
        cluster.api = SimulatedCluster(lambda api: None)
    cluster.api.fail(method, path, status)
    began = time.monotonic()
    outcome = cluster.execute(limited(cluster.plan("waits"), step_seconds=60.0))
    assert outcome.cause == cause and words in str(outcome.evidence), outcome
    assert time.monotonic() - began > 1.4 and cluster.api.objects == {} and cluster.left() == []


def plan_in_a_claim(cluster: Cluster, fault: str, is_claimed: bool) -> Plan:
    """Return a plan whose pods write the run directory, or one whose files come by the pods' logs."""
    site: Status = {"claim": "runs", "claim_folder": str(cluster.folder)} if is_claimed else {}
    plan = cluster.plan(fault, **site)
    (cluster.paths.root / "job.json").write_text(json.dumps(job_content(plan, cluster.paths)))  # as the platform does
    return plan


@pytest.mark.parametrize("is_claimed", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_an_api_that_answers_nothing_more_does_not_hide_a_finished_training(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_claimed: bool
) -> None:
    """The logs' connections stand, as they lead to the machines; every new request gets no answer."""
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.5)
    records = [cluster.paths.root / f"nodes/node{node}.record.jsonl" for node in range(2)]
    over_at: list[float] = []

    def watch() -> None:
        if not cluster.api.faults and all(record.exists() for record in records):
            for method in ("GET", "WATCH", "DELETE"):
                cluster.api.fail(method, "", SILENT)
        if not over_at and all(record.exists() and '"ended"' in record.read_text() for record in records):
            over_at.append(time.monotonic())

    outcome = cluster.execute(plan_in_a_claim(cluster, "none", is_claimed), watch)
    assert time.monotonic() - over_at[0] < 10
    assert outcome.cause == "exited" and cluster.steps(0) == cluster.steps(1) == STEPS, outcome
    assert [node.word for node in outcome.nodes] == ["ended", "ended"]
    assert [(end.rank, end.exit_code) for end in outcome.ends] == [(0, 0), (1, 0)]
    assert len(outcome.warnings) == len(cluster.api.objects) == 5 and "kubectl" in outcome.warnings[0]


@pytest.mark.parametrize("cut", [b'{"end"', pytest.param(b'"event\\":\\"end', marks=pytest.mark.thorough)])
def test_a_log_that_never_brings_its_end_holds_a_verdict_up_only_while_figures_lack(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, cut: bytes
) -> None:
    monkeypatch.setattr(cluster_run, "LOG_SECONDS", 30.0 if cut == b'{"end"' else 2.0, raising=False)
    over_at: list[float] = []

    def cut_log(lines: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        for line in lines():
            if cut in line:
                return
            yield line

    def play(api: SimulatedCluster) -> None:
        cluster.kubelet.play(api)
        api.logs = {name: partial(cut_log, lines) for name, lines in api.logs.items()}

    def watch() -> None:
        record = cluster.paths.root / "nodes/node1.record.jsonl"
        if not over_at and record.exists() and '"ended"' in record.read_text():
            over_at.append(time.monotonic())

    cluster.api = SimulatedCluster(play)
    outcome = cluster.execute(cluster.plan(), watch)
    assert outcome.cause == "exited" and [node.word for node in outcome.nodes] == ["ended", "ended"], outcome
    if cut == b'{"end"':
        assert time.monotonic() - over_at[0] < 10 and cluster.steps(0) == cluster.steps(1) == STEPS


def test_a_request_is_tried_again_after_growing_pauses_and_as_long_as_the_cluster_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pauses, sentences = [0.0], list[float](), list[str]()
    monkeypatch.setattr(f"{cluster_api.__name__}.time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def send(seconds: float) -> None:
        pause_seconds = 20.0 if len(pauses) == 1 else 10_000.0 if len(pauses) == 2 else 0.0
        raise cluster_api.ClusterRefusal(429, "too many", "TooManyRequests", pause_seconds)

    monkeypatch.setattr(f"{cluster_api.__name__}.time.sleep", sleep)
    with pytest.raises(cluster_api.ClusterRefusal, match="too many"):
        cluster_api.retried(send, "to create job/a", 80.0, sentences.append)
    assert 0.7 < pauses[0] < 1.3 and pauses[1:3] == [20.0, 30.0] and now[0] <= 80.0, pauses
    assert all(pause <= 12.5 for pause in pauses[3:]) and len(sentences) == len(pauses) >= 5
    assert sentences[0] == "to create job/a is tried again for up to 80 s: too many (429)"
    for status, reason, is_passing in (
        (401, "Unauthorized", True), (403, "Forbidden", False), (404, "NotFound", False), (409, "Conflict", True),
        (409, "AlreadyExists", False), (422, "Invalid", False), (500, "InternalError", True), (504, "Timeout", True),
    ):  # fmt: skip
        assert cluster_api.ClusterRefusal(status, "", reason).is_passing is is_passing, (status, reason)


@pytest.mark.thorough
def test_an_api_that_is_silent_without_end_ends_the_run_at_its_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("API_SECONDS", 4.0), ("HEARD_SECONDS", 1.0), ("QUICK_SECONDS", 0.3), ("DELETE_SECONDS", 2)):
        monkeypatch.setattr(cluster_run, name, seconds, raising=False)
    monkeypatch.setattr(cluster_api, "ANSWER_SECONDS", 1.0)

    def act() -> None:
        cluster.api.dead_machines |= {0, 1}
        for method in ("GET", "WATCH", "DELETE"):
            cluster.api.fail(method, "", SILENT)
        cluster.api.broken_watches = 1
        cluster.api.pod(0, RUNNING)  # which breaks the watch

    plan = limited(cluster.plan("waits"), heartbeat_seconds=3.0, step_seconds=600.0)
    outcome = cluster.execute(plan, when_steps_are_done(cluster, act))
    assert outcome.cause == "node-lost" and "nothing is known of the pods" in str(outcome.evidence), outcome
    assert len(outcome.warnings) == 5 and cluster.steps(1) == [1, 2]
    cluster.kubelet.end()


@pytest.mark.thorough
def test_a_queue_is_waited_for_up_to_its_limit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "QUEUE_SECONDS", 2.0, raising=False)
    cluster.api = SimulatedCluster(lambda api: None)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "unreachable" and "2 of 2 pods: waits for its queue" in str(outcome.evidence), outcome


# ---- machines


def when_steps_are_done(cluster: Cluster, act: Callable[[], None]) -> Callable[[], None]:
    """Return what the launcher calls: it acts once, when both ranks have finished a step."""
    acted: list[None] = []

    def watch() -> None:
        files = [cluster.paths.events / f"rank{rank}.jsonl" for rank in (0, 1)]
        if not acted and all(file.exists() and '"step"' in file.read_text() for file in files):
            acted.append(None)
            act()

    return watch


@pytest.mark.parametrize("is_claimed", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_machine_that_dies_is_lost_by_the_case_s_limit(cluster: Cluster, is_claimed: bool) -> None:
    """Its pod is still shown as running, and its log answers 500, for as long as the pod tolerates it."""
    plan = limited(plan_in_a_claim(cluster, "waits", is_claimed), heartbeat_seconds=3.0, step_seconds=300.0)
    act = lambda: cluster.kubelet.kill_machine(cluster.api, 1)  # noqa: E731
    began = time.monotonic()
    outcome = cluster.execute(plan, when_steps_are_done(cluster, act))
    assert outcome.cause == "node-lost" and "node1: no sign for" in str(outcome.evidence), outcome
    assert "nor of" not in str(outcome.evidence) and time.monotonic() - began < 40
    assert "last record" in outcome.nodes[1].missing and cluster.steps(1) == [1, 2]
    assert outcome.nodes[1].word == "lost" and "no sign" in str(outcome.nodes[1].detail)
    assert cluster.api.objects == {} and cluster.left() == []


@pytest.mark.thorough
def test_the_only_machine_that_dies_is_lost_by_the_limit_of_a_step(cluster: Cluster) -> None:
    plan = limited(cluster.plan("waits", nodes=1), heartbeat_seconds=2.0, step_seconds=4.0)
    files = cluster.paths.events / "rank0.jsonl"
    acted: list[None] = []

    def watch() -> None:
        if not acted and files.exists() and '"step"' in files.read_text():
            acted.append(None)
            cluster.kubelet.kill_machine(cluster.api, 0)

    outcome = cluster.execute(plan, watch)
    assert outcome.cause == "node-lost" and "node0: no sign for" in str(outcome.evidence), outcome


@pytest.mark.thorough
def test_an_api_that_is_silent_for_long_does_not_count_against_the_nodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers for three times the limit of a heartbeat; then the step has the rest of its time."""
    monkeypatch.setattr(cluster_run, "JOB_POLL_SECONDS", 0.3)
    monkeypatch.setattr(cluster_run, "QUICK_SECONDS", 0.3, raising=False)
    monkeypatch.setattr(cluster_run, "HEARD_SECONDS", 1.0, raising=False)
    monkeypatch.setattr(cluster_api, "MAX_RETRY_SECONDS", 0.5, raising=False)
    healed_at: list[float] = []

    def act() -> None:
        cluster.api.dead_machines |= {0, 1}  # no log brings anything
        for method in ("GET", "WATCH"):
            cluster.api.fail(method, "", SILENT)
        cluster.api.broken_watches = 1
        threading.Timer(9.0, heal).start()

    def heal() -> None:
        healed_at.append(time.monotonic())
        cluster.api.faults.clear()
        cluster.api.dead_machines.clear()

    plan = limited(cluster.plan("waits"), heartbeat_seconds=3.0, step_seconds=6.0)
    outcome = cluster.execute(plan, when_steps_are_done(cluster, act))
    waited = re.search(r"no step was finished for (\d+) s", str(outcome.evidence))
    assert outcome.cause == "hang" and healed_at and waited and int(waited[1]) <= 8, outcome
    assert any("does not answer" in sentence for sentence in cluster.said)


# ---- kubelets

REJECTED = "Pod was rejected: "
SHORT = "Node didn't have enough resource: {0}, requested: 8, used: 8, capacity: 8"
ALLOCATE = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"


def rejected(reason: str, message: str) -> Status:
    """The status that a kubelet gives to a pod that it does not let start (pkg/kubelet, rejectPod): no containers."""
    return {"phase": "Failed", "reason": reason, "message": f"{REJECTED}{message}", "qosClass": "Guaranteed"}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (rejected("OutOfnvidia.com/gpu", SHORT.format("nvidia.com/gpu")), "device-taken"),
        (rejected("UnexpectedAdmissionError", f"{ALLOCATE}, which is unexpected"), "unreachable"),
        pytest.param(rejected("OutOfcpu", SHORT.format("cpu")), "unreachable", marks=pytest.mark.thorough),
        pytest.param(rejected("OutOfpods", SHORT.format("pods")), "unreachable", marks=pytest.mark.thorough),
        pytest.param(
            *(rejected("NodeAffinity", "Predicate NodeAffinity failed"), "unreachable"), marks=pytest.mark.thorough
        ),
        pytest.param(
            *(rejected("Evicted", "The node had condition: [DiskPressure]. "), "unreachable"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(rejected("TopologyAffinityError", "Resources cannot be allocated"), "unreachable"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *({"phase": "Failed", "initContainerStatuses": [
                {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                {"name": "mesh", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}, "unreachable"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(container("Failed", "terminated", exitCode=128, reason="StartError", message="exec: python3"),
              "launch-error"),
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_a_pod_that_never_started_is_no_failed_rank(cluster: Cluster, status: Status, cause: str) -> None:
    cluster.api = SimulatedCluster(played(RUNNING, status))
    outcome = cluster.execute(cluster.plan())
    assert (outcome.cause, outcome.nodes[1].word) == (cause, "unreachable" if cause != "device-taken" else cause)
    message = str(status.get("message") or "mesh ended with exit code 1").strip()
    message = "exec: python3" if cause == "launch-error" else message
    assert message in str(outcome.evidence) and "node1: " in str(outcome.evidence), outcome
    assert cluster.api.objects == {}


@pytest.mark.parametrize(
    "status",
    [
        rejected("UnexpectedAdmissionError", ALLOCATE),
        pytest.param(
            container("Failed", "terminated", exitCode=137, reason="ContainerStatusUnknown"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_kubelet_that_starts_again_and_drops_a_running_pod_has_lost_it(cluster: Cluster, status: Status) -> None:
    cluster.api = SimulatedCluster(played(RUNNING, RUNNING, then=lambda api: api.pod(1, status)))
    outcome = cluster.execute(cluster.plan())
    assert (outcome.cause, outcome.nodes[1].word) == ("node-lost", "lost"), outcome


PULLING = container("Pending", "waiting", reason="ErrImagePull", message="toomanyrequests")
BACKOFF = container("Pending", "waiting", reason="ImagePullBackOff", message="Back-off pulling image")


@pytest.mark.parametrize("status", [BACKOFF, pytest.param(PULLING, marks=pytest.mark.thorough)])
def test_an_image_that_comes_at_the_second_try_ends_no_training(cluster: Cluster, status: Status) -> None:
    def play(api: SimulatedCluster) -> None:
        for index in range(2):
            api.pod(index, status, "ADDED")
        time.sleep(1.0)
        cluster.kubelet.play(api)

    cluster.api = SimulatedCluster(play)
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "exited" and cluster.steps(0) == STEPS, outcome
    assert any(str(status["containerStatuses"][0]["state"]["waiting"]["message"]) in line for line in cluster.said)


def test_an_image_that_never_comes_ends_the_run_at_its_limit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "RETRIED_START_SECONDS", 2.0, raising=False)

    def alternate(api: SimulatedCluster) -> None:
        for status in (PULLING, BACKOFF, PULLING, BACKOFF):
            time.sleep(0.5)
            api.pod(1, status)

    cluster.api = SimulatedCluster(played(FIRST, BACKOFF, then=alternate))
    outcome = cluster.execute(cluster.plan())
    assert outcome.cause == "launch-error" and "node1: " in str(outcome.evidence), outcome
    assert "Back-off" in str(outcome.evidence) or "toomany" in str(outcome.evidence)


def test_pods_that_wait_too_long_for_another_end_the_run_and_say_for_what(cluster: Cluster) -> None:
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    cluster.api = SimulatedCluster(played(RUNNING, {"phase": "Pending", "conditions": [full]}))
    outcome = cluster.execute(cluster.plan(peer_seconds=1))
    assert outcome.cause == "unreachable" and "limit kubernetes.peer_seconds" in str(outcome.evidence), outcome
    assert "1 of 2 pods: Unschedulable: 0/3 nodes are available" in str(outcome.evidence)


def test_a_container_that_the_cluster_adds_is_not_the_node(cluster: Cluster) -> None:
    """A mesh's proxy may end before the training, and its image may be missing."""
    proxy = {"name": "proxy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    state = pod_watch.pod_state(
        {
            "metadata": {"name": "a-0-x", "annotations": {pod_watch.INDEX_KEY: "0"}},
            "status": {"phase": "Running", "containerStatuses": [proxy, *RUNNING["containerStatuses"]]},
        }
    )
    assert state is not None and state.phase == "running"
