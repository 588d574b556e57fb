"""Texts from a tool, a lock, a log or a name that would rule the terminal or the report: none reaches either."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from levelfield.cli.main import run_as_process
from levelfield.run.runner import finish
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from recorded_runs import fail, seal_again

PIECES = (
    "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\x90payload\x9c", "\r", "\x08\x08", "\u202e", "\u2066", "\u200f",
    "\u2028", "|", "`", "[x](http://h)", "<script>alert(1)<script>", "<img src=x>", "\n# heading\n", "\n| a | b |\n",
    "\\", "a", " ",
)  # fmt: skip
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
Spoken = Callable[..., str]


def hostile(seed: int) -> str:
    """A text of every piece, in the order of a seed."""
    return "".join(random.Random(seed).sample(PIECES, len(PIECES)))


@pytest.fixture
def spoken(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Spoken]:
    """spoken(arguments): all that a command prints, on the real descriptors, without what no command may print."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # `run_as_process` replaces both

    def run(*arguments: object, code: int = 0) -> str:
        ended = run_as_process([str(a) for a in arguments])
        sys.stdout.flush()
        printed = "".join(capfd.readouterr())
        assert ended == code, printed
        assert not OBEYED.findall(printed), printed
        return printed

    yield run


def poisoned(run: RunPaths, text: str) -> RunPaths:
    """The run with the text in every free field of its plan, its outcome and its events, and in its own name."""
    plan = json.loads(run.plan.read_text())
    plan |= {key: text for key in ("run_id", "case", "scale_reason", "work_digest", "asked")}
    plan |= {key: [text] for key in ("deviations", "notices")}
    for part, key in (("hardware", "description"), ("peak", "source"), ("corpus", "prefix"), ("corpus", "digest")):
        plan[part][key] = text
    plan["hardware"]["chip"]["name"] = plan["implementation"]["framework"] = text
    run.plan.write_text(json.dumps(plan))
    fail(run, evidence=f"rank 1 said {text}")
    (run.logs / "rank1.log").write_text(f"RuntimeError: {text}\n")
    seal_again(run)
    name = text.replace("/", "")[:60]
    return RunPaths(run.root.rename(run.root.with_name(name)))


def is_harmless(text: str) -> None:
    """Markdown without a tag, a link or a broken table. Its tables are the blocks of lines that begin with a bar."""
    bare = re.sub(r"`[^`\n]*`", "", re.sub(r"\\.", "", text))
    assert not OBEYED.findall(text) and not re.search(r"<[A-Za-z/!]", text) and "](" not in bare, text
    assert not re.search(r"^# heading", text, re.MULTILINE)
    for block in re.findall(r"(?:^\|.*\n)+", bare, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize("seed", range(4))
def test_a_run_full_of_hostile_texts_is_reported_without_them(run: RunPaths, seed: int, spoken: Spoken) -> None:
    where = poisoned(run, hostile(seed)).root
    spoken("evidence", "collect", where)
    is_harmless((where / "report.md").read_text())
    is_harmless(spoken("report", where, "--format", "markdown"))
    spoken("report", where)
    spoken("report", where, where, "--format", "csv")
    assert json.loads(spoken("report", where, "--format", "json"))[0]["run_id"] == hostile(seed)
    is_harmless(spoken("report", where, where, "--format", "markdown"))
    for form in ("flagperf", "oneflow", "osdi"):
        is_harmless(spoken("report", where, "--format", form))


@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_a_report_in_a_file_has_none_either(run: RunPaths, form: str, spoken: Spoken, tmp_path: Path) -> None:
    where = poisoned(run, hostile(1)).root
    spoken("report", where, "--format", form, "--output", tmp_path / "out")
    assert not OBEYED.findall((tmp_path / "out").read_text())


def test_a_result_that_was_edited_cannot_write_into_report_md(run: RunPaths) -> None:
    finish(poisoned(run, "<script>x</script>\n\n<script>"))
    is_harmless((run.root.parent / "<script>x<script>\n\n<script>" / "report.md").read_text())


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vendor whose tool prints hostile names, and a case with a hostile title."""
    vendor, tools, cases = (tmp_path / name for name in ("vendors/acme", "tools", "configs/cases"))
    for folder in (vendor, tools, cases):
        folder.mkdir(parents=True)
    devices = json.dumps([{"index": 0, "name": hostile(2), "watts": 7, "memory": 1024}])
    tool = tools / "acme-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{devices}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    fields = {"index": {"path": ["index"]}, "name": {"path": ["name"]}, "power": {"path": ["watts"], "unit": "W"}}
    fields["memory_total"] = {"path": ["memory"], "unit": "MiB"}
    monitor = {"command": ["acme-smi"], "format": "json", "fields": fields}
    failing = {"command": ["sh", "-c", f"printf '%s' '{hostile(5)}' >&2; exit 3"], "pattern": "x"}
    spec = {
        "schema": "levelfield.vendor/1", "name": "acme", "title": hostile(3),
        "device_kind": "fake", "verified": "none",
        "frameworks": {"fake": {"device": "cpu", "backend": "gloo"}},
        "visible_devices_variable": "ACME_VISIBLE_DEVICES",
        "chips": [{"name": "A1", "device_is": "card"}], "monitor": monitor, "software": {"driver": failing},
    }  # fmt: skip
    (vendor / "vendor.yaml").write_text(yaml.safe_dump(spec))
    case = yaml.safe_load((PLUGINS / "configs/cases/tiny.yaml").read_text())
    (cases / "odd.yaml").write_text(yaml.safe_dump({**case, "name": "odd", "title": hostile(4)}))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "show vendors", "show cases", "show chips", "show cases --json", "show vendors --json", "show odd",
        "--case odd:fake:acme --dry-run --python python3", "--case odd:fake:acme --dry-run --json --python python3",
        "--case odd:fake:F1 --dry-run --python python3",
    ],
)  # fmt: skip
def test_a_vendors_tool_and_a_title_are_listed_and_planned_without_harm(
    command: str, plugins: Path, spoken: Spoken
) -> None:
    spoken(*command.split(), "--plugins", plugins, "--plugins", PLUGINS)


def test_the_name_of_a_device_is_shown_with_its_escapes_written_out(plugins: Path, spoken: Spoken) -> None:
    printed = spoken("show", "vendors", "--plugins", plugins, "--plugins", PLUGINS)
    assert "\\u001b[2J\\u009b31m" in printed


def test_an_error_that_repeats_a_name_is_harmless(spoken: Spoken) -> None:
    assert "\\u001b[2J" in spoken("report", "no\x1b[2Jrun", code=2)
    assert "\\u202e" in spoken("--case", "a\u202eb:torch", "--dry-run", code=2)


def test_a_carriage_return_alone_redraws_and_in_a_text_does_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from levelfield.cli.streams import Streams

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    Streams()
    sys.stderr.write("\r")
    sys.stderr.write("\rvalid")
    sys.stderr.writelines(["\x1bc", "\n"])
    sys.stderr.flush()
    assert capfd.readouterr().err == "\r\\u000dvalid\\u001bc\n"
