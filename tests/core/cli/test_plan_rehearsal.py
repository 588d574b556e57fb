"""`plan --rehearse` without a CUDA build: case strings, what is refused, tables, JSON, exit codes, Ctrl-C.

The rehearsal itself is mocked here: a small script stands in for tests/gpu/rehearse.py and prints what the real one
printed for gpt2_small (tests/core/data/rehearsed_*.json, without its list of imported files). The real one is started
by tests/gpu/test_rehearsed_plan.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from levelfield.cli.main import main
from levelfield.studies import plan_rehearsals
from plans import ROOT

DATA = Path(__file__).parents[1] / "data"
CASE = "gpt2_small:torch:H100:1:1"
REPLAY = """
import json, pathlib, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + chr(10))
if "--check" in arguments:
    sys.exit({check})
name = "rehearsed_gpt2_small_compiled" if "--compile" in arguments else "rehearsed_gpt2_small"
content = json.loads(pathlib.Path({data!r}, name + ".json").read_text())
{change}
print(json.dumps(content))
"""

# from the second row on
WAIT = """
if len(open({log!r}).readlines()) > 2:
    import time
    open({marker!r}, "w")
    time.sleep(60)
"""
STARTED = """
import sys
from pathlib import Path
from levelfield.cli.main import main
from levelfield.studies import plan_rehearsals
plan_rehearsals.checkout = lambda: Path({folder!r})
sys.exit(main(["plan", {case!r}, "--rehearse", "2"]))
"""
OUT_OF_MEMORY = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 726.94 MiB is free. Of the allocated memory 77.69 GiB is allocated by PyTorch, and 132.87 MiB is reserved"
)


class Replay:
    """The script in the place of tests/gpu/rehearse.py, and the arguments of its calls."""

    def __init__(self, folder: Path) -> None:
        self.script, self.log = folder / "tests" / "gpu" / "rehearse.py", folder / "log"
        self.script.parent.mkdir(parents=True)
        self.write()

    def write(self, change: str = "", check: str = "0") -> None:
        text = REPLAY.format(log=str(self.log), data=str(DATA), change=change, check=check)
        self.script.write_text(text)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    monkeypatch.setattr(plan_rehearsals, "checkout", lambda: tmp_path)
    return Replay(tmp_path)


def planned(*arguments: str) -> int:
    return main(["plan", *arguments])


def test_a_case_string_says_the_same_as_options(capsys: pytest.CaptureFixture[str]) -> None:
    for text, options in (
        ("llama3_8b:megatron:H100:2:8", ("--framework", "megatron", "--nodes", "2", "--devices", "8")),
        ("llama3_8b:torch:H100", ()),
        ("llama3_8b:torch:DP8SH3H100", ("--layout", "DP8SH3")),
    ):
        assert planned(text) == 0
        found = capsys.readouterr().out
        assert planned("llama3_8b", "--chip", "H100", *options) == 0
        assert capsys.readouterr().out == found


def test_wrong_questions(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    for arguments, says in (
        (("gpt2_small",), "plan gpt2_small: found no chip; give --chip NAME or case:framework:chip"),
        ((CASE, "--chip", "A100"), f"--chip: found it in '{CASE}' too"),
        ((CASE, "--framework", "torch"), "--framework: found it in"),
        (("a::H100",), "expected case:framework"),
        ((CASE, "--compile"), "--compile: expected --rehearse beside it"),
        ((CASE, "--rehearse", "0"), "--rehearse 0: expected 1 to 10, the rows of --top"),
        ((CASE, "--rehearse", "5", "--top", "4"), "--rehearse 5: expected 1 to 4"),
        ((CASE, "--rehearse", "--precision", "bf16"), "found --precision, which only a plan has"),
        ((CASE, "--rehearse", "--explain", "1"), "found --explain"),
        ((CASE, "--rehearse", "--scale", "smoke"), "found --scale smoke, expected full"),
    ):
        assert planned(*arguments) == 2, arguments
        assert says in capsys.readouterr().err
    assert not replay.calls


def test_the_rows_are_shown_planned_beside_measured(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    assert planned(CASE, "--rehearse", "2") == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    before, after = out.split("measured without the device")
    assert "predicted, not measured" in before
    head, first, second = after.splitlines()[1:4]
    assert head.split() == ["row", "layout", "planned", "allocated", "reserved", "failed", "flushes"]
    assert first.split() == ["1", "DP1TP1PP1", "12.41", "11.95", "11.98", "0", "0"]
    assert second.split()[0] == "2"
    assert "row 1 of 2: rehearsing DP1TP1PP1, micro-batch 32, none again" in err and "row 2 of 2: done after" in err


def test_each_row_is_run_with_its_own_choices(replay: Replay, tmp_path: Path) -> None:
    chips = tmp_path / "chips.yaml"
    chips.write_text("schema: levelfield.chips/1\nvendors: {}\n")
    planned("llama3_8b:torch:H100:1:8", "--rehearse", "1", "--chips", os.path.relpath(chips))
    check, row = replay.calls
    assert check == ["llama3_8b:torch:H100-SXM5-80GB:1:8", "--check"]
    assert row[:4] == [check[0], "--json", "--scale", "full"]
    choices = ["--layout", "--micro-batch", "--recompute", "--virtual-pipeline", "--chips"]
    assert row[4::2] == choices and Path(row[-1]).resolve() == chips


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    assert planned(CASE, "--rehearse", "1", "--json") == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["rehearsed"]
    assert (row["row"], row["micro_batch"], row["ranks"], row["why"]) == (1, 32, 1, None)
    assert row["allocated_bytes"] < row["reserved_bytes"] < row["planned_bytes"]
    assert (row["failed_allocations"], row["flushes"], row["graph_breaks"]) == (0, 0, None)
    assert "row 1 of 1" in err


def test_torch_compile_shows_kernels_and_graph_breaks(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    assert planned(CASE, "--rehearse", "1", "--compile") == 0
    assert replay.calls[-1][-1] == "--compile"
    assert "row 1 compiled: 138.3 kernels a layer, no graph break" in capsys.readouterr().out
    replay.write("content['ranks'][0]['compiled_steps'][0]['graph_breaks'] = {'a print': 2, 'an item': 1}")
    assert planned(CASE, "--rehearse", "1", "--compile") == 0
    out = capsys.readouterr().out
    assert "kernels a layer, 3 graph breaks\n  2 x a print\n  1 x an item" in out


def test_a_row_that_fails_says_why_in_one_line(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    for change, says in (
        (
            "content['ranks'][0].update(error='OutOfMemoryError: no memory\\nsecond', exit_code=1)",
            "OutOfMemoryError: no memory",
        ),
        (
            "content['ranks'][0].update(steps=[], exit_code=86, printed='x\\nstand-in: rank 0: hangs')",
            "stand-in: rank 0: hangs",
        ),
        ("content['ranks'][0].update(steps=[], exit_code=-9)", "ended with code -9"),
    ):
        replay.write(change)
        assert planned(CASE, "--rehearse", "1") == 3
        out = capsys.readouterr().out
        assert f"12.41 failed: rank 0: {says}" in " ".join(out.split()) and "second" not in out
    replay.write(f"content['ranks'][0].update(error={OUT_OF_MEMORY!r}, exit_code=1)")
    assert planned(CASE, "--rehearse", "1") == 3
    said = "failed: rank 0: out of memory: 77.69 GiB allocated, 2.00 GiB more asked for planned:"
    assert said in " ".join(capsys.readouterr().out.split())
    replay.write("print('rehearse: gcc failed: a; b', file=sys.stderr); sys.exit(2)")
    assert planned(CASE, "--rehearse", "1", "--json") == 3
    assert json.loads(capsys.readouterr().out)["rehearsed"][0]["why"] == "gcc failed: a; b"


def test_what_the_script_finds_is_shown_and_a_failed_check(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    said = "rank 0: reduce_scatter over 8 ranks (gradients): 0 bytes, expected at least 26,634,387,456"
    replay.write(f"content['findings'] = [{said!r}]")
    assert planned(CASE, "--rehearse", "1") == 4
    out = capsys.readouterr().out
    assert f"row 1: FINDING: {said}" in " ".join(out.split()) and max(map(len, out.splitlines())) <= 80
    assert planned(CASE, "--rehearse", "1", "--json") == 4
    assert json.loads(capsys.readouterr().out)["rehearsed"][0]["findings"] == [said]
    replay.write(f"content['findings'] = [{said!r}]; content['ranks'][0]['error'] = 'x'")
    assert planned(CASE, "--rehearse", "1") == 3


def test_what_is_missing_is_said_before_any_work(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    replay.write(check="'rehearse: found no gcc; install it'")
    assert planned(CASE, "--rehearse") == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "levelfield: error: --rehearse: found no gcc; install it\n")
    replay.script.unlink()
    assert planned(CASE, "--rehearse") == 2
    assert "take a whole checkout of Levelfield" in capsys.readouterr().err


def test_where_nothing_fits_there_is_no_row(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    assert planned("llama3_70b:torch:H100:1:1", "--rehearse") == 2
    out, err = capsys.readouterr()
    assert "no layout fits; the smallest is" in out and "--layout rehearses one all the same" in err
    assert planned("llama3_70b:torch:H100:1:1", "--rehearse", "1", "--layout", "DP1") == 0
    assert len(replay.calls) == 3


def real_refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the script of this checkout refuses, which needs no CUDA build for it."""
    assert planned(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_chips_frameworks_and_pythons_that_cannot_be_rehearsed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "chip MI300X: the stand-in pretends to be one of H100-SXM5-80GB" in real_refusal(
        capsys, "gpt2_small:torch:MI300X:1:8", "--rehearse"
    )
    assert "chip cpu: the stand-in" in real_refusal(capsys, "gpt2_small:torch:cpu", "--rehearse")
    assert "framework jax: the stand-in replaces CUDA for torch" in real_refusal(
        capsys, "gpt2_small:jax:H100:1:1", "--rehearse"
    )
    (tmp_path / "nm").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "found no gcc; the stand-in for CUDA is compiled: install gcc" in real_refusal(capsys, CASE, "--rehearse")
    (tmp_path / "gcc").symlink_to("/bin/true")
    monkeypatch.setenv("LEVELFIELD_CUDA_PYTHON", str(tmp_path / "none"))
    if not (ROOT / ".venvs" / "torch-nvidia").exists():
        said = real_refusal(capsys, CASE, "--rehearse")
        assert "found no Python with a CUDA build of torch" in said
        assert "`run_benchmarks.py environment make torch --vendor nvidia --any-driver` makes one" in said


def test_an_interrupt_ends_the_script_and_keeps_what_was_measured(replay: Replay, tmp_path: Path) -> None:
    marker = tmp_path / "waits"
    replay.write(WAIT.format(log=str(replay.log), marker=str(marker)))
    code = STARTED.format(folder=str(tmp_path), case=CASE)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    process = subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (script,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and not script.is_running()
    assert "  1 DP1TP1PP1                    12.41     11.95    11.98      0       0" in out
