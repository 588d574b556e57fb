"""One run on a cluster, from the first object created to the last one deleted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import yaml

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, Outcome, ProcessEnd, Request, Say, Watch
from levelfield.errors import UsageError
from levelfield.node.regular_files import read_last
from levelfield.report.escapes import one_line, printable
from levelfield.run.launchers.kubernetes.cluster_api import (
    MIN_MINOR_VERSION,
    QUICK_SECONDS,
    ClusterApi,
    ClusterError,
    ClusterRefusal,
    ClusterSilence,
    Fields,
    object_path,
    retried,
)
from levelfield.run.launchers.kubernetes.cluster_objects import PEER_SECONDS_OPTION, RUN_LABEL
from levelfield.run.launchers.kubernetes.pod_watch import REFUSED_SECONDS, PodLog, PodState, PodWatch
from levelfield.run.launchers.liveness import Liveness, NodePulse, wait_until
from levelfield.run.launchers.node_content import secret_values
from levelfield.run.launchers.node_records import (
    UnfinishedNodes,
    last_records,
    mark_ended_by_engine,
    recorded_failure,
)
from levelfield.rundir.directory import write_json

POLL_SECONDS = 0.3
POD_END_SECONDS = 60.0  # for pods to end: thirty seconds of grace, and the kubelet's time
LOG_SECONDS = 60.0  # for the rest of the logs of pods that have ended
JOB_POLL_SECONDS = 5.0  # between two readings of the main object, or of the events that say why there is no pod
ABSENCE_COUNT = 3  # readings in a row that do not find the main object, after which it is deleted
SETTLE_SECONDS = 5.0  # after a first failure: for the reasons of other pods, and the rest of the logs
CREATE_SECONDS = 60.0  # for an object that the cluster refuses for the moment
DELETE_SECONDS = 60.0  # for all objects of a run whose pods may still run
FINISH_SECONDS = 3.0  # for what is left of the logs of a run that has ended by itself, and for all of its objects
RETRIED_START_SECONDS = 120.0  # for a container that cannot start: the kubelet tries after 10, 30, 70 s
API_SECONDS = 600.0  # without an answer about the pods and a line of a log: control planes are upgraded in minutes
HEARD_SECONDS = 15.0  # without a line, after which a log is silent: a node adds one each second
QUEUE_SECONDS = 7 * 86400.0  # for a first pod that runs


def run_on_cluster(request: Request, watch: Watch, say: Say, attaches: bool = False) -> Outcome:
    """Run the request's manifest and return how it ended. What was created is deleted before it returns.

    attaches: a platform that was killed has created it.
    """
    job = ClusterJob(request)
    try:
        api = ClusterApi(job.context, max_connections=len(request.nodes) + 8)
    except UsageError as error:
        return Outcome("launch-error", (), str(error), nodes=node_ends(request, {}, "unreachable")[0])
    with closing(api):
        return ClusterRun(request, job, api, say).run(watch, attaches)


def remaining_pods(request: Request) -> str | None:
    """Return what lives of a run whose platform was killed; None where its object is absent or has ended."""
    job = ClusterJob(request)
    name = f"{_object_text(job.main_document)} of namespace {job.namespace}"
    with closing(ClusterApi(job.context)) as api:
        try:
            status = api.get(object_path(job.main_document), QUICK_SECONDS).get("status") or {}
        except ClusterError as error:
            is_absent = isinstance(error, ClusterRefusal) and error.status == HTTPStatus.NOT_FOUND
            return None if is_absent else f"{name}, whose state is not known: {error}"
    conditions = [c for c in status.get("conditions") or [] if isinstance(c, Mapping)]
    if any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions):
        return None
    return f"{name}, with {status.get('active') or 'no'} active pods"


class ClusterRun:
    """Watches the pods and files of one run, until one cause ends it."""

    def __init__(self, request: Request, job: ClusterJob, api: ClusterApi, say: Say) -> None:
        self._request, self._job, self._api = request, job, api
        self._pods = PodWatch(api, job.namespace, f"{RUN_LABEL}={job.name}")
        self._is_streamed = "--stream" in next(iter(request.submissions[0].files.values()))
        self._root = Path(request.events_dir).parent
        self._logs: dict[int, PodLog] = {}
        self._liveness: Liveness | None = None
        self._pulse, self._unfinished_nodes = NodePulse(request), UnfinishedNodes(request)
        self._unfinished_count = len(request.nodes)
        self._job_read_at = self._warning_read_at = 0.0
        self._pod_warning: str | None = None
        self._refused_since: float | None = None
        self._began_at = time.monotonic()
        self._first_pod_at: float | None = None  # since when a pod runs
        self._lost_nodes: dict[int, str] = {}  # what is known of nodes that gave no sign, or whose logs are broken
        self._retried_since: dict[int, float] = {}  # by node: since when its container cannot start
        self._say, self._last_sentences = say, list[str]()
        self._node_names = [node.name or f"node{rank}" for rank, node in enumerate(request.nodes)]

    def run(self, watch: Watch, attaches: bool) -> Outcome:
        """Create the objects, or attach to them, watch the pods and delete everything. The outcome has the first
        cause."""
        for name in ("events", "logs", "nodes", "telemetry"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        cause: tuple[Cause, str | None]
        try:
            if attaches:
                self._job.adopt()
                self._say(f"attached to {_object_text(self._job.main_document)} of namespace {self._job.namespace}")
            else:
                self._job.create(self._api, self._say_sentence)
                self._job.record(self._root)
            self._pods.thread.start()
            cause = self._watch_until_end(watch)
        except ClusterRefusal as error:
            cause = "launch-error", f"the cluster refused: {error}"
        except ClusterSilence as error:
            cause = "unreachable", f"the cluster at {self._api.address} gave no answer: {error}"
        except KeyboardInterrupt:
            cause = "interrupted", "interrupted by the user"
        states = self._pods.states()
        for node, description in self._lost_nodes.items():
            states[node] = replace(states[node], phase="ended", word="lost", cause="node-lost", description=description)
        is_over = cause[0] == "exited"  # no process of the run is left
        deadline = time.monotonic() + (FINISH_SECONDS if is_over else DELETE_SECONDS)
        leftovers = self._job.delete(self._api, deadline, self._say_sentence)
        if self._pods.states() and not leftovers:
            seconds = max(0.0, deadline - time.monotonic()) if is_over else POD_END_SECONDS
            if not self._wait("the run's pods to end", lambda: not self._pods.present_pods(), seconds) and not is_over:
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
                if self._is_streamed and node not in self._logs and state.phase != "pending" and not state.is_rejected:
                    ranks = [work.rank for work in self._request.nodes[node].processes]
                    self._logs[node] = PodLog(self._api, self._job.namespace, state.pod, self._root, node, ranks)
            self._report_waits(states)
            if cause := self._cause(states):
                watch()
                return cause
            time.sleep(POLL_SECONDS)

    def _cause(self, states: dict[int, PodState]) -> tuple[Cause, str | None] | None:
        """Return why the run has to end, and the evidence; None while it may go on."""
        if cause := self._recorded_cause():
            return cause
        if len(states) == len(self._request.nodes) and all(state.word == "ended" for state in states.values()):
            self._wait("the rest of the pods' logs", self._logs_are_complete, LOG_SECONDS)
            return "exited", None
        if self._pods.first_failure:
            return self._failure_cause(self._pods.first_failure)
        for node, log in self._logs.items():
            if log.fault:
                self._lost_nodes[node] = log.fault
                return "node-lost", f"{self._node_names[node]}: {log.fault}"
        return self._job_cause(states) or self._silence_cause(states) or self._start_cause(states)

    def _recorded_cause(self) -> tuple[Cause, str | None] | None:
        """Return the cause by the nodes' own last records, where all have one or one of them has a failure.

        They hold whatever the cluster says, and where it says nothing.
        """
        has_logs = not self._is_streamed or len(self._logs) == len(self._request.nodes)
        if not has_logs and time.monotonic() - self._began_at < SETTLE_SECONDS:
            return None  # an earlier platform received these records, and its logs may have more
        unfinished_count = len(self._unfinished_nodes.read())
        if unfinished_count == self._unfinished_count:
            return None
        self._unfinished_count = unfinished_count
        records = [
            replace(record, name=self._node_names[record.node_rank])
            for record in last_records(self._request)
            if record.cause is not None
        ]
        failure = recorded_failure(records)
        if failure is None and unfinished_count:
            return None
        if all(record.cause == "exited" for record in records):
            # where all events are here, a log that is cut before its end lacks no figure
            if not wait_until(self._logs_are_complete, FINISH_SECONDS) and not self._ranks_have_ended():
                self._wait("the rest of the pods' logs", self._logs_are_complete, LOG_SECONDS)
            return "exited", None
        wait_until(lambda: self._pods.first_failure is not None, SETTLE_SECONDS)  # the pods' states may say more
        first = self._pods.first_failure
        if first and (failure is None or first.cause != "cancelled"):
            return self._failure_cause(first)
        stopped = next(record for record in records if record.cause != "exited")
        return failure or ("cancelled", f"{stopped.name}: {stopped.evidence}")

    def _job_cause(self, states: dict[int, PodState]) -> tuple[Cause, str | None] | None:
        """Return why the Job ends the run, by its conditions and events, which are read every few seconds."""
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

    def _start_cause(self, states: dict[int, PodState]) -> tuple[Cause, str | None] | None:
        """Return why the run has waited too long for its pods; None while nothing is known of them."""
        if self._pods.error:
            return None
        now = time.monotonic()
        retried = [node for node, state in states.items() if state.is_retried]
        self._retried_since = {node: self._retried_since.get(node, now) for node in retried}
        for node, since in self._retried_since.items():
            if now - since >= RETRIED_START_SECONDS:
                limit = f"the kubelet tried for {RETRIED_START_SECONDS:g} s"
                return "launch-error", f"{self._node_names[node]}: {states[node].description}; {limit}"
        started_count = sum(state.phase != "pending" for state in states.values())
        if started_count == len(self._request.nodes):
            return None
        if started_count and self._first_pod_at is None:
            self._first_pod_at = now
        if self._first_pod_at is not None and now - self._first_pod_at >= self._job.peer_seconds:
            sentences = "; ".join(self._waits(states))
            limit = f"for {self._job.peer_seconds:g} s (limit kubernetes.peer_seconds)"
            return "unreachable", f"{started_count} pods waited {limit} for the others: {sentences}"
        if self._first_pod_at is None and now - self._began_at >= QUEUE_SECONDS:
            return "unreachable", f"no pod ran for {QUEUE_SECONDS:g} s: {'; '.join(self._waits(states))}"
        return None

    def _silence_cause(self, states: dict[int, PodState]) -> tuple[Cause, str | None] | None:
        """Return why the run has waited too long for a sign: of the cluster, of a node, or of a step.

        A node that is silent counts, and a cluster that does not answer does not: then nothing is known of its nodes.
        Files on a claim come without the cluster. Each node watches its own ranks' heartbeats.
        """
        now, error = time.monotonic(), self._pods.error or self._job.error
        is_heard = not self._is_streamed or any(now - log.heard_at < HEARD_SECONDS for log in self._logs.values())
        seconds = now - self._pods.answered_at
        if error and not states and seconds >= self._api_limit(states, error):
            word: Cause = "launch-error" if isinstance(error, ClusterRefusal) else "unreachable"
            return word, f"the pods cannot be watched: {error}"
        if error and not is_heard and seconds >= API_SECONDS:
            return "node-lost", f"nothing is known of the pods for {seconds:.0f} s: {error}"
        started = [node for node, state in states.items() if state.phase != "pending"]
        if self._liveness is None:
            if len(started) == len(self._request.nodes):
                self._liveness = Liveness(self._request)
            return None
        if self._is_streamed and error and not is_heard:
            return None
        evidence = self._liveness.hang_evidence([])
        nodes = [node for node in self._unfinished_nodes.read() if states[node.node_rank].phase == "running"]
        silent_nodes = self._pulse.silent_nodes(nodes)
        # where every node is silent, the cluster's way to all of them may be broken, while they train
        is_way_open = len(silent_nodes) < len(states) or not all(states[node].is_ready for node in silent_nodes)
        if silent_nodes and (is_way_open or evidence):
            if self._is_streamed and not is_heard:
                self._job.failure(self._api)  # asks now: the last answer may be older than the limit
                if self._job.error:
                    return None
            for node, silence in silent_nodes.items():
                reason = self._logs[node].silence if node in self._logs else None
                sentence = f"no sign for {silence.seconds:.0f} s (limit {silence.limit_seconds:g} s)"
                self._lost_nodes[node] = f"{sentence}; {reason}" if reason else sentence
            first = min(silent_nodes)
            others = [self._node_names[node] for node in silent_nodes if node != first]
            text = f"{self._node_names[first]}: {self._lost_nodes[first]}"
            return "node-lost", f"{text}; nor of {', '.join(others)}" if others else text
        return ("hang", evidence) if evidence else None

    def _api_limit(self, states: dict[int, PodState], error: ClusterError) -> float:
        """Return for how many seconds nothing may be known of the pods. A first refusal is mostly a missing right."""
        return REFUSED_SECONDS if isinstance(error, ClusterRefusal) and not states else API_SECONDS

    def _failure_cause(self, failed: PodState) -> tuple[Cause, str | None]:
        """Return the cause of a pod's failure. A deleted pod has the cause of its job, where that has one."""
        if failed.cause == "cancelled":
            wait_until(lambda: self._job.failure(self._api) is not None, SETTLE_SECONDS, 0.5)
            if failure := self._job.failure(self._api):
                return failure if failure[0] != "rank-failed" else ("cancelled", failure[1])
            with suppress(ClusterError):  # then it is not known whether a queue holds the Job
                if (self._api.get(object_path(self._job.main_document)).get("spec") or {}).get("suspend"):
                    return "preempted", f"{self._node_names[failed.node_rank]}: its queue suspended the run"
        wait_until(lambda: all(log.stream.is_complete() or log.silence for log in self._logs.values()), SETTLE_SECONDS)
        return failed.cause or "rank-failed", f"{self._node_names[failed.node_rank]}: {failed.description}"

    def _logs_are_complete(self) -> bool:
        return all(log.stream.is_complete() or log.fault for log in self._logs.values())

    def _ranks_have_ended(self) -> bool:
        """Return whether the last event of every rank is here."""
        ranks = [work.rank for node in self._request.nodes for work in node.processes]
        try:
            tails = (read_last(Path(self._request.events_dir) / f"rank{rank}.jsonl", 512) for rank in ranks)
            return all(b'"event":"end"' in tail for tail in tails)
        except OSError:
            return False

    def _wait(self, subject: str, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done, with a line about it where that takes longer. Return whether it is done."""
        quiet_seconds = min(seconds, SETTLE_SECONDS)
        if wait_until(is_done, quiet_seconds):
            return True
        if seconds > quiet_seconds:
            self._say_sentence(f"waits up to {seconds:g} s for {subject}")
        return wait_until(is_done, seconds - quiet_seconds)

    def _say_sentence(self, sentence: str) -> None:
        self._say(f"kubernetes: {printable(one_line(sentence))}")

    def _waits(self, states: dict[int, PodState]) -> list[str]:
        """Return what the run waits for: each reason with the number of its pods."""
        nodes = len(self._request.nodes)
        waiting = [
            f"{state.description}{f'; the kubelet tries for {RETRIED_START_SECONDS:g} s' if state.is_retried else ''}"
            for state in states.values()
            if state.phase == "pending"
        ]
        waiting += [self._pod_warning or "waits for its queue or its controller: no pod yet"] * (nodes - len(states))
        return [f"{count} of {nodes} pods: {description}" for description, count in Counter(waiting).items()]

    def _report_waits(self, states: dict[int, PodState]) -> None:
        """Report what the run waits for: each reason once, until it changes."""
        sentences = self._waits(states)
        if error := self._pods.error or self._job.error:
            limit = self._api_limit(states, error)
            sentences = [f"the cluster does not answer about the pods; waits up to {limit:g} s: {error}"]
        now, nodes = time.monotonic(), len(self._request.nodes)
        silences = Counter(
            log.silence
            for node, log in self._logs.items()
            if log.silence and states[node].phase == "running" and now - log.heard_at >= HEARD_SECONDS
        )
        sentences += [f"{count} of {nodes} logs cannot be read: {silence}" for silence, count in silences.items()]
        for sentence in sentences:
            if sentence not in self._last_sentences:
                self._say_sentence(sentence)
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
            elif record.cause not in (None, "stopped"):  # what the node wrote, where the cluster says nothing
                word = record.end.word
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
        arguments = self.main_document["spec"]["template"]["spec"]["containers"][0]["args"]
        self.peer_seconds = float(arguments[arguments.index(PEER_SECONDS_OPTION) + 1])
        self._secrets = secret_values(request)
        self._created: list[Fields] = []
        self._absence_count = 0
        self.error: ClusterError | None = None  # why the main object could not be read

    def _part_documents(self) -> list[Fields]:
        """Return what the main object needs, with the secrets, which no file of the run has."""
        if not self._secrets:
            return self.documents[:-1]
        metadata = {**self.main_document["metadata"], "name": f"{self.name}-secrets"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(self._secrets)}
        return [*self.documents[:-1], secret]

    def adopt(self) -> None:
        """Take what a killed platform created as this run's own: `delete` then removes it. The names are the run's."""
        self._created = [*self._part_documents(), self.main_document]

    def record(self, root: Path) -> None:
        """Write by which names the cluster knows the run."""
        names = {"job": self.name, "namespace": self.namespace, "context": self.context}
        with suppress(OSError):  # a full disk: the names follow from the plan
            write_json(root / "nodes/engine.json", {"schema": "levelfield.engine/1", "engine": "kubernetes", **names})

    def create(self, api: ClusterApi, say: Say) -> None:
        """Create everything. Raises ClusterRefusal and ClusterSilence; `delete` then removes what exists.

        The parts become the main object's own, so that the cluster removes them with it if this process is killed.
        """
        part_documents = self._part_documents()
        created_job: Fields = {}
        for document in (*part_documents, self.main_document):
            created_job = self._create(api, document, say)
        # An old cluster drops what it does not know in silence. Without completionMode no pod has a number, and without
        # podFailurePolicy a run goes on after a pod was lost.
        if dropped_keys := sorted(self.main_document["spec"].keys() - (created_job.get("spec") or {}).keys()):
            keys = ", ".join(f"spec.{key}" for key in dropped_keys)
            raise ClusterRefusal(
                200, f"it does not know {keys} of a Job; expected Kubernetes 1.{MIN_MINOR_VERSION} or newer"
            )
        owner_reference = {key: self.main_document[key] for key in ("apiVersion", "kind")}
        owner_reference |= {"name": self.name, "uid": str(created_job.get("metadata", {}).get("uid", ""))}
        body = {"metadata": {"ownerReferences": [owner_reference]}}
        for document in part_documents:
            send = partial(api.answer, "PATCH", object_path(document), None, body)
            retried(send, f"to change {_object_text(document)}", CREATE_SECONDS, say)

    def _create(self, api: ClusterApi, document: Fields, say: Say) -> Fields:
        """Create one object, and return it. An attempt without a clear answer may have made it."""
        is_unclear = False

        def attempt(seconds: float) -> Fields:
            nonlocal is_unclear
            try:
                return api.create(document, seconds)
            except ClusterError as error:
                if is_unclear and isinstance(error, ClusterRefusal) and error.reason == "AlreadyExists":
                    return api.get(object_path(document), seconds) if document is self.main_document else document
                is_unclear = is_unclear or not isinstance(error, ClusterRefusal) or error.is_server_error
                raise

        self._created.append(document)
        try:
            return retried(attempt, f"to create {_object_text(document)}", CREATE_SECONDS, say)
        except ClusterRefusal:
            if not is_unclear:  # refused, also because somebody else made it: then it is not ours to delete
                self._created.pop()
            raise

    def delete(self, api: ClusterApi, deadline: float, say: Say) -> list[str]:
        """Delete what was created, the main object first. Return a sentence for each object that may be left.

        deadline: the monotonic time after which nothing is tried again.
        """
        leftovers = []
        silence: ClusterSilence | None = None
        while self._created:
            document = self._created.pop()
            try:
                if silence and time.monotonic() > deadline:
                    raise silence
                seconds = max(0.5, deadline - time.monotonic())
                send = partial(api.delete, object_path(document))
                retried(send, f"to delete {_object_text(document)}", seconds, say)
            except ClusterError as error:
                silence = error if isinstance(error, ClusterSilence) else None
                name = _object_text(document)
                command = f"kubectl -n {self.namespace} delete {name}"
                leftovers.append(f"{name} could not be deleted: {error}; run `{command}`")
        return leftovers

    def failure(self, api: ClusterApi) -> tuple[Cause, str] | None:
        """Return why the Job ended or was removed, by its own conditions; None where it goes on or is unknown."""
        name = f"{self.main_document['kind']} {self.name}"
        try:
            job = api.get(object_path(self.main_document), QUICK_SECONDS)
        except ClusterError as error:
            is_absent = isinstance(error, ClusterRefusal) and error.status == HTTPStatus.NOT_FOUND
            self._absence_count = self._absence_count + 1 if is_absent else 0
            self.error = None if is_absent or not error.is_passing else error
            return (
                ("cancelled", f"{name} was deleted by somebody else") if self._absence_count >= ABSENCE_COUNT else None
            )
        self._absence_count, self.error = 0, None
        if (job.get("metadata") or {}).get("deletionTimestamp"):
            return "cancelled", f"{name} was deleted by somebody else"
        for condition in (job.get("status") or {}).get("conditions") or []:
            if condition.get("type") in ("Failed", "FailureTarget") and condition.get("status") == "True":
                line = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
                return ("time-limit" if "DeadlineExceeded" in line else "rank-failed"), one_line(line)[:300]
        return None

    def newest_warning(self, api: ClusterApi) -> str | None:
        """Return the cluster's newest warning about the Job; None without one, or without the right to read it."""
        selector = f"type=Warning,involvedObject.name={self.name}"
        try:
            path = f"/api/v1/namespaces/{self.namespace}/events"
            events = api.get(path, QUICK_SECONDS, fieldSelector=selector).get("items")
        except ClusterError:
            return None
        warnings = [event for event in events or [] if isinstance(event, Mapping) and event.get("message")]
        # the newest by its last time, as text: all times of the API are ISO 8601 with Z
        newest = max(warnings, key=lambda w: str(w.get("lastTimestamp") or w.get("eventTime") or ""), default=None)
        return one_line(f"{newest.get('reason')}: {newest['message']}")[:300] if newest else None


def _object_text(document: Fields) -> str:
    """Return kind and name, as kubectl takes them."""
    return f"{document['kind'].lower()}/{document['metadata']['name']}"
