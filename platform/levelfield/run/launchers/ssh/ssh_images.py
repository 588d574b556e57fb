"""Brings the image of a run to the nodes that lack it: the engine's own archive, by digest, once for each node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from levelfield.contracts.execution import NodeEnd, NodesNotReady
from levelfield.run.launchers.ssh.ssh_container import container_of, image_of
from levelfield.run.launchers.ssh.ssh_places import places_of, ssh_argv
from levelfield.run.runtimes import images
from levelfield.run.runtimes.engine import answers, connect, reap
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.plan import Plan

if TYPE_CHECKING:
    from docker import DockerClient

Say = Callable[[str], None]
PROGRESS_BYTES = 256 * 2**20
QUESTION_SECONDS = 60.0


def bring_images(plan: Plan, say: Say) -> images.Built:
    """Build the image here if it is missing, and bring it to every node. Return it. Raises NodesNotReady."""
    with connect() as client, answers():
        reap(client, say)
        built = images.ready(client, container_of(plan), say)
        client.images.get(built.id).tag(image_of(plan))
        for node_rank in range(plan.hardware.nodes):
            _bring(client, plan, node_rank, built.id, say)
    return built


def _bring(client: DockerClient, plan: Plan, node_rank: int, image_id: str, say: Say) -> None:
    name = places_of(plan, node_rank).host.name
    if _found(plan, node_rank) == image_id:
        return
    image = client.images.get(image_of(plan))
    say(f"{name}: bringing the image {image_of(plan)} ({image.attrs['Size'] / 2**20:,.0f} MiB unpacked)")
    complaint = _load(plan, node_rank, image.save(named=image_of(plan)), lambda text: say(f"{name}: {text}"))
    if (found := _found(plan, node_rank)) != image_id:
        why = f"{name}: found image {found}, expected {image_id} after it was brought{complaint}"
        raise _failed(plan, node_rank, why)


def _found(plan: Plan, node_rank: int) -> str | None:
    """Return the image's id on a node; None where the node does not have it. Raises NodesNotReady without an engine."""
    done = subprocess.run(
        _command(plan, node_rank, ["image", "inspect", "--format", "{{json .Id}}", image_of(plan)]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUESTION_SECONDS,
    )
    if done.returncode == 0:
        return str(json.loads(done.stdout))
    if "o such image" in done.stderr or "o such object" in done.stderr:
        return None
    name, engine = places_of(plan, node_rank).host.name, launch_of(plan).site.ssh.container
    said = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
    why = f"{name}: its container engine does not answer `{engine}`: {said}; name its command as ssh.container"
    raise _failed(plan, node_rank, why)


def _load(plan: Plan, node_rank: int, parts: Iterable[bytes], say: Say) -> str:
    """Send an archive to the engine of a node. Return its complaint, empty after success."""
    argv, sent = _command(plan, node_rank, ["load", "--quiet"]), 0
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            for part in parts:
                process.stdin.write(part)
                if (sent + len(part)) // PROGRESS_BYTES > sent // PROGRESS_BYTES:
                    say(f"sent {(sent + len(part)) >> 20:,} MiB")
                sent += len(part)
            process.stdin.close()
        except BrokenPipeError:
            pass
        except BaseException:
            process.kill()
            raise
        said = " ".join(process.stderr.read().decode(errors="replace").split())[-300:]
    return f": {said or f'exit code {process.returncode}'}" if process.returncode else ""


def _command(plan: Plan, node_rank: int, words: list[str]) -> tuple[str, ...]:
    launch = launch_of(plan)
    return ssh_argv(launch, places_of(plan, node_rank).host, [launch.site.ssh.container, *words])


def _failed(plan: Plan, node_rank: int, why: str) -> NodesNotReady:
    name = places_of(plan, node_rank).host.name
    return NodesNotReady("environment", why, (NodeEnd(node_rank, name, "failed", why),))
