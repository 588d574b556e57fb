"""What a site's file says about Kubernetes, against the cluster: client, rights, queue, claim, devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from levelfield.errors import UsageError
from levelfield.run.launchers.kubernetes.cluster_api import (
    OLDEST,
    ClusterApi,
    ClusterRefusal,
    ClusterSilence,
    Fields,
)
from levelfield.run.site_checks import SiteFinding, missing, ok, unknown
from levelfield.specs.site import NO_RESOURCE, KubernetesSite, Site

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PARTS = ("configmaps", "secrets", "services")


def kubernetes_findings(site: Site) -> Iterator[SiteFinding]:
    """Try everything that a run would need. A cluster that does not answer ends the list."""
    own = site.kubernetes
    try:
        api = ClusterApi(own.context)
    except UsageError as error:
        yield missing("client", str(error), "correct this first; nothing else can be tried")
        return
    with closing(api):
        try:
            yield from _of_cluster(api, own)
        except ClusterSilence as error:
            yield missing("cluster", f"{api.address} gave no answer: {error}", "check the context and your network")


def _of_cluster(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    try:
        version = str(api.get("/version").get("gitVersion", "of an unknown version"))
    except ClusterRefusal as error:
        yield missing("cluster", f"{api.address} refused: {error}", "renew your login, or choose another context")
        return
    yield _version(f"{api.address} is Kubernetes {version}", version)
    yield _there(api, "namespace", f"/api/v1/namespaces/{site.namespace}", site.namespace, "kubernetes.namespace")
    yield from _rights(api, site)
    yield _image(site)
    yield from _named(api, site)
    if site.claim:
        yield from _claim(api, site)
    if site.devices not in (None, NO_RESOURCE):
        yield _devices(api, site.devices)


def _version(said: str, version: str) -> SiteFinding:
    found = re.match(r"v1\.(\d+)", version)
    if found and int(found[1]) < OLDEST:
        return missing("cluster", f"{said}, expected 1.{OLDEST} or newer", "an older one drops what a run's Job needs")
    if found is None and not re.match(r"v[2-9]\.", version):
        do = f"see `kubectl version`: a run needs 1.{OLDEST} or newer, and an older cluster refuses it"
        return unknown("cluster", f"{said}, which says no version that can be compared", do)
    return ok("cluster", said)


def _rights(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    """Yield what this user may not do, or one finding that everything is allowed."""
    wanted = [(verb, "", part, "") for part in _PARTS for verb in ("create", "patch", "delete")]
    wanted += [(verb, "batch", "jobs", "") for verb in ("create", "get", "delete")]
    wanted += [(verb, "", "pods", "") for verb in ("list", "watch")] + [("get", "", "pods", "log")]
    refused = [_called(each) for each in wanted if not _allowed(api, site.namespace, *each)]
    if not refused:
        yield ok("rights", f"you may do all {len(wanted)} things that a run does in {site.namespace}")
    for what in refused:
        do = f"your cluster's administrator must allow it: a Role with {what} in {site.namespace}"
        yield missing("rights", f"you may not {what} in {site.namespace}", do)


def _allowed(api: ClusterApi, namespace: str, verb: str, group: str, resource: str, part: str) -> bool:
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": part}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = api.post(_REVIEWS, {**body, "spec": {"resourceAttributes": asked}})
    return (answer.get("status") or {}).get("allowed") is True


def _called(wanted: tuple[str, str, str, str]) -> str:
    verb, group, resource, part = wanted
    return f"{verb} {resource}{f'/{part}' if part else ''}{f'.{group}' if group else ''}"


def _image(site: KubernetesSite) -> SiteFinding:
    if site.image:
        return ok("image", f"{site.image} is named; only a pod's machine can tell whether it may be pulled")
    do = "give kubernetes.image, or `--runtime docker` with an image that the cluster can pull"
    return missing("image", "kubernetes.image is not given", do)


def _named(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    """Yield whether the objects exist that the site's file names."""
    own = f"/api/v1/namespaces/{site.namespace}"
    if account := site.service_account:
        path = f"{own}/serviceaccounts/{account}"
        yield _there(api, "service account", path, account, "kubernetes.service_account")
    if site.queue:
        group = _preferred(api, "kueue.x-k8s.io")
        path = f"/apis/{group}/namespaces/{site.namespace}/localqueues/{site.queue}"
        yield _there(api, "queue", path, site.queue, "kubernetes.queue; `kubectl get localqueues` lists them")


def _found(api: ClusterApi, subject: str, path: str, name: str, key: str) -> Fields | SiteFinding:
    """Return an object of the cluster, or why there is none."""
    try:
        return api.get(path)
    except ClusterRefusal as error:
        if error.status == 404:
            return missing(subject, f"the cluster has no {subject} {name}", f"create it, or correct {key}")
        return unknown(subject, f"{name}: {error}")


def _there(api: ClusterApi, subject: str, path: str, name: str, key: str) -> SiteFinding:
    found = _found(api, subject, path, name, key)
    return found if isinstance(found, SiteFinding) else ok(subject, f"{name} is there")


def _claim(api: ClusterApi, site: KubernetesSite) -> Iterator[SiteFinding]:
    """Yield the state of the claim, and whether this machine has the folder."""
    name = str(site.claim)
    path = f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims/{name}"
    found = _found(api, "claim", path, name, "kubernetes.claim")
    yield found if isinstance(found, SiteFinding) else _claim_state(name, found)
    folder = Path(str(site.claim_folder))
    if folder.is_dir() and os.access(folder, os.W_OK):
        yield ok("claim folder", f"{folder} is a folder here, and can be written")
    else:
        do = "mount the claim's volume there, or leave out claim and claim_folder: the pods' logs then bring the files"
        yield missing("claim folder", f"{folder} is no folder here that you can write", do)


def _claim_state(name: str, found: Mapping[str, Any]) -> SiteFinding:
    phase = (found.get("status") or {}).get("phase")
    modes = (found.get("spec") or {}).get("accessModes") or []
    if phase != "Bound":
        return missing("claim", f"{name} is {phase}, expected Bound", "`kubectl describe pvc` says why")
    if "ReadWriteMany" not in modes:
        do = "pods on several machines need a claim with ReadWriteMany"
        return missing("claim", f"{name} has {', '.join(map(str, modes)) or 'no access mode'}", do)
    return ok("claim", f"{name} is bound, for many machines")


def _devices(api: ClusterApi, resource: str) -> SiteFinding:
    try:
        nodes = api.get("/api/v1/nodes").get("items") or []
    except ClusterRefusal as error:
        return unknown("devices", f"{resource}: the cluster does not show its machines: {error}")
    counts = [str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")) for node in nodes]
    having = [int(count) for count in counts if count.isdecimal() and int(count)]
    if not having:
        do = "install the maker's device plugin, or correct kubernetes.devices"
        return missing("devices", f"none of {len(nodes)} machines has {resource}", do)
    return ok("devices", f"{len(having)} of {len(nodes)} machines have {resource}: {sum(having)} in all")


def _preferred(api: ClusterApi, group: str) -> str:
    try:
        found = (api.get(f"/apis/{group}").get("preferredVersion") or {}).get("groupVersion")
    except ClusterRefusal:
        found = None
    return str(found or f"{group}/v1beta1")
