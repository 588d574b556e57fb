"""Whether runs show that machines meet the criteria of their acceptance: a dossier with each criterion's evidence.

A criterion is accepted where the whole 95 % interval of its figure is on the right side of the limit, refused where the
whole interval is on the wrong side, and not decided otherwise. Without evidence it is not decided. A run counts that is
valid, sealed and of the subject, and whose training is not another one; `compare` says whether it is comparable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from levelfield.compare.comparability import NOTHING, Comparability, comparability, shortened
from levelfield.compare.ratios import Ratio, SideValues, exact, more_runs, ratio
from levelfield.compare.scaling import scaling, without_batch
from levelfield.compare.sides import DIFFERS, ENERGY, RATE, Quantity, at, began, exclusion, side_of
from levelfield.errors import GateFailed, UsageError
from levelfield.measure.series import share_interval
from levelfield.measure.straggler import NOTICEABLE
from levelfield.report.sheets import Sheet
from levelfield.report.words import number
from levelfield.specs.acceptance import (
    MOST_RUNS,
    AcceptanceCriteria,
    AcceptanceSubject,
    AcceptanceWord,
    CriterionFinding,
    Dossier,
    LeftOutRun,
    day_after,
)
from levelfield.specs.record import RunRecord

_UNIT_FAULT = 10  # times better than the limit: a wrong unit is likelier than such a machine
_MOST_MORE = 1_000


@dataclass(frozen=True)
class PublishedSpeed:
    """A row of a published set: tokens/s per device, None with the reason, and what was run."""

    name: str
    value: float | None
    how: str
    case: str | None
    precision: str
    nodes: int
    devices: int  # of a node


@dataclass(frozen=True)
class AcceptanceEvidence:
    """runs: of the machines. baseline: of the criterion speed; or a published row."""

    runs: Sequence[RunRecord]
    baseline: Sequence[RunRecord] = ()
    published: PublishedSpeed | None = None


@dataclass(frozen=True)
class _SubjectRuns:
    """tried: runs of the subject. sealed: those that are valid and sealed. counted: those of the same training."""

    tried: tuple[RunRecord, ...]
    sealed: tuple[RunRecord, ...]
    counted: tuple[RunRecord, ...]

    def on(self, nodes: int) -> list[RunRecord]:
        return [record for record in self.counted if record.series.nodes == nodes]


def refuse_expired(name: str, last_day: str | None, today: str) -> None:
    """Raises GateFailed for criteria, or a dossier, whose last day is over."""
    if last_day is None or last_day < today:
        said = f"expired after {last_day}" if last_day else "has no run that counts, and so no date"
        raise GateFailed(
            f"{name}: {said}, and today is {today} (UTC); expected a later day. It judges nothing any more"
        )


def dossier(criteria: AcceptanceCriteria, evidence: AcceptanceEvidence, today: str) -> Dossier:
    """Return the dossier of this day. Raises UsageError for too many runs, and for a run that is its own baseline."""
    _refuse_runs(evidence)
    own, base = (sorted(given, key=lambda run: run.run_id) for given in (evidence.runs, evidence.baseline))
    evidence = replace(evidence, runs=own, baseline=base)
    reasons = [(run, _other(criteria, run, today)) for run in evidence.runs]
    tried = tuple(run for run, why in reasons if why is None)
    sealed = tuple(run for run in tried if exclusion(run) is None)
    runs = _SubjectRuns(tried, sealed, tuple(run for run in sealed if run.verdict not in DIFFERS))
    reasons += [(run, exclusion(run) or f"its training is {run.verdict}") for run in tried if run not in runs.counted]
    findings = tuple(_findings(criteria, runs, evidence))
    return Dossier(
        criteria=criteria,
        word=_worst(finding.word for finding in findings),
        made=today,
        expires=min((day_after(_day(run), criteria.accepted_days) for run in runs.counted), default=None),
        findings=findings,
        runs={run.run_id: run.content for run in runs.counted},
        baseline={run.run_id: run.content for run in evidence.baseline},
        left_out=tuple(LeftOutRun(run=run.run_id, reason=why) for run, why in reasons if why),
        cautions=tuple(_cautions(_compared(runs.on(criteria.of.nodes), evidence.baseline))),
    )


def _refuse_runs(evidence: AcceptanceEvidence) -> None:
    own, base = ([run.run_id for run in runs] for runs in (evidence.runs, evidence.baseline))
    if len(own) + len(base) > MOST_RUNS:
        raise UsageError(f"found {len(own) + len(base):,} runs, expected at most {MOST_RUNS:,}; name those that count")
    if both := sorted(set(own) & set(base)):
        raise UsageError(f"found {both[0]} among the runs and in its own baseline; leave it out of one of them")


def _day(run: RunRecord) -> str:
    time = began(run)
    return time.date().isoformat() if time else "0001-01-01"


def _other(criteria: AcceptanceCriteria, run: RunRecord, today: str) -> str | None:
    """Return why a run is not of the subject or its time; None for one that is."""
    of, series = criteria.of, run.series
    pairs: dict[str, tuple[object, object]] = {
        "case": (without_batch(series.case), without_batch(of.case)),
        "framework": (series.framework_label, of.framework),
        "chip": (series.chip, of.chip or series.chip),
        "scale": (series.scale, of.scale),
        "devices of a node": (series.devices // series.nodes, of.devices),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            return f"not of the subject: found {name} {found}, expected {expected}"
    if series.nodes > of.nodes:
        return f"not of the subject: found {series.nodes} nodes, expected at most {of.nodes}"
    if began(run) is None or _day(run) > day_after(today, 1):
        return f"its date is {run.began or 'not known'}, expected one that is past"
    if criteria.runs_since and _day(run) < criteria.runs_since:
        return f"it began on {_day(run)}, before runs_since {criteria.runs_since}"
    if (last := day_after(_day(run), criteria.accepted_days)) < today:
        return f"it began on {_day(run)}, so by accepted_days it counted until {last}"
    return None


def _worst(words: Iterable[AcceptanceWord]) -> AcceptanceWord:
    found = set(words)
    return next(word for word in _WORST_FIRST if word in found or word == "accepted")


_WORST_FIRST: tuple[AcceptanceWord, ...] = ("refused", "not decided", "accepted")


def _findings(
    criteria: AcceptanceCriteria, runs: _SubjectRuns, evidence: AcceptanceEvidence
) -> Iterator[CriterionFinding]:
    """Yield a finding for each criterion that the document has."""
    asked, of = criteria.criteria, criteria.of
    if asked.speed:
        against = _published_speed if evidence.published else _speed
        limit = asked.speed.at_least
        yield _found("speed", f"at least {limit:g}", lambda: against(limit, of, runs, evidence))
    if asked.node_spread:
        limit, nodes = asked.node_spread.at_most, asked.node_spread.nodes
        yield _found("node_spread", f"at most {limit:g}", lambda: _spread(limit, nodes, of, runs))
    if asked.scaling:
        least = asked.scaling.at_least
        yield _found("scaling", f"at least {least:g}", lambda: _scaling(least, of, runs))
    if asked.aligned:
        yield _found("aligned", "every run", lambda: _aligned(runs.sealed))
    if asked.joules_per_token:
        most = asked.joules_per_token.at_most
        yield _found("joules_per_token", f"at most {most:g} J/token", lambda: _energy(most, runs.on(of.nodes)))
    if asked.success:
        part = asked.success.at_least
        yield _found("success", f"at least {part:g}", lambda: _success(part, runs))
    if asked.preflight:
        yield _found("preflight", "in line, every run", lambda: _preflight(runs.on(of.nodes)))


def _found(name: str, limit: str, judged: Callable[[], dict[str, Any]]) -> CriterionFinding:
    """Return a criterion's finding. One whose runs cannot be read as one side is not decided."""
    try:
        return CriterionFinding(criterion=name, limit=limit, **judged())
    except UsageError as error:
        return CriterionFinding(criterion=name, limit=limit, **_undecided(str(error)))


def _undecided(sentence: str, runs: Sequence[RunRecord] = ()) -> dict[str, Any]:
    return {"word": "not decided", "sentence": sentence, "runs": _ids(runs)}


def _ids(runs: Iterable[RunRecord]) -> tuple[str, ...]:
    return tuple(run.run_id for run in runs)


def _none(of: AcceptanceSubject) -> dict[str, Any]:
    return _undecided(f"found no run that counts on {of.nodes} node(s) with {of.devices} device(s)")


def _compared(own: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> Comparability | None:
    try:
        return comparability([side_of("baseline", baseline), side_of("runs", own)]) if own and baseline else None
    except UsageError:
        return None  # the finding says so


def _cautions(found: Comparability | None) -> Iterator[str]:
    for field in found.with_caution if found else ():
        yield f"{field.name}: baseline {field.cells[0]}; runs {field.cells[1]}"


def _speed(limit: float, of: AcceptanceSubject, runs: _SubjectRuns, evidence: AcceptanceEvidence) -> dict[str, Any]:
    own = runs.on(of.nodes)
    if not own:
        return _none(of)
    base, side = side_of("baseline", evidence.baseline), side_of("runs", own)
    differs = [f"{field.name} {' / '.join(field.cells)}" for field in comparability([base, side]).unequal]
    places = [f"{each.first.series.nodes} node(s), {each.first.series.devices} device(s)" for each in (base, side)]
    differs += [" / ".join(places)] if places[0] != places[1] else []
    if differs:
        return _undecided(f"not comparable with the baseline (baseline / runs): {'; '.join(differs)}", own)
    values = SideValues(_values(RATE, base.counted))
    said = f"of the baseline, {len(side.counted)} run(s) against {len(base.counted)}"
    speeds = SideValues(_values(RATE, side.counted))
    return {**_by_ratio(speeds, values, limit, said, side.counted), "baseline": _ids(base.counted)}


def _published_speed(
    limit: float, of: AcceptanceSubject, runs: _SubjectRuns, evidence: AcceptanceEvidence
) -> dict[str, Any]:
    own, row = runs.on(of.nodes), evidence.published
    if not own or row is None:
        return _none(of)
    side = side_of("runs", own)
    first = side.first.series
    pairs = {
        "case": (row.case, first.case),
        "scale": ("full", first.scale),
        "precision": (row.precision, first.precision),
        "nodes": (row.nodes, first.nodes),
        "devices of a node": (row.devices, of.devices),
    }
    differs = [f"{name} {found} / {expected}" for name, (found, expected) in pairs.items() if found != expected]
    if differs or row.value is None:
        why = f"not comparable with {row.name} (row / runs): {'; '.join(differs)}" if differs else row.how
        return _undecided(why, own)
    said = f"of {row.name} ({number(row.value)} tokens/s per device, {row.how}), {len(side.counted)} run(s)"
    return _by_ratio(SideValues(_values(RATE, side.counted)), exact(row.value), limit, said, side.counted)


def _values(quantity: Quantity, runs: Iterable[RunRecord]) -> tuple[float, ...]:
    return tuple(value for run in runs if (value := quantity.read(run)) is not None)


def _by_ratio(
    side: SideValues, base: SideValues, limit: float, said: str, runs: Sequence[RunRecord], is_least: bool = True
) -> dict[str, Any]:
    """Return what the ratio of two sides gives. is_least: the limit is the least; else it is the most."""
    found = ratio(side, base)
    content = {"value": found.value, "low": found.low, "high": found.high, "runs": _ids(runs)}
    if found.value is None:
        return {**content, "word": "not decided", "sentence": found.reason}
    if (found.value > limit * _UNIT_FAULT) if is_least else (found.value * _UNIT_FAULT < limit):
        why = f"{found.value:.4g} {said}: more than {_UNIT_FAULT} times better than the limit; look for a wrong unit"
        return {**content, "word": "not decided", "sentence": why}
    word = _word(found, limit, is_least)
    sentence = f"{_shown(found)} {said}"
    if word != "not decided":
        return {**content, "word": word, "sentence": sentence}
    more = more_runs(side, base, limit)
    return {**content, "word": word, "more_runs": more, "sentence": f"{sentence}; {_more(more, 'of each kind')}"}


def _word(found: Ratio, limit: float, is_least: bool) -> AcceptanceWord:
    if found.low is None or found.high is None:
        return "not decided"
    meets, misses = (found.low >= limit, found.high < limit) if is_least else (found.high <= limit, found.low > limit)
    return "accepted" if meets else "refused" if misses else "not decided"


def _shown(found: Ratio) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.4f}, without an interval,"
    return f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"


def _more(more: int | None, kind: str) -> str:
    if more is None:
        return "even many more such runs do not decide it: it is at the limit"
    return f"{more} more run(s) {kind} decide it, if they come out as these"


def _spread(limit: float, nodes: int, of: AcceptanceSubject, runs: _SubjectRuns) -> dict[str, Any]:
    """Return what runs of single nodes show, and what runs over all nodes show of who waited for whom."""
    alone: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs.on(1):
        alone[run.node].append(run)
    alone.pop("unknown", None)
    paced = [run for run in runs.on(of.nodes) if of.nodes > 1 and _is_paced(run)]
    parts = []
    if len(alone) >= nodes:
        parts.append(_by_node(limit, alone))
    if paced and of.nodes >= nodes:
        parts.append(_by_pace(limit, paced))
    if not parts:
        seen = f"{len(alone)} node(s) have runs of their own; {len(paced)} run(s) over nodes recorded who waited"
        return _undecided(f"{seen}; expected {nodes} nodes", [run for each in alone.values() for run in each])
    word = _worst(part["word"] for part in parts)
    worst = next(part for part in parts if part["word"] == word)
    together = {key: tuple(dict.fromkeys(each for part in parts for each in part[key])) for key in ("nodes", "runs")}
    return {**worst, **together, "sentence": "; ".join(part["sentence"] for part in parts)}


def _by_node(limit: float, alone: dict[str, list[RunRecord]]) -> dict[str, Any]:
    """Return each node's speed against that of all others; the figure is that of the slowest."""
    whole = [run for each in alone.values() for run in each]
    side_of("runs of single nodes", whole)  # raises for different series
    found = []
    for node, own in alone.items():
        others = [run for run in whole if run not in own]
        said = f"of the other nodes: {shortened(node)} ({own[0].run_id})"
        sides = SideValues(_values(RATE, own)), SideValues(_values(RATE, others))
        found.append((node, _by_ratio(*sides, 1 - limit, said, own)))
    word = _worst(each["word"] for _, each in found)
    slowest = min((each for _, each in found if each["word"] == word), key=lambda each: each["value"] or 0.0)
    slow = tuple(shortened(node) for node, each in found if each["word"] == "refused")
    return {**slowest, "word": word, "nodes": slow, "runs": _ids(whole)}


def _is_paced(run: RunRecord) -> bool:
    return isinstance(at(run.result, "pace", "stragglers"), list) and at(run.result, "pace", "unchecked") is None


def _by_pace(limit: float, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the nodes and ranks that most runs waited for. One in fewer runs decides nothing."""
    if limit < NOTICEABLE:
        return {**_undecided(f"who waited shows only what is slower by {NOTICEABLE:g} or more", runs), "nodes": ()}
    parts: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, excess in _stragglers(run):
            parts[name].append(excess / (1 + excess))  # of its speed
    beyond = {name: found for name, found in parts.items() if median(found) > limit}
    slow = tuple(name for name, found in beyond.items() if len(found) > len(runs) / 2)
    word = "refused" if slow else "not decided" if beyond else "accepted"
    listed = [f"{name} in {len(found)} of {len(runs)} run(s), by {median(found):.1%}" for name, found in parts.items()]
    sentence = f"waited for: {'; '.join(listed) or 'no node'}"
    worst = max((median(found) for found in parts.values()), default=None)
    return {"word": word, "sentence": sentence, "value": worst, "nodes": slow, "runs": _ids(runs)}


def _stragglers(run: RunRecord) -> Iterator[tuple[str, float]]:
    """Yield each straggler that result.json names, with its host's name where it is known."""
    size, machines = run.series.devices // run.series.nodes, at(run.result, "machines")
    hosts = {at(each, "node"): at(each, "name") for each in machines} if isinstance(machines, list) else {}
    found = at(run.result, "pace", "stragglers")
    for each in found if isinstance(found, list) else ():
        name, excess, ranks = at(each, "name"), at(each, "excess"), at(each, "ranks")
        if isinstance(excess, (int, float)) and isinstance(ranks, list) and ranks and isinstance(ranks[0], int):
            node = ranks[0] // size
            own = str(name) if str(name).startswith("node") else f"{name} of node{node}"
            yield f"{own} ({hosts[node]})" if hosts.get(node) else own, excess


def _scaling(limit: float, of: AcceptanceSubject, runs: _SubjectRuns) -> dict[str, Any]:
    found = scaling(runs.counted)
    last = found.rows[-1] if found.rows else None
    if found.unequal:
        why = "; ".join(f"{field.name} {' / '.join(field.cells)}" for field in found.unequal)
        return _undecided(f"not comparable over devices: {why}", runs.counted)
    if last is None or last.devices != of.nodes * of.devices:
        return _none(of)
    first = found.rows[0]
    said = f"of the speed per device on {first.devices} device(s), on {last.devices}; {found.kind} scaling"
    sides = SideValues(last.rate.values), SideValues(first.rate.values)
    return _by_ratio(*sides, limit, said, [*first.side.counted, *last.side.counted])


def _aligned(runs: Sequence[RunRecord]) -> dict[str, Any]:
    words: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        words[run.verdict].append(run.run_id)
    wrong = [word for word in words if word in DIFFERS]
    word = "refused" if wrong else "accepted" if set(words) == {"aligned"} else "not decided"
    return {"word": word, "sentence": _listed(words), "runs": _ids(runs)}


def _energy(limit: float, runs: Sequence[RunRecord]) -> dict[str, Any]:
    if lacking := next((run for run in runs if ENERGY.read(run) is None), None):
        return _undecided(f"{lacking.run_id} has no energy: {ENERGY.missing(lacking)}", runs)
    values = _values(ENERGY, runs)
    if not values:
        return _undecided("found no run that counts")
    try:
        side_of("runs", runs)
    except UsageError as error:
        return _undecided(str(error), runs)
    found = _by_ratio(SideValues(values), exact(limit), 1.0, f"of {limit:g} J/token", runs, is_least=False)
    shown = {name: None if found[name] is None else found[name] * limit for name in ("value", "low", "high")}
    return {**found, **shown, "unit": "J/token"}


def _success(limit: float, runs: _SubjectRuns) -> dict[str, Any]:
    """Return the part of the runs that count. One that the user ended is none; one that was changed is a failure."""
    tried = [run for run in runs.tried if run.failure != "interrupted"]
    if not tried:
        return _undecided("found no run")
    good = len(runs.counted)
    low, high = share_interval(good, len(tried))
    word: AcceptanceWord = "accepted" if low >= limit else "refused" if high < limit else "not decided"
    content = {"value": good / len(tried), "low": low, "high": high, "runs": _ids(tried), "word": word}
    sentence = f"{good} of {len(tried)} run(s) [{low:.3f}, {high:.3f}]"
    if word != "not decided":
        return {**content, "sentence": sentence}
    more = next((k for k in range(1, _MOST_MORE) if _decides(good / len(tried), len(tried) + k, limit)), None)
    return {**content, "more_runs": more, "sentence": f"{sentence}; {_more(more, 'in all')}"}


def _decides(part: float, trials: int, limit: float) -> bool:
    low, high = share_interval(round(part * trials), trials)
    return low >= limit or high < limit


def _preflight(runs: Sequence[RunRecord]) -> dict[str, Any]:
    said: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        said[str(at(run.result, "preflight") or "no preflight")].append(run.run_id)
    words = {text.partition(":")[0] for text in said}
    bad = words & {"out of line", "failed"}
    word = "refused" if bad else "accepted" if words == {"in line"} else "not decided"
    return {"word": word, "sentence": _listed(said), "runs": _ids(runs)}


def _listed(said: dict[str, list[str]]) -> str:
    """Return how many runs have each word, with the first of them."""
    return "; ".join(f"{len(ids)} {text} ({ids[0]})" for text, ids in said.items()) or "found no run that counts"


def sheets(found: Dossier) -> Iterator[Sheet]:
    """Yield the dossier as tables."""
    criteria, of = found.criteria, found.criteria.of
    until = f"until {found.expires}" if found.expires else "without a date, as no run counts"
    yield Sheet(f"{criteria.title}: {found.word.upper()}, {until}")
    subject = f"{of.case}:{of.framework}:{of.chip or 'any chip'}:{of.nodes}:{of.devices} {of.scale}"
    made = f"made {found.made} (UTC) by criteria that judge until {criteria.valid_until}"
    yield Sheet("", notes=(f"subject: {subject}", made))
    rows = tuple((each.criterion, each.limit, each.word, each.sentence) for each in found.findings)
    yield Sheet("criteria", ("criterion", "limit", "word", "evidence"), rows)
    if slow := [f"{node} ({each.criterion})" for each in found.findings for node in each.nodes]:
        yield Sheet("too slow", notes=tuple(slow))
    kinds = (("counts", found.runs), ("baseline", found.baseline))
    counted = [(run, kind, shortened(digest)) for kind, runs in kinds for run, digest in runs.items()]
    left = [(each.run, "left out", each.reason) for each in found.left_out]
    yield Sheet("runs", ("run", "", "digest or reason"), tuple([*counted, *left]) or ((NOTHING, "", ""),))
    if found.cautions:
        yield Sheet("differs from the baseline, and asks for caution", notes=found.cautions)
