"""The command line: help that teaches, exit codes that mean something, and never a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.cli import show_command
from levelfield.cli.main import main
from levelfield.cli.options import size_in_bytes
from levelfield.cli.references_command import jump_remark
from levelfield.run.runner import finish
from levelfield.rundir import directory
from levelfield.specs.paths import RunPaths
from plans import PLUGINS, ROOT
from recorded_runs import break_off, fail, rename


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """command(*arguments): run the command line in this process, with the tests' plugins and a folder for runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("LEVELFIELD_DEBUG", raising=False)

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        try:
            code = main([*map(str, arguments), "--plugins", str(PLUGINS)] if arguments else [])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


def rows(dry_run: str) -> dict[str, str]:
    """Return the rows of a dry run by their labels, each in one line."""
    texts: dict[str, str] = {}
    label = ""
    for line in dry_run.splitlines():
        label = line[:13].strip() or label
        texts[label] = f"{texts.get(label, '')} {line[13:].strip()}".strip()
    return texts


# -- usage


def test_the_version_is_said(command: Command) -> None:
    assert command("--version").out == "levelfield 1.0.0\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--colour"], "unrecognized arguments: --colour"),
        (["--case", "tiny:fake", "--scale", "huge"], "invalid choice: 'huge'"),
        (["--case"], "expected one argument"),
        (["report"], "the following arguments are required: RUN"),
        (["report", "pages", "x", "latest", "--store", "y"], "found --store and runs"),
        (["data"], "`data`: found nothing after it, expected one of prepare, check"),
        (["--quiet"], "nothing to run: give --case CASE:FRAMEWORK or --suite NAME"),
        (["--case", "tinny:fake"], "unknown case 'tinny'; nearest: tiny"),
        (["--case", "tiny:fack"], "unknown framework 'fack'; nearest: fake"),
        (["--case", "tiny:fake:F3"], "unknown vendor or chip 'F3'; nearest: F"),
        (["--suite", "pears"], "unknown suite 'pears'; nearest: pair"),
        (["--suite", "absent.yaml"], "absent.yaml: cannot be read: No such file"),
        (["--case", "tiny"], "found 1 parts, expected case:framework"),
        (["--case", "tiny:fake", "--layout", "XX"], "layout 'XX' has an unknown notation"),
        (
            ["--case", "tiny:fake", "--layout", "TP2", "--micro-batch", "3"],
            "8 is not a multiple of 3; the nearest possible: ",
        ),
        (["--case", "tiny:fake", "--micro-batch", "0"], "command line: key 'micro_batch': found 0, expected"),
        (["--case", "tiny:fake", "--threads", "x"], "invalid int value: 'x'"),
        (["--case", "tiny:fake", "--env", "A"], "--env: found 'A', expected NAME=VALUE"),
        (["--case", "tiny:fake", "--repeat", "0"], "--repeat: found 0, expected 1 to 1000"),
        (["--case", "tiny:fake", "--python", "/no/python"], "--python /no/python: found no interpreter there"),
        (["--case", "tiny:fake", "--data", "/no/corpus"], "/no/corpus"),
        (["--case", "gpt3_6.7B:fake:F1:1:2", "--scale", "full"], "6,658,596,864 parameters"),
        (["show", "tinny"], "unknown case 'tinny'; nearest: tiny"),
        (["report", "yesterday"], "unknown run 'yesterday'"),
        (["evidence", "collect", "yesterday"], "unknown run 'yesterday'"),
        (["show", "--plugins", "/no/folder"], "--plugins /no/folder: no such folder"),
        (["--case", "tiny:fake:F1", "--base-image", "x"], "--base-image: found no --runtime docker"),
        (["--case", "tiny:fake:F1", "--container-memory", "8G"], "--container-memory: found no --runtime docker"),
        (["--case", "gpt3_6.7B:torch:cpu", "--explain"], "found no --dry-run; add it"),
        (["--case", "gpt3_6.7B:torch:cpu", "--explain", "--dry-run"], "use `plan gpt3_6.7B --chip "),
        (["--case", "gpt3_6.7B:torch:cpu", "--steps", "1", "--dry-run"], "command line: key 'steps': found 1"),
        (
            ["report", "latest", "--output", "/no/folder/out.md"],
            "--output /no/folder/out.md: cannot be written: No such file or directory",
        ),
        (
            ["--case", "tiny:fake", "--case", "tiny:fake:F1:1:3", "--python", sys.executable],
            "found 2 x F1 (vendor fake), expected 3",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(
    command: Command, run: RunPaths, arguments: list[str], says: str
) -> None:
    """One run is there, for those that name it."""
    done = command(*arguments)
    assert done.code == 2 and says in " ".join(done.err.split()) and done.out == ""


def test_no_wrong_usage_leaves_a_run_directory(command: Command, tmp_path: Path) -> None:
    for arguments in (["--layout", "DP3"], ["--python", "/no/python"], ["--data", "/no/corpus"]):
        command("--case", "tiny:fake", *arguments)
    assert not (tmp_path / "runs").exists()


def test_all_work_is_checked_before_the_first_run_starts(command: Command, tmp_path: Path) -> None:
    done = command("--case", "tiny:fake", "--case", "tiny:fake:F1:1:3", "--python", sys.executable)
    assert done.code == 2 and not (tmp_path / "runs").exists()


# -- list and show


def test_list_names_everything_in_eighty_columns(command: Command) -> None:
    done = command("show")
    assert done.code == 0 and too_long(done.out) == []
    for name in ("gpt3_6.7B", "tiny", "torch", "fake", "nvidia", "A100-SXM4-80GB", "F1", "pair", "2 (Fake F1 8GB)"):
        assert name in done.out


@pytest.mark.parametrize("kind", ["cases", "frameworks", "vendors", "chips", "suites", "published", "programs", "runs"])
def test_a_kind_is_listed_for_programs_too(command: Command, kind: str) -> None:
    rows = json.loads(command("show", kind, "--json").out)[kind]
    assert isinstance(rows, list) and all(row["name"] and row["says"] for row in rows)
    assert command("show", kind).code == 0


def test_frameworks_are_listed_in_columns_with_whole_sentences(command: Command) -> None:
    head, *lines = command("show", "frameworks").out.split("\n\n")[0].splitlines()[1:]
    first = json.loads(command("show", "frameworks", "--json").out)["frameworks"][0]
    assert lines[0].index(first["version"]) == head.index("version")
    assert lines[0].index(", ".join(first["families"])) == head.index("families")
    text = " ".join(" ".join(lines[1:]).split())
    assert all(f"{kind}: {where}" in text for kind, where in first["verified"].items()) and "..." not in text


def test_runs_are_listed_with_their_state(command: Command, run: RunPaths) -> None:
    finish(run)
    assert f"{run.root.name}  done: valid" in command("show", "runs").out


def test_show_gives_the_whole_case_at_both_scales(command: Command) -> None:
    case = yaml.safe_load(command("show", "tiny").out)
    assert case["full"]["training"]["steps"] == 24 and case["smoke"]["training"]["steps"] == 12
    assert case["smoke"]["model"] == case["full"]["model"] and case["smoke"]["default_tuning"]["micro_batch"] == 4
    assert json.loads(command("show", "tiny", "--json").out) == case
    assert "full" not in json.loads(command("show", "tiny", "--json", "--scale", "smoke").out)


# -- dry run


def test_a_dry_run_shows_everything_and_makes_nothing(command: Command, tmp_path: Path) -> None:
    done = command("--case", "tiny:fake_1.2.3:F1:1:2", "--scale", "smoke", "--dry-run", "--env", "A=b c")
    assert done.code == 0 and not (tmp_path / "runs").exists()
    for part in (
        "tiny (smoke: asked for with --scale smoke)",
        "1 x 2 F1 (Fake F1 8GB)",
        "DP2TP1PP1  (default: data parallel over all devices)",
        "micro_batch  2  (vendor fake: two dies)",
        "virtual_pipeline 1  (default)",
        "A='b c'",
        "FAKE_VISIBLE_DEVICES=0,1",
        "RANK=1",
        "models/fake/train.py",
        "would be made",
    ):
        assert part in done.out


def test_a_dry_run_is_readable_for_programs(command: Command) -> None:
    arguments = ("--case", "tiny:fake:F1", "--suite", "pair", "--repeat", 2, "--dry-run", "--json")
    entries = json.loads(command(*arguments).out)
    assert [entry["plan"]["repeat"] for entry in entries] == [1, 2] * 3
    assert [entry["plan"]["tuning"]["micro_batch"] for entry in entries[2:]] == [2, 2, 1, 1]
    first = entries[0]
    assert len(first["request"]["nodes"][0]["processes"]) == first["plan"]["hardware"]["devices_per_node"] == 2
    assert first["job"]["schema"] == "levelfield.job/1"


def test_a_vendors_own_python_is_named_where_the_framework_comes_with_it(command: Command) -> None:
    printed = rows(command("--case", "gpt3_6.7B:torch:ascend:1:2", "--dry-run").out)
    reached, assumed, _ = printed["reached as"].partition("ASSUMED:")
    assert reached.split() == ["device", "npu,", "backend", "hccl,", "importing", "torch_npu"] and assumed
    assert {"vendor's", "python3,", "--python"} <= {*printed["environment"].split()}


def test_a_dry_run_in_containers_shows_what_each_is_given(command: Command) -> None:
    done = command("--case", "gpt3_6.7B:torch:ascend:1:2", "--dry-run", "--runtime", "docker", "--base-image", "mine:1")
    printed = rows(done.out)
    container = printed["node 0"]
    assert done.code == 0 and {"levelfield/torch-ascend", "mine:1:"} <= {*printed["environment"].split()}
    assert {*re.findall(r"/dev/davinci\w+", container)} == {"/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager"}
    for part in ("ro /usr/local/Ascend/driver", "'memlock': -1", "network none,", "memory limit"):
        assert part in container
    assert "ASCEND_RT_VISIBLE_DEVICES" not in done.out


@pytest.mark.parametrize("size", ["8", "8k", "8M", "8gb"])
def test_sizes_are_read_as_engines_write_them(size: str) -> None:
    assert size_in_bytes(size) == {"8": 8, "8k": 8 * 2**10, "8M": 8 * 2**20, "8gb": 8 * 2**30}[size]


@pytest.mark.parametrize("size", ["", "G", "-8G", "8T", "8.5G", "8 G B", "0", "0G"])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(ArgumentTypeError, match="512M or"):
        size_in_bytes(size)


def test_hardware_that_is_not_here_can_be_looked_at(command: Command) -> None:
    done = command("--case", "gpt3_6.7B:paddle:A100:1:8", "--dry-run")
    assert done.code == 0 and "ASSUMED:" in rows(done.out)["reached as"]
    assert "(vendor nvidia:" in rows(done.out)["layout"]


def test_a_dry_run_explains_its_prediction(command: Command) -> None:
    done = command("--case", "gpt3_6.7B:torch:H100:1:8", "--dry-run", "--explain")
    assert done.code == 0 and {"weights", "compute"} <= {line.split(" ")[0] for line in done.out.splitlines()}
    plan = json.loads(command("--case", "gpt3_6.7B:torch:H100:1:8", "--dry-run", "--json").out)[0]["plan"]
    assert f"so {plan['predicted'][0]['tokens_per_second']:,.1f} tokens/s" in done.out


def test_changed_numbers_make_a_derived_case(command: Command) -> None:
    numbers = ("--steps", 6, "--sequence-length", 16, "--global-batch", 4, "--seed", 5)
    (entry,) = json.loads(command("--case", "gpt3_6.7B:torch:cpu", *numbers, "--dry-run", "--json").out)
    plan = entry["plan"]
    assert plan["case"] == "gpt3_6.7B+steps6+seq16+batch4+seed5" == plan["selector"]["case"]
    assert [entry["job"]["training"][name] for name in ("steps", "sequence_length", "global_batch", "seed")] == [
        6,
        16,
        4,
        5,
    ]
    assert "+" not in plan["run_id"]


def test_the_command_line_wins_over_a_suite(command: Command) -> None:
    entries = json.loads(command("--suite", "pair", "--micro-batch", 4, "--scale", "smoke", "--dry-run", "--json").out)
    assert [(e["plan"]["scale"], e["plan"]["tuning"]["micro_batch"]) for e in entries] == [("smoke", 4), ("smoke", 4)]


# -- report and collect


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_run_is_reported_in_every_form(command: Command, run: RunPaths, form: str) -> None:
    done = command("report", "latest", "--format", form)
    assert done.code == 0 and "tiny" in done.out
    assert command("report", "latest", "abcdef", "--format", form).out == done.out, "one run by two names"
    rename(RunPaths(Path(shutil.copytree(run.root, run.root.with_name("20260102T030406Z_tiny_fake_fake_123456")))))
    both = command("report", "latest", "abcdef", "--format", form)
    assert both.code == 0 and both.out.count("tiny") > 1


def test_a_report_goes_into_a_file(command: Command, run: RunPaths, tmp_path: Path) -> None:
    done = command("report", "latest", "--format", "json", "--output", tmp_path / "out.json")
    assert (done.code, done.out) == (0, "") and json.loads((tmp_path / "out.json").read_text())[0]["case"] == "tiny"


def test_a_failed_run_is_reported_like_any_other(command: Command, run: RunPaths) -> None:
    break_off(run, 7)
    fail(run, cause="interrupted")
    assert "failed (interrupted)" in command("report", "latest").out


def test_collect_makes_the_result_again_and_check_finds_an_edit(command: Command, run: RunPaths) -> None:
    assert command("evidence", "collect", "latest").out == f"{run.root.name}: valid\n"
    whole = run.result.read_bytes(), run.report.read_bytes()
    assert command("evidence", "collect", "latest", "--check").code == 0
    run.result.write_bytes(whole[0].replace(b'"steps_done": 12', b'"steps_done": 13'))
    refused = command("evidence", "collect", "latest", "--check")
    assert refused.code == 4 and str(run.result) in refused.err
    run.report.unlink()
    assert command("evidence", "collect", run.root).code == 0
    assert (run.result.read_bytes(), run.report.read_bytes()) == whole


def test_check_without_a_result_is_refused_and_writes_nothing(command: Command, run: RunPaths) -> None:
    assert command("evidence", "collect", "latest", "--check").code == 4 and not run.result.exists()
    thesis = run.root.parent / "thesis.tex"
    thesis.write_text("unchanged")
    run.result.symlink_to(thesis)
    assert command("evidence", "collect", "latest").code == 0
    assert thesis.read_text() == "unchanged" and not run.result.is_symlink()


def live(run: RunPaths) -> RunPaths:
    """A second run beside this one, which goes on: this process wrote its status."""
    other = RunPaths(Path(shutil.copytree(run.root, run.root.with_name("20260103T000000Z_tiny_fake_fake_live"))))
    directory.write_status(other, "running", "running")
    return other


@pytest.mark.parametrize(
    "words",
    [("report",), ("evidence", "collect"), ("evidence", "collect", "--check"), ("align",), ("align", "diagnose")],
)
def test_a_run_that_goes_on_is_left_alone_and_called_running(
    command: Command, run: RunPaths, words: tuple[str, ...]
) -> None:
    other = live(run)
    before = {path: path.read_bytes() for path in other.root.rglob("*") if path.is_file()}
    done = command(*words, "latest", *(["--reference", "abcdef"] if words == ("align",) else []))
    assert (done.code, done.out) == (2, "")
    assert other.root.name in done.err and f"(process {os.getpid()} of" in done.err and "try again" in done.err
    assert {path: path.read_bytes() for path in other.root.rglob("*") if path.is_file()} == before


def test_a_reference_is_not_made_of_a_run_that_goes_on(command: Command, run: RunPaths) -> None:
    live(run)
    done = command("align", "references", "promote", "latest", "--reason", "a test")
    assert done.code == 2 and "is running" in done.err


@pytest.mark.parametrize("name", sorted(Registry().references))
def test_no_shipped_reference_jumps_and_a_jump_is_remarked(name: str) -> None:
    """A jump multiplies rounding."""
    reference = Registry().reference(name)
    assert jump_remark(reference) is None
    losses = list(reference.losses)
    losses[18] = 1.2 * losses[17]
    remark = jump_remark(reference.model_copy(update={"losses": tuple(losses)}))
    assert remark is not None and "by 20%" in remark and "step 19" in remark
    losses[18] = 0.5 * losses[17]  # a fall alone is no jump
    losses[19:] = [0.4 * losses[17]] * len(losses[19:])
    assert jump_remark(reference.model_copy(update={"losses": tuple(losses)})) is None


@pytest.mark.parametrize(
    ("words", "says"), [(("report", "--format", "csv"), ",tiny,"), (("evidence", "collect"), "abcdef: valid")]
)
def test_runs_beside_one_that_is_damaged_absent_or_running_are_still_reported(
    command: Command, run: RunPaths, words: tuple[str, ...], says: str
) -> None:
    damaged = Path(shutil.copytree(run.root, run.root.with_name("20260104T000000Z_tiny_fake_fake_torn")))
    (damaged / "plan.json").write_bytes(run.plan.read_bytes()[:100])
    other = live(run)
    done = command(*words, "torn", "yesterday", "abcdef", "live")
    assert done.code == 2 and says in done.out
    for name, reason in (
        (f"{damaged / 'plan.json'}:", "not valid"),
        (other.root.name, "is running"),
        ("'yesterday'", "unknown run"),
    ):
        assert [name in line for line in done.err.splitlines() if reason in line] == [True]


def test_a_table_with_hidden_columns_is_not_made_without_a_damaged_run(command: Command, run: RunPaths) -> None:
    (Path(shutil.copytree(run.root, run.root.with_name("torn"))) / "plan.json").write_text("{}")
    done = command("report", "abcdef", "torn", "--hide", "tokens")
    assert (done.code, done.out) == (2, "") and "torn/plan.json" in done.err


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_every_run_is_collected_before_a_difference_ends_the_command(
    command: Command, run: RunPaths, check: tuple[str, ...]
) -> None:
    finish(run)
    second = RunPaths(Path(shutil.copytree(run.root, run.root.with_name("second"))))
    run.result.write_text("{}")
    done = command("evidence", "collect", "abcdef", "second", *check)
    assert done.code == (4 if check else 0)
    assert (str(second.result) if check else "abcdef: valid") in done.out


def test_list_names_a_run_whose_platform_was_killed(command: Command, run: RunPaths) -> None:
    directory.write_status(run, "running", "running")
    status = json.loads(run.status.read_text())
    assert "running: running" in command("show", "runs").out
    status["platform"]["started"] += 1
    run.status.write_text(json.dumps(status))
    assert "was killed" in " ".join(command("show", "runs").out.split())


# -- faults


def test_a_fault_of_the_platform_is_exit_code_5_without_a_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*arguments: object) -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr(show_command, "listing", explode)
    done = command("show")
    assert done.code == 5 and "RuntimeError: planted" in done.err and "LEVELFIELD_DEBUG=1" in done.err
    monkeypatch.setenv("LEVELFIELD_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["show"])


def test_an_interrupt_is_exit_code_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(show_command, "listing", interrupt)
    done = command("show")
    assert (done.code, done.out, done.err.split()[-1]) == (130, "", "interrupted")


def test_an_unwritable_runs_folder_is_said_before_anything_runs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("--case", "tiny:fake", "--python", sys.executable, "--runs", tmp_path / "file")
    assert done.code == 2 and "run directory" in done.err and str(tmp_path / "file") in " ".join(done.err.split())


def test_a_reader_that_leaves_is_no_fault(tmp_path: Path) -> None:
    environment = {**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1", "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), "show", "gpt3_6.7B"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        error = process.stderr.read()
        assert (process.wait(60), error) == (0, "")
