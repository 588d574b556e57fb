"""Plugins: found in the checkout, in --plugins and in installed packages; lazy; a name claimed twice names both."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, UnknownName, UsageError
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from plans import PLUGINS, ROOT

PARTS = "vendors/, models/, configs/ or launchers/"


def test_the_checkout_and_plugins_are_found(registry: Registry) -> None:
    assert {"gpt3_6.7B", "tiny"} <= set(registry.cases)
    assert {"torch", "fake"} <= set(registry.frameworks)
    assert {"cpu", "nvidia", "fake"} <= set(registry.vendors)
    assert {"smoke", "pair"} <= set(registry.suites)
    assert "tiny" not in Registry().cases


def test_an_adapter_is_made_with_its_vendor_file(registry: Registry) -> None:
    vendor = registry.vendor("fake")
    assert vendor.spec == registry.vendor_file("fake") and vendor.devices() == []


def test_an_adapter_may_add_to_the_generic_one(plugins: Path) -> None:
    (plugins / "vendors/fake/adapter.py").write_text(
        "from levelfield.contracts.declared import DeclaredVendor\n\n\n"
        "class Adapter(DeclaredVendor):\n"
        "    def software(self):\n"
        "        return {**super().software(), 'board': 'B2'}\n"
    )
    vendor = Registry([plugins]).vendor("fake")
    assert vendor.devices() == [] and vendor.software()["board"] == "B2"


@pytest.mark.parametrize(
    ("kind", "attribute", "path"),
    [
        ("case", "cases", "configs/cases/tiny.yaml"),
        ("suite", "suites", "configs/suites/pair.yaml"),
        ("framework", "frameworks", "models/fake/implementation.yaml"),
        ("vendor", "vendors", "vendors/fake/vendor.yaml"),
    ],
)
def test_a_name_claimed_twice_names_both_owners(plugins: Path, kind: str, attribute: str, path: str) -> None:
    name = "pair" if kind == "suite" else Path(path).stem if kind == "case" else "fake"
    with pytest.raises(UsageError, match=rf"\b{kind} '{name}': {PLUGINS / path} and {plugins / path};"):
        getattr(Registry([PLUGINS, plugins]), attribute)


def test_a_plugins_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^--plugins {tmp_path}/absent: no.*{PARTS}$"):
        Registry([tmp_path / "absent"])


def test_a_folder_without_plugins_is_refused_and_the_one_that_is_meant_is_told(tmp_path: Path) -> None:
    shutil.copytree(PLUGINS, tmp_path / "package/inner")
    for wrong in (".", "package", "package/inner/models", "package/inner/models/fake", "package/inner/configs/cases"):
        with pytest.raises(UsageError, match=rf"^--plugins {tmp_path / wrong}: .*--plugins {tmp_path}/package/inner,"):
            Registry([tmp_path / wrong])
    (tmp_path / "other/deep/notes").mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"^--plugins {tmp_path}/other/deep: found.*{PARTS}$"):
        Registry([tmp_path / "other/deep"])


def test_a_folder_that_is_still_empty_or_has_launchers_only_is_taken(tmp_path: Path) -> None:
    registry = Registry([tmp_path])
    with pytest.raises(UnknownName, match=rf"{ROOT}, {tmp_path}.*--plugins DIR"):
        registry.case("mini")
    (tmp_path / "launchers/pbs").mkdir(parents=True)
    (tmp_path / "launchers/pbs/launcher.py").touch()
    assert tmp_path in Registry([tmp_path]).roots


@pytest.mark.parametrize(
    "path", ["configs/cases/tiny", "configs/suites/pair", "models/fake/implementation", "vendors/fake/vendor"]
)
def test_a_document_with_the_ending_yml_is_refused(plugins: Path, path: str) -> None:
    (plugins / f"{path}.yaml").rename(plugins / f"{path}.yml")
    with pytest.raises(UsageError, match=rf"^--plugins {plugins}: .*{plugins / path}\.yml\b.*\.yaml\b"):
        Registry([plugins])


def test_an_installed_package_brings_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: Path) -> None:
    package, info = tmp_path / "site" / "acme", tmp_path / "site" / "acme-1.0.dist-info"
    shutil.copytree(plugins, package)
    (package / "__init__.py").write_text("raise RuntimeError('a plugin package is not imported to be found')\n")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[levelfield.plugins]\nacme = acme\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registry = Registry()
    assert registry.cases["tiny"] == package / "configs/cases/tiny.yaml"
    assert registry.vendor("fake").spec.name == "fake"


@pytest.mark.parametrize("kind", ["case", "suite", "framework", "vendor"])
def test_unknown_names_list_the_nearest(registry: Registry, kind: str) -> None:
    lookups: dict[str, tuple[Callable[[str], object], str, str]] = {
        "case": (registry.case, "gpt3_67B", "gpt3_6.7B"),
        "suite": (registry.suite, "pairs", "pair"),
        "framework": (registry.implementation, "troch", "torch"),
        "vendor": (registry.vendor, "nvida", "nvidia"),
    }
    look_up, wrong, right = lookups[kind]
    with pytest.raises(UnknownName, match=rf"\b{kind} '{wrong}'; nearest: {re.escape(right)}\b") as refusal:
        look_up(wrong)
    assert refusal.value.exit_code == 2


def test_a_name_like_no_other_lists_all_there_are(registry: Registry) -> None:
    with pytest.raises(UnknownName, match=re.escape(", ".join(sorted(registry.vendors)))):
        registry.vendor("zzz")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("x = 1", "found no class 'Adapter', expected one as in levelfield.contracts.vendor"),
        (None, "adapter.py; expected one of the three to find devices"),
    ],
)
def test_a_broken_adapter_is_named_by_its_file(plugins: Path, code: str | None, message: str) -> None:
    adapter = plugins / "vendors/fake/adapter.py"
    adapter.unlink()
    if code is not None:
        adapter.write_text(code)
    with pytest.raises(DocumentError) as refusal:
        Registry([plugins]).vendor("fake")
    assert str(adapter) in str(refusal.value) and message in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "old", "new", "look_up"),
    [
        ("configs/cases/tiny.yaml", "name: tiny", "name: small", lambda r: r.case("tiny")),
        ("models/fake/implementation.yaml", "framework: fake", "framework: real", lambda r: r.implementation("fake")),
        ("vendors/fake/vendor.yaml", "name: fake", "name: real", lambda r: r.vendor_file("fake")),
    ],
)
def test_a_document_in_the_wrong_place_is_refused(
    plugins: Path, path: str, old: str, new: str, look_up: Callable[[Registry], object]
) -> None:
    file = plugins / path
    file.write_text(file.read_text().replace(old, new, 1))
    before, after = old.split(": ")[1], new.split(": ")[1]
    with pytest.raises(DocumentError, match=rf"^{file}: .*'{after}'.*'{before}'"):
        look_up(Registry([plugins]))


def test_nothing_is_parsed_before_it_is_asked_for(plugins: Path) -> None:
    (plugins / "configs/cases/broken.yaml").write_text("{")
    (plugins / "vendors/fake/adapter.py").write_text("1 / 0")
    registry = Registry([plugins])
    assert "broken" in registry.cases and registry.case("tiny").name == "tiny"


def modules_after(*arguments: str) -> set[str]:
    """The top-level modules that a command has loaded."""
    script = (
        "import sys, io, contextlib\n"
        "from levelfield.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({list(arguments)!r})\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"numpy", "pydantic", "yaml", "psutil", "jinja2"}),
        (["nightly", "gate", "--help"], {"psutil", "jinja2", "pynvml"}),
        pytest.param(
            *(["show", "cases"], {"numpy", "psutil", "jinja2", "pynvml", "levelfield_vendor_cpu"}),
            marks=pytest.mark.thorough,
        ),
        pytest.param(["show"], {"numpy", "jinja2"}, marks=pytest.mark.thorough),
        (["plan", "llama3_70b", "--chip", "H100", "--devices", "1024"], {"numpy", "psutil", "jinja2", "sqlalchemy"}),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], unwanted: set[str]) -> None:
    modules = modules_after(*arguments)
    assert "levelfield" in modules
    assert modules & (unwanted | {"torch", "pandas", "tokenizers", "safetensors"}) == set()


def test_an_unknown_name_says_what_its_own_folder_lacks_or_what_was_searched(tmp_path: Path) -> None:
    for folder in ("models/hips", "vendors/acme"):
        (tmp_path / folder).mkdir(parents=True)
    registry = Registry([tmp_path])
    with pytest.raises(UnknownName, match=rf"{tmp_path}/models/hips.*\bno implementation\.yaml\b"):
        registry.implementation("hips")
    with pytest.raises(UnknownName, match=rf"{tmp_path}/models/hips.*\bno implementation\.yaml\b"):
        FrameworkSubject("hips", [tmp_path])
    with pytest.raises(UnknownName, match=rf"{tmp_path}/vendors/acme.*\bno vendor\.yaml\b"):
        registry.vendor("acme")
    for look_up in (registry.case, registry.implementation, registry.suite):
        with pytest.raises(UnknownName, match=rf"{ROOT}, {tmp_path};.*--plugins DIR.*`show`"):
            look_up("other")


def test_an_installed_case_with_the_ending_yml_is_named(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plugins / "configs/cases/tiny.yaml").rename(plugins / "configs/cases/tiny.yml")
    monkeypatch.setattr("levelfield.catalog.registry._installed_plugin_folders", lambda path: (plugins,))
    with pytest.raises(UnknownName, match=rf"{plugins}/configs/cases/tiny\.yml\b.*\.yaml\b"):
        Registry().case("tiny")
