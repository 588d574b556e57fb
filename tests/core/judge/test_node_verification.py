"""Bundles of runs on two nodes: they follow, name no machine, and show which node's files are another machine's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import bundled, enrich, members_of
from levelfield.cli.main import main
from levelfield.rundir.directory import write_json
from levelfield.rundir.seal import seal_finding
from levelfield.specs.paths import RunPaths
from node_runs import HOUR_NS, lines_of, spread, write_lines
from plans import PLUGINS
from recorded_runs import Event, seal_again

HOSTS = ("rack-0", "rack-1", "10.0.0.1", "10.0.0.2", "02:42:0a:00:00:01", "login.example.org")


def on_two(run: RunPaths, wall_ahead_ns: int = 0) -> RunPaths:
    """A run of two nodes with all that a real one has."""
    enrich(run)
    spread(run, wall_ahead_ns=wall_ahead_ns)
    outcome = json.loads(run.outcome.read_text())
    end: Event = {"word": "ended", "detail": None, "missing": []}
    ends = [{"node_rank": node, "name": f"rack-{node}", **end} for node in (0, 1)]
    write_json(run.outcome, {**outcome, "nodes": ends})
    sent = {"common_stdin": '{"first_node": "10.0.0.1"}\n', "submissions": [{"name": "rack-0", "stdin": "{}"}]}
    write_json(run.request, sent)
    (run.logs / "rank1.log").write_text("connected to rack-0 at 10.0.0.1\n")
    for node in (0, 1):
        raw = {"time_ns": 1, "wall_ns": 2, "outputs": [{"argv": ["chip-smi"], "text": f"0, rack-{node}"}], "host": None}
        write_lines(run.node_raw_telemetry(node), [raw])
        work = {"node_rank": node, "name": f"rack-{node}", "root": "/var/tmp/run", "first_node": "10.0.0.1"}
        work["peer"] = f"10.0.0.{2 - node}"
        (run.nodes / f"node{node}.json").write_text(json.dumps(work))
        write_lines(run.nodes / f"node{node}.record.jsonl", [{"time_ns": 1, "event": "started"}])
    seal_again(run)
    return run


def verified(path: Path, capsys: pytest.CaptureFixture[str]) -> Event:
    capsys.readouterr()
    main(["evidence", "verify", str(path), "--json", "--plugins", str(PLUGINS)])
    return json.loads(capsys.readouterr().out)["runs"][0]


@pytest.mark.parametrize("wall_ahead_ns", [0, HOUR_NS], ids=["same day", "an hour apart"])
def test_a_bundle_of_two_nodes_follows(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], wall_ahead_ns: int
) -> None:
    verification = verified(bundled(tmp_path / "b.zip", on_two(run, wall_ahead_ns=wall_ahead_ns)), capsys)
    assert (verification["word"], verification["contradictions"]) == ("follows", [])
    notes = [note for note in verification["notes"] if "by that node's time of day" in note]
    assert len(notes) == (wall_ahead_ns > 0) and all(note.startswith("node1: ") for note in notes)


def test_it_names_no_machine_and_keeps_what_names_none(run: RunPaths, tmp_path: Path) -> None:
    members = members_of(bundled(tmp_path / "b.zip", on_two(run)))
    text = b"\n".join(members.values()).decode()
    assert [name for name in HOSTS if name in text] == []
    names = {name.partition(f"{run.root.name}/")[2] for name in members}
    assert {"telemetry/node0.jsonl", "telemetry/node1.raw.jsonl", "nodes/node1.facts.json"} <= names
    assert '"kernel": "6.1.0"' in text and "host-1" in text


def another_machines(run: RunPaths) -> None:
    """Telemetry of a machine that was started an hour later, beside events of a machine with the same clock."""
    for node in (0, 1):
        later = [{**line, "wall_ns": line["wall_ns"] + node * HOUR_NS} for line in lines_of(run.node_telemetry(node))]
        write_lines(run.node_telemetry(node), later)


def swap(run: RunPaths) -> None:
    first, second = lines_of(run.node_telemetry(0)), lines_of(run.node_telemetry(1))
    write_lines(run.node_telemetry(0), second)
    write_lines(run.node_telemetry(1), first)


FORGED: dict[str, tuple[Callable[[RunPaths], None], str]] = {
    "swapped": (swap, "node0: events: first time"),
    "another machine's": (another_machines, "telemetry/node1.jsonl: clocks: "),
}


@pytest.mark.parametrize("name", FORGED)
def test_another_machines_telemetry_contradicts(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    on_two(run)
    FORGED[name][0](run)
    seal_again(run)
    code = main(["evidence", "bundle", str(run.root), "--output", str(tmp_path / "b.zip"), "--plugins", str(PLUGINS)])
    assert code == 2 and FORGED[name][1] in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["telemetry/node1.jsonl", "telemetry/node0.raw.jsonl", "nodes/node0.facts.json", "nodes/node1.record.jsonl"]
)
def test_a_changed_file_of_a_node_is_found(run: RunPaths, name: str) -> None:
    on_two(run)
    assert seal_finding(run).word == "sealed"
    path = run.root / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert (seal_finding(run).word, name in (seal_finding(run).reason or "")) == ("tampered", True)


def test_an_added_node_file_is_found(run: RunPaths) -> None:
    write_lines(on_two(run).node_telemetry(2), [])
    assert "telemetry/node2.jsonl was" in (seal_finding(run).reason or "")
