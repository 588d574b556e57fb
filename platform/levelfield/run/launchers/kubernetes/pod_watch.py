"""Watches the pods of a run in threads: their states, and their logs, which bring the nodes' files.

A broken connection is made again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from levelfield.contracts.execution import Cause, NodeWord
from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, ClusterSilence
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.rundir.event_lines import object_or_none

WATCH_SECONDS = 60  # after which the server ends a watch, and the next one begins where it ended
GONE_STATUS = 410  # the server no longer knows the version that a watch begins with: everything is listed again
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 10.0
SILENCE_SECONDS = 60.0  # of a log, to which the node's agent adds a line each second
MAX_OTHER_BYTES = 2**20  # of a log's lines that are no frames: what start.py or the container wrote
INDEX_KEY = "batch.kubernetes.io/job-completion-index"
# Reasons for which a container waits until somebody acts. The kubelet first pulls an image again: ErrImagePull then
# becomes ImagePullBackOff.
_STUCK_REASONS = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
# What the exit codes of the node's agent and of start.py mean: status, cause and description.
_EXIT_MEANINGS: Mapping[int, tuple[NodeWord, Cause | None, str]] = {
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
_END_REASONS: Mapping[str, tuple[NodeWord, Cause]] = {
    "DeadlineExceeded": ("time-limit", "time-limit"),
    **dict.fromkeys(("Evicted", "NodeLost", "NodeShutdown", "Terminated"), _LOST),
    "Preempting": ("preempted", "preempted"),
    "UnexpectedAdmissionError": ("unreachable", "launch-error"),
}
Fields = Mapping[str, Any]


class PodWatch:
    """Watches the pods with one label.

    A node keeps the first failure of its pod: when one pod fails, the cluster deletes the others.
    """

    def __init__(self, api: ClusterApi, namespace: str, label: str) -> None:
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"
        self._label, self._lock = label, threading.Lock()
        self.stop_event = threading.Event()  # set by the caller: the thread ends at the server's next line
        self._states: dict[int, PodState] = {}
        self._present_pods: set[str] = set()
        self.silence: str | None = None  # why the cluster does not answer now
        self.refusal: str | None = None  # why it lets nobody watch
        self.first_failure: PodState | None = None
        self.thread = threading.Thread(target=self._watch, daemon=True, name="pods")  # the caller starts it

    def states(self) -> dict[int, PodState]:
        """Return the state of each node's pod by node rank; a node whose pod does not exist yet is absent."""
        with self._lock:
            return dict(self._states)

    def present_pods(self) -> set[str]:
        """Return the names of the pods that still exist."""
        with self._lock:
            return set(self._present_pods)

    def _watch(self) -> None:
        pause_seconds, version = RETRY_SECONDS, None
        while not self.stop_event.is_set():
            try:
                version = self._list_pods() if version is None else self._follow(version)
                self.silence, pause_seconds = None, RETRY_SECONDS
                continue
            except ClusterSilence as error:
                self.silence, version = str(error), None
            except ClusterRefusal as error:
                version = None
                if error.status in (401, 403, 404):
                    self.refusal = str(error)
                    return
                self.silence = None if error.status == GONE_STATUS else str(error)
            self.stop_event.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MAX_RETRY_SECONDS)

    def _list_pods(self) -> str:
        """Read all pods. Return the version from which a watch goes on."""
        answer = self._api.get(self._path, labelSelector=self._label)
        pods = [pod for pod in answer.get("items") or [] if isinstance(pod, Mapping)]
        present_pods = {str(_child_object(pod, "metadata").get("name")) for pod in pods}
        for state in self.states().values():
            if state.pod not in present_pods:
                self._remove(state)
        with self._lock:
            self._present_pods = present_pods
        # first the pods with a reason of their own, then those that were deleted or stopped because of another
        states = filter(None, map(pod_state, pods))
        for state in sorted(states, key=lambda state: not state.has_failed or state.cause == "cancelled"):
            self._store(state)
        return str((answer.get("metadata") or {}).get("resourceVersion", ""))

    def _follow(self, version: str) -> str | None:
        """Follow the changes from a version on. Return the version of the last one; None: list everything again."""
        query = {"labelSelector": self._label, "watch": True, "allowWatchBookmarks": True}
        query |= {"resourceVersion": version, "timeoutSeconds": WATCH_SECONDS}
        begin = time.monotonic()
        for line in self._api.lines(self._path, WATCH_SECONDS + 30.0, **query):
            if self.stop_event.is_set():
                return None
            change = object_or_none(line) or {}
            kind, pod = change.get("type"), change.get("object")
            if not isinstance(kind, str) or not isinstance(pod, dict) or kind == "ERROR":
                return None  # among others 410: the version is too old
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                with self._lock:
                    update_names = self._present_pods.discard if kind == "DELETED" else self._present_pods.add
                    update_names(str(_child_object(pod, "metadata").get("name")))
                if state := pod_state(pod):
                    self._store(state)
                    if kind == "DELETED":
                        self._remove(state)
            self.silence = None
            version = str((pod.get("metadata") or {}).get("resourceVersion", version))
        if time.monotonic() - begin < RETRY_SECONDS:
            self.stop_event.wait(RETRY_SECONDS)  # a server that ends each watch at once
        return version

    def _remove(self, state: PodState) -> None:
        if state.phase != "ended":
            description = f"pod {state.pod} was deleted"
            self._store(replace(state, phase="ended", word="cancelled", cause="cancelled", description=description))

    def _store(self, state: PodState) -> None:
        with self._lock:
            stored = self._states.get(state.node_rank)
            if stored is None or stored.phase != "ended":
                self._states[state.node_rank] = state
                if state.has_failed and self.first_failure is None:
                    self.first_failure = state


@dataclass(frozen=True)
class PodState:
    """One node's pod."""

    node_rank: int
    pod: str
    phase: Literal["pending", "running", "ended"]
    description: str  # for the user
    word: NodeWord | None = None  # the node's status; like the cause only where the pod has ended or cannot start
    cause: Cause | None = None
    machine: str | None = None  # where it runs
    out_of_memory: bool = False

    @property
    def has_failed(self) -> bool:
        return self.word is not None and self.word != "ended"


def pod_state(pod: Fields) -> PodState | None:
    """Return the state of a pod; None for one without an index, which is no node of the run."""
    metadata, status = _child_object(pod, "metadata"), _child_object(pod, "status")
    machine = _child_object(pod, "spec").get("nodeName")
    rank = str(
        _child_object(metadata, "annotations").get(INDEX_KEY, _child_object(metadata, "labels").get(INDEX_KEY, ""))
    )
    if not rank.isdecimal() or len(rank) >= 7:
        return None
    state = PodState(int(rank), str(metadata.get("name")), "pending", "waits for its node", machine=machine)
    if disruption := _disruption(status):
        word_and_cause, description = disruption
        return replace(state, phase="ended", description=description, word=word_and_cause[0], cause=word_and_cause[1])
    terminations = (
        _child_object(_child_object(container, "state"), "terminated")
        for container in _child_objects(status, "containerStatuses")
    )
    termination = next(filter(None, terminations), None)
    if not termination and status.get("phase") in ("Succeeded", "Failed"):
        termination = {"exitCode": 0 if status["phase"] == "Succeeded" else 1}
    if termination:
        exit_code, is_out_of_memory = termination.get("exitCode"), termination.get("reason") == "OOMKilled"
        meaning = _EXIT_MEANINGS.get(exit_code) if isinstance(exit_code, int) else None
        unknown_code = f"the container ended with exit code {exit_code}"
        word, cause, description = meaning or ("failed", "rank-failed", unknown_code)
        if is_out_of_memory:
            word, cause, description = "failed", "rank-failed", "the container ran out of memory (OOMKilled)"
        return replace(
            state, phase="ended", word=word, cause=cause, description=description, out_of_memory=is_out_of_memory
        )
    if status.get("phase") == "Running":
        return replace(state, phase="running", description=f"runs on {machine or 'a node'}")
    for container in _child_objects(status, "containerStatuses"):
        waiting = _child_object(_child_object(container, "state"), "waiting")
        if waiting.get("reason"):
            waiting_state = replace(state, description=_reason_line(waiting))
            is_stuck = str(waiting["reason"]) in _STUCK_REASONS
            return replace(waiting_state, word="unreachable", cause="launch-error") if is_stuck else waiting_state
    for condition in _child_objects(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return replace(state, description=_reason_line(condition))
    return state


def _disruption(status: Fields) -> tuple[tuple[NodeWord, Cause], str] | None:
    """Return status and cause of a pod that the cluster ended, and the cluster's own line; None for any other."""
    for condition in _child_objects(status, "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            is_preempted = condition.get("reason") == "PreemptionByScheduler"
            return ("preempted", "preempted") if is_preempted else _LOST, _reason_line(condition)
    reason = str(status.get("reason", ""))
    return (_END_REASONS[reason], _reason_line(status)) if reason in _END_REASONS else None


def _reason_line(fields: Fields) -> str:
    """Return reason and message as one line of bounded length."""
    parts = [str(fields[key]) for key in ("reason", "message") if fields.get(key)]
    return " ".join(": ".join(parts).split())[:300]


def _child_object(fields: Fields, key: str) -> Fields:
    """Return an object below a key; an empty one where there is none. A server's answer is not trusted."""
    value = fields.get(key)
    return value if isinstance(value, Mapping) else {}


def _child_objects(fields: Fields, key: str) -> list[Fields]:
    """Return the objects of a list below a key."""
    values = fields.get(key)
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


class PodLog:
    """Reads the log of one pod in a thread, which starts at once.

    Each connection begins at the start of the log. Frames that were received before are skipped by their offsets.
    """

    def __init__(self, api: ClusterApi, namespace: str, pod: str, root: Path, node_rank: int, ranks: Iterable[int]):
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        self._other_file = root / f"logs/pod{node_rank}.log"
        self.stream = NodeStream(root, node_rank, ranks)
        self.stop_event, self._is_replaying = threading.Event(), False
        self.silence: str | None = None  # why nothing comes now
        self.fault: str | None = None  # why the rest of it cannot be used
        threading.Thread(target=self._follow, daemon=True, name=f"log of {pod}").start()

    def _follow(self) -> None:
        while not (self.stop_event.is_set() or self.stream.is_complete() or self.fault):
            try:
                for line in self._api.lines(self._path, SILENCE_SECONDS, follow=True, container="node"):
                    self._receive_line(line)
                    self.silence = None
                    if self.stop_event.is_set() or self.stream.is_complete():
                        break
            except ClusterSilence as error:
                self.silence = str(error)
            except ClusterRefusal as error:
                self.silence = str(error)  # among others 400: the container has not started yet
                self.fault = f"its log cannot be read: {error}" if error.status in (401, 403, 404) else None
            except BrokenStream as error:
                self.fault = f"its stream is broken: {error}"
            except OSError as error:
                self.fault = f"its files cannot be written: {error.filename}: {error.strerror}"
            self._is_replaying = True
            self.stop_event.wait(RETRY_SECONDS)

    def _receive_line(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            if not self._is_replaying and line.strip():
                self._other_file.parent.mkdir(exist_ok=True)
                with self._other_file.open("ab") as file:
                    if file.tell() < MAX_OTHER_BYTES:
                        file.write(line[:MAX_OTHER_BYTES] + b"\n")
            return
        if self._is_replaying:
            # a broken frame is left to `receive`, which names what is wrong with it
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                frame = json.loads(line)
                offset = self.stream.received.get(frame.get("file"))
                # a part of a file that is received, or a beat, came before
                if (offset is None and "end" not in frame) or (offset is not None and int(frame["at"]) < offset):
                    return
        self._is_replaying = False
        self.stream.receive(line + b"\n")
