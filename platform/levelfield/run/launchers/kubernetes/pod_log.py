"""Receives the files of one node through its pod's log, in a thread. A broken connection is made again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, ClusterSilence
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream

SILENCE_SECONDS = 60.0  # the node's part sends a line each second
RETRY_SECONDS = 1.0
MOST_OTHER_BYTES = 2**20  # of lines that are no frames: what start.py or the container wrote


class PodLog:
    """The log of one pod. silence: why nothing comes now, or None. fault: why the rest of it cannot be used, or None.

    A log begins anew with each connection. Frames that came before are skipped by their offsets.
    """

    def __init__(self, api: ClusterApi, namespace: str, pod: str, root: Path, node_rank: int, ranks: Iterable[int]):
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        self._other = root / f"logs/pod{node_rank}.log"
        self._stream = NodeStream(root, node_rank, ranks)
        self._ending, self._repeats = threading.Event(), False
        self.silence: str | None = None
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"log of {pod}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    @property
    def is_complete(self) -> bool:
        """Whether the last frame of the node's part came."""
        return self._stream.code is not None

    def cut(self) -> tuple[str, ...]:
        """Return the files of the node that came up to their limit."""
        return self._stream.cut()

    def _follow(self) -> None:
        while not (self._ending.is_set() or self.is_complete or self.fault):
            try:
                self._connected()
            except ClusterSilence as error:
                self.silence = str(error)
            except ClusterRefusal as error:
                self.silence = str(error)  # among others 400: the container has not started yet
                self.fault = f"its log cannot be read: {error}" if error.status in (401, 403, 404) else None
            except BrokenStream as error:
                self.fault = f"its stream is broken: {error}"
            except OSError as error:
                self.fault = f"its files cannot be written: {error.filename}: {error.strerror}"
            self._repeats = True
            self._ending.wait(RETRY_SECONDS)

    def _connected(self) -> None:
        """Receive over one connection, until it ends."""
        for line in self._api.lines(self._path, SILENCE_SECONDS, follow=True, container="node"):
            self._take(line)
            self.silence = None
            if self._ending.is_set() or self.is_complete:
                return

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            return self._keep(line)
        if self._repeats and self._is_known(line):
            return
        self._repeats = False
        self._stream.receive(line + b"\n")

    def _is_known(self, line: bytes) -> bool:
        """Return whether a frame of a repeated log came before: a part of a file that is received, or a beat."""
        try:
            frame = json.loads(line)
            offset = self._stream.received.get(frame.get("file"))
            return (offset is None and "end" not in frame) or (offset is not None and int(frame["at"]) < offset)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False  # the receiver names the fault

    def _keep(self, line: bytes) -> None:
        if self._repeats or not line.strip():
            return
        self._other.parent.mkdir(exist_ok=True)
        with self._other.open("ab") as file:
            if file.tell() < MOST_OTHER_BYTES:
                file.write(line[:MOST_OTHER_BYTES] + b"\n")
