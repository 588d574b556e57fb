"""How each node's part ended: the run's word names the node, finished steps stay, and what is missing is said."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, Outcome, ProcessEnd
from levelfield.judge.collector import collect
from levelfield.report.one_run import result_lines, run_report
from levelfield.rundir.directory import read_plan, write_json
from levelfield.rundir.node_readings import write_node_software
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result, Status
from node_runs import spread
from recorded_runs import break_off, seal_again
from report_rows import report_rows, terminal_rows

DETAIL = "the connection ended after 12 s"
RANK_1 = "rank 1 on node1 (rack-1)"

STOPPED, ENDED = NodeEnd(0, "rack-0", "stopped"), NodeEnd(0, "rack-0", "ended")
WHOLE = (ProcessEnd(0, 0, None, False), ProcessEnd(1, 0, None, False))


def ended(run: RunPaths, cause: Cause, ends: tuple[ProcessEnd, ...], *nodes: NodeEnd, evidence: str = "x") -> Result:
    """The result of a run whose launcher left this outcome."""
    write_json(run.outcome, Outcome(cause, ends, evidence, nodes=nodes).to_dict())
    seal_again(run)
    return collect(run)


WORDS: list[tuple[Cause, NodeWord, str, str | None, str]] = [
    ("node-lost", "lost", "failed", "node", "a node went away, or the connection to it"),
    ("node-differs", "differs", "not-run", "node", "a node has other code or another environment"),
    ("unreachable", "unreachable", "not-run", "node", "a node could not be reached"),
    ("cancelled", "cancelled", "failed", "cancelled", "somebody else cancelled the job"),
    ("preempted", "preempted", "failed", "preempted", "the engine took the nodes for another job"),
    ("time-limit", "time-limit", "timeout", "time limit", "the engine's time limit ended the job"),
    ("device-taken", "device-taken", "not-run", None, "a device is in use"),
    ("hang", "failed", "timeout", "hang", "the run hung"),
]


@pytest.mark.parametrize(("cause", "node_word", "word", "failure", "reason"), WORDS)
def test_the_word_and_the_node(
    run: RunPaths, cause: Cause, node_word: NodeWord, word: str, failure: str | None, reason: str
) -> None:
    break_off(spread(run), last_step=4)
    ends = (ProcessEnd(0, None, 15, True), ProcessEnd(1, None, None, True))
    node = NodeEnd(1, "rack-1", node_word, DETAIL)
    result = ended(run, cause, ends, STOPPED, node, evidence="the launcher's line")
    status = result.status
    assert (status.word, status.failure, status.reasons) == (word, failure, (reason,))
    evidence = f"the launcher's line; node1 (rack-1): {node_word}: {DETAIL}; 4 steps were finished"
    assert status.evidence == evidence
    assert (result.steps_done, result.throughput) == (4, None)
    assert result.loss.first is not None, "what was finished is kept"


def test_a_failure_that_the_launcher_reports_is_reported_once(run: RunPaths) -> None:
    spread(run)
    cause = "rack-1: it cannot be reached"
    for path in (*run.events.glob("*"), run.node_telemetry(1), run.node_facts(1)):
        path.unlink()
    result = ended(run, "unreachable", (), NodeEnd(1, "rack-1", "unreachable", cause), evidence=cause)
    assert result.status.word == "not-run" and str(result.status.evidence).count(cause) == 1
    assert not any("arrive" in warning for warning in result.warnings)
    assert "\n".join(result_lines(result)).count(cause) == 1
    nodes = terminal_rows(result)["nodes"].partition(" node")[0]
    assert nodes.startswith("1 without ")
    assert nodes.endswith(", 1 unreachable")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("ended", "ended"), "2 of 2 ended"),
        (("failed", "stopped"), "1 failed, 1 stopped"),
        (("failed", "failed"), "2 failed"),
        (("lost", "ended"), "1 lost, 1 ended"),
    ],
)
def test_how_many_nodes_ended_in_which_way(run: RunPaths, words: tuple[NodeWord, NodeWord], row: str) -> None:
    ends = (ProcessEnd(0, 1, None, False), ProcessEnd(1, 1, None, False))
    nodes = (NodeEnd(rank, f"rack-{rank}", word, "why") for rank, word in enumerate(words))
    row_of_nodes = terminal_rows(ended(spread(run), "rank-failed", ends, *nodes))["nodes"]
    assert row_of_nodes.partition(" node")[0] == row


def test_every_cause_of_the_contract_has_a_word(run: RunPaths) -> None:
    for cause in get_args(Cause):
        result = ended(run, cause, (ProcessEnd(1, 1, None, False),))
        assert (result.status.word == "valid") == (cause == "exited"), cause


def test_a_rank_that_failed_has_its_node_beside_it(run: RunPaths) -> None:
    message = "out of memory"
    break_off(spread(run), 4, {"class": "oom", "message": message, "type": "OutOfMemoryError"})
    ends = (ProcessEnd(0, None, 15, True), ProcessEnd(1, 1, None, False))
    status = ended(run, "rank-failed", ends, STOPPED, NodeEnd(1, "rack-1", "failed")).status
    assert status.word == "oom"
    assert (status.evidence or "").startswith(f"{RANK_1}: OutOfMemoryError: {message}; ")


def test_a_killed_rank_has_its_node_beside_it(run: RunPaths) -> None:
    break_off(spread(run), 4)
    result = ended(run, "rank-failed", (ProcessEnd(1, None, 9, False),), STOPPED, NodeEnd(1, "rack-1", "failed"))
    assert (result.status.evidence or "").startswith(f"{RANK_1} ")
    assert "SIGKILL; " in (result.status.evidence or "")


def test_what_each_node_was_is_in_the_result_and_in_the_reports(run: RunPaths) -> None:
    spread(run)
    for node in (0, 1):
        write_json(run.node_software(node), {"driver": "535.1"})
    result = ended(run, "exited", WHOLE, ENDED, NodeEnd(1, "rack-1", "ended"))
    assert result.status == Status(word="valid")
    second = result.machines[1]
    assert (second.node, second.name, second.word, second.missing) == (1, "rack-1", "ended", ())
    assert (second.kernel, second.cores, second.memory_bytes) == ("6.1.0", 4, 2**34)
    assert second.software == {"driver": "535.1"}
    cells = ["rack-1", "ended", "6.1.0", "driver 535.1", "4", "16.00 GiB", "-"]
    assert report_rows(run, result)["1"] == cells


def test_missing_evidence_is_a_warning_and_in_the_report(run: RunPaths) -> None:
    spread(run)
    run.node_telemetry(1).unlink()
    run.node_facts(1).unlink()
    result = ended(run, "exited", WHOLE, ENDED, NodeEnd(1, "rack-1", "ended", missing=("log", "telemetry")))
    assert result.machines[1].missing == ("log", "telemetry", "facts")
    (warning,) = (warning for warning in result.warnings if warning.startswith("node1 (rack-1): "))
    assert "log, telemetry, facts" in warning
    assert result.machines[1].kernel is None and result.machines[1].cores is None


def test_a_run_on_this_machine_has_no_nodes(run: RunPaths) -> None:
    result = collect(run)
    assert result.machines == ()
    assert "node" not in report_rows(run, result)
    assert "nodes" not in terminal_rows(result)


HOSTILE: dict[str, Any] = {
    "no list": {"0": "ended"},
    "a list of words": ["ended", None, 5],
    "a rank that is a word": [{"node_rank": "1", "word": "lost"}],
    "a rank that is true": [{"node_rank": True, "word": "lost"}],
    "texts of any type": [{"node_rank": 1, "name": 5, "word": ["x"], "detail": {}, "missing": "abc"}],
    "a node that is not there": [{"node_rank": 10**30, "name": "x", "word": "lost"}],
    "an endless name": [{"node_rank": 1, "name": "x" * 10**6, "word": "lost", "detail": "\x1b[2J" * 10}],
    "nothing": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_list_of_nodes_ends_nothing(run: RunPaths, name: str) -> None:
    spread(run)
    outcome = json.loads(run.outcome.read_text())
    write_json(run.outcome, {**outcome, "cause": "node-lost", "nodes": HOSTILE[name]})
    seal_again(run)
    result = collect(run)
    assert result.status.word == "failed" and len(result.status.evidence or "") < 1000
    assert len(result.machines) in (0, 2)
    assert run_report(result, read_plan(run)) and result_lines(result)


@pytest.mark.parametrize(
    "facts", ["[]", '{"kernel": 5, "usable_cores": "many", "memory_bytes": -1}', "{", '{"tools": 5}']
)
def test_damaged_facts_are_unknown(run: RunPaths, facts: str) -> None:
    spread(run)
    run.node_facts(1).write_text(facts)
    seal_again(run)
    machine = collect(run).machines[1]
    assert (machine.kernel, machine.cores, machine.memory_bytes, machine.software) == (None, None, None, {})


def test_the_software_of_a_node_is_read_by_the_vendors_adapter(run: RunPaths, registry: Registry) -> None:
    spread(run)
    plan, vendor = read_plan(run), registry.vendor("amd")
    name, command = next(iter(vendor.spec.software.items()))
    tools = {name: {"argv": list(command.command), "text": "driver version: 6.7.8"}}
    run.node_facts(0).write_text(json.dumps({"node_rank": 0, "tools": tools}))
    write_node_software(run, plan, vendor)
    written = json.loads(run.node_software(0).read_text())
    assert name in written and "kernel" not in written
