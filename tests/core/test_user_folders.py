"""The user's folders: an empty variable is none, and a user without a home is told."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest
from levelfield import user_folders
from levelfield.catalog.registry import private_chips_file
from levelfield.corpus.facts import facts_files
from levelfield.errors import UsageError
from levelfield.store.address import default_url, parse_address
from levelfield.user_folders import user_name
from plans import ROOT

FOLDERS = {
    "config_folder": ("XDG_CONFIG_HOME", ".config"),
    "cache_folder": ("XDG_CACHE_HOME", ".cache"),
    "data_folder": ("XDG_DATA_HOME", ".local/share"),
}


@pytest.fixture(params=["", None])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home that the list of users names, where HOME is empty or not set."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "LEVELFIELD_STORE"):
        monkeypatch.delenv(name, raising=False)
    if request.param is not None:
        monkeypatch.setenv("HOME", request.param)
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_an_empty_home_is_none(home: Path) -> None:
    places = [user_folders.own_cache(), facts_files(Path("/x"))[1], parse_address(None).path]
    assert all(home in place.parents for place in places if place)
    assert default_url() == f"sqlite:///{home}/.local/share/levelfield/results.sqlite"
    assert user_folders.expanded("~/x") == home / "x"


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_an_empty_or_relative_variable_is_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    variable, below = FOLDERS[name]
    monkeypatch.setenv(variable, value)
    assert getattr(user_folders, name)() == home / below
    monkeypatch.setenv(variable, "/given")
    assert getattr(user_folders, name)() == Path("/given")


def test_a_user_without_a_home_is_told_and_has_no_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match=rf"user {os.getuid()}: set HOME"):
        user_folders.own_cache()
    assert private_chips_file(None) is None


def test_programs_that_are_started_get_no_empty_home(home: Path) -> None:
    user_folders.forget_empty_home()
    assert "HOME" not in os.environ


def test_no_other_module_reads_these_variables() -> None:
    pattern = re.compile(r"Path\.home\(\)|environ.*(XDG_(CACHE|DATA|CONFIG)_HOME|\"HOME\")")
    readers = {
        path.name
        for path in (ROOT / "platform/levelfield").rglob("*.py")
        if pattern.search(path.read_text()) and "testing" not in path.relative_to(ROOT).parts
    }
    # the other runs on a node: standard library alone
    assert readers == {"user_folders.py", "code_digest.py"}


def test_a_user_whom_no_list_has_is_called_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def absent(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", absent)
    assert user_name() == str(os.getuid())
    monkeypatch.setenv("LOGNAME", "somebody")
    assert user_name() == "somebody"
