"""Certificates: made before a run in 16 bits or at full scale, kept, checked again, and named in the result.

The framework only pretends. Its losses are the same in every precision, so that a run in bf16 is within any limit.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import GateFailed, NotHere
from levelfield.judge.certification import make_certificate
from levelfield.judge.collector import collect
from levelfield.judge.noise import noise_row
from levelfield.judge.promotion import make_reference
from levelfield.judge.verdict import reference_curve
from levelfield.measure.calibration import noise_between
from levelfield.plan.certificate_need import certificate_need, certifying_entry
from levelfield.plan.request import UserRequest
from levelfield.run import certificate_maker
from levelfield.run.certificate_maker import CertificateMaker, plan_certifying_job
from levelfield.run.certificate_store import certifying_run_folder, load_certificate
from levelfield.run.runner import Listener
from levelfield.run.scheduler import Job, add_certificate
from levelfield.rundir.directory import read_plan
from levelfield.rundir.follower import Follower
from levelfield.specs import certificate
from levelfield.specs.base import dump, json_digest, load
from levelfield.specs.certificate import Certificate, CertificateSubject, CodeBranches, code_branches, smallest_layout
from levelfield.specs.free_fields import CODE_FIELDS
from levelfield.specs.layout import parse_layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.tuning import Tuning
from levelfield.specs.variables import recordable_variables
from plans import PLUGINS, make_plan
from recorded_runs import seal_again

Content = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """A folder with plugins (the case `small`, and `small16`: the same in bf16), a cache, and runs."""

    folder: Path

    @property
    def plugins(self) -> Path:
        return self.folder / "plugins"

    @property
    def references(self) -> Path:
        return self.plugins / "configs" / "references"

    @property
    def store(self) -> Path:
        return self.folder / "cache" / "levelfield" / "certificates"

    def run(self, *arguments: str, case: str = "small16:fake:F1:1:2") -> tuple[int, Content]:
        """Run a case at smoke scale, or as told. Return the exit code and the result of the newest run."""
        code = main([*self.command(case), "--quiet", *arguments])
        newest = max(self.runs_of(case.partition(":")[0]), key=lambda paths: paths.root.stat().st_mtime)
        return code, json.loads(newest.result.read_text())

    def command(self, case: str) -> list[str]:
        folders = ["--plugins", str(PLUGINS), "--plugins", str(self.plugins), "--runs", str(self.folder / "runs")]
        return ["--case", case, "--scale", "smoke", "--python", sys.executable, *folders]

    def runs_of(self, case: str) -> list[RunPaths]:
        return [RunPaths(path) for path in (self.folder / "runs").iterdir() if f"_{case}_fake_" in path.name]

    def paths(self, run_id: str) -> RunPaths:
        return RunPaths(self.folder / "runs" / run_id)

    def promote(self, run_id: str) -> None:
        """Make a run the reference of its case, with the least noise."""
        reference = make_reference(self.paths(run_id), "the test's")
        curve = reference_curve(reference)
        row = noise_row(noise_between(curve, curve), "fake 1.2.3, DP1TP1PP1", "another", "", None, {})
        reference = reference.model_copy(update={"noise": (row,)})
        self.references.mkdir(exist_ok=True)
        (self.references / f"{reference.name}.json").write_text(dump(reference))

    def kept(self) -> Path:
        (path,) = self.store.iterdir()
        return path


@dataclass(frozen=True)
class CertifiedRun:
    """A bench with a run in bf16 that is aligned, and the run in fp32 that certifies it."""

    bench: Bench
    main: RunPaths
    small: RunPaths

    @property
    def subject(self) -> CertificateSubject:
        certificate = read_plan(self.main).certificate
        assert certificate is not None and certificate.subject is not None
        return certificate.subject

    def collected(self) -> Content:
        """The result as if the run had left the files as they are."""
        seal_again(self.main)
        return collect(self.main).model_dump(mode="json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of a bench after the references in fp32 and bf16 and a certified run; the main run, the small run."""
    bench = Bench(tmp_path_factory.mktemp("certified"))
    make_cases(bench.plugins / "configs" / "cases")
    with pytest.MonkeyPatch.context() as patch:
        surroundings(patch, bench.folder)
        bench.promote(bench.run(case="small:fake:F1:1:1")[1]["run_id"])
        bench.promote(bench.run("--no-certificate")[1]["run_id"])
        code, result = bench.run()
    assert (code, result["alignment"]["verdict"]) == (0, "aligned")
    return bench.folder, result["run_id"], result["certificate"]["run_id"]


def make_cases(folder: Path) -> None:
    folder.mkdir(parents=True)
    tiny = yaml.safe_load((PLUGINS / "configs" / "cases" / "tiny.yaml").read_text())
    extension = {key: tiny[key] for key in ("schema", "title", "source")} | {"name": "small16", "extends": "small"}
    extension["smoke"] = {"training": {"precision": "bf16"}}
    small = {**tiny, "name": "small", "evidence": {"gradient_steps": [1]}}
    (folder / "small.yaml").write_text(yaml.safe_dump(small))
    (folder / "small16.yaml").write_text(yaml.safe_dump(extension))


def surroundings(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setenv("FAKE_DEVICES", "8")
    patch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)


@pytest.fixture
def certified(trained: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CertifiedRun:
    """A copy of that folder, to be broken."""
    folder, run_id, small_id = trained
    bench = Bench(Path(shutil.copytree(folder, tmp_path / "bench")))
    surroundings(monkeypatch, bench.folder)
    return CertifiedRun(bench, bench.paths(run_id), bench.paths(small_id))


def rewrite(path: Path, change: Callable[[Content], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# ---- made, kept, used again


def test_a_certificate_is_made_before_the_run_kept_and_named_in_the_result(certified: CertifiedRun) -> None:
    result, small = json.loads(certified.main.result.read_text()), read_plan(certified.small)
    assert result["certificate"]["holds"] and result["certificate"]["reason"] is None
    assert certified.small.root.name in result["alignment"]["reason"]
    assert (str(small.tuning.layout), small.work.training.precision) == ("DP2TP1PP1", "fp32")
    assert small.accumulation == 4 and small.certificate is None
    assert load(Certificate, certified.bench.kept()) == load(Certificate, certified.main.certificate)


def test_a_kept_certificate_is_used_again_whatever_the_degrees_are(certified: CertifiedRun) -> None:
    before = len(certified.bench.runs_of("small"))
    _, result = certified.bench.run("--micro-batch", "1", case="small16:fake:F1:1:4")
    # on a busy machine the windows of four ranks that exchange nothing differ, which makes the run invalid
    assert (result["layout"]["data"], result["certificate"]["holds"]) == (4, True)
    assert len(certified.bench.runs_of("small")) == before


def test_without_a_certificate_of_its_layout_a_run_is_consistent_and_the_exit_code_is_0(
    certified: CertifiedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = certified.bench.run("--no-certificate", "--layout", "DP2SH1SP2")
    assert (code, result["alignment"]["verdict"], result["certificate"]["holds"]) == (0, "consistent", False)
    assert "bf16" in result["alignment"]["reason"]
    assert result["certificate"]["reason"] == certificate_maker.LEFT_OUT_REASON
    root = certified.bench.paths(result["run_id"]).root
    assert main(["align", str(root), "--plugins", str(certified.bench.plugins)]) == 0
    assert "consistent" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_full_run_in_fp32_uses_the_same_certificate_and_a_small_one_needs_none(certified: CertifiedRun) -> None:
    assert collect(certified.small).certificate is None
    _, full = certified.bench.run("--scale", "full", case="small:fake:F1:1:2")
    assert full["certificate"]["holds"] and full["alignment"]["verdict"] == "unchecked"
    assert certified.small.root.name in full["alignment"]["reason"]


def test_a_certificates_run_that_differs_leaves_the_main_run_consistent(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified.bench.kept().unlink()
    monkeypatch.setenv("FAKE_FP32_ERROR", "0.01")
    code, result = certified.bench.run()
    assert (code, result["status"]["word"], result["alignment"]["verdict"]) == (0, "valid", "consistent")
    failed = result["certificate"]["run_id"]
    assert f" {failed} " in result["certificate"]["reason"] and "first step" in result["certificate"]["reason"]
    assert certified.bench.paths(failed).result.exists() and list(certified.bench.store.iterdir()) == []


def test_code_that_changes_while_the_certificates_run_trains_is_not_certified(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main run was planned before: it would train the new code under the old digest."""
    copy = shutil.copytree(PLUGINS, certified.bench.folder / "own")
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", copy)
    made, real = list[int](), Follower.read

    def read(follower: Follower) -> Any:
        steps = real(follower)
        if not made and any(progress.step >= 3 for progress in steps):
            made.append((copy / "models" / "fake" / "fast.so").write_bytes(b"other"))
        return steps

    monkeypatch.setattr(Follower, "read", read)
    certified.bench.kept().unlink()
    code, result = certified.bench.run()
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "not-run", "code")
    assert list(certified.bench.store.iterdir()) == []


def test_code_from_elsewhere_is_certified_by_its_digest(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder imports a module that lies outside of it: no digest of the folder shows a change of that."""
    plugins, hidden = certified.bench.folder / "own", certified.bench.folder / "hidden"
    shutil.copytree(PLUGINS, plugins)
    hidden.mkdir()
    (hidden / "shortcut.py").write_text("x = 1\n")
    train = plugins / "models" / "fake" / "train.py"
    lines = f"import sys\nsys.path.append({str(hidden)!r})\nimport shortcut  # noqa\n"
    text = train.read_text()
    train.write_text(text.replace("import os\n", f"import os\n{lines}", 1))
    assert lines in train.read_text()
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", plugins)
    result = certified.bench.run()[1]
    assert result["alignment"]["verdict"] == "aligned"
    (warning,) = [text for text in result["warnings"] if "`elsewhere` in outcome.json" in text]
    assert warning.startswith("1 imported") and str(hidden) not in warning
    outcome = json.loads(certified.bench.paths(result["run_id"]).outcome.read_text())
    assert [item["path"] for item in outcome["elsewhere"]] == [str(hidden / "shortcut.py")]
    assert certified.bench.run()[1]["alignment"]["verdict"] == "aligned"
    (hidden / "shortcut.py").write_text("x = 2\n")
    result = certified.bench.run()[1]
    assert result["alignment"]["verdict"] == "consistent"
    assert "from elsewhere" in result["certificate"]["reason"]


@pytest.mark.thorough
def test_a_neighbours_code_that_changes_meanwhile_is_not_certified(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate's subject covers the frameworks beside: one may import another's code while it runs."""
    copy = shutil.copytree(PLUGINS, certified.bench.folder / "own")
    (copy / "models" / "beside").mkdir()
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", copy)
    real = certificate_maker.plan_certifying_job

    def planned(*arguments: Any) -> Any:
        planned_run = real(*arguments)
        (copy / "models" / "beside" / "fast.so").write_bytes(b"other")
        return planned_run

    monkeypatch.setattr(certificate_maker, "plan_certifying_job", planned)
    certified.bench.kept().unlink()
    _, result = certified.bench.run()
    assert result["alignment"]["verdict"] == "consistent" and list(certified.bench.store.iterdir()) == []
    assert "worker changed" in result["certificate"]["reason"]


def test_an_interrupt_during_the_certificates_run_ends_the_command(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    certified.bench.kept().unlink()
    monkeypatch.setattr("levelfield.rundir.follower.Follower.read", interrupt)
    before = len(certified.bench.runs_of("small16"))
    assert main([*certified.bench.command("small16:fake:F1:1:2"), "--repeat", "2", "--quiet"]) == 130
    assert len(certified.bench.runs_of("small16")) == before


def test_one_command_tries_a_subject_once(certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def failing(plan: Plan, *arguments: object) -> Any:
        tried.append(plan.run_id)
        return collect(certified.small).model_copy(update={"alignment": collect(certified.main).alignment})

    monkeypatch.setattr("levelfield.run.runner.run", failing)
    maker, job = maker_and_job(certified)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelfield.run.certificate_maker.make_certificate", refusing)
        certificates = [maker.certify(job).job.plan.certificate for _ in range(3)]
    assert [used and used.reason for used in certificates] == [BROKEN] * 3 and len(tried) == 1


BROKEN = "its run is broken"


def refusing(*arguments: object) -> Certificate:
    raise GateFailed(BROKEN)


def maker_and_job(certified: CertifiedRun) -> tuple[CertificateMaker, Job]:
    from levelfield.plan.request import Entry, UserRequest
    from levelfield.run.scheduler import plan_jobs

    registry = Registry([PLUGINS, certified.bench.plugins])
    (job,) = plan_jobs(registry, [Entry("small16:fake:F1:1:2", UserRequest("smoke", python=sys.executable))], None)
    quiet = Listener(say=lambda text: None, report_step=lambda plan, progress: None)
    return CertificateMaker(registry, certified.bench.folder / "runs", quiet), job


def test_a_store_that_cannot_be_written_loses_nothing(certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("levelfield.run.certificate_store.write_atomically", full)
    monkeypatch.setattr("levelfield.run.runner.run", lambda *arguments: collect(certified.small))
    maker, job = maker_and_job(certified)
    certificate = maker.certify(job).job.certificate
    assert certificate is not None and certificate.run_id == certified.small.root.name


def test_a_case_without_a_small_reference_or_without_its_noise_cannot_be_certified(certified: CertifiedRun) -> None:
    path, plan = certified.bench.references / "small_smoke_fp32.json", read_plan(certified.main)
    rewrite(path, lambda content: content.update(noise=[]))
    assert "small_smoke_fp32" in reason_of(certified, plan) and "noise" in reason_of(certified, plan)
    path.unlink()
    assert reason_of(certified, plan).endswith(" small16")


def test_what_fp32_cannot_train_in_the_same_way_cannot_be_certified(certified: CertifiedRun) -> None:
    _, job = maker_and_job(certified)
    kernel = job.plan.tuning.model_copy(update={"attention": "flash_attn"})
    assert "in fp32" in reason_of(certified, job.plan.model_copy(update={"tuning": kernel}))
    assert job.plan.certificate is not None
    used = job.plan.certificate.model_copy(update={"subject": certified.subject.model_copy(update={"chip": "F2"})})
    with pytest.raises(NotHere, match=r"\bchip\b"):
        plan_certifying_job(
            Registry([PLUGINS, certified.bench.plugins]),
            replace(job, plan=job.plan.model_copy(update={"certificate": used})),
        )


def reason_of(certified: CertifiedRun, plan: Plan) -> str:
    used = certificate_need(Registry([PLUGINS, certified.bench.plugins]), plan)
    assert used is not None and used.subject is None and used.reason is not None
    return used.reason


def test_dry_run_says_whether_there_is_a_certificate(
    certified: CertifiedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*more: str, case: str = "small16:fake:F1:1:2") -> str:
        assert main([*certified.bench.command(case), "--dry-run", *more]) == 0
        out = capsys.readouterr().out
        assert [text for text in out.splitlines() if len(text) > 80 and "/" not in text] == []
        return " ".join(out[out.index("certificate  ") :].split("\nenvironment")[0].split())

    assert shown().endswith(f"run {certified.small.root.name}")
    certified.bench.kept().unlink()
    assert "none yet:" in shown()
    assert certificate_maker.LEFT_OUT_REASON in shown("--no-certificate")
    only_in_bf16(certified.bench.plugins)
    sixteen = shown(case="small16:sixteen:maker:1:2")
    assert "sixteen" in sixteen and "precision fp32" in sixteen


def only_in_bf16(plugins: Path) -> None:
    """A framework without fp32, and a vendor that reaches its devices by it."""
    models, vendor = plugins / "models" / "sixteen", plugins / "vendors" / "maker"
    models.mkdir(parents=True)
    vendor.mkdir(parents=True)
    source = yaml.safe_load((PLUGINS / "models" / "fake" / "implementation.yaml").read_text())
    source |= {"framework": "sixteen", "precisions": {"fake": ["bf16"]}}
    (models / "implementation.yaml").write_text(yaml.safe_dump(source))
    shutil.copy(PLUGINS / "models" / "fake" / "train.py", models)
    shutil.copy(PLUGINS / "vendors" / "fake" / "adapter.py", vendor)
    spec = yaml.safe_load((PLUGINS / "vendors" / "fake" / "vendor.yaml").read_text())
    spec |= {"name": "maker", "chips": [{**spec["chips"][0], "aliases": []}]}
    spec["frameworks"] = {"sixteen": spec["frameworks"]["fake"]}
    spec["chips"][0]["name"] = "M1"
    (vendor / "vendor.yaml").write_text(yaml.safe_dump(spec))


# ---- planted faults: none of these counts


def truncate(path: Path) -> None:
    path.write_text(path.read_text()[: len(path.read_text()) // 2])


DAMAGES = {
    "truncated": truncate,
    "empty": lambda path: path.write_text(""),
    "another run": lambda path: rewrite(path, lambda c: c.update(run_id="20260101T000000Z_other")),
    "another number": lambda path: rewrite(path, lambda c: c["layers"][0].update(value=1e-9)),
    "a number beyond its limit": lambda path: rewrite(path, lambda c: c["layers"][0].update(value=0.5)),
    "no number": lambda path: rewrite(path, lambda c: c["layers"][0].update(value=None)),
    "a layer that failed": lambda path: rewrite(path, lambda c: c["layers"][3].update(passed=False)),
    "a layer left out": lambda path: rewrite(path, lambda c: c["layers"].pop(1)),
    "another verdict": lambda path: rewrite(path, lambda c: c.update(verdict="different")),
    "other code": lambda path: rewrite(path, lambda c: c["subject"].update(implementation="sha256:another")),
    "bf16": lambda path: rewrite(path, lambda c: c.update(precision="bf16")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_certificate_does_not_count_in_the_store_nor_in_the_run_directory(
    certified: CertifiedRun, name: str
) -> None:
    path = certified.bench.kept()
    DAMAGES[name](path)
    stored_certificate = load_certificate(certified.subject)
    assert (
        stored_certificate.certificate is None
        and stored_certificate.problem is not None
        and str(path) in stored_certificate.problem
    )
    DAMAGES[name](certified.main.certificate)
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and "certificate.json" in result["certificate"]["reason"]


def test_an_edited_certificate_with_a_right_digest_does_not_count(certified: CertifiedRun) -> None:
    """Its digest has no key, so anybody can compute it again. It has to follow from the raw files of its run."""
    path, right = certified.bench.kept(), load(Certificate, certified.bench.kept())
    layers = tuple(layer.model_copy(update={"value": 1e-9}) for layer in right.layers if layer.value is not None)
    for changes in ({"layers": layers}, {"reason": "because"}, {"framework_version": "9"}, {"software": "sha256:0"}):
        content = {**right.model_dump(exclude={"digest", "subject", "layers"}), "layers": right.layers, **changes}
        path.write_text(dump(Certificate.from_content(subject=right.subject, **content)))
        stored_certificate = load_certificate(certified.subject)
        assert stored_certificate.certificate is None and f"{path}: {next(iter(changes))}" in str(
            stored_certificate.problem
        )
    path.write_text(dump(right))
    assert load_certificate(certified.subject).certificate == right
    before = len(certified.bench.runs_of("small"))
    assert certified.bench.run()[1]["alignment"]["verdict"] == "aligned"
    assert len(certified.bench.runs_of("small")) == before


def test_the_kept_raw_files_are_held_to_their_seal(certified: CertifiedRun) -> None:
    """Of a run that differed nobody makes a certificate by editing what was kept."""
    stored_run = RunPaths(certifying_run_folder(certified.subject) / certified.small.root.name)
    events = stored_run.events / "rank0.jsonl"
    before = events.read_text()
    events.write_text(before + "{}\n")
    assert "is tampered" in str(load_certificate(certified.subject).problem)
    events.write_text(before)
    assert load_certificate(certified.subject).certificate is not None
    for name in ("reference.json", "plan.json", "outcome.json"):
        text = (stored_run.root / name).read_text()
        (stored_run.root / name).write_text("{")
        assert load_certificate(certified.subject).certificate is None, name
        (stored_run.root / name).write_text(text)
    shutil.rmtree(stored_run.root)
    assert "kept beside" in str(load_certificate(certified.subject).problem)
    code, result = certified.bench.run()
    assert (code, result["alignment"]["verdict"]) == (0, "aligned") and load_certificate(certified.subject).certificate


@pytest.mark.thorough
def test_a_damaged_certificate_is_made_again(certified: CertifiedRun) -> None:
    truncate(certified.bench.kept())
    before = len(certified.bench.runs_of("small"))
    code, result = certified.bench.run()
    assert (code, result["alignment"]["verdict"]) == (0, "aligned")
    assert len(certified.bench.runs_of("small")) == before + 1
    assert load(Certificate, certified.bench.kept()).run_id == result["certificate"]["run_id"]


def test_a_certificate_in_the_place_of_another_does_not_count(certified: CertifiedRun) -> None:
    path = certified.bench.kept()
    path.write_text(dump(resealed(certified, path=code_branches(Tuning()))))
    assert "other code" in str(load_certificate(certified.subject).problem) and str(path) in str(
        load_certificate(certified.subject).problem
    )


def resealed(certified: CertifiedRun, **changes: Any) -> Certificate:
    """The certificate with another subject: whole, with a right digest."""
    right = load(Certificate, certified.main.certificate)
    subject = right.subject.model_copy(update=changes)
    return Certificate.from_content(
        **{**right.model_dump(exclude={"digest", "subject", "layers"})}, subject=subject, layers=right.layers
    )


def test_with_a_reference_that_lacks_the_window_the_run_is_consistent(certified: CertifiedRun) -> None:
    assert certified.collected()["alignment"]["verdict"] == "aligned"
    reference = load(Reference, certified.main.reference)
    certified.main.reference.write_text(dump(reference.model_copy(update={"window": {}})))
    verdict = certified.collected()["alignment"]
    assert verdict["verdict"] == "consistent" and "gradient norms" in verdict["reason"]


def test_collect_says_the_same_from_the_run_directory_alone(certified: CertifiedRun) -> None:
    certified.bench.kept().unlink()
    moved = certified.main.root.rename(certified.bench.folder / "moved")
    assert main(["evidence", "collect", str(moved), "--check"]) == 0
    truncate(RunPaths(moved).certificate)
    before = collect(RunPaths(moved))
    assert before == collect(RunPaths(moved.rename(certified.bench.folder / "elsewhere")))


def test_an_exchanged_or_missing_copy_does_not_count(certified: CertifiedRun) -> None:
    certified.main.certificate.write_text(dump(resealed(certified, chip="F2")))
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and "plan names" in str(result)
    certified.main.certificate.unlink()
    assert certified.collected()["alignment"]["verdict"] == "consistent"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": code_branches(Tuning())}, "the kind of layout of the certificate"),
        ({"path": code_branches(Tuning(layout=parse_layout("DP2").layout, recompute="full"))}, "the kind of layout"),
        ({"implementation": "sha256:another"}, "the implementation of the certificate"),
        ({"framework": "other"}, "the framework of the certificate"),
        ({"vendor": "other"}, "the vendor of the certificate"),
        ({"chip": "F2"}, "the chip of the certificate"),
        ({"environment": "/usr/bin/python3"}, "the environment of the certificate"),
        ({"runtime": "docker"}, "the runtime of the certificate"),
        ({"variables": "sha256:another"}, "the environment variables of the certificate"),
    ],
    ids=str,
)
def test_a_plan_that_names_a_certificate_of_something_else_does_not_count(
    certified: CertifiedRun, changes: dict[str, Any], words: str
) -> None:
    """The plan and the copy are both edited, and agree."""
    other = resealed(certified, **changes)
    certified.main.certificate.write_text(dump(other))
    fields = {"digest": other.digest, "subject": other.subject.model_dump(mode="json")}
    rewrite(certified.main.plan, lambda plan: plan["certificate"].update(fields))
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and words in result["certificate"]["reason"]


def test_a_command_that_makes_no_certificates_says_so(certified: CertifiedRun) -> None:
    """`plan sweep` and `align calibrate` use stored ones only."""
    rewrite(certified.main.plan, lambda plan: plan["certificate"].update(digest=None))
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and "makes none" in result["certificate"]["reason"]


def test_another_version_of_the_framework_does_not_count(certified: CertifiedRun) -> None:
    lines = certified.main.events / "rank0.jsonl"
    for rank in range(2):
        lines = certified.main.events / f"rank{rank}.jsonl"
        lines.write_text(lines.read_text().replace('"version":"1.2.3"', '"version":"1.2.4"'))
    reason = certified.collected()["certificate"]["reason"]
    assert "fake 1.2.3," in reason and reason.endswith(" 1.2.4")


@pytest.mark.parametrize(
    "changes",
    [
        {"environment_packages": None},
        {"environment_packages": {"numpy": "9.9"}},
        {"vendor_software": {"driver": "9.9"}},
        {"inherited": {"LD_PRELOAD": "faster.so"}},
        {"inherited": {"NVIDIA_TF32_OVERRIDE": "1"}},
        {"inherited": {"XLA_FLAGS": "--xla_fast"}},
        {"inherited": {"MY_OWN_SWITCH": "1"}},
        {"inherited": None},
    ],
    ids=str,
)
def test_other_or_unknown_software_does_not_count(certified: CertifiedRun, changes: dict[str, Any]) -> None:
    rewrite(certified.main.provenance, lambda content: content.update(changes))
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and "packages" in result["certificate"]["reason"]


# the one whose value is masked comes first; the others are thorough
@pytest.mark.parametrize(
    "name",
    [
        "MY_OWN_KEY",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("XLA_FLAGS", "FLAGS_cudnn_deterministic", "MY_OWN_SWITCH")
        ),
    ],
)
def test_a_variable_that_is_set_outside_makes_another_certificate_necessary(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    code, result = certified.bench.run()
    assert (code, result["alignment"]["verdict"]) == (0, "consistent")
    assert "inherited variables" in result["certificate"]["reason"]
    assert result["inherited"][name] == ("1" if name != "MY_OWN_KEY" else SECRET)
    assert list(certified.bench.store.iterdir()) == []


SECRET = recordable_variables({"MY_OWN_KEY": "1"})["MY_OWN_KEY"]


@pytest.mark.thorough
def test_variables_of_the_session_change_nothing(certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TERM", "PWD", "SSH_CONNECTION", "LC_ALL", "XDG_SESSION_ID", "SLURM_JOB_ID", "GITHUB_RUN_ID"):
        monkeypatch.setenv(name, "C")
    code, result = certified.bench.run()
    assert (code, result["alignment"]["verdict"]) == (0, "aligned")
    assert not {"TERM", "SLURM_JOB_ID"} & {*result["inherited"]}


def test_inherited_variables_that_choose_devices_change_nothing(certified: CertifiedRun) -> None:
    rewrite(certified.main.provenance, lambda content: content["inherited"].update(CUDA_VISIBLE_DEVICES="1"))
    assert certified.collected()["certificate"]["holds"]


def test_a_masked_variable_is_the_same_in_the_plan_and_in_its_file(certified: CertifiedRun) -> None:
    _, job = maker_and_job(certified)
    tuning = job.plan.tuning.model_copy(update={"environment": {"HF_TOKEN": "hf_secret", "MODE": "fast"}})
    plan = job.plan.model_copy(update={"tuning": tuning})
    certified.main.plan.write_text(dump(plan))
    assert "hf_secret" not in dump(plan) and read_plan(certified.main).variables_digest == plan.variables_digest


@pytest.mark.thorough
def test_after_a_change_of_packages_the_next_run_makes_the_certificate_again(
    certified: CertifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = "levelfield.run.runtimes.process_runtime.ProcessRuntime.identity"
    monkeypatch.setattr(identity, lambda runtime, plan: {"environment_packages": {"numpy": "9.9"}})
    assert certified.bench.run()[1]["alignment"]["verdict"] == "consistent"
    assert list(certified.bench.store.iterdir()) == []


def test_a_certificate_still_holds_in_a_bundle(certified: CertifiedRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Its digest of the software is of the whole provenance, which the bundle does not have."""
    rewrite(certified.main.provenance, lambda content: content["inherited"].update(CUDA_VISIBLE_DEVICES="/home/me/x"))
    seal_again(certified.main)
    path = certified.bench.folder / "run.zip"
    assert main(["evidence", "bundle", str(certified.main.root), "--output", str(path)]) == 0
    assert main(["evidence", "verify", str(path), "--plugins", str(PLUGINS)]) == 0
    with zipfile.ZipFile(path) as opened:
        (name,) = [item for item in opened.namelist() if item.endswith("/result.json")]
        content = json.loads(opened.read(name))
    assert content["alignment"]["verdict"] == "aligned" and content["certificate"]["holds"]


def test_a_bundle_with_both_runs_has_its_certificate_recomputed(
    certified: CertifiedRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the main run alone a note says what the digest of a certificate shows."""
    alone, both, forged = (tmp_path / f"{name}.zip" for name in ("alone", "both", "forged"))
    for path, runs in ((alone, [certified.main]), (both, [certified.main, certified.small])):
        assert main(["evidence", "bundle", *(str(run.root) for run in runs), "--output", str(path)]) == 0
    assert said_by_verify(alone, capsys) == (0, True)
    assert said_by_verify(both, capsys) == (0, False)
    right = load(Certificate, certified.main.certificate)
    layers = tuple(layer.model_copy(update={"limit": 0.5}) if layer.limit else layer for layer in right.layers)
    content = {**right.model_dump(exclude={"digest", "subject", "layers"}), "layers": layers}
    edited = Certificate.from_content(subject=right.subject, **content)
    certified.main.certificate.write_text(dump(edited))
    rewrite(certified.main.plan, lambda plan: plan["certificate"].update(digest=edited.digest))
    seal_again(certified.main)
    capsys.readouterr()  # `bundle` verifies what it writes
    assert (
        main(["evidence", "bundle", str(certified.main.root), str(certified.small.root), "--output", str(forged)]) == 2
    )
    assert "certificate.json: layers:" in capsys.readouterr().err and not forged.exists()


def said_by_verify(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, bool]:
    """The exit code, and whether the certificate is said to rest on a run that is not there."""
    capsys.readouterr()
    code = main(["evidence", "verify", str(path), "--plugins", str(PLUGINS)])
    out = " ".join(capsys.readouterr().out.split())
    return code, "which is not in this bundle. Its digest has no key" in out


def test_what_is_no_aligned_run_in_fp32_at_smoke_scale_certifies_nothing(certified: CertifiedRun) -> None:
    subject, small, plan = certified.subject, certified.small, read_plan(certified.small)
    result = collect(small)
    failed = result.model_copy(update={"status": result.status.model_copy(update={"word": "invalid"})})
    layers = tuple(layer.model_copy(update={"limit": None}) for layer in result.alignment.layers)
    open_ = result.model_copy(update={"alignment": result.alignment.model_copy(update={"layers": layers})})
    sixteen = plan.model_copy(update={"work": read_plan(certified.main).work})
    for arguments, words in (
        ((small, plan, failed), "is invalid"),
        ((small, plan, open_), "certifies nothing: .*first step"),
        ((small, sixteen, result), "certifies nothing: .*'fp32'"),
        ((small, plan.model_copy(update={"scale": "full"}), result), "certifies nothing: .*'smoke'"),
    ):
        with pytest.raises(GateFailed, match=words):
            make_certificate(*arguments, subject)
    rewrite(small.reference, lambda content: content["noise"][0].update(curve=0.5))
    seal_again(small)
    with pytest.raises(GateFailed, match="another reference"):
        make_certificate(small, plan, collect(small), subject)
    rewrite(small.reference, lambda content: content.update(noise=[]))
    seal_again(small)
    with pytest.raises(GateFailed, match="is inconclusive"):
        make_certificate(small, plan, collect(small), subject)


def test_plans_and_results_of_before_certificates_are_still_read(
    certified: CertifiedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(certified.main.plan, lambda plan: plan.pop("certificate"))
    result = certified.collected()
    assert result["alignment"]["verdict"] == "consistent" and "looked for" in result["certificate"]["reason"]
    rewrite(certified.main.result, lambda content: content.pop("certificate"))
    assert main(["report", str(certified.main.root)]) == 0
    capsys.readouterr()


def test_a_job_with_a_certificate_names_it_in_its_plan(certified: CertifiedRun) -> None:
    _, job = maker_and_job(certified)
    certificate = load(Certificate, certified.main.certificate)
    used = add_certificate(job, certificate).plan.certificate
    assert used is not None and (used.digest, used.run_id) == (certificate.digest, certificate.run_id)


# ---- kinds of layout


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("DP1", "DP1TP1PP1"),
        ("DP64", "DP2TP1PP1"),
        ("DP4TP8PP2+seq", "DP2TP2PP2+seq"),
        ("DP8SH3SP8", "DP2TP1PP1SH3SP2"),
        ("DP8SH2SP4", "DP4TP1PP1SH2SP2"),
        ("PP16", "DP1TP1PP2"),
        ("CP2", "DP1CP2TP1PP1"),
        ("DP4CP8TP2", "DP2CP2TP2PP1"),
        ("DP1CP2SH1SP2", "DP1CP2TP1PP1SH1SP2"),
        ("DP1CP8SH1SP2", "DP1CP4TP1PP1SH1SP2"),
        ("DP2CP4SH3SP2", "DP2CP2TP1PP1SH3SP2"),
        ("DP8EP8", "DP2EP2TP1PP1"),
        ("DP8EP2", "DP4EP2TP1PP1"),
        ("DP6EP3SH1SP6", "DP4EP2TP1PP1SH1SP4"),
    ],
)
def test_the_smallest_layout_has_the_same_kinds(text: str, least: str) -> None:
    layout = parse_layout(text).layout
    smallest = smallest_layout(layout)
    assert str(smallest) == least and smallest.world_size <= layout.world_size
    assert code_branches(Tuning(layout=smallest)) == code_branches(Tuning(layout=layout))


@pytest.mark.parametrize(
    ("text", "other"), [("DP2CP2", "DP2"), ("DP2EP2", "DP2"), ("DP4EP2", "DP2EP2"), ("DP1CP4SH1SP2", "DP1CP2SH1SP2")]
)
def test_a_layout_is_not_certified_by_one_that_lacks_a_kind(text: str, other: str) -> None:
    """A sequence or experts that ranks divide are code that a run without them does not reach."""
    subject, certified_layout = (code_branches(Tuning(layout=parse_layout(name).layout)) for name in (text, other))
    assert subject != certified_layout and subject.fingerprint() != certified_layout.fingerprint()


def test_a_graph_is_certified_by_a_run_with_a_graph() -> None:
    registry = Registry()
    eager, captured = (
        make_plan(registry, "gpt3_6.7B_bf16:torch:H100:1:1", scale="smoke", may_lack_hardware=True, graph=graph)
        for graph in (False, True)
    )
    assert code_branches(captured.tuning) != code_branches(eager.tuning)
    certifying = certifying_entry(registry, captured, registry.reference("gpt3_6.7B_smoke_fp32"), UserRequest())
    assert certifying.request.choice.graph is True


def test_a_certificate_from_before_there_were_graphs_is_of_a_run_without_one() -> None:
    code_kind = code_branches(Tuning())
    earlier = {
        name: value
        for name, value in code_kind.model_dump(mode="json").items()
        if name not in ("graph", "context", "expert", "replicated_experts", "further")
    }
    assert CodeBranches.model_validate(earlier) == code_kind and code_kind.fingerprint() == json_digest(earlier)


def test_a_later_field_that_changes_the_code_is_in_the_path_where_it_is_not_at_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificate, "CODE_FIELDS", (*CODE_FIELDS, "threads"))  # in the place of a later field
    eager = code_branches(Tuning())
    assert eager.further == {} and eager.fingerprint() == code_branches(Tuning(micro_batch=2)).fingerprint()
    assert code_branches(Tuning(threads=2)).further == {"threads": 2}
