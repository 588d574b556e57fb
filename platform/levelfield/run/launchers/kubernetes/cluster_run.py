"""One run on a cluster, from the first object created to the last one deleted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import yaml

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, Outcome, ProcessEnd, Request, Say, Watch
from levelfield.errors import UsageError
from levelfield.report.escapes import one_line, printable
from levelfield.run.launchers.kubernetes.cluster_api import (
    MIN_MINOR_VERSION,
    ClusterApi,
    ClusterRefusal,
    ClusterSilence,
    Fields,
    object_path,
)
from levelfield.run.launchers.kubernetes.cluster_objects import RUN_LABEL
from levelfield.run.launchers.kubernetes.pod_watch import PodLog, PodState, PodWatch
from levelfield.run.launchers.liveness import Liveness, wait_until
from levelfield.run.launchers.node_content import secret_values
from levelfield.run.launchers.node_records import last_records, mark_ended_by_engine

POLL_SECONDS = 0.3
POD_END_SECONDS = 60.0  # for pods to end: thirty seconds of grace, and the kubelet's time
JOB_POLL_SECONDS = 5.0  # between two readings of the main object, or of the events that say why there is no pod
REFUSED_SECONDS = 60.0  # after which the run ends where the cluster refuses its pods, and waiting does not help
SETTLE_SECONDS = 5.0  # after a first failure: for the reasons of other pods, and the rest of the logs
DELETE_TRIES = 3  # to delete an object


def run_on_cluster(request: Request, watch: Watch, say: Say) -> Outcome:
    """Run the request's manifest and return how it ended. What was created is deleted before it returns."""
    job = ClusterJob(request)
    try:
        api = ClusterApi(job.context, max_connections=len(request.nodes) + 8)
    except UsageError as error:
        return Outcome("launch-error", (), str(error), nodes=node_ends(request, {}, "unreachable")[0])
    with closing(api):
        return ClusterRun(request, job, api, say).run(watch)


class ClusterRun:
    """Watches the pods and files of one run, until one cause ends it."""

    def __init__(self, request: Request, job: ClusterJob, api: ClusterApi, say: Say) -> None:
        self._request, self._job, self._api = request, job, api
        self._pods = PodWatch(api, job.namespace, f"{RUN_LABEL}={job.name}")
        self._is_streamed = "--stream" in next(iter(request.submissions[0].files.values()))
        self._root = Path(request.events_dir).parent
        self._logs: dict[int, PodLog] = {}
        self._liveness: Liveness | None = None
        self._job_read_at = self._warning_read_at = 0.0
        self._pod_warning: str | None = None
        self._refused_since: float | None = None
        self._say, self._last_sentences = say, list[str]()
        self._node_names = [node.name or f"node{rank}" for rank, node in enumerate(request.nodes)]

    def run(self, watch: Watch) -> Outcome:
        """Create the objects, watch the pods and delete everything. The outcome has the first cause."""
        for name in ("events", "logs", "nodes", "telemetry"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        cause: tuple[Cause, str | None]
        try:
            self._job.create(self._api)
            self._pods.thread.start()
            cause = self._watch_until_end(watch)
        except ClusterRefusal as error:
            cause = "launch-error", f"the cluster refused: {error}"
        except ClusterSilence as error:
            cause = "unreachable", f"the cluster at {self._api.address} gave no answer: {error}"
        except KeyboardInterrupt:
            cause = "interrupted", "interrupted by the user"
        states = self._pods.states()
        leftovers = self._job.delete(self._api)
        if (
            self._pods.states()
            and not leftovers
            and not wait_until(lambda: not self._pods.present_pods(), POD_END_SECONDS)
        ):
            leftovers.append(f"pods of {self._job.name} were still there after {POD_END_SECONDS:g} s")
        wait_until(self._logs_are_complete, 0.0 if leftovers else SETTLE_SECONDS)  # for the rest of the logs
        for log in self._logs.values():
            log.stop_event.set()
        self._pods.stop_event.set()
        watch()
        return self._outcome(*cause, {**self._pods.states(), **states}, leftovers)

    def _watch_until_end(self, watch: Watch) -> tuple[Cause, str | None]:
        """Watch until the run ends. Return its cause and the evidence."""
        while True:
            watch()
            states = self._pods.states()
            for node, state in states.items():  # receive the files of each node whose pod has started
                if self._is_streamed and node not in self._logs and state.phase != "pending":
                    ranks = [work.rank for work in self._request.nodes[node].processes]
                    self._logs[node] = PodLog(self._api, self._job.namespace, state.pod, self._root, node, ranks)
            self._report_waits(states)
            if len(states) == len(self._request.nodes) and all(state.word == "ended" for state in states.values()):
                wait_until(self._logs_are_complete, POD_END_SECONDS)
                watch()
                return "exited", None
            if cause := self._cause(states):
                return cause
            time.sleep(POLL_SECONDS)

    def _cause(self, states: dict[int, PodState]) -> tuple[Cause, str | None] | None:
        """Return why the run has to end, and the evidence; None while it may go on."""
        if self._pods.refusal:
            return "launch-error", f"the pods cannot be watched: {self._pods.refusal}"
        if self._pods.first_failure:
            return self._failure_cause(self._pods.first_failure)
        for node, log in self._logs.items():
            if log.fault:
                return "node-lost", f"{self._node_names[node]}: {log.fault}"
        if evidence := self._hang_evidence(states):
            return "hang", evidence
        now = time.monotonic()
        if len(states) < len(self._request.nodes) and now - self._warning_read_at >= JOB_POLL_SECONDS:
            self._warning_read_at, self._pod_warning = now, self._job.newest_warning(self._api)
            # waiting does not help against this refusal; a quota may be free again later
            warning = self._pod_warning or ""
            is_refused = "forbidden" in warning and "exceeded quota" not in warning
            self._refused_since = (self._refused_since or now) if is_refused else None
            if self._refused_since is not None and now - self._refused_since >= REFUSED_SECONDS:
                return "launch-error", f"the cluster makes no pod: {self._pod_warning}"
        if time.monotonic() - self._job_read_at < JOB_POLL_SECONDS:
            return None
        self._job_read_at = time.monotonic()
        failure = self._job.failure(self._api)
        if failure and failure[0] == "rank-failed":  # the Job's own condition: its pods may still give a better reason
            wait_until(lambda: self._pods.first_failure is not None, SETTLE_SECONDS)
            first = self._pods.first_failure
            return self._failure_cause(first) if first and first.cause != "cancelled" else failure
        return failure

    def _failure_cause(self, failed: PodState) -> tuple[Cause, str | None]:
        """Return the cause of a pod's failure. A deleted pod has the cause of its job, where that has one."""
        if failed.cause == "cancelled":
            wait_until(lambda: self._job.failure(self._api) is not None, SETTLE_SECONDS, 0.5)
            if failure := self._job.failure(self._api):
                return failure if failure[0] != "rank-failed" else ("cancelled", failure[1])
            with suppress(ClusterSilence, ClusterRefusal):  # then it is not known whether a queue holds the Job
                if (self._api.get(object_path(self._job.main_document)).get("spec") or {}).get("suspend"):
                    return "preempted", f"{self._node_names[failed.node_rank]}: its queue suspended the run"
        wait_until(lambda: all(log.stream.is_complete() or log.silence for log in self._logs.values()), SETTLE_SECONDS)
        return failed.cause or "rank-failed", f"{self._node_names[failed.node_rank]}: {failed.description}"

    def _hang_evidence(self, states: dict[int, PodState]) -> str | None:
        """Return the evidence of a hang; None without one, while pods are pending, and while the cluster is silent."""
        running = [node for node, state in states.items() if state.phase == "running"]
        if self._liveness is None:
            if len(running) == len(self._request.nodes):
                self._liveness = Liveness(self._request)
            return None
        if self._pods.silence or any(self._logs[node].silence for node in running if node in self._logs):
            return None
        return self._liveness.hang_evidence([])  # each node watches its ranks' heartbeats itself

    def _logs_are_complete(self) -> bool:
        return all(log.stream.is_complete() or log.fault for log in self._logs.values())

    def _report_waits(self, states: dict[int, PodState]) -> None:
        """Report what the run waits for: each reason once, with the number of its pods, until it changes."""
        nodes = len(self._request.nodes)
        waiting = [state.description for state in states.values() if state.phase == "pending"]
        waiting += [self._pod_warning or "waits for its queue or its controller: no pod yet"] * (nodes - len(states))
        sentences = [f"{count} of {nodes} pods: {description}" for description, count in Counter(waiting).items()]
        if self._pods.silence:
            sentences = [f"the cluster does not answer, and its state is unknown: {self._pods.silence}"]
        for sentence in sentences:
            if sentence not in self._last_sentences:
                self._say(f"kubernetes: {printable(one_line(sentence))}")
        self._last_sentences = sentences

    def _outcome(
        self, cause: Cause, evidence: str | None, states: dict[int, PodState], leftovers: list[str]
    ) -> Outcome:
        kill_count = sum(state.out_of_memory for state in states.values())
        kill_evidence = "the kubelet reports that a container ran out of memory (OOMKilled)" if kill_count else None
        # a pod without a status of its own has that of the whole job, or it was stopped because of another pod
        word_by_cause: dict[Cause, NodeWord] = {
            "time-limit": "time-limit",
            "cancelled": "cancelled",
            "preempted": "preempted",
        }
        word = word_by_cause.get(cause, "stopped")
        if word != "cancelled" and any(state.word == word for state in states.values()):
            word = "stopped"
        nodes, ends = node_ends(self._request, states, word)
        logs = [self._logs.get(node.node_rank) for node in nodes]
        nodes = tuple(
            replace(node, missing=(*node.missing, *log.stream.truncated_files()), detail=log.fault or node.detail)
            if log
            else node
            for node, log in zip(nodes, logs, strict=True)
        )
        return Outcome(cause, ends, evidence, kill_count, kill_evidence, tuple(leftovers), nodes=nodes)


def node_ends(
    request: Request, states: Mapping[int, PodState], default_word: NodeWord
) -> tuple[tuple[NodeEnd, ...], tuple[ProcessEnd, ...]]:
    """Return the ends of the nodes and of their ranks. default_word: the status of a node that has none of its own."""
    nodes: list[NodeEnd] = []
    ends: list[ProcessEnd] = []
    for record in last_records(request):
        state = states.get(record.node_rank)
        is_explained = state is not None and state.has_failed and state.word != "cancelled"
        # where no failure of the pod explains the ends of the ranks, the cluster ended them
        ends += record.ends if is_explained else mark_ended_by_engine(record).ends
        word: NodeWord = "unreachable"
        detail = "no pod was created"
        if state is not None:
            detail = f"{state.description} (pod {state.pod}{f' on {state.machine}' if state.machine else ''})"
            if state.word and state.word != "cancelled":  # the job says why a pod was deleted
                word = state.word
            elif state.phase != "pending" or default_word != "stopped":
                word = default_word
        nodes.append(NodeEnd(record.node_rank, record.name, word, detail, record.missing))
    return tuple(nodes), tuple(ends)


class ClusterJob:
    """The documents of a manifest, of which the last one runs the pods. Only what was created here is deleted."""

    def __init__(self, request: Request) -> None:
        (submission,) = request.submissions
        self.documents: list[Fields] = list(yaml.safe_load_all(next(iter(submission.files.values()))))
        self.main_document = self.documents[-1]
        self.name, self.namespace = submission.name, str(self.main_document["metadata"]["namespace"])
        self.context = (
            submission.argv[submission.argv.index("--context") + 1] if "--context" in submission.argv else None
        )
        self._secrets = secret_values(request)
        self._created: list[Fields] = []

    def create(self, api: ClusterApi) -> None:
        """Create everything. Raises ClusterRefusal and ClusterSilence; `delete` then removes what exists.

        The parts become the main object's own, so that the cluster removes them with it if this process is killed.
        """
        part_documents = self.documents[:-1]
        if self._secrets:  # no file of the run has them
            metadata = {**self.main_document["metadata"], "name": f"{self.name}-secrets"}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(self._secrets)}
            part_documents.append(secret)
        created_job: Fields = {}
        for document in (*part_documents, self.main_document):
            # it is deleted later unless the cluster refuses it: without an answer it may exist
            self._created.append(document)
            try:
                created_job = api.create(document)
            except ClusterRefusal as error:
                if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # refused, also because somebody else made it
                    self._created.pop()
                raise
        # An old cluster drops what it does not know in silence. Without completionMode no pod has a number, and without
        # podFailurePolicy a run goes on after a pod was lost.
        if dropped_keys := sorted(self.main_document["spec"].keys() - (created_job.get("spec") or {}).keys()):
            keys = ", ".join(f"spec.{key}" for key in dropped_keys)
            raise ClusterRefusal(
                200, f"it does not know {keys} of a Job; expected Kubernetes 1.{MIN_MINOR_VERSION} or newer"
            )
        owner_reference = {key: self.main_document[key] for key in ("apiVersion", "kind")}
        owner_reference |= {"name": self.name, "uid": str(created_job.get("metadata", {}).get("uid", ""))}
        for document in part_documents:
            api.answer("PATCH", object_path(document), body={"metadata": {"ownerReferences": [owner_reference]}})

    def delete(self, api: ClusterApi) -> list[str]:
        """Delete what was created, the main object first. Return a sentence for each object that may be left."""
        leftovers = []
        while self._created:
            document, reason = self._created.pop(), ""
            for attempt in range(DELETE_TRIES):
                try:
                    api.delete(object_path(document))
                    reason = ""
                    break
                except ClusterRefusal as error:
                    reason = str(error)
                    break
                except ClusterSilence as error:
                    reason = str(error)
                    time.sleep(attempt + 1)
            if reason:
                name = f"{document['kind'].lower()}/{document['metadata']['name']}"
                command = f"kubectl -n {self.namespace} delete {name}"
                leftovers.append(f"{name} could not be deleted: {reason}; run `{command}`")
        return leftovers

    def failure(self, api: ClusterApi) -> tuple[Cause, str] | None:
        """Return why the Job ended or was removed, by its own conditions; None where it goes on or is unknown."""
        try:
            job = api.get(object_path(self.main_document))
        except ClusterRefusal as error:
            name = f"{self.main_document['kind']} {self.name}"
            return ("cancelled", f"{name} was deleted by somebody else") if error.status == 404 else None
        except ClusterSilence:
            return None
        if (job.get("metadata") or {}).get("deletionTimestamp"):
            return "cancelled", f"{job.get('kind', 'the job')} was deleted by somebody else"
        for condition in (job.get("status") or {}).get("conditions") or []:
            if condition.get("type") in ("Failed", "FailureTarget") and condition.get("status") == "True":
                line = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
                return ("time-limit" if "DeadlineExceeded" in line else "rank-failed"), one_line(line)[:300]
        return None

    def newest_warning(self, api: ClusterApi) -> str | None:
        """Return the cluster's newest warning about the Job; None without one, or without the right to read it."""
        selector = f"type=Warning,involvedObject.name={self.name}"
        try:
            events = api.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector).get("items")
        except (ClusterSilence, ClusterRefusal):
            return None
        warnings = [event for event in events or [] if isinstance(event, Mapping) and event.get("message")]
        # the newest by its last time, as text: all times of the API are ISO 8601 with Z
        newest = max(warnings, key=lambda w: str(w.get("lastTimestamp") or w.get("eventTime") or ""), default=None)
        return one_line(f"{newest.get('reason')}: {newest['message']}")[:300] if newest else None
