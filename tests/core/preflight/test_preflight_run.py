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
from levelfield.preflight.preflight_run import preflight_plan, run_preflight
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

    def run(nodes: Sequence[Values], **planted: Any) -> PreflightReport:
        devices, samples = planted.pop("devices", 1), planted.pop("samples", ())
        plan = plan_for(f"tiny:fake:F1:{planted.pop('planned', len(nodes))}:{devices}", may_lack_hardware=True)
        hardware = {"device_indices": tuple(sample.index for sample in samples), "memory_bytes_per_device": 2**34}
        plan = plan.model_copy(update={"hardware": plan.hardware.model_copy(update=hardware if samples else {})})
        launcher, vendor = PlantedLauncher(nodes, **planted), PlantedVendor(samples)
        return run_preflight(plan, vendor, tmp_path / "runs", ProcessRuntime(), launcher, lambda text: None)  # type: ignore[arg-type]

    return run


Of = Callable[..., PreflightReport]


def nodes(number: int) -> list[Values]:
    return [node_values(k) for k in range(number)]


def products(number: int, **planted: float) -> list[float]:
    """Rates that differ by a thousandth from node to node, with planted factors by node."""
    return [planted.get(f"node{k}", 1.0) * (1 + k / 1000) for k in range(number)]


def faults(report: PreflightReport) -> set[tuple[str, tuple[str, ...]]]:
    return {(finding.kind, finding.nodes) for finding in report.faults}


def with_values(number: int, node: int, check: str, **facts: object) -> list[Values]:
    """The values of nodes of which one has other facts of a check."""
    return [changed(values, check, **facts) if k == node else values for k, values in enumerate(nodes(number))]


def pairs(rates: dict[tuple[int, int], float]) -> list[tuple[list[int], int, float]]:
    """Messages of 1 MiB between two nodes, in seconds. rates: GB/s."""
    return [(list(both), 2**20, 2**20 / rate / 1e9) for both, rate in rates.items()]


SLOW_NODE_LINKS = {(0, 1): 10.0, (0, 2): 10.1, (0, 3): 4.0, (1, 2): 9.9, (1, 3): 4.1, (2, 3): 4.0}
SLOW_LINK = {(0, 1): 10.0, (0, 2): 10.1, (0, 3): 10.0, (1, 2): 3.0, (1, 3): 9.95, (2, 3): 10.05}


@pytest.mark.parametrize(
    ("values", "planted", "word", "sentences"),
    [
        (nodes(4), {}, "in line", []),
        (nodes(4), {"products": products(4, node2=0.6)}, "out of line", [
            "node2: matmul is 40% below the median of 4 nodes; at most 10% is in line",
        ]),
        (nodes(4), {"products": products(4, node3=1e3)}, "out of line", [
            "node3: matmul is 1e+03 times the median of 4 nodes; at most 1.11 times is in line; look for other "
            "hardware, or a wrong unit",
        ]),
        (nodes(2), {"products": products(2, node1=0.6)}, "out of line", [
            "node1 and node0: matmul differs by 40% (at most 10% is in line); two nodes do not show which one is at "
            "fault",
        ]),
        (nodes(4), {"products": products(4, node2=0.6, node3=0.6)}, "out of line", [
            "node2, node3: matmul is 40% below the other nodes; neither group is clearly the larger",
        ]),
        (nodes(4), {"pairs": pairs(SLOW_NODE_LINKS)}, "out of line", [
            "node3: messages in pairs is 59% below the median of 4 nodes; at most 10% is in line",
        ]),
        (nodes(4), {"pairs": pairs(SLOW_LINK)}, "out of line", [
            "node1 to node2: messages is 70% below the median of 6 nodes; at most 8% is in line",
        ]),
        (nodes(2), {"collective_factor": 1000.0}, "out of line", [
            "no collective reached 12.5 MB/s, which 100 Mbit/s Ethernet carries: the best is all_reduce of 1048576 "
            "bytes with 0.524 MB/s; look at `interface` and the links",
        ]),
        (nodes(2), {"collective_factor": 40.0}, "in line", []),
        (nodes(1), {"collective_factor": 1000.0}, "not compared", []),
        (nodes(4), {"products": [1.0, 1.0, 1.0, None]}, "incomplete", [
            "node3: no matmul rate: the rank did not record it",
        ]),
        (nodes(4), {"products": [1.0, 1.0, 1.0, 0.0]}, "incomplete", [
            "node3: no matmul rate: the probe gave no finite rate",
        ]),
        ([*nodes(3), {"node": 3, "reason": "timed out"}], {}, "incomplete", ["node3: no node check: timed out"]),
        (with_values(4, 1, "load", other_cores=3.2), {}, "in line", [
            "node1: other programs used 3.20 of 8 cores (limit: 0.8)",
        ]),
        (nodes(1), {"samples": [Sample(0, memory_used_bytes=2**33, utilisation=0.9)]}, "not compared", [
            "node0: others use device 0: 8.0 GiB of 16.0 GiB, load 90% before the preflight (limits: 10% of memory, "
            "10% load)",
        ]),
        (with_values(4, 1, "limits", open_files=256), {}, "in line", [
            "open_files differs: node1: 256; the others: 1024",
        ]),
        ([changed(values, "limits", locked_memory=65536) for values in nodes(2)], {}, "in line", [
            "node0: locked memory is limited to 64 KiB; RDMA needs it without a limit (memlock)",
            "node1: locked memory is limited to 64 KiB; RDMA needs it without a limit (memlock)",
        ]),
    ],
)  # fmt: skip
def test_findings_name_their_nodes_and_figures(
    of: Of, values: list[Values], planted: dict[str, Any], word: str, sentences: list[str]
) -> None:
    report = of(values, **planted)
    assert [finding.sentence for finding in report.findings] == sentences
    assert report.word == word


def test_nodes_that_agree_are_in_line(of: Of) -> None:
    report = of(nodes(4))
    assert (report.word, report.findings) == ("in line", ())
    assert len(report.collectives) == 4 and report.backend == "gloo"


@pytest.mark.parametrize("number", [4, 8])
def test_a_slow_node_is_named(of: Of, number: int) -> None:
    report = of(nodes(number), products=products(number, node2=0.6))
    assert faults(report) == {("slow", ("node2",))}
    assert report.faults[0].figure == "matmul"


def test_a_wrong_scale_is_out_of_line(of: Of) -> None:
    assert faults(of(nodes(4), products=products(4, node3=1e-9))) == {("slow", ("node3",))}
    assert faults(of(nodes(4), products=products(4, node3=1e3))) == {("fast", ("node3",))}


def test_of_two_nodes_both_are_named(of: Of) -> None:
    assert faults(of(nodes(2), products=products(2, node1=0.6))) == {("differ", ("node1", "node0"))}


def test_one_node_is_compared_with_nothing_and_its_devices_with_each_other(of: Of) -> None:
    assert of(nodes(1), devices=2).word == "not compared"
    assert of(nodes(1), devices=2, products_of_each=True).word == "in line"


def test_a_slow_device_is_named_with_its_node(of: Of) -> None:
    report = of(nodes(2), devices=2, products_of_each=True)
    assert report.word == "in line" and "matmul 0" in report.nodes[0].rates


def test_a_missing_check_is_never_in_line(of: Of) -> None:
    planted = nodes(4)
    reason = "the check failed: OSError: no such file"
    planted[1]["checks"]["limits"] = {"reason": reason}
    report = of(planted)
    assert report.word == "incomplete" and faults(report) == {("missing", ("node1",))}
    assert report.faults[0].figure == "limits" and report.faults[0].sentence.endswith(reason)
    planted[1]["checks"] = {}
    assert {finding.figure for finding in of(planted).faults} == {"load", "memory", "limits"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -3.0])
def test_a_rate_that_cannot_be_is_missing_and_not_compared(of: Of, value: float) -> None:
    report = of(nodes(4), products=[1.0, 1.0, 1.0, value])
    assert report.word == "incomplete" and faults(report) == {("missing", ("node3",))}
    assert report.faults[0].figure == "matmul"


def test_a_node_that_records_nothing_is_missing(of: Of) -> None:
    planted = nodes(4)
    planted[2] = {"node": 2, "reason": "the node's checks failed: timed out"}
    report = of(planted)
    assert report.word == "incomplete" and faults(report) == {("missing", ("node2",))}


def test_nodes_without_any_products_are_not_compared(of: Of) -> None:
    """As with a framework that has no program for them; of some nodes alone they are missing."""
    assert of(nodes(4), products=[None] * 4).word == "not compared"
    report = of(nodes(4), products=[1.0, 1.0, 1.0, None])
    assert report.word == "incomplete" and faults(report) == {("missing", ("node3",))}


def test_load_of_others_is_a_remark(of: Of) -> None:
    report = of(with_values(4, 1, "load", other_cores=3.2))
    assert report.word == "in line" and [finding.nodes for finding in report.other_use_findings] == [("node1",)]
    assert of(with_values(4, 1, "load", other_cores=0.7)).other_use_findings == ()


def test_a_foreign_process_on_a_device_is_a_remark(of: Of) -> None:
    used = Sample(0, memory_used_bytes=2**33, utilisation=0.9)
    report = of(nodes(1), samples=[used])
    assert [finding.figure for finding in report.other_use_findings] == ["device"]
    assert of(nodes(1), samples=[Sample(0, memory_used_bytes=2**20, utilisation=0.0)]).other_use_findings == ()


@pytest.mark.parametrize(
    ("check", "setting", "value"),
    [
        ("limits", "open_files", 256),
        ("limits", "locked_memory", 65536),
        ("memory", "transparent_huge_pages", "never"),
    ],
)
def test_settings_that_differ_are_remarks(of: Of, check: str, setting: str, value: object) -> None:
    report = of(with_values(4, 1, check, **{setting: value}))
    differing = [finding for finding in report.remarks if finding.figure == setting]
    assert report.word == "in line"
    assert differing[0].nodes == ("node1",) and f"node1: {value}" in differing[0].sentence


def test_one_limit_of_locked_memory_on_all_nodes_is_named_between_accelerators(of: Of) -> None:
    planted = [changed(values, "limits", locked_memory=65536) for values in nodes(2)]
    remarks = of(planted).remarks
    assert [finding.nodes for finding in remarks if finding.figure == "locked_memory"] == [("node0",), ("node1",)]
    assert of(planted[:1]).remarks == () and of(nodes(2)).remarks == ()


def test_a_node_with_slow_links_is_named_by_its_best_pair(of: Of) -> None:
    assert faults(of(nodes(4), pairs=pairs(SLOW_NODE_LINKS))) == {("slow", ("node3",))}


def test_a_slow_link_between_good_nodes_is_named_as_a_link(of: Of) -> None:
    [fault] = of(nodes(4), pairs=pairs(SLOW_LINK)).faults
    assert fault.kind == "slow" and fault.nodes[0].split() == ["node1", "to", "node2"]


def test_wrong_values_of_a_collective_are_a_failure(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(nodes(1), devices=2).word == "not compared"
    execute, fault = PlantedLauncher.execute, "element 0 of 8: found nan, expected 3"

    def spoiled(self: PlantedLauncher, request: Request, watch: Callable[[], None]) -> Outcome:
        outcome = execute(self, request, watch)
        path = Path(request.events_dir) / "rank1.jsonl"
        path.write_text(path.read_text().replace('"wrong": null', f'"wrong": "{fault}"'))
        return outcome

    monkeypatch.setattr(PlantedLauncher, "execute", spoiled)
    report = of(nodes(1), devices=2)
    assert report.word == "failed"
    for part in ("all_reduce", f"{2**20} bytes", "rank 1", fault):
        assert part in report.faults[0].sentence


def test_a_launch_that_fails_keeps_its_folder_and_says_why(of: Of, tmp_path: Path) -> None:
    evidence = "rank 0 ended with exit code 1"
    report = of(nodes(4), outcome=Outcome("rank-failed", (ProcessEnd(0, 1, None, False),), evidence))
    assert report.word == "failed" and evidence in str(report.evidence)
    [folder] = (tmp_path / "runs" / "preflights").iterdir()
    assert (folder / "preflight.json").is_file() and (folder / "request.json").is_file()


def test_a_preflight_that_ended_leaves_no_folder(of: Of, tmp_path: Path) -> None:
    of(nodes(4))
    assert list((tmp_path / "runs" / "preflights").iterdir()) == []


def test_the_launch_is_that_of_the_run_with_another_program(plan_for: PlanFor, tmp_path: Path) -> None:
    plan = plan_for("tiny:fake:F1:1:2", may_lack_hardware=True, environment={"A": "1"})
    launcher = PlantedLauncher(nodes(1))
    run_preflight(plan, PlantedVendor(), tmp_path, ProcessRuntime(), launcher, lambda text: None)  # type: ignore[arg-type]
    measured = launcher.requests[0].nodes[0].processes
    trained = LocalLauncher().request(plan, RunPaths(tmp_path / "run"), ProcessRuntime()).nodes[0].processes
    for one, other in zip(measured, trained, strict=True):
        different = {name for name in one.environment if one.environment[name] != other.environment.get(name)}
        in_folder = {"LEVELFIELD_JOB", "LEVELFIELD_IMPORTS_FILE"}
        assert different == in_folder and set(one.environment) == set(other.environment)
        assert one.argv[1:] == ("-m", "levelfield.worker.preflight", "--short") and one.argv[0] == other.argv[0]


def test_options_reach_the_program(plan_for: PlanFor) -> None:
    plan = plan_for("tiny:fake:F1:1:2", may_lack_hardware=True)
    plan = plan.model_copy(update={"preflight": PreflightPlan(short=False, pairs=True)})
    argv = preflight_plan(plan).implementation.argv
    assert argv[-1] == "--pairs" and "--short" not in argv


def test_nodes_run_their_checks_by_the_local_launcher(plan_for: PlanFor, tmp_path: Path) -> None:
    """Without a program for collectives the ranks still check their node, once, by real processes."""
    import sys

    plan = plan_for("tiny:fake:F1:1:2", may_lack_hardware=True, python=sys.executable)
    progress: list[str] = []
    report = run_preflight(plan, PlantedVendor(), tmp_path, ProcessRuntime(), LocalLauncher(), progress.append)  # type: ignore[arg-type]
    assert (report.evidence, report.word) == (None, "not compared")
    assert report.nodes[0].facts["limits"]["hostname"] and report.nodes[0].facts["load"]["cores"]
    assert "no program" in str(report.collectives_missing)
    assert [line for line in progress if line.startswith("preflight: ") and "checks" in line]


def test_an_environment_that_cannot_be_made_is_a_report(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from levelfield.errors import RunFailed

    class Broken(ProcessRuntime):
        def in_use(self, plan: Plan, say: Callable[[str], None]) -> Any:
            raise RunFailed("no index")

    monkeypatch.setattr(runner, "runtime_and_launcher", lambda plan: (Broken(), LocalLauncher()))
    plan = plan_for("tiny:fake:F1:1:2", may_lack_hardware=True)
    report = runner.preflight(plan, PlantedVendor(), tmp_path, lambda text: None)  # type: ignore[arg-type]
    assert (report.word, report.evidence) == ("failed", "no index")


@pytest.mark.parametrize(
    ("number", "planted", "sentence"),
    [
        (2, {}, "in line: 2 node(s); all_reduce up to 0.524 GB/s bus bandwidth"),
        (4, {}, "in line: 4 node(s); all_reduce up to 0.786 GB/s bus bandwidth"),
        (
            4,
            {"products": products(4, node1=0.5)},
            "out of line: 4 node(s); all_reduce up to 0.786 GB/s bus bandwidth; node1: matmul is 50% below the median "
            "of 4 nodes; at most 10% is in line",
        ),
    ],
)
def test_a_run_shows_its_preflight_in_one_sentence(of: Of, number: int, planted: dict[str, Any], sentence: str) -> None:
    assert of(nodes(number), **planted).sentence == sentence
    busy = [changed(values, "load", other_cores=3.2) for values in nodes(number)]
    assert of(busy, **planted).sentence == f"{sentence}; {number} remark(s)"


def test_a_failed_node_is_told_once_and_a_stopped_one_gives_no_reason(of: Callable[..., PreflightReport]) -> None:
    detail = "b: rank 1 ended with exit code 3"
    ends = (NodeEnd(0, "a", "stopped"), NodeEnd(1, "b", "failed", detail), NodeEnd(2, "c", "lost"))
    report = of([], planned=2, outcome=Outcome("rank-failed", (), detail, nodes=ends))
    assert (report.word, report.evidence) == ("failed", "; ".join(("rank-failed", detail, "c: lost")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_launcher_of_site_preflight(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    ended: list[str] = []

    def interrupted(*arguments: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            ended.append("job")
            raise

    monkeypatch.setattr(runner, "preflight", interrupted)
    monkeypatch.setenv("FAKE_DEVICES", "1")
    before = signal.signal(number, lambda *arguments: None)
    try:
        assert main(["site", "preflight", "--plugins", str(PLUGINS), "--case", "tiny:fake:F1:1:1"]) == 130
    finally:
        signal.signal(number, before)
    assert ended == ["job"]
    assert "interrupted" in capsys.readouterr().err
