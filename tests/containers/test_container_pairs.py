"""Pairs in containers: each build of a bisection starts its own code there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cloned_project import ClonedProject
from containers_shared import IN_CONTAINERS, kept
from docker import DockerClient

pytestmark = [pytest.mark.containers, pytest.mark.thorough]


def test_bisection_in_containers_names_the_commit(engine: DockerClient, images_cache: Path, tmp_path: Path) -> None:
    project = ClonedProject(tmp_path)
    plugins = [f"--plugins={project.code / folder}" for folder in ("tests/core/plugins", "tests/containers/plugins")]
    project.steps_last(0.3)
    slow = project.commit("steps of 300 ms")
    project.commit("something else")
    case = ["--case", "tiny:fake:fake:1:1", "--scale", "smoke", *IN_CONTAINERS]
    code, out, err = project.run("nightly", "bisect", project.first, "HEAD", *case, *plugins)
    assert code == 0 and f"first bad  {slow[:12]}" in out and f"last good  {project.first[:12]}" in out, out + err
    runs = sorted((project.data / "runs" / "pairs").glob("*/plan.json"))
    assert len(runs) >= 8 and {json.loads(path.read_text())["runtime"] for path in runs} == {"docker"}
    assert kept(engine, [path.parent.name for path in runs]) == []
