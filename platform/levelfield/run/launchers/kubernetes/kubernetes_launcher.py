"""Launcher `kubernetes`: each node is a pod of a Job. The cluster places them."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from levelfield.contracts.execution import FIRST_NODE, NodeSource, Outcome, Request, Say, Submission, Watch
from levelfield.errors import UsageError
from levelfield.node import pod_start
from levelfield.run.launchers.kubernetes.cluster_objects import (
    LOCAL_FOLDER,
    JobManifest,
    first_pod_address,
    manifest_documents,
    object_name,
)
from levelfield.run.launchers.node_content import (
    code_archive,
    node_content,
    request_for_nodes,
    secrets_of,
    sparse_works,
)
from levelfield.run.runtimes.process_runtime import NodeFolders, NodeRuntime, require_launch
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content

MANIFEST_FILE = "manifest.yaml"
SPARE_SECONDS = 3600  # in the cluster's own limit, for images, environments and the end
CODE_FOLDER = Path(LOCAL_FOLDER) / "code"
_LINE_WIDTH = 10**9  # columns: no line of the manifest is folded


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as literal blocks."""


_STRING_TAG = "tag:yaml.org,2002:str"
_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_STRING_TAG, text, style="|" if "\n" in text else None)
)


@dataclass(frozen=True)
class KubernetesLauncher:
    """Launches each node as a pod. Its files come through the pod's log, or lie on a shared claim."""

    say: Say = lambda sentence: None
    name = "kubernetes"

    def saying(self, say: Say) -> KubernetesLauncher:
        """Return the launcher that reports by `say` what its pods wait for."""
        return replace(self, say=say)

    def runtime(self, plan: Plan) -> PodRuntime:
        return PodRuntime(plan)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """Return the request with the manifest of all nodes. No side effect. Raises UsageError for a site that lacks
        what the plan needs."""
        image, site = _require_image(plan, paths), require_launch(plan).site.kubernetes
        pod_paths = paths if site.claim else RunPaths(Path(LOCAL_FOLDER) / "run")  # where the pods have the run
        request = request_for_nodes(plan, pod_paths, self.name, runtime)
        name = object_name(plan.run_id)
        first_address = first_pod_address(name)
        nodes = tuple(
            replace(node, address=first_address if node.node_rank == 0 else node.address) for node in request.nodes
        )
        contents = []
        for node in request.nodes:
            content = node_content(plan, pod_paths, request, node, plan.implementation.rests_on)
            folder = CODE_FOLDER / "models" / Path(plan.implementation.folder).name
            content["expected"] |= {"folder": str(folder), "environment": None, "stamp": None}  # the image's own
            content["locks"] = []  # none is needed: the kubelet gives a device to one pod only
            if pod_paths.root != paths.root:
                content["files"] = {"job.json": json.dumps(job_content(plan, pod_paths), indent=2) + "\n"}
            contents.append(content)
        limits = plan.work.limits
        max_seconds = math.ceil(limits.start_seconds + plan.work.training.steps * limits.step_seconds)
        manifest = JobManifest(
            name=name,
            site=site,
            nodes=plan.hardware.nodes,
            devices=plan.hardware.devices_per_node,
            image=image,
            python=_interpreter(plan),
            secrets=sorted(secrets_of(plan)),
            work=json.dumps(sparse_works(contents), indent=1, ensure_ascii=False) + "\n",
            code=_compressed_code(plan.implementation.folder),
            start=Path(pod_start.__file__).read_text(encoding="utf-8"),
            deadline_seconds=max_seconds + SPARE_SECONDS,
        )
        documents = manifest_documents(manifest)
        text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_LINE_WIDTH, allow_unicode=True)
        context = ("--context", site.context) if site.context else ()
        command = ("kubectl", *context, "create", "-f", MANIFEST_FILE)
        submission = Submission(name, command, {MANIFEST_FILE: text})
        return replace(request, nodes=nodes, events_dir=str(paths.events), submissions=(submission,))

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Create the objects and watch their pods until the end. They are deleted before it returns or raises."""
        # imported here: the client loads in a second, and a dry run does without it
        from levelfield.run.launchers.kubernetes.cluster_run import run_on_cluster

        return run_on_cluster(request, watch, self.say)

    def remaining_work(self, request: Request) -> str | None:
        """Return what the cluster still has of a killed platform's run. Raises UsageError without a client."""
        from levelfield.run.launchers.kubernetes.cluster_run import remaining_pods

        return remaining_pods(request)

    def attach(self, request: Request, watch: Watch) -> Outcome:
        """Watch the pods that a killed platform left until their end. All objects are deleted before it returns."""
        from levelfield.run.launchers.kubernetes.cluster_run import run_on_cluster

        return run_on_cluster(request, watch, self.say, attaches=True)


class PodRuntime(NodeRuntime):
    """The ranks of pods: the image's Python runs them, with Levelfield's code from the folder that start.py fills."""

    def __init__(self, plan: Plan) -> None:
        implementation = CODE_FOLDER / "models" / Path(plan.implementation.folder).name
        super().__init__(FIRST_NODE, NodeFolders(CODE_FOLDER, str(implementation), _interpreter(plan)))

    @contextmanager
    def in_use(self, plan: Plan, say: Say) -> Iterator[PodRuntime]:
        yield self

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        """Raise OSError: what this machine would print, such as its peak, does not hold for the cluster's machines."""
        raise OSError("no command runs in the image outside of the run")

    def identity(self, plan: Plan) -> dict[str, Any]:
        return {"environment_packages": None, "image": _image_name(plan)}


def _interpreter(plan: Plan) -> str:
    """Return the interpreter of the image: Levelfield's own images have it where the plan says."""
    return require_launch(plan).site.python or (plan.environment.python if plan.container else "python3")


def _image_name(plan: Plan) -> str | None:
    """Return the image of the pods; None where neither the site's file nor the plan names one."""
    return require_launch(plan).site.kubernetes.image or (plan.container.image.name if plan.container else None)


def _require_image(plan: Plan, paths: RunPaths) -> str:
    """Return the pods' image. Raises UsageError for what the plan needs and the site's file lacks."""
    site, image = require_launch(plan).site.kubernetes, _image_name(plan)
    if image is None:
        raise UsageError(
            "kubernetes.image: found none, expected an image with Python 3.8 or newer and "
            f"{plan.implementation.framework}; give it in the site's file (docs/many-machines.md)"
        )
    if site.devices is None and not plan.hardware.is_host:
        raise UsageError(
            "kubernetes.devices: found none, expected the resource that is one device, such as nvidia.com/gpu, so that "
            f"a pod gets its {plan.hardware.devices_per_node} x {plan.hardware.chip.name}; `devices: none` where pods "
            "have the devices without a resource"
        )
    if site.claim_folder and Path(site.claim_folder) not in paths.root.parents:
        raise UsageError(
            f"kubernetes.claim_folder: found the run in {paths.root.parent}, expected it below {site.claim_folder}, "
            f"which all pods and this machine share; give --runs {site.claim_folder}/runs"
        )
    if site.claim is None and (plan.capture_step or plan.save_weights or plan.explain_steps):
        raise UsageError(
            "kubernetes.claim: found none, and weights, captured tensors and recorded steps are too large for a "
            "pod's log; name a volume that the pods and this machine share"
        )
    return image


@cache
def _compressed_code(implementation: str) -> bytes:
    """Return the archive of Levelfield's code, small enough for a ConfigMap. The same code gives the same bytes."""
    return gzip.compress(code_archive(Path(implementation)), mtime=0)
