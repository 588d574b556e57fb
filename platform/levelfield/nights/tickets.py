"""Makes the tickets of a night: what changed since the accepted build, and what a bisection found.

A bisection is stored as a note of its series. So a night that is started again does not search again, the next nights
know what was found, and `nightly gate` says it. Series whose builds differ by the same commits share the answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.contracts.execution import Say
from levelfield.errors import LevelfieldError, RunFailed
from levelfield.nights.bisection import BuildComparison, find_first_bad
from levelfield.nights.gate_input import GateInput, examinations
from levelfield.nights.stored_nights import gate_input
from levelfield.node.regular_files import read_regular
from levelfield.run.builds import checkout_build, commit_log, commits_between
from levelfield.rundir.directory import find_run, utc_now
from levelfield.rundir.event_lines import mapping, strict_json
from levelfield.series.findings import FIGURE_NAMES, Finding
from levelfield.series.next_steps import PROGRAM
from levelfield.series.pairs import MIN_BISECTION_PAIRS, BuildVerdict
from levelfield.series.segments import cost_of, differences, excess_of, is_evidence, night_of
from levelfield.series.ticket import Bisection, Ticket, TicketCommit, TicketKey
from levelfield.specs.plan import Plan
from levelfield.specs.record import GatedFigure, RunRecord, Series, StoreEvent, Subject
from levelfield.specs.run_figures import GATED_FIGURES
from levelfield.specs.short_names import slug
from levelfield.store.database import Store

if TYPE_CHECKING:
    from levelfield.nights.gate import GateReport
    from levelfield.nights.night_session import NightSession

BUILD_WORDS = ("regression", "training differs")  # words that a change of the build explains
MAX_COMMITS, MAX_TICKETS = 20, 50


@dataclass
class NightTickets:
    """What the tickets of a night are made from."""

    store: Store
    inputs: GateInput
    runs: Path
    page_url: str | None = None  # where the pages will be
    extra_options: tuple[str, ...] = ()  # further options of the bisecting command
    _tickets: dict[tuple[str, str], Ticket] = field(default_factory=dict)

    def tickets(self, findings: Iterable[Finding]) -> dict[TicketKey, Ticket]:
        """Return the tickets of findings that the build may have caused, by series and figure."""
        explained = [f for f in findings if f.word in BUILD_WORDS and f.series in self.inputs.series]
        return {(f.series, f.figure): self.ticket(f) for f in explained[:MAX_TICKETS]}

    def ticket(self, finding: Finding) -> Ticket:
        series = self.inputs.series[finding.series]
        page = None
        if self.page_url:
            anchor = slug(f"{series.label} {finding.series}")
            page = f"{self.page_url.rstrip('/')}/case-{slug(series.case)}.html#{anchor}"
        accepted = self.accepted_run(finding)
        if accepted is None or finding.run_id is None:
            unknown = "the night has no baseline build to compare with"
            return Ticket(commits_unknown=unknown, packages_unknown=unknown, page=page)
        last, night = self._last_run_without_change(finding, accepted)
        first = self._first_run(finding)  # no later commit is the cause
        try:
            build = self.store.record(accepted).subject
            ticket = self._between(last, first, "the baseline build" if last == accepted else f"night {night}")
        except LevelfieldError as error:
            return Ticket(commits_unknown=str(error), packages_unknown=str(error), page=page)
        ticket = ticket.model_copy(
            update={"accepted": build.commit if build.has_commit else None, "since_night": night}
        )
        is_bisectable = finding.word == "regression" and not self._ran_elsewhere(finding.run_id)
        command = self._command(ticket, series, finding.figure) if is_bisectable else ()
        bisection, first_bad_commit = self._bisection(ticket, finding), None
        if bisection and bisection.first_bad:  # with author and subject, by this checkout
            first_bad_commit = next((entry for entry in ticket.commits if entry.commit == bisection.first_bad), None)
            if first_bad_commit is None:
                values = {"commit": bisection.first_bad, "author": "", "subject": ""}
                with suppress(RunFailed, IndexError):
                    values = commit_log(bisection.last_good or "", bisection.first_bad, 1)[0][0]._asdict()
                first_bad_commit = TicketCommit.model_validate(values)
        update = {"command": command, "bisection": bisection, "first_bad": first_bad_commit, "page": page}
        return ticket.model_copy(update=update)

    def accepted_run(self, finding: Finding) -> str | None:
        """Return the run whose build tonight's is compared with: accepted, or the last whose training agreed."""
        if finding.figure is not None:
            return finding.against or self._accepted_runs.get((finding.series, finding.figure))
        points = self.inputs.points[finding.series]
        began = next((p.began for p in points if p.run_id == finding.run_id), "9")
        earlier = [
            p
            for p in points
            if p.is_comparable and p.is_trend_point and p.night != self.inputs.night and p.began < began
        ]
        return max(earlier, key=lambda p: p.began).run_id if earlier else None

    def _last_run_without_change(self, finding: Finding, accepted: str) -> tuple[str, str | None]:
        """Return the run of the last night without the change, and the night; else the accepted run and None.

        The figure of that night is nearer to the level than to the change. Where one night cannot show such a change,
        no night is known to be without it.
        """
        figure, change, points = finding.figure, finding.change, self.inputs.points[finding.series]
        if figure is None:  # its training agreed
            return accepted, next((night_of(point) for point in points if point.run_id == accepted), None)
        if change is None or finding.level is None or not abs(change) >= (finding.detectable or inf):
            return accepted, None
        first = self._first_run(finding)
        began = next((point.began for point in points if point.run_id == first), "")
        level = cost_of(finding.level, figure) or 0.0
        half = excess_of(change, figure) / 2
        without = [
            (point.began, point.run_id, night_of(point))
            for point in points
            if is_evidence(point)
            and point.began < began
            and self.inputs.has_commit(point.subject)
            and (cost := cost_of(getattr(point, figure), figure)) is not None
            and cost - level < half
        ]
        _, run, night = max(without, default=("", accepted, None))
        return run, night

    def _first_run(self, finding: Finding) -> str:
        """Return the run that was found changed first: tonight's, or of the night that named the regression."""
        regression = self.inputs.named_regressions.get((finding.series, finding.figure)) if finding.figure else None
        return (regression and regression.first_finding.run_id) or finding.run_id or ""

    @cached_property
    def _accepted_runs(self) -> dict[TicketKey, str]:
        entries = examinations(self.inputs)
        return {(a.series, e.figure): e.baseline_run for a, e in entries if e.baseline_run}

    def _between(self, last: str, tonight: str, name: str) -> Ticket:
        """Return what differs between the builds of two runs. Raises LevelfieldError for a run that is not stored.

        name: of the first build, in messages.
        """
        if (last, tonight) not in self._tickets:
            before, after = (self.store.record(run_id).subject for run_id in (last, tonight))
            fields = self._packages(before, after, last, tonight)
            builds = ((before, name), (after, "tonight's build"))
            unknown_builds = [
                build for subject, build in builds if subject.commit is None or subject.is_dirty is not False
            ]
            if unknown_builds:
                fields["commits_unknown"] = f"{unknown_builds[0]} had files that no commit has"
            else:
                assert before.commit and after.commit
                fields |= {"since": before.commit, "tonight": after.commit}
                try:
                    log, fields["all_commits"] = commit_log(before.commit, after.commit, MAX_COMMITS)
                    fields["commits"] = tuple(TicketCommit(**entry._asdict()) for entry in log)
                except RunFailed as error:
                    fields["commits_unknown"] = str(error)
            self._tickets[last, tonight] = Ticket.model_validate(fields)
        return self._tickets[last, tonight]

    def _packages(self, before: Subject, after: Subject, accepted: str, tonight: str) -> dict[str, Any]:
        if before.packages == after.packages and before.packages is not None:
            return {}
        lists: list[dict[str, str]] = []
        try:
            for run_id in (accepted, tonight):
                content = mapping(strict_json(read_regular(find_run(self.runs, run_id).provenance, "provenance")))
                packages = content.get("environment_packages")
                if not isinstance(packages, dict):
                    raise ValueError(f"{run_id} listed no packages")
                lists.append({str(name): str(version) for name, version in packages.items()})
        except (LevelfieldError, OSError, ValueError) as error:
            return {"packages_unknown": f"a run's list cannot be read: {error}"}
        return {"packages": tuple(sorted(differences(*lists)))}

    def _ran_elsewhere(self, run_id: str) -> bool:
        """Return whether a launcher started the run on other machines: a bisection runs on this one."""
        try:
            plan = mapping(strict_json(read_regular(find_run(self.runs, run_id).plan, "plan")))
        except (LevelfieldError, OSError, ValueError):
            return False
        return plan.get("launch") is not None

    def _command(self, ticket: Ticket, series: Series, figure: GatedFigure | None) -> tuple[str, ...]:
        """Return the command that bisects the commits; empty where there are none between the builds."""
        if ticket.since is None or ticket.tonight is None or not ticket.all_commits or figure is None:
            return ()
        inputs = ("--case", series.target, "--scale", series.scale, "--figure", GATED_FIGURES[figure].option)
        how = ("--runtime", series.runtime) if series.runtime == "docker" else ()
        builds = (ticket.since[:12], ticket.tonight[:12])
        return (*PROGRAM, "nightly", "bisect", *builds, *inputs, *how, *self.extra_options)

    def _bisection(self, ticket: Ticket, finding: Finding) -> Bisection | None:
        """Return what a bisection found, of this or another series, tonight or in a night since the accepted build."""
        notes = [e.data for e in self.store.events() if e.kind == "note" and "bisection" in e.data]
        alike = [
            n
            for n in notes
            if (n.get("accepted"), n.get("figure")) == (ticket.accepted or ticket.since, finding.figure)
        ]
        for note in reversed(alike):
            is_own, is_now = note.get("series") == finding.series, note.get("tonight") == ticket.tonight
            try:
                bisection = Bisection.model_validate(note["bisection"])
            except ValueError:
                continue
            if (is_own and is_now) or (bisection.first_bad and (is_own or is_now)):
                return bisection
        return None


@dataclass
class NightBisection:
    """The searches of a night, the worst finding first, until the budget is used up."""

    tickets: NightTickets
    plans: Mapping[str, Plan]  # by series
    run_seconds: Mapping[str, float]  # by series
    plugins: Sequence[Path]
    budget: float  # in seconds
    clock: Callable[[], float]
    say: Say
    _ran: dict[tuple[str, str], dict[str, list[RunRecord]]] = field(default_factory=dict)  # by series and good build

    def run(self, findings: Iterable[Finding]) -> None:
        """Search the commits of each regression once, and store what was found."""
        until = self.clock() + self.budget
        for finding in findings:
            if finding.word != "regression" or finding.figure is None or finding.series not in self.plans:
                continue
            ticket = self.tickets.ticket(finding)
            if ticket.command and ticket.bisection is None and (ticket.all_commits or 0) > 1:
                bisection = self._search(finding, finding.figure, ticket, until)
                night = self.tickets.inputs.night
                data = {
                    "night": night, "series": finding.series, "figure": finding.figure,
                    "accepted": ticket.accepted or ticket.since,
                    "tonight": ticket.tonight, "bisection": bisection.model_dump(mode="json"),
                }  # fmt: skip
                note = {
                    "id": uuid.uuid4().hex, "kind": "note", "series": finding.series, "at": utc_now(), "data": data,
                    "who": "nightly", "why": f"night {night}, {FIGURE_NAMES[finding.figure]}: {bisection}",
                }  # fmt: skip
                self.tickets.store.add_event(StoreEvent.model_validate(note))

    def _search(self, finding: Finding, figure: GatedFigure, ticket: Ticket, until: float) -> Bisection:
        seconds = 2 * MIN_BISECTION_PAIRS * self.run_seconds.get(finding.series, 0.0)
        if (finding.series, ticket.since) not in self._ran and self.clock() + seconds > until:
            return Bisection(why_not="the budget holds no search; the command below makes it")
        assert ticket.since and ticket.tonight
        try:
            commits = commits_between(ticket.since, ticket.tonight)
            return self._bisect(finding, figure, commits, lambda: self.clock() + seconds <= until)
        except RunFailed as error:
            return Bisection(why_not=str(error))

    def _bisect(
        self, finding: Finding, figure: GatedFigure, commits: Sequence[str], has_budget: Callable[[], bool]
    ) -> Bisection:
        """Bisect the commits. The night's pairs have shown that the last one is bad, and how much."""
        plan, runs = self.plans[finding.series], self.tickets.runs
        comparison = BuildComparison(
            plan, checkout_build(commits[0], say=self.say), figure, runs, self.plugins, self.say
        )
        comparison.records = records = self._ran.setdefault((finding.series, commits[0]), {})
        comparison.effect = cost_of(1 + (finding.change or 0.0), figure) if finding.pairs else None
        trial_count = 0

        def judge_commit(commit: str) -> BuildVerdict:
            nonlocal trial_count
            if commit == commits[-1] and comparison.effect is not None:
                return "bad"
            if commit not in records and not has_budget():
                return "unknown"
            trial_count += 1
            self.say(f"bisection of {finding.label}: trying {commit[:12]}")
            return comparison.judge(checkout_build(commit, say=self.say))

        search = find_first_bad(commits, judge_commit)
        good, bad = commits[search.last_good], commits[search.first_bad]
        return Bisection(first_bad=bad, last_good=good, undecided=len(search.undecided), tried=trial_count)


def night_tickets(
    session: NightSession, report: GateReport, page_url: str | None, bisect_budget: float | None
) -> dict[TicketKey, Ticket]:
    """Return the tickets of a night that was judged. bisect_budget: seconds in which commits are bisected first."""
    request = session.request
    inputs = gate_input(session.store, request.night, session.suite)
    python = ("--python", request.request.python) if request.request.python else ()
    plugins = chain.from_iterable(("--plugins", str(folder)) for folder in request.plugins)
    tickets = NightTickets(session.store, inputs, request.runs, page_url, (*plugins, *python))
    if bisect_budget is not None:
        plans = {run.series: run.job.plan for run in session.night_runs}
        run_seconds = {entry.series: entry.seconds or 0.0 for entry in session.state.entries if entry.series}
        search = NightBisection(
            tickets, plans, run_seconds, request.plugins, bisect_budget, time.monotonic, session.output.say
        )
        search.run(report.findings)
    return tickets.tickets(report.findings)
