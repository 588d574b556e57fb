"""Watches the pods of a run in threads: their states, and their logs, which bring the nodes' files.

A broken connection is made again.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from levelfield.contracts.execution import Cause, NodeWord
from levelfield.run.launchers.kubernetes.cluster_api import (
    Backoff,
    ClusterApi,
    ClusterError,
    ClusterRefusal,
    ClusterSilence,
)
from levelfield.run.launchers.kubernetes.cluster_objects import CONTAINER_NAME
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.rundir.event_lines import object_or_none

WATCH_SECONDS = 60  # after which the server ends a watch, and the next one begins where it ended
SILENCE_SECONDS = 60.0  # of a log, to which the node's agent adds a line each second
REFUSED_SECONDS = 60.0  # after which a refusal by the cluster is final, where waiting rarely helps
MAX_OTHER_BYTES = 2**20  # of a log's lines that are no frames: what start.py or the container wrote
INDEX_KEY = "batch.kubernetes.io/job-completion-index"
# Reasons for which a container cannot start, though the kubelet tries again, and those for which it never can.
_RETRIED_REASONS = (
    "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError",
)  # fmt: skip
_STUCK_REASONS = ("InvalidImageName", "ErrImageNeverPull")
_UNSTARTED_REASONS = ("StartError", "ContainerCannotRun")  # of a container that ended before its first instruction
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
}
_REJECTION_REASONS = ("Evicted", "NodeShutdown")  # also of pods that the kubelet does not let start
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
        self.error: ClusterError | None = None  # why the states of the pods are not known now
        self.answered_at = time.monotonic()  # when they were last known
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
        backoff, version = Backoff(), None
        while not self.stop_event.is_set():
            answered_at, asked_seconds = self.answered_at, 0.0
            try:
                if version is None:
                    version = self._list_pods()
                    self._note_answer()
                    answered_at = self.answered_at
                version = self._follow(version)
            except ClusterError as error:  # also 410: the server no longer knows the version
                asked_seconds = error.pause_seconds
                if version is None:
                    self.error = error
                version = None
            if self.answered_at > answered_at:  # the watch brought something
                backoff.reset()
            self.stop_event.wait(backoff.pause_seconds(asked_seconds))

    def _note_answer(self) -> None:
        self.error, self.answered_at = None, time.monotonic()

    def _list_pods(self) -> str:
        """Read all pods. Return the version from which a watch goes on."""
        answer = self._api.get(self._path, labelSelector=self._label)
        if "items" not in answer:  # else every pod would seem to be deleted
            raise ClusterSilence("the answer is no list of pods")
        pods = _child_objects(answer, "items")
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
        for line in self._api.lines(self._path, WATCH_SECONDS + 30.0, **query):
            if self.stop_event.is_set():
                return None
            change = object_or_none(line) or {}
            kind, pod = change.get("type"), _child_object(change, "object")
            if kind == "ERROR":
                code = pod.get("code")
                raise ClusterRefusal(code if isinstance(code, int) else 0, str(pod.get("message")))
            if not isinstance(kind, str) or not pod:
                return None
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                with self._lock:
                    update_names = self._present_pods.discard if kind == "DELETED" else self._present_pods.add
                    update_names(str(_child_object(pod, "metadata").get("name")))
                if state := pod_state(pod):
                    self._store(state)
                    if kind == "DELETED":
                        self._remove(state)
            self._note_answer()
            version = str(_child_object(pod, "metadata").get("resourceVersion", version))
        return version

    def _remove(self, state: PodState) -> None:
        if state.phase != "ended":
            description = f"pod {state.pod} was deleted"
            self._store(replace(state, phase="ended", word="cancelled", cause="cancelled", description=description))

    def _store(self, state: PodState) -> None:
        with self._lock:
            stored = self._states.get(state.node_rank)
            if stored is not None and stored.phase == "ended":
                return
            if stored is not None and stored.phase == "running" and state.is_rejected:
                # a kubelet that starts again may reject a pod that ran
                state = replace(state, word="lost", cause="node-lost")
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
    is_rejected: bool = False  # it failed, and its container never started
    is_retried: bool = False  # its container cannot start, and the kubelet tries again
    is_ready: bool = True  # False also where the cluster hears nothing from its machine

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
    containers = [c for c in _child_objects(status, "containerStatuses") if c.get("name") == CONTAINER_NAME]
    container_state = _child_object(containers[0], "state") if containers else {}
    termination, phase = _child_object(container_state, "terminated"), status.get("phase")
    if termination:
        word, cause, description = _termination_meaning(termination)
        is_out_of_memory = termination.get("reason") == "OOMKilled"
        return replace(
            state, phase="ended", word=word, cause=cause, description=description, out_of_memory=is_out_of_memory
        )
    if phase == "Succeeded":
        return replace(state, phase="ended", word="ended", description="all ranks ended")
    if phase == "Failed" and "running" not in container_state:
        return _rejected_state(state, status)
    if phase == "Failed":
        return replace(state, phase="ended", word="lost", cause="node-lost", description=_reason_line(status))
    if phase == "Running":
        is_ready = not any(c.get("type") == "Ready" and c.get("status") == "False" for c in _conditions(status))
        return replace(state, phase="running", description=f"runs on {machine or 'a node'}", is_ready=is_ready)
    # other containers are those that the cluster adds to each pod
    for container in (*_child_objects(status, "initContainerStatuses"), *_child_objects(status, "containerStatuses")):
        waiting = _child_object(_child_object(container, "state"), "waiting")
        reason = str(waiting.get("reason") or "PodInitializing")
        if reason != "PodInitializing":  # of a container that waits for another one
            waiting_state = replace(state, description=_reason_line(waiting), is_retried=reason in _RETRIED_REASONS)
            is_stuck = reason in _STUCK_REASONS
            return replace(waiting_state, word="unreachable", cause="launch-error") if is_stuck else waiting_state
    for condition in _conditions(status):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return replace(state, description=_reason_line(condition))
    return state


def _termination_meaning(termination: Fields) -> tuple[NodeWord, Cause | None, str]:
    """Return status, cause and description of the end of a container."""
    exit_code, reason = termination.get("exitCode"), termination.get("reason")
    if reason == "OOMKilled":
        return "failed", "rank-failed", "the container ran out of memory (OOMKilled)"
    if reason == "ContainerStatusUnknown":  # its machine started again, and knows nothing of it
        return (*_LOST, _reason_line(termination))
    if reason in _UNSTARTED_REASONS:
        return "unreachable", "launch-error", _reason_line(termination)
    meaning = _EXIT_MEANINGS.get(exit_code) if isinstance(exit_code, int) else None
    return meaning or ("failed", "rank-failed", f"the container ended with exit code {exit_code}")


def _rejected_state(state: PodState, status: Fields) -> PodState:
    """Return the state of a pod that failed before its container started: the kubelet rejected it, or what the cluster
    adds to each pod failed."""
    ends = (
        (container.get("name"), _child_object(_child_object(container, "state"), "terminated").get("exitCode"))
        for container in _child_objects(status, "initContainerStatuses")
    )
    codes = (f"its container {name} ended with exit code {code}" for name, code in ends if code)
    description = _reason_line(status) or next(codes, "its container never started")
    # such as OutOfnvidia.com/gpu; OutOfcpu and its kind are no devices
    is_device = re.match(r"OutOf[^ ]+/", str(status.get("reason"))) is not None
    word: Literal["device-taken", "unreachable"] = "device-taken" if is_device else "unreachable"
    return replace(state, phase="ended", description=description, word=word, cause=word, is_rejected=True)


def _disruption(status: Fields) -> tuple[tuple[NodeWord, Cause], str] | None:
    """Return status and cause of a pod that the cluster ended, and the cluster's own line; None for any other."""
    for condition in _conditions(status):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            is_preempted = condition.get("reason") == "PreemptionByScheduler"
            return ("preempted", "preempted") if is_preempted else _LOST, _reason_line(condition)
    reason, containers = str(status.get("reason", "")), _child_objects(status, "containerStatuses")
    has_started = any(_child_object(container, "state").keys() - {"waiting"} for container in containers)
    if reason in _REJECTION_REASONS and not has_started:
        return None
    return (_END_REASONS[reason], _reason_line(status)) if reason in _END_REASONS else None


def _conditions(status: Fields) -> list[Fields]:
    return _child_objects(status, "conditions")


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
        self.heard_at = time.monotonic()  # when a line came
        self.silence: str | None = None  # why nothing comes now
        self.fault: str | None = None  # why the rest of it cannot be used
        threading.Thread(target=self._follow, daemon=True, name=f"log of {pod}").start()

    def _follow(self) -> None:
        backoff, refused_at = Backoff(), None
        while not (self.stop_event.is_set() or self.stream.is_complete() or self.fault):
            asked_seconds = 0.0
            try:
                for line in self._api.lines(self._path, SILENCE_SECONDS, follow=True, container=CONTAINER_NAME):
                    self._receive_line(line)
                    self.silence, self.heard_at, refused_at = None, time.monotonic(), None
                    backoff.reset()
                    if self.stop_event.is_set() or self.stream.is_complete():
                        return
            except ClusterError as error:
                self.silence, asked_seconds = str(error), error.pause_seconds
                # among others 400 while the container starts, and 500 where its machine does not answer
                if isinstance(error, ClusterRefusal) and error.status in (401, 403, 404):
                    refused_at = refused_at or time.monotonic()
                    if time.monotonic() - refused_at >= REFUSED_SECONDS:
                        self.fault = f"its log cannot be read: {error}"
            except BrokenStream as error:
                self.fault = f"its stream is broken: {error}"
            except OSError as error:
                self.fault = f"its files cannot be written: {error.filename}: {error.strerror}"
            self._is_replaying = True
            self.stop_event.wait(backoff.pause_seconds(asked_seconds))

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
