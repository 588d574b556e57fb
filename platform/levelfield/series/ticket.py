"""Tickets: what it takes to follow up a finding: commits and packages between two builds, a bisection, a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from levelfield.report.escapes import escape_markdown, one_line
from levelfield.report.words import wrapped
from levelfield.specs.base import Value
from levelfield.specs.record import GatedFigure
from levelfield.specs.short_names import clipped

MAX_COMMITS_SHOWN, MAX_PACKAGES_SHOWN = 5, 5  # in a terminal
MAX_SUBJECT_CHARACTERS = 120  # characters
TicketKey = tuple[str, GatedFigure | None]  # of a finding: its series and figure


class TicketCommit(Value):
    """A commit between two builds."""

    commit: str  # the whole digest
    author: str
    subject: str  # the first line of its message


class Bisection(Value):
    """What a bisection found, or why it found nothing. undecided: how many commits between good and bad it left open.

    It is stored, and pages show it, so it has digests alone: no author and no subject.
    """

    first_bad: str | None = None
    last_good: str | None = None
    undecided: int = 0
    tried: int = 0
    why_not: str | None = None

    def __str__(self) -> str:
        if self.first_bad is None:
            return f"bisection: {self.why_not}"
        between = f"; {self.undecided} undecided between them" if self.undecided else ""
        return f"first bad {self.first_bad[:12]}; last good {(self.last_good or '')[:12]}{between}"


class Ticket(Value):
    """What a person needs to look into a finding that the build may have caused."""

    accepted: str | None = None  # commit of the accepted build; null where it had changed files
    # commit of tonight's build, or of the night that named the regression; null where it had changed files
    tonight: str | None = None
    since: str | None = None  # the commit that `commits` follow: of the last night without the change, else `accepted`
    since_night: str | None = None  # that night; null where it is not known, so that `since` is the accepted build
    commits: tuple[TicketCommit, ...] = ()  # the newest first
    all_commits: int | None = None  # how many commits there are; `commits` may lack the oldest
    commits_unknown: str | None = None  # why the commits are not known
    packages: tuple[str, ...] = ()  # of both builds, such as `torch 2.12.0 -> 2.13.0`
    packages_unknown: str | None = None  # why the packages are not known
    command: tuple[str, ...] = ()  # the command line that bisects the commits
    bisection: Bisection | None = None  # the one that a night ran
    first_bad: TicketCommit | None = None  # the commit of `bisection` with its author and subject
    page: str | None = None  # a link

    @property
    def blamed(self) -> TicketCommit | None:
        """The commit that made the figure worse, where it is known: by the bisection, or as the only one."""
        if self.bisection and self.first_bad and not self.bisection.undecided:
            return self.first_bad
        return self.commits[0] if self.all_commits == 1 and not self.packages else None


def commit_text(commit: TicketCommit) -> str:
    """Return a commit in a line: its short digest, author and subject."""
    text = one_line(f"{commit.author}: {commit.subject}") if commit.author or commit.subject else ""
    return f"{commit.commit[:12]} {clipped(text, MAX_SUBJECT_CHARACTERS)}".strip()


def _summaries(ticket: Ticket) -> tuple[str, str, str]:
    """Return a line about the commits, one about the packages and one about the bisection, which may be empty."""
    if ticket.commits_unknown is not None or ticket.all_commits is None:
        commits = f"commits: not known: {ticket.commits_unknown}"
    else:
        count = ticket.all_commits
        since = f"since night {ticket.since_night}, the last without the change"
        if ticket.since_night is None:
            since = f"since the baseline build {(ticket.since or '')[:12]}"
        commits = f"{count or 'no'} commit{'s' * (count != 1)} {since}"
    shown, more = ticket.packages[:MAX_PACKAGES_SHOWN], len(ticket.packages) - MAX_PACKAGES_SHOWN
    packages = (", ".join(shown) or "no difference") + (f", {more} more" if more > 0 else "")
    if ticket.packages_unknown is not None:
        packages = f"not known: {ticket.packages_unknown}"
    search, first_bad = one_line(str(ticket.bisection)) if ticket.bisection else "", ticket.first_bad
    if first_bad:  # with its author and subject
        search = search.replace(first_bad.commit[:12], commit_text(first_bad), 1)
    return commits, f"packages: {packages}", search


def ticket_lines(ticket: Ticket, is_repeated: bool = False) -> Iterator[str]:
    """Yield lines of at most 80 columns for a terminal or a mail; only a link and a word of the command are longer.

    is_repeated: the builds are those of a finding above, so that their commits stand there.
    """
    commits, packages, search = _summaries(ticket)
    yield wrapped(f"  {one_line(commits)}{', as above' if is_repeated else ''}", 4)
    if not is_repeated:
        for commit in ticket.commits[:MAX_COMMITS_SHOWN]:
            yield wrapped(f"    {commit_text(commit)}", 6)
        if ticket.all_commits and ticket.all_commits > MAX_COMMITS_SHOWN:
            yield f"    {ticket.all_commits - MAX_COMMITS_SHOWN} more"
        yield wrapped(f"  {one_line(packages)}", 4)
    if search:
        yield wrapped(f"  {search}", 4)
    if ticket.page:
        yield f"  page: {one_line(ticket.page)}"


def ticket_markdown(ticket: Ticket) -> Iterator[str]:
    """Yield lines of Markdown: the same as in a terminal, with every commit that is known."""
    commits, packages, search = _summaries(ticket)
    yield f"- {_escaped(commits)}"
    yield from (f"  - {_escaped(commit_text(commit))}" for commit in ticket.commits)
    if ticket.all_commits and ticket.all_commits > len(ticket.commits):
        yield f"  - {ticket.all_commits - len(ticket.commits)} more"
    yield f"- {_escaped(packages)}"
    if search:
        yield f"- {_escaped(search)}"


def _escaped(text: str) -> str:
    """Return foreign text for a merge request, where `@name` would notify somebody and `#1` would link."""
    return escape_markdown(text).replace("#", "&#35;").replace("@", "&#64;")


Tickets = Mapping[TicketKey, Ticket]
