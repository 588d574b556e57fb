"""The code that a night runs: that of its first start, also where the checkout changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from levelfield.checkout import checkout
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed, UsageError
from levelfield.run.builds import CommitBuild, checkout_build
from levelfield.run.provenance import source_state
from levelfield.specs.base import Value, json_digest
from levelfield.specs.plan import Plan
from levelfield.specs.record import night_options


class NightCode(Value):
    """The code of a checkout. Null: git could not tell."""

    commit: str | None
    is_dirty: bool | None  # files differ from the commit
    trainings: str  # digest of the code that the night's trainings run, also of files that no commit has

    @property
    def has_commit(self) -> bool:
        """Whether a commit holds this code, so that it can be checked out again."""
        return self.commit is not None and self.is_dirty is False

    def is_checked_out(self) -> bool:
        """Return whether the checkout still has the commit, with no changed file; True if no commit holds the code."""
        if not self.has_commit:
            return True
        git_facts = source_state(checkout())  # a git status that takes too long says nothing
        return git_facts.get("commit") == self.commit and not git_facts.get("changed_files")


class CheckoutMoved(Exception):
    """The checkout has other code than the night began with.

    build: a checkout of the night's code, from which it goes on.
    """

    def __init__(self, build: CommitBuild) -> None:
        super().__init__(f"the night goes on from {build.folder}")
        self.build = build


def checkout_code(plans: Iterable[Plan]) -> NightCode:
    """Return the code of this checkout, with that of the plans' trainings."""
    git_facts = source_state(checkout())
    changed, digests = git_facts.get("changed_files"), {plan.implementation.rests_on or "" for plan in plans}
    is_dirty = None if changed is None else bool(changed)
    return NightCode(commit=git_facts.get("commit"), is_dirty=is_dirty, trainings=json_digest(sorted(digests)))


def require_commit(code: NightCode | None, is_complete: bool, night: str, say: Say) -> None:
    """Raise CheckoutMoved, with a checkout of the right commit, where this checkout has another one than the night.

    Raises UsageError where there is no such checkout and entries wait. is_complete: no entry waits.
    """
    if code is None or code.commit is None or code.is_checked_out():
        return
    try:
        build = checkout_build(code.commit, say=say)
        if build.folder.resolve() == checkout().resolve():
            raise RunFailed(f"files of {build.folder} were changed: remove that folder")
    except RunFailed as error:
        if is_complete:
            return
        raise _refusal(night, f"commit {code.commit[:12]}", f"the checkout has other code now, and {error}") from None
    say(f"the checkout has other code now: the night goes on from its own of {build}, {build.folder}")
    raise CheckoutMoved(build)


def require_trainings(code: NightCode | None, present_code: NightCode, is_complete: bool, night: str) -> None:
    """Raise UsageError where a night began with files that no commit has, they differ now, and entries wait."""
    if code is None or code.has_commit or is_complete or code.trainings == present_code.trainings:
        return
    raise _refusal(night, "files that no commit has", "they have changed since")


def _refusal(night: str, first_code: str, reason: str) -> UsageError:
    return UsageError(
        f"night {night} began with {first_code}: {reason}. It does not go on with other code; bring that code back, or "
        f"begin another night: {night_options(night, '.b')}"
    )
