"""`--launcher`, `--site` and `--hosts`: the machines that a run reaches, from the site's file."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import UnknownName, UsageError
from levelfield.publish.flagperf_files import read_hosts
from levelfield.run.launchers import LOCAL, launcher_code, launcher_names
from levelfield.specs.base import load
from levelfield.specs.site import Host, HostsFile, LaunchPlan, Site
from levelfield.user_folders import config_folder

SUFFIXES = (".yaml", ".yml", ".json")


def launch_of(options: argparse.Namespace) -> LaunchPlan | None:
    """Return how other machines are reached; None where the run uses this machine alone.

    The command line has priority over the site's file. Raises UsageError for a launcher or a site that does not exist.
    """
    site = site_of(options.site)
    name = options.launcher or site.launcher or LOCAL
    if name == LOCAL:
        return None
    if name not in launcher_names(options.plugins):
        raise UnknownName("launcher", name, [LOCAL, *launcher_names(options.plugins)])
    hosts = hosts_of(options.hosts or (_hosts_path(options.site, site) if name == "ssh" else None))
    if name == "ssh" and not hosts:
        raise UsageError("--launcher ssh: found no hosts; give --hosts hosts.yaml, or `hosts` in the site's file")
    return LaunchPlan(launcher=name, code=launcher_code(name, options.plugins), site=site, hosts=hosts)


def site_of(given: str | None) -> Site:
    """Return the site of --site: a file, or a name below configs/sites; by default the user's own, or an empty one."""
    path = _site_path(given)
    return load(Site, path) if given or path.is_file() else Site()


def _site_path(given: str | None) -> Path:
    if given is None:
        return user_site()
    if Path(given).suffix in SUFFIXES:
        return Path(given)
    folder = checkout() / "configs" / "sites"
    known = {path.stem: path for path in folder.glob("*.yaml")}
    if given not in known:
        raise UnknownName("site", given, known, hint="A file is named with its ending, such as ./site.yaml.")
    return known[given]


def _hosts_path(given: str | None, site: Site) -> Path | None:
    """Return the path of the site's hosts file, which a relative name gives beside the site's own file."""
    return _site_path(given).parent / site.hosts if site.hosts else None


def user_site() -> Path:
    """Return the path of the user's own site file, which may not exist."""
    return config_folder() / "levelfield" / "site.yaml"


def hosts_of(path: Path | None) -> tuple[Host, ...]:
    """Return the hosts of a hosts file, or of FlagPerf's cluster_conf.py; none without a file."""
    if path is None:
        return ()
    if path.suffix in SUFFIXES:
        return load(HostsFile, path).hosts
    return tuple(Host(name=name) for name in read_hosts(path))
