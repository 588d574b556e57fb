"""A run directory as a record: every figure from its file, and no word of the machine or of its users."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from levelfield.errors import DocumentError
from levelfield.run.runner import finish
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord, StoredResult
from levelfield.specs.result import AttentionKernelFound
from levelfield.specs.suite import EntryUsed
from levelfield.store.record_lines import format_line, parse_line, table_row
from levelfield.store.run_record import UNKNOWN, record_of
from recorded_runs import STEP_NS, break_off, change_steps, edit, fail, seal_again

PROVENANCE: dict[str, Any] = {
    "time": "2026-01-02T04:04:05+01:00",
    "source": {"commit": "c" * 40, "changed_files": ["docs/a.md"]},
    "environment_packages": {"torch": "2.13.0", "numpy": "2.4.6"},
    "machine": {
        "name": "gpu17.lab.example",
        "os": "Debian 12",
        "kernel": "6.1",
        "processor": "a processor",
        "usable_cores": 8,
        "memory_bytes": 34_000_000_000,
        "network": ["eth0 10 Gb/s"],
    },
    "vendor_software": {"driver": "550.90", "libc": "glibc 2.36"},
    "image": {"tag": "levelfield-torch:1", "id": "sha256:image", "base_id": "sha256:base"},
    "engine": {"Version": "27.0"},
    "inherited": {
        "OMP_NUM_THREADS": "2",
        "LD_LIBRARY_PATH": "/home/annika/lib",
        "NCCL_TOKEN": "hush",
        "LEVELFIELD_RUNS": "/data/runs",
        "CUDA_HOME": "/usr/local/cuda",
    },
}


@pytest.fixture
def described(run: RunPaths) -> RunPaths:
    """The valid run with a provenance, and its result."""
    run.provenance.write_text(json.dumps(PROVENANCE))
    seal_again(run)
    finish(run)
    return run


def change_plan(run: RunPaths, **change: Any) -> None:
    content = json.loads(run.plan.read_text())
    run.plan.write_text(json.dumps({**content, **change}))


def test_figures_are_those_of_the_result(described: RunPaths) -> None:
    result = json.loads(described.result.read_text())
    record = record_of(described, "nightly", "2026-01-02")
    assert record.run_id == described.root.name == result["run_id"]
    assert (record.purpose, record.night, record.entry) == ("nightly", "2026-01-02", None)
    assert (record.word, record.failure, record.reason) == ("valid", None, None)
    assert record.verdict == result["alignment"]["verdict"]
    assert record.tokens_per_second_per_device == result["throughput"]["tokens_per_second_per_device"]
    assert record.memory_bytes == result["memory"]["device_used_peak"]["value"] == 3 * 2**30
    assert record.joules_per_token == result["energy"]["joules_per_token"]["value"] > 0
    headline = next(u for u in result["utilisation"] if u["formula"] == "megatron/1")
    assert record.mfu_megatron == headline["value"] and record.loss_tail == result["loss"]["tail_mean"]
    assert list(record.window) == result["window"]
    assert {**record.stored_result.content, "inherited": None} == {**result, "inherited": None}


def test_the_throughput_can_be_computed_again_from_the_steps(described: RunPaths) -> None:
    """Another formula finds in the record what it needs."""
    record = record_of(described)
    result = record.stored_result.content
    first, last = record.window
    assert len(record.step_seconds) == len(record.losses) == result["steps_done"]
    assert record.step_seconds[0] == STEP_NS / 1e9
    wall = math.fsum(record.step_seconds[first - 1 : last])
    assert wall == pytest.approx(result["throughput"]["wall_seconds"], rel=1e-12)
    assert record.losses[0] == result["loss"]["first"] and record.losses[-1] == result["loss"]["last"]


def test_the_slower_rank_gives_the_steps(described: RunPaths) -> None:
    change_steps(described, lambda event: event.update(end_ns=event["end_ns"] + 1000 * event["step"]), rank=1)
    finish(described)
    record = record_of(described)
    assert record.step_seconds[:2] == ((STEP_NS + 1000) / 1e9, (STEP_NS + 1000) / 1e9)
    wall = math.fsum(record.step_seconds[record.window[0] - 1 : record.window[1]])
    assert record.result.throughput and wall == pytest.approx(record.result.throughput.wall_seconds, rel=1e-12)


def test_what_surrounds_the_run_is_apart_from_what_is_tested(described: RunPaths) -> None:
    record = record_of(described)
    conditions = record.conditions
    assert conditions.software == {"driver": "550.90", "libc": "glibc 2.36"}
    assert (conditions.kernel, conditions.os, conditions.processor) == ("6.1", "Debian 12", "a processor")
    assert (conditions.cores, conditions.memory_gib, conditions.engine) == (8, 32, "docker 27.0")
    assert conditions.variables["OMP_NUM_THREADS"] == "2" and conditions.variables["CUDA_HOME"] == "/usr/local/cuda"
    assert conditions.variables["NCCL_TOKEN"] == "(masked)" and "LEVELFIELD_RUNS" not in conditions.variables
    tested = record.subject
    assert (tested.commit, tested.is_dirty, tested.image) == ("c" * 40, True, "sha256:image")
    assert tested.framework_version == "1.2.3" and "palm/1" in tested.formulas
    assert tested.packages and tested.packages.startswith("sha256:")


def test_the_series_has_no_word_of_node_build_or_conditions(described: RunPaths) -> None:
    before = record_of(described)
    other = {**PROVENANCE, "vendor_software": {"driver": "560"}, "environment_packages": {"torch": "3"}}
    other["machine"] = {**PROVENANCE["machine"], "name": "gpu18.lab.example", "kernel": "6.2"}
    described.provenance.write_text(json.dumps(other))
    after = record_of(described)
    assert after.series.fingerprint() == before.series.fingerprint()
    assert after.conditions.fingerprint() != before.conditions.fingerprint()
    assert after.subject.fingerprint() != before.subject.fingerprint()
    assert after.node != before.node and after.content != before.content


def node_of(described: RunPaths, devices: object, **machine: object) -> str:
    content: dict[str, Any] = {**PROVENANCE, "machine": {**PROVENANCE["machine"], **machine}, "devices": devices}
    described.provenance.write_text(json.dumps(content))
    return record_of(described).node


def test_a_graph_is_in_the_result_its_report_and_the_series(described: RunPaths) -> None:
    """In each it is left out of the digest where there is none, as before there was the field."""
    plain, plan = record_of(described), read_plan(described)
    described.plan.write_text(dump(plan.model_copy(update={"tuning": plan.tuning.model_copy(update={"graph": True})})))
    seal_again(described)
    result = finish(described)
    conditions = record_of(described)
    assert (plain.series.graph, plain.result.graph) == (False, False)
    assert (conditions.series.graph, conditions.result.graph, result.graph) == (True, True, True)
    assert "CUDA graph" in described.report.read_text()
    assert table_row(conditions)["graph"] is True and table_row(conditions)["series"] != table_row(plain)["series"]
    assert parse_line(format_line(conditions).encode(), "a line") == conditions
    earlier = json.loads(format_line(plain))
    del earlier["series"]["graph"], earlier["result"]["graph"]
    document = parse_line(json.dumps(earlier).encode(), "a line")
    assert isinstance(document, RunRecord) and document.series == plain.series


def test_a_machine_is_one_node_with_any_number_of_its_devices(described: RunPaths) -> None:
    def device(index: int, identity: str | None) -> dict[str, object]:
        return {"index": index, "identity": identity}

    installed = {"identity": "sha256:m", "identity_rests_on": ["machine-id", "host name"]}
    one, two = [device(0, "sha256:a")], [device(0, "sha256:a"), device(1, "sha256:b")]
    assert node_of(described, one, **installed) == node_of(described, two, **installed)
    assert node_of(described, [], **installed) == node_of(described, [device(0, None)], **installed)
    other = {**installed, "identity": "sha256:n"}
    assert node_of(described, one, **other) != node_of(described, one, **installed)
    assert "sha256:m" not in node_of(described, one, **installed)
    assert node_of(described, one) == node_of(described, two) != node_of(described, two, name="gpu18")
    assert node_of(described, "damaged", **installed) == node_of(described, one, **installed)


def test_a_container_without_an_identifier_is_known_by_its_devices(described: RunPaths) -> None:
    first, again = ({"identity": f"sha256:{name}", "identity_rests_on": ["host name"]} for name in "xy")
    devices = [{"index": 0, "identity": "sha256:a"}]
    assert node_of(described, devices, **first) == node_of(described, devices, **again)
    assert node_of(described, [{"index": 0, "identity": "sha256:b"}], **first) != node_of(described, devices, **first)
    for unknown in ([{"index": 0, "identity": None}], [], [*devices, {"index": 1, "identity": None}]):
        assert node_of(described, unknown, **first) != node_of(described, unknown, **again)


def test_no_path_host_or_user_is_in_a_record(described: RunPaths) -> None:
    """In reasons, evidence, variables, sources: whatever a run or its plan says."""
    fail(
        described,
        evidence="File '/home/annika/levelfield/models/fake/train.py' on gpu17: annika may not write /scratch/annika/x",
    )
    plan = json.loads(described.plan.read_text())
    plan["deviations"] = ["the Python /opt/company/secret/bin/python was given", "asked on gpu17.lab.example"]
    plan["implementation"]["folder"] = "/home/annika/levelfield/models/fake"
    described.plan.write_text(json.dumps(plan))
    finish(described)
    text = record_of(described).model_dump_json()
    for word in ("/home", "annika", "gpu17", "/opt", "/scratch", "company", "lab.example", "hush", "/data"):
        assert word not in text, word
    assert "(path)/train.py" in text and "(user) may" in text and "(host)" in text
    assert "/usr/local/cuda" in text  # which says nothing about anybody


def test_a_path_that_changes_still_changes_the_conditions(described: RunPaths) -> None:
    before = record_of(described).conditions
    other = {**PROVENANCE, "inherited": {**PROVENANCE["inherited"], "LD_LIBRARY_PATH": "/home/annika/newer"}}
    described.provenance.write_text(json.dumps(other))
    after = record_of(described).conditions
    assert before.variables["LD_LIBRARY_PATH"].startswith("(private, sha256 ")
    assert after.variables["LD_LIBRARY_PATH"] != before.variables["LD_LIBRARY_PATH"]


def test_a_host_with_the_name_of_a_framework_changes_no_figure(described: RunPaths) -> None:
    machine = {**PROVENANCE["machine"], "name": "fake"}
    described.provenance.write_text(json.dumps({**PROVENANCE, "machine": machine}))
    record = record_of(described)
    assert record.result.framework == "fake" and record.series.framework == "fake"


def test_the_time_is_utc_and_sorts(described: RunPaths) -> None:
    assert record_of(described).began == "2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize("time", ["yesterday", "2026-01-02T03:04:05", ""])
def test_a_time_that_is_none_is_named(described: RunPaths, time: str) -> None:
    described.provenance.write_text(json.dumps({**PROVENANCE, "time": time}))
    with pytest.raises(DocumentError, match=rf"{described.provenance}: .*'{time}'"):
        record_of(described)


def test_an_old_run_without_provenance_gives_what_it_has(run: RunPaths) -> None:
    finish(run)
    record = record_of(run)
    assert record.began == "2026-01-02T03:04:05+00:00"  # of its id
    assert record.node == UNKNOWN and record.subject.commit is None and record.conditions.kernel is None
    assert record.tokens_per_second_per_device and record.word == "valid"


def test_the_seal_says_what_the_evidence_is_worth(described: RunPaths) -> None:
    record = record_of(described)
    assert (record.evidence, record.evidence_reason) == ("sealed", None) and record.is_comparable
    outcome = json.loads(described.outcome.read_text())
    described.outcome.write_text(json.dumps({key: value for key, value in outcome.items() if key != "seal"}))
    finish(described)
    assert record_of(described).evidence == "unsealed" and not record_of(described).is_comparable


def test_a_result_of_before_a_change_is_not_taken_for_sealed(described: RunPaths) -> None:
    """result.json still says `sealed`; the files say otherwise."""
    with (described.events / "rank0.jsonl").open("a") as file:
        file.write("{}\n")
    record = record_of(described)
    assert record.evidence == "tampered" and (record.evidence_reason or "").endswith(": events/rank0.jsonl differs")


def test_a_run_without_any_time_is_refused(run: RunPaths) -> None:
    change_plan(run, run_id="mine")
    finish(run)
    with pytest.raises(DocumentError, match="found 'mine'"):
        record_of(run)


def test_a_result_of_another_run_is_refused(described: RunPaths) -> None:
    content = json.loads(described.result.read_text())
    described.result.write_text(json.dumps({**content, "run_id": "20250102T030405Z_other"}))
    with pytest.raises(DocumentError, match=f"found '20250102T030405Z_other', .*'{described.root.name}'"):
        record_of(described)


def test_a_failed_run_is_a_record_without_figures(described: RunPaths) -> None:
    break_off(described, last_step=3, error={"kind": "oom", "message": "CUDA out of memory"})
    fail(described)
    finish(described)
    record = record_of(described)
    assert record.word != "valid" and record.tokens_per_second_per_device is None and record.joules_per_token is None
    assert len(record.step_seconds) == len(record.losses) == 3 and not record.is_comparable


def test_steps_end_at_the_first_that_is_missing_and_a_nan_is_null(described: RunPaths) -> None:
    change_steps(described, lambda event: event.update(loss="nan") if event["step"] == 2 else None, rank=0)
    change_steps(described, lambda event: event.update(loss="nan") if event["step"] == 2 else None, rank=1)
    for rank in (0, 1):
        edit(described.events / f"rank{rank}.jsonl", lambda events: [e for e in events if e.get("step") != 5])
    finish(described)
    record = record_of(described)
    assert len(record.step_seconds) == 4 and record.losses[1] is None and record.losses[4] is None
    assert record.losses[0] is not None and record.word == "invalid"


def test_telemetry_is_summarised_over_the_window(described: RunPaths) -> None:
    record = record_of(described)
    assert record.telemetry["power_watts_mean"] == record.telemetry["power_watts_max"] == 100.0
    assert record.telemetry["memory_used_bytes_max"] == 3 * 2**30 and "temperature_celsius_mean" not in record.telemetry


def test_the_content_is_of_raw_files_alone(described: RunPaths) -> None:
    before = record_of(described).content
    (described.root / "report.md").write_text("changed")
    described.status.write_text("{}")
    assert record_of(described).content == before
    change_steps(described, lambda event: event.update(end_ns=event["end_ns"] + 1))
    assert record_of(described).content != before


def test_the_entry_names_suite_and_row(described: RunPaths) -> None:
    entry = EntryUsed(suite="nightly", name="row 1")
    change_plan(described, entry=entry.model_dump())
    finish(described)
    assert record_of(described).entry == "nightly/row 1"
    assert dump(record_of(described))  # it is a document


def test_a_record_has_the_figures_of_its_result_whatever_else_is_stated(described: RunPaths) -> None:
    record = record_of(described)
    stated = {name: getattr(record, name) for name in RunRecord.model_fields if name != "stored_result"}
    again = RunRecord(**{**stated, "mfu_megatron": 0.5, "mfu": 0.6, "loss_tail": None, "result": record.stored_result})
    assert again == record and record.mfu_megatron != 0.5 and record.loss_tail is not None


def test_a_host_may_have_the_name_of_a_word_of_the_result(described: RunPaths) -> None:
    """`flash` is a kernel of attention: with another word in its place the result could not be read."""
    for name in ("flash", "valid", "gpu17"):
        content = {**PROVENANCE, "machine": {**PROVENANCE["machine"], "name": f"{name}.lab.example"}}
        described.provenance.write_text(json.dumps(content))
        result = finish(described)
        kernel = AttentionKernelFound(name="flash")
        record = record_of(described, result=result.model_copy(update={"attention_kernel": kernel}))
        assert (record.result.attention_kernel, record.result.status.word) == (kernel, result.status.word)


def test_a_stored_result_that_is_none_is_named_when_it_is_read(described: RunPaths) -> None:
    record = record_of(described)
    damaged = StoredResult({**record.stored_result.content, "loss": 3})
    with pytest.raises(DocumentError, match=rf"{record.run_id}: .*'loss': .* 3"):
        _ = record.model_copy(update={"stored_result": damaged}).result
