"""The code that a night runs: that of its first start, whatever becomes of the checkout meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from levelfield.checkout import checkout
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed, UsageError
from levelfield.run.builds import CommitBuild, checkout_build
from levelfield.run.provenance import source
from levelfield.specs.base import Value, json_digest
from levelfield.specs.plan import Plan
from levelfield.specs.record import night_options


class NightCode(Value):
    """The code of a checkout. Null: git could not tell."""

    commit: str | None
    is_dirty: bool | None  # whether files differ from the commit
    trainings: str  # the digest of the code that the night's trainings run, also of files that no commit has

    @property
    def has_commit(self) -> bool:
        """Whether a commit holds it, so that it can be had again."""
        return self.commit is not None and self.is_dirty is False

    def is_here(self) -> bool:
        """Return whether the checkout still has the commit, with no changed file. Without a commit nobody knows."""
        if not self.has_commit:
            return True
        git_facts = source(checkout())  # a git status that takes too long says nothing
        return git_facts.get("commit") == self.commit and not git_facts.get("changed_files")


class CheckoutMoved(Exception):
    """The checkout has other code than the night began with. build: a checkout of that code, to go on from."""

    def __init__(self, build: CommitBuild) -> None:
        super().__init__(f"the night goes on from {build.folder}")
        self.build = build


def code_here(plans: Iterable[Plan]) -> NightCode:
    """Return the code of this checkout, as these plans have it."""
    git_facts = source(checkout())
    changed, digests = git_facts.get("changed_files"), {plan.implementation.rests_on or "" for plan in plans}
    is_dirty = None if changed is None else bool(changed)
    return NightCode(commit=git_facts.get("commit"), is_dirty=is_dirty, trainings=json_digest(sorted(digests)))


def require_commit(code: NightCode | None, is_whole: bool, night: str, say: Say) -> None:
    """Return where this checkout has the commit of a night's first start, or nothing is known of it.

    Raises CheckoutMoved with a checkout of that commit; UsageError where there is none and entries wait.
    """
    if code is None or code.commit is None or code.is_here():
        return
    try:
        build = checkout_build(code.commit, say=say)
        if build.folder.resolve() == checkout().resolve():
            raise RunFailed(f"files of {build.folder} were changed: remove that folder")
    except RunFailed as error:
        if is_whole:
            return
        raise _refusal(night, f"commit {code.commit[:12]}", f"the checkout has other code now, and {error}") from None
    say(f"the checkout has other code now: the night goes on from its own of {build}, {build.folder}")
    raise CheckoutMoved(build)


def require_trainings(code: NightCode | None, now: NightCode, is_whole: bool, night: str) -> None:
    """Raise UsageError where a night began with files that no commit has, they differ now, and entries wait."""
    if code is None or code.has_commit or is_whole or code.trainings == now.trainings:
        return
    raise _refusal(night, "files that no commit has", "they have changed since")


def _refusal(night: str, began: str, reason: str) -> UsageError:
    return UsageError(
        f"night {night} began with {began}: {reason}. It does not go on with other code; bring that code back, or "
        f"begin another night: {night_options(night, '.b')}"
    )
