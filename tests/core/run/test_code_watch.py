"""The code of a run on other machines: what the nodes' last records say reaches the outcome and the status."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from levelfield.contracts.execution import Outcome
from levelfield.judge.collector import collect
from levelfield.node import code_digest
from levelfield.run.input_watch import CodeWatch
from levelfield.rundir.directory import read_plan, write_json
from levelfield.rundir.seal import sealed
from levelfield.specs.paths import RunPaths
from plans import ROOT


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


def here(tmp_path: Path, ranks: int = 2) -> Any:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    return SimpleNamespace(
        launch=None,
        world_size=ranks,
        implementation=SimpleNamespace(rests_on="sha256:1", folder=str(folder)),
        hardware=SimpleNamespace(nodes=1),
    )


def test_what_the_digest_of_the_code_covers_is_not_from_elsewhere(tmp_path: Path) -> None:
    plan, paths = here(tmp_path), RunPaths(tmp_path / "run")
    paths.logs.mkdir(parents=True)
    own = {"path": f"{plan.implementation.folder}/train.py", "sha256": "a"}
    other = {"path": f"{plan.implementation.folder}2/train.py", "sha256": "b"}
    (paths.logs / "rank0.imported.json").write_text(json.dumps({"files": [own, other]}))
    outcome = CodeWatch(plan, paths).judged(Outcome("exited"))
    assert outcome.elsewhere == {other["path"]: "b", "rank 1": "it did not say what it imported"}
    for damaged in ("", "[]", '{"files": 1}', '{"files": [1]}', '{"files": [{}]}'):
        (paths.logs / "rank1.imported.json").write_text(damaged)
        assert set(dict(CodeWatch(plan, paths).judged(Outcome("exited")).elsewhere or {})) == {other["path"], "rank 1"}
    assert CodeWatch(plan, paths).judged(Outcome("hang")).elsewhere is None


def test_a_process_reports_what_it_imported_from_elsewhere_however_it_ends(tmp_path: Path) -> None:
    """And the module that the environment has under the same name is imported too."""
    (tmp_path / "hidden.py").write_text("x = 1\n")
    (tmp_path / "sitecustomize.py").write_text("print('the own one')\n")
    for number, ending in enumerate(("os._exit(0)", "sys.exit(0)", "os._exit(3)", "pass")):
        file = tmp_path / f"{number}.json"
        both = f"{ROOT / 'platform'}:{ROOT / 'platform/levelfield/node/imported'}:{tmp_path}"
        environment = {"PYTHONPATH": both, "LEVELFIELD_IMPORTS_FILE": str(file)}
        argv = [sys.executable, "-c", f"import os, sys, json, hidden\n{ending}"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        assert done.stderr == "" and ("the own one" in done.stdout) == (not ending.startswith("os."))
        listed = json.loads(file.read_text())["files"]
        assert [each["path"] for each in listed] == [str(tmp_path / n) for n in ("hidden.py", "sitecustomize.py")]


def test_a_link_in_the_folder_of_pythons_library_is_not_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's sitecustomize.py is one, to a file below /etc."""
    library, there = tmp_path / "library", tmp_path / "etc"
    library.mkdir()
    there.mkdir()
    (there / "linked.py").write_text("")
    (library / "linked.py").symlink_to(there / "linked.py")
    paths = {**sysconfig.get_paths(), "stdlib": str(library)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    for folder, listed in ((library, False), (there, True)):
        module = ModuleType("linked")
        module.__file__ = str(folder / "linked.py")
        monkeypatch.setitem(sys.modules, "linked", module)
        found = [each["path"] for each in code_digest.imported_from_elsewhere()]
        assert (str(there / "linked.py") in found) == listed


def test_damaged_records_say_nothing(run: RunPaths) -> None:
    run.nodes.mkdir()
    for text in ("", "[]", "{", '{"code": 1}', "\ufffd"):
        (run.nodes / "node0.record.jsonl").write_text(text)
        assert CodeWatch(on_nodes("sha256:1", 1), run).judged(Outcome("exited")).code == {}
