#!/usr/bin/env python3
"""Write the tables of docs/verified/chip.md from the results that lie beside it as they came."""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chip_check.summary import gib, markdown, rate

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "verified"
PAGE = FOLDER / "chip.md"
BEGIN, END = "<!-- begin: {} -->\n", "<!-- end: {} -->\n"
CHIPS = ("H100", "H200")
LAYERS = ("first step", "gradients", "curve", "norms", "final weights")


def results() -> dict[str, Any]:
    """Return the results by chip and entry, such as `H100 gpt-fp32`."""
    return {f"{chip} {path.stem}": json.loads(path.read_text(encoding="utf-8"))
            for chip in CHIPS for path in sorted((FOLDER / chip.lower()).glob("*.json"))}  # fmt: skip


def aligned(runs: dict[str, Any]) -> Iterator[str]:
    """Valid runs at smoke scale with the largest difference in each layer; those that are not aligned one by one."""
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for name, run in runs.items():
        layers = {layer["name"]: layer["value"] for layer in (run["alignment"] or {}).get("layers", ())}
        if run["status"]["word"] == "valid" and layers:
            verdict, (chip, entry) = run["alignment"]["verdict"], name.split()
            which = "aligned" if verdict == "aligned" else f"{entry}: {verdict}"
            groups.setdefault((chip, run["precision"], which), []).append(layers)
    rows = []
    for group, members in sorted(groups.items()):
        largest = ([layers[layer] for layers in members if layer in layers] for layer in LAYERS)
        rows.append((*group, str(len(members)), *(f"{max(values):.1e}" if values else "-" for values in largest)))
    yield from markdown(("chip", "precision", "verdict of the day", "runs", *LAYERS), rows)


def full(runs: dict[str, Any]) -> Iterator[str]:
    """Every run at full scale that ended valid."""
    rows = []
    for name, run in runs.items():
        if run["status"]["word"] == "valid" and run["scale"] == "full":
            memory, energy = run["memory"], run["energy"]
            mfu = next(utilisation for utilisation in run["utilisation"] if utilisation["formula"] == "megatron/1")
            peaks = (gib(memory[f"{kind}_peak"]["value"]) for kind in ("allocated", "reserved", "device_used"))
            rows.append((*name.split(), run["precision"], str(run["micro_batch"]),
                         rate(run["throughput"]["tokens_per_second_per_device"]), f"{mfu['value']:.1%}",
                         gib(memory["expected_bytes"]), *peaks, f"{energy['mean_watts']['value']:.0f}"))  # fmt: skip
    head = (
        "chip",
        "entry",
        "precision",
        "micro-batch",
        "tokens/s",
        "MFU, megatron/1",
        "planned GiB",
        "allocated",
        "reserved",
    )
    yield from markdown((*head, "device used", "W"), rows)


def ended(runs: dict[str, Any]) -> Iterator[str]:
    """Every run that was made to end otherwise."""
    rows = [(*name.split(), run["status"]["word"], str(run["status"]["evidence"]).replace("|", "\\|")[:100])
            for name, run in runs.items() if run["status"]["evidence"]]  # fmt: skip
    yield from markdown(("chip", "entry", "word", "evidence"), rows)


def page(text: str, runs: dict[str, Any]) -> str:
    for name, table in (("aligned", aligned), ("full", full), ("ended", ended)):
        before, rest = text.split(BEGIN.format(name))
        after = rest.split(END.format(name))[1]
        body = "\n".join(table(runs))
        text = f"{before}{BEGIN.format(name)}\n{body}\n\n{END.format(name)}{after}"
    return text


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results()), encoding="utf-8")
