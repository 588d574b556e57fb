"""`evidence acceptance`: judge machines by criteria and runs, into a dossier that expires"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import format_options, print_or_write, registry_of, runs_of, store_option
from levelfield.errors import GateFailed, RunFailed, UnknownName, UsageError
from levelfield.report.sheets import as_form

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.compare.acceptance import PublishedSpeed
    from levelfield.specs.acceptance import AcceptanceCriteria, Dossier, PublishedName
    from levelfield.studies.compared_runs import RunPlaces

_HELP = """\
Judge machines by a file of criteria and by runs: accepted, refused or not
decided, with the evidence of each criterion and the day on which it expires.
For a delivery, and for each return of a machine from repair. docs/acceptance.md
has the criteria. A RUN is named as in `compare`; give failed runs too.

A dossier (--json --output FILE) is checked by giving it without runs: it is
judged again from the runs that it names.

Exit code 0: accepted. 4: refused, or the criteria or the dossier have expired.
3: not decided; the output says how many more runs are needed.

examples:
  run_benchmarks.py evidence acceptance criteria.yaml '20261122*'
  run_benchmarks.py evidence acceptance criteria.yaml RUN1 RUN2 RUN3 --json
  run_benchmarks.py evidence acceptance dossier.json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("file", type=Path, metavar="FILE", help="criteria (.yaml), or a dossier (.json) to check")
    option("side", nargs="*", metavar="RUN", help="runs of the machines, as `compare` names them")
    format_options(parser, says_of_json="the dossier")
    option("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    store_option(parser, "look only in ")


def execute(options: argparse.Namespace) -> int:
    """Print the dossier. Return 0 for accepted, 3 for not decided, 4 for refused. Raises GateFailed past its date."""
    from levelfield.compare.acceptance import refuse_expired, sheets
    from levelfield.specs.acceptance import AcceptanceCriteria, Dossier
    from levelfield.specs.base import dump, parse
    from levelfield.specs.bounded_reading import read_mapping
    from levelfield.studies.compared_runs import RunPlaces

    name, day = str(options.file), today()
    content = read_mapping(options.file)
    is_dossier = isinstance(content, dict) and content.get("schema") == Dossier.schema_name()
    if is_dossier == bool(options.side):
        wrong = "found runs beside a dossier, which names its own" if is_dossier else "found no RUN, expected some"
        raise UsageError(f"evidence acceptance {name}: {wrong}")
    with RunPlaces(runs_of(options), options.store, registry_of(options)) as places:
        if is_dossier:
            found = parse(Dossier, content, name)
            refuse_expired(name, found.expires, day)
            _refuse_changed(found, places, registry_of(options), name)
        else:
            criteria = parse(AcceptanceCriteria, content, name)
            refuse_expired(name, criteria.valid_until, day)
            found = _judged(criteria, options.side, None, places, registry_of(options), day)
    text = dump(found) if options.format == "json" else as_form(options.format, sheets(found))
    print_or_write(text, options.output)
    return {"accepted": 0, "refused": GateFailed.exit_code}.get(found.word, RunFailed.exit_code)


def today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def _judged(
    criteria: AcceptanceCriteria,
    runs: Sequence[str],
    baseline: Sequence[str] | None,
    places: RunPlaces,
    registry: Registry,
    day: str,
) -> Dossier:
    """Return the dossier of these runs. baseline: by id; None: as the criteria name it."""
    from levelfield.compare.acceptance import AcceptanceEvidence, dossier

    speed = criteria.criteria.speed
    named = (speed.baseline if speed else None) or () if baseline is None else baseline
    published = _published_speed(registry, speed.published) if speed and speed.published else None
    every = {run.run_id: run for text in runs for run in places.runs(text)}
    base = {run.run_id: run for text in named for run in places.runs(text)}
    return dossier(criteria, AcceptanceEvidence(tuple(every.values()), tuple(base.values()), published), day)


def _published_speed(registry: Registry, name: PublishedName) -> PublishedSpeed:
    from levelfield.compare.acceptance import PublishedSpeed
    from levelfield.publish.published_rows import rate

    rows = {row.name: row for row in registry.figures(name.set).rows}
    if name.row not in rows:
        raise UnknownName(f"row of {name.set}", name.row, rows)
    setting, (value, how) = rows[name.row].setting, rate(rows[name.row])
    return PublishedSpeed(
        f"{name.set}: {name.row}", value, how, setting.case, setting.precision, setting.nodes, setting.devices_per_node
    )


def _refuse_changed(found: Dossier, places: RunPlaces, registry: Registry, name: str) -> None:
    """Raises GateFailed where the runs that a dossier names do not give it again."""
    runs = [*found.runs, *(each.run for each in found.left_out)]
    again = _judged(found.criteria, runs, list(found.baseline), places, registry, found.made)
    for field in type(found).model_fields:
        stated, recomputed = getattr(found, field), getattr(again, field)
        if stated != recomputed:
            raise GateFailed(f"{name}: {field} does not follow from its runs: found {stated}, recomputed {recomputed}")


COMMANDS = {"evidence acceptance": Command(_HELP, arguments, execute)}
