"""What a container is given, and that it is given nothing else: seen from within."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from docker.errors import APIError
from levelfield.catalog.registry import Registry
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.execution import ContainerWork
from levelfield.contracts.vendor import Device
from levelfield.run.runtimes.engine import OWNER_LABEL, owner_label, running_container
from levelfield.specs.vendor import ContainerAccess, ContainerOptions

pytestmark = pytest.mark.containers

# What the kernel says of the first process, as JSON.
LOOK = """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "capabilities": int(status["CapEff"], 16), "bounding": int(status["CapBnd"], 16),
    "new_privileges": status["NoNewPrivs"], "user": os.getuid(), "groups": os.getgroups(),
    "networks": sorted(os.listdir("/sys/class/net")), "devices": sorted(p.name for p in pathlib.Path("/dev").glob("*")),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}))
"""


def work(program: str, options: ContainerOptions | None = None, user: str = "0:0", **more: object) -> ContainerWork:
    name = f"levelfield-test-{os.urandom(4).hex()}"
    plain = ContainerWork(
        name=name,
        image=os.environ["LEVELFIELD_BASE_IMAGE"],
        argv=("python3", "-c", program),
        user=user,
        environment={},
        mounts={},
        network="none",
        labels={OWNER_LABEL: owner_label()},
        options=options or ContainerOptions(),
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def said(engine: DockerClient, work_item: ContainerWork) -> tuple[int, str, list[str]]:
    with running_container(engine, work_item) as (container, warnings):
        code = container.wait(timeout=60)["StatusCode"]
        return code, container.logs().decode(), warnings


def looked(engine: DockerClient, work_item: ContainerWork) -> dict[str, Any]:
    code, printed, _ = said(engine, work_item)
    assert code == 0, printed
    content: dict[str, Any] = json.loads(printed)
    return content


def test_no_capability_no_network_and_no_device_unless_declared(engine: DockerClient) -> None:
    seen = looked(engine, work(LOOK))
    assert (seen["capabilities"], seen["bounding"], seen["new_privileges"]) == (0, 0, "1")
    assert seen["networks"] == ["lo"]
    assert "fuse" not in seen["devices"] and "kmsg" not in seen["devices"]


def test_a_declared_capability_and_nothing_beside_it(engine: DockerClient) -> None:
    seen = looked(engine, work(LOOK, ContainerOptions(capabilities=("SYS_NICE",))))
    assert seen["capabilities"] == 1 << 23, "CAP_SYS_NICE of linux/capability.h"


def test_exactly_the_chosen_devices(engine: DockerClient, tmp_path: Path) -> None:
    """Copies of /dev/null stand for a maker's device files."""
    for index in range(4):
        if subprocess.run(["mknod", str(tmp_path / f"acme{index}"), "c", "1", "3"]).returncode:
            pytest.skip("device files cannot be made here")
    access = ContainerAccess(device_nodes=(f"{tmp_path}/acme{{index}}",))
    spec = Registry().vendor_file("cpu").model_copy(update={"container": access})
    options = DeclaredVendor(spec).container([Device(i, None, "acme", None) for i in (1, 3)])
    program = f"import os; print(sorted(os.listdir('{tmp_path}')), open('{tmp_path}/acme1', 'wb').write(b'x'))"
    code, printed, _ = said(engine, work(program, options))
    assert code == 0 and printed.split() == ["['acme1',", "'acme3']", "1"]


def test_data_is_read_only_and_the_run_directory_is_the_users(engine: DockerClient, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    (data / "corpus.bin").write_text("tokens")
    run.mkdir()
    for folder in (*tmp_path.parents[:2], tmp_path, data, run):
        folder.chmod(folder.stat().st_mode | 0o755)
    os.chown(run, 12345, 12345)
    program = f"open('{run}/kept', 'w').write(open('{data}/corpus.bin').read()); open('{data}/x', 'w')"
    code, printed, _ = said(engine, work(program, user="12345:12345", mounts={str(data): "ro", str(run): "rw"}))
    assert code == 1 and os.strerror(errno.EROFS) in printed
    status = (run / "kept").stat()
    assert (status.st_uid, status.st_gid, (run / "kept").read_text()) == (12345, 12345, "tokens")
    assert not (data / "x").exists()


def test_shared_memory_groups_and_variables_as_declared(engine: DockerClient) -> None:
    seen = looked(engine, work(LOOK, ContainerOptions(shm_bytes=2**25, groups=("4321",))))
    assert seen["shm"] == 2**25 and 4321 in seen["groups"]
    code, printed, _ = said(engine, work("import os; print(os.environ['ACME'])", environment={"ACME": "1,3"}))
    assert (code, printed.strip()) == (0, "1,3")


def test_a_refused_limit_is_a_warning_and_not_a_failure(engine: DockerClient) -> None:
    """This asks for more open files than any kernel gives."""
    code, printed, warnings = said(engine, work("print('ran')", ContainerOptions(ulimits={"nofile": 2**31})))
    assert (code, printed.strip()) == (0, "ran")
    (warning,) = warnings
    assert f"nofile={2**31}" in warning


def test_a_missing_device_is_an_error_and_leaves_no_container(engine: DockerClient) -> None:
    work_item = work("print('ran')", ContainerOptions(device_nodes=("/dev/acme-that-is-not-there",)))
    with pytest.raises(APIError, match="acme-that-is-not-there"), running_container(engine, work_item):
        pytest.fail("it started")
    assert work_item.name not in [c.name for c in engine.containers.list(all=True, ignore_removed=True)]
