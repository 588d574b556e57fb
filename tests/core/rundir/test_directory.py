"""The run directory: made once, found by any name that fits only one, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from datetime import datetime, timezone
from pathlib import Path

import pytest
from levelfield.errors import DocumentError, UnknownName, UsageError
from levelfield.rundir import directory
from levelfield.specs.paths import RunPaths


def test_an_id_says_when_what_and_where_and_is_new_each_time() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    ids = {directory.new_run_id("tiny", "fake", "cpu", now) for _ in range(20)}
    assert len(ids) == 20 and all(i.startswith("20260102T030405Z_tiny_fake_cpu_") for i in ids)


def test_a_new_run_has_its_folders_and_says_that_it_has_not_run(tmp_path: Path) -> None:
    paths = directory.create_run(tmp_path / "runs", "one")
    assert sorted(p.name for p in paths.root.iterdir()) == ["events", "logs", "status.json"]
    status = json.loads(paths.status.read_text())
    assert (status["phase"], status["state"]) == ("made", "not-run")


def test_a_run_directory_is_never_used_twice(tmp_path: Path) -> None:
    directory.create_run(tmp_path, "one")
    with pytest.raises(UsageError, match=r"^not-run: .*/one\b.*exists"):
        directory.create_run(tmp_path, "one")


def test_runs_that_cannot_be_written_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(UsageError) as caught:
        directory.create_run(tmp_path / "runs", "one")
    assert str(tmp_path / "runs") in str(caught.value) and "--runs" in str(caught.value)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in (
        "20260101T000000Z_a_torch_cpu_111111",
        "20260102T000000Z_a_torch_cpu_222222",
        "20260103T000000Z_b_x_y_333333",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
    (tmp_path / "20260104T000000Z_no_plan_here_444444").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("111111", "111111"),
        ("20260102", "222222"),
        ("_b_", "333333"),
        ("latest", "333333"),
        ("20260101T000000Z_a_torch_cpu_111111", "111111"),
    ],
)
def test_a_run_is_found_by_what_only_it_has(runs: Path, name: str, suffix: str) -> None:
    assert directory.find_run(runs, name).root.name.endswith(suffix)


def test_the_latest_run_is_the_one_that_began_last_and_not_the_one_with_the_latest_id(runs: Path) -> None:
    """Of a command with a certificate, the certificate's run has the later id and begins first."""
    plan = next(runs.glob("*222222")) / "plan.json"
    later = (runs / "20260103T000000Z_b_x_y_333333" / "plan.json").stat().st_mtime_ns + 1
    os.utime(plan, ns=(later, later))
    assert directory.find_run(runs, "latest").root.name.endswith("222222")


def test_a_run_of_the_future_is_the_latest_only_where_it_is_alone(runs: Path) -> None:
    folder = next(runs.glob("*111111"))
    ahead = 4_431_000_000 * 10**9  # in the year 2110
    os.utime(folder / "plan.json", ns=(ahead, ahead))
    assert directory.find_run(runs, "latest").root.name.endswith("333333")
    for other in runs.glob("*[!1]"):
        shutil.rmtree(other)
    assert directory.find_run(runs, "latest").root.name.endswith("111111")


def test_a_run_of_a_pair_has_a_name_and_is_never_the_latest(runs: Path) -> None:
    pair = runs / directory.PAIRS_FOLDER / "20260105T000000Z_a_torch_cpu_555555"
    pair.mkdir(parents=True)
    (pair / "plan.json").write_text("{}")
    assert directory.find_run(runs, "555555").root == pair
    assert directory.find_run(runs, "latest").root.name.endswith("333333")


def test_a_run_is_found_by_its_path(runs: Path) -> None:
    folder = next(runs.glob("*333333"))
    assert directory.find_run(runs / "elsewhere", str(folder)).root == folder.resolve()


def test_a_run_s_folder_that_lost_its_plan_is_named(runs: Path) -> None:
    folder = next(runs.glob("*333333"))
    (folder / "plan.json").unlink()
    with pytest.raises(UsageError, match=r"333333: .*\bplan\.json\b"):
        directory.find_run(runs / "elsewhere", str(folder))


def test_a_name_that_fits_several_runs_is_refused_with_them(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"'_a_torch':.*\b2\b.*111111, .*222222;"):
        directory.find_run(runs, "_a_torch")


@pytest.mark.parametrize("name", ["999999", "444444"])
def test_an_unknown_run_says_where_runs_lie(runs: Path, name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        directory.find_run(runs, name)
    assert f"run '{name}'" in str(caught.value) and str(runs) in str(caught.value)


def test_without_any_run_latest_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'latest';.*: none"):
        directory.find_run(tmp_path, "latest")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"repeat": 1', '"repeat": 0', "key 'repeat'"),
        ('"schema"', '"scheme"', "key 'schema'"),
        ("{", "", "not valid json"),
    ],
)
def test_a_damaged_plan_is_named(run: RunPaths, old: str, new: str, says: str) -> None:
    run.plan.write_text(run.plan.read_text().replace(old, new, 1))
    with pytest.raises(DocumentError) as caught:
        directory.read_plan(run)
    assert str(run.plan) in str(caught.value) and says in str(caught.value)


def test_a_write_that_fails_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    directory.write_atomically(path, "old")
    with pytest.raises(TypeError):
        directory.write_atomically(path, 7)  # type: ignore[arg-type]
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    directory.write_atomically(tmp_path / "report.md", "x")
    assert (tmp_path / "report.md").stat().st_mode & 0o777 == 0o644


def test_a_device_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    """`report --output /dev/null` by root made a regular file of it."""
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        null.write_text("")
    except OSError:
        pytest.skip("device files cannot be made here")
    directory.write_atomically(null, "text")
    assert null.is_char_device() and [path.name for path in tmp_path.iterdir()] == ["null"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    file, link, pipe, nothing = (tmp_path / name for name in ("file", "link", "pipe", "nothing"))
    file.write_text("before")
    link.symlink_to(file)
    os.mkfifo(pipe)
    nothing.symlink_to(tmp_path / "absent" / "file")
    directory.write_atomically(link, "after", through_link=True)
    assert link.is_symlink() and file.read_text() == "after"
    for place in (pipe, nothing):
        with pytest.raises(OSError, match=str(place)):
            directory.write_atomically(place, "text", through_link=True)
    assert pipe.is_fifo() and nothing.is_symlink()


def test_a_link_that_nobody_named_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A run directory of somebody else may hold `result.json` as a link to any file of this user."""
    for target in ("thesis.tex", "absent", "pipe", "/dev/null"):
        (tmp_path / "thesis.tex").write_text("precious")
        (tmp_path / "pipe").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "pipe")
        link = tmp_path / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / target)
        directory.write_atomically(link, "after")
        assert not link.is_symlink() and link.read_text() == "after", target
        assert (tmp_path / "thesis.tex").read_text() == "precious" and not (tmp_path / "absent").exists()


def test_an_open_file_of_the_process_is_written_into() -> None:
    """`report --output /dev/stdout` by root made a regular file of it. Here it is a name in a folder without files."""
    reader, writer = os.pipe()
    directory.write_atomically(Path(f"/proc/self/fd/{writer}"), "text")
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read() == "text"
