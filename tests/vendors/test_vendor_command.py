"""`vendor new` and `check` from the command line: what they print, write and end with."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import tomllib
from acme_folder import replace, write_acme
from levelfield.catalog.registry import ENTRY_POINT_GROUP
from levelfield.cli.main import main
from levelfield.cli.vendor_command import _print_finding
from levelfield.specs.base import load
from levelfield.specs.vendor import VendorFile
from levelfield.testing.check_suite import CHECKS
from levelfield.testing.findings import CheckFinding

INTERRUPTING = """
import os, signal
from levelfield.contracts.declared import DeclaredVendor


class Adapter(DeclaredVendor):
    def sample(self, devices):
        if len(devices) == 2 and not os.environ["PRESSED"]:  # once: a second one would end another test
            os.environ["PRESSED"] = "yes"
            os.kill(os.getpid(), signal.SIGINT)
        return super().sample(devices)
"""
Captured = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main(["vendor", *map(str, arguments)])


# -- new


def test_a_new_folder_loads_and_the_check_says_what_is_missing(tmp_path: Path, capsys: Captured) -> None:
    assert run("new", "zeta", "--output", tmp_path) == 0
    folder = tmp_path / "vendors/zeta"
    assert load(VendorFile, folder / "vendor.yaml").name == "zeta" and (folder / "tuning").is_dir()
    assert capsys.readouterr().out.partition("python run_benchmarks.py ")[2].split()[:3] == ["vendor", "check", "zeta"]
    assert run("check", "zeta", "--fast", "--plugins", tmp_path) == 4
    text = capsys.readouterr().out
    assert "'FILL IN'" in text and "recorded/monitor.csv" in text and "FAILS" not in text
    assert all(len(line) <= 80 or str(tmp_path) in line for line in text.splitlines())


def test_a_new_folder_hurts_no_other_command(tmp_path: Path, capsys: Captured) -> None:
    assert run("new", "zeta", "--output", tmp_path) == 0
    assert main(["show", "vendors", "--plugins", str(tmp_path)]) == 0
    assert "zeta" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Zeta", "1zeta", "zeta_two", "../zeta", "zeta-", "z" * 41, "zeta/x"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path, capsys: Captured) -> None:
    assert run("new", name, "--output", tmp_path) == 2
    assert "lower-case" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_name_or_folder_that_is_taken_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert run("new", "nvidia", "--output", tmp_path) == 2
    assert "'nvidia' exists" in capsys.readouterr().err
    (tmp_path / "vendors/zeta").mkdir(parents=True)
    (tmp_path / "levelfield-zeta").mkdir()
    assert run("new", "zeta", "--output", tmp_path) == run("new", "zeta", "--package", "--output", tmp_path) == 2
    error = capsys.readouterr().err
    assert all(f"{tmp_path / folder} exists" in error for folder in ("vendors/zeta", "levelfield-zeta"))
    assert not list((tmp_path / "vendors/zeta").iterdir())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "vendors").write_text("a file")
    assert run("new", "zeta", "--output", tmp_path) == 2
    assert str(tmp_path / "vendors/zeta") in capsys.readouterr().err


def test_a_package_holds_the_folder_an_entry_point_and_a_test(tmp_path: Path, capsys: Captured) -> None:
    assert run("new", "zeta-two", "--package", "--output", tmp_path) == 0
    folder = tmp_path / "levelfield-zeta-two"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][ENTRY_POINT_GROUP] == {"zeta-two": "levelfield_zeta_two"}
    assert (folder / "levelfield_zeta_two/vendors/zeta-two/vendor.yaml").is_file()
    assert "class TestZetaTwo(VendorConformance)" in (folder / "tests/test_zeta_two.py").read_text()
    assert run("check", "zeta-two", "--fast", "--plugins", folder / "levelfield_zeta_two") == 4
    assert re.search(r"^missing\s+schema\s.*'FILL IN'", capsys.readouterr().out, re.MULTILINE)
    assert "build/" in (folder / ".gitignore").read_text() and "zeta-two" in (folder / "README.md").read_text()


def test_the_next_command_can_be_pasted(tmp_path: Path, capsys: Captured) -> None:
    deep = tmp_path / "a-folder-with-a-name-that-leaves-no-place-for-more-in-a-line"
    assert run("new", "zeta", "--output", deep) == 0
    text = capsys.readouterr().out.partition("python run_benchmarks.py ")[2]
    words = shlex.split(text.replace("\\\n", ""))
    assert words[:4] == ["vendor", "check", "zeta", "--plugins"] and " \\\n" in text
    assert main([*words[:4], str(Path(words[4]).expanduser()), "--fast"]) == 4


# -- check


def test_a_whole_vendor_passes_and_its_folder_may_be_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    write_acme(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert run("check", "acme", "--plugins", "mine") == 0
    text = capsys.readouterr().out
    assert re.search(rf"^acme:.*\b{len(CHECKS)} checks", text, re.MULTILINE)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_report_as_json(tmp_path: Path, capsys: Captured) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "printed: C", "printed: F")
    assert run("check", "acme", "--fast", "--json", "--plugins", tmp_path) == 4
    report = json.loads(capsys.readouterr().out)
    assert (report["vendor"], report["passes"]) == ("acme", False)
    bad = [item for item in report["checks"] if item["status"] not in ("ok", "not applicable")]
    assert [(item["check"], item["status"]) for item in bad] == [("values", "fails")] and bad[0]["do"]


def test_an_unknown_vendor_is_wrong_usage(tmp_path: Path, capsys: Captured) -> None:
    write_acme(tmp_path)
    assert run("check", "acmee", "--plugins", tmp_path) == 2
    assert re.search(r"'acmee';.*\bacme\b", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("folder", "holds"),
    [
        ("pk", "pk/inner"),
        (".", "pk/inner"),
        ("pk/inner/vendors", "pk/inner"),
        ("pk/inner/vendors/acme", "pk/inner"),
    ],
)
def test_a_folder_around_or_within_the_one_that_is_meant_is_told(
    folder: str, holds: str, tmp_path: Path, capsys: Captured
) -> None:
    write_acme(tmp_path / "pk/inner")
    for action in (["check"], ["record"]):
        assert run(*action, "acme", "--plugins", tmp_path / folder) == 2
        text = " ".join(capsys.readouterr().err.split())
        assert f"--plugins {tmp_path / holds}," in text and "vendor new" not in text
    assert run("check", "acme", "--fast", "--plugins", tmp_path / holds) == 0


def test_one_check_that_is_not_well_and_what_the_chips_match(tmp_path: Path, capsys: Captured) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "memory_source: made up", "memory_source: ''")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    assert re.search(r"\b1 of\b.*: chips$", capsys.readouterr().out, re.MULTILINE)
    replace(tmp_path / "vendors/acme/vendor.yaml", "match: [Acme A1]", "match: [Acme A2, Acme B7]")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    text = " ".join(capsys.readouterr().out.split())
    assert all(repr(name) in text for name in ("Acme A2", "Acme B7")) and re.search(r"\b2 of\b.*: ", text)


def test_what_is_quoted_keeps_its_blanks(capsys: Captured) -> None:
    """Also where a line of the report ends, and in a text that is longer than a line."""
    for width in range(1, 50):
        _print_finding(
            CheckFinding("values", "fails", f"{'x' * width} 'temp   54 C    load  7'\nand more", "write a    b"), []
        )
        text = capsys.readouterr().out
        assert all(part in text for part in ("temp   54", "C    load", "load  7'", "a    b")) and "\0" not in text
        assert all(len(line) <= 80 for line in text.splitlines())
    _print_finding(CheckFinding("values", "fails", "a  b " + "c  " * 60, ""), [])
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_a_recording_made_by_hand_is_reported_with_its_name(tmp_path: Path, capsys: Captured) -> None:
    folder = write_acme(tmp_path)
    (folder / "recorded/software.driver.txt").unlink()
    replace(folder / "recorded/README.md", "`monitor.csv`", "one")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"- `monitor\.csv`:\s`acme-smi\s--query`", text)
    assert re.search(r"\brecorded/software\.driver\.txt:\s`vendor\srecord`", text)


def test_the_user_s_choice_of_devices_has_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_acme(tmp_path)
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "7")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 0


def test_an_interrupt_in_a_run_ends_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C was pressed when the run's monitor asks for the first time."""
    folder = write_acme(tmp_path)
    (folder / "adapter.py").write_text(INTERRUPTING)
    monkeypatch.setenv("PRESSED", "")
    assert run("check", "acme", "--plugins", tmp_path) == 130
    assert Path.cwd().is_dir() and "levelfield-check-" not in str(Path.cwd())
