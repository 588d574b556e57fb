"""A case on several numbers of nodes: the entries of the series, and how their runs scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from levelfield.compare import scaling
from levelfield.compare.scaling import Scaling, case_without_batch
from levelfield.errors import LevelfieldError, UsageError
from levelfield.plan.request import Entry
from levelfield.specs.base import MAX_NODES
from levelfield.specs.result import Result
from levelfield.studies.compared_runs import FolderRuns


def node_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of --nodes, the smallest first. Raises UsageError for what is no series."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= MAX_NODES for part in parts):
        raise UsageError(
            f"--nodes: found '{text[:60]}', expected numbers of nodes with commas between them, such as 1,2,4"
        )
    counts = tuple(sorted(set(map(int, parts))))
    if len(counts) < len(parts) or len(counts) < 2:
        raise UsageError(f"--nodes: found '{text[:60]}', expected at least two numbers, each once, such as 1,2,4")
    return counts


def series_entries(entries: Sequence[Entry], counts: Sequence[int], is_weak: bool) -> list[Entry]:
    """Return each case on each number of nodes. Raises UsageError for an entry of a suite, and without a chip.

    is_weak: the global batch, which is then given for the smallest number, grows with the nodes.
    """
    node_entries = []
    for entry in entries:
        if entry.suite_entry is not None:
            raise UsageError("--nodes: found --suite; a suite says itself on how many nodes each entry runs")
        parts = entry.text.split(":")
        if len(parts) < 3:
            raise UsageError(
                f"--nodes: --case '{entry.text}' names no chip, expected case:framework:chip[:nodes:devices]"
            )
        derivation = entry.request.derivation
        batch, fewest = derivation.global_batch, counts[0]
        for nodes in counts:
            request = entry.request
            if is_weak:
                if batch is None:
                    raise UsageError("--weak: found no --global-batch, expected that of the smallest number of nodes")
                if batch * nodes % fewest:
                    raise UsageError(
                        f"--weak: {batch} x {nodes} / {fewest} sequences is no whole number; change --global-batch"
                    )
                changes = {"global_batch": batch * nodes // fewest}
                request = replace(request, derivation=derivation.model_copy(update=changes))
            text = ":".join((*parts[:3], str(nodes), *parts[4:]))
            node_entries.append(replace(entry, text=text, request=request))
    return node_entries


def series_scaling(results: Sequence[Result], runs: Path) -> Iterator[Scaling | str]:
    """Yield the scaling of each training and framework; a sentence where there is none."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        groups.setdefault((case_without_batch(result.case), result.framework, result.chip), []).append(result.run_id)
    folder = FolderRuns(runs)
    for (case, framework, _), run_ids in groups.items():
        try:
            yield scaling.compute_scaling([folder.record(folder.find_key(run_id)) for run_id in run_ids])
        except LevelfieldError as error:
            yield f"{case} with {framework}: no scaling: {error}"
