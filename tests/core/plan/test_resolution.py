"""The plan: scale with its reason, who chose each free field, peaks, environments, and what cannot be planned."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.lookup import find_selection
from levelfield.catalog.machine import usable_cores
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import CorpusError, DocumentError, DoesNotFit, LayoutError, NotHere, UsageError
from levelfield.plan import resolution
from levelfield.plan.peak import MeasuredPeaks
from levelfield.plan.resolution import code_digest, folder_digest, shared_folders
from levelfield.run.runtimes.process_runtime import ProcessRuntime, inherited_variables
from levelfield.specs.base import dump, load
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import ChoicesPlan, PeakMeasurement, Plan, job_content
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import TuningChoice
from levelfield.worker.job import Job, parse
from levelfield.worker.synthetic import synthetic_entropy
from plans import PLUGINS, ROOT, make_plan

Make = Callable[..., Plan]


def test_a_folder_of_plugins_that_is_named_from_here_is_absolute_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's engine takes no other one, and ranks have a working directory of their own."""
    monkeypatch.chdir(PLUGINS.parent)
    plan = make_plan(Registry([Path(PLUGINS.name)]), "tiny:fake:fake:1:1")
    assert plan.implementation.folder == str(PLUGINS / "models" / "fake")


@pytest.fixture(autouse=True)
def two_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")


# -- scale


def test_a_framework_without_its_program_is_told_by_the_plan(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PLUGINS, tmp_path / "plugins")) / "models/fake"
    (folder / "train.py").unlink()
    with pytest.raises(DocumentError) as caught:
        make_plan(Registry([tmp_path / "plugins"]), "tiny:fake:F1:1:1", scale="smoke", may_lack_hardware=True)
    for part in (f"{folder}/implementation.yaml", "'launch.argv'", "'{folder}/train.py'", f"file {folder}/train.py"):
        assert part in str(caught.value)


def test_without_an_accelerator_auto_is_smoke_and_says_so(plan_for: Make) -> None:
    plan = plan_for("tiny:torch:cpu")
    assert plan.scale == "smoke"
    assert plan.work.training.steps == 12


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        ("tiny:torch:cpu", {}, "there is no accelerator here"),
        ("tiny:torch:cpu", {"scale": "full"}, "asked for with --scale full"),
        ("tiny:fake:F1", {"scale": "smoke"}, "asked for with --scale smoke"),
        ("tiny:fake:F1", {}, "the estimate says that it fits"),
    ],
)
def test_the_plan_says_who_set_the_scale(plan_for: Make, text: str, fields: dict[str, str], reason: str) -> None:
    assert plan_for(text, **fields).scale_reason == reason


def test_a_case_that_is_too_large_gives_its_numbers(plan_for: Make) -> None:
    plan = plan_for("gpt3_6.7B:fake:F1:1:2")
    assert plan.scale == "smoke"
    for part in ("6,658,596,864 parameters", "2 devices", "as DP2TP1PP1", "8.0 GiB"):
        assert part in plan.scale_reason


def test_auto_is_full_where_it_fits(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:F1")
    assert plan.scale == "full"
    assert plan.expected_memory.available_bytes == 8 * 2**30
    assert plan.expected_memory.total_bytes <= 8 * 2**30


def test_full_that_does_not_fit_is_refused_with_the_numbers(plan_for: Make) -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_for("gpt3_6.7B:fake:F1:1:2", scale="full")
    assert caught.value.exit_code == 2
    assert "6,658,596,864 parameters" in str(caught.value) and "8.0 GiB" in str(caught.value)
    assert plan_for("gpt3_6.7B:fake:F1:1:2", scale="full", may_lack_hardware=True).scale == "full"


def test_full_that_fits_on_the_cpu_may_be_asked_for(plan_for: Make) -> None:
    assert plan_for("tiny:torch:cpu", scale="full").scale == "full"


def test_smoke_may_be_asked_for_where_full_fits(plan_for: Make) -> None:
    assert plan_for("tiny:fake:F1", scale="smoke").scale == "smoke"


def test_scales_are_different_work(plan_for: Make) -> None:
    smoke, full = plan_for("tiny:fake:F1", scale="smoke"), plan_for("tiny:fake:F1", scale="full")
    assert smoke.case_digest == full.case_digest and smoke.work_digest != full.work_digest


# -- who chose


@pytest.mark.parametrize(
    ("text", "fields", "micro_batch", "origin"),
    [
        ("tiny:torch:cpu", {}, 4, "case tiny"),
        ("tiny:fake:F1:1:1", {}, 1, "vendor fake: any number of devices"),
        ("tiny:fake:F1:1:2", {}, 2, "vendor fake: two dies"),
        ("tiny:fake:F1", {}, 2, "vendor fake: two dies"),
        ("tiny:fake:F2", {"may_lack_hardware": True}, 8, "vendor fake: another chip"),
        ("tiny:fake:F1:1:2", {"micro_batch": 1}, 1, "command line"),
    ],
)
def test_the_last_to_choose_wins_and_is_named(
    plan_for: Make, text: str, fields: dict[str, object], micro_batch: int, origin: str
) -> None:
    plan = plan_for(text, scale="smoke", **fields)
    assert (plan.tuning.micro_batch, plan.origins["micro_batch"]) == (micro_batch, origin)


def test_fields_keep_different_origins(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:DP2:1:2", scale="smoke", compile=True)
    origins = {name: plan.origins[name].partition(":")[0] for name in ("micro_batch", "recompute", "layout", "compile")}
    assert origins == {
        "micro_batch": "vendor fake",
        "recompute": "case tiny",
        "layout": "case string",
        "compile": "command line",
    }


def test_the_command_line_wins_over_the_layout_of_the_case_string(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:DP2F1:1:2", layout="TP2", scale="smoke")
    assert (plan.tuning.layout, plan.origins["layout"]) == (Layout(tensor=2), "command line")


def test_without_a_layout_all_devices_are_data_parallel(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:F1", scale="smoke")
    assert plan.tuning.layout == Layout(data=2) and plan.world_size == 2
    assert plan.origins["layout"].startswith("default: ")


def test_a_layout_says_how_many_devices_there_are(plan_for: Make) -> None:
    plan = plan_for("tiny:torch:cpu", layout="DP2TP2PP2", scale="smoke")
    assert (plan.hardware.nodes, plan.hardware.devices_per_node, plan.accumulation) == (
        1,
        8,
        2,
    )  # torch's pipeline has two stages to feed


def test_threads_share_the_usable_cores_of_a_divided_host(plan_for: Make) -> None:
    plan = plan_for("tiny:torch:cpu:1:2", scale="smoke")
    assert plan.tuning.threads == max(1, usable_cores() // 2)
    assert plan.origins["threads"].startswith(f"default: {usable_cores()} ")
    assert plan_for("tiny:torch:cpu:1:2", scale="smoke", threads=7).tuning.threads == 7


def test_variables_of_several_sources_are_merged(registry: Registry) -> None:
    tuning = {"smoke": TuningChoice(environment={"A": "0", "B": "2"})}
    case = registry.case("tiny").model_copy(update={"tuning": tuning})
    registry.__dict__["case"] = lambda name: case
    plan = make_plan(registry, "tiny:fake:F1:1:1", scale="smoke", environment={"A": "1"})
    assert plan.tuning.environment == {"A": "1", "B": "2"}


def test_tuning_that_sets_a_locked_field_is_refused_by_its_name(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "vendors/fake"
    (folder / "tuning").mkdir(parents=True)
    row = {"set": {"global_batch": 1}, "why": "faster"}
    file = folder / "tuning/tiny.yaml"
    file.write_text(yaml.safe_dump({"schema": "levelfield.tuning/1", "case": "tiny", "rows": [row]}))
    registry.__dict__["vendors"] = {**registry.vendors, "fake": folder / "vendor.yaml"}
    for name in ("vendor.yaml", "adapter.py"):
        (folder / name).write_text((Path(__file__).parents[1] / "plugins/vendors/fake" / name).read_text())
    with pytest.raises(DocumentError) as caught:
        find_selection(registry, parse_selector("tiny:fake:F1"))
    for part in (str(file), "'rows.0.set'", "'global_batch' is locked"):
        assert part in str(caught.value)


# -- what cannot be


def test_only_an_implementation_that_declares_it_interleaves(plan_for: Make, tmp_path: Path) -> None:
    fields = {"scale": "smoke", "layout": "PP2", "virtual_pipeline": 2, "micro_batch": 1}
    with pytest.raises(UsageError, match=r"^paddle.*interleaved.*cpu"):
        plan_for("gpt3_6.7B:paddle:cpu:1:2", **fields)
    for framework in ("megatron", "torch"):
        plan = plan_for(f"gpt3_6.7B:{framework}:cpu:1:2", **fields)
        assert plan.origins["virtual_pipeline"] == "command line"
        assert job_content(plan, RunPaths(tmp_path))["tuning"]["virtual_pipeline"] == 2


def test_recomputation_of_some_layers_is_given_to_the_training(plan_for: Make, tmp_path: Path) -> None:
    fields = {"scale": "smoke", "recompute": "full", "recompute_layers": 1}
    plan = plan_for("gpt3_6.7B:torch:cpu:1:1", **fields)
    assert plan.origins["recompute_layers"] == plan.origins["recompute"] == "command line"
    tuning = job_content(plan, RunPaths(tmp_path))["tuning"]
    assert (tuning["recompute"], tuning["recompute_layers"]) == ("full", 1)
    with pytest.raises(UsageError, match=r"^paddle.*some.layers.*written"):
        plan_for("gpt3_6.7B:paddle:cpu:1:1", **fields)


def test_a_graph_is_told_to_the_training_only_where_it_is_chosen(plan_for: Make, tmp_path: Path) -> None:
    """Without it the job is that of earlier versions, which bundles have."""
    plan = plan_for("gpt3_6.7B:torch:H100:1:1", scale="smoke", may_lack_hardware=True, graph=True)
    assert plan.origins["graph"] == "command line"
    assert job_content(plan, RunPaths(tmp_path))["tuning"]["graph"] is True
    plain = plan_for("gpt3_6.7B:torch:H100:1:1", scale="smoke", may_lack_hardware=True)
    assert "graph" not in plain.origins and plain.tuning.graph is False
    assert "graph" not in job_content(plain, RunPaths(tmp_path))["tuning"]


def test_more_layers_than_a_chunk_has_are_refused_at_full_scale_only(plan_for: Make) -> None:
    fields = {"recompute": "full", "layout": "DP4PP2", "micro_batch": 1, "may_lack_hardware": True}
    text = "gpt3_6.7B:torch:H100:1:8"
    with pytest.raises(LayoutError, match=r"17:.*DP4TP1PP2.*16.*32.layers"):
        plan_for(text, scale="full", recompute_layers=17, **fields)
    assert plan_for(text, scale="full", recompute_layers=16, **fields).tuning.recompute_layers == 16
    assert plan_for(text, scale="smoke", recompute_layers=17, **fields).tuning.recomputation == "full 17"


def test_a_later_choice_of_recomputation_is_of_all_layers(tmp_path: Path) -> None:
    """The number of layers belongs to the choice that has it."""
    folder = tmp_path / "configs" / "cases"
    folder.mkdir(parents=True)
    content = yaml.safe_load((ROOT / "configs/cases/gpt3_6.7B.yaml").read_text())
    content["name"] = "some"
    content["tuning"]["smoke"] = {**content["tuning"].get("smoke", {}), "recompute": "full", "recompute_layers": 2}
    (folder / "some.yaml").write_text(yaml.safe_dump(content))
    registry = Registry([tmp_path])
    plan = make_plan(registry, "some:torch:cpu:1:1", scale="smoke")
    assert plan.tuning.recomputation == "full 2" and plan.origins["recompute_layers"] == "case some"
    plan = make_plan(registry, "some:torch:cpu:1:1", scale="smoke", recompute="full")
    assert plan.tuning.recomputation == "full" and "recompute_layers" not in plan.origins
    plan = make_plan(registry, "some:torch:cpu:1:1", scale="smoke", recompute="none")
    assert plan.tuning.recomputation == "none"


@pytest.mark.parametrize("recompute", ["none", "selective", None])
def test_a_number_of_layers_needs_full_beside_it(recompute: str | None) -> None:
    beside = recompute or r"\(not given\)"
    with pytest.raises(ValueError, match=f"recompute_layers:.*3.*{beside},.*full"):
        TuningChoice.model_validate({"recompute": recompute, "recompute_layers": 3})


@pytest.mark.parametrize(
    ("text", "layout", "fault"),
    [
        ("gpt3_6.7B:paddle:cpu:1:2", "CP2", r"paddle does not offer: context \(several ranks share each sequence"),
        ("gpt3_6.7B:deepspeed:cpu:1:2", "CP2SH1", "deepspeed does not offer: context"),
    ],
)
def test_context_parallelism_is_refused_by_name(plan_for: Make, text: str, layout: str, fault: str) -> None:
    """Also with the command that predicts it. Where no training offers it, nothing starts."""
    with pytest.raises(UsageError, match=fault) as caught:
        plan_for(text, scale="smoke", layout=layout, micro_batch=1)
    assert "`plan --layout`" in str(caught.value)


def test_a_framework_that_offers_context_parallelism_is_given_it(plan_for: Make, tmp_path: Path) -> None:
    plan = plan_for("gpt3_6.7B:torch:cpu:1:2", scale="smoke", layout="CP2", micro_batch=1)
    assert job_content(plan, RunPaths(tmp_path))["layout"]["context"] == 2


@pytest.mark.parametrize(
    ("text", "fields", "error", "fault"),
    [
        ("tiny:fake:F1:1:2", {"layout": "DP3"}, LayoutError, "3 is not 2"),
        ("tiny:fake:F1:1:2", {"layout": "PP2", "micro_batch": 3}, LayoutError, "8 is not a multiple of 3"),
        ("tiny:fake:F1:1:4", {}, UsageError, "found 2 x F1 (vendor fake), expected 4"),
        ("tiny:fake:F2:1:1", {}, UsageError, "found 0 x F2 (vendor fake), expected 1"),
        (
            "tiny:fake:F1:2:1",
            {},
            UsageError,
            "found one node, expected 2: the local launcher reaches only this machine",
        ),
        ("tiny:fake:F1", {"recompute": "selective"}, UsageError, "fake does not offer: recomputation selective"),
        ("tiny:fake:DP0", {}, LayoutError, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    plan_for: Make, text: str, fields: dict[str, object], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error) as caught:
        plan_for(text, scale="smoke", **fields)
    assert fault in str(caught.value)


def test_a_precision_that_the_framework_lacks_is_refused(plan_for: Make, registry: Registry) -> None:
    case = registry.case("tiny")
    eight = case.model_copy(update={"training": case.training.model_copy(update={"precision": "fp8"})})
    registry.__dict__["case"] = lambda name: eight
    with pytest.raises(UsageError, match=r"^paddle.*precision.fp8.*cpu"):
        plan_for("tiny:paddle:cpu", scale="full")


def test_hardware_that_is_not_here_may_be_looked_at(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:F1:2:4", scale="smoke", may_lack_hardware=True)
    assert plan.hardware.assumed and plan.world_size == 8 and plan.tuning.layout == Layout(data=8)
    assert not plan_for("tiny:fake:F1:1:2", scale="smoke", may_lack_hardware=True).hardware.assumed


# -- peaks


def test_a_published_peak_is_taken_with_its_source(plan_for: Make, registry: Registry) -> None:
    case = registry.case("tiny")
    registry.__dict__["case"] = lambda name: case.model_copy(
        update={"training": case.training.model_copy(update={"precision": "bf16"})}
    )
    peak = plan_for("tiny:fake:F1", measured=MeasuredPeaks({"bf16": 90.0, "fp32": 1.0}, "probe")).peak
    assert (peak.dtype, peak.tflops, peak.measured_tflops) == ("bf16", 100.0, 90.0)
    assert peak.source == find_chip(registry, "F1")[1].peaks["bf16"].source


def test_the_peak_of_another_dtype_is_never_taken(plan_for: Make) -> None:
    peak = plan_for("tiny:fake:F1").peak  # fp32; F1 publishes bf16 and fp16
    assert (peak.dtype, peak.tflops) == ("fp32", None)
    for part in ("F1", "no published", "fp32"):
        assert part in peak.source
    assert plan_for("tiny:fake:F1", measured=MeasuredPeaks({"bf16": 90.0}, "probe")).peak.tflops is None


def test_a_measured_peak_says_that_it_is_measured(plan_for: Make) -> None:
    peak = plan_for("tiny:torch:cpu", measured=MeasuredPeaks({"fp32": 0.2}, "by probe")).peak
    assert (peak.tflops, peak.measured_tflops) == (0.2, 0.2)
    assert peak.source.startswith("measured: ") and peak.source.endswith("by probe")


# -- corpora


def facts(**changes: object) -> CorpusFacts:
    plain = {"kind": "megatron", "prefix": "/corpus", "tokens": 1000, "documents": 3, "dtype": "uint16"}
    return CorpusFacts.model_validate({**plain, "digest": "sha256:00", "max_token": 63, **changes})


def test_a_corpus_is_in_the_plan_by_its_digest(plan_for: Make) -> None:
    corpus = plan_for("tiny:torch:cpu", corpus=facts()).corpus
    assert (corpus.kind, corpus.prefix, corpus.digest, corpus.entropy_nats) == (
        "megatron",
        "/corpus",
        "sha256:00",
        None,
    )


def test_without_one_the_synthetic_corpus_has_a_known_entropy(plan_for: Make) -> None:
    corpus = plan_for("tiny:torch:cpu").corpus
    assert corpus.kind == "synthetic" and corpus.entropy_nats == synthetic_entropy(4)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"max_token": 64}, "/corpus: token 64 is outside the vocabulary of 64 tokens at scale smoke"),
        ({"tokens": 8}, "/corpus: found 8 tokens, expected at least 9: one sample"),
    ],
)
def test_a_corpus_that_does_not_fit_the_case_is_refused(plan_for: Make, changes: dict[str, object], fault: str) -> None:
    with pytest.raises(CorpusError) as caught:
        plan_for("tiny:torch:cpu", corpus=facts(**changes))
    assert fault in str(caught.value)


# -- framework and environment


def test_another_framework_version_is_refused(plan_for: Make) -> None:
    with pytest.raises(UsageError, match=r"version 2\.5\.1,.expected.*1\.2\.3"):
        plan_for("tiny:fake_2.5.1:F1")
    assert plan_for("tiny:fake_1.2.3:F1").deviations == ()


def test_an_environment_is_known_by_its_requirements(plan_for: Make) -> None:
    plain, flash = plan_for("tiny:fake:F1"), plan_for("tiny:fake:F1", attention="flash_attn")
    assert plain.environment.name == "fake-fake" and plain.environment.requirements == ("numpy==2.4.6",)
    assert flash.environment.requirements == ("numpy==2.4.6", "flash-attn==1.0")
    assert plain.environment.digest != flash.environment.digest


def test_a_given_interpreter_is_taken_as_it_is(plan_for: Make) -> None:
    environment = plan_for("tiny:fake:F1", python=sys.executable).environment
    assert (environment.folder, environment.python, environment.requirements) == ("", sys.executable, ())


def test_an_interpreter_that_is_not_there_is_refused(plan_for: Make) -> None:
    with pytest.raises(UsageError, match="--python /no/such/python:"):
        plan_for("tiny:fake:F1", python="/no/such/python")


def test_an_implementation_is_known_by_all_its_sources(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    first = folder_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/train.cpython-311.pyc").write_text("x")
    assert folder_digest(tmp_path) == first
    (tmp_path / "train.py").write_text("2")
    assert folder_digest(tmp_path) != first


def names_in(folder: Path) -> set[str]:
    """What can be imported from a folder: its modules, and its folders of modules."""
    return {path.stem for path in (*folder.glob("*.py"), *(file.parent for file in folder.glob("*/*.py")))}


@pytest.mark.parametrize("name", sorted(Registry().frameworks))
def test_code_that_is_imported_from_beside_counts(name: str) -> None:
    """What a folder imports and does not have is found in one beside it, and the digest covers that one."""
    folder = ROOT / "models" / name
    modules = {path: names_in(path) for path in folder.parent.iterdir() if path.is_dir()}
    texts = "".join(file.read_text() for file in folder.rglob("*.py"))
    lacking = set(re.findall(r"^(?:from|import) (\w+)", texts, re.MULTILINE)) - modules[folder]
    candidates = [path for path in modules if path != folder and lacking & modules[path]]
    shared = shared_folders(folder)
    assert bool(shared) == bool(candidates)
    assert lacking & set().union(*modules.values()) <= set().union(set(), *(modules[path] for path in shared))


def test_a_change_of_shared_code_changes_what_a_result_rests_on(tmp_path: Path) -> None:
    models = Path(shutil.copytree(ROOT / "models", tmp_path / "models"))
    before = {name: code_digest(models / name) for name in ("torch", "megatron", "deepspeed", "paddle")}
    megatron = folder_digest(models / "megatron")
    (models / "torch" / "another.py").write_text("# another model")
    changed = {name for name, digest in before.items() if code_digest(models / name) != digest}
    assert changed == {"torch", "megatron", "deepspeed"} and folder_digest(models / "megatron") == megatron


def test_a_change_of_the_worker_changes_what_every_result_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest(ROOT / "models" / "torch")
    monkeypatch.setattr(resolution, "_platform_code_digest", lambda: "other")
    assert code_digest(ROOT / "models" / "torch") != before


# -- the plan itself


def test_a_plan_reads_back_from_its_file(plan_for: Make, tmp_path: Path) -> None:
    plan = plan_for("tiny:fake_1.2.3:F1:1:2:3", layout="TP2+seq", environment={"A": "1"}, repeats=2)
    (tmp_path / "plan.json").write_text(dump(plan))
    assert load(Plan, tmp_path / "plan.json") == plan


def test_the_job_says_what_the_worker_needs_and_nothing_of_vendors(plan_for: Make) -> None:
    plan = plan_for("tiny:fake:F1", scale="smoke", save_weights=True)
    job = job_content(plan, RunPaths(Path("/run")))
    assert set(job) == {
        "schema", "run_id", "case", "scale", "model", "training", "data", "window", "limits", "corpus", "layout",
        "tuning", "accumulation", "device", "backend", "preload", "gradient_steps", "capture", "events_dir",
        "save_weights_dir",
    }  # fmt: skip
    assert (job["device"], job["backend"], job["preload"]) == ("cpu", "gloo", ["json"])
    assert job["accumulation"] * job["tuning"]["micro_batch"] * job["layout"]["data"] == 8
    assert (job["events_dir"], job["gradient_steps"], job["capture"]) == ("/run/events", [], None)
    assert job["save_weights_dir"] == "/run/weights" and "F1" not in json.dumps(job)


def test_a_training_process_reads_every_key_of_the_job() -> None:
    """A key that is in no field of the worker's classes would be ignored. The last plan has all that a job may have."""
    registry, text = Registry(), RECORDED.format("torch")
    plain = make_plan(registry, text, scale="smoke")
    whole = make_plan(registry, text, scale="smoke", explain_steps=4, capture_step=2, save_weights=True)
    measurement = PeakMeasurement(at="2026-11-29T20:00:00Z", onednn_over_mkl=1.0)
    peak = whole.peak.model_copy(update={"measurement": measurement})
    whole = whole.model_copy(update={"choices": ChoicesPlan(follows="sha256:0", known="0"), "peak": peak})
    paths = RunPaths(Path("/run"))
    for plan in (plain, whole):
        content = job_content(plan, paths)
        read = json.loads(json.dumps(asdict(parse(Job, content, "job.json"))))
        del content["schema"]
        assert {key: part_of(read[key], value) for key, value in content.items()} == content
    of_ranks = {"rank", "world_size", "local_rank"}
    assert {field.name for field in fields(Job)} - of_ranks == set(content), "a field that no job has"
    required = {field.name for field in fields(Job) if field.default is MISSING}
    assert required <= set(job_content(plain, paths))


def part_of(read: Any, written: Any) -> Any:
    """What was read, without the defaults of keys that were not written."""
    if isinstance(written, dict):
        return {key: part_of(read[key], value) for key, value in written.items()}
    return read


def test_each_rank_gets_its_place_and_sees_only_its_devices(plan_for: Make, tmp_path: Path) -> None:
    plan = plan_for("tiny:fake:F1:1:2", scale="smoke", environment={"EXTRA": "1"}, threads=3)
    work = ProcessRuntime().node(plan, RunPaths(tmp_path), 0).processes[1]
    assert work.argv[0] == plan.environment.python and work.argv[1].endswith("plugins/models/fake/train.py")
    expected = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "OMP_NUM_THREADS": "3", "FAKE_RANK": "1 of 2",
        "FAKE_VISIBLE_DEVICES": "0,1", "EXTRA": "1", "LEVELFIELD_JOB": str(tmp_path / "job.json"),
    }  # fmt: skip
    assert work.environment.items() >= expected.items()
    assert Path(work.environment["PYTHONPATH"].split(os.pathsep)[0], "levelfield").is_dir()


def test_variables_that_lead_a_python_astray_are_not_inherited() -> None:
    variables = {"HOME": "/h", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "TORCHELASTIC_RUN_ID": "1", "GROUP_RANK": "0"}
    assert inherited_variables(variables) == {"HOME": "/h"}


# -- a run whose steps are recorded: how its ranks start, and which frameworks have it

RECORDED = "gpt3_6.7B:{}:cpu:1:1"


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "megatron", "jax", "paddle"])
def test_the_ranks_start_through_the_module_that_records(framework: str) -> None:
    registry, text = Registry(), RECORDED.format(framework)
    plain = make_plan(registry, text, scale="smoke")
    plan = make_plan(registry, text, scale="smoke", explain_steps=4)
    python, *program = plain.implementation.argv
    assert plan.implementation.argv == (python, "-m", "levelfield.worker.step_profile", *program)
    run = RunPaths(Path("/runs/one"))
    recording = {"steps": 4, "folder": "/runs/one/profile", "most_bytes": 2**26}
    assert job_content(plan, run) == {**job_content(plain, run), "explain_step": recording}
    assert "explain_step" not in job_content(plain, run) and plain.explain_steps is None
    assert plan.work_digest == plain.work_digest


def test_a_framework_that_cannot_record_its_steps_is_refused_by_name() -> None:
    with pytest.raises(NotHere, match=r"oneflow.*step_profile\.py"):
        make_plan(Registry(), RECORDED.format("oneflow"), scale="smoke", explain_steps=3)


@pytest.mark.parametrize("steps", ["0", "21", "-1"])
def test_a_number_of_steps_has_bounds(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", RECORDED.format("torch"), "--explain-step", steps, "--dry-run"]) == 2
    assert f"--explain-step: found {steps}, " in capsys.readouterr().err
