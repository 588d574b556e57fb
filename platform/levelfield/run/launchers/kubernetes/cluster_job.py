"""The objects of one run on a cluster: created in order, watched, and deleted again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from levelfield.contracts.execution import Cause, Request
from levelfield.report.escapes import one_line, printable
from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, ClusterSilence, path_of
from levelfield.run.launchers.node_content import secret_values

GONE_SECONDS = 60.0  # for pods to end: thirty seconds of grace, and the kubelet's own time
TRIES = 3
Fields = dict[str, Any]


class ClusterJob:
    """The documents of a manifest, of which the last one runs the pods. Only what was created here is deleted."""

    def __init__(self, request: Request) -> None:
        (sent,) = request.submissions
        self.documents: list[Fields] = list(yaml.safe_load_all(next(iter(sent.files.values()))))
        self.main = self.documents[-1]
        self.name, self.namespace = sent.name, str(self.main["metadata"]["namespace"])
        self.context = sent.argv[sent.argv.index("--context") + 1] if "--context" in sent.argv else None
        self._secrets = secret_values(request)
        self._created: list[Fields] = []

    def create(self, api: ClusterApi) -> None:
        """Create everything. Raises ClusterRefusal and ClusterSilence; `delete` then removes what exists.

        The parts become the main object's own, so that the cluster removes them with it if this process is killed.
        """
        parts = [*self.documents[:-1], *([self._secret()] if self._secrets else [])]
        for document in parts:
            self._create(api, document)
        owner = self._create(api, self.main)
        reference = {key: self.main[key] for key in ("apiVersion", "kind")}
        reference |= {"name": self.name, "uid": str(owner.get("metadata", {}).get("uid", ""))}
        for document in parts:
            api.patch(path_of(document), {"metadata": {"ownerReferences": [reference]}})

    def _create(self, api: ClusterApi, document: Fields) -> Fields:
        answer = api.create(document)
        self._created.append(document)
        return answer

    def _secret(self) -> Fields:
        """Return the Secret, which no file of the run has."""
        metadata = {**self.main["metadata"], "name": f"{self.name}-secrets"}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(self._secrets)}

    def delete(self, api: ClusterApi) -> list[str]:
        """Delete what was created, the main object first. Return a sentence for each object that may be left."""
        left = []
        while self._created:
            document = self._created.pop()
            if why := _deleted(api, path_of(document)):
                what = f"{document['kind'].lower()}/{document['metadata']['name']}"
                command = f"kubectl -n {self.namespace} delete {what}"
                left.append(f"{what} could not be deleted: {why}; run `{command}`")
        return left

    def state(self, api: ClusterApi) -> tuple[Cause, str] | None:
        """Return why the main object ended or was removed, by its own conditions; None while it goes on or is well."""
        try:
            found = api.get(path_of(self.main))
        except ClusterRefusal as error:
            what = f"{self.main['kind']} {self.name}"
            return ("cancelled", f"{what} was deleted by somebody else") if error.status == 404 else None
        return failure_of(found)

    def waits(self, api: ClusterApi) -> bool:
        """Return whether the main object is suspended: a queue holds it."""
        return bool((api.get(path_of(self.main)).get("spec") or {}).get("suspend"))


def failure_of(found: Mapping[str, Any]) -> tuple[Cause, str] | None:
    """Return the cause and the cluster's line of a Job, JobSet or TrainJob that failed; None for any other."""
    if (found.get("metadata") or {}).get("deletionTimestamp"):
        return "cancelled", f"{found.get('kind', 'the job')} was deleted by somebody else"
    for condition in (found.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Failed", "FailureTarget") and condition.get("status") == "True":
            line = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
            limit = "DeadlineExceeded" in line
            return ("time-limit" if limit else "rank-failed"), one_line(line)[:300]
    return None


def _deleted(api: ClusterApi, path: str) -> str | None:
    """Delete an object. Return why it may still be there, or None."""
    why = ""
    for attempt in range(TRIES):
        try:
            api.delete(path)
            return None
        except ClusterRefusal as error:
            return str(error)
        except ClusterSilence as error:
            why = str(error)
            time.sleep(attempt + 1)
    return why


def wait_for(done: Callable[[], bool], seconds: float, step_seconds: float = 0.2) -> bool:
    """Wait until it is done, but not longer. Return whether it is."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_seconds)
    return True


class Sayings:
    """Sentences about the cluster, each once until it changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: Sequence[str] = ()

    def say(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            if sentence not in self._said:
                self._say(f"kubernetes: {printable(one_line(sentence))}")
        self._said = tuple(sentences)
