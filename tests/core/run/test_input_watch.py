"""Inputs that change during a run: a corpus, whose content decides, and the code, here and by what the nodes record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from levelfield.contracts.execution import Outcome
from levelfield.corpus import integrity
from levelfield.corpus.integrity import check_corpus
from levelfield.errors import CorpusError
from levelfield.judge.collector import collect
from levelfield.node import code_digest
from levelfield.run import input_watch
from levelfield.run.input_watch import CodeWatch, CorpusWatch
from levelfield.rundir.directory import read_plan, write_json
from levelfield.rundir.seal import add_seal
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import CorpusUsed
from plans import ROOT
from planted_corpora import write_megatron, write_paddle

GOOD = Outcome("exited")
TOKENS = {"megatron": ".bin", "paddle": "_ids.npy"}


@pytest.fixture(params=["megatron", "paddle"])
def used(request: pytest.FixtureRequest, tmp_path: Path) -> CorpusUsed:
    """A corpus as a plan names it, after its full check."""
    {"megatron": write_megatron, "paddle": write_paddle}[request.param](tmp_path / "books", [400])
    facts = check_corpus(tmp_path / "books")
    return CorpusUsed(kind=facts.kind, prefix=facts.prefix, digest=facts.digest, tokens=facts.tokens)


def tokens_of(used: CorpusUsed) -> Path:
    return Path(f"{used.prefix}{TOKENS[used.kind]}")


def swap_two(path: Path) -> None:
    """Overwrite in place: two tokens change places, and the size stays."""
    content = bytearray(path.read_bytes())
    content[-4:] = content[-2:] + content[-4:-2]
    with path.open("r+b") as file:
        file.write(content)


def replace_file(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(path.read_bytes())
    swap_two(new)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def overwrite_keeping_its_time(path: Path) -> None:
    before = path.stat()
    swap_two(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [swap_two, replace_file, overwrite_keeping_its_time, Path.unlink])
def test_a_change_during_the_run_ends_a_good_run_otherwise(used: CorpusUsed, change: Callable[[Path], None]) -> None:
    watch, sentences = CorpusWatch(used), list[str]()
    change(tokens_of(used))
    outcome = watch.revise_outcome(GOOD, sentences.append)
    assert outcome.cause == "corpus" and str(used.prefix) in (outcome.evidence or "")
    assert (outcome.evidence or "").startswith("during ")


def test_a_file_that_is_only_touched_is_read_again_and_no_fault(used: CorpusUsed) -> None:
    watch, sentences = CorpusWatch(used), list[str]()
    os.utime(tokens_of(used), (1, 1))
    assert watch.revise_outcome(GOOD, sentences.append) == GOOD
    (sentence,) = sentences
    assert sentence.startswith(f"{used.prefix}: ")


def test_an_unchanged_file_is_not_read_again(used: CorpusUsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_read_all", lambda *arguments: pytest.fail("it was read"))
    assert CorpusWatch(used).revise_outcome(GOOD, pytest.fail) == GOOD


def test_a_corpus_that_was_overwritten_after_its_check_trains_nothing(used: CorpusUsed) -> None:
    swap_two(tokens_of(used))
    with pytest.raises(CorpusError, match=f"{used.prefix}: was overwritten.*sha256:.*{used.digest[:19]}"):
        CorpusWatch(used)


def test_a_run_that_failed_keeps_its_own_cause(used: CorpusUsed) -> None:
    watch = CorpusWatch(used)
    swap_two(tokens_of(used))
    failed = Outcome("rank-failed", (), "rank 0 ended with exit code 1")
    assert watch.revise_outcome(failed, pytest.fail) == failed


def test_a_synthetic_corpus_has_no_files() -> None:
    synthetic = CorpusUsed(kind="synthetic", digest="sha256:0", entropy_nats=1.0)
    assert CorpusWatch(synthetic).revise_outcome(GOOD, pytest.fail) == GOOD


# ---- the code


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
    outcome = CodeWatch(on_nodes(planned, 3), run).revise_outcome(GOOD)
    assert [key.split()[-1] for key in outcome.code] == ["0", "1"], "node 2 has no record"
    before = json.loads(run.outcome.read_text())
    assert collect(run).status.word == "tampered"  # the records came after the seal
    for code, word in ((outcome.code, "invalid"), ({"at the end of node 0": planned}, "valid")):
        write_json(run.outcome, add_seal(run, {**before, "code": dict(code)}))
        status = collect(run).status
        assert status.word == word, status
        facts = ("node 1", "sha256:000000000000")
        assert all(fact in str(status.reasons) for fact in facts) == (word == "invalid")


def here(tmp_path: Path, ranks: int = 2) -> Any:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    return SimpleNamespace(
        launch=None,
        world_size=ranks,
        implementation=SimpleNamespace(rests_on="sha256:1", folder=str(folder)),
        hardware=SimpleNamespace(nodes=1),
    )


def test_a_file_that_disappears_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = here(tmp_path)
    first, last = (Path(plan.implementation.folder) / name for name in ("a.py", "z.py"))
    first.write_text(""), last.write_text("")
    monkeypatch.setattr(input_watch, "source_files", lambda folder: [first, folder / "gone.py", last])
    monkeypatch.setattr(input_watch, "shared_folders", lambda folder: ())
    assert set(CodeWatch(plan, RunPaths(tmp_path))._file_states()) == {first, last}


def test_what_the_digest_of_the_code_covers_is_not_from_elsewhere(tmp_path: Path) -> None:
    plan, paths = here(tmp_path), RunPaths(tmp_path / "run")
    paths.logs.mkdir(parents=True)
    covered = {"path": f"{plan.implementation.folder}/train.py", "sha256": "a"}
    other = {"path": f"{plan.implementation.folder}2/train.py", "sha256": "b"}
    (paths.logs / "rank0.imported.json").write_text(json.dumps({"files": [covered, other]}))
    outcome = CodeWatch(plan, paths).revise_outcome(GOOD)
    assert outcome.uncovered_imports is not None and outcome.uncovered_imports.keys() == {other["path"], "rank 1"}
    assert outcome.uncovered_imports[other["path"]] == "b"
    for damaged in ("", "[]", '{"files": 1}', '{"files": [1]}', '{"files": [{}]}'):
        (paths.logs / "rank1.imported.json").write_text(damaged)
        assert set(dict(CodeWatch(plan, paths).revise_outcome(GOOD).uncovered_imports or {})) == {
            other["path"],
            "rank 1",
        }
    assert CodeWatch(plan, paths).revise_outcome(Outcome("hang")).uncovered_imports is None


def test_a_process_reports_what_it_imported_from_elsewhere_however_it_ends(tmp_path: Path) -> None:
    """And the module that the environment has under the same name is imported too."""
    (tmp_path / "hidden.py").write_text("x = 1\n")
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    for number, ending in enumerate(("os._exit(0)", "sys.exit(0)", "os._exit(3)", "pass")):
        file = tmp_path / f"{number}.json"
        both = f"{ROOT / 'platform'}:{ROOT / 'platform/levelfield/node/imported'}:{tmp_path}"
        environment = {"PYTHONPATH": both, "LEVELFIELD_IMPORTS_FILE": str(file)}
        argv = [sys.executable, "-c", f"import os, sys, json, hidden\n{ending}"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        assert done.stderr == "" and ("own" in done.stdout) == (not ending.startswith("os."))
        content = json.loads(file.read_text())["files"]
        assert [item["path"] for item in content] == [str(tmp_path / n) for n in ("hidden.py", "sitecustomize.py")]


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
    for folder, is_listed in ((library, False), (there, True)):
        module = ModuleType("linked")
        module.__file__ = str(folder / "linked.py")
        monkeypatch.setitem(sys.modules, "linked", module)
        imported = [item["path"] for item in code_digest.uncovered_files()]
        assert (str(there / "linked.py") in imported) == is_listed


def test_damaged_records_say_nothing(run: RunPaths) -> None:
    run.nodes.mkdir()
    for text in ("", "[]", "{", '{"code": 1}', "\ufffd"):
        (run.nodes / "node0.record.jsonl").write_text(text)
        assert CodeWatch(on_nodes("sha256:1", 1), run).revise_outcome(GOOD).code == {}
