"""Options for where a run takes place, and the launcher, hosts and image that they stand for.

Modules that import pydantic are imported where a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.options import ParserOrGroup
from levelfield.errors import UnknownName, UsageError
from levelfield.run.launchers import LAUNCHERS, LOCAL, launcher_file, launcher_names
from levelfield.user_folders import config_folder

if TYPE_CHECKING:
    from levelfield.specs.site import Host, LaunchPlan, NodePowerSite, Site

BASE_IMAGE_HELP = "base of the image (default: LEVELFIELD_BASE_IMAGE, else the vendor's image)"
BASE_HAS_FRAMEWORK_HELP = "the base image brings the framework: install nothing into it"
DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")  # of a site's file and of hosts


def add_runtime_option(parser: ParserOrGroup) -> None:
    help_text = "process: a Python environment; docker: a container; inside: this machine is a container"
    parser.add_argument("--runtime", choices=("process", "docker", "inside"), default="process", help=help_text)


def add_site_options(parser: ParserOrGroup) -> None:
    """Add --launcher, --site and --hosts, which `launch_plan` reads."""
    option = parser.add_argument
    names = ", ".join(LAUNCHERS)
    option("--launcher", metavar="NAME", help=f"{names}, or a site's own: runs on other machines")
    option(
        "--site",
        metavar="NAME|FILE",
        help="how these machines are reached (default: ~/.config/levelfield/site.yaml, if it exists)",
    )
    option(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="the nodes of the plan: hosts.yaml, a hostfile of DeepSpeed or MPI, or FlagPerf's cluster_conf.py",
    )


def add_container_options(parser: ParserOrGroup) -> None:
    """Add --runtime and --base-image to a command that runs several builds."""
    help_text = "process: a Python environment; docker: containers, and each build makes its own image"
    parser.add_argument("--runtime", choices=("process", "docker"), default="process", help=help_text)
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE_HELP)


def base_image(name: str | None, runtime: str) -> str | None:
    """Return the image of --base-image, else for containers that of LEVELFIELD_BASE_IMAGE; None for the vendor's."""
    return name or (os.environ.get("LEVELFIELD_BASE_IMAGE") if runtime == "docker" else None)


def launch_plan(
    launcher: str | None, site_name: str | None, hosts_file: Path | None, plugins: Sequence[Path]
) -> LaunchPlan | None:
    """Return how other machines are reached; None where the run uses this machine alone.

    plugins: the folders of --plugins. The command line has priority over the site's file. Raises UsageError for a
    launcher or a site that does not exist.
    """
    from levelfield.specs.site import LaunchPlan

    site = load_site(site_name)
    name = launcher or site.launcher or LOCAL
    if name == LOCAL:
        return None
    if name not in launcher_names(plugins):
        raise UnknownName("launcher", name, [LOCAL, *launcher_names(plugins)])
    site_hosts_file = _site_path(site_name).parent / site.hosts if site.hosts else None
    takes_hosts = name in LAUNCHERS and LAUNCHERS[name].takes_hosts
    hosts = load_hosts(hosts_file or (site_hosts_file if takes_hosts else None))
    if takes_hosts and not hosts:
        raise UsageError(f"--launcher {name}: found no hosts; give --hosts hosts.yaml, or `hosts` in the site's file")
    site_without_power = site.model_copy(update={"node_power": None})  # no record of a run may hold its command
    return LaunchPlan(launcher=name, code=launcher_file(name, plugins), site=site_without_power, hosts=hosts)


def node_power_site(site_name: str | None) -> NodePowerSite | None:
    """Return the site's command for node power; None where it has none, and with LEVELFIELD_NODE_POWER=none."""
    from levelfield.run.node_power import NO_NODE_POWER_ENVIRONMENT

    return None if NO_NODE_POWER_ENVIRONMENT.items() <= os.environ.items() else load_site(site_name).node_power


def load_site(name: str | None) -> Site:
    """Return the site of --site: a file, or a name in configs/sites; by default the user's own, or an empty one."""
    from levelfield.specs.base import load
    from levelfield.specs.site import Site

    path = _site_path(name)
    return load(Site, path) if name or path.is_file() else Site()


def _site_path(name: str | None) -> Path:
    if name is None:
        return config_folder() / "levelfield" / "site.yaml"
    if Path(name).suffix in DOCUMENT_SUFFIXES:
        return Path(name)
    if Path(name).is_file():
        raise UsageError(
            f"--site {name}: found a file that ends in none of {', '.join(DOCUMENT_SUFFIXES)}, expected a site's file; "
            f"a list of hosts follows --hosts: `--launcher ssh --hosts {name}`"
        )
    folder = checkout() / "configs" / "sites"
    sites = {path.stem: path for path in folder.glob("*.yaml")}
    if name not in sites:
        raise UnknownName("site", name, sites, hint="A file is named with its ending, such as ./site.yaml.")
    return sites[name]


def load_hosts(path: Path | None) -> tuple[Host, ...]:
    """Return the hosts of hosts.yaml, FlagPerf's cluster_conf.py, or a hostfile of DeepSpeed or MPI; none without a
    file."""
    from levelfield.cli.hostfile import read_hostfile
    from levelfield.publish.flagperf_files import read_hosts
    from levelfield.specs.base import load, parse
    from levelfield.specs.site import HostsFile

    if path is None:
        return ()
    if path.suffix in DOCUMENT_SUFFIXES:
        return load(HostsFile, path).hosts
    hosts = [{"name": name} for name in read_hosts(path)] if path.suffix == ".py" else read_hostfile(path)
    return parse(HostsFile, {"schema": HostsFile.schema_name(), "hosts": hosts}, str(path)).hosts
