"""The full check of a corpus: every index entry and every token, once. The facts are then stored."""

from __future__ import annotations

from pathlib import Path

from levelfield.corpus.entries import check_entries
from levelfield.corpus.facts import SUFFIXES, CorpusFacts, Kind, Progress, mark, paths_of, recall, remember
from levelfield.corpus.scan import scan
from levelfield.errors import CorpusError
from levelfield.worker.corpora import open_corpus
from levelfield.worker.faults import CorpusError as WorkerCorpusError


def check(
    prefix: str | Path, kind: Kind | None = None, progress: Progress | None = None, again: bool = False
) -> CorpusFacts:
    """Return the facts of the corpus at `prefix`. It is read in full, unless its files' sizes and times are unchanged.

    kind: by default that of the files present. again: read it in full in any case. Raises CorpusError with the
    file, what was found, what was expected and where.
    """
    place = Path(prefix).absolute()
    kind = kind or detect(place)
    marks = mark(kind, place)
    known = recall(kind, place)
    if known and known.marks == marks and not again:
        return known.facts
    facts = _read_all(kind, place, progress or _silent)
    if mark(kind, place) != marks:
        raise CorpusError(f"{place}: its files changed while they were checked; start again when they are complete")
    if known and known.facts.digest == facts.digest:
        facts = facts.model_copy(update={"prepared": known.facts.prepared})
    remember(facts, marks)
    return facts


def detect(prefix: Path) -> Kind:
    """Return the kind of the files at `prefix`. Raises CorpusError for no kind, both kinds, and half a pair."""
    found = {kind: [path.name for path in paths_of(kind, prefix) if path.exists()] for kind in SUFFIXES}
    pairs = {kind: " and ".join(path.name for path in paths_of(kind, prefix)) for kind in SUFFIXES}
    present = [kind for kind, names in found.items() if names]
    if not present:
        hint = "; give the prefix without the suffix" if prefix.is_file() else ""
        raise CorpusError(f"{prefix}: found no corpus, expected {', or '.join(pairs.values())}{hint}")
    if len(present) > 1:
        names = ", ".join(name for each in found.values() for name in each)
        raise CorpusError(f"{prefix}: found files of two kinds ({names}), expected one kind; move the other files away")
    kind = present[0]
    if len(found[kind]) == 1:
        raise CorpusError(f"{prefix}: found only {found[kind][0]}, expected both {pairs[kind]}")
    return kind


def _read_all(kind: Kind, prefix: Path, progress: Progress) -> CorpusFacts:
    try:
        corpus = open_corpus(kind, str(prefix))
        check_entries(kind, paths_of(kind, prefix)[1], len(corpus.tokens))
        found = scan(paths_of(kind, prefix), corpus.tokens.dtype, len(corpus.tokens), progress)
    except WorkerCorpusError as error:
        raise CorpusError(str(error)) from None
    except OSError as error:
        raise CorpusError(f"{prefix}: cannot be read: {error.strerror or error}") from None
    return CorpusFacts(
        kind=kind,
        prefix=str(prefix),
        tokens=len(corpus.tokens),
        documents=corpus.documents,
        dtype=corpus.tokens.dtype.name,
        digest=found.digest,
        max_token=found.max_token,
    )


def _silent(done_bytes: int, total_bytes: int) -> None:
    pass
