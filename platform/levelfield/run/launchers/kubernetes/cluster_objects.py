"""The objects of a run on Kubernetes, as the API takes them: ConfigMaps, a Service, and a Job, JobSet or TrainJob."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.run.launchers.kubernetes import pod_template
from levelfield.run.launchers.kubernetes.pod_template import CONTAINER, PodNeeds
from levelfield.specs.site import KubernetesSite

Fields = dict[str, Any]
RUN_LABEL = "levelfield-run"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KEPT_SECONDS = 3600  # that a cluster keeps an object whose platform was killed
MOST_DATA_BYTES = 900_000  # of one ConfigMap; the API's limit is 1 MiB
PATCH_MANAGER = "levelfield.run/launcher"
_REPLICATED = "node"  # the job of a JobSet; also the name that TrainJob's runtimes give theirs


@dataclass(frozen=True)
class JobManifest:
    """What the objects are made from. works: each node's JSON, by file name. deadline_seconds: the cluster's limit."""

    run_id: str
    site: KubernetesSite
    nodes: int
    needs: PodNeeds
    works: Mapping[str, str]
    code: bytes
    start: str
    deadline_seconds: int

    @property
    def name(self) -> str:
        return object_name(self.run_id)


def object_name(run_id: str) -> str:
    """Return the name of a run's objects: short enough that the names of pods and their hosts fit 63 characters."""
    begin = re.sub(r"[^a-z0-9]+", "-", run_id.lower())[:16].strip("-")
    return f"lf-{begin}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def first_pod(run_id: str, site: KubernetesSite) -> str:
    """Return the DNS name of the first node's pod within its namespace."""
    name = object_name(run_id)
    host = f"{name}-0" if site.kind == "job" else f"{name}-{_REPLICATED}-0-0"
    return f"{host}.{name}"


def objects_of(run: JobManifest) -> list[Fields]:
    """Return all objects in the order in which they are created; the last one runs the pods."""
    service = [_service(run)] if run.site.kind == "job" else []
    kinds = {"job": _job, "jobset": _jobset, "trainjob": _trainjob}
    return [_code(run), *_works(run), *service, kinds[run.site.kind](run)]


def work_names(count: int, name: str) -> list[str]:
    return [f"{name}-work-{index}" for index in range(count)]


def divided(works: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the files in as many parts as the size of a ConfigMap requires."""
    parts: list[dict[str, str]] = [{}]
    size = 0
    for name, text in works.items():
        size += len(name) + len(text.encode())
        if size > MOST_DATA_BYTES and parts[-1]:
            parts, size = [*parts, {}], len(name) + len(text.encode())
        parts[-1][name] = text
    return parts


def _metadata(run: JobManifest, name: str, **labels: str) -> Fields:
    own = {"app.kubernetes.io/managed-by": "levelfield", RUN_LABEL: run.name}
    return {"name": name, "namespace": run.site.namespace, "labels": {**own, **labels}}


def _code(run: JobManifest) -> Fields:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(run, f"{run.name}-code"),
        "immutable": True,
        "data": {pod_template.START: run.start},
        "binaryData": {pod_template.ARCHIVE: base64.b64encode(run.code).decode("ascii")},
    }


def _works(run: JobManifest) -> Iterator[Fields]:
    parts = divided(run.works)
    for name, part in zip(work_names(len(parts), run.name), parts, strict=True):
        metadata = _metadata(run, name)
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": part}


def _service(run: JobManifest) -> Fields:
    """Return the headless Service that gives each pod its DNS name, also before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run, run.name),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN_LABEL: run.name}},
    }


def _queue(run: JobManifest) -> dict[str, str]:
    return {QUEUE_LABEL: run.site.queue} if run.site.queue else {}


def _volumes(run: JobManifest) -> list[Fields]:
    return pod_template.volumes(run.needs, f"{run.name}-code", work_names(len(divided(run.works)), run.name))


def _indexed(run: JobManifest, subdomain: str | None) -> Fields:
    """Return the spec of an Indexed Job: one pod for each node, all at once, none started again."""
    pod = pod_template.pod_spec(run.needs, _volumes(run)) | ({"subdomain": subdomain} if subdomain else {})
    return {
        "completionMode": "Indexed",
        "completions": run.nodes,
        "parallelism": run.nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": run.deadline_seconds,
        "podFailurePolicy": {"rules": _FIRST_FAILURE_ENDS},
        "template": {"metadata": {"labels": {RUN_LABEL: run.name}}, "spec": pod},
    }


_FIRST_FAILURE_ENDS: Sequence[Fields] = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
]


def _job(run: JobManifest) -> Fields:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(run, run.name, **_queue(run)),
        "spec": {**_indexed(run, run.name), "ttlSecondsAfterFinished": KEPT_SECONDS},
    }


def _jobset(run: JobManifest) -> Fields:
    replicated = {"name": _REPLICATED, "replicas": 1, "template": {"spec": _indexed(run, None)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(run, run.name, **_queue(run)),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": run.name},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "replicatedJobs": [replicated],
        },
    }


def _trainjob(run: JobManifest) -> Fields:
    """Return a TrainJob of Kubeflow's Trainer 2.2 or newer. Its runtime has the JobSet; the patch has the rest."""
    container = pod_template.container(run.needs)
    patched = {"name": CONTAINER, "volumeMounts": container["volumeMounts"]}
    if "securityContext" in container:
        patched["securityContext"] = container["securityContext"]
    pod = {**pod_template.placing(run.needs), "volumes": _volumes(run), "containers": [patched]}
    template = {"metadata": {"labels": {RUN_LABEL: run.name}}, "spec": pod}
    replicated = {"name": _REPLICATED, "template": {"spec": {"template": template}}}
    trainer: Fields = {
        "numNodes": run.nodes,
        **{k: container[k] for k in ("image", "command", "args", "env") if k in container},
    }
    if "resources" in container:
        trainer["resourcesPerNode"] = container["resources"]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(run, run.name, **_queue(run)),
        "spec": {
            "runtimeRef": {"name": run.site.runtime_ref},
            "activeDeadlineSeconds": run.deadline_seconds,
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": PATCH_MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }
