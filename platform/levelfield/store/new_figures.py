"""Fills the columns of figures that a store did not have yet when its runs were stored, from their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, column, func, select, update

from levelfield.specs.run_figures import FORMER_COLUMNS, STORED
from levelfield.specs.vendor import HOST_SHARE
from levelfield.store.compression import inflate, unpack_json
from levelfield.store.rows import COPIED_COLUMNS, disturbance_in, row_digest
from levelfield.store.schema import FROM_RESULTS, RAW, RUN, SERIES

_BATCH = 500


def fill_figures(connection: Connection, present: Sequence[str]) -> None:
    """Fill the new columns of every run, and write its digest again. present: the columns of figures before.

    A row that was changed or is damaged stays as it is, so that `store check` names it.
    """
    former = {name: before for before, name in FORMER_COLUMNS.items() if before in present}
    plain = [former.get(name, name) for name in COPIED_COLUMNS]
    new = [name for name in FROM_RESULTS if name not in present]
    around = {number: (inflate(sample), device_is == HOST_SHARE) for number, sample, device_is in
              connection.execute(select(SERIES.c.id, SERIES.c.sample, SERIES.c.device_is))}  # fmt: skip
    query = select(RUN, *map(column, former.values()), RAW.c.steps, RAW.c.losses, RAW.c.documents).join(
        RAW, RAW.c.run_id == RUN.c.id
    )
    values: dict[str, BindParameter[Any]] = {name: bindparam(f"new_{name}") for name in (*new, "row_digest")}
    change = update(RUN).where(RUN.c.id == bindparam("number")).values(values)
    last = connection.execute(select(func.coalesce(func.min(RUN.c.id), 0))).scalar_one() - 1
    while rows := connection.execute(query.where(RUN.c.id > last).order_by(RUN.c.id).limit(_BATCH)).all():
        changes = []
        for row in (row._mapping for row in rows):
            last, changed = row["id"], filled(dict(row), plain, new, *around[row["series_id"]])
            if changed:
                changes.append({"number": last, **{f"new_{name}": value for name, value in changed.items()}})
        if changes:
            connection.execute(change, changes)


def filled(
    row: dict[str, Any], plain: Sequence[str], new: Sequence[str], sample: bytes, is_host: bool
) -> dict[str, Any]:
    """Return the new figures of a row and its digest; nothing for a row that is not what its digest says."""
    try:
        if row_digest(row, row, plain) != bytes(row["row_digest"]):
            return {}
        result = unpack_json(row["documents"], sample)[0]
        figures = {name: STORED[name].value_and_reason(result, is_host)[0] for name in new if name in STORED}
        figures |= {"disturbance": disturbance_in(result)} if "disturbance" in new else {}
    except (ValueError, TypeError, LookupError):
        return {}
    return {**figures, "row_digest": row_digest({**row, **figures}, row)}
