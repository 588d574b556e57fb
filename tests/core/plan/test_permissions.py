"""What a vendor's container may be given: the closed list, the user's --allow, and nothing beyond, before a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.contracts.vendor import Device
from levelfield.errors import DocumentError, UsageError
from levelfield.judge.collector import collect
from levelfield.plan.permissions import (
    CAPABILITIES,
    DEVICE_NODES,
    DRIVERS,
    GROUPS,
    MOUNT_FOLDERS,
    PERMISSION_FORMS,
    RUNTIMES,
    ULIMITS,
    allowed_permissions,
    needed_permissions,
    refuse_unknown_permissions,
)
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.vendor import ContainerOptions, VendorFile
from plans import PLUGINS, ROOT

BEYOND = {
    "capability:SYS_ADMIN": ContainerOptions(capabilities=("CAP_SYS_ADMIN",)),
    "capability:ALL": ContainerOptions(capabilities=("all",)),
    "device:/dev/sda*": ContainerOptions(device_nodes=("/dev/sda1",)),
    "device:/dev/mem": ContainerOptions(device_nodes=("/dev/kfd", "/dev/dri/../mem")),
    "device:/etc/shadow": ContainerOptions(device_nodes=("/dev/../etc/shadow",)),
    "device:/dev": ContainerOptions(device_nodes=("/dev/",)),
    "device:/dev/kfd/..x": ContainerOptions(device_nodes=("/dev/kfd/..x",)),
    "mount:/etc": ContainerOptions(read_only_mounts=("/opt/../etc",)),
    "mount:/": ContainerOptions(read_only_mounts=("//opt/..",)),
    "mount:/opt": ContainerOptions(read_only_mounts=("/opt/",)),
    "mount:/usr/run/docker.sock": ContainerOptions(read_only_mounts=("/usr/run/docker.sock",)),
    "mount:/srv/keys": ContainerOptions(read_only_mounts=("/opt/x", "/srv/keys")),
    "mount:/optional": ContainerOptions(read_only_mounts=("/optional",)),
    "group:docker": ContainerOptions(groups=("video", "docker")),
    "security:seccomp=unconfined": ContainerOptions(security_options=("seccomp=unconfined",)),
    "security:apparmor=unconfined": ContainerOptions(security_options=("apparmor=unconfined",)),
    "network:host": ContainerOptions(network="host"),
    "ipc:host": ContainerOptions(host_ipc=True),
    "runtime:evil": ContainerOptions(engine_runtime="evil"),
    "driver:evil": ContainerOptions(request_driver="evil"),
    "ulimit:nproc": ContainerOptions(ulimits={"memlock": -1, "nproc": -1}),
}


@pytest.mark.parametrize(("need", "options"), BEYOND.items(), ids=list(BEYOND))
def test_what_is_beyond_the_closed_list_needs_the_users_word(need: str, options: ContainerOptions) -> None:
    assert needed_permissions(options) == (need,)
    with pytest.raises(UsageError, match="closed list") as refused:
        allowed_permissions(options, ("ipc:other", need.upper()), "acme")
    assert f"--allow '{need}'" in str(refused.value) and "vendor acme" in str(refused.value)
    assert allowed_permissions(options, (need, "capability:UNUSED"), "acme") == (need,)


def test_every_kind_of_permission_is_tried() -> None:
    assert {need.partition(":")[0] for need in BEYOND} == set(PERMISSION_FORMS)


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor's command may have made it before."""
    monkeypatch.setattr("levelfield.plan.permissions.MOUNT_FOLDERS", (str(tmp_path),))
    (tmp_path / "driver").symlink_to("/etc")
    assert needed_permissions(ContainerOptions(read_only_mounts=(str(tmp_path / "driver"),))) == ("mount:/etc",)


@pytest.mark.parametrize("path", ["/opt/a:/etc", "opt", "/opt/a\nb", ""])
def test_a_path_that_the_engine_would_read_otherwise_is_never_given(path: str) -> None:
    for options in (ContainerOptions(read_only_mounts=(path,)), ContainerOptions(device_nodes=(path,))):
        with pytest.raises(UsageError, match="absolute"):
            allowed_permissions(options, (f"mount:{path}", f"device:{path}"), "acme")


@pytest.mark.parametrize("name", sorted(Registry().vendors))
def test_every_shipped_vendor_keeps_to_the_closed_list(name: str) -> None:
    devices = [Device(index, None, "a device", None, f"id-{index}") for index in (0, 7)]
    assert needed_permissions(Registry().vendor(name).container(devices)) == ()


@pytest.mark.parametrize("text", ["ipc", "all", "privileged", "ipc:", ":host", "pid:host"])
def test_an_unknown_permission_is_an_error_that_names_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=f"--allow: found '{text}'.*network:host"):
        refuse_unknown_permissions((text,))


def test_adapter_code_is_held_to_the_same_list() -> None:
    with pytest.raises(UsageError, match="LD_PRELOAD"):
        allowed_permissions(ContainerOptions(environment={"LD_PRELOAD": "/x.so"}), (), "acme")


def test_the_page_lists_what_the_code_allows() -> None:
    page = (ROOT / "docs/security.md").read_text()
    rows = {row.split("`")[1]: row.split(" | ")[1] for row in page.splitlines() if row.startswith("| `")}
    allowed = {kind: tuple(re.findall("`([^`]+)`", cell)) for kind, cell in rows.items()}
    assert list(allowed) == ["capability", "device", *[k for k in allowed if k not in ("capability", "device")]]
    assert set(allowed) == set(PERMISSION_FORMS) and allowed["ipc"] == () and allowed["network"] == ("none",)
    closed = {"capability": CAPABILITIES, "group": GROUPS, "runtime": RUNTIMES, "driver": DRIVERS, "ulimit": ULIMITS}
    assert {kind: allowed[kind] for kind in closed} == closed and allowed["mount"] == MOUNT_FOLDERS
    assert all(DEVICE_NODES.fullmatch(node) for node in allowed["device"])
    nodes = {re.sub("[0-9]+$", "", node) for node in allowed["device"]}
    alternatives = re.sub(r"\(/\(card\|renderD\)\\d\+\)\?|\\d\+", "", DEVICE_NODES.pattern)  # names without numbers
    assert len(nodes) == len(re.findall(r"[|(]", alternatives)) - 3


# -- from the command line to the result


@pytest.fixture
def greedy(tmp_path: Path) -> list[str]:
    """The options of a dry run in a container for a vendor whose container shares the host's IPC."""
    folder = tmp_path / "vendors" / "acme"
    folder.mkdir(parents=True)
    spec = {
        "schema": "levelfield.vendor/1", "name": "acme", "title": "A vendor of the tests", "device_kind": "fake",
        "verified": "none", "frameworks": {"fake": {"device": "cpu", "backend": "gloo"}},
        "chips": [{"name": "A1", "device_is": "card", "memory_bytes": 2**33, "memory_source": "made for the tests"}],
        "discovery": {"device_nodes": "/dev/acme[0-9]*"},
        "container": {"host_ipc": True, "device_nodes": ["/dev/acme{index}"]},
        "images": {"fake": {"image": "acme/fake:1", "source": "made for the tests"}},
    }  # fmt: skip
    (folder / "vendor.yaml").write_text(yaml.safe_dump(spec))
    plugins = ["--plugins", str(tmp_path), "--plugins", str(PLUGINS)]
    return ["--case", "tiny:fake:A1:1:2", "--runtime", "docker", "--dry-run", *plugins]


def test_a_plan_for_a_greedy_vendor_is_refused_and_names_what_to_allow(
    greedy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*greedy, "--allow", "ipc:host"]) == 2
    assert "--allow 'device:/dev/acme*'" in capsys.readouterr().err


def test_what_the_user_allows_is_in_the_plan(greedy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    allow = ["--allow", "ipc:host", "--allow", "device:/dev/acme*", "--allow", "group:unused"]
    assert main([*greedy, *allow, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["plan"]["container"]["allowed"] == ["ipc:host", "device:/dev/acme*"]
    assert main([*greedy, *allow]) == 0
    assert "allowed: ipc:host" in capsys.readouterr().out


def test_what_the_user_allowed_is_in_the_result(run: RunPaths) -> None:
    assert collect(run).allowed == () and "allowed to" not in run_report(collect(run), read_plan(run))
    plan = json.loads(run.plan.read_text())
    base = {"image": "a", "source": "made for the tests"}
    image = {"name": "a", "base": base, "python": "python3", "requirements": [], "dockerfile": ""}
    plan["container"] = {"image": image, "options": {"host_ipc": True}, "visible": {}, "allowed": ["ipc:host"]}
    run.plan.write_text(json.dumps(plan))
    assert collect(run).allowed == ("ipc:host",)
    [row] = [line for line in run_report(collect(run), read_plan(run)).splitlines() if "allowed to" in line]
    assert row.endswith("| ipc:host |")


# -- what becomes a Dockerfile


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image", "debian\nRUN id"),
        ("image", "debian AS x"),
        ("image", 'debian" x'),
        ("image", "debian:1\n"),
        ("image", "--platform=x"),
        ("image", ""),
        ("python", "python3 -c x"),
        ("python", "python3\nRUN id"),
        ("python", "$(id)"),
        ("python_version", "3.11\n"),
        ("system_packages", ["gcc; id"]),
        ("system_packages", ["--allow-unauthenticated"]),
        ("system_packages", ["gcc\nRUN id"]),
        ("digest", "sha256:" + "0" * 64 + "\nRUN id"),
    ],
)
def test_no_text_of_an_image_becomes_a_command_of_a_dockerfile(key: str, value: object) -> None:
    image = {"image": "debian", "source": "made for the tests", key: value}
    with pytest.raises(DocumentError, match=rf"^a\.yaml:.*'images\.base\.{key}"):
        parse(VendorFile, vendor(images={"base": image}), "a.yaml")


def test_nor_does_a_name_or_a_requirement(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="key 'name'"):
        parse(VendorFile, vendor(name='acme" \nRUN id'), "a.yaml")
    content = yaml.safe_load((PLUGINS / "models/fake/implementation.yaml").read_text())
    content["requirements"]["fake"]["packages"] = ["numpy==1\n--index-url=http://h"]
    from levelfield.specs.implementation import ImplementationFile

    with pytest.raises(DocumentError, match=r"requirements.fake.*packages:.*one.line"):
        parse(ImplementationFile, content, "a.yaml")


@pytest.mark.parametrize(
    "image", ["registry:5000/a/b@sha256:" + "0" * 64, "debian", "rocm/pytorch:rocm7.2_py3.12", "sha256:0"]
)
def test_the_names_of_images_are_read(image: str) -> None:
    content = vendor(images={"base": {"image": image, "source": "made for the tests"}})
    assert parse(VendorFile, content, "a.yaml").images["base"].image == image


def test_a_base_image_of_the_user_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--case", "gpt3_6.7B:torch:cpu", "--runtime", "docker", "--dry-run", "--base-image", "debian\nRUN id"]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "--base-image" in error and "key 'image'" in error


def vendor(**changes: object) -> dict[str, object]:
    plain = {"name": "acme", "title": "t", "device_kind": "acme", "frameworks": {}, "chips": [], "verified": "none"}
    return {"schema": "levelfield.vendor/1", **plain, **changes}
