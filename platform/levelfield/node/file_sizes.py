"""How large a file may be, by its kind: one table, which every reader of a whole file uses.

Anybody may have written a file, and its content takes up to twenty times its size in memory. So each kind has a limit
well above the largest known file, at which reading and judging it still ends within seconds.
"""

from __future__ import annotations

_HANDWRITTEN_BYTES = 2**20  # files that a person writes; the largest of the repository has 22 KB
_COLLECTED_BYTES = 2**24  # files with data of many runs; the largest of the repository has 670 KB
_RUN_DOCUMENT_BYTES = 2**26  # a JSON document of one run
_LINES_BYTES = 2**29  # files that are read line by line: two million steps of a rank

MAX_BYTES_BY_KIND: dict[str, int] = {
    **dict.fromkeys(
        ("case", "chips", "constants", "hosts", "implementation", "prices", "site", "suite", "tuning", "vendor"),
        _HANDWRITTEN_BYTES,
    ),
    **dict.fromkeys(("config.json", "setting", "signers", "stamp", "status", "wheels"), _HANDWRITTEN_BYTES),
    **dict.fromkeys(("key",), 2**16),
    **dict.fromkeys(("URL",), 2**13),
    **dict.fromkeys(
        ("certificate", "corpus", "curve", "figures", "host_rates", "host_runs", "reference", "references"),
        _COLLECTED_BYTES,
    ),
    **dict.fromkeys(("controls", "pages", "peak", "rehearsed", "reported", "tested"), _COLLECTED_BYTES),
    **dict.fromkeys(("engine", "facts", "imports", "job", "night", "outcome", "plan"), _RUN_DOCUMENT_BYTES),
    **dict.fromkeys(("preflight", "provenance", "result", "sealed", "step", "step-parts"), _RUN_DOCUMENT_BYTES),
    **dict.fromkeys(("bundle", "measured", "tokenizer"), _RUN_DOCUMENT_BYTES),
    **dict.fromkeys(("node", "record"), 2**22),
    **dict.fromkeys(("events", "input", "log", "telemetry"), _LINES_BYTES),
}  # fmt: skip


def size_problem(kind: str, size: int) -> str:
    """Return what is wrong with a file of more bytes than its kind may have; an empty text for one that fits."""
    max_bytes = MAX_BYTES_BY_KIND[kind]
    return f"found {size:,} bytes, expected at most {max_bytes:,} of a {kind} file" if size > max_bytes else ""
