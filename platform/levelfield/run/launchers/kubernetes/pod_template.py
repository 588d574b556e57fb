"""The pod of one node: its container, volumes, resources and place. All pods of a run are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.run.runtimes.process_runtime import LOCAL
from levelfield.specs.site import KubernetesSite, Toleration

Fields = dict[str, Any]
CONTAINER = "node"  # also the name that TrainJob's runtimes give theirs
START, ARCHIVE = "start.py", "code.tar.gz"
PACKAGE, WORK = "/levelfield/package", "/levelfield/work"
RDMA = "rdma/"  # resources of RDMA's device plugins; their users lock memory


@dataclass(frozen=True)
class PodNeeds:
    """What every pod needs. secrets: names of variables, and the Secret that has them. image None: the runtime's own.

    devices: of one node. first_node: the DNS name of the first pod.
    """

    site: KubernetesSite
    image: str | None
    python: str
    devices: int
    first_node: str
    secret: str
    secrets: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """Whether the files of the run come through the pod's log: no volume is shared."""
        return self.site.claim is None


def pod_spec(needs: PodNeeds, held: Sequence[Fields]) -> Fields:
    """Return the whole spec of a pod with these volumes."""
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if needs.site.host_network else {}
    return {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        **network,
        **placing(needs),
        "containers": [container(needs)],
        "volumes": list(held),
    }


def placing(needs: PodNeeds) -> Fields:
    """Return what says where a pod may run, and as which account."""
    site = needs.site
    found: Fields = {"serviceAccountName": site.service_account} if site.service_account else {}
    if site.node_selector:
        found["nodeSelector"] = dict(site.node_selector)
    if site.tolerations:
        found["tolerations"] = [_toleration(each) for each in site.tolerations]
    return found


def container(needs: PodNeeds) -> Fields:
    found: Fields = {
        "name": CONTAINER,
        **({"image": needs.image} if needs.image else {}),
        "command": [needs.python],
        "args": _arguments(needs),
        "env": [_secret(needs, name) for name in needs.secrets],
        "volumeMounts": _mounts(needs),
    }
    if limits := _limits(needs):
        found["resources"] = {"limits": limits, "requests": dict(limits)}
    if any(name.startswith(RDMA) for name in needs.site.resources):
        found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return found if needs.secrets else {key: value for key, value in found.items() if key != "env"}


def volumes(needs: PodNeeds, code: str, works: Sequence[str]) -> list[Fields]:
    """Return the pod's volumes. code, works: ConfigMaps."""
    sources = [{"configMap": {"name": name}} for name in works]
    found: list[Fields] = [
        {"name": "package", "configMap": {"name": code}},
        {"name": "work", "projected": {"sources": sources}},
        {"name": "local", "emptyDir": {}},
    ]
    if needs.site.shared_memory_bytes:
        memory = {"medium": "Memory", "sizeLimit": str(needs.site.shared_memory_bytes)}
        found.append({"name": "shared-memory", "emptyDir": memory})
    if needs.site.claim:
        found.append({"name": "runs", "persistentVolumeClaim": {"claimName": needs.site.claim}})
    return found


def _mounts(needs: PodNeeds) -> list[Fields]:
    found: list[Fields] = [
        {"name": "package", "mountPath": PACKAGE, "readOnly": True},
        {"name": "work", "mountPath": WORK, "readOnly": True},
        {"name": "local", "mountPath": str(LOCAL)},
    ]
    if needs.site.shared_memory_bytes:
        found.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    if needs.site.claim:
        found.append({"name": "runs", "mountPath": needs.site.claim_folder})
    return found


def _arguments(needs: PodNeeds) -> list[str]:
    """Return the first program's arguments. The node's rank comes from the variable JOB_COMPLETION_INDEX."""
    given = {"--code": f"{PACKAGE}/{ARCHIVE}", "--folder": str(LOCAL), "--work": f"{WORK}/node{{node_rank}}.json"}
    given["--first-node"] = needs.first_node
    flat = [text for pair in given.items() for text in pair]
    return [f"{PACKAGE}/{START}", *flat, *(["--stream"] if needs.streams else [])]


def _limits(needs: PodNeeds) -> dict[str, str]:
    own = {needs.site.devices: str(needs.devices)} if needs.site.devices else {}
    return {**own, **{name: str(count) for name, count in needs.site.resources.items()}}


def _secret(needs: PodNeeds, name: str) -> Fields:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": needs.secret, "key": name}}}


def _toleration(given: Toleration) -> Fields:
    return {key: value for key, value in given.model_dump().items() if value is not None}
