"""The user's own folders: home, settings, caches and data. An empty variable counts as none, and a relative one of XDG.

`HOME=` would otherwise be the root of the file system. It uses the standard library only, as the installer does.
"""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path

from levelfield.errors import UsageError


def home_folder() -> Path:
    """Return the user's home. Raises UsageError where neither HOME nor the list of users names one."""
    if home := os.environ.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UsageError(f"found no home folder of user {os.getuid()}: set HOME to a folder of yours") from None


def user_name() -> str:
    """Return the user's name, or the number of one that the list of users does not have, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # of Python before and since 3.13
        return str(os.getuid())


def config_folder() -> Path:
    return _xdg_folder("XDG_CONFIG_HOME") or home_folder() / ".config"


def cache_folder() -> Path:
    return _xdg_folder("XDG_CACHE_HOME") or home_folder() / ".cache"


def own_cache() -> Path:
    """Return the folder of the platform's caches."""
    return cache_folder() / "levelfield"


def data_folder() -> Path:
    return _xdg_folder("XDG_DATA_HOME") or home_folder() / ".local" / "share"


def expanded(path: str) -> Path:
    """Return a path with the user's home in place of a leading `~`."""
    return home_folder() / path[2:] if path.startswith("~/") else Path(path).expanduser()


def forget_empty_home() -> None:
    """Remove an empty HOME from the environment: programs that are started here would take the root for it."""
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]


def _xdg_folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else None
