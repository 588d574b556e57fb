"""Several versions of one framework: which is chosen, what each has of its own, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from levelfield.catalog.code_basis import recorded_runs_path, training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import SupportRow, support_rows
from levelfield.cli.show_frameworks_command import support_lines
from levelfield.errors import DocumentError, NotHere, UsageError
from levelfield.node.code_digest import folder_digest
from levelfield.pages.run_details import rerun_command
from levelfield.plan.certificate_need import certifying_entry
from levelfield.plan.image_recipe import image_plan
from levelfield.plan.request import UserRequest
from levelfield.specs.base import dump, load
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.layout import Layout
from levelfield.specs.plan import Plan
from levelfield.specs.recorded_runs import Difference, LayoutRuns, MatrixRun
from levelfield.specs.selector import parse_selector
from levelfield.specs.vendor import Image
from levelfield.store.run_record import series_of
from levelfield.studies.variations import variation_entries
from plans import PLUGINS, ROOT, make_plan

NEWER = """\
versions:
  # the next one
  "2.0.0":
    requirements:
      cpu: {packages: [fake-tensors==2.0.0, numpy==2.4.6], verified: none}
"""
RIGHT = Difference(
    first_loss=0.0, loss=0.0, grad_norm=0.0, parameter_norm=0.0, total_norm=0.0, same_weights=True, same_tokens=True
)


@pytest.fixture
def folder(plugins: Path) -> Path:
    """The tests' plugins, where the framework `fake` has a further version."""
    append(plugins, "reaches: {cpu: {device: cpu, backend: gloo}}\n" + NEWER)
    return plugins


def append(folder: Path, text: str, framework: str = "fake") -> Path:
    manifest = folder / "models" / framework / "implementation.yaml"
    manifest.write_text(manifest.read_text() + text)
    return manifest


def plan(folder: Path, framework: str, target: str = "cpu") -> Plan:
    return make_plan(Registry([folder]), f"tiny:{framework}:{target}")


# -- which is chosen


def test_a_framework_alone_is_its_default_version(folder: Path) -> None:
    plain, versioned = plan(folder, "fake"), plan(folder, "fake_1.2.3")
    for chosen in (plain, versioned):
        assert (chosen.implementation.version, chosen.implementation.is_further) == ("1.2.3", False)
        assert chosen.environment.name == "fake-cpu" and chosen.environment.requirements == ("numpy==2.4.6",)
    assert plain.environment == versioned.environment and plain.implementation.label == "fake"


def test_a_version_has_pins_and_an_environment_of_its_own(folder: Path) -> None:
    further, plain = plan(folder, "fake_2.0.0"), plan(folder, "fake")
    used, environment = further.implementation, further.environment
    assert (used.framework, used.version, used.label, used.is_further) == ("fake", "2.0.0", "fake_2.0.0", True)
    assert environment.name == "fake-2.0.0-cpu" and environment.folder.endswith(".venvs/fake-2.0.0-cpu")
    assert environment.requirements == ("fake-tensors==2.0.0", "numpy==2.4.6")
    assert environment.digest != plain.environment.digest and further.deviations == ()
    assert (used.digest, used.rests_on) == (plain.implementation.digest, plain.implementation.rests_on)


def test_an_unknown_version_is_refused_with_those_that_there_are(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"\bfake:.*\b2\.0,.*: 1\.2\.3.*\b2\.0\.0\..*`fake`") as refusal:
        plan(folder, "fake_2.0")
    assert str(folder / "models/fake/implementation.yaml") in str(refusal.value)


def test_a_version_without_this_kind_of_device_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    with pytest.raises(NotHere, match=r"^fake_2\.0\.0.*fake:.*\bcpu;.*\bfake\..*`fake`$") as refusal:
        plan(folder, "fake_2.0.0", "F1")
    assert "versions.2.0.0.requirements.fake" in str(refusal.value)
    assert plan(folder, "fake", "F1").implementation.version == "1.2.3"


def test_a_label_names_a_version_everywhere(folder: Path) -> None:
    registry = Registry([folder])
    assert (
        registry.implementation_of_label("fake_2.0.0")[0].label == "fake_2.0.0"
        and registry.implementation_of_label("fake")[0].label == "fake"
    )
    assert [label for label in registry.framework_labels() if label.startswith("fake")] == ["fake", "fake_2.0.0"]
    with pytest.raises(UsageError, match=r"version 9\.9\b"):
        registry.implementation_of_label("fake_9.9")


# -- what a manifest may say


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"2.0.0":', '"1.2.3":', "versions: found 1.2.3, which is the default version"),
        ('"2.0.0":', "2.0:", "versions"),  # YAML reads a number, which would lose the zero of 2.10
        ('"2.0.0":', '"2":', "versions: found '2', expected a version such as 2.11.0"),
        ('"2.0.0":', '"../2.0":', "versions: found '../2.0', expected a version"),
        ('"2.0.0":', '"2.0-1":', "versions: found '2.0-1', expected a version"),
        ("fake-tensors==2.0.0", "fake-tensors==1.2.3", "versions.2.0.0.requirements.cpu: found fake-tensors==1.2.3"),
        ("fake-tensors==2.0.0", "fake-tensors==2.0.01", "expected a package pinned with ==2.0.0"),
        ("fake-tensors==2.0.0", "fake-tensors>=2.0.0", "expected every version pinned with '=='"),
        ("      cpu: {packages: [fake-tensors==2.0.0, numpy==2.4.6], verified: none}", "      {}", "requirements"),
        ("    requirements:", "    pins: 1\n    requirements:", "unknown key"),
    ],
)
def test_a_wrong_version_of_a_manifest_is_named(folder: Path, old: str, new: str, message: str) -> None:
    manifest = folder / "models/fake/implementation.yaml"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(DocumentError) as refusal:
        Registry([folder]).implementation("fake")
    assert message in str(refusal.value) and str(manifest) in str(refusal.value)


@pytest.mark.parametrize("name", ["fake-2.0.0", "fake-2.0.0-large"])
def test_a_framework_with_the_name_of_a_version_s_environment_is_refused(folder: Path, name: str) -> None:
    manifest = folder / "models" / name / "implementation.yaml"
    shutil.copytree(PLUGINS / "models/fake", manifest.parent)
    manifest.write_text(manifest.read_text().replace("framework: fake", f"framework: {name}"))
    with pytest.raises(DocumentError, match=rf"'versions\.2\.0\.0': .*fake-2\.0\.0-.*framework {name}"):
        Registry([folder]).implementation("fake", "2.0.0")
    assert Registry([folder]).implementation("fake")[0].version == "1.2.3"


# -- digests: a further version invalidates nothing that was recorded of the default


def test_a_further_version_changes_no_digest_of_the_default(folder: Path) -> None:
    before, after = folder.parent / "before/models/fake", folder / "models/fake"
    shutil.copytree(after, before)
    (before / "implementation.yaml").write_text((after / "implementation.yaml").read_text().replace(NEWER, ""))
    assert folder_digest(after) == folder_digest(before)
    plain = load(ImplementationFile, before / "implementation.yaml")
    content = {**plain.model_dump(), "versions": {}}
    assert plain.fingerprint() == ImplementationFile.model_validate(content).fingerprint()
    assert load(ImplementationFile, after / "implementation.yaml").fingerprint() != plain.fingerprint()


@pytest.mark.parametrize("change", ["# a comment", "recompute_more: 1", "versions2:\n  a: 1"])
def test_every_other_change_of_the_manifest_changes_it(folder: Path, change: str) -> None:
    before = folder_digest(folder / "models/fake")
    append(folder, f"{change}\n")
    changed = folder_digest(folder / "models/fake")
    assert changed != before
    append(folder, "launch:\n  argv: [x]\n")  # what follows the versions counts
    assert folder_digest(folder / "models/fake") != changed


def test_only_the_manifest_s_own_key_is_left_out(folder: Path) -> None:
    home = folder / "models/fake"
    (home / "other.yaml").write_text("a: 1\n")
    before = folder_digest(home)
    (home / "other.yaml").write_text("a: 1\n" + NEWER)
    assert folder_digest(home) != before
    (home / "other.yaml").write_text("a: 1\n")
    (home / "tested-2.0.0.json").write_text("{}")
    assert folder_digest(home) == before
    (home / "tested_2.json").write_text("{}")
    assert folder_digest(home) != before


def test_the_versions_that_ship_leave_the_recorded_runs_of_the_default_alone(tmp_path: Path) -> None:
    for manifest in sorted(ROOT.glob("models/*/implementation.yaml")):
        content = yaml.safe_load(manifest.read_text())
        if not content.pop("versions", None):
            continue
        home = tmp_path / manifest.parent.name
        shutil.copytree(manifest.parent, home, ignore=shutil.ignore_patterns("__pycache__"))
        text = manifest.read_text()
        (home / manifest.name).write_text(text[: text.index("\nversions:") + 1])
        assert yaml.safe_load((home / manifest.name).read_text()) == content  # it is the last key
        assert folder_digest(home) == folder_digest(manifest.parent)


# -- recorded runs by version


def record(
    folder: Path,
    name: str,
    label: str,
    code: str | None = None,
    framework: str = "fake",
    version: str | None = None,
) -> None:
    """Write the passed run of a version, by its code where `code` gives no other."""
    file, home = Registry([folder]).implementation_of_label(label)
    run = MatrixRun(
        date="2026-01-01",
        commit=None,
        code=code or training_code_digest(file, home, "cpu"),
        name="one",
        family="gpt",
        precision="fp32",
        layout=Layout(),
        steps=40,
        difference=RIGHT,
    )
    runs = LayoutRuns(framework=framework, version=version or file.version, device_kind="cpu", machine="m", runs=(run,))
    (home / name).write_text(dump(runs))


def row(folder: Path, label: str) -> SupportRow:
    return next(
        r for r in support_rows(Registry([folder])) if (r.framework, r.family, r.precision) == (label, "gpt", "fp32")
    )


def test_a_version_without_recorded_runs_is_new(folder: Path) -> None:
    further = row(folder, "fake_2.0.0")
    assert (further.cells["one"], further.note) == ("written", None)


def test_recorded_runs_count_for_their_own_version_alone(folder: Path) -> None:
    record(folder, "tested-2.0.0.json", "fake_2.0.0")
    assert row(folder, "fake_2.0.0").cells["one"] == "tested" and row(folder, "fake").cells["one"] == "written"
    record(folder, "tested.json", "fake")
    (folder / "models/fake/tested-2.0.0.json").unlink()
    assert row(folder, "fake").cells["one"] == "tested" and row(folder, "fake_2.0.0").cells["one"] == "written"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "1.2.3"}, "were of version 1.2.3"),
        ({"framework": "torch"}, "were of torch"),
        ({"code": f"sha256:{0:064}"}, "1 of its 1 runs do not count: its code has changed since 2026-01-01"),
    ],
)
def test_a_swapped_or_old_file_counts_for_nothing(folder: Path, change: dict[str, str], reason: str) -> None:
    record(folder, "tested-2.0.0.json", "fake_2.0.0", **change)
    further = row(folder, "fake_2.0.0")
    assert further.cells["one"] == "written"
    assert further.note and reason in further.note and "check fake_2.0.0" in further.note


def test_the_default_s_runs_under_a_version_s_name_count_for_nothing(folder: Path) -> None:
    record(folder, "tested-2.0.0.json", "fake")
    assert row(folder, "fake_2.0.0").cells["one"] == "written"
    record(folder, "tested-2.0.0.json", "fake", version="2.0.0")
    assert row(folder, "fake_2.0.0").cells["one"] == "written"


def test_other_pins_of_the_version_make_its_runs_old_and_not_the_default_s(folder: Path) -> None:
    record(folder, "tested-2.0.0.json", "fake_2.0.0")
    record(folder, "tested.json", "fake")
    manifest = folder / "models/fake/implementation.yaml"
    manifest.write_text(manifest.read_text().replace("fake-tensors==2.0.0, numpy==2.4.6", "fake-tensors==2.0.0"))
    assert row(folder, "fake_2.0.0").cells["one"] == "written" and row(folder, "fake").cells["one"] == "tested"


def test_each_version_has_a_file_of_its_own() -> None:
    registry = Registry()
    places = [recorded_runs_path(*registry.implementation_of_label(label)) for label in registry.framework_labels()]
    assert len(set(places)) == len(places) and ROOT / "models/jax/tested-0.10.1.json" in places


def test_a_long_name_leaves_the_table_in_80_columns_and_stands_once(folder: Path) -> None:
    lines = "\n".join(support_lines(list(support_rows(Registry([folder]))))).splitlines()
    assert max(map(len, lines)) <= 80 and lines.count("fake_2.0.0") == 1
    assert lines[lines.index("fake_2.0.0") + 1].split()[:3] == ["gpt", "fp32", "new"]
    assert sum(line.startswith("fake      ") for line in lines) > 1


# -- images and series


def test_a_version_has_an_image_of_its_own(folder: Path) -> None:
    registry, images = Registry([folder]), []
    vendor = registry.vendor_file("cpu")
    for label in ("fake", "fake_2.0.0"):
        file, home = registry.implementation_of_label(label)
        images.append(image_plan(file, home, vendor, file.requirements["cpu"].environment_packages(), None))
    assert [image.name for image in images] == ["levelfield/fake-cpu", "levelfield/fake-2.0.0-cpu"]
    assert images[1].requirements == ("fake-tensors==2.0.0", "numpy==2.4.6")


def test_an_image_s_name_has_no_plus(folder: Path) -> None:
    manifest = folder / "models/fake/implementation.yaml"
    manifest.write_text(manifest.read_text().replace("2.0.0", "2.0.0+cpu"))
    registry = Registry([folder])
    file, home = registry.implementation_of_label("fake_2.0.0+cpu")
    image = image_plan(file, home, registry.vendor_file("cpu"), file.requirements["cpu"].environment_packages(), None)
    assert image.name == "levelfield/fake-2.0.0_cpu-cpu"


def test_an_image_that_brings_the_framework_is_refused_for_a_further_version(folder: Path) -> None:
    registry = Registry([folder])
    image = Image(image="maker/fake:1", has_framework=True, source="made for the tests")
    vendor = registry.vendor_file("cpu").model_copy(update={"images": {"fake": image}})
    file, home = registry.implementation_of_label("fake_2.0.0")
    with pytest.raises(UsageError, match=r"^fake_2\.0\.0.*cpu:.*\bmaker/fake:1\b"):
        image_plan(file, home, vendor, file.requirements["cpu"].environment_packages(), None)
    plain, _ = registry.implementation_of_label("fake")
    assert image_plan(plain, home, vendor, plain.requirements["cpu"].environment_packages(), None).requirements == ()


def test_two_versions_are_two_series_and_the_default_s_is_the_earlier_one(folder: Path) -> None:
    plain, further = series_of(plan(folder, "fake")), series_of(plan(folder, "fake_2.0.0"))
    assert plain.fingerprint() != further.fingerprint()
    assert (plain.further_version, further.further_version) == (None, "2.0.0")
    assert plain.label.startswith("tiny:fake:cpu:1:1 ") and further.label.startswith("tiny:fake_2.0.0:cpu:1:1 ")
    later = ("further_version", "recompute_layers", "graph")
    earlier = {key: value for key, value in plain.model_dump(mode="json").items() if key not in later}
    stored = hashlib.sha256(json.dumps(earlier, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert plain.fingerprint() == f"sha256:{stored}"  # of a store from before there were these fields
    assert series_of(plan(folder, "fake_1.2.3")) == plain


def test_what_a_plan_starts_beside_itself_is_of_its_own_version() -> None:
    registry = Registry()
    further = make_plan(registry, "gpt3_6.7B:jax_0.10.1:cpu")
    assert further.environment.requirements[:2] == ("jax==0.10.1", "jaxlib==0.10.1")
    certifying = certifying_entry(registry, further, registry.reference("gpt3_6.7B_smoke_fp32"), UserRequest())
    texts = {certifying.text, *(entry.text for entry in variation_entries(registry, further))}
    assert {text.split(":")[1] for text in texts} == {"jax_0.10.1"}
    assert rerun_command(series_of(further)).split("--case ")[1].startswith("gpt3_6.7B:jax_0.10.1:")


def test_an_earlier_plan_reads_back_as_the_default(folder: Path) -> None:
    default = plan(folder, "fake")
    content = json.loads(dump(default))
    del content["implementation"]["is_further"]
    assert Plan.model_validate({key: value for key, value in content.items() if key != "schema"}) == default
    assert parse_selector("tiny:fake_2.0.0").version == "2.0.0"
