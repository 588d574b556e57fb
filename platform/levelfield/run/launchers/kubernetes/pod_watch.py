"""Watches the pods of a run in a thread: their states as words and causes, and whether the cluster answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from levelfield.contracts.execution import Cause, NodeWord
from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, ClusterSilence
from levelfield.rundir.event_lines import event_or_none

WATCH_SECONDS = 60  # after which the server ends a watch, and the next one begins where it ended
GONE = 410  # the server no longer knows the version that a watch begins with: everything is listed again
RETRY_SECONDS = 1.0
MOST_RETRY_SECONDS = 10.0
INDEX = "batch.kubernetes.io/job-completion-index"
# Reasons that a waiting container does not leave by itself. An image that was not pulled is tried again by the kubelet
# first: ErrImagePull becomes ImagePullBackOff.
_STUCK = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
# The exit codes of the node's own part, and of start.py.
_CODES: Mapping[int, tuple[NodeWord, Cause | None, str]] = {
    0: ("ended", None, "all ranks ended"),
    1: ("failed", "rank-failed", "a rank failed"),
    2: ("failed", "launch-error", "the node's part could not read its work"),
    3: ("stopped", "cancelled", "the pod was stopped from outside"),
    4: ("differs", "node-differs", "the code or the environment of the image differs"),
    5: ("failed", "launch-error", "the rendezvous port is taken"),
    6: ("device-taken", "device-taken", "a device is in use"),
    7: ("failed", "hang", "a rank gave no heartbeat"),
    8: ("unreachable", "unreachable", "the first node's name has no address"),
}
_LOST: tuple[NodeWord, Cause] = ("lost", "node-lost")
_REASONS: Mapping[str, tuple[NodeWord, Cause]] = {
    "DeadlineExceeded": ("time-limit", "time-limit"),
    **dict.fromkeys(("Evicted", "NodeLost", "NodeShutdown", "Terminated"), _LOST),
    "Preempting": ("preempted", "preempted"),
    "UnexpectedAdmissionError": ("unreachable", "launch-error"),
}
Fields = Mapping[str, Any]


class PodWatch:
    """The pods with one label. `silence`: why the cluster does not answer now, or None. `refusal`: what it refused.

    A node keeps the first bad word that its pod got: when one pod fails, the cluster deletes the others.
    """

    def __init__(self, api: ClusterApi, namespace: str, label: str) -> None:
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"
        self._label, self._lock, self._ending = label, threading.Lock(), threading.Event()
        self._states: dict[int, PodState] = {}
        self._left: set[str] = set()
        self.silence: str | None = None
        self.refusal: str | None = None
        self.first_failure: PodState | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="pods")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread at the server's next line, or with the process."""
        self._ending.set()

    def states(self) -> dict[int, PodState]:
        """Return the state of each node's pod by node rank; a node whose pod does not exist yet is absent."""
        with self._lock:
            return dict(self._states)

    def left(self) -> set[str]:
        """Return the names of the pods that still exist."""
        with self._lock:
            return set(self._left)

    def _watch(self) -> None:
        wait, version = RETRY_SECONDS, None
        while not self._ending.is_set():
            try:
                version = self._listed() if version is None else self._followed(version)
                self.silence, wait = None, RETRY_SECONDS
                continue
            except ClusterSilence as error:
                self.silence, version = str(error), None
            except ClusterRefusal as error:
                version = None
                if error.status in (401, 403, 404):
                    self.refusal = str(error)
                    return
                self.silence = None if error.status == GONE else str(error)
            self._ending.wait(wait)
            wait = min(2 * wait, MOST_RETRY_SECONDS)

    def _listed(self) -> str:
        """Read all pods. Return the version from which a watch goes on."""
        found = self._api.get(self._path, labelSelector=self._label)
        pods = [pod for pod in found.get("items") or [] if isinstance(pod, Mapping)]
        present = {_name(pod) for pod in pods}
        for state in self.states().values():
            if state.pod not in present:
                self._removed(state)
        with self._lock:
            self._left = present
        for state in sorted(filter(None, map(pod_state, pods)), key=_is_of_others):
            self._keep(state)
        return str((found.get("metadata") or {}).get("resourceVersion", ""))

    def _followed(self, version: str) -> str | None:
        """Follow the changes from a version on. Return the version of the last one; None: list everything again."""
        query = {"labelSelector": self._label, "watch": True, "allowWatchBookmarks": True}
        query |= {"resourceVersion": version, "timeoutSeconds": WATCH_SECONDS}
        begin = time.monotonic()
        for line in self._api.lines(self._path, WATCH_SECONDS + 30.0, **query):
            if self._ending.is_set():
                return None
            change = _change(line)
            if change is None or change["type"] == "ERROR":
                return None  # among others 410: the version is too old
            self._changed(change["type"], change["object"])
            self.silence = None
            version = str((change["object"].get("metadata") or {}).get("resourceVersion", version))
        if time.monotonic() - begin < RETRY_SECONDS:
            self._ending.wait(RETRY_SECONDS)  # a server that ends each watch at once
        return version

    def _changed(self, kind: str, pod: Fields) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        with self._lock:
            (self._left.discard if kind == "DELETED" else self._left.add)(_name(pod))
        if state := pod_state(pod):
            self._keep(state)
            if kind == "DELETED":
                self._removed(state)

    def _removed(self, state: PodState) -> None:
        if state.phase != "ended":
            said = f"pod {state.pod} was deleted"
            self._keep(replace(state, phase="ended", word="cancelled", cause="cancelled", says=said))

    def _keep(self, state: PodState) -> None:
        with self._lock:
            before = self._states.get(state.node_rank)
            if before is None or before.phase != "ended":
                self._states[state.node_rank] = state
                if state.has_failed and self.first_failure is None:
                    self.first_failure = state


def _change(line: bytes) -> dict[str, Any] | None:
    """Return a line of a watch; None where it is no change of an object."""
    found = event_or_none(line) or {}
    return found if isinstance(found.get("object"), dict) and isinstance(found.get("type"), str) else None


def _name(pod: Fields) -> str:
    return str(_of(pod, "metadata").get("name"))


def _is_of_others(state: PodState) -> bool:
    """Return whether a pod has no own reason: it was deleted or stopped for another. Those with one come first."""
    return not state.has_failed or state.cause == "cancelled"


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
    status, machine = _of(pod, "status"), _of(pod, "spec").get("nodeName")
    state = PodState(rank, _name(pod), "pending", "waits for its node", machine=machine)
    if found := _disrupted(status):
        (word, cause), says = found
        return replace(state, phase="ended", says=says, word=word, cause=cause)
    if ended := _terminated(status):
        return _ended(state, ended)
    if status.get("phase") in ("Succeeded", "Failed"):
        return _ended(state, {"exitCode": 0 if status["phase"] == "Succeeded" else 1})
    if status.get("phase") == "Running":
        return replace(state, phase="running", says=f"runs on {machine or 'a node'}")
    return _pending(state, status)


def _pending(state: PodState, status: Fields) -> PodState:
    for waiting in (_of(_of(each, "state"), "waiting") for each in _all(status, "containerStatuses")):
        if reason := str(waiting.get("reason", "")):
            found = replace(state, says=_line(waiting))
            return replace(found, word="unreachable", cause="launch-error") if reason in _STUCK else found
    for condition in _all(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return replace(state, says=_line(condition))
    return state


def _disrupted(status: Fields) -> tuple[tuple[NodeWord, Cause], str] | None:
    """Return the word of a pod that the cluster ended, and the cluster's own line."""
    for condition in _all(status, "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            is_preempted = condition.get("reason") == "PreemptionByScheduler"
            return ("preempted", "preempted") if is_preempted else _LOST, _line(condition)
    reason = str(status.get("reason", ""))
    return (_REASONS[reason], _line(status)) if reason in _REASONS else None


def _terminated(status: Fields) -> Fields | None:
    found = (_of(_of(each, "state"), "terminated") for each in _all(status, "containerStatuses"))
    return next((each for each in found if each), None)


def _ended(state: PodState, ended: Fields) -> PodState:
    code, is_out = ended.get("exitCode"), ended.get("reason") == "OOMKilled"
    known = _CODES.get(code) if isinstance(code, int) else None
    word, cause, says = known or ("failed", "rank-failed", f"the container ended with exit code {code}")
    if is_out:
        word, cause, says = "failed", "rank-failed", "the container ran out of memory (OOMKilled)"
    return replace(state, phase="ended", word=word, cause=cause, says=says, out_of_memory=is_out)


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
