"""Preflights of planted nodes: who is named, which word it gets, what is kept, and what refuses a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.contracts.execution import NodeEnd, Outcome, ProcessEnd, Request
from levelfield.contracts.vendor import Device, Sample
from levelfield.preflight import preflight_run
from levelfield.preflight.preflight_run import plan_of, preflight_in
from levelfield.run import runner
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, PreflightPlan
from levelfield.specs.preflight_report import PreflightReport
from plans import PLUGINS
from preflights import changed, node_values, write_preflight

PlanFor = Callable[..., Plan]
Values = dict[str, Any]


class PlantedLauncher(LocalLauncher):
    """Writes what planted nodes would have recorded, and starts nothing."""

    def __init__(self, nodes: Sequence[Values], outcome: Outcome | None = None, **written: Any) -> None:
        self._nodes, self._outcome, self._written = nodes, outcome or Outcome("exited"), written
        self.requests: list[Request] = []

    def execute(self, request: Request, watch: Callable[[], None]) -> Outcome:
        self.requests.append(request)
        root = Path(request.events_dir).parent
        ranks = int(request.nodes[0].processes[0].environment["WORLD_SIZE"])
        watch()
        if self._nodes:
            write_preflight(RunPaths(root), self._nodes, ranks, **self._written)
        watch()
        return self._outcome


class PlantedVendor:
    """A vendor whose tool shows these samples."""

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self._samples = samples

    def devices(self) -> Sequence[Device]:
        return [Device(sample.index, "F1", "planted", 2**34) for sample in self._samples]

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        return self._samples


@pytest.fixture(autouse=True)
def planted_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_run, "devices_of", lambda vendor: vendor.devices())


@pytest.fixture
def of(plan_for: PlanFor, tmp_path: Path) -> Callable[..., PreflightReport]:
    """of(nodes, ...): the report of a preflight of these planted nodes."""

    def run(nodes: Sequence[Values], **given: Any) -> PreflightReport:
        devices, samples = given.pop("devices", 1), given.pop("samples", ())
        plan = plan_for(f"tiny:fake:F1:{given.pop('planned', len(nodes))}:{devices}", assume=True)
        held = {"device_indices": tuple(each.index for each in samples), "memory_bytes_per_device": 2**34}
        plan = plan.model_copy(update={"hardware": plan.hardware.model_copy(update=held if samples else {})})
        launcher, vendor = PlantedLauncher(nodes, **given), PlantedVendor(samples)
        return preflight_in(plan, vendor, tmp_path / "runs", ProcessRuntime(), launcher, lambda text: None)  # type: ignore[arg-type]

    return run


Of = Callable[..., PreflightReport]


def nodes(number: int) -> list[Values]:
    return [node_values(k) for k in range(number)]


def products(number: int, **planted: float) -> list[float]:
    """Rates that differ by a thousandth from node to node, with planted factors by node."""
    return [planted.get(f"node{k}", 1.0) * (1 + k / 1000) for k in range(number)]


def named(report: PreflightReport) -> set[tuple[str, tuple[str, ...]]]:
    return {(finding.kind, finding.nodes) for finding in report.faults}


def test_nodes_that_agree_are_in_line(of: Of) -> None:
    report = of(nodes(4))
    assert (report.word, report.findings) == ("in line", ())
    assert len(report.collectives) == 4 and report.backend == "gloo"


@pytest.mark.parametrize("number", [4, 8])
def test_a_slow_node_is_named(of: Of, number: int) -> None:
    report = of(nodes(number), products=products(number, node2=0.6))
    assert report.word == "out of line" and named(report) == {("slow", ("node2",))}
    assert report.faults[0].figure == "matmul"
    assert "node2: matmul is 40% below the median of" in report.faults[0].sentence


def test_a_wrong_scale_is_out_of_line(of: Of) -> None:
    assert named(of(nodes(4), products=products(4, node3=1e-9))) == {("slow", ("node3",))}
    assert named(of(nodes(4), products=products(4, node3=1e3))) == {("fast", ("node3",))}


def test_of_two_nodes_both_are_named(of: Of) -> None:
    report = of(nodes(2), products=products(2, node1=0.6))
    assert named(report) == {("differ", ("node1", "node0"))}
    assert "two nodes do not show which one is at fault" in report.faults[0].sentence


def test_one_node_is_compared_with_nothing_and_its_devices_with_each_other(of: Of) -> None:
    assert of(nodes(1), devices=2).word == "not compared"
    assert of(nodes(1), devices=2, products_of_each=True).word == "in line"


def test_a_slow_device_is_named_with_its_node(of: Of) -> None:
    report = of(nodes(2), devices=2, products_of_each=True)
    assert report.word == "in line" and "matmul 0" in report.nodes[0].rates


def test_a_missing_check_is_never_in_line(of: Of) -> None:
    planted = nodes(4)
    planted[1]["checks"]["limits"] = {"reason": "the check failed: OSError: no such file"}
    report = of(planted)
    assert report.word == "incomplete" and named(report) == {("missing", ("node1",))}
    assert report.faults[0].sentence == "node1: no limits check: the check failed: OSError: no such file"
    planted[1]["checks"] = {}
    assert {finding.figure for finding in of(planted).faults} == {"load", "memory", "limits"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -3.0])
def test_a_rate_that_cannot_be_is_missing_and_not_compared(of: Of, value: float) -> None:
    report = of(nodes(4), products=[1.0, 1.0, 1.0, value])
    assert report.word == "incomplete" and named(report) == {("missing", ("node3",))}
    assert report.faults[0].figure == "matmul"


def test_a_node_that_records_nothing_is_missing(of: Of) -> None:
    planted = nodes(4)
    planted[2] = {"node": 2, "reason": "the node's checks failed: timed out"}
    report = of(planted)
    assert report.word == "incomplete" and named(report) == {("missing", ("node2",))}


def test_nodes_without_any_products_are_not_compared(of: Of) -> None:
    """As with a framework that has no program for them; of some nodes alone they are missing."""
    assert of(nodes(4), products=[None] * 4).word == "not compared"
    report = of(nodes(4), products=[1.0, 1.0, 1.0, None])
    assert report.word == "incomplete" and named(report) == {("missing", ("node3",))}


def test_load_of_others_is_a_remark(of: Of) -> None:
    planted = nodes(4)
    planted[1] = changed(planted[1], "load", other_cores=3.2)
    report = of(planted)
    assert report.word == "in line" and [finding.nodes for finding in report.others] == [("node1",)]
    planted[1] = changed(planted[1], "load", other_cores=0.7)
    assert of(planted).others == ()


def test_a_foreign_process_on_a_device_is_a_remark(of: Of) -> None:
    used = Sample(0, memory_used_bytes=2**33, utilisation=0.9)
    report = of(nodes(1), samples=[used])
    assert [finding.figure for finding in report.others] == ["device"]
    assert "others use device 0: 8.0 GiB" in report.others[0].sentence
    assert of(nodes(1), samples=[Sample(0, memory_used_bytes=2**20, utilisation=0.0)]).others == ()


@pytest.mark.parametrize(
    ("check", "facts", "says"),
    [
        ("limits", {"open_files": 256}, "open_files differs: node1: 256; the others: 1024"),
        ("limits", {"locked_memory": 65536}, "locked_memory differs: node1: 65536; the others: unlimited"),
        ("memory", {"transparent_huge_pages": "never"}, "transparent_huge_pages differs"),
    ],
)
def test_settings_that_differ_are_remarks(of: Of, check: str, facts: dict[str, object], says: str) -> None:
    planted = nodes(4)
    planted[1] = changed(planted[1], check, **facts)
    report = of(planted)
    assert report.word == "in line" and any(says in finding.sentence for finding in report.remarks)


def test_one_limit_of_locked_memory_on_all_nodes_is_named_between_accelerators(of: Of) -> None:
    planted = [changed(each, "limits", locked_memory=65536) for each in nodes(2)]
    said = [finding.sentence for finding in of(planted).remarks]
    assert [each.partition(":")[0] for each in said if "limited to 64 KiB; RDMA" in each] == ["node0", "node1"]
    assert of(planted[:1]).remarks == () and of(nodes(2)).remarks == ()


def test_a_node_with_slow_links_is_named_by_its_best_pair(of: Of) -> None:
    rates = {(0, 1): 10.0, (0, 2): 10.1, (0, 3): 4.0, (1, 2): 9.9, (1, 3): 4.1, (2, 3): 4.0}
    pairs = [(list(both), 2**20, 2**20 / rate / 1e9) for both, rate in rates.items()]
    report = of(nodes(4), pairs=pairs)
    assert named(report) == {("slow", ("node3",))} and report.faults[0].figure == "messages in pairs"


def test_a_slow_link_between_good_nodes_is_named_as_a_link(of: Of) -> None:
    rates = {(0, 1): 10.0, (0, 2): 10.1, (0, 3): 10.0, (1, 2): 3.0, (1, 3): 9.95, (2, 3): 10.05}
    pairs = [(list(both), 2**20, 2**20 / rate / 1e9) for both, rate in rates.items()]
    assert named(of(nodes(4), pairs=pairs)) == {("slow", ("node1 to node2",))}


def test_wrong_values_of_a_collective_are_a_failure(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [{**node_values(0)}]
    report = of(wrong, devices=2)
    assert report.word == "not compared"
    launcher = PlantedLauncher.execute

    def spoiled(self: PlantedLauncher, request: Request, watch: Callable[[], None]) -> Outcome:
        outcome = launcher(self, request, watch)
        path = Path(request.events_dir) / "rank1.jsonl"
        path.write_text(path.read_text().replace('"wrong": null', '"wrong": "element 0 of 8: found nan, expected 3"'))
        return outcome

    monkeypatch.setattr(PlantedLauncher, "execute", spoiled)
    report = of(wrong, devices=2)
    assert report.word == "failed" and "found nan, expected 3" in report.faults[0].sentence


def test_a_launch_that_fails_keeps_its_folder_and_says_why(of: Of, tmp_path: Path) -> None:
    ends = (ProcessEnd(0, 1, None, False),)
    report = of(nodes(4), outcome=Outcome("rank-failed", ends, "rank 0 ended with exit code 1"))
    assert report.word == "failed" and "rank 0 ended with exit code 1" in str(report.evidence)
    [folder] = (tmp_path / "runs" / "preflights").iterdir()
    assert (folder / "preflight.json").is_file() and (folder / "request.json").is_file()


def test_a_preflight_that_ended_leaves_no_folder(of: Of, tmp_path: Path) -> None:
    of(nodes(4))
    assert list((tmp_path / "runs" / "preflights").iterdir()) == []


def test_the_launch_is_that_of_the_run_with_another_program(plan_for: PlanFor, tmp_path: Path) -> None:
    plan = plan_for("tiny:fake:F1:1:2", assume=True, environment={"A": "1"})
    launcher = PlantedLauncher(nodes(1))
    preflight_in(plan, PlantedVendor(), tmp_path, ProcessRuntime(), launcher, lambda text: None)  # type: ignore[arg-type]
    measured = launcher.requests[0].nodes[0].processes
    trained = LocalLauncher().request(plan, RunPaths(tmp_path / "run"), ProcessRuntime()).nodes[0].processes
    for one, other in zip(measured, trained, strict=True):
        different = {name for name in one.environment if one.environment[name] != other.environment.get(name)}
        own = {"LEVELFIELD_JOB", "LEVELFIELD_IMPORTS_FILE"}  # both in the run's folder
        assert different == own and set(one.environment) == set(other.environment)
        assert one.argv[1:] == ("-m", "levelfield.worker.preflight", "--short") and one.argv[0] == other.argv[0]


def test_options_reach_the_program(plan_for: PlanFor) -> None:
    plan = plan_for("tiny:fake:F1:1:2", assume=True)
    asked = plan.model_copy(update={"preflight": PreflightPlan(short=False, pairs=True)})
    assert plan_of(asked).implementation.argv[-1] == "--pairs" and "--short" not in plan_of(asked).implementation.argv


def test_nodes_run_their_checks_by_the_local_launcher(plan_for: PlanFor, tmp_path: Path) -> None:
    """Without a program for collectives the ranks still check their node, once, by real processes."""
    import sys

    plan = plan_for("tiny:fake:F1:1:2", assume=True, python=sys.executable)
    said: list[str] = []
    report = preflight_in(plan, PlantedVendor(), tmp_path, ProcessRuntime(), LocalLauncher(), said.append)  # type: ignore[arg-type]
    assert (report.evidence, report.word) == (None, "not compared")
    assert report.nodes[0].facts["limits"]["hostname"] and report.nodes[0].facts["load"]["cores"]
    assert report.collectives_missing == "fake has no program for them"
    assert "preflight: the node's checks are done" in said


def test_an_environment_that_cannot_be_made_is_a_report(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from levelfield.errors import RunFailed

    class Broken(ProcessRuntime):
        def in_use(self, plan: Plan, say: Callable[[str], None]) -> Any:
            raise RunFailed("no index was reached")

    monkeypatch.setattr(runner, "means", lambda plan: (Broken(), LocalLauncher()))
    report = runner.preflight(plan_for("tiny:fake:F1:1:2", assume=True), PlantedVendor(), tmp_path, lambda text: None)  # type: ignore[arg-type]
    assert (report.word, report.evidence) == ("failed", "no index was reached")


def test_the_sentence_of_a_run(of: Of, tmp_path: Path) -> None:
    assert of(nodes(4)).sentence == "in line: 4 node(s); all_reduce up to 0.786 GB/s bus bandwidth"
    busy = [changed(each, "load", other_cores=3.2) for each in nodes(4)]
    slow = of(busy, products=products(4, node1=0.5)).sentence
    assert slow.startswith("out of line: 4 node(s)") and slow.endswith("; at most 10% is in line; 4 remark(s)")
    assert of(nodes(2)).sentence == "in line: 2 node(s); all_reduce up to 0.524 GB/s bus bandwidth"


def test_a_failed_node_is_told_once_and_a_stopped_one_gives_no_reason(of: Callable[..., PreflightReport]) -> None:
    why = "b: rank 1 ended with exit code 3"
    nodes = (NodeEnd(0, "a", "stopped"), NodeEnd(1, "b", "failed", why), NodeEnd(2, "c", "lost"))
    report = of([], planned=2, outcome=Outcome("rank-failed", (), why, nodes=nodes))
    assert (report.word, report.evidence) == ("failed", f"rank-failed; {why}; c: lost")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_launcher_of_site_preflight(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    ended: list[str] = []

    def interrupted(*given: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            ended.append("the job was cancelled")
            raise

    monkeypatch.setattr(runner, "preflight", interrupted)
    monkeypatch.setenv("FAKE_DEVICES", "1")
    before = signal.signal(number, lambda *given: None)
    try:
        assert main(["site", "preflight", "--plugins", str(PLUGINS), "--case", "tiny:fake:F1:1:1"]) == 130
    finally:
        signal.signal(number, before)
    assert ended == ["the job was cancelled"] and "nothing is kept" in capsys.readouterr().err
