"""Images: built from a recipe when they are missing, with a tag that is the digest of all inputs.

So an unchanged recipe is never built twice, and a changed recipe is always built.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield import environment_folder
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed
from levelfield.run.runtimes.engine import IMAGE_LABEL, first_error_line
from levelfield.run.runtimes.wheels import Wheels, fetch_image_wheels, verify_wheels
from levelfield.rundir.directory import replacement_file, write_atomically
from levelfield.specs.plan import ContainerPlan, ImagePlan
from levelfield.user_folders import own_cache

if TYPE_CHECKING:
    from docker import DockerClient


@dataclass(frozen=True)
class BuiltImage:
    """An image that the engine has."""

    tag: str
    id: str
    base_id: str  # the id of the base image
    log: Path  # the engine's output of the build, if the build was on this machine
    is_new: bool  # whether it was built for this run

    def to_dict(self) -> dict[str, str]:
        return {"tag": self.tag, "id": self.id, "base_id": self.base_id}

    def write_recipe(self, recipe: ImagePlan, folder: Path) -> None:
        """Write the recipe to a folder, and the log of the build if it was for this run. Raises OSError."""
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "Dockerfile", recipe.dockerfile)
        write_atomically(folder / "image.json", json.dumps(self.to_dict(), indent=2) + "\n")
        if self.is_new:
            shutil.copyfile(self.log, folder / "build.log")


def prepare_image(client: DockerClient, container: ContainerPlan, say: Say) -> BuiltImage:
    """Return the image, built first if it is missing. Raises RunFailed with the engine's last lines."""
    from docker.errors import DockerException

    image, reference = container.image, container.image.base.reference
    base_id = _image_id(client, reference)
    if base_id is None and container.offline:
        raise RunFailed(
            f"--offline, and the image {reference} is not on this engine. Load it there, or name "
            "another with --base-image"
        )
    if base_id is None:
        say(f"fetching the image {reference}")
        try:
            client.images.pull(reference)
        except DockerException as error:
            raise RunFailed(
                f"the image {reference} cannot be fetched: {first_error_line(error)}. Load it onto the "
                "engine, or name another with --base-image"
            ) from None
        base_id = str(client.images.get(reference).id)
    wheels = fetch_image_wheels(image, container.offline, say)
    tag = image_tag(image, base_id, wheels)
    log = own_cache() / "images" / f"{tag.replace('/', '-').replace(':', '-')}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        lock = environment_folder.lock_file(log.with_suffix(".lock"))
    except OSError as error:
        raise RunFailed(f"{log.parent}: {error.strerror}") from None
    with lock:  # if two runs need it, only one builds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if image_id := _image_id(client, tag):
            return BuiltImage(tag, image_id, base_id, log, is_new=False)
        say(f"building {tag} on {reference}; its log is {log}")
        _build(client, image, wheels, tag, log, say)
        return BuiltImage(tag, str(_image_id(client, tag)), base_id, log, is_new=True)


def image_tag(image: ImagePlan, base_id: str, wheels: Wheels) -> str:
    """Return name:digest over the Dockerfile, the base's id, the requirements and every wheel's content."""
    files = (f"{name} {digest}" for name, digest in sorted(wheels.files.items()))
    parts = (image.dockerfile, base_id, *image.packages, *files)
    return f"{image.name}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _image_id(client: DockerClient, reference: str) -> str | None:
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(reference).id)
    except ImageNotFound:
        return None


def _build(client: DockerClient, image: ImagePlan, wheels: Wheels, tag: str, log: Path, say: Say) -> None:
    """Stream the context to the engine and its output to the log. An interrupt closes the stream and ends the build.

    Raises RunFailed with the last lines before an error.
    """
    verify_wheels(wheels)
    last_lines: deque[str] = deque(maxlen=3)
    with build_context(image, wheels) as tar, log.open("w", encoding="utf-8") as file:
        stream = client.api.build(
            fileobj=tar,
            custom_context=True,
            tag=tag,
            decode=True,
            rm=True,
            forcerm=True,
            network_mode="host" if image.base.system_packages else "none",
        )
        for chunk in stream:
            text = str(chunk.get("stream") or chunk.get("error") or "")
            file.write(text)
            if "error" in chunk:
                lines = " | ".join(last_lines)
                raise RunFailed(f"the image could not be built: {lines} ({text.strip()}). The log is {file.name}")
            if text.startswith("Step "):
                say(" ".join(text.split())[:100])
            last_lines.extend(
                line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\x1b[0mRem")
            )
    # The build stage with the unpacked wheels has no tag. It would need the same disk space again.
    client.images.prune(filters={"dangling": True, "label": f"{IMAGE_LABEL}={image.name.partition('/')[2]}"})


@contextmanager
def build_context(image: ImagePlan, wheels: Wheels) -> Iterator[Any]:
    """Yield the build context as a tar file: the Dockerfile, the wheels and the list of requirements."""
    requirements = "".join(f"{line}\n" for line in image.packages)
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, text in (("Dockerfile", image.dockerfile), ("wheels/requirements.txt", requirements)):
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
            for name in wheels.files:
                tar.add(wheels.folder / name, f"wheels/{name}")
        file.seek(0)
        yield file


def export_image(client: DockerClient, tag: str, path: Path) -> None:
    """Write the image for `docker load`. A failed write leaves no file. Raises OSError."""
    with replacement_file(path, "b") as file:
        for block in client.images.get(tag).save(named=True):
            file.write(block)
