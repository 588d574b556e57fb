"""Options that several commands have, and what they stand for.

Modules that import pydantic are imported where a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.errors import LevelfieldError, UnknownName, UsageError
from levelfield.report.words import wrapped
from levelfield.rundir.directory import default_runs, room_left, write_atomically
from levelfield.specs.free_fields import FREE_FIELDS, option
from levelfield.specs.paths import RunPaths
from levelfield.user_folders import config_folder

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.prices import Prices
    from levelfield.specs.site import Host, LaunchPlan, NodePowerSite, Site
    from levelfield.store.database import Store

Options = argparse.ArgumentParser | argparse._ArgumentGroup

RUN_NAME = "a path, a run id, a part of an id, or latest"
BASE_IMAGE = "base of the image (default: LEVELFIELD_BASE_IMAGE, else the vendor's image)"
BASE_HAS_FRAMEWORK = "the base image brings the framework: install nothing into it"
_HERE = "train with this Python; default: an environment that Levelfield makes"
SUFFIXES = (".yaml", ".yml", ".json")


def json_option(parser: Options, more: str = "") -> None:
    parser.add_argument("--json", action="store_true", help=f"machine-readable output{more}")


def format_options(
    parser: Options,
    formats: tuple[str, ...] = ("table", "markdown", "json"),
    says: str | None = None,
    says_of_json: str = "as --format json",
) -> None:
    """Add --format, a table by default, and --json for `--format json`."""
    help_text = says or ", ".join(formats)
    parser.add_argument("--format", choices=formats, default="table", metavar="FORMAT", help=help_text)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=says_of_json)


def quiet_option(parser: Options, shown: str = "result") -> None:
    parser.add_argument("--quiet", action="store_true", help=f"print only the {shown}")


def chips_option(parser: Options) -> None:
    """Add --chips, for commands that look chips up. Reports need none: the plan of a run holds its chip."""
    parser.add_argument(
        "--chips",
        type=Path,
        metavar="FILE",
        help="private chips and corrections (default: ~/.config/levelfield/chips.yaml, if it exists)",
    )


def python_option(parser: Options, says: str = _HERE) -> None:
    parser.add_argument("--python", metavar="PATH", help=says)


def scale_option(parser: Options) -> None:
    parser.add_argument(
        "--scale",
        choices=("auto", "smoke", "full"),
        default="auto",
        help="auto: full on an accelerator with enough memory, else smoke",
    )


def free_options(parser: Options) -> None:
    """Add what a run may choose freely, beside the files that choose it."""
    for name, field in FREE_FIELDS.items():
        if isinstance(field.takes, tuple):
            parser.add_argument(option(name), choices=field.takes, help=field.help)
        elif field.takes is bool:
            parser.add_argument(option(name), action=argparse.BooleanOptionalAction, help=field.help)
        else:
            metavar = "N" if field.takes is int else None
            parser.add_argument(option(name), type=field.takes, metavar=metavar, help=field.help)
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="an environment variable of the training process"
    )
    parser.add_argument(
        "--base", action="store_true", help="the case's defaults alone: no tuning, no setting of a suite"
    )


def runtime_option(parser: Options) -> None:
    says = "process: a Python environment; docker: a container; inside: this machine is a container"
    parser.add_argument("--runtime", choices=("process", "docker", "inside"), default="process", help=says)


def site_options(parser: Options) -> None:
    """Add --launcher, --site and --hosts, which launch_of reads."""
    option = parser.add_argument
    option("--launcher", metavar="NAME", help="ssh, slurm, kubernetes, or a site's own: runs on other machines")
    option(
        "--site",
        metavar="NAME|FILE",
        help="how these machines are reached (default: ~/.config/levelfield/site.yaml, if it exists)",
    )
    option(
        "--hosts", type=Path, metavar="FILE", help="hosts.yaml, or FlagPerf's cluster_conf.py: the nodes of the plan"
    )


def container_options(parser: Options) -> None:
    """Add --runtime and --base-image of commands that run several builds."""
    says = "process: a Python environment; docker: containers, and each build makes its own image"
    parser.add_argument("--runtime", choices=("process", "docker"), default="process", help=says)
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)


def base_image(options: argparse.Namespace) -> str | None:
    """Return the image of --base-image, else for containers that of LEVELFIELD_BASE_IMAGE; None for the vendor's."""
    named: str | None = options.base_image
    return named or (os.environ.get("LEVELFIELD_BASE_IMAGE") if options.runtime == "docker" else None)


def store_option(parser: Options, before: str = "") -> None:
    parser.add_argument(
        "--store",
        metavar="FILE|URL",
        help=f"{before}the store of results: a file, or postgresql://... (default: LEVELFIELD_STORE, else "
        "results.sqlite in your data folder)",
    )


def prices_option(parser: Options) -> None:
    says = "your own prices (docs/cost.md): adds the cost of a million tokens"
    parser.add_argument("--prices", type=Path, metavar="FILE", help=says)


def prices_of(options: argparse.Namespace) -> Prices | None:
    """Return the prices of --prices, by the names of chips; None without it. Raises UsageError for a chip named twice.

    A name that is no chip here stays: a run may have a chip of a folder or a file that is not given.
    """
    from levelfield.catalog.lookup import find_chip
    from levelfield.specs.base import load
    from levelfield.specs.prices import Prices

    if not options.prices:
        return None
    found, registry = load(Prices, options.prices), registry_of(options)
    chips: dict[str, str] = {}
    for given in found.chips:
        name = given
        with suppress(UsageError):
            name = find_chip(registry, given)[1].name
        if name in chips:
            raise UsageError(
                f"--prices {options.prices}: found '{chips[name]}' and '{given}', which are both {name}; "
                "expected one price of a chip"
            )
        chips[name] = given
    return found.model_copy(update={"chips": {name: found.chips[given] for name, given in chips.items()}})


def opened_store(options: argparse.Namespace, read_only: bool = False) -> Store:
    from levelfield.store.database import Store

    return Store.open(options.store, read_only)


def recording_options(parser: Options) -> None:
    store_option(parser)
    parser.add_argument("--no-store", action="store_true", help="do not record the runs in a store")


def intake(options: argparse.Namespace) -> Callable[[RunPaths], None]:
    """Return what records a finished run, or with --no-store does nothing.

    Its sentences are on stderr also with --quiet: they are about something that the user has to do again.
    """
    from levelfield.store.intake import RunIntake

    def say(text: str) -> None:
        print(wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)

    return (lambda paths: None) if options.no_store else RunIntake(say, options.store)


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size in the engines' notation: 512M, 8G, or bytes. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None or not int(match[1]):  # 0 is no limit to an engine
        raise argparse.ArgumentTypeError(f"found '{text}', expected a size in bytes such as 512M or 8G")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def registry_of(options: argparse.Namespace) -> Registry:
    """Return the registry with the plugins and case files, and where the command has --chips, with private chips.

    Raises UsageError for a folder or file that does not exist.
    """
    from levelfield.catalog.registry import Registry, private_chips

    chips = private_chips(options.chips) if hasattr(options, "chips") else None
    return Registry(options.plugins, chips, options.case_file)


def runs_of(options: argparse.Namespace) -> Path:
    return options.runs or default_runs()


def finished_run(options: argparse.Namespace, name: str) -> RunPaths:
    """Return a run that is over. Raises UsageError for one that goes on."""
    from levelfield.rundir import directory

    return directory.finished_run(runs_of(options), name)


@contextmanager
def writing(path: Path, option: str = "--output ") -> Iterator[None]:
    """Turn an error of writing `path` into UsageError with the option that names it."""
    try:
        yield
    except OSError as error:
        said = f"{option}{error.filename or path}: cannot be written: {error.strerror}{room_left(error, path)}"
        raise UsageError(said) from None


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it to the file of --output. Raises UsageError where that cannot be written."""
    if output is None:
        print(text, end="")
        return
    with writing(output):
        write_atomically(output, text, through_link=True)


def launch_of(options: argparse.Namespace) -> LaunchPlan | None:
    """Return how other machines are reached; None where the run uses this machine alone.

    The command line has priority over the site's file. Raises UsageError for a launcher or a site that does not exist.
    """
    from levelfield.run.launchers import LOCAL, launcher_code, launcher_names
    from levelfield.specs.site import LaunchPlan

    site = site_of(options.site)
    name = options.launcher or site.launcher or LOCAL
    if name == LOCAL:
        return None
    if name not in launcher_names(options.plugins):
        raise UnknownName("launcher", name, [LOCAL, *launcher_names(options.plugins)])
    beside = _site_path(options.site).parent / site.hosts if site.hosts else None
    hosts = hosts_of(options.hosts or (beside if name == "ssh" else None))
    if name == "ssh" and not hosts:
        raise UsageError("--launcher ssh: found no hosts; give --hosts hosts.yaml, or `hosts` in the site's file")
    public = site.model_copy(update={"node_power": None})  # no record has the command
    return LaunchPlan(launcher=name, code=launcher_code(name, options.plugins), site=public, hosts=hosts)


def node_power_of(options: argparse.Namespace) -> NodePowerSite | None:
    """Return the site's command for node power; None where it has none, and with LEVELFIELD_NODE_POWER=none."""
    from levelfield.run.node_power import NO_NODE_POWER

    return None if NO_NODE_POWER.items() <= os.environ.items() else site_of(options.site).node_power


def site_of(given: str | None) -> Site:
    """Return the site of --site: a file, or a name below configs/sites; by default the user's own, or an empty one."""
    from levelfield.specs.base import load
    from levelfield.specs.site import Site

    path = _site_path(given)
    return load(Site, path) if given or path.is_file() else Site()


def _site_path(given: str | None) -> Path:
    if given is None:
        return config_folder() / "levelfield" / "site.yaml"
    if Path(given).suffix in SUFFIXES:
        return Path(given)
    folder = checkout() / "configs" / "sites"
    known = {path.stem: path for path in folder.glob("*.yaml")}
    if given not in known:
        raise UnknownName("site", given, known, hint="A file is named with its ending, such as ./site.yaml.")
    return known[given]


def hosts_of(path: Path | None) -> tuple[Host, ...]:
    """Return the hosts of a hosts file, or of FlagPerf's cluster_conf.py; none without a file."""
    from levelfield.publish.flagperf_files import read_hosts
    from levelfield.specs.base import load, parse
    from levelfield.specs.site import HostsFile

    if path is None:
        return ()
    if path.suffix in SUFFIXES:
        return load(HostsFile, path).hosts
    listed = [{"name": name} for name in read_hosts(path)]
    return parse(HostsFile, {"schema": HostsFile.schema_name(), "hosts": listed}, str(path)).hosts


def _refuse_bundle(name: str) -> None:
    from levelfield.studies.compared_runs import bundle_and_run

    if bundle := bundle_and_run(name):
        raise UsageError(f"{bundle[0]}: found a bundle, expected a run here; `report` and `compare` take bundles")


class NamedRuns:
    """The runs of `options.run`, and the errors of those that the command could not take.

    One that goes on or is damaged leaves the others to the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._errors: list[LevelfieldError] = []

    def over(self) -> Iterator[RunPaths]:
        """Return every named run that is over. The error of any other is kept."""
        for name in self._options.run:
            with self.kept_error():
                if ".zip" in name:
                    _refuse_bundle(name)
                yield finished_run(self._options, name)

    @contextmanager
    def kept_error(self) -> Iterator[None]:
        """Keep an error of the block for raise_error."""
        try:
            yield
        except LevelfieldError as error:
            self._errors.append(error)

    def raise_error(self) -> None:
        """Raise the first kept error, with the messages of all. Without one nothing happens."""
        if self._errors:
            first, *_ = self._errors
            first.args = ("\n".join(dict.fromkeys(map(str, self._errors))),)
            raise first
