"""Options for the store and for prices, and the values that they stand for.

Modules that import pydantic are imported where a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.options import ParserOrGroup
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


def add_store_option(parser: ParserOrGroup, help_prefix: str = "") -> None:
    parser.add_argument(
        "--store",
        metavar="FILE|URL",
        help=f"{help_prefix}the store of results: a file, or postgresql://... (default: LEVELFIELD_STORE, else "
        "results.sqlite in your data folder)",
    )


def add_prices_option(parser: ParserOrGroup) -> None:
    help_text = "your own prices (docs/cost.md): adds the cost of a million tokens"
    parser.add_argument("--prices", type=Path, metavar="FILE", help=help_text)


def load_prices(path: Path | None, registry: Registry) -> Prices | None:
    """Return the prices of --prices, with the registry's names of chips; None without it.

    A name that the registry lacks stays: a run may have a chip of another plugin or chips file. Raises UsageError for
    a chip that has two prices.
    """
    from levelfield.catalog.chip_names import find_chip
    from levelfield.specs.base import load
    from levelfield.specs.prices import Prices

    if path is None:
        return None
    prices = load(Prices, path)
    spellings: dict[str, str] = {}  # of the file, by the registry's name
    for spelling in prices.chips:
        name = spelling
        with suppress(UsageError):
            name = find_chip(registry, spelling)[1].name
        if name in spellings:
            raise UsageError(
                f"--prices {path}: found '{spellings[name]}' and '{spelling}', which are both {name}; "
                "expected one price of a chip"
            )
        spellings[name] = spelling
    return prices.model_copy(update={"chips": {name: prices.chips[spelling] for name, spelling in spellings.items()}})


def open_store(address: str | None, read_only: bool = False) -> Store:
    from levelfield.store.database import Store

    return Store.open(address, read_only)


def results_for_pages(store: Store, address: str | None, runs: Path) -> StoredResults:
    """Return the results that the pages show.

    Those are all of a store that the user named. The default store has the runs of every checkout: of it, only the
    results of this folder of runs, or all where it has none of them.
    """
    from levelfield.nights.nightly import nights_by_run
    from levelfield.pages.series_history import CheckoutRuns
    from levelfield.rundir.directory import PAIRS_FOLDER
    from levelfield.store.address import STORE_VARIABLE

    if address or os.environ.get(STORE_VARIABLE):
        return store
    run_ids = {plan.parent.name for folder in (runs, runs / PAIRS_FOLDER) for plan in folder.glob("*/plan.json")}
    results = CheckoutRuns(store, run_ids.union(nights_by_run(runs)))
    return results if results.points() else store


def last_night_findings(
    store: Store, nights: Sequence[str], runs: Path, series: Collection[str] | None = None
) -> tuple[tuple[Finding, ...], Tickets]:
    """Return the findings of the last of `nights`, judged again by what the store holds now, and their tickets.

    series: the only series to report on; None for all.
    """
    from levelfield.nights.gate import judge_night
    from levelfield.nights.stored_nights import gate_input
    from levelfield.nights.tickets import NightTickets

    if not nights:
        return (), {}
    inputs = gate_input(store, nights[-1])
    findings = judge_night(inputs, inputs.stored_pairs).findings
    findings = tuple(finding for finding in findings if series is None or finding.series in series)
    return findings, NightTickets(store, inputs, runs).tickets(findings)


def add_recording_options(parser: ParserOrGroup) -> None:
    add_store_option(parser)
    parser.add_argument("--no-store", action="store_true", help="do not record the runs in a store")


def run_recorder(address: str | None, no_store: bool) -> Callable[[RunPaths], None]:
    """Return a function that records a finished run. It does nothing with `no_store` or the address `none`.

    A store that cannot be written changes no run and no exit code. The messages about it go to stderr also with
    --quiet: the user has to record that run again.
    """
    from levelfield.store.address import NO_STORE, STORE_VARIABLE

    if no_store or (address or os.environ.get(STORE_VARIABLE)) == NO_STORE:
        return lambda paths: None

    def say(text: str) -> None:
        print(wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)

    def record(paths: RunPaths) -> None:
        try:
            if _record_run(paths, address):
                say(f"{paths.root.name}: the store has another run of this id; both are kept aside")
        except Exception as error:  # the run is over, and no fault of the store may take its result
            reason = str(error) if isinstance(error, LevelfieldError) else f"{type(error).__name__}: {error}"
            say(f"{paths.root.name} was not recorded: {reason}. Later: `store import {paths.root}`")

    return record


def record_event(event: StoreEvent, address: str | None, no_store: bool) -> None:
    """Add an event to the store that records runs, if any. A store that cannot be written changes no exit code."""
    from levelfield.store.address import NO_STORE, STORE_VARIABLE

    if no_store or (address or os.environ.get(STORE_VARIABLE)) == NO_STORE:
        return
    try:
        with open_store(address) as store:
            store.add_event(event)
    except LevelfieldError as error:
        print(wrapped(f"levelfield: the conclusion was not recorded: {error}", 12), file=sys.stderr, flush=True)


def _record_run(paths: RunPaths, address: str | None) -> bool:
    """Add a run to the store, and return whether the store had another run of its id."""
    from levelfield.store.database import Store  # with SQLAlchemy: only a command that records imports it
    from levelfield.store.run_record import record_of, require_storable

    record = require_storable(record_of(paths), str(paths.root))
    with Store.open(address) as store:
        return bool(store.add([record]).conflicting_runs)
