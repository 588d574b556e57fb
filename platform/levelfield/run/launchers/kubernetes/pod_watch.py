"""Watches the pods of a run in a thread: their states, and whether the cluster answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, ClusterSilence
from levelfield.run.launchers.kubernetes.pod_states import PodState, pod_state

WATCH_SECONDS = 60  # after which the server ends a watch, and the next one begins where it ended
GONE = 410  # the server no longer knows the version that a watch begins with: everything is listed again
RETRY_SECONDS = 1.0
MOST_RETRY_SECONDS = 10.0


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
        for pod in sorted(pods, key=_when_ended):
            self._seen(pod)
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

    def _changed(self, kind: str, pod: Mapping[str, Any]) -> None:
        if kind in ("ADDED", "MODIFIED"):
            with self._lock:
                self._left.add(_name(pod))
            self._seen(pod)
        elif kind == "DELETED":
            with self._lock:
                self._left.discard(_name(pod))
            self._seen(pod)
            state = pod_state(pod)
            if state and state.phase != "ended":
                self._removed(state)

    def _removed(self, state: PodState) -> None:
        if state.phase == "ended":
            return
        word = replace(state, phase="ended", word="cancelled", cause="cancelled", says=f"pod {state.pod} was deleted")
        self._keep(word)

    def _seen(self, pod: Mapping[str, Any]) -> None:
        if state := pod_state(pod):
            self._keep(state)

    def _keep(self, state: PodState) -> None:
        with self._lock:
            before = self._states.get(state.node_rank)
            if before is None or before.phase != "ended":
                self._states[state.node_rank] = state
                if state.has_failed and self.first_failure is None:
                    self.first_failure = state


def _change(line: bytes) -> dict[str, Any] | None:
    """Return a line of a watch; None where it is no change of an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and isinstance(found.get("object"), dict) and isinstance(found.get("type"), str)
    return found if known else None


def _name(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("name"))


def _when_ended(pod: Mapping[str, Any]) -> bool:
    """Order pods so that those with an own reason come before those that were deleted or stopped for them."""
    state = pod_state(pod)
    return state is None or not state.has_failed or state.cause == "cancelled"
