"""The manifest against the published schemas, with planted faults that they must find."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Request
from levelfield.errors import UsageError
from levelfield.node import pod_start
from levelfield.node.code_digest import code_digest
from levelfield.node.common_work import join_work
from levelfield.run.launchers.kubernetes import cluster_objects, kubernetes_launcher
from levelfield.run.launchers.kubernetes.cluster_objects import MAX_DATA_BYTES, object_name
from levelfield.run.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from levelfield.run.launchers.node_content import node_content
from levelfield.specs.paths import RunPaths
from levelfield.specs.site import KubernetesSite, LaunchPlan, Site
from levelfield.testing.rehearsal import DRILL_FOLDER
from plans import make_plan

VERSION = "1.37"
CHECKED = {"ConfigMap", "Service", "Job", "Secret"}
WHOLE: dict[str, Any] = {
    "queue": "gpus",
    "service_account": "trainer",
    "node_selector": {"gpu": "H100"},
    "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {"operator": "Exists"}],
    "devices": "nvidia.com/gpu",
    "resources": {"rdma/hca": 1, "cpu": 8, "memory": "900Gi"},
    "shared_memory_bytes": 2**30,
    "annotations": {"k8s.v1.cni.cncf.io/networks": "rail-0, rail-1"},
    "volumes": [
        {"name": "topology", "source": {"hostPath": {"path": "/etc/topology"}}, "folder": "/etc/topology"},
        {"name": "cache", "source": {"emptyDir": {}}, "folder": "/cache", "read_only": False},
    ],
    "pull_secrets": ["registry"],
    "user": 1000,
    "group": 2000,
}
RESTRICTED: dict[str, Any] = {"restricted": True, "user": 1000, "volumes": [WHOLE["volumes"][1]]}
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as the platform reads
RESTART_POLICIES = {"Never", "OnFailure"}
Fields = dict[str, Any]


def request_for(nodes: int = 2, root: str = "/shared/runs/a-run", **site: Any) -> Request:
    fields = {"namespace": "benchmarks", "image": "example.org/image:1", **site}
    launch = LaunchPlan(launcher="kubernetes", site=Site(kubernetes=KubernetesSite.model_validate(fields)))
    registry = Registry([DRILL_FOLDER, DRILL_FOLDER / "hosts"])
    text, environment = f"drill:drill:drill:{nodes}:{4 // nodes}", {"A_TOKEN": "s3cret"}
    plan = make_plan(registry, text, scale="smoke", environment=environment, may_lack_hardware=True)
    plan = plan.model_copy(update={"launch": launch})
    launcher = KubernetesLauncher()
    return launcher.request(plan, RunPaths(Path(root)), launcher.runtime(plan))


def documents_of(request: Request) -> list[Fields]:
    return list(yaml.load_all(request.submissions[0].files["manifest.yaml"], LOADER))


def check(document: Fields) -> None:
    """Check an object by its published schema. Raises where it has an unknown kind, key, type or word."""
    kind = document.get("kind")
    assert kind in CHECKED, f"found the kind {kind!r}: the validator passes what it does not know"
    kubernetes_validate.validate(document, VERSION, strict=True)
    if kind == "Job":
        check_pod(document["spec"]["template"])


def check_pod(template: Fields) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, VERSION, strict=True)
    assert template["spec"]["restartPolicy"] in RESTART_POLICIES
    mounted = {m["name"] for c in template["spec"]["containers"] for m in c["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


@pytest.mark.parametrize(
    "site",
    [
        pytest.param({}, marks=pytest.mark.thorough),
        WHOLE,
        RESTRICTED,
        pytest.param({"claim": "runs", "claim_folder": "/shared"}, marks=pytest.mark.thorough),
    ],
)
def test_every_object_passes_its_published_schema(site: Fields) -> None:
    documents = documents_of(request_for(**site))
    for document in documents:
        check(document)
    assert [d["kind"] for d in documents][-2:] == ["Service", "Job"]
    assert len({d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"}) == 2
    assert {d["metadata"]["namespace"] for d in documents} == {"benchmarks"}


FAULTS: dict[str, Callable[[Fields], Any]] = {
    "an unknown key": lambda d: d["spec"].update(completionmode="Indexed"),
    "a wrong type": lambda d: d["spec"].update(parallelism="two"),
    "an unknown key of the pod": lambda d: d["spec"]["template"]["spec"].update(tolerate=[]),
    "an unknown word": lambda d: d["spec"]["template"]["spec"].update(restartPolicy="Sometimes"),
    "an unknown kind": lambda d: d.update(kind="PyTorchJob"),
    "a volume that is mounted nowhere": lambda d: d["spec"]["template"]["spec"]["volumes"].append(
        {"name": "lost", "emptyDir": {}}
    ),
}


FURTHER = ("an unknown key", "a wrong type", "an unknown kind")  # the published schema finds these as well


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.thorough] if name in FURTHER else []) for name in FAULTS]
)
def test_the_checks_find_planted_faults(fault: str) -> None:
    document = documents_of(request_for())[-1]
    check(document)
    FAULTS[fault](document)
    with pytest.raises(Exception, match=r".+"):
        check(document)


def test_all_pods_start_together_and_none_again() -> None:
    spec = documents_of(request_for(nodes=4))[-1]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (4, 4, 0)
    assert spec["completionMode"] == "Indexed"
    assert {rule["action"] for rule in spec["podFailurePolicy"]["rules"]} == {"FailJob"}


def test_the_first_node_has_the_name_of_its_pod() -> None:
    request, name = request_for(), object_name("run-id")
    assert request.nodes[0].address == f"{name}-0.{name}"
    assert request.nodes[0].address in request.submissions[0].files["manifest.yaml"]
    assert {p.environment["MASTER_ADDR"] for node in request.nodes for p in node.processes} == {"{first_node}"}


def test_names_fit_the_limit_of_a_host_s_name() -> None:
    name = object_name("20261121T081428Z_flagperf_llama3_8b+derived_megatron_nvidia_02eb2c")
    assert len(f"{name}-999-abcde") <= 63 and name == name.lower() and "_" not in name
    assert name != object_name("20261121T081428Z_flagperf_llama3_8b+derived_megatron_nvidia_02eb2d")


def works_of(documents: list[Fields]) -> list[Fields]:
    """Return the nodes' work, as start.py and the agent join it from the second ConfigMap."""
    content = json.loads(documents[1]["data"]["work.json"])
    numbers = range(content["common"]["nodes"])
    return [join_work(content["common"], {"node_rank": n, **content["nodes"].get(str(n), {})}) for n in numbers]


def test_the_request_is_equal_twice_and_every_rank_is_in_it() -> None:
    first, second = request_for(nodes=4), request_for(nodes=4)
    assert first == second
    works = works_of(documents_of(first))
    assert [process["rank"] for work in works for process in work["processes"]] == list(range(4))
    assert [work["node_rank"] for work in works] == [0, 1, 2, 3]
    assert {work["root"] for work in works} == {"/levelfield/local/run"} and "job.json" in works[0]["files"]


def test_with_a_claim_the_pods_write_the_run_directory_itself() -> None:
    request = request_for(claim="runs", claim_folder="/shared")
    pod = documents_of(request)[-1]["spec"]["template"]["spec"]
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}} in pod["volumes"]
    assert "--stream" not in pod["containers"][0]["args"]
    work = works_of(documents_of(request))[0]
    assert work["root"] == "/shared/runs/a-run" and "files" not in work


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"image": None}, "kubernetes.image: found none"),
        ({"claim": "runs", "claim_folder": "/elsewhere"}, "expected it below /elsewhere"),
    ],
)
def test_a_site_file_that_lacks_a_part_is_refused(site: Fields, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        request_for(**site)


def pod_of(nodes: int = 2, **site: Any) -> Fields:
    """The template of a node's pod."""
    return documents_of(request_for(nodes, **site))[-1]["spec"]["template"]


def test_no_machine_has_two_pods_of_a_run() -> None:
    pod = pod_of()
    (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert (
        term["labelSelector"]["matchLabels"] == pod["metadata"]["labels"] == {"levelfield-run": object_name("run-id")}
    )
    assert "affinity" not in pod_of(nodes=1)["spec"]


def test_a_pod_has_what_the_site_s_file_says() -> None:
    pod = pod_of(**WHOLE)
    assert pod["metadata"]["annotations"] == WHOLE["annotations"]
    spec = pod["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["securityContext"] == {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 2000}
    assert {"name": "topology", "hostPath": {"path": "/etc/topology"}} in spec["volumes"]
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["cache"] == {"name": "cache", "mountPath": "/cache", "readOnly": False}
    assert mounts["topology"]["readOnly"] is True


def test_class_scheduler_and_resources_are_those_of_the_site_s_file() -> None:
    spec = pod_of(**WHOLE, priority_class="high", scheduler="volcano")["spec"]
    assert (spec["priorityClassName"], spec["schedulerName"]) == ("high", "volcano")
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "2", "rdma/hca": "1", "cpu": "8", "memory": "900Gi"}
    assert "resources" not in pod_of(devices="none")["spec"]["containers"][0]


def test_a_restricted_pod_keeps_to_the_standard() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    spec = pod_of(**RESTRICTED)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = spec["containers"][0]["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
    allowed |= {"persistentVolumeClaim"}
    assert {key for volume in spec["volumes"] for key in volume if key != "name"} <= allowed


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"resources": {"memory": "900 Gi"}}, "expected a number with a unit, such as 900Gi"),
        ({"resources": {"memory": "900GB"}}, "expected a number with a unit"),
        ({"resources": {"memory": "-1Gi"}}, "expected a number with a unit"),
        ({"restricted": True, "resources": {"rdma/hca": 1}}, "found it with rdma/hca"),
        ({"restricted": True, "volumes": WHOLE["volumes"]}, "found it with topology"),
        ({"restricted": True, "host_network": True}, "found it with host_network"),
        ({"restricted": True, "user": 0}, "expected a user that is not root"),
        ({"volumes": [WHOLE["volumes"][1]] * 2}, "found cache, expected names that no other volume"),
        ({"volumes": [{**WHOLE["volumes"][1], "name": "work"}]}, "found work, expected names that no other volume"),
    ],
)
def test_a_site_file_that_no_cluster_could_run_is_refused(site: Fields, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        KubernetesSite.model_validate(site)


def test_an_accelerator_without_its_resource_is_refused() -> None:
    """The pods would be placed on any machine, and none would have a device."""
    registry = Registry()
    plan = make_plan(registry, "llama3_8b:torch:H100:4:8", scale="full", may_lack_hardware=True)
    for devices, refused in ((None, True), ("none", False), ("nvidia.com/gpu", False)):
        site = Site(kubernetes=KubernetesSite(image="example.org/image:1", devices=devices))
        launched = plan.model_copy(update={"launch": LaunchPlan(launcher="kubernetes", site=site)})
        launcher = KubernetesLauncher()
        with pytest.raises(UsageError, match=r"kubernetes\.devices:.*\b8\b.*H100") if refused else nullcontext():
            launcher.request(launched, RunPaths(Path("/runs/a-run")), launcher.runtime(launched))


def test_a_pod_has_no_other_node_s_work_and_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 KB a node would be 7 MB for each of 1,000 pods."""
    texts = {nodes: documents_of(request_for(nodes=nodes))[1]["data"]["work.json"] for nodes in (2, 4)}
    assert not json.loads(texts[4])["nodes"] and abs(len(texts[4]) - len(texts[2])) < 100
    monkeypatch.setattr(cluster_objects, "MAX_DATA_BYTES", len(texts[4]) - 1)
    with pytest.raises(UsageError, match=r"the work of 4 nodes: found \d+ bytes"):
        request_for(nodes=4)


def test_what_a_node_cannot_tell_by_its_number_is_sent_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd_content(*arguments: Any) -> Fields:
        content = node_content(*arguments)
        return {**content, "odd": 7} if content["node_rank"] == 2 else content

    monkeypatch.setattr(kubernetes_launcher, "node_content", odd_content)
    documents = documents_of(request_for(nodes=4))
    assert json.loads(documents[1]["data"]["work.json"])["nodes"] == {"2": {"odd": 7}}
    assert [work.get("odd") for work in works_of(documents)] == [None, None, 7, None]


def test_the_carried_code_is_the_code_of_the_plan(tmp_path: Path) -> None:
    archived = base64.b64decode(documents_of(request_for())[0]["binaryData"]["code.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        archive.extractall(tmp_path, filter="data")
    script = "import sys; from pathlib import Path; from levelfield.node.code_digest import code_digest; "
    script += "print(code_digest(Path(sys.argv[1])))"
    argv = [sys.executable, "-c", script, str(tmp_path / "models" / "drill")]
    ours = {"PYTHONPATH": str(tmp_path / "platform")}
    done = subprocess.run(argv, env=ours, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == code_digest(DRILL_FOLDER / "models" / "drill")
    assert len(base64.b64encode(archived)) < MAX_DATA_BYTES


def test_a_first_node_without_an_address_ends_the_pod(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert pod_start.wait_for_address("localhost", 1.0) in ("127.0.0.1", "::1")
    assert pod_start.wait_for_address("nothing.invalid", 0.0) is None
    assert "--peer-seconds 900 " in " ".join(pod_of(peer_seconds=900)["spec"]["containers"][0]["args"])
