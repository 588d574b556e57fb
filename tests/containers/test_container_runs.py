"""Real trainings in containers: the same bits as without, on one node and on two containers of one network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from containers_shared import IN_CONTAINERS
from driving import Benchmark

pytestmark = pytest.mark.containers


def steps(run: Path) -> list[tuple[float, float, str]]:
    """Loss, gradient norm and tokens of every step of rank 0, as they were written."""
    events = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    return [(e["loss"], e["grad_norm"], e["tokens_checksum"]) for e in events if e.get("event") == "step"]


def content(run: Path, name: str) -> dict:
    return json.loads((run / name).read_text())


@pytest.mark.parametrize("case", ["gpt3_6.7B:paddle", "llama3_8b:torch"])
def test_one_node_trains_the_same_bits_as_without_a_container(case: str, benchmark: Benchmark, tmp_path: Path) -> None:
    done = benchmark.run("--case", case, *IN_CONTAINERS)
    assert done.returncode == 0, done.stderr
    run, result = benchmark.only_run(), benchmark.result()
    assert (result["status"]["word"], result["alignment"]["verdict"]) == ("valid", "aligned")
    plain = Benchmark(tmp_path / "plain", Path(benchmark.variables["XDG_CACHE_HOME"]))
    assert plain.run("--case", case).returncode == 0
    assert len(steps(run)) == 40 and steps(run) == steps(plain.only_run())
    _says_where_it_ran(run)


def _says_where_it_ran(run: Path) -> None:
    """The image with what is in it, the engine, and the recipe are in the run directory."""
    provenance, image = content(run, "provenance.json"), content(run, "image/image.json")
    assert provenance["image"] == image and image["id"].startswith("sha256:")
    assert provenance["engine"]["Version"] and "numpy" in provenance["environment_packages"]
    assert content(run, "request.json")["nodes"][0]["container"]["image"] == image["id"]
    assert (run / "image" / "Dockerfile").read_text() == content(run, "plan.json")["container"]["image"]["dockerfile"]
    assert (run / "telemetry.jsonl").read_text().count('"samples"') > 1


@pytest.mark.parametrize(
    "case",
    [
        "gpt3_6.7B:torch:cpu:2:1",
        "llama3_8b:paddle:cpu:2:1",
        pytest.param("gpt3_6.7B:paddle:cpu:2:1", marks=pytest.mark.thorough),
        pytest.param("llama3_8b:torch:cpu:2:1", marks=pytest.mark.thorough),
    ],
)
def test_two_containers_of_one_network_are_two_nodes(case: str, benchmark: Benchmark) -> None:
    done = benchmark.run("--case", case, *IN_CONTAINERS)
    assert done.returncode == 0, done.stderr
    result, request = benchmark.result(), content(benchmark.only_run(), "request.json")
    assert (result["status"]["word"], result["alignment"]["verdict"]) == ("valid", "aligned")
    assert result["deviations"] == ["2 nodes were asked for; they are 2 containers of one machine"]
    assert [node["address"] for node in request["nodes"]] == ["node0", "node1"]
    assert len({node["container"]["network"] for node in request["nodes"]}) == 1


def test_an_unchanged_image_is_not_built_again_and_works_offline(benchmark: Benchmark) -> None:
    assert benchmark.run("image", "build", "torch").returncode == 0
    again = benchmark.run("image", "build", "torch", "--offline")
    assert again.returncode == 0 and "exists" in again.stdout and "building" not in again.stderr
    (tag,) = [line.split()[0] for line in again.stdout.splitlines()]
    listed = benchmark.run("image", "list", "--json")
    assert tag in [image["tag"] for image in json.loads(listed.stdout)]


def test_inside_takes_the_python_that_is_there(benchmark: Benchmark) -> None:
    """As in a vendor's container: its Python has the framework, and nothing is made."""
    done = benchmark.run("--case", "gpt2_small:torch", "--runtime", "inside", "--python", sys.executable)
    result = benchmark.result()
    assert done.returncode == 0, done.stderr
    assert (result["runtime"], result["alignment"]["verdict"]) == ("inside", "aligned")
    assert content(benchmark.only_run(), "plan.json")["environment"]["requirements"] == []
    assert "signs" in content(benchmark.only_run(), "provenance.json")["container"]
