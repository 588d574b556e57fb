"""Where a store is: URLs, paths, passwords, and file systems on which SQLite is not safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.errors import UsageError
from levelfield.store.address import (
    default_url,
    file_system_kind,
    parse_address,
    refuse_network_file_system,
    without_password,
)

MOUNTS = """\
/dev/vda1 / ext4 rw,relatime 0 0
server:/export /home nfs4 rw 0 0
/dev/vdb1 /home/ann/local\\040disk xfs rw 0 0
tmpfs /home/bob tmpfs rw 0 0
me@host:/x /mnt/ssh fuse.sshfs rw 0 0
"""


def test_the_default_is_a_file_in_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_url() == "sqlite:////data/levelfield/results.sqlite"
    assert parse_address(None).path == Path("/data/levelfield/results.sqlite")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_address(None).path == Path("/home/ann/.local/share/levelfield/results.sqlite")
    monkeypatch.setenv("LEVELFIELD_STORE", "postgresql://ann@server/results")
    assert parse_address(None).text == "postgresql+psycopg://ann@server/results"


def test_a_path_is_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    for text in ("r.sqlite", "sqlite:///r.sqlite", str(tmp_path / "r.sqlite"), f"sqlite:///{tmp_path}/r.sqlite"):
        assert parse_address(text).path == tmp_path / "r.sqlite"
    assert parse_address("~/r.sqlite").path == Path("/home/ann/r.sqlite")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mysql://ann:word@host/db", r"--store mysql://ann:\*\*\*@host/db: found the database 'mysql', expected"),
        ("sqlite:///", "found a folder, expected a file"),
        ("/", "found a folder, expected a file"),
        ("/dev/null", "found a device, a pipe or a socket, expected a file"),
        ("none", "LEVELFIELD_STORE=none: found no store; name one with --store"),
    ],
)
def test_another_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_address(text)


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("postgresql://ann:se:cret@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann@host/db?password=secret&x=1", "postgresql://ann@host/db?password=***&x=1"),
        ("postgresql://ann@host/db", "postgresql://ann@host/db"),
    ],
)
def test_no_password_is_shown(url: str, public: str) -> None:
    assert without_password(url) == public


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/r.sqlite", "ext4"),
        ("/home/carl/r.sqlite", "nfs4"),
        ("/home/ann/local disk/r.sqlite", "xfs"),
        ("/home/bob/r.sqlite", "tmpfs"),
        ("/home/bobby/r.sqlite", "nfs4"),
        ("/mnt/ssh/r.sqlite", "fuse.sshfs"),
    ],
)
def test_the_nearest_mount_decides(path: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert file_system_kind(Path(path), mounts) == kind
    if kind in ("nfs4", "fuse.sshfs"):
        with pytest.raises(UsageError, match=rf"{path}: .*\({kind}\)"):
            refuse_network_file_system(Path(path), mounts)
    else:
        refuse_network_file_system(Path(path), mounts)


def test_a_system_that_names_no_mounts_refuses_nothing(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path / "r.sqlite", tmp_path / "absent")


def test_a_link_to_a_network_counts_as_the_network(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda1 / ext4 rw 0 0\nserver:/x {tmp_path / 'far'} nfs rw 0 0\n")
    assert file_system_kind(tmp_path / "near" / "r.sqlite", mounts) == "nfs"
