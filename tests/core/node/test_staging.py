"""An environment that is packed once and unpacked once on each node's own disk."""

from __future__ import annotations

import fcntl
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from agents import Node
from levelfield.contracts.execution import NodesNotReady
from levelfield.node import node_setup
from levelfield.node.node_setup import SetupError, stage_environment
from levelfield.run.launchers.slurm.slurm_launcher import _pack_environment

DIGEST = "sha256:" + "7" * 64


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An environment's folder, packed as for a run."""
    folder = tmp_path / "shared" / "torch-cuda"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/module.py").write_text("x = 1\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/tool").write_text("#!/bin/sh\n")
    (folder / "bin/tool").chmod(0o755)
    (folder / node_setup.STAMP).write_text(json.dumps({"digest": DIGEST}))
    (folder / "staged-old.tar").write_bytes(b"old")
    _pack_environment(folder / "staged-new.tar")
    return folder / "staged-new.tar"


def silent() -> None:
    """Nothing is told."""


def content(folder: Path) -> dict[str, Any]:
    """Return the target of each link and the mode of each file, by name."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.stat().st_mode & 0o777
        for path in paths
    }


def test_what_was_packed_is_unpacked_once(archive: Path, tmp_path: Path) -> None:
    place = tmp_path / "local" / "torch-cuda-7777"
    assert stage_environment(archive, place, DIGEST, silent)
    shared = content(archive.parent)
    assert content(place) == {name: value for name, value in shared.items() if not name.startswith("staged-")}
    archive.unlink()
    assert not stage_environment(archive, place, DIGEST, silent)  # the second run needs no archive
    with pytest.raises(SetupError, match="staged-new"):
        stage_environment(archive, place, "sha256:other", silent)


def test_a_truncated_archive_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    os.truncate(archive, 700)
    place = tmp_path / "local" / "torch-cuda-7777"
    with pytest.raises(SetupError, match="staged-new"):
        stage_environment(archive, place, DIGEST, silent)
    assert [path.name for path in place.parent.iterdir()] == [f"{place.name}.lock"]


def test_an_archive_that_was_cut_between_two_members_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    """Its stamp is missing: the archive ended early, without an error of the format."""
    with tarfile.open(archive) as whole:
        places = [member.offset for member in whole]
    place = tmp_path / "local" / "a"
    for end in places[:0:-1]:
        os.truncate(archive, end)
        with pytest.raises(SetupError, match=f"{archive.name}: .* stamp"):
            stage_environment(archive, place, DIGEST, silent)
        assert not place.exists()


def test_a_folder_of_others_is_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local").chmod(0o777)
    with pytest.raises(SetupError, match=r"local: found mode 0777,.* expected 0700"):
        stage_environment(archive, tmp_path / "local" / "a", DIGEST, silent)


def test_a_node_that_waits_for_another_job_says_so(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_setup, "SIGN_SECONDS", 0.05)
    place, waiting = tmp_path / "local" / "a", threading.Event()
    node_setup.make_private_folder(place.parent)
    with place.with_name("a.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        worker = threading.Thread(target=stage_environment, args=(archive, place, DIGEST, waiting.set))
        worker.start()
        assert waiting.wait(20) and not place.exists()
    worker.join(20)
    assert place.is_dir()


def test_an_environment_that_cannot_be_packed_ends_the_run(archive: Path) -> None:
    with pytest.raises(NodesNotReady, match=r"missing.*slurm\.local_folder"):
        _pack_environment(archive.parent / "missing" / "staged-x.tar")


def test_the_node_s_part_stages_before_it_looks_at_the_stamp(node: Node, archive: Path, tmp_path: Path) -> None:
    place = tmp_path / "local" / "torch-cuda-7777"
    packed = {"archive": str(archive), "folder": str(place), "digest": DIGEST}
    expected = {"environment": DIGEST, "stamp": str(place / node_setup.STAMP)}
    assert node.run(node.work("print('ok')", stage=packed, expected=expected)) == 0
    (staged,) = [line for line in node.record() if line["event"] == "staged"]
    assert staged["is_new"] and staged["folder"] == str(place)


@pytest.mark.parametrize("fault", ["missing", "truncated", "no archive"])
def test_a_node_that_cannot_stage_is_named(node: Node, archive: Path, tmp_path: Path, fault: str) -> None:
    if fault == "missing":
        archive.unlink()
    elif fault == "truncated":
        os.truncate(archive, 700)
    else:
        archive.write_bytes(b"x" * 4096)
    packed = {"archive": str(archive), "folder": str(tmp_path / "local" / "a"), "digest": DIGEST}
    assert node.run(node.work("print('ok')", stage=packed)) == 1
    assert node.ended()["cause"] == "launch-error" and str(archive) in node.ended()["evidence"]
