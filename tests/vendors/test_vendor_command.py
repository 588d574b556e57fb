"""`vendor new`, `check` and `record` from the command line: what they print, write and end with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from acme_folder import MONITOR, replace, write_acme
from levelfield.cli.main import main
from levelfield.cli.vendor_command import _show
from levelfield.errors import UsageError
from levelfield.specs.base import load
from levelfield.specs.vendor import VendorFile
from levelfield.testing.findings import Finding
from levelfield.testing.redaction import redacted
from levelfield.testing.subject import Subject

INTERRUPTING = """
import os, signal
from levelfield.contracts.declared import DeclaredVendor


class Adapter(DeclaredVendor):
    def sample(self, devices):
        if len(devices) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return super().sample(devices)
"""
Said = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main(["vendor", *map(str, arguments)])


# -- new


def test_a_new_folder_loads_and_the_check_says_what_is_missing(tmp_path: Path, capsys: Said) -> None:
    assert run("new", "zeta", "--output", tmp_path) == 0
    folder = tmp_path / "vendors/zeta"
    assert load(VendorFile, folder / "vendor.yaml").name == "zeta" and (folder / "tuning").is_dir()
    assert "python run_benchmarks.py vendor check zeta" in capsys.readouterr().out
    assert run("check", "zeta", "--fast", "--plugins", tmp_path) == 4
    said = capsys.readouterr().out
    assert "still says 'FILL IN' in line" in said and "no recorded/monitor.csv" in said and "FAILS" not in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_a_new_folder_hurts_no_other_command(tmp_path: Path, capsys: Said) -> None:
    assert run("new", "zeta", "--output", tmp_path) == 0
    assert main(["list", "vendors", "--plugins", str(tmp_path)]) == 0
    assert "zeta" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Zeta", "1zeta", "zeta_two", "../zeta", "zeta-", "", "z" * 41, "zeta/x"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path, capsys: Said) -> None:
    assert run("new", name, "--output", tmp_path) == 2
    assert "expected lower-case letters" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_name_or_folder_that_is_taken_is_refused(tmp_path: Path, capsys: Said) -> None:
    assert run("new", "nvidia", "--output", tmp_path) == 2
    assert "the vendor 'nvidia' is" in capsys.readouterr().err
    (tmp_path / "vendors/zeta").mkdir(parents=True)
    (tmp_path / "levelfield-zeta").mkdir()
    assert run("new", "zeta", "--output", tmp_path) == run("new", "zeta", "--package", "--output", tmp_path) == 2
    assert "is there already" in capsys.readouterr().err and not list((tmp_path / "vendors/zeta").iterdir())


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "vendors").write_text("a file")
    assert run("new", "zeta", "--output", tmp_path) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_package_holds_the_folder_an_entry_point_and_a_test(tmp_path: Path) -> None:
    assert run("new", "zeta-two", "--package", "--output", tmp_path) == 0
    folder = tmp_path / "levelfield-zeta-two"
    assert 'zeta-two = "levelfield_zeta_two"' in (folder / "pyproject.toml").read_text()
    assert (folder / "levelfield_zeta_two/vendors/zeta-two/vendor.yaml").is_file()
    assert "class TestZetaTwo(VendorConformance)" in (folder / "tests/test_zeta_two.py").read_text()
    assert run("check", "zeta-two", "--fast", "--plugins", folder / "levelfield_zeta_two") == 4
    assert "build/" in (folder / ".gitignore").read_text() and "zeta-two" in (folder / "README.md").read_text()


def test_the_next_command_can_be_pasted(tmp_path: Path, capsys: Said) -> None:
    deep = tmp_path / "a-folder-with-a-name-that-leaves-no-place-for-more-in-a-line"
    assert run("new", "zeta", "--output", deep) == 0
    said = capsys.readouterr().out.partition("python run_benchmarks.py ")[2]
    words = shlex.split(said.replace("\\\n", ""))
    assert words[:4] == ["vendor", "check", "zeta", "--plugins"] and " \\\n" in said
    assert main([*words[:4], str(Path(words[4]).expanduser()), "--fast"]) == 4


# -- check


def test_a_whole_vendor_passes(tmp_path: Path, capsys: Said) -> None:
    write_acme(tmp_path)
    assert run("check", "acme", "--plugins", tmp_path) == 0
    said = capsys.readouterr().out
    assert "acme: all 27 checks that apply are well" in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_the_report_as_json(tmp_path: Path, capsys: Said) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "printed: C", "printed: F")
    assert run("check", "acme", "--fast", "--json", "--plugins", tmp_path) == 4
    report = json.loads(capsys.readouterr().out)
    assert (report["vendor"], report["passes"]) == ("acme", False)
    bad = [item for item in report["checks"] if item["status"] not in ("ok", "not applicable")]
    assert [(item["check"], item["status"]) for item in bad] == [("values", "fails")] and bad[0]["do"]


def test_an_unknown_vendor_is_wrong_usage(tmp_path: Path, capsys: Said) -> None:
    write_acme(tmp_path)
    assert run("check", "acmee", "--plugins", tmp_path) == 2
    assert "unknown vendor 'acmee'; nearest: acme" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "holds"), [("pk", "pk/inner"), (".", "pk/inner"), ("pk/inner/vendors", "pk/inner")])
def test_a_folder_around_or_within_the_one_that_is_meant_is_told(
    given: str, holds: str, tmp_path: Path, capsys: Said
) -> None:
    write_acme(tmp_path / "pk/inner")
    for action in (["check"], ["record"]):
        assert run(*action, "acme", "--plugins", tmp_path / given) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"give --plugins {tmp_path / holds}, or install" in said and "vendor new" not in said
    assert run("check", "acme", "--fast", "--plugins", tmp_path / holds) == 0


def test_one_check_that_is_not_well_and_what_the_chips_match(tmp_path: Path, capsys: Said) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "memory_source: made up", "memory_source: ''")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    assert "checks is not well: chips" in capsys.readouterr().out
    replace(tmp_path / "vendors/acme/vendor.yaml", "match: [Acme A1]", "match: [Acme A2, Acme B7]")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "no chip's match is its end: 'Acme A2', 'Acme B7'" in said and "checks are not well" in said


def test_what_is_quoted_keeps_its_blanks(capsys: Said) -> None:
    """Also where a line of the report ends, and in a text that is longer than a line."""
    for width in range(1, 50):
        _show(Finding("values", "fails", f"{'x' * width} 'temp   54 C    load  7'\nand more", "write a    b"), [])
        said = capsys.readouterr().out
        assert "temp   54" in said and "C    load  7'" in said and "a    b" in said and "\0" not in said
        assert all(len(line) <= 80 for line in said.splitlines())
    _show(Finding("values", "fails", "a  b " + "c  " * 60, ""), [])
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_what_was_made_by_hand_is_told_how_to_name(tmp_path: Path, capsys: Said) -> None:
    folder = write_acme(tmp_path)
    (folder / "recorded/software.driver.txt").unlink()
    replace(folder / "recorded/README.md", "`monitor.csv`", "one")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "add a line for each: - `monitor.csv`: `acme-smi --query`, its date" in said
    assert "no recorded/software.driver.txt: `vendor record` makes it, or keep there by hand" in said


def test_the_user_s_choice_of_devices_has_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_acme(tmp_path)
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "7")
    assert run("check", "acme", "--fast", "--plugins", tmp_path) == 0


def test_an_interrupt_in_a_run_ends_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C was pressed when the run's monitor asks for the first time."""
    folder = write_acme(tmp_path)
    (folder / "adapter.py").write_text(INTERRUPTING)
    assert run("check", "acme", "--plugins", tmp_path) == 130
    assert Path.cwd().is_dir() and "levelfield-check-" not in str(Path.cwd())


def test_plugins_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_acme(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert run("check", "acme", "--plugins", "mine") == 0


# -- record


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vendor without recordings, on a machine with its tool. Gives the folder of recordings."""
    folder = write_acme(tmp_path)
    for path in (folder / "recorded").iterdir():
        path.unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "monitor").write_text(MONITOR)
    tool(tmp_path, f'[ "$1" = --version ] && echo "driver 6.7.0" || cat {tmp_path}/monitor')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)
    return folder / "recorded"


def tool(folder: Path, body: str) -> None:
    (folder / "bin/acme-smi").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "bin/acme-smi").chmod(0o755)


def record(machine: Path, *options: str) -> int:
    return run("record", "acme", "--plugins", machine.parents[2], *options)


def test_what_the_tools_print_is_kept_with_its_origin(machine: Path, capsys: Said) -> None:
    assert record(machine) == 0
    assert (machine / "monitor.csv").read_text() == MONITOR
    assert (machine / "software.driver.txt").read_text() == "driver 6.7.0\n"
    origins = (machine / "README.md").read_text()
    assert "- `monitor.csv`: `acme-smi --query`, 20" in origins and "3 x Acme A1" in origins and "6.7.0" in origins
    assert "monitor.csv holds identities of devices" in capsys.readouterr().out
    assert run("check", "acme", "--fast", "--plugins", machine.parents[2]) == 0


def test_what_is_there_is_replaced_by_force_only(machine: Path, capsys: Said) -> None:
    assert record(machine) == 0
    (machine / "README.md").write_text((machine / "README.md").read_text() + "\nWords of the author's.\n")
    (machine.parents[2] / "monitor").write_text(MONITOR.replace("250.5", "260.5"))
    assert record(machine) == 2
    assert "--force replaces it" in capsys.readouterr().err and "250.5" in (machine / "monitor.csv").read_text()
    assert record(machine, "--force") == 0
    origins = (machine / "README.md").read_text()
    assert "260.5" in (machine / "monitor.csv").read_text()
    assert origins.count("- `monitor.csv`") == 1 and "Words of the author's." in origins


def test_identities_are_replaced_and_nothing_else(machine: Path) -> None:
    assert record(machine, "--redact") == 0
    kept = (machine / "monitor.csv").read_text()
    assert (
        "SN-100" not in kept and "250.5, 41C" in kept and "identities replaced" in (machine / "README.md").read_text()
    )
    identities = [line.split(", ")[1] for line in kept.splitlines()]
    assert len(set(identities)) == 3 and all(identity.startswith("SN-") for identity in identities)
    assert run("check", "acme", "--fast", "--plugins", machine.parents[2]) == 0


def test_what_was_replaced_is_said_and_nothing_else(machine: Path, capsys: Said) -> None:
    assert record(machine, "--redact") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "monitor.csv: 3 identities replaced, now SN-" in said and "SN-100" not in said
    assert "driver" in said and "software.driver.txt: 3" not in said
    (line,) = [line for line in (machine / "README.md").read_text().splitlines() if "software.driver" in line]
    assert "identities replaced" not in line


def test_nothing_to_replace_is_said(machine: Path, capsys: Said) -> None:
    """Places on the bus as identities: they stay, with and without --redact, and nobody is told to replace them."""
    output = machine.parents[2] / "monitor"
    output.write_text(MONITOR.replace("SN-10", "0000:3b:00."))
    for options in (["--redact"], ["--force"]):
        assert record(machine, *options) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("found nothing to replace" in said) is ("--redact" in options) and "holds identities" not in said
        assert "replaced" not in said and "identities replaced" not in (machine / "README.md").read_text()
        assert (machine / "monitor.csv").read_text() == output.read_text()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (None, "acme-smi cannot be started: No such file or directory"),
        ("echo no driver >&2; exit 9", "acme-smi ended with exit code 9: no driver"),
        ("exit 0", "`acme-smi --query` printed nothing"),
    ],
)
def test_a_tool_that_does_not_answer_leaves_nothing(machine: Path, capsys: Said, body: str | None, says: str) -> None:
    if body is None:
        (machine.parents[2] / "bin/acme-smi").unlink()
    else:
        tool(machine.parents[2], body)
    assert record(machine) == 3
    said = capsys.readouterr().err
    assert says in said and (body == "exit 0" or "on a machine with the chip" in said)
    assert list(machine.iterdir()) == []


def test_output_that_vendor_yaml_does_not_read_is_kept_and_said(machine: Path, capsys: Said) -> None:
    (machine.parents[2] / "monitor").write_text("0, SN-100, Acme A1, 64\n")
    assert record(machine) == 0
    assert "reads no device from it: a line of 4 columns" in " ".join(capsys.readouterr().out.split())


def test_a_vendor_without_a_tool_has_nothing_to_record(tmp_path: Path, capsys: Said) -> None:
    assert run("record", "cpu") == 2
    assert "vendor.yaml names no tool to record" in capsys.readouterr().err


# -- redaction

FIRST, SECOND = "470a7e3c-8d6f-4b1e-9a55-0123456789ab", "470a7e3c-8d6f-4b1e-9a55-0123456789ac"
UUIDS = f"GPU 0: {FIRST}\nGPU 1: {SECOND}\nUUID: {FIRST}\n"


def test_one_identity_is_one_everywhere_and_two_stay_two() -> None:
    lines = redacted({"a.txt": UUIDS, "b.txt": UUIDS}, {})["b.txt"].splitlines()
    first, second, again = (line.split(": ")[1] for line in lines)
    assert first == again != second and "470a7e3c" not in "".join(lines) and len(first) == 36


@pytest.mark.parametrize("label", ["Serial Number : {}", '"serial": "{}"', "SN: {}", "Board ID={}", "MAC Address : {}"])
def test_what_stands_behind_a_label_is_an_identity(label: str) -> None:
    made = redacted({"a.txt": label.format("1C:34:DA:77:AB:09") + "\nPower : 45.00 W\n"}, {})["a.txt"]
    assert "DA:77" not in made and made.endswith("\nPower : 45.00 W\n")


def test_places_on_the_bus_stay() -> None:
    text = "| 0 | 0000:81:00.0 | Bus-Id 00000000:3D:00.0 |\n"
    assert redacted({"a.txt": text}, {}) == {"a.txt": text}


def test_a_redaction_that_would_change_what_is_read_is_refused(tmp_path: Path) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "identity: {column: 2}", "identity: {column: 5}")
    tool = Subject("acme", [tmp_path]).spec.monitor
    assert tool is not None
    with pytest.raises(UsageError, match="would be read in another way"):
        redacted({"monitor.csv": MONITOR}, {"monitor.csv": tool})


def test_identities_that_would_become_one_are_refused(tmp_path: Path) -> None:
    tool = Subject("acme", [write_acme(tmp_path).parents[1]]).spec.monitor
    assert tool is not None
    many = "".join(f"{n}, {chr(65 + n)}, Acme A1, 64, 1, 1, 1C\n" for n in range(7))
    with pytest.raises(UsageError, match="too short to stay apart"):
        redacted({"monitor.csv": many}, {"monitor.csv": tool})
