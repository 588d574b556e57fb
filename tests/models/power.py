"""The power of the alignment: its verdict on every planted fault and on every honest run.

    PYTHONPATH=platform python tests/models/power.py [--docs] [--json FILE] [--curves FOLDER]

trains the small GPT and Llama of layouts.py in float32 and in bf16. The limits are learned from the variations of
`align calibrate`, by the platform's own rules; every fault and every other honest run is judged by them. `--docs`
writes the tables into docs/alignment.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fault import Fault
from faults import FAULTS
from faults_elsewhere import ELSEWHERE
from interpreters import interpreters
from judging import HONEST, LAYER_SETS, PRECISIONS, HonestRun, Judgement, Trainings, certified, judgements, missed
from layouts import EVERYWHERE, ROOT, SINGLE
from references import processor

PAGE = ROOT / "docs" / "alignment.md"
BEGIN, END = "<!-- written by tests/models/power.py: begin -->", "<!-- end -->"


def fault_table(found: Sequence[Judgement]) -> list[str]:
    """Return the faults with the layer that decides in fp32, and in bf16 by its own limits alone."""
    lines = ["| fault | family | fp32 | bf16 alone | first difference |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = [fault.name, _trained_as(fault), *_cells(found, fault, fault.family)]
        lines.append(f"| {' | '.join(cells)} | {fault.tensor or 'all agree in one process'} |")
    return lines


def elsewhere_table(found: Sequence[Judgement]) -> list[str]:
    lines = ["| framework | fault | family | fp32 | bf16 alone |", "|---|---|---|---|---|"]
    for fault in ELSEWHERE:
        cells = [fault.framework, fault.name, _trained_as(fault), *_cells(found, fault, fault.family)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def honest_table(found: Sequence[Judgement]) -> list[str]:
    lines = ["| honest run | gpt, fp32 | gpt, bf16 | llama, fp32 | llama, bf16 |", "|---|---|---|---|---|"]
    for run in HONEST:
        cells = [cell for family in EVERYWHERE for cell in _cells(found, run, family)]
        lines.append(f"| {run.name} | {' | '.join(cells)} |")
    return lines


def _trained_as(fault: Fault) -> str:
    return fault.family if fault.variant == SINGLE else f"{fault.family}, {fault.variant.name}"


def _cells(found: Sequence[Judgement], run: Fault | HonestRun, family: str) -> list[str]:
    """Return the deciding layer in each precision; a dash where the framework does not have the precision."""
    about = (run.framework, run.name, family)
    by_precision = {j.precision: j for j in found if (j.framework, j.name, j.family) == about}
    return [by_precision[p].layer if p in by_precision else "-" for p in PRECISIONS]


def summary(found: Sequence[Judgement]) -> list[str]:
    """Return how many faults each set of layers misses."""
    lines = ["| layers | faults missed | of | which |", "|---|---|---|---|"]
    for precision in PRECISIONS:
        count = sum(j.fault and j.precision == precision for j in found)
        for title, layers in LAYER_SETS.items():
            names = missed(found, precision, layers)
            which = "; ".join(names) if title == "all" else ""
            lines.append(f"| {precision}: {title} | {len(names)} | {count} | {which} |")
    left = [word for word in certified(j for j in found if j.fault).values() if word == "aligned"]
    return [*lines, f"| bf16: all, with the certificate | {len(left)} | {count} | |"]


def section(found: Sequence[Judgement]) -> str:
    """Return what stands between the marks of docs/alignment.md."""
    tables = (fault_table(found), elsewhere_table(found), summary(found), honest_table(found))
    return "\n\n".join("\n".join(table) for table in tables)


def documented(page: str, text: str) -> str:
    return documented_between(BEGIN, page, text)


def documented_between(begin: str, page: str, text: str) -> str:
    """Return the page with `text` in place of what stands between the mark `begin` and the next END."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge every planted fault and every honest run")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/alignment.md")
    parser.add_argument("--json", type=Path, help="write every judgement to this file")
    parser.add_argument("--curves", type=Path, help="keep every training's curve in this folder, and judge those there")
    options = parser.parse_args()
    found = []
    with interpreters() as interpreter_of:
        trainings = Trainings(interpreter_of, options.curves)
        for precision in PRECISIONS:
            for judged in judgements(precision, trainings):
                found.append(judged)
                print(f"{precision} {judged.family:5} {judged.framework:9} {judged.name}: {judged.layer}", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"processor": processor(), "judgements": [asdict(j) for j in found]}, indent=1)
        )
    print(section(found))
    if options.docs:
        PAGE.write_text(documented(PAGE.read_text(), section(found)))


if __name__ == "__main__":
    main()
