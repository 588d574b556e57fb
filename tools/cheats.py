"""What tells each cheat of a plugin: one small run for each, on processors and on a pretended chip.

    .venvs/dev/bin/python tools/cheats.py [--docs] [NAME ...]

trains a small model with the plugins of cheating/, which cheat one way at a time, against a reference of an honest run.
`--docs` writes each into docs/data/cheats.json, and its table into docs/evidence.md. All of them take three minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cheating.cheat import CHEATS, FRAMEWORK_CHEATS, VENDOR_CHEATS, Cheat, finding
from cheating.cheated_runs import CheatedRuns
from layouts import ROOT
from power import documented_between, write_data

PAGE = ROOT / "docs" / "evidence.md"
DATA = ROOT / "docs" / "data" / "cheats.json"
BEGIN = "<!-- written by tools/cheats.py: begin -->"
Row = dict[str, Any]


def rows_of(cheats: Sequence[Cheat], runs: CheatedRuns) -> Iterator[Row]:
    """Yield what tells each cheat."""
    for cheat in cheats:
        told = finding(cheat, runs.result(cheat))
        yield {"cheat": cheat.name, "word": told.word, "sentence": told.sentence}


def section(cheats: Sequence[Mapping[str, Any]], day: str) -> str:
    """Return the table of docs/evidence.md."""
    words = {row["cheat"]: row["word"] for row in cheats}
    lines = []
    for plugin, plugin_cheats in (("a vendor's", VENDOR_CHEATS), ("a framework's", FRAMEWORK_CHEATS)):
        lines += ["", f"| {plugin} plugin | the run is, or has |", "|---|---|"]
        lines += [f"| {cheat.what} | {emphasised(words[cheat.name], cheat)} |" for cheat in plugin_cheats]
    remaining = sum(cheat.tells is None for cheat in CHEATS)
    return f"{len(CHEATS)} cheats were tried on {day}, and {remaining} remain:" + "\n".join(["", *lines])


def emphasised(word: str, cheat: Cheat) -> str:
    return word if cheat.tells else f"**{word}**"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run each cheat, and show what tells it")
    parser.add_argument("--docs", action="store_true", help="write docs/data/cheats.json and its table")
    parser.add_argument("names", metavar="NAME", nargs="*", help="a cheat; all without one")
    options = parser.parse_args()
    cheats = [cheat for cheat in CHEATS if not options.names or cheat.name in options.names]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows_of(cheats, CheatedRuns(Path(folder))):
            print(f"{row['cheat']}: {row['word']}: {row['sentence']}", flush=True)
            rows.append(row)
    if options.docs:
        short_rows = [{**row, "sentence": row["sentence"][:100]} for row in rows]
        write_data(DATA, {"cheats": short_rows, "day": date.today().isoformat()})
        PAGE.write_text(documented_between(BEGIN, PAGE.read_text(), section(**json.loads(DATA.read_text()))))


if __name__ == "__main__":
    main()
