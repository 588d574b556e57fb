"""`--launcher ssh --runtime docker`: the node's part in a container of the node's engine, and the image brought to it.

Both machines reach the engine of `.ci/engine`, whose containers have this machine's network: so the ranks' address is
that of this machine on the network of the two. tests/containers checks what a container may see.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_shared import Cluster
from docker import DockerClient
from docker.errors import DockerException
from driving import PRETENDING, alone_on_the_engine
from fleet import Fleet, wait_until
from levelfield.run.runtimes.engine import RUN_LABEL

pytestmark = pytest.mark.machines
# Containers see this machine's folders, so each machine gets a folder of locks that is its own.
ENGINE = """#!{python}
import os, socket, sys
from pathlib import Path
words = sys.argv[1:]
with open("{folder}/asked", "a") as file:
    file.write(" ".join(words) + chr(10))
loaded = Path("{folder}/loaded")
if words[0] == "image" and os.path.exists("{folder}/lacking") and not loaded.exists():
    sys.exit("Error: No such image: " + words[-1])  # as a second engine would say
if words[0] == "load":
    loaded.write_bytes(sys.stdin.buffer.read())
    os.dup2(os.open(loaded, os.O_RDONLY), 0)
locks = "{folder}/locks-" + socket.gethostname()
os.makedirs(locks, mode=0o1777, exist_ok=True)
words = [word.replace("--volume=/tmp/levelfield-devices:", "--volume=" + locks + ":") for word in words]
os.execvp("docker", ["docker", "-H", "{engine}", *words])
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerClient]:
    try:
        client = DockerClient.from_env()
        client.images.get(os.environ.get("LEVELFIELD_BASE_IMAGE", "none"))
    except (DockerException, OSError):
        pytest.skip("no container engine with the image LEVELFIELD_BASE_IMAGE; `.ci/engine up` starts one")
    yield client
    client.close()


@pytest.fixture
def fleet(hosts: Cluster, engine: DockerClient, tmp_path: Path) -> Iterator[Fleet]:
    fleet_here = Fleet(hosts, tmp_path, tmp_path / "node")
    fleet_here.variables["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    client = tmp_path / "engine"
    client.write_text(ENGINE.format(python=sys.executable, folder=tmp_path, engine=os.environ["DOCKER_HOST"]))
    client.chmod(0o755)
    fleet_here.write(container=str(client))
    with alone_on_the_engine():
        yield fleet_here
        fleet_here.stop()
    assert fleet_here.nothing_is_left()


def command(tmp_path: Path, *more: str) -> tuple[str, ...]:
    arguments = ("--case", "long:fake:F1:2:1", *PRETENDING, "--runtime", "docker", "--no-preflight", *more)
    return (*arguments, "--site", str(tmp_path / "site.json"))


def containers(engine: DockerClient, run: Path) -> list[str]:
    return [
        str(c.id)
        for c in engine.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run.name}"}, ignore_removed=True)
    ]


def test_two_machines_train_in_containers_of_one_image_that_is_brought_once(
    fleet: Fleet, engine: DockerClient, tmp_path: Path
) -> None:
    (tmp_path / "lacking").touch()
    done = fleet.run(*command(tmp_path, "--steps", "10"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("bringing the image") == 1 and (tmp_path / "loaded").stat().st_size > 10 * 2**20
    assert fleet.result()["status"]["word"] == "valid" and fleet.words() == ["ended", "ended"]
    run = fleet.only_run()
    image = json.loads((run / "provenance.json").read_text())["image"]
    assert image == json.loads((run / "image/image.json").read_text())
    commands = (tmp_path / "asked").read_text().splitlines()
    name = next(word for line in commands if line.startswith("run ") for word in line.split() if ":node-" in word)
    assert engine.images.get(name).id == image["id"]  # what the nodes started is what was built
    engine.images.remove(name)
    assert containers(engine, run) == []


def test_a_killed_platform_leaves_no_container(fleet: Fleet, engine: DockerClient, tmp_path: Path) -> None:
    process = fleet.start(*command(tmp_path))
    for rank in (0, 1):
        fleet.wait_for_step(process, 2, rank)
    run = fleet.only_run()
    assert len(containers(engine, run)) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert wait_until(lambda: containers(engine, run) == [])


def test_a_machine_without_an_engine_is_named(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "engine").unlink()
    done = fleet.run(*command(tmp_path))
    assert done.returncode == 3 and "Traceback" not in done.stderr
    message = " ".join(done.stderr.split())
    assert f"{fleet.cluster.hosts[0]}: " in message and "container engine" in message and "ssh.container" in message
