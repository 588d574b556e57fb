"""What a site's file says about Kubernetes, against the cluster: client, rights, queue, claim, devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from levelfield.contracts.execution import Say
from levelfield.errors import UsageError
from levelfield.run.launchers.kubernetes.cluster_api import (
    ANSWER_SECONDS,
    MIN_MINOR_VERSION,
    ClusterApi,
    ClusterRefusal,
    ClusterSilence,
)
from levelfield.run.launchers.site_findings import SiteFinding, missing_finding, ok_finding, unknown_finding
from levelfield.specs.site import NO_RESOURCE, KubernetesSite, LaunchPlan

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PART_RESOURCES = ("configmaps", "secrets", "services")
_KUEUE_GROUP = "kueue.x-k8s.io"  # Kueue's API group; the cluster says which version of it is preferred


def kubernetes_findings(launch: LaunchPlan, say: Say) -> Iterator[SiteFinding]:
    """Try everything that a run would need. A cluster that does not answer ends the list."""
    site = launch.site.kubernetes
    try:
        api = ClusterApi(site.context)
    except UsageError as error:
        yield missing_finding("client", str(error), "correct this first; nothing else can be tried")
        return
    say(f"asking {api.address}, at most {ANSWER_SECONDS:g} s for each answer")
    with closing(api):
        try:
            yield from _cluster_findings(api, site)
        except ClusterSilence as error:
            yield missing_finding(
                "cluster", f"{api.address} gave no answer: {error}", "check the context and your network"
            )


def _cluster_findings(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    try:
        version = str(api.get("/version").get("gitVersion", "of an unknown version"))
    except ClusterRefusal as error:
        yield missing_finding(
            "cluster", f"{api.address} refused: {error}", "renew your login, or choose another context"
        )
        return
    namespace = f"/api/v1/namespaces/{site.namespace}"
    yield _version_finding(f"{api.address} is Kubernetes {version}", version)
    yield _existence_finding(api, "namespace", namespace, site.namespace, "kubernetes.namespace")
    yield from _rights_findings(api, site)
    if site.image:
        yield ok_finding("image", f"{site.image} is named; only a pod's machine can tell whether it may be pulled")
    else:
        advice = "give kubernetes.image, or `--runtime docker` with an image that the cluster can pull"
        yield missing_finding("image", "kubernetes.image is not given", advice)
    if account := site.service_account:
        path = f"{namespace}/serviceaccounts/{account}"
        yield _existence_finding(api, "service account", path, account, "kubernetes.service_account")
    if site.queue:
        preferred_version = None
        with suppress(ClusterRefusal):
            preferred_version = (api.get(f"/apis/{_KUEUE_GROUP}").get("preferredVersion") or {}).get("groupVersion")
        version = preferred_version or f"{_KUEUE_GROUP}/v1beta1"
        path = f"/apis/{version}/namespaces/{site.namespace}/localqueues/{site.queue}"
        yield _existence_finding(
            api, "queue", path, site.queue, "kubernetes.queue; `kubectl get localqueues` lists them"
        )
    if site.claim:
        path = f"{namespace}/persistentvolumeclaims/{site.claim}"
        yield _existence_finding(api, "claim", path, site.claim, "kubernetes.claim")
        folder = Path(str(site.claim_folder))
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield ok_finding("claim folder", f"{folder} is a folder here, and can be written")
        else:
            advice = "mount the claim's volume there, or leave out claim and claim_folder: "
            advice += "the pods' logs then bring the files"
            yield missing_finding("claim folder", f"{folder} is no folder here that you can write", advice)
    if site.devices not in (None, NO_RESOURCE):
        yield _devices_finding(api, site.devices)


def _version_finding(sentence: str, version: str) -> SiteFinding:
    minor = re.match(r"v1\.(\d+)", version)
    if minor and int(minor[1]) < MIN_MINOR_VERSION:
        advice = "an older one drops what a run's Job needs"
        return missing_finding("cluster", f"{sentence}, expected 1.{MIN_MINOR_VERSION} or newer", advice)
    if minor is None and not re.match(r"v[2-9]\.", version):
        advice = f"see `kubectl version`: a run needs 1.{MIN_MINOR_VERSION} or newer, and an older cluster refuses it"
        return unknown_finding("cluster", f"{sentence}, which says no version that can be compared", advice)
    return ok_finding("cluster", sentence)


def _rights_findings(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    """Yield what this user may not do, or one finding that everything is allowed."""
    needed_rights = [(verb, "", part, "") for part in _PART_RESOURCES for verb in ("create", "patch", "delete")]
    needed_rights += [(verb, "batch", "jobs", "") for verb in ("create", "get", "delete")]
    needed_rights += [(verb, "", "pods", "") for verb in ("list", "watch")] + [("get", "", "pods", "log")]
    missing_rights = []
    for verb, group, resource, part in needed_rights:
        attributes = {"namespace": site.namespace, "verb": verb, "group": group}
        attributes |= {"resource": resource, "subresource": part}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        try:
            answer = api.answer("POST", _REVIEWS, body={**review, "spec": {"resourceAttributes": attributes}})
        except ClusterRefusal as error:
            yield unknown_finding("rights", f"what you may do in {site.namespace}: {error}")
            return
        if (answer.get("status") or {}).get("allowed") is not True:
            missing_rights.append(f"{verb} {resource}{f'/{part}' if part else ''}{f'.{group}' if group else ''}")
    if not missing_rights:
        yield ok_finding("rights", f"you may do all {len(needed_rights)} things that a run does in {site.namespace}")
    for right in missing_rights:
        advice = f"your cluster's administrator must allow it: a Role with {right} in {site.namespace}"
        yield missing_finding("rights", f"you may not {right} in {site.namespace}", advice)


def _existence_finding(api: ClusterApi, subject: str, path: str, name: str, key: str) -> SiteFinding:
    """Return whether the cluster has an object, and whether pods on several machines may share a claim.

    key: the key of the site's file that names the object.
    """
    try:
        fields = api.get(path)
    except ClusterRefusal as error:
        if error.status == 404:
            return missing_finding(subject, f"the cluster has no {subject} {name}", f"create it, or correct {key}")
        return unknown_finding(subject, f"{name}: {error}")
    if subject != "claim":
        return ok_finding(subject, f"{name} is there")
    phase = (fields.get("status") or {}).get("phase")
    access_modes = (fields.get("spec") or {}).get("accessModes") or []
    if phase != "Bound":
        return missing_finding("claim", f"{name} is {phase}, expected Bound", "`kubectl describe pvc` says why")
    if "ReadWriteMany" not in access_modes:
        advice = "pods on several machines need a claim with ReadWriteMany"
        return missing_finding("claim", f"{name} has {', '.join(map(str, access_modes)) or 'no access mode'}", advice)
    return ok_finding("claim", f"{name} is bound, for many machines")


def _devices_finding(api: ClusterApi, resource: str) -> SiteFinding:
    try:
        nodes = api.get("/api/v1/nodes").get("items") or []
    except ClusterRefusal as error:
        return unknown_finding("devices", f"{resource}: the cluster does not show its machines: {error}")
    count_texts = [str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")) for node in nodes]
    device_counts = [int(count) for count in count_texts if count.isdecimal() and int(count)]
    if not device_counts:
        advice = "install the maker's device plugin, or correct kubernetes.devices"
        return missing_finding("devices", f"none of {len(nodes)} machines has {resource}", advice)
    return ok_finding(
        "devices", f"{len(device_counts)} of {len(nodes)} machines have {resource}: {sum(device_counts)} in all"
    )
