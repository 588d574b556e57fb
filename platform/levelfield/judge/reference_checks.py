"""Holds the reference of a run against the one of this checkout: what was trained, its noise, and the verdict by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from levelfield.judge.cross_checks import Contradiction
from levelfield.judge.noise import noise_of
from levelfield.judge.noise_ceiling import is_wider
from levelfield.specs.reference import Reference
from levelfield.specs.result import Alignment

# What a promoted run left. An older reference may lack the last ones.
_TRAINED = ("identity", "precision", "losses", "grad_norms", "gradients", "weights", "routing", "choices")


def reference_checked(
    stated: Reference, ours: Reference, verdict_by: Callable[[Reference], Alignment]
) -> Iterator[Contradiction | str]:
    """Yield what differs. verdict_by: judges the run by a reference.

    Noise that this checkout does not have may be of a newer one, so it may stay where it changes no verdict.
    """
    theirs, here = verdict_by(stated).verdict, verdict_by(ours).verdict
    if ours.run_id != stated.run_id:
        by_ours = f"; by that one the run is {here}" if here != theirs else ""
        yield f"the reference {stated.name} is of run {stated.run_id}, and this checkout's of {ours.run_id}{by_ours}"
        return
    for key in _TRAINED:
        found, expected = getattr(stated, key), getattr(ours, key)
        if found != expected and found:
            of_run = f"of run {stated.run_id}"
            yield Contradiction(f"reference.json: {key}", of_run, f"this checkout has others of run {ours.run_id}")
    rows = {row.run_id: row for row in ours.noise}
    for row in stated.noise:
        if row.run_id in rows and is_wider(noise_of(row, stated), noise_of(rows[row.run_id], ours)):
            yield Contradiction(f"reference.json: noise of {row.run_id}", "wider", "this checkout has it narrower")
    if here != theirs:
        yield Contradiction("reference.json: verdict by it", theirs, f"{here} by this checkout's {ours.name}")
    elif more := [row.run_id for row in stated.noise if row.run_id not in rows]:
        yield f"{len(more)} row(s) of noise in reference.json are not in this checkout's; the verdict is the same by it"
