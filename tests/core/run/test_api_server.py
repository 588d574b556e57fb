"""The manifests and the launcher against a real control plane of Kubernetes 1.20.2 (`.ci/apiserver up`), without pods.

1.20 drops a key that it does not know. So what it kept is compared with what was sent, less the keys that are younger.
"""

from __future__ import annotations

import copy
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.contracts.execution import Outcome, Request
from levelfield.run.launchers.kubernetes.cluster_api import ClusterApi, ClusterRefusal, object_path
from levelfield.run.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from test_cluster_objects import RESTRICTED, WHOLE, Fields, documents_of, request_for

pytestmark = pytest.mark.thorough
YOUNGER = {"spec.completionMode", "spec.podFailurePolicy"}  # since 1.21, and since 1.25
EMPTY: tuple[object, ...] = (None, False, 0, "", [], {})  # Go leaves them out where they mean the same as nothing


class ControlPlane:
    """The API as its administrator, with a namespace of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, ClusterApi(None)
        self.namespace = f"lf-{uuid.uuid4().hex[:8]}"
        self.root = f"/api/v1/namespaces/{self.namespace}"
        self.post("/api/v1/namespaces", "v1", "Namespace", self.namespace)
        until(lambda: self.api.get(f"{self.root}/serviceaccounts/default").get("secrets"))

    def post(self, path: str, version: str, kind: str, name: str, **content: Any) -> Fields:
        return self.api.answer(
            "POST", path, None, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}
        )

    def listed(self, path: str) -> list[Fields]:
        return list(self.api.get(path)["items"])

    def names(self) -> set[str]:
        """Return what a run may leave in the namespace."""
        paths = [f"{self.root}/{item}" for item in ("pods", "configmaps", "services", "secrets")]
        paths += [f"/apis/batch/v1/namespaces/{self.namespace}/jobs"]
        return {
            document["metadata"]["name"] for path in paths for document in self.listed(path) if is_of_a_run(document)
        }

    def remove(self) -> None:
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        self.api.close()


def is_of_a_run(document: Fields) -> bool:
    return str(document["metadata"]["name"]).startswith("lf-")


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until it is true. Nothing that is not there yet is an error."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ClusterRefusal):
            if condition():
                return
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.1)


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    folder = Path(os.environ.get("LEVELFIELD_TEST_KUBERNETES", "/nowhere"))
    if not folder.is_dir():
        pytest.skip("no API of Kubernetes: `.ci/apiserver up` starts one and prints the variable to set")
    monkeypatch.setenv("KUBECONFIG", str(folder / "admin.yaml"))
    control_plane = ControlPlane(folder)
    yield control_plane
    control_plane.remove()


# ---- what the server keeps


def dropped(sent: Any, stored: Any, path: str = "") -> dict[str, str]:
    """Return what the server changed or left out, by its path. Quantities have one form there."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        changes: dict[str, str] = {}
        for key, value in sent.items():
            if key in stored or value not in EMPTY:
                changes |= dropped(value, stored.get(key), f"{path}.{key}".lstrip("."))
        return changes
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return {k: v for i, item in enumerate(sent) for k, v in dropped(item, stored[i], f"{path}[{i}]").items()}
    is_size = path.endswith("sizeLimit") and stored == "1Gi" and sent == str(2**30)
    return {} if sent == stored or is_size else {path: f"sent {sent!r}, kept {stored!r}"}


def sent_and_kept(plane: ControlPlane, document: Fields) -> dict[str, str]:
    """Return what differs after the object was created and read. It is removed again."""
    plane.api.create(document)
    try:
        return dropped(document, plane.api.get(object_path(document)))
    finally:
        plane.api.answer("DELETE", object_path(document), {"propagationPolicy": "Background"})


@pytest.mark.parametrize(
    "site",
    [{}, WHOLE, RESTRICTED, {"claim": "runs", "claim_folder": "/shared", "host_network": True},
     {"priority_class": "batch", "scheduler": "own"}],
)  # fmt: skip
def test_the_server_keeps_what_was_sent(plane: ControlPlane, site: Fields) -> None:
    documents = documents_of(request_for(namespace=plane.namespace, **site))
    for document in documents[:-1]:
        assert sent_and_kept(plane, document) == {}, document["kind"]
    assert sent_and_kept(plane, documents[-1]).keys() == YOUNGER


def pod_of(job: Fields) -> Fields:
    pod: Fields = job["spec"]["template"]["spec"]
    return pod


FAULTS: dict[str, tuple[Callable[[Fields], Any], str]] = {
    "a misspelt key": (lambda d: pod_of(d).update(restartpolicy="Never"), "spec.template.spec.restartpolicy"),
    "a key in a wrong place": (lambda d: pod_of(d).update(memory="900Gi"), "spec.template.spec.memory"),
    "a wrong type": (
        lambda d: pod_of(d)["containers"][0].update(resources={"limits": "900Gi"}),
        "v1.ResourceRequirements.Limits: ReadMapCB: expect { or n",
    ),
    "a size that is none": (
        lambda d: pod_of(d)["containers"][0].update(resources={"limits": {"memory": "900 GB"}}),
        "quantities must match the regular expression",
    ),
    "a number as an annotation": (
        lambda d: d["spec"]["template"]["metadata"].update(annotations={"a": 1}), "Annotations: ReadString: expects",
    ),
    "a name that DNS does not allow": (lambda d: d["metadata"].update(name="Run_1"), "lowercase RFC 1123 subdomain"),
    "a volume that is mounted and missing": (
        lambda d: pod_of(d)["volumes"].pop(0), 'volumeMounts[0].name: Not found: "package"',
    ),
    "two volumes of one name": (
        lambda d: pod_of(d)["volumes"].append({"name": "local", "emptyDir": {}}), 'Duplicate value: "local"',
    ),
    "a policy that a Job does not have": (
        lambda d: pod_of(d).update(restartPolicy="Always"), 'valid values: "OnFailure", "Never"',
    ),
    "a request above its limit": (
        lambda d: pod_of(d)["containers"][0].update(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        "must be less than or equal to cpu limit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_server_or_the_comparison_finds_a_planted_fault(plane: ControlPlane, fault: str) -> None:
    broken = copy.deepcopy(documents_of(request_for(namespace=plane.namespace, **WHOLE))[-1])
    plant, message = FAULTS[fault]
    plant(broken)
    try:
        paths = set(sent_and_kept(plane, broken)) - YOUNGER
    except ClusterRefusal as error:
        assert error.status in (400, 422) and message in str(error), error
    else:
        assert paths == {message}


# ---- the launcher


class Run:
    """A run of two nodes whose files stand on a claim, so that no log is read."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        site: dict[str, Any] = {"claim": "runs", "claim_folder": str(folder), "devices": "nvidia.com/gpu"}
        site["node_selector"] = {"test": plane.namespace}
        root = str(folder / "runs" / f"run-{plane.namespace}")
        self.request: Request = request_for(root=root, namespace=plane.namespace, **site)
        self.said: list[str] = []

    def execute(self, watch: Callable[[], None] = lambda: None) -> Outcome:
        return KubernetesLauncher().saying(self.said.append).execute(self.request, watch)


def test_an_object_that_a_quota_refuses_ends_the_run_and_leaves_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    path = f"{plane.root}/resourcequotas"
    plane.post(path, "v1", "ResourceQuota", "none", spec={"hard": {"count/jobs.batch": "0"}})
    until(lambda: plane.api.get(f"{path}/none")["status"].get("hard"))
    outcome = Run(plane, tmp_path).execute()
    assert outcome.cause == "launch-error" and "quota: none" in str(outcome.evidence), outcome
    assert outcome.warnings == ()
    until(lambda: plane.names() == set())  # the cluster removes what belonged to a removed object


def test_a_cluster_that_drops_keys_is_refused(plane: ControlPlane, tmp_path: Path) -> None:
    """Its pods would have no numbers, and the run would wait for ever."""
    outcome = Run(plane, tmp_path).execute()
    assert outcome.cause == "launch-error", outcome
    message = "spec.completionMode, spec.podFailurePolicy of a Job; expected Kubernetes 1.26"
    assert message in str(outcome.evidence)
    until(lambda: plane.names() == set())


# ---- site check


def test_the_rights_of_a_user_are_those_that_the_server_gives(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.folder / "member.yaml"))
    site = {"namespace": plane.namespace, "image": "example.org/image:1"}
    file = tmp_path / "site.json"
    file.write_text(json.dumps({"schema": "levelfield.site/1", "launcher": "kubernetes", "kubernetes": site}))

    def refused() -> list[str]:
        main(["site", "check", "--site", str(file), "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert f"is Kubernetes {plane.api.get('/version')['gitVersion']}" in findings[0]["says"]
        return [
            finding["says"] for finding in findings if finding["subject"] == "rights" and finding["word"] == "missing"
        ]

    assert len(refused()) == 15
    rules = [
        {"apiGroups": [""], "resources": ["configmaps", "secrets", "services"], "verbs": ["create", "patch", "delete"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]
    group, version = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{plane.namespace}", "rbac.authorization.k8s.io/v1"
    plane.post(f"{group}/roles", version, "Role", "runs", rules=rules)
    subject = {"kind": "User", "name": "member", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "runs", "apiGroup": "rbac.authorization.k8s.io"}
    plane.post(f"{group}/rolebindings", version, "RoleBinding", "runs", subjects=[subject], roleRef=role)
    until(lambda: refused() == [f"you may not get pods/log in {plane.namespace}"])
