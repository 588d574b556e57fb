"""What the API says about a pod, as a word, a cause and a line of evidence. Pure functions of the API's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.contracts.execution import Cause, NodeWord

INDEX = "batch.kubernetes.io/job-completion-index"
# Reasons that a waiting container does not leave by itself. An image that was not pulled is tried again by the kubelet
# first: ErrImagePull becomes ImagePullBackOff.
_STUCK = (
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
# The exit codes of the node's own part, and of start.py.
_CODES: Mapping[int, tuple[NodeWord, Cause, str]] = {
    1: ("failed", "rank-failed", "a rank failed"),
    2: ("failed", "launch-error", "the node's part could not read its work"),
    3: ("stopped", "cancelled", "the pod was stopped from outside"),
    4: ("differs", "node-differs", "the code or the environment of the image differs"),
    5: ("failed", "launch-error", "the rendezvous port is taken"),
    6: ("device-taken", "device-taken", "a device is in use"),
    7: ("failed", "hang", "a rank gave no heartbeat"),
    8: ("unreachable", "unreachable", "the first node's name has no address"),
}
_DISRUPTIONS: Mapping[str, tuple[NodeWord, Cause]] = {
    "PreemptionByScheduler": ("preempted", "preempted"),
    "DeletionByTaintManager": ("lost", "node-lost"),
    "EvictionByEvictionAPI": ("lost", "node-lost"),
    "DeletionByPodGC": ("lost", "node-lost"),
    "TerminationByKubelet": ("lost", "node-lost"),
}
_REASONS: Mapping[str, tuple[NodeWord, Cause]] = {
    "DeadlineExceeded": ("time-limit", "time-limit"),
    "Evicted": ("lost", "node-lost"),
    "NodeLost": ("lost", "node-lost"),
    "NodeShutdown": ("lost", "node-lost"),
    "Terminated": ("lost", "node-lost"),
    "Preempting": ("preempted", "preempted"),
    "UnexpectedAdmissionError": ("unreachable", "launch-error"),
}
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class PodState:
    """One node's pod. word, cause: only where it has ended or cannot start. says: for a person. machine: its node."""

    node_rank: int
    pod: str
    phase: Literal["pending", "running", "ended"]
    says: str
    word: NodeWord | None = None
    cause: Cause | None = None
    machine: str | None = None
    out_of_memory: bool = False

    @property
    def has_failed(self) -> bool:
        return self.word is not None and self.word != "ended"


def pod_state(pod: Fields) -> PodState | None:
    """Return the state of a pod; None for a pod that is no node of an Indexed Job."""
    rank = _index(pod)
    if rank is None:
        return None
    name, status = str(_of(pod, "metadata").get("name")), _of(pod, "status")
    machine = _of(pod, "spec").get("nodeName")
    if found := _disrupted(status):
        (word, cause), says = found
        return PodState(rank, name, "ended", says, word, cause, machine)
    if ended := _terminated(status):
        return _ended(rank, name, machine, ended)
    if status.get("phase") in ("Succeeded", "Failed"):
        return _ended(rank, name, machine, {"exitCode": 0 if status["phase"] == "Succeeded" else 1})
    if status.get("phase") == "Running":
        return PodState(rank, name, "running", f"runs on {machine or 'a node'}", machine=machine)
    return _pending(rank, name, machine, status)


def _pending(rank: int, name: str, machine: str | None, status: Fields) -> PodState:
    for waiting in (_of(_of(each, "state"), "waiting") for each in _all(status, "containerStatuses")):
        reason, says = str(waiting.get("reason", "")), _line(waiting)
        if reason in _STUCK:
            return PodState(rank, name, "pending", says, "unreachable", "launch-error", machine)
        if reason:
            return PodState(rank, name, "pending", says, machine=machine)
    for condition in _all(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return PodState(rank, name, "pending", _line(condition), machine=machine)
    return PodState(rank, name, "pending", "waits for its node", machine=machine)


def _disrupted(status: Fields) -> tuple[tuple[NodeWord, Cause], str] | None:
    """Return the word of a pod that the cluster ended, and the cluster's own line."""
    for condition in _all(status, "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return _DISRUPTIONS.get(str(condition.get("reason")), ("lost", "node-lost")), _line(condition)
    reason = str(status.get("reason", ""))
    return (_REASONS[reason], _line(status)) if reason in _REASONS else None


def _terminated(status: Fields) -> Fields | None:
    found = (_of(_of(each, "state"), "terminated") for each in _all(status, "containerStatuses"))
    return next((each for each in found if each), None)


def _ended(rank: int, name: str, machine: str | None, ended: Fields) -> PodState:
    code, reason = ended.get("exitCode"), str(ended.get("reason", ""))
    if reason == "OOMKilled":
        says = "the container ran out of memory (OOMKilled)"
        return PodState(rank, name, "ended", says, "failed", "rank-failed", machine, out_of_memory=True)
    if code == 0:
        return PodState(rank, name, "ended", "all ranks ended", "ended", None, machine)
    known = _CODES.get(code) if isinstance(code, int) else None
    word, cause, says = known or ("failed", "rank-failed", f"the container ended with exit code {code}")
    return PodState(rank, name, "ended", says, word, cause, machine)


def _index(pod: Fields) -> int | None:
    metadata = _of(pod, "metadata")
    text = str(_of(metadata, "annotations").get(INDEX, _of(metadata, "labels").get(INDEX, "")))
    return int(text) if text.isdecimal() and len(text) < 7 else None


def _line(found: Fields) -> str:
    """Return reason and message as one line of bounded length."""
    parts = [str(found[key]) for key in ("reason", "message") if found.get(key)]
    return " ".join(": ".join(parts).split())[:300]


def _of(found: Fields, key: str) -> Fields:
    """Return an object below a key; an empty one where there is none. A server's answer is not trusted."""
    part = found.get(key)
    return part if isinstance(part, Mapping) else {}


def _all(found: Fields, key: str) -> Sequence[Fields]:
    part = found.get(key)
    return [each for each in part if isinstance(each, Mapping)] if isinstance(part, list) else []
