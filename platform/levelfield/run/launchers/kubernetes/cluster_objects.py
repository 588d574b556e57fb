"""The objects of a run on Kubernetes, as the API takes them: ConfigMaps, a Service, and a Job."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.errors import UsageError
from levelfield.specs.site import NO_RESOURCE, RDMA, KubernetesSite

Fields = dict[str, Any]
RUN_LABEL = "levelfield-run"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
OBJECT_LIFETIME_SECONDS = 3600  # for which a cluster keeps an object whose platform was killed
MAX_DATA_BYTES = 900_000  # of one ConfigMap; the API's limit is 1 MiB
CONTAINER_NAME = "node"  # a pod's container
START_FILE, ARCHIVE_FILE, WORK_FILE = "start.py", "code.tar.gz", "work.json"
PEER_SECONDS_OPTION = "--peer-seconds"  # of start.py
MACHINE_LABEL = "kubernetes.io/hostname"  # the label that differs between machines
# the folders of a pod
PACKAGE_FOLDER = "/levelfield/package"  # has start.py and the code's archive
WORK_FOLDER = "/levelfield/work"  # has the nodes' work
LOCAL_FOLDER = "/levelfield/local"  # is the pod's own disk
_POD_FAILURE_RULES: Sequence[Fields] = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
]


@dataclass(frozen=True)
class JobManifest:
    """The values from which the objects of a run are made."""

    name: str  # of the run's objects
    site: KubernetesSite
    nodes: int
    devices: int  # of one node
    image: str
    python: str  # the interpreter in the image
    secrets: Sequence[str]  # names of the variables that a Secret has
    work: str  # the text of work.json (node/pod_start.py)
    code: bytes  # the content of code.tar.gz
    start: str  # the text of start.py
    deadline_seconds: int  # after which the cluster itself ends the Job


def object_name(run_id: str) -> str:
    """Return the name of a run's objects: short enough that the names of pods and their hosts fit 63 characters."""
    prefix = re.sub(r"[^a-z0-9]+", "-", run_id.lower())[:16].strip("-")
    return f"lf-{prefix}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def first_pod_address(name: str) -> str:
    """Return the DNS name of the first node's pod within its namespace. name: of the run's objects."""
    return f"{name}-0.{name}"


def manifest_documents(manifest: JobManifest) -> list[Fields]:
    """Return all objects in the order in which they are created; the last one runs the pods. Raises UsageError."""
    archive = base64.b64encode(manifest.code).decode("ascii")
    code = {"immutable": True, "data": {START_FILE: manifest.start}, "binaryData": {ARCHIVE_FILE: archive}}
    if (size := len(manifest.work.encode())) > MAX_DATA_BYTES:
        raise UsageError(
            f"the work of {manifest.nodes} nodes: found {size} bytes, expected at most {MAX_DATA_BYTES}, which a "
            "ConfigMap holds; use fewer nodes"
        )
    work = {"immutable": True, "data": {WORK_FILE: manifest.work}}
    # headless, so that it gives each pod its DNS name, also before the pod is ready
    dns = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN_LABEL: manifest.name}}
    service = _make_object(manifest, "v1", "Service", manifest.name, spec=dns)
    # an Indexed Job: one pod for each node, all at once, none started again
    annotations = {"annotations": dict(manifest.site.annotations)} if manifest.site.annotations else {}
    template = {"metadata": {"labels": {RUN_LABEL: manifest.name}, **annotations}, "spec": _pod_spec(manifest)}
    spec = {
        "completionMode": "Indexed",
        "completions": manifest.nodes,
        "parallelism": manifest.nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": manifest.deadline_seconds,
        "podFailurePolicy": {"rules": _POD_FAILURE_RULES},
        "template": template,
        "ttlSecondsAfterFinished": OBJECT_LIFETIME_SECONDS,
    }
    job = _make_object(manifest, "batch/v1", "Job", manifest.name, spec=spec)
    if manifest.site.queue:
        job["metadata"]["labels"][QUEUE_LABEL] = manifest.site.queue
    parts = {"code": code, "work": work}
    maps = [
        _make_object(manifest, "v1", "ConfigMap", f"{manifest.name}-{name}", **part) for name, part in parts.items()
    ]
    return [*maps, service, job]


def _make_object(manifest: JobManifest, version: str, kind: str, name: str, **content: Any) -> Fields:
    labels = {"app.kubernetes.io/managed-by": "levelfield", RUN_LABEL: manifest.name}
    metadata = {"name": name, "namespace": manifest.site.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _pod_spec(manifest: JobManifest) -> Fields:
    """Return the pod of one node; all pods of a run are alike."""
    site = manifest.site
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if site.host_network else {}
    # where and when it may run, as which account and user, and with whose images
    affinity_term = {"labelSelector": {"matchLabels": {RUN_LABEL: manifest.name}}, "topologyKey": MACHINE_LABEL}
    anti_affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity_term]}}
    ids = {"runAsUser": site.user, "runAsGroup": site.group, "fsGroup": site.group}
    security: Fields = {key: value for key, value in ids.items() if value is not None}
    if site.restricted:
        security |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    placement = {
        "priorityClassName": site.priority_class,
        "schedulerName": site.scheduler,
        "serviceAccountName": site.service_account,
        "nodeSelector": dict(site.node_selector),
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in site.tolerations],
        "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
        "affinity": anti_affinity if manifest.nodes > 1 else None,
        "securityContext": security,
    }
    return {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "subdomain": manifest.name,
        **network,
        **{key: value for key, value in placement.items() if value},
        "containers": [_container_spec(manifest)],
        "volumes": [{"name": name, **volume} for name, volume, _ in _volumes_and_mounts(manifest)],
    }


def _container_spec(manifest: JobManifest) -> Fields:
    site = manifest.site
    limits = {site.devices: str(manifest.devices)} if site.devices not in (None, NO_RESOURCE) else {}
    limits |= {name: str(count) for name, count in site.resources.items()}
    secret_name = f"{manifest.name}-secrets"
    # the arguments of node/pod_start.py. The node's rank comes from the variable JOB_COMPLETION_INDEX, and without a
    # shared volume the files of the run come through the pod's log.
    arguments = [f"{PACKAGE_FOLDER}/{START_FILE}", "--code", f"{PACKAGE_FOLDER}/{ARCHIVE_FILE}"]
    arguments += ["--folder", LOCAL_FOLDER]
    arguments += ["--work", f"{WORK_FOLDER}/{WORK_FILE}", "--first-node", first_pod_address(manifest.name)]
    arguments += [PEER_SECONDS_OPTION, str(site.peer_seconds)]
    arguments += ["--stream"] if site.claim is None else []
    container: Fields = {"name": CONTAINER_NAME, "image": manifest.image}
    container |= {"command": [manifest.python], "args": arguments}
    if manifest.secrets:
        value_sources = ((name, {"secretKeyRef": {"name": secret_name, "key": name}}) for name in manifest.secrets)
        container["env"] = [{"name": name, "valueFrom": source} for name, source in value_sources]
    container["volumeMounts"] = [{"name": name, **mount} for name, _, mount in _volumes_and_mounts(manifest)]
    if limits:
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    if any(name.startswith(RDMA) for name in site.resources):
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    if site.restricted:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return container


def _volumes_and_mounts(manifest: JobManifest) -> Iterator[tuple[str, Fields, Fields]]:
    """Yield the name of each volume, its source, and its mount in the container."""
    site = manifest.site
    yield "package", {"configMap": {"name": f"{manifest.name}-code"}}, {"mountPath": PACKAGE_FOLDER, "readOnly": True}
    yield "work", {"configMap": {"name": f"{manifest.name}-work"}}, {"mountPath": WORK_FOLDER, "readOnly": True}
    yield "local", {"emptyDir": {}}, {"mountPath": LOCAL_FOLDER}
    if site.shared_memory_bytes:
        memory = {"medium": "Memory", "sizeLimit": str(site.shared_memory_bytes)}
        yield "shared-memory", {"emptyDir": memory}, {"mountPath": "/dev/shm"}
    if site.claim:
        yield "runs", {"persistentVolumeClaim": {"claimName": site.claim}}, {"mountPath": site.claim_folder}
    yield from ((v.name, dict(v.source), {"mountPath": v.folder, "readOnly": v.read_only}) for v in site.volumes)
