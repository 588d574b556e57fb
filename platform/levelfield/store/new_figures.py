"""Fills columns that were added to a store after its runs were stored: their figures come from the stored results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, column, func, select, update

from levelfield.specs.run_figures import FORMER_COLUMNS, STORED_FIGURES
from levelfield.specs.vendor import HOST_SHARE
from levelfield.store.compression import inflate, unpack_json
from levelfield.store.rows import COPIED_COLUMNS, disturbance_in, row_digest
from levelfield.store.schema import RAW, RESULT_COLUMN_TYPES, RUN, SERIES

_RUNS_PER_BATCH = 500


def fill_figures(connection: Connection, present_columns: Sequence[str]) -> None:
    """Fill the new columns of every run, and write its digest again. present_columns: those that it had.

    A row that was changed or is damaged stays as it is, so that `store check` names it.
    """
    former_columns = {name: before for before, name in FORMER_COLUMNS.items() if before in present_columns}
    copied_columns = [former_columns.get(name, name) for name in COPIED_COLUMNS]
    new_columns = [name for name in RESULT_COLUMN_TYPES if name not in present_columns]
    series_facts = {number: (inflate(sample), device_is == HOST_SHARE) for number, sample, device_is in
              connection.execute(select(SERIES.c.id, SERIES.c.sample, SERIES.c.device_is))}  # fmt: skip
    query = select(RUN, *map(column, former_columns.values()), RAW.c.steps, RAW.c.losses, RAW.c.documents).join(
        RAW, RAW.c.run_id == RUN.c.id
    )
    values: dict[str, BindParameter[Any]] = {name: bindparam(f"new_{name}") for name in (*new_columns, "row_digest")}
    change = update(RUN).where(RUN.c.id == bindparam("number")).values(values)
    last_id = connection.execute(select(func.coalesce(func.min(RUN.c.id), 0))).scalar_one() - 1
    while rows := connection.execute(query.where(RUN.c.id > last_id).order_by(RUN.c.id).limit(_RUNS_PER_BATCH)).all():
        changes = []
        for row in (row._mapping for row in rows):
            last_id, figures = (
                row["id"],
                new_figures(dict(row), copied_columns, new_columns, *series_facts[row["series_id"]]),
            )
            if figures:
                changes.append({"number": last_id, **{f"new_{name}": value for name, value in figures.items()}})
        if changes:
            connection.execute(change, changes)


def new_figures(
    row: dict[str, Any], copied_columns: Sequence[str], new_columns: Sequence[str], sample: bytes, is_host: bool
) -> dict[str, Any]:
    """Return the new figures of a row and its digest; nothing for a row that is not what its digest says."""
    try:
        if row_digest(row, row, copied_columns) != bytes(row["row_digest"]):
            return {}
        result = unpack_json(row["documents"], sample)[0]
        figures = {
            name: STORED_FIGURES[name].value_and_reason(result, is_host)[0]
            for name in new_columns
            if name in STORED_FIGURES
        }
        figures |= {"disturbance": disturbance_in(result)} if "disturbance" in new_columns else {}
    except (ValueError, TypeError, LookupError):
        return {}
    return {**figures, "row_digest": row_digest({**row, **figures}, row)}
