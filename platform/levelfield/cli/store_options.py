"""Options of the store and of prices, and what they stand for.

Modules that import pydantic are imported where a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.options import Options
from levelfield.errors import LevelfieldError, UsageError
from levelfield.report.words import wrapped
from levelfield.specs.paths import RunPaths

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.pages.series_history import StoredResults
    from levelfield.series.findings import Finding
    from levelfield.series.ticket import Tickets
    from levelfield.specs.prices import Prices
    from levelfield.specs.record import StoreEvent
    from levelfield.store.database import Store


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


def prices_of(path: Path | None, registry: Registry) -> Prices | None:
    """Return the prices of --prices, by the names of chips; None without it. Raises UsageError for a chip named twice.

    A name that is no chip here stays: a run may have a chip of a folder or a file that is not given.
    """
    from levelfield.catalog.chip_names import find_chip
    from levelfield.specs.base import load
    from levelfield.specs.prices import Prices

    if path is None:
        return None
    prices = load(Prices, path)
    names: dict[str, str] = {}
    for written in prices.chips:
        name = written
        with suppress(UsageError):
            name = find_chip(registry, written)[1].name
        if name in names:
            raise UsageError(
                f"--prices {path}: found '{names[name]}' and '{written}', which are both {name}; "
                "expected one price of a chip"
            )
        names[name] = written
    return prices.model_copy(update={"chips": {name: prices.chips[written] for name, written in names.items()}})


def opened_store(address: str | None, read_only: bool = False) -> Store:
    from levelfield.store.database import Store

    return Store.open(address, read_only)


def results_for_pages(store: Store, address: str | None, runs: Path) -> StoredResults:
    """Return all of a store that was named; of the default one, which has the runs of every checkout, what belongs to
    the one with this folder of runs, and all where nothing does."""
    from levelfield.nights.nightly import nights_of_runs
    from levelfield.pages.series_history import CheckoutRuns
    from levelfield.rundir.directory import PAIRS_FOLDER
    from levelfield.store.address import VARIABLE

    if address or os.environ.get(VARIABLE):
        return store
    run_ids = {plan.parent.name for folder in (runs, runs / PAIRS_FOLDER) for plan in folder.glob("*/plan.json")}
    results = CheckoutRuns(store, run_ids.union(nights_of_runs(runs)))
    return results if results.points() else store


def last_night(
    store: Store, nights: Sequence[str], runs: Path, series: Collection[str] | None = None
) -> tuple[tuple[Finding, ...], Tickets]:
    """Return the findings of the last of these nights, judged again by what the store has, and their tickets.

    series: only findings about these.
    """
    from levelfield.nights.gate import compared
    from levelfield.nights.stored_nights import gate_input
    from levelfield.nights.tickets import NightTickets

    if not nights:
        return (), {}
    night = gate_input(store, nights[-1], None)
    findings = compared(night, night.stored_pairs).findings
    findings = tuple(finding for finding in findings if series is None or finding.series in series)
    return findings, NightTickets(store, night, runs).all(findings)


def recording_options(parser: Options) -> None:
    store_option(parser)
    parser.add_argument("--no-store", action="store_true", help="do not record the runs in a store")


def intake(address: str | None, records_nothing: bool) -> Callable[[RunPaths], None]:
    """Return what records a finished run, or does nothing with `records_nothing` and where the address is `none`.

    A store that cannot be written changes no run and no exit code. Its sentences are on stderr also with --quiet: they
    are about something that the user has to do again.
    """
    from levelfield.store.address import NOWHERE, VARIABLE

    if records_nothing or (address or os.environ.get(VARIABLE)) == NOWHERE:
        return lambda paths: None

    def say(text: str) -> None:
        print(wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)

    def record(paths: RunPaths) -> None:
        try:
            if _recorded(paths, address):
                say(f"{paths.root.name}: the store has another run of this id; both are kept aside")
        except Exception as error:  # the run is over, and no fault of the store may take its result
            what = str(error) if isinstance(error, LevelfieldError) else f"{type(error).__name__}: {error}"
            say(f"{paths.root.name} was not recorded: {what}. Later: `store import {paths.root}`")

    return record


def state(event: StoreEvent, address: str | None, records_nothing: bool) -> None:
    """Add an event where runs are recorded too. A store that cannot be written changes no exit code."""
    from levelfield.store.address import NOWHERE, VARIABLE

    if records_nothing or (address or os.environ.get(VARIABLE)) == NOWHERE:
        return
    try:
        with opened_store(address) as store:
            store.add_event(event)
    except LevelfieldError as error:
        print(wrapped(f"levelfield: the conclusion was not recorded: {error}", 12), file=sys.stderr, flush=True)


def _recorded(paths: RunPaths, url: str | None) -> bool:
    """Add a run to the store, and return whether another run of its id was there."""
    from levelfield.store.database import Store  # with SQLAlchemy: only a command that records imports it
    from levelfield.store.run_record import record_of, require_storable

    record = require_storable(record_of(paths), str(paths.root))
    with Store.open(url) as store:
        return bool(store.add([record]).conflicts)
