"""The code of a run on other machines: what the nodes' last records say reaches the outcome and the status."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from levelfield.contracts.execution import Outcome
from levelfield.judge.collector import collect
from levelfield.run.code_watch import CodeWatch
from levelfield.rundir.directory import read_plan, write_json
from levelfield.rundir.seal import sealed
from levelfield.specs.paths import RunPaths


def on_nodes(code: str | None, nodes: int) -> Any:
    return SimpleNamespace(
        launch="ssh",
        implementation=SimpleNamespace(rests_on=code, folder="/nowhere"),
        hardware=SimpleNamespace(nodes=nodes),
    )


def test_a_node_whose_code_changed_makes_the_run_invalid(run: RunPaths) -> None:
    planned = str(read_plan(run).implementation.rests_on)
    (run.nodes).mkdir()
    for node, digest in enumerate((planned, "sha256:" + "0" * 64)):
        lines = [{"event": "started"}, {"event": "ended", "cause": "exited", "code": digest}]
        (run.nodes / f"node{node}.record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = CodeWatch(on_nodes(planned, 3), run).judged(Outcome("exited"))
    assert list(outcome.code) == ["at the end of node 0", "at the end of node 1"], "node 2 has no record"
    before = json.loads(run.outcome.read_text())
    assert collect(run).status.word == "tampered"  # the records came after the seal
    for code, word in ((outcome.code, "invalid"), ({"at the end of node 0": planned}, "valid")):
        write_json(run.outcome, sealed(run, {**before, "code": dict(code)}))
        status = collect(run).status
        assert status.word == word, status
        assert ("at the end of node 1 sha256:000000000000" in str(status.reasons)) == (word == "invalid")


def test_damaged_records_say_nothing(run: RunPaths) -> None:
    run.nodes.mkdir()
    for text in ("", "[]", "{", '{"code": 1}', "\ufffd"):
        (run.nodes / "node0.record.jsonl").write_text(text)
        assert CodeWatch(on_nodes("sha256:1", 1), run).judged(Outcome("exited")).code == {}
