"""Measured peaks: probed once per machine, kept, and unknown when the probe fails."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.measure.utilisation import core_tflops_limit
from levelfield.plan.peak import MeasuredPeaks, mfu_peak, remeasure_reason, set_measured_peak
from levelfield.run import measurement
from levelfield.run.launchers.slurm.slurm_launcher import SlurmLauncher, SlurmRuntime
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import PeakMeasurement, Plan, job_content
from levelfield.specs.site import Host, LaunchPlan, Site, SlurmSite
from levelfield.specs.vendor import Peak
from levelfield.user_folders import own_cache
from plans import PLUGINS
from planted_slurm import PlantedSlurm

Make = Callable[..., Plan]


@pytest.fixture
def plan(plan_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    return plan_for("tiny:fake:F1:1:2", python=sys.executable)


def measure(plan: Plan, machine: str = "here") -> MeasuredPeaks:
    return measurement.measure_peaks(plan, machine, ProcessRuntime(), lambda text: None)


def test_a_probe_is_remembered_for_this_machine_only(plan: Plan) -> None:
    assert measurement.load_peaks(plan, "here") == MeasuredPeaks()
    sentences: list[str] = []
    peaks = measurement.measure_peaks(plan, "here", ProcessRuntime(), sentences.append)
    (sentence,) = sentences
    assert "fp32" in sentence and "fake" in sentence and "this machine" in sentence
    assert peaks.tflops == {"fp32": 2.0} and "fake 1.2.3" in peaks.source
    assert measurement.load_peaks(plan, "here") == peaks
    assert measurement.load_peaks(plan, "there") == MeasuredPeaks() and asked(plan) == []


def test_a_divided_host_has_its_peak_divided(plan_for: Make, plan: Plan) -> None:
    shares = plan.hardware.model_copy(update={"device_indices": (), "devices_per_node": 4})
    assert measure(plan.model_copy(update={"hardware": shares})).tflops == {"fp32": 0.5}


def test_a_probe_of_another_dtype_keeps_what_was_known(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(plan)
    monkeypatch.setenv("FAKE_PEAK", '{"bf16": {"tflops": 5.0}}')
    measure(plan)
    assert measurement.load_peaks(plan, "here").tflops == {"fp32": 2.0, "bf16": 5.0}


def test_a_peak_that_a_run_has_exceeded_is_forgotten(plan: Plan) -> None:
    measure(plan)
    measurement.delete_peaks(plan, "here")
    measurement.delete_peaks(plan, "here")
    assert measurement.load_peaks(plan, "here") == MeasuredPeaks()


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        ("broken", "the probe failed: CalledProcessError"),
        ("[1]", "the probe failed: AttributeError"),
        ("", "the probe failed: JSONDecodeError"),
        ('{"bf16": {"tflops": 5.0}}', "the probe gave no fp32 rate"),
        ("not json", "the probe failed: JSONDecodeError"),
        ('{"fp32": {}}', "the probe failed: KeyError"),
        ('{"fp32": {"tflops": "fast"}}', "the probe failed: ValueError"),
        ('{"fp32": 3}', "the probe failed: TypeError"),
        *(
            (f'{{"fp32": {{"tflops": {value}}}}}', "the probe gave no fp32 rate")
            for value in ("NaN", "Infinity", "0", "-1")
        ),
    ],
)
def test_a_probe_that_fails_leaves_the_peak_unknown_and_says_why(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, answer: str, how: str
) -> None:
    monkeypatch.setenv("FAKE_PEAK", answer)
    peaks = measure(plan)
    assert peaks == MeasuredPeaks(source=how)
    assert "fp32" not in measurement.load_peaks(plan, "here").tflops


@pytest.mark.parametrize(
    "content",
    [
        *("{", '{"fp32": {"tflops": null}}'),
        *(pytest.param(text, marks=pytest.mark.thorough) for text in ("", "[1]", '{"fp32": 3}')),
        *(
            pytest.param(
                json.dumps({"fp32": {"tflops": 2.0, "measurement": measurement}}),
                marks=[] if measurement == {} else [pytest.mark.thorough],
            )
            for measurement in ("x", {}, {"at": "yesterday"}, {"at": "2026-11-22T12:00:00"})
        ),
        '{"fp32": {"tflops": 2.0, "measurement": {"at": "2026-11-22T12:00:00+00:00", "more": 1}}}',
    ],
)
def test_a_damaged_cache_is_none(plan: Plan, content: str) -> None:
    measure(plan)
    (cached,) = (own_cache() / "peaks").iterdir()
    cached.write_text(content)
    assert measurement.load_peaks(plan, "here") == MeasuredPeaks()
    measure(plan)


def test_a_framework_without_a_probe_says_so(plan: Plan) -> None:
    without = plan.implementation.model_copy(update={"peak_probe": ()})
    peaks = measure(plan.model_copy(update={"implementation": without}))
    assert peaks == MeasuredPeaks(source=peaks.source) and "no probe" in peaks.source


def test_a_cache_that_cannot_be_written_is_no_fault(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert measure(plan).tflops == {"fp32": 2.0}


# -- a probe that lies low


@pytest.fixture
def on_host(plan: Plan) -> Plan:
    """The plan on shares of the host's processors, which numpy multiplies on too."""
    return plan.model_copy(update={"hardware": plan.hardware.model_copy(update={"device_kind": "cpu"})})


@pytest.mark.parametrize("rate", [1e-6, 1e-3])
def test_a_rate_far_below_numpys_own_is_refused_by_name_and_not_kept(
    on_host: Plan, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    monkeypatch.setattr(measurement, "measure_numpy_tflops", lambda: 0.1)
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": {rate}}}}}')
    peaks = measure(on_host)
    says = f"the probe of fake 1.2.3 is refused: it gave {rate:.3g} TFLOP/s in fp32, expected at least 0.025"
    assert peaks.tflops == {} and peaks.refusals[0].startswith(says)
    used = set_measured_peak(on_host, peaks)
    assert used.peak.tflops is None and peaks.refusals[0] in used.peak.source and used.notices == peaks.refusals
    assert measurement.load_peaks(on_host, "here").tflops == {}


def test_a_rate_near_numpys_is_a_peak_and_a_refused_one_leaves_a_kept_one(
    on_host: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "measure_numpy_tflops", lambda: 0.1)
    monkeypatch.setenv("FAKE_PEAK", '{"fp32": {"tflops": 0.03}}')
    assert measure(on_host).tflops == {"fp32": 0.015}  # two devices share the host
    monkeypatch.setenv("FAKE_PEAK", '{"fp32": {"tflops": 0.02}}')
    again = measure(on_host)
    assert again.tflops == {"fp32": 0.015} and "is refused" in again.refusals[0]


@pytest.mark.parametrize(("rate", "is_doubtful"), [(0.049, True), (0.051, False), (0.4, False)])
def test_a_rate_below_half_of_numpys_says_that_it_may_be_too_low(
    on_host: Plan, monkeypatch: pytest.MonkeyPatch, rate: float, is_doubtful: bool
) -> None:
    monkeypatch.setattr(measurement, "measure_numpy_tflops", lambda: 0.1)
    monkeypatch.setattr(measurement, "_host_load_counters", lambda plan: None)
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": {rate}, "repeats": 9}}}}')
    measure(on_host)
    source = set_measured_peak(on_host, measurement.load_peaks(on_host, "here")).peak.source  # of the next run
    assert ("the probe gave 49% of numpy's product, expected at least 50%; it may be too low" in source) is is_doubtful
    assert ("too low" in source) is is_doubtful


def test_numpys_rate_is_that_of_a_processor() -> None:
    assert 1e-4 < measurement.measure_numpy_tflops() < 1e3  # in another unit it would not be


def test_an_accelerators_probe_is_not_held_to_the_hosts(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "measure_numpy_tflops", lambda: 1e6)
    assert measure(plan).tflops == {"fp32": 2.0}
    nodes = plan.model_copy(
        update={"runtime": "docker", "hardware": plan.hardware.model_copy(update={"device_kind": "cpu"})}
    )
    monkeypatch.setattr(measurement, "processor_flags", lambda: None)
    monkeypatch.setattr(measurement, "usable_cores", lambda: 4)
    assert measure(nodes).tflops == {"fp32": 1.0}


# -- a probe that lies high


def stored(plan: Plan, content: dict[str, Any]) -> None:
    path = measurement._peak_file(plan, "here")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(("flags", "most"), [({"avx512f", "avx", "fma"}, 0.832), ({"avx"}, 0.416), (None, 1.664)])
def test_a_rate_that_two_cores_cannot_have_is_refused_by_name_and_not_kept(
    on_host: Plan, monkeypatch: pytest.MonkeyPatch, flags: set[str] | None, most: float
) -> None:
    monkeypatch.setattr(measurement, "measure_numpy_tflops", lambda: 1e-3)
    monkeypatch.setattr(measurement, "usable_cores", lambda: 2)
    monkeypatch.setattr(measurement, "processor_flags", lambda: flags)
    monkeypatch.setenv("FAKE_PEAK", '{"fp32": {"tflops": 500}}')
    stored(on_host, {"fp32": {"tflops": 400}})  # a version before took any
    assert measurement.load_peaks(on_host, "here").tflops == {}
    peaks = measurement.load_or_measure_peaks(on_host, "here", ProcessRuntime(), lambda text: None)
    says = f"the probe of fake 1.2.3 is refused: it gave 500 TFLOP/s in fp32, expected at most {most:.3g}: 2 core(s)"
    assert peaks.tflops == {} and peaks.refusals[0].startswith(says)
    used = set_measured_peak(on_host, peaks)
    assert used.peak.tflops is None and says in used.peak.source and used.notices == peaks.refusals
    assert used.peak.limit_tflops == pytest.approx(most / 2)  # two devices share the host
    assert json.loads(measurement._peak_file(on_host, "here").read_text()) == {}
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": {0.9 * most}}}}}')
    assert measure(on_host).tflops == {"fp32": pytest.approx(0.45 * most)}


def test_what_a_core_cannot_exceed_follows_its_instruction_sets() -> None:
    assert (
        core_tflops_limit("bf16", {"avx512f", "avx512_bf16", "amx_bf16"})
        > 10
        > 1
        > core_tflops_limit("bf16", {"avx512_bf16"})
    )
    assert (
        core_tflops_limit("bf16", {"avx512f"})
        == core_tflops_limit("fp32", {"avx512f", "amx_bf16"})
        == core_tflops_limit("fp16", {"avx512f"})
    )
    for precision in ("fp32", "bf16", "fp16", "fp8"):
        every = {"avx", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"}
        assert (
            0
            < core_tflops_limit(precision, set())
            < core_tflops_limit(precision, every)
            <= core_tflops_limit(precision, None)
        )


@pytest.mark.parametrize(
    ("peaks", "rate", "most"),
    [
        ({"fp32": 100.0}, 126.0, "125"),
        ({"bf16": 100.0}, 126.0, "125"),
        ({"bf16": 100.0, "fp8": 200.0}, 251.0, "250"),
        ({"bf16": 100.0}, 124.0, None),
        ({"fp64": 10.0}, 1e6, None),  # wider numbers bound nothing
    ],
)
def test_a_rate_above_what_the_maker_publishes_is_refused(
    plan: Plan, peaks: dict[str, float], rate: float, most: str | None
) -> None:
    published = {dtype: Peak(tflops=tflops, source="a datasheet") for dtype, tflops in peaks.items()}
    chip = plan.hardware.chip.model_copy(update={"peaks": published})
    plan = plan.model_copy(update={"hardware": plan.hardware.model_copy(update={"chip": chip})})
    used = set_measured_peak(plan, MeasuredPeaks({"fp32": rate}))
    assert used.peak.measured_tflops == (None if most else rate)
    assert bool(used.notices) == bool(most) and all(f" most {most} by" in notice for notice in used.notices)


@pytest.mark.parametrize(("rate", "holds"), [(9.9, False), (10.1, True), (100.0, True)])
def test_a_rate_far_below_the_published_peak_is_refused_by_name(plan: Plan, rate: float, holds: bool) -> None:
    chip = plan.hardware.chip.model_copy(update={"peaks": {"fp32": Peak(tflops=100, source="a datasheet")}})
    plan = plan.model_copy(update={"hardware": plan.hardware.model_copy(update={"chip": chip})})
    used = set_measured_peak(plan, MeasuredPeaks({"fp32": rate}))
    assert (used.peak.tflops, used.peak.source) == (100, "a datasheet")
    assert used.peak.measured_tflops == (rate if holds else None)
    assert (used.notices == ()) is holds
    facts = ("fake 1.2.3", "9.9 TFLOP/s", "least 10,", "10% of", "F1")
    assert all(fact in " ".join(used.notices) for fact in facts) is not holds
    assert set_measured_peak(used, MeasuredPeaks({"fp32": rate})).notices == used.notices


# -- a kept peak is measured again when it may be wrong


NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def measured(age: timedelta = timedelta(hours=1), now: datetime = NOW, **beside: Any) -> PeakMeasurement:
    quiet = {"spread": 0.05, "other_cores": 0.1, "cores": 2}
    return PeakMeasurement(at=(now - age).isoformat(), **{**quiet, **beside})


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (measured(), None),
        (measured(timedelta(days=29, hours=23)), None),
        (measured(timedelta(days=31)), "is kept for 30 days"),
        (measured(timedelta(minutes=-1)), "is kept for 30 days"),  # the clock was set back
        (None, "not known when"),
        (measured(other_cores=0.2), None),
        (measured(other_cores=0.21), "other programs used 0.21 of 2 cores"),
        (measured(other_cores=1.6), "other programs used 1.60 of 2 cores"),
        (measured(timedelta(minutes=9), other_cores=1.6), None),
        (measured(other_cores=None), None),  # in a container
        (measured(spread=None), None),
        (measured(spread=0.26), "median was 26% below its best"),
        (measured(repeats=3), None),
        (measured(repeats=2), "timed its best product 2 time(s), expected at least 3"),
        (measured(timedelta(minutes=1), repeats=1), "timed its best product 1 time(s)"),
        (measured(spread=0.0), "timed its best product 1 time(s)"),  # of an earlier version
    ],
)
def test_a_kept_peak_is_doubted_by_age_load_and_spread(made: PeakMeasurement | None, reason: str | None) -> None:
    doubt = remeasure_reason(made, NOW)
    assert (doubt is None) == (reason is None) and (reason or "") in (doubt or "")


def keep(plan: Plan, tflops: float, made: PeakMeasurement | None) -> None:
    """Store a peak as if an earlier probe had measured it."""
    measure(plan)
    (cached,) = (own_cache() / "peaks").iterdir()
    content = {"tflops": tflops, **({"measurement": made.model_dump()} if made else {})}
    cached.write_text(json.dumps({"fp32": content}))


def asked(plan: Plan) -> list[str]:
    """What is said when a run asks for its peak."""
    sentences: list[str] = []
    measurement.load_or_measure_peaks(plan, "here", ProcessRuntime(), sentences.append)
    return sentences


def now(**beside: Any) -> PeakMeasurement:
    return measured(now=datetime.now(timezone.utc), **beside)


def test_a_peak_measured_under_load_is_measured_again_and_the_higher_one_stays(plan: Plan) -> None:
    keep(plan, 0.4, now(other_cores=1.5))
    (sentence,) = asked(plan)
    assert "again" in sentence and "1.50 of" in sentence and "2 cores" in sentence
    assert measurement.load_peaks(plan, "here").tflops == {"fp32": 2.0}
    keep(plan, 2.5, now(other_cores=1.5))
    assert asked(plan) != [] and measurement.load_peaks(plan, "here").tflops == {"fp32": 2.5}


@pytest.mark.parametrize("made", [None, now(age=timedelta(days=31))])
def test_an_old_peak_is_replaced_though_it_was_higher(plan: Plan, made: PeakMeasurement | None) -> None:
    keep(plan, 2.5, made)
    assert len(asked(plan)) == 1 and measurement.load_peaks(plan, "here").tflops == {"fp32": 2.0}


def test_no_peak_is_measured_for_a_run_whose_tensors_are_read(plan: Plan) -> None:
    captures = plan.model_copy(update={"capture_step": 3})
    assert asked(captures) == [] and len(asked(captures.model_copy(update={"probe_peak": True}))) == 1


def test_a_probe_that_fails_leaves_the_doubtful_peak(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(plan, 0.4, now(other_cores=1.5))
    monkeypatch.setenv("FAKE_PEAK", "broken")
    assert measurement.load_or_measure_peaks(plan, "here", ProcessRuntime(), lambda text: None).tflops == {"fp32": 0.4}


def test_a_peak_has_its_time_and_conditions_in_the_result(plan: Plan) -> None:
    used = mfu_peak(plan.hardware.chip, plan.work.model_copy(), measure(plan))
    assert used.measurement is not None and datetime.fromisoformat(used.measurement.at) <= datetime.now(timezone.utc)
    assert f" at {used.measurement.at}: " in used.source
    low = MeasuredPeaks({"fp32": 1.0}, "a probe", {"fp32": now(other_cores=1.5)})
    source = mfu_peak(plan.hardware.chip, plan.work, low).source
    assert "5% below" in source and source.endswith("too low")


@pytest.mark.parametrize(("repeats", "is_low"), [(1, True), (2, True), (3, False), ("null", False), (0, False)])
def test_a_peak_of_few_products_says_so_and_the_next_run_measures_again(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, repeats: object, is_low: bool
) -> None:
    monkeypatch.setattr(measurement, "_host_load_counters", lambda plan: None)  # as of a launcher's nodes
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": 2.0, "median": 1.9, "repeats": {repeats}}}}}')
    source = set_measured_peak(plan, measure(plan)).peak.source
    assert source.endswith("too low") is is_low and (f"product {repeats} time(s)" in source) is is_low
    assert bool(asked(plan)) is is_low


@pytest.mark.parametrize(
    "answer", ['{"fp32": {"tflops": 2.0, "median": 1.5}}', '{"fp32": {"tflops": 2.0, "median": 3.0}}', "{}"]
)
def test_the_spread_is_the_medians_distance(plan: Plan, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("FAKE_PEAK", answer)
    spreads = [m.spread for m in measure(plan).measurements.values()]
    assert spreads == ([0.25] if "1.5" in answer else [None] if "3.0" in answer else [])


@pytest.mark.parametrize(
    ("ratio", "products", "words"),
    [
        ("1.31", "onednn", "float32 products by oneDNN (oneDNN has 1.31 times MKL's rate)"),
        ("0.94", "onednn", "float32 products by oneDNN (oneDNN has 0.94 times MKL's rate)"),
        ("0.85", "mkl", "float32 products by MKL (oneDNN has 0.85 times MKL's rate)"),
        *((wrong, None, None) for wrong in ("NaN", '"fast"')),
        *(pytest.param(wrong, None, None, marks=pytest.mark.thorough) for wrong in ("0", "-1", "Infinity", "null")),
    ],
)
def test_the_faster_library_of_products_reaches_the_job(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, ratio: str, products: str | None, words: str | None
) -> None:
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": 2.0, "median": 1.9, "onednn_over_mkl": {ratio}}}}}')
    measure(plan)
    host = plan.model_copy(update={"hardware": plan.hardware.model_copy(update={"device_kind": "cpu"})})
    used = set_measured_peak(host, measurement.load_peaks(plan, "here"))
    assert job_content(used, RunPaths(Path("/"))).get("products") == products
    assert ("float32 products" in used.peak.source) is (words is not None) and (words or "") in used.peak.source


def test_a_chip_has_no_choice_of_products(plan: Plan) -> None:
    faster = {"fp32": now(onednn_over_mkl=1.3)}
    used = set_measured_peak(plan, MeasuredPeaks({"fp32": 1.0}, "a probe", faster))
    assert used.peak.measurement and "products" not in job_content(used, RunPaths(Path("/")))


def test_the_dry_run_shows_age_and_doubt(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = MeasuredPeaks({"fp32": 0.4}, "a probe", {"fp32": now(age=timedelta(days=3), other_cores=1.5)})
    monkeypatch.setattr(measurement, "load_peaks", lambda plan, machine: stored)
    assert main(["--case", "tiny:fake:F1:1:2", "--scale", "smoke", "--dry-run", "--plugins", str(PLUGINS)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 days" in printed and "1.50 of" in printed and "2 cores" in printed


# -- on machines that a launcher reaches


def launched(plan: Plan, *hosts: str) -> Plan:
    """The plan as a host's shares on two nodes with two devices each."""
    hardware = {"device_kind": "cpu", "device_indices": (), "nodes": 2, "devices_per_node": 2}
    launch = LaunchPlan(launcher="any", site=Site(), hosts=tuple(Host(name=host) for host in hosts))
    changed = plan.hardware.model_copy(update=hardware)
    return plan.model_copy(update={"hardware": changed, "launch": launch})


def test_a_peak_of_nodes_is_that_of_the_first_host_and_divided_among_its_devices(plan: Plan) -> None:
    sentences: list[str] = []
    peaks = measurement.load_or_measure_peaks(launched(plan, "a", "b"), "here", ProcessRuntime(), sentences.append)
    assert peaks.tflops == {"fp32": 1.0} and peaks.measurements["fp32"].other_cores is None
    (sentence,) = sentences
    assert "fp32" in sentence and " a (3" in sentence
    assert measurement.load_peaks(launched(plan, "a", "c"), "elsewhere").tflops == {"fp32": 1.0}
    assert measurement.load_peaks(launched(plan, "b", "a"), "here") == MeasuredPeaks()


def slurm_runtime(plan: Plan) -> SlurmRuntime:
    runtime = SlurmLauncher().runtime(plan)
    assert isinstance(runtime, SlurmRuntime)
    return runtime


def test_slurm_measures_a_peak_by_a_job_of_its_own(plan: Plan, planted: PlantedSlurm) -> None:
    """It asks for the nodes of the run, once; another partition, or another share of a node, is measured anew."""
    sentences: list[str] = []
    answers = ("4\n", '{"fp32": {"tflops": 3.0}}\n')
    planted.says("srun", *answers, *answers, *answers)

    def peak(**slurm: Any) -> MeasuredPeaks:
        launch = LaunchPlan(launcher="slurm", site=Site(slurm=SlurmSite(**slurm)))
        on_slurm = launched(plan).model_copy(update={"launch": launch})
        return measurement.load_or_measure_peaks(on_slurm, "here", slurm_runtime(on_slurm), sentences.append)

    assert [peak(partition="gpu").tflops for _ in range(2)] == [{"fp32": 1.5}] * 2
    (sentence,) = sentences
    assert "fp32" in sentence and "Slurm node" in sentence
    count, probe = planted.calls("srun")
    assert {"--nodes=1", "--partition=gpu", "--cpus-per-task=2"} <= {*count} & {*probe} and "--threads 4" in " ".join(
        probe
    )
    assert peak(partition="cpu").tflops == peak(partition="gpu", exclusive=True).tflops == {"fp32": 1.5}
    assert len(planted.calls("srun")) == 6


def test_a_slurm_without_a_free_node_gives_no_peak(plan: Plan, planted: PlantedSlurm) -> None:
    planted.says("srun", (1, "srun: error: Unable to allocate resources"))
    on_slurm = launched(plan).model_copy(update={"launch": LaunchPlan(launcher="slurm", site=Site())})
    peaks = measurement.load_or_measure_peaks(on_slurm, "here", slurm_runtime(on_slurm), lambda text: None)
    assert peaks.tflops == {} and "CalledProcessError" in peaks.source


@pytest.mark.parametrize("taken_after", [0, 2])
def test_an_interrupted_probe_leaves_no_job(
    plan: Plan, planted: PlantedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_after: int
) -> None:
    """srun is killed while it waits for a node. Slurm may take its job a moment later."""
    planted.replace("srun", f'touch {tmp_path}/srun; echo "$1" > {tmp_path}/option; exec sleep 60')
    queue = 'case "$*" in *--name=*) echo "12|${name#--job-name=}";; *) echo "12|PENDING|Resources|";; esac'
    count = f'echo >> {tmp_path}/count; [ "$(wc -l < {tmp_path}/count)" -gt {taken_after} ] || exit 0'
    planted.replace("squeue", f"{count}; read name < {tmp_path}/option; {queue}")
    sentences: list[str] = []
    on_slurm = launched(plan).model_copy(update={"launch": LaunchPlan(launcher="slurm", site=Site())})
    main_thread = threading.main_thread().ident

    def press() -> None:
        while not (tmp_path / "option").exists():
            time.sleep(0.02)
        signal.pthread_kill(int(main_thread or 0), signal.SIGINT)

    threading.Thread(target=press).start()
    with slurm_runtime(on_slurm).in_use(on_slurm, sentences.append) as runtime, pytest.raises(KeyboardInterrupt):
        measurement.load_or_measure_peaks(on_slurm, "here", runtime, sentences.append)
    assert planted.calls("scancel") == [["12"]]
    assert sentences[-1].startswith("Slurm job 12, ") and sentences[-1].endswith("was cancelled")


def test_no_peak_is_measured_where_the_nodes_are_not_known(plan: Plan) -> None:
    peaks = measurement.load_or_measure_peaks(launched(plan), "here", ProcessRuntime(), lambda text: None)
    assert peaks.tflops == {} and "launcher any" in peaks.source
