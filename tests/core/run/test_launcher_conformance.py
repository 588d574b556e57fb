"""The suite for launchers on the example of docs/pbs and on Kubernetes, and with planted faults."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from levelfield.errors import UsageError
from levelfield.run.launchers import launcher_file
from levelfield.run.launchers.kubernetes import cluster_run
from levelfield.specs.site import LaunchPlan, Site
from levelfield.testing import LauncherConformance, launcher_conformance
from levelfield.testing.findings import NotOk
from levelfield.testing.launcher_conformance import LAUNCHER_CHECKS, LauncherSubject
from planted_pbs import example, planted, stand_ins
from simulated_cluster import Kubelet, SimulatedCluster, served


@pytest.fixture(scope="module", autouse=True)
def on_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("pbs") / "bin"
    stand_ins(folder)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    yield
    os.environ["PATH"] = before


class TestExampleOfThePage(LauncherConformance):
    launcher: ClassVar[str] = "pbs"

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def written(tmp_path_factory: pytest.TempPathFactory) -> None:
        TestExampleOfThePage.plugins = (planted(tmp_path_factory.mktemp("plugins"), example()),)


@pytest.mark.thorough  # test_kubernetes_launcher.py runs the same, with more faults
class TestKubernetes(LauncherConformance):
    launcher: ClassVar[str] = "kubernetes"

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("cluster")
        kubelets = iter(Kubelet(folder / f"pods{number}", "conformance") for number in range(9))
        api = SimulatedCluster(lambda cluster: next(kubelets).play(cluster))
        TestKubernetes.site = folder / "site.json"
        site = {"schema": "levelfield.site/1", "kubernetes": {"image": "example.org/image:1"}}
        TestKubernetes.site.write_text(json.dumps(site))
        with served(api, folder) as config, pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(config))
            patch.setattr(cluster_run, "SETTLE_SECONDS", 2.0)
            yield
        assert api.objects == {}


# What is changed in the page's launcher, and the check that must find it.
FAULTS = {
    "a node is lost": ("for node in request.nodes]", "for node in request.nodes[:1]]", "submitted"),
    "a rank is lost": ("replace(request, sub", "replace(request, nodes=request.nodes[:1], sub", "ranks"),
    "a node is sent twice": ("submissions=(sent,)", "submissions=(sent, sent)", "submitted"),
    "a file is written": ("names = ", "paths.root.mkdir(exist_ok=True); names = ", "pure"),
    "the clock is in it": ('"qsub", "-v"', 'f"qsub{time.time_ns()}", "-v"', "pure"),
    "a secret is sent": ('{"job.pbs": script', '{"env": str(secrets_of(plan)), "job.pbs": script', "secrets"),
    "each node meets itself": ("NodeRuntime(FIRST_NODE)", 'NodeRuntime("127.0.0.1")', "rendezvous"),
    "a name means each node": ("NodeRuntime(FIRST_NODE)", 'NodeRuntime("localhost")', "rendezvous"),
    "the secret stays here": ("**secret_values(request), ", "", "secret-arrives"),
    "a process is left": ('subprocess.run(["qdel", job], capture_output=True)', "return", "nothing-left"),
    "another cause is given": ("return own[0].cause if", 'return "node-lost" if', "failure"),
    "ends are missing": ("ends = tuple(end for record in records for end in record.ends)", "ends = ()", "failure"),
    "an interrupt is an engine's": ('cause, evidence = "interrupted"', 'cause, evidence = "engine"', "interrupted"),
}


# Faults that need whole runs; one such fault stays in every run of the tests.
LONGER = ("the secret stays here", "another cause is given", "ends are missing", "an interrupt is an engine's")


@pytest.mark.parametrize("fault", [pytest.param(f, marks=[pytest.mark.thorough] * (f in LONGER)) for f in FAULTS])
def test_the_suite_finds_planted_faults(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_conformance, "PATIENCE_SECONDS", 0.5)
    before, after, name = FAULTS[fault]
    text = example()
    assert text.count(before) == 1, before
    plugins = planted(tmp_path / "plugins", text.replace(before, after))
    launch = LaunchPlan(launcher="pbs", code=launcher_file("pbs", [plugins]), site=Site())
    (tmp_path / "runs").mkdir()
    subject = LauncherSubject(launch, tmp_path / "runs", (plugins,))
    try:
        with pytest.raises(NotOk):
            LAUNCHER_CHECKS[name](subject)
    finally:
        end_all()


def test_the_settings_of_a_site_reach_its_own_launcher(tmp_path: Path) -> None:
    plugins = planted(tmp_path / "plugins", example())
    site = Site(own={"queue": "gpu"})
    launch = LaunchPlan(launcher="pbs", code=launcher_file("pbs", [plugins]), site=site)
    subject = LauncherSubject(launch, tmp_path / "runs", (plugins,))
    lines = subject.request().submissions[0].files["job.pbs"].splitlines()
    assert ["#PBS", "-q", "gpu"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("launcher", "own", "words"),
    [
        ("pbs", {"que": "gpu"}, "site, own: found que, expected one of queue"),
        ("slurm", {"queue": "gpu"}, "site, own: found queue, expected none, as launcher slurm has none"),
    ],
)
def test_a_setting_that_the_launcher_does_not_read_is_refused(
    launcher: str, own: dict[str, str], words: str, tmp_path: Path
) -> None:
    plugins = planted(tmp_path / "plugins", example())
    site = Site(own=dict(own))
    launch = LaunchPlan(launcher=launcher, code=launcher_file(launcher, [plugins]), site=site)
    subject = LauncherSubject(launch, tmp_path / "runs", (plugins,))
    with pytest.raises(UsageError, match=words):
        subject.request()


def end_all() -> None:
    """End the stand-in's last job, if it still runs."""
    folder = Path(os.environ["PATH"].partition(":")[0])
    if (folder / "job").exists():
        os.system(f"{folder}/qdel 7.pbs 2>/dev/null")
