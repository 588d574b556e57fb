"""The word for a run: each planted fault has its own word, reason and line of evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from levelfield.contracts.execution import Outcome
from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.rundir.directory import read_plan, write_json
from levelfield.specs.paths import RunPaths
from levelfield.specs.requirements import BuildStep
from levelfield.specs.result import PRETENDED, Result, Status
from levelfield.store.run_record import record_of, require_storable
from recorded_runs import (
    Event,
    break_off,
    change_all_steps,
    change_lines,
    change_plan,
    change_steps,
    edit,
    fail,
    report_framework,
)

Plant = Callable[[RunPaths], None]


def status(run: RunPaths) -> Status:
    return collect(run).status


def test_a_whole_run_is_valid(run: RunPaths) -> None:
    assert status(run) == Status(word="valid")


def test_a_run_without_final_weights_is_valid_as_older_ones_are(run: RunPaths) -> None:
    for rank in (0, 1):
        edit(run.events / f"rank{rank}.jsonl", lambda events: [e for e in events if e["event"] != "final_weights"])
    assert status(run) == Status(word="valid")


def test_replicas_may_differ_by_rounding(run: RunPaths) -> None:
    final(times(1 + 1e-6))(run)
    assert status(run) == Status(word="valid")


# -- runs that ended well and are not right


def at(step: int, **values: object) -> Plant:
    return lambda run: change_steps(run, lambda event: event.update(values) if event["step"] == step else None)


def everywhere(**values: object) -> Plant:
    """Both ranks say the same in each step."""
    return lambda run: change_all_steps(run, lambda event: event.update(values))


def milliseconds(event: Event) -> None:
    event["end_ns"] //= 10**6


def parameters(kind: str, change: Callable[[list[Any]], Any]) -> Plant:
    """Change the parameters of one event of rank 1 in place."""
    return lambda run: change_lines(
        run.events / "rank1.jsonl", lambda event: event["event"] == kind and change(event["parameters"])
    )


def final(change: Callable[[list[Any]], Any]) -> Plant:
    return parameters("final_weights", change)


def other_checksum(rows: list[Any]) -> None:
    rows[0][3] = f"{int(rows[0][3], 16) ^ 1:016x}"


def times(factor: float) -> Callable[[list[Any]], Any]:
    return lambda rows: rows[0].__setitem__(3, [factor**2 * rows[0][3][0], *(factor * x for x in rows[0][3][1:])])


def without(kind: str) -> Plant:
    return lambda run: edit(run.events / "rank1.jsonl", lambda events: [e for e in events if e["event"] != kind])


def reporting(**values: str) -> Plant:
    """Change what rank 1 reports of its framework."""
    return lambda run: report_framework(run, 1, **values)


def broken_line(run: RunPaths) -> None:
    path = run.events / "rank1.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], lines[5][:40], *lines[6:]]) + "\n")


def torn_end(run: RunPaths) -> None:
    path = run.events / "rank1.jsonl"
    path.write_bytes(path.read_bytes()[:-5])


UNLIKE = "embedding.weight: ranks 0 and 1 hold different values"
# One fault of each rule of measure/validity.py, whose own tests have the others, and faults of the raw files.
INVALID: dict[str, tuple[Plant, str]] = {
    "missing step": (
        lambda run: edit(run.events / "rank1.jsonl", lambda events: [e for e in events if e.get("step") != 5]),
        "steps: rank 1: step 5 missing",
    ),
    "tokens less by 1 %": (at(7, tokens=31), "tokens: step 7, rank 1: 31 tokens, expected 32"),
    "nan loss": (at(7, loss="nan"), "finite: step 7, rank 1: loss is nan"),
    "nan loss without quotes": (at(7, loss=float("nan")), "finite: step 7, rank 1: loss is nan"),
    "another learning rate": (at(7, learning_rate=0.0), "schedule: step 7, rank 1: learning rate 0, expected 0.00"),
    "losses whose sum overflows": (everywhere(loss=1e308), "finite: step 1, rank 0: loss is inf"),
    "ranks disagree": (at(7, loss=1.9), "loss: step 7: ranks disagree"),
    "the same tokens": (everywhere(tokens_checksum=5), "data: step 1: two data ranks read"),
    "ms for ns": (lambda run: change_steps(run, milliseconds), "clock: ranks' windows last differently"),
    "other weights": (parameters("weights", other_checksum), f"weights: {UNLIKE}"),
    "drifted replicas": (final(times(1.01)), f"final weights: {UNLIKE}"),
    "turned replicas": (final(times(-1)), f"final weights: {UNLIKE}"),
    "nan in final weights": (final(lambda rows: rows[0].__setitem__(3, ["nan"] * 5)), f"final weights: {UNLIKE}"),
    "fewer sums": (final(lambda rows: rows[0].__setitem__(3, rows[0][3][:3])), f"final weights: {UNLIKE}"),
    "final weights cut": (
        final(lambda rows: rows[0].__setitem__(2, [[0, 64], [0, 8]])),
        "final weights: embedding.weight: slices",
    ),
    "final weights of one rank": (without("final_weights"), "final weights: rank 1 reports no weights"),
    "no weights": (without("weights"), "weights: rank 1 reports no weights"),
    "broken line": (broken_line, "raw files: rank1.jsonl line 6: not an event"),
    "another version": (reporting(version="1.2.4"), "framework: ranks 0 and 1 report versions 1.2.3 and 1.2.4"),
    "no end": (without("end"), "rank 1 did not write its end"),
    "torn end": (torn_end, "rank 1 did not write its end"),
    "silent rank": (lambda run: (run.events / "rank1.jsonl").unlink(), "rank 1 did not write its end"),
    "a loss that does not fall": (everywhere(loss=3.6), "acceptance: mean loss of the last 2 steps is 3.6000"),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_run_that_is_not_right_is_invalid_and_has_no_speed(run: RunPaths, name: str) -> None:
    plant, words = INVALID[name]
    plant(run)
    result = collect(run)
    assert result.status.word == "invalid"
    assert any(reason.startswith(words) for reason in result.status.reasons), result.status.reasons
    assert result.throughput is None and result.utilisation == ()
    assert "invalid" in (result.energy.joules.reason or "")


def test_another_name_of_the_framework_is_a_warning(run: RunPaths) -> None:
    assert collect(run).warnings == ()
    reporting(name="torch")(run)
    result = collect(run)
    assert result.status.word == "valid"
    (warning,) = result.warnings
    assert "framework torch" in warning
    assert warning.endswith("called fake")


# -- runs that did not end well

OWN_FAULT = "the own fault"


def word(result: Result) -> tuple[str, str | None]:
    return result.status.word, result.status.failure


def assert_evidence(status: Status, *words: str) -> None:
    """Each of these words is in the evidence, in this order."""
    evidence, place = status.evidence or "", 0
    for text in words:
        assert text in evidence[place:], (text, evidence)
        place = evidence.index(text, place) + len(text)


@pytest.mark.parametrize(
    ("error_class", "expected"),
    [
        ("oom", ("oom", "oom")),
        ("unsupported", ("unsupported", "unsupported")),
        ("non-finite", ("invalid", "non-finite")),
        ("corpus", ("failed", "corpus")),
        ("storage", ("failed", "storage")),
        ("environment", ("failed", "environment")),
        ("error", ("failed", "error")),
    ],
)
def test_a_workers_error_gives_the_word(run: RunPaths, error_class: str, expected: tuple[str, str]) -> None:
    message = "it went wrong"
    break_off(run, 7, {"class": error_class, "message": message, "type": "SomeError"})
    fail(run)
    result = collect(run)
    assert word(result) == expected
    assert result.status.reasons[0] == message
    assert_evidence(result.status, "rank 1: ", "SomeError: ", message, "7 steps")
    assert result.steps_done == 7 and result.loss.first == pytest.approx(3.6) and result.throughput is None


# What libraries print where memory ran out, and what has the words and another cause. Each stands in a public report.
EXHAUSTED = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "MUBLAS_STATUS_ALLOC_FAILED",
    "CNNL_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "rocblas_status_memory_error",
    "MIOpen Error: handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
    "call aclnnMoeDistributeDispatchV2 failed, error code is 207001",
    "Memory_Allocation_Failure(EL0004): Failed to allocate memory.",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB",
    "RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0",
    "NCCL WARN Cuda failure 2 'out of memory'",
    "Error Type: oneflow.ErrorProto.out_of_memory_error",
    "ResourceExhaustedError: Fail to alloc memory of 46549499904 size, error code is 12.",
)
NOT_EXHAUSTED = (
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "call aclnnMoeDistributeDispatchV4 failed, error code is 561000",
    "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.3",
    "RESOURCE_EXHAUSTED: Received message larger than max (5368709 vs. 4194304)",
    "CUDA out of memory. Tried to allocate more than 1EB memory.",
    "NPU out of memory. Tried to allocate more than 1EB memory",
    "NCCL WARN Error: failed to extend /dev/shm/nccl-iG4vTu to 9637892 bytes, error: No space left on device (28)",
    "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    "UCX ERROR ibv_reg_mr(address=0x7f, length=8192, access=0xf) failed: Cannot allocate memory",
    "fi_mr_reg failed, ret is:-12, Cannot allocate memory",
)


@pytest.mark.parametrize(("messages", "expected"), [(EXHAUSTED, "oom"), (NOT_EXHAUSTED, "failed")])
def test_memory_that_ran_out_is_told_by_what_each_library_prints(
    run: RunPaths, messages: Sequence[str], expected: str
) -> None:
    """As the worker's class is, where it knows the words, and as it is where it does not."""
    for message in messages:
        knows = any(words in message.lower() for words in ("out of memory", "cannot allocate memory"))
        break_off(run, 7, {"class": "oom" if knows else "error", "message": message, "type": "RuntimeError"})
        fail(run)
        assert status(run).word == expected, message
        assert status(run).failure == ("oom" if expected == "oom" else "error"), message
        edit(run.events / "rank1.jsonl", lambda events: events[:-1])


def test_an_import_that_finds_no_static_memory_is_no_lack_of_memory(run: RunPaths) -> None:
    message = "scikit_learn.libs/libgomp-d22c30c5.so.1.0.0: cannot allocate memory in static TLS block"
    break_off(run, 7, {"class": "oom", "message": message, "type": "ImportError"})
    fail(run)
    assert word(collect(run)) == ("failed", "environment")


def test_a_size_that_a_lost_peer_left_is_no_cause(run: RunPaths) -> None:
    lost = "CUDA out of memory. Tried to allocate more than 1EB memory."
    error = {"event": "error", "class": "oom", "message": lost, "type": "OutOfMemoryError"}
    edit(run.events / "rank0.jsonl", lambda events: [*events, error])
    break_off(run, 7, {"class": "error", "message": OWN_FAULT, "type": "ValueError"})
    fail(run)
    assert status(run).reasons[0] == OWN_FAULT


@pytest.mark.parametrize("end", [{"exit_code": 1}, {"exit_code": None, "signal": 6}])
def test_native_code_without_memory_ends_the_process_and_its_log_says_why(run: RunPaths, end: dict[str, Any]) -> None:
    memory_line = "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"
    break_off(run, 7)
    log = run.logs / "rank1.log"
    log.write_text(
        f"terminate called\n  what():  Enqueue process failed.\n{memory_line}\nFatal Python error: Aborted\n\n"
    )
    fail(run, **end)
    result = collect(run)
    assert word(result) == ("oom", "oom") and result.status.reasons == (memory_line,)
    assert_evidence(result.status, "rank 1: its log has: ", memory_line, "; 7 steps")
    log.write_text("Allocator ran out of memory. The caller indicates that this is not a failure\nAborted\n")
    assert word(collect(run))[0] == "failed"
    log.write_text(f"{memory_line}\n")
    error = {"event": "error", "class": "error", "message": "connection closed by peer", "type": "RuntimeError"}
    edit(run.events / "rank0.jsonl", lambda events: [*events, error])
    assert word(collect(run))[0] == "oom"
    edit(run.events / "rank0.jsonl", lambda events: [*events[:-1], {**error, "message": OWN_FAULT}])
    assert word(collect(run))[0] == "failed", "only a lost peer is no cause"
    edit(run.events / "rank0.jsonl", lambda events: events[:-1])
    fail(run, **{**end, "stopped_by_us": True})
    assert word(collect(run))[0] == "failed", "the platform ended it, and the memory did not"


@pytest.mark.parametrize("has_event", [True, False])
def test_a_framework_that_lost_a_package_says_how_its_environment_is_made_again(run: RunPaths, has_event: bool) -> None:
    environment = read_plan(run).environment.model_copy(update={"folder": "/somewhere/.venvs/fake-cpu"})
    change_plan(run, environment=environment)
    message = "No module named 'numpy'"
    break_off(
        run, 7, {"class": "environment", "message": message, "type": "ModuleNotFoundError"} if has_event else None
    )
    (run.logs / "rank1.log").write_text(f"ModuleNotFoundError: {message}\n")
    fail(run)
    result = status(run)
    assert (result.word, result.failure) == ("failed", "environment") and message in (result.evidence or "")
    (advice,) = result.reasons[1:]
    assert "/somewhere/.venvs/fake-cpu" in advice
    assert "lost a package" in advice


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("No module named 'network'", "if network is a module of fake itself, put it back: {folder} lacks it"),
        ("No module named 'network.layers'; 'network' is not a package", "if network is a module of fake itself, put"),
        (
            "cannot import name 'Net' from 'network' ({folder}/network.py)",
            "correct the file of fake that the message names",
        ),
    ],
)
def test_a_module_of_the_frameworks_own_folder_is_no_lost_package(run: RunPaths, message: str, words: str) -> None:
    plan = read_plan(run)
    folder = plan.implementation.folder
    builds = (BuildStep(packages=("transformer-engine[pytorch]==2.1",)),)
    changes = {"folder": "/somewhere/.venvs/fake-cpu", "builds": builds}
    change_plan(run, environment=plan.environment.model_copy(update=changes))
    text = message.format(folder=folder)
    break_off(run, 7, {"class": "environment", "message": text, "type": "ImportError"})
    fail(run)
    assert status(run).reasons[1].startswith(words.format(folder=folder))
    environment = "/somewhere/.venvs/fake-cpu"
    assert any(environment in reason for reason in status(run).reasons) == (folder not in text)
    error = {"class": "environment", "message": "No module named 'transformer_engine'", "type": "ImportError"}
    break_off(run, 7, error)
    (advice,) = status(run).reasons[1:]
    assert environment in advice


def test_a_module_that_the_vendor_asks_for_is_named_with_who_asks(run: RunPaths) -> None:
    plan = read_plan(run)
    change_plan(run, access=plan.access.model_copy(update={"preload": ("torch_zen.backend",)}))
    break_off(run, 7, {"class": "environment", "message": "No module named 'torch_zen'", "type": "ImportError"})
    fail(run)
    (advice,) = status(run).reasons[1:]
    assert advice.startswith("fake's vendor.yaml ")
    assert "torch_zen (`preload`)" in advice
    assert f"{plan.environment.python} lacks" in advice


def test_an_import_that_lacks_a_library_of_the_system_names_it(run: RunPaths) -> None:
    message = "libgomp.so.1: cannot open shared object file: No such file or directory"
    break_off(run, 7, {"class": "environment", "message": message, "type": "ImportError"})
    fail(run)
    reason, advice, *_ = status(run).reasons
    assert reason == message
    assert "libgomp.so.1;" in advice
    assert "Debian libgomp1" in advice


def test_a_cause_comes_before_what_follows_from_it(run: RunPaths) -> None:
    break_off(run, 7, {"class": "oom", "message": "no memory", "type": "OutOfMemoryError"})
    follows = {"event": "error", "class": "error", "message": "connection closed by peer", "type": "RuntimeError"}
    edit(run.events / "rank0.jsonl", lambda events: [*events, follows])
    fail(run)
    assert word(collect(run)) == ("oom", "oom")


LESS_USUAL = ("NCCL communicator was aborted on rank 0.", "[Errno 111] Connection refused", "Socket closed")


@pytest.mark.parametrize(
    "lost",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29107. This is typically caused by",
        "UNKNOWN: Gloo all-reduce failed: Read error [10.0.0.2]:1: Connection reset by peer",
        "NCCL error: remote process exited or there was a network error, NCCL version 2.26.2",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "HCCL_E_REMOTE: A call failed possibly due to a network error or a remote process exiting prematurely.",
        *(pytest.param(text, marks=pytest.mark.thorough) for text in LESS_USUAL),
        "Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_a_lost_peer_is_no_cause_where_the_peer_says_more(run: RunPaths, lost: str) -> None:
    error = {"event": "error", "class": "error", "message": lost, "type": "RuntimeError"}
    edit(run.events / "rank0.jsonl", lambda events: [*events, error])
    break_off(run, 7, {"class": "error", "message": OWN_FAULT, "type": "ValueError"})
    fail(run)
    assert status(run).reasons[0] == OWN_FAULT
    assert_evidence(status(run), "rank 1: ", "ValueError: ", OWN_FAULT)
    edit(run.events / "rank1.jsonl", lambda events: events[:-1])  # it ended in native code, or by os._exit
    (run.logs / "rank1.log").write_text("a warning\n")
    fail(run, exit_code=3)
    assert_evidence(status(run), "rank 1", "code 3;", ": a warning")
    fail(run, exit_code=0)
    assert status(run).reasons[0] == lost, "nothing is known of the peer"
    fail(run, exit_code=1, stopped_by_us=True)
    assert status(run).reasons[0] == lost, "nothing is known of the peer"


@pytest.mark.parametrize(("message", "call"), [("0", "0"), ("SystemExit", ""), ("no data", "no data")])
def test_training_code_that_exits_by_itself_is_named(run: RunPaths, message: str, call: str) -> None:
    break_off(run, 7, {"class": "error", "message": message, "type": "SystemExit"})
    fail(run)
    assert status(run).reasons[0].endswith(f" sys.exit({call})")


def test_an_abort_follows_from_a_peer_that_failed_or_was_killed(run: RunPaths) -> None:
    """Paddle and OneFlow abort where gloo raises, and so does NCCL's watchdog."""

    def ends(**end: int) -> Status:
        fail(run)
        outcome = json.loads(run.outcome.read_text())
        aborted = {"rank": 0, "exit_code": None, "signal": 6, "stopped_by_us": False}
        other = {"rank": 1, "exit_code": None, "signal": None, "stopped_by_us": False, **end}
        write_json(run.outcome, {**outcome, "ends": [aborted, other]})
        return status(run)

    break_off(run, 7)
    assert_evidence(ends(signal=9), "rank 1 ", " SIGKILL; ", "7 steps")
    assert_evidence(ends(exit_code=0), "rank 0 ", " SIGABRT; ", "7 steps")
    assert (ends(exit_code=3).evidence or "").startswith("rank 1: ")
    for message, error in ((OWN_FAULT, "ValueError"), ("[Errno 32] Broken pipe", "BrokenPipeError")):
        break_off(run, 7, {"class": "error", "message": message, "type": error})
        assert ends(exit_code=1).reasons == (message,)
        assert_evidence(ends(exit_code=1), "; rank 0 ", " SIGABRT")
        edit(run.events / "rank1.jsonl", lambda events: events[:-1])
    break_off(run, 7, {"class": "error", "message": OWN_FAULT, "type": "ValueError"})
    assert_evidence(ends(signal=11), "rank 1 ", " SIGSEGV; ", "7 steps")
    edit(run.events / "rank1.jsonl", lambda events: events[:-1])
    break_off(run, 7, {"class": "error", "message": "Connection reset by peer", "type": "RuntimeError"})
    assert_evidence(ends(exit_code=1), "rank 0 ", " SIGABRT; ", "7 steps")


def test_an_error_makes_even_a_run_that_exited_fail(run: RunPaths) -> None:
    error = {"event": "error", "class": "error", "message": "late", "type": "E"}
    edit(run.events / "rank1.jsonl", lambda events: [*events, error])
    assert word(collect(run)) == ("failed", "error")


def test_a_rank_killed_from_outside_is_named(run: RunPaths) -> None:
    break_off(run, 7)
    fail(run, exit_code=None, signal=9)
    result = collect(run)
    assert word(result) == ("failed", "killed")
    assert_evidence(result.status, "rank 1 ", " SIGKILL; ", "7 steps")


def test_a_rank_killed_by_the_kernel_for_memory_is_oom(run: RunPaths) -> None:
    break_off(run, 7)
    ends = [{"rank": 1, "exit_code": None, "signal": 9, "stopped_by_us": False}]
    write_json(run.outcome, {"cause": "rank-failed", "ends": ends, "evidence": "x", "extra": {"oom_kills": "1"}})
    assert word(collect(run)) == ("oom", "oom")


@pytest.mark.parametrize("log", ["OSError: [Errno 28] No space left on device", ""])
def test_a_rank_that_failed_on_a_full_disk_is_a_failure_of_storage(run: RunPaths, log: str) -> None:
    """It could not write its own error: the node's part says that the disk was full."""
    (run.logs / "rank1.log").write_text(log)
    break_off(run, 7)
    evidence = "alpha: rank 1 ended with exit code 1; the disk of its run's folder is full (0 bytes free)"
    ends = [{"rank": 1, "exit_code": 1, "signal": None, "stopped_by_us": False}]
    write_json(run.outcome, {"cause": "rank-failed", "ends": ends, "evidence": evidence})
    result = collect(run)
    assert word(result) == ("failed", "storage")
    assert_evidence(result.status, log, evidence)


@pytest.mark.parametrize(
    ("log", "failure", "evidence"),
    [
        (
            "Traceback\nModuleNotFoundError: No module named 'torch'\n\n",
            "environment",
            "ModuleNotFoundError: No module",
        ),
        (
            "some words\nSegmentation fault\n",
            "error",
            "rank 1 ended with exit code 1; its log ends with: Segmentation fault",
        ),
        ("", "error", "rank 1: rank 1 ended with exit code 1"),
        (None, "error", "rank 1: rank 1 ended with exit code 1"),
        ("x" * 999, "error", "exit code 1; its log ends with: " + "x" * 300),
    ],
)
def test_without_an_event_the_logs_last_line_is_the_evidence(
    run: RunPaths, log: str | None, failure: str, evidence: str
) -> None:
    for path in run.events.iterdir():
        path.unlink()
    if log is not None:
        (run.logs / "rank1.log").write_text(log)
    fail(run)
    result = collect(run)
    assert word(result) == ("failed", failure) and evidence in (result.status.evidence or "")
    assert result.steps_done == 0 and result.loss.first is None


@pytest.mark.parametrize(
    ("cause", "evidence", "expected", "words"),
    [
        ("hang", "rank 1 gave no heartbeat for 31 s (limit 30 s)", ("timeout", "hang"), "no heartbeat for 31 s"),
        ("interrupted", "interrupted by the user", ("failed", "interrupted"), "7 steps were finished"),
        ("environment", "pip ended with 1", ("failed", "environment"), "pip ended with 1"),
        ("launch-error", "/no/python: No such file", ("failed", "launch"), "/no/python: No such file"),
        ("corpus", "books: was overwritten", ("failed", "corpus"), "books: was overwritten"),
    ],
)
def test_what_the_platform_saw_gives_the_word(
    run: RunPaths, cause: str, evidence: str, expected: tuple[str, str], words: str
) -> None:
    break_off(run, 7)
    fail(run, cause=cause, evidence=evidence)
    result = collect(run)
    assert word(result) == expected and words in (result.status.evidence or "")
    assert result.steps_done == 7 and result.throughput is None


ENDS_AFTER_THE_STEPS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "a teardown that hangs": (
        {"cause": "hang", "evidence": "no step was finished for 600 s (limit 600 s)"},
        ("timeout", "hang"),
    ),
    "a destructor that fails": ({"exit_code": None, "signal": 11}, ("failed", "killed")),
    "a time limit": ({"cause": "time-limit", "evidence": "Slurm ended the job"}, ("timeout", "time limit")),
}


@pytest.mark.parametrize("name", ENDS_AFTER_THE_STEPS)
def test_a_run_that_ends_badly_after_its_last_step_says_what_was_measured(run: RunPaths, name: str) -> None:
    end, expected = ENDS_AFTER_THE_STEPS[name]
    rate = collect(run).throughput
    assert rate is not None
    measured = f"steps 3 to 12 had {rate.tokens_per_second_per_device:,.6g} tokens/s per device"
    break_off(run, 12)
    fail(run, **end)
    result = collect(run)
    assert word(result) == expected and result.throughput is None and result.utilisation == ()
    assert_evidence(result.status, end.get("evidence", "SIGSEGV"), "; all 12 of 12 steps were finished")
    assert [measured in warning for warning in result.warnings] == [True], result.warnings
    assert result.status.reasons == ("the run hung after its last step",) or expected[1] != "hang"
    at(7, tokens=31)(run)
    assert not any("tokens/s" in warning for warning in collect(run).warnings), "the steps are not right"
    break_off(run, 11)
    assert_evidence(status(run), "; 11 steps were finished")


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_before_any_rank_started_is_not_run(run: RunPaths, started: bool) -> None:
    """While its environment was made, or while it was queued: no run that somebody may count as a failure."""
    if not started:
        for path in run.events.iterdir():
            path.unlink()
    run.outcome.write_text(json.dumps(Outcome("interrupted", (), "interrupted by the user").to_dict()))
    assert word(collect(run)) == ("failed" if started else "not-run", "interrupted")


@pytest.mark.parametrize(
    ("cause", "evidence", "reason", "interrupted"),
    [
        ("hang", "rank 1 gave no heartbeat for 31 s", "the run hung", False),
        ("interrupted", "interrupted by the user", "interrupted by the user", True),
        ("rank-failed", "rank 0 ended with exit code 1", "a rank failed", False),
    ],
)
def test_a_rank_that_cannot_be_ended_has_a_word_and_its_process_is_named(
    run: RunPaths, cause: str, evidence: str, reason: str, interrupted: bool
) -> None:
    break_off(run, 7)
    fail(run, cause=cause, evidence=evidence, exit_code=None, stopped_by_us=True, process=4711, state="D")
    result = collect(run)
    assert word(result) == ("failed", "unkillable") and result.throughput is None and result.steps_done == 7
    assert result.status.reasons[1:] == (reason,)
    assert_evidence(result.status, "rank 1 ", "process 4711", "state D", " SIGKILL; ")
    assert result.status.is_interrupted is interrupted


def test_without_an_outcome_and_steps_the_run_was_not_run(run: RunPaths) -> None:
    run.outcome.unlink()
    for path in run.events.iterdir():
        path.unlink()
    result = collect(run)
    assert word(result) == ("not-run", None) and len(result.status.reasons) == 1


def test_without_an_outcome_the_steps_are_kept_but_never_valid(run: RunPaths) -> None:
    run.outcome.unlink()
    result = collect(run)
    assert word(result) == ("failed", "platform") and result.steps_done == 12 and result.throughput is None


# -- pretended devices


def pretend(run: RunPaths) -> None:
    """As a stand-in for CUDA does: its line is the first of a rank's events."""
    edit(run.events / "rank1.jsonl", lambda events: [{"event": "pretended", "chip": "NVIDIA H100"}, *events])


def test_a_run_on_pretended_devices_is_invalid_whatever_it_says(run: RunPaths) -> None:
    pretend(run)
    result = collect(run)
    assert (result.status.word, result.status.failure) == ("invalid", PRETENDED)
    (reason,) = result.status.reasons
    assert reason.startswith(f"{PRETENDED}: ")
    assert "NVIDIA H100" in reason
    assert result.throughput is None


def test_no_store_takes_a_run_on_pretended_devices(run: RunPaths) -> None:
    pretend(run)
    with pytest.raises(DocumentError, match=PRETENDED):
        require_storable(record_of(run, result=collect(run)), "a run")
