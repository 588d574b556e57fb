"""Checks that the corpus of a run is the planned one at its start, and that nothing overwrites it until the end.

A file that is unchanged costs a look at its size, times and number. One that was touched is read again in full, and
its digest decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Outcome
from levelfield.corpus.facts import paths_of
from levelfield.errors import CorpusError
from levelfield.specs.plan import CorpusUsed

Mark = tuple[int, int, int, int]


class CorpusWatch:
    """The corpus of one run, from before its first process. Raises CorpusError when it is not the planned one."""

    def __init__(self, corpus: CorpusUsed) -> None:
        self._corpus = corpus
        self._marks = self._marked()
        if self._marks:
            self._check(again=False)

    def judged(self, outcome: Outcome, say: Callable[[str], None]) -> Outcome:
        """Return the outcome. A training that ended well on a corpus that was overwritten meanwhile has another."""
        if outcome.cause != "exited" or not self._marks:
            return outcome
        try:
            if self._marked() != self._marks:
                say(f"{self._corpus.prefix}: its files were written to during the run; checking their content again")
                self._check(again=True)
        except CorpusError as error:
            return replace(outcome, cause="corpus", evidence=f"during the run: {error}")
        return outcome

    def _marked(self) -> list[Mark]:
        """Return what changes when a file is written to or replaced; nothing for a synthetic corpus."""
        kind, prefix = self._corpus.kind, self._corpus.prefix
        if kind == "synthetic" or prefix is None:
            return []
        return [_mark(path) for path in paths_of(kind, Path(prefix))]

    def _check(self, again: bool) -> None:
        from levelfield.corpus.integrity import check

        prefix, kind = str(self._corpus.prefix), self._corpus.kind
        facts = check(prefix, None if kind == "synthetic" else kind, again=again)
        if facts.digest != self._corpus.digest:
            raise CorpusError(
                f"{prefix}: was overwritten after it was checked: found digest {facts.digest[:19]}, expected "
                f"{self._corpus.digest[:19]}. Run again while nothing writes to it"
            )


def _mark(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
