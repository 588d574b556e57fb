"""Events: whole lines, whatever ends the process; and the process that ends when it should."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from levelfield.worker import Capture, NonFinite, Recorder, StorageError, Unsupported, checksum_slice
from levelfield.worker.faults import classify
from worker_jobs import environment, events, make_job, run_main


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(make_job(tmp_path))


def test_a_run_in_events(tmp_path: Path, recorder: Recorder) -> None:
    recorder.framework(name="torch", version="2.0", device="cpu", details={"threads": 1})
    recorder.begin()
    memory = {"allocated_peak_bytes": 7, "reserved_peak_bytes": None}
    recorder.step(1, loss=2.5, grad_norm=1.0, tokens=64, learning_rate=1e-3, tokens_checksum=2**64 - 1, memory=memory)
    recorder.step(2, skipped=True, loss_scale=1024.0)
    recorder.close()
    framework, begin, first, second, end = events(tmp_path)
    kinds = [event["event"] for event in (framework, begin, first, second, end)]
    assert kinds == ["framework", "begin", "step", "step", "end"]
    assert begin["end_ns"] <= first["end_ns"] <= second["end_ns"] <= time.monotonic_ns()
    assert first["tokens_checksum"] == 2**64 - 1 and first["memory"]["allocated_peak_bytes"] == 7
    assert second["loss"] is None and second["skipped"] is True and second["tokens"] == 0
    assert (tmp_path / "rank0.alive").exists()


def test_weights_carry_the_checksums_of_the_slice(tmp_path: Path, recorder: Recorder) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    recorder.weights([("w", (4, 4), (slice(2, 4), None), array)])
    name, shape, bounds, checksum = events(tmp_path)[0]["parameters"][0]
    assert (name, shape, bounds) == ("w", [4, 4], [[2, 4], [0, 4]])
    assert int(checksum, 16) == checksum_slice("w", array, (4, 4), (slice(2, 4), None)) and len(checksum) == 16


def test_final_weights_carry_the_sums_of_the_slice(tmp_path: Path, recorder: Recorder) -> None:
    array = np.array([[1, math.nan]], dtype=np.float32)
    recorder.final_weights(
        [("w", (2, 2), (slice(0, 1), None), np.ones((1, 2), np.float32)), ("v", (1, 2), None, array)]
    )
    (event,) = events(tmp_path)
    (name, shape, bounds, sums), (*_, broken) = event["parameters"]
    assert (event["event"], name, shape, bounds) == ("final_weights", "w", [2, 2], [[0, 1], [0, 2]])
    assert sums[0] == 2.0 and len(sums) == 5 and set(broken) == {"nan"}


def test_gradients_are_shares_by_name_and_may_be_no_number(tmp_path: Path, recorder: Recorder) -> None:
    recorder.gradients(2, [("w", np.float32(2.25)), ("b", math.nan)])  # type: ignore[list-item]
    assert events(tmp_path) == [{"event": "gradients", "step": 2, "squares": {"w": 2.25, "b": "nan"}}]


def test_capture_keeps_float32_of_its_step_only(tmp_path: Path) -> None:
    capture = Capture(make_job(tmp_path, capture={"step": 3, "folder": str(tmp_path / "capture")}))
    assert [step for step in range(1, 5) if capture.wants(step)] == [3]
    capture.keep("layers.0", np.ones((2, 3)))  # type: ignore[arg-type]
    array = np.load(tmp_path / "capture" / "layers.0.npy")
    assert array.dtype == np.float32 and array.shape == (2, 3)


def test_without_capture_no_step_is_wanted(tmp_path: Path) -> None:
    assert not Capture(make_job(tmp_path)).wants(1)


def test_capture_is_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Unsupported, match="one process"):
        Capture(make_job(tmp_path, capture={"step": 1, "folder": str(tmp_path)}))


def test_a_capture_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    capture = Capture(make_job(tmp_path, capture={"step": 1, "folder": str(tmp_path / "file")}))
    with pytest.raises(StorageError, match="file"):
        capture.keep("logits", np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("loss", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (np.float32("nan"), "nan")]
)
def test_a_loss_that_is_no_number_is_kept_and_stops(tmp_path: Path, recorder: Recorder, loss: float, text: str) -> None:
    with pytest.raises(NonFinite, match="step 3"):
        recorder.step(3, loss=loss, grad_norm=math.nan)
    (event,) = events(tmp_path)
    assert (event["loss"], event["grad_norm"]) == (text, "nan")


def test_every_line_is_strict_json(tmp_path: Path, recorder: Recorder) -> None:
    loss = np.float32(1.5)
    recorder.step(1, loss=loss, grad_norm=math.inf, loss_scale=np.float64(2.0))  # type: ignore[arg-type]
    line = (tmp_path / "rank0.jsonl").read_text()
    event = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (event["loss"], event["grad_norm"], event["loss_scale"]) == (1.5, "inf", 2.0)


def test_a_killed_process_keeps_its_finished_steps(tmp_path: Path) -> None:
    done = run_main(tmp_path, "for s in range(1, 6): recorder.step(s, loss=1.0)\nos.kill(os.getpid(), 9)")
    assert done.returncode == -signal.SIGKILL
    assert [event["step"] for event in events(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_good_process_ends_with_an_end(tmp_path: Path) -> None:
    done = run_main(tmp_path, "recorder.step(1, loss=1.0)\nprint('out')")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert [event["event"] for event in events(tmp_path)] == ["step", "end"]


@pytest.mark.parametrize(
    ("body", "error_class", "type_name"),
    [
        ("recorder.step(1, loss=float('nan'))", "non-finite", "NonFinite"),
        ("raise Unsupported('no\\nfp8')", "unsupported", "Unsupported"),
        pytest.param("raise CorpusError('x')", "corpus", "CorpusError", marks=pytest.mark.thorough),
        ("raise MemoryError", "oom", "MemoryError"),
        pytest.param(
            *("class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('x')", "oom", "OutOfMemoryError"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *("raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')", "oom", "RuntimeError"),
            marks=pytest.mark.thorough,
        ),
        ("raise RuntimeError('CUDA error: out of memory')", "oom", "RuntimeError"),
        # tests below have a missing module and a full disk, too
        pytest.param("import no_such_framework", "environment", "ModuleNotFoundError", marks=pytest.mark.thorough),
        pytest.param("raise OSError(28, 'No space left on device')", "storage", "OSError", marks=pytest.mark.thorough),
        ("raise ValueError('a\\nb')", "error", "ValueError"),
        ("sys.exit(0)", "error", "SystemExit"),
    ],
)
def test_every_error_has_its_class(tmp_path: Path, body: str, error_class: str, type_name: str) -> None:
    done = run_main(tmp_path, body)
    assert done.returncode == 1
    last = events(tmp_path)[-1]
    assert (last["event"], last["class"], last["type"]) == ("error", error_class, type_name)
    assert "\n" not in last["message"] and last["message"]
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == f"levelfield: {error_class}: {last['message']}"


def test_missing_preloads_are_the_environments_fault(tmp_path: Path) -> None:
    run_main(tmp_path, "recorder.begin()", preload=["json", "no_such_plugin"])
    (event,) = events(tmp_path)
    assert event["class"] == "environment" and "no_such_plugin" in event["message"]


def test_a_full_disk_keeps_whole_lines_and_is_a_storage_error(tmp_path: Path) -> None:
    body = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "for s in range(1, 99): recorder.step(s, loss=1.0)"
    )
    done = run_main(tmp_path, body)
    assert done.returncode == 1
    steps = [event["step"] for event in events(tmp_path) if event["event"] == "step"]
    assert len(steps) > 3 and steps == list(range(1, len(steps) + 1))
    assert done.stderr.splitlines()[-1].startswith("levelfield: storage: ")


def test_a_device_without_space_is_storage(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "rank0.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"rank0\.jsonl") as error:
        Recorder(job).step(1, loss=1.0)
    assert os.strerror(errno.ENOSPC) in str(error.value)
    assert classify(error.value) == "storage"


def test_an_events_folder_that_is_not_there_is_storage(tmp_path: Path) -> None:
    done = run_main(tmp_path, "pass", events_dir=str(tmp_path / "absent"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("levelfield: storage: ")


def test_a_damaged_job_ends_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    code = "from levelfield.worker import run; run(lambda job, recorder: None)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1 and "levelfield.job/1" in done.stderr.splitlines()[-1]


def test_a_process_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    make_job(tmp_path)
    child = (
        "from levelfield.worker import run; import time; run(lambda job, recorder: (recorder.begin(), time.sleep(600)))"
    )
    parent = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True);"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env=environment(tmp_path), stdin=-1, stdout=-1, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    wait_for(lambda: (tmp_path / "rank0.jsonl").exists() and events(tmp_path))
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(pid))
    assert [event["event"] for event in events(tmp_path)] == ["begin"]


def test_the_heartbeat_stops_with_the_process_and_goes_on_with_it(tmp_path: Path) -> None:
    make_job(tmp_path)
    child = "from levelfield.worker import run; import time; run(lambda job, recorder: time.sleep(600))"
    process = subprocess.Popen([sys.executable, "-c", child], env=environment(tmp_path))
    sign = tmp_path / "rank0.alive"
    try:
        wait_for(sign.exists)
        first = sign.stat().st_mtime_ns
        wait_for(lambda: sign.stat().st_mtime_ns > first)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        stopped = sign.stat().st_mtime_ns
        time.sleep(1.5)
        assert sign.stat().st_mtime_ns == stopped
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: sign.stat().st_mtime_ns > stopped)
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # an orphan that nobody reaps is dead too


def test_unsupported_is_not_mistaken_for_memory() -> None:
    unsupported = Unsupported("out of memory")
    assert classify(unsupported) == "unsupported"
    assert classify(PermissionError(13, "Permission denied")) == "error"
