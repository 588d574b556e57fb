"""Real trainings in containers: the same bits as without, on one node and on two containers of one network.

`short` has every part of a training in forty small steps. `make thorough` trains the shipped cases, whose references
are of longer runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from containers_shared import IN_CONTAINERS
from driving import SHORT, TORCH_HERE, Benchmark, steps

pytestmark = pytest.mark.containers
# Preflight measures which library multiplies faster. Where two are about as fast, its choice varies, and so do bits.
UNMEASURED = (*SHORT, "--no-preflight")
Steps = list[tuple[float, float, str]]


def content(run: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / name).read_text())
    return document


def valid_run(benchmark: Benchmark, *arguments: str) -> Path:
    done = benchmark.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert benchmark.result()["status"]["word"] == "valid"
    return benchmark.only_run()


@pytest.fixture(scope="module")
def plain(images_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """The steps of `short` without a container."""
    without = Benchmark(tmp_path_factory.mktemp("plain") / "runs", images_cache)
    steps_of_short = steps(valid_run(without, "--case", "short:torch", *UNMEASURED, *TORCH_HERE))
    assert [tokens for _, _, tokens in steps_of_short] and len({loss for loss, _, _ in steps_of_short}) == 40
    return steps_of_short


def test_one_node_trains_the_same_bits_as_without_a_container(benchmark: Benchmark, plain: Steps) -> None:
    run = valid_run(benchmark, "--case", "short:torch", *UNMEASURED, *IN_CONTAINERS)
    assert steps(run) == plain
    _says_where_it_ran(run)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["gpt3_6.7B:paddle", "llama3_8b:torch"])
def test_a_shipped_case_trains_the_same_bits_and_is_aligned(case: str, benchmark: Benchmark, tmp_path: Path) -> None:
    run = valid_run(benchmark, "--case", case, *IN_CONTAINERS)
    assert benchmark.result()["alignment"]["verdict"] == "aligned"
    without = Benchmark(tmp_path / "plain", Path(benchmark.variables["XDG_CACHE_HOME"]))
    assert steps(run) == steps(valid_run(without, "--case", case))


def _says_where_it_ran(run: Path) -> None:
    """The image with what is in it, the engine, and the recipe are in the run directory."""
    provenance, image = content(run, "provenance.json"), content(run, "image/image.json")
    assert provenance["image"] == image and image["id"].startswith("sha256:")
    assert provenance["engine"]["Version"] and "numpy" in provenance["environment_packages"]
    assert content(run, "request.json")["nodes"][0]["container"]["image"] == image["id"]
    assert (run / "image" / "Dockerfile").read_text() == content(run, "plan.json")["container"]["image"]["dockerfile"]
    assert (run / "telemetry.jsonl").read_text().count('"samples"') > 1


def test_two_containers_of_one_network_train_the_same_bits_as_two_processes(
    benchmark: Benchmark, tmp_path: Path
) -> None:
    options = (*UNMEASURED, "--threads", "1")
    run = valid_run(benchmark, "--case", "short:torch:cpu:2:1", *options, *IN_CONTAINERS)
    without = Benchmark(tmp_path / "plain", Path(benchmark.variables["XDG_CACHE_HOME"]))
    assert steps(run) == steps(valid_run(without, "--case", "short:torch:cpu:1:2", *options, *TORCH_HERE))
    _are_two_nodes(benchmark)


def _are_two_nodes(benchmark: Benchmark) -> None:
    request = content(benchmark.only_run(), "request.json")
    (deviation,) = benchmark.result()["deviations"]
    assert "2 nodes" in deviation and "2 containers" in deviation
    assert [node["address"] for node in request["nodes"]] == ["node0", "node1"]
    assert len({node["container"]["network"] for node in request["nodes"]}) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["torch", "paddle"])
@pytest.mark.parametrize("case", ["gpt3_6.7B", "llama3_8b"])
def test_a_shipped_case_on_two_nodes_is_aligned(case: str, framework: str, benchmark: Benchmark) -> None:
    valid_run(benchmark, "--case", f"{case}:{framework}:cpu:2:1", *IN_CONTAINERS)
    assert benchmark.result()["alignment"]["verdict"] == "aligned"
    _are_two_nodes(benchmark)


def test_an_unchanged_image_is_not_built_again_and_works_offline(benchmark: Benchmark) -> None:
    assert benchmark.run("environment", "image", "build", "torch").returncode == 0
    again = benchmark.run("environment", "image", "build", "torch", "--offline")
    assert again.returncode == 0 and "exists" in again.stdout and "building" not in again.stderr


def test_inside_takes_the_python_that_is_there(benchmark: Benchmark, plain: Steps) -> None:
    """As in a vendor's container: its Python has the framework, and nothing is made."""
    run = valid_run(benchmark, "--case", "short:torch", *UNMEASURED, "--runtime", "inside", *TORCH_HERE)
    assert (benchmark.result()["runtime"], steps(run)) == ("inside", plain)
    assert content(run, "plan.json")["environment"]["requirements"] == []
    assert "signs" in content(run, "provenance.json")["container"]
