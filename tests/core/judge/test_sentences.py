"""What a user reads of a planted fault, word for word. Other tests compare the facts within these sentences."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from levelfield.contracts.execution import NodeEnd, Outcome, ProcessEnd
from levelfield.judge.collector import collect
from levelfield.rundir.directory import read_plan, write_json
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result
from node_runs import spread
from recorded_runs import (
    BEGIN_NS,
    SECOND_NS,
    Event,
    break_off,
    change_all_steps,
    change_lines,
    change_plan,
    change_steps,
    edit,
    fail,
    report_framework,
    seal_again,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "judge.txt"


def failed_import(run: RunPaths, message: str) -> None:
    environment = read_plan(run).environment.model_copy(update={"folder": "/somewhere/.venvs/fake-cpu"})
    change_plan(run, environment=environment)
    break_off(run, 7, {"class": "environment", "message": message, "type": "ImportError"})
    fail(run)


def exited_by_itself(run: RunPaths) -> None:
    break_off(run, 7, {"class": "error", "message": "0", "type": "SystemExit"})
    fail(run)


def killed(run: RunPaths, number: int) -> None:
    break_off(run, 1)
    fail(run, exit_code=None, signal=number)


def without_event(run: RunPaths) -> None:
    break_off(run, 7)
    (run.logs / "rank1.log").write_text("some words\nSegmentation fault\n")
    fail(run)


def unkillable(run: RunPaths) -> None:
    break_off(run, 7)
    fail(run, cause="hang", exit_code=None, stopped_by_us=True, process=4711, state="D")


def pretended(run: RunPaths) -> None:
    edit(run.events / "rank1.jsonl", lambda events: [{"event": "pretended", "chip": "NVIDIA H100"}, *events])


def little_memory(run: RunPaths) -> None:
    memory = read_plan(run).expected_memory.model_copy(update={"parts": {"weights": 16 * 2**30}})
    change_plan(run, expected_memory=memory)


def no_memory(run: RunPaths) -> None:
    change_steps(run, lambda event: event["memory"].update(allocated_peak_bytes=0))


def paused(run: RunPaths) -> None:
    change_all_steps(run, lambda event: event.update(end_ns=event["end_ns"] + 20 * SECOND_NS * (event["step"] >= 7)))


def fast_clock(run: RunPaths) -> None:
    seconds = {"0": 5, "1": 6}
    seen = {rank: {"begin": [0, 1], "end": [end * SECOND_NS, end * SECOND_NS + 1]} for rank, end in seconds.items()}
    run.outcome.write_text(json.dumps({**json.loads(run.outcome.read_text()), "seen": seen}))
    seal_again(run)


def tool_that_dies(run: RunPaths) -> None:
    def hang(line: Event) -> None:
        if line["time_ns"] > BEGIN_NS + SECOND_NS:
            reasons = dict.fromkeys(("power_watts", "energy_joules", "memory_used_bytes"), "acme-smi hangs")
            line["samples"] = [{"index": sample["index"], "reasons": reasons} for sample in line["samples"]]

    change_lines(run.telemetry, hang)


def kilowatts(run: RunPaths) -> None:
    change_lines(run.telemetry, lambda line: [sample.update(power_watts=0.1) for sample in line["samples"]])


def other_programs(run: RunPaths) -> None:
    def host(lines: list[Event]) -> list[Event]:
        earlier = {"time_ns": lines[0]["time_ns"] - SECOND_NS, "samples": [], "before": True}
        for number, line in enumerate([earlier, *lines]):
            counters = {"busy_seconds": number * 1.5, "own_seconds": number * 1.0, "cores": 2}
            line["host"] = {"time_ns": line["time_ns"], **counters}
        lines[0]["before"] = True
        return [earlier, *lines]

    edit(run.telemetry, host)


def other_name_and_preloaded(run: RunPaths) -> None:
    report_framework(run, 1, name="torch")
    run.provenance.write_text(json.dumps({"inherited": {"LD_PRELOAD": "/opt/lib.so"}}))
    seal_again(run)


def lost_node(run: RunPaths) -> None:
    break_off(spread(run), 4)
    ends = (ProcessEnd(0, None, 15, True), ProcessEnd(1, None, 9, False))
    nodes = (NodeEnd(0, "rack-0", "stopped"), NodeEnd(1, "rack-1", "failed", "its disk is full"))
    write_json(run.outcome, Outcome("rank-failed", ends, "the launcher's line", nodes=nodes).to_dict())
    run.node_facts(1).unlink()
    run.node_telemetry(1).unlink()
    seal_again(run)


def swapped_telemetry(run: RunPaths) -> None:
    spread(run, ahead_ns=0)
    shutil.copy(run.node_telemetry(0), run.node_telemetry(1))
    seal_again(run)


FAULTS: dict[str, Callable[[RunPaths], None]] = {
    "a library of the system is missing": lambda run: failed_import(
        run, "libgomp.so.1: cannot open shared object file: No such file or directory"
    ),
    "a package is missing": lambda run: failed_import(run, "No module named 'numpy'"),
    "the training code exits by itself": exited_by_itself,
    "a rank is killed": lambda run: killed(run, 9),
    "a rank aborts": lambda run: killed(run, 6),
    "a rank ends without an event": without_event,
    "a rank cannot be ended": unkillable,
    "devices are pretended": pretended,
    "the memory is too little": little_memory,
    "a rank uses no memory": no_memory,
    "a step is paused": paused,
    "a worker's clock is fast": fast_clock,
    "the vendor's tool dies": tool_that_dies,
    "the vendor's tool gives kilowatts": kilowatts,
    "other programs run": other_programs,
    "another name, and preloaded code": other_name_and_preloaded,
    "a node is lost": lost_node,
    "a node has the telemetry of another one": swapped_telemetry,
}


def sentences(result: Result) -> Iterator[str]:
    status = result.status
    yield f"{status.word} ({status.failure})" if status.failure else status.word
    yield from (f"reason: {reason}" for reason in status.reasons)
    if status.evidence:
        yield f"evidence: {status.evidence}"
    yield from (f"warning: {warning}" for warning in result.warnings)
    figures = {"energy": result.energy.joules, "memory": result.memory.device_used_peak, "load": result.load}
    yield from (f"no {name}: {figure.reason}" for name, figure in figures.items() if figure and figure.reason)


def test_each_fault_reads_as_in_the_golden_file(recorded: Path, tmp_path: Path) -> None:
    blocks = []
    for name, plant in FAULTS.items():
        folder = tmp_path / name / recorded.name
        run = RunPaths(Path(shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("result.json"))))
        plant(run)
        blocks.append("\n".join((f"## {name}", *sentences(collect(run)))))
    text = "\n\n".join(blocks) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
