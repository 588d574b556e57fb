"""Null pairs: tonight's build in both arms of a confirmation, so that only the arms can differ.

They run for a series whose pairs found a regression, as far as it has too few of the last weeks, and once a week on
each machine for the shortest series: a bias that makes the new side faster hides regressions and shows in none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import RunFailed
from levelfield.nights.build_pairs import Arm, arms_of, shared_python
from levelfield.nights.gate_input import GateInput
from levelfield.run.builds import CommitBuild, build_of
from levelfield.series.level import FEWEST
from levelfield.series.segments import is_evidence, night_of
from levelfield.specs.plan import Plan
from levelfield.specs.record import Subject

DAYS_BETWEEN = 7
WEEKLY_PAIRS = 4


def null_arms(
    plan: Plan, subject: Subject, plugins: Sequence[Path], say: Callable[[str], None]
) -> tuple[Arm, Arm] | str:
    """Return both arms with tonight's build: from the cache, as an accepted build is, and from here. Or why not."""
    if subject.commit is None or subject.is_dirty is not False:
        return "tonight's build has files that no commit has"
    try:
        first = build_of(subject.commit, say=say)
    except RunFailed as error:
        return str(error)
    second = CommitBuild(subject.commit, checkout())
    return arms_of(plan, first, second, shared_python(plan, subject, subject), plugins)


def weekly_series(given: GateInput, seconds: Mapping[str, float]) -> str | None:
    """Return the series for this week's null pairs: the shortest that is old enough for a level and ran tonight.

    None where a series of the same node had some within a week. seconds: how long the run of each took.
    """
    nodes = {point.node for points in given.tonights.values() for point in points}
    if given.has_null_pairs(nodes, DAYS_BETWEEN):
        return None
    ran = [series for series, points in given.tonights.items() if series in seconds and any(map(is_evidence, points))]
    old = [s for s in ran if len({night_of(p) for p in given.points[s] if is_evidence(p)}) > FEWEST]
    return min(old, key=lambda series: seconds[series], default=None)
