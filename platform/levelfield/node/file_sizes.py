"""How large a file may be, by its kind: one table, which every reader of a whole file looks into.

A file may be of anyone, and what is read takes up to twenty times its size in memory. So each kind has a bound some
times above the largest that is known, at which reading and judging it still ends within seconds.
"""

from __future__ import annotations

_WRITTEN = 2**20  # by a person; the largest of the repository has 22 KB
_COLLECTED = 2**24  # from many runs; the largest of the repository has 670 KB
_OF_A_RUN = 2**26  # one JSON document of a run
_ROWS = 2**29  # of which each line is read alone: two million steps of a rank

MAX_BYTES: dict[str, int] = {
    **dict.fromkeys(
        ("case", "chips", "constants", "hosts", "implementation", "prices", "site", "suite", "tuning", "vendor"),
        _WRITTEN,
    ),
    **dict.fromkeys(("config.json", "setting", "signers", "stamp", "status", "wheels"), _WRITTEN),
    **dict.fromkeys(("key",), 2**16),
    **dict.fromkeys(("URL",), 2**13),
    **dict.fromkeys(
        ("certificate", "corpus", "curve", "figures", "host_rates", "host_runs", "reference", "references"),
        _COLLECTED,
    ),
    **dict.fromkeys(("controls", "pages", "peak", "rehearsed", "reported", "tested"), _COLLECTED),
    **dict.fromkeys(("engine", "facts", "imports", "job", "night", "outcome", "plan"), _OF_A_RUN),
    **dict.fromkeys(("preflight", "provenance", "result", "sealed", "step", "step-parts"), _OF_A_RUN),
    **dict.fromkeys(("bundle", "measured", "tokenizer"), _OF_A_RUN),
    **dict.fromkeys(("node", "record"), 2**22),
    **dict.fromkeys(("events", "input", "log", "telemetry"), _ROWS),
}  # fmt: skip


def size_problem(kind: str, size: int) -> str:
    """Return what is wrong with a file of more bytes than its kind may have; an empty text for one that fits."""
    most = MAX_BYTES[kind]
    return f"found {size:,} bytes, expected at most {most:,} of a {kind} file" if size > most else ""
