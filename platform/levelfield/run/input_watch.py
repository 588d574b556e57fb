"""Checks that a run's documents, its corpus and its code are the planned ones, and that nothing changes them meanwhile.

A plan may wait: for its certificate's run, for the repeats before it, for a queue. Code that was changed meanwhile
would train under the digest of the code before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Outcome
from levelfield.corpus.facts import corpus_files
from levelfield.errors import CorpusError
from levelfield.node.code_digest import code_digest, shared_folders, source_files
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.node_records import read_last_fields
from levelfield.run.runtimes.process_runtime import imports_file
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import CorpusUsed, Plan
from levelfield.specs.short_names import short_value

FileState = tuple[int, int, int, int]  # inode, bytes, and the times of the last write and of the last change
_MAX_LISTED_FILES = 3  # in a warning


class InputWatch:
    """Detects changes of the documents that the platform gives to one run, from the start of its training.

    The result is computed from them. What was overwritten is written again, so that nothing measured is lost.
    """

    def __init__(self, paths: RunPaths) -> None:
        """Raises OSError."""
        inputs = (paths.plan, paths.reference, paths.certificate, paths.preflight, paths.job, paths.request)
        self._contents_at_start = {
            path: read_regular(path, "input") for path in (*inputs, paths.provenance) if path.exists()
        }

    def revise_outcome(self, outcome: Outcome) -> Outcome:
        """Write changed documents again, and return the outcome with their names. Raises OSError."""
        changed_paths = []
        for path, content in self._contents_at_start.items():
            with suppress(OSError):
                if read_regular(path, "input") == content:
                    continue
            changed_paths.append(path)
        for path in changed_paths:
            write_atomically(path, self._contents_at_start[path].decode())
        if not changed_paths:
            return outcome
        names = ", ".join(path.name for path in changed_paths)
        evidence = (
            f"{names}: found other content than at the start; the first is there again. Let nothing else write there"
        )
        if outcome.cause == "exited":
            return replace(outcome, cause="inputs-changed", evidence=evidence)
        return replace(outcome, warnings=(*outcome.warnings, evidence))


class CorpusWatch:
    """Detects changes of one run's corpus, from before its first process. Raises CorpusError for another corpus.

    A file that is unchanged costs a look at its size, times and inode. One that was touched is read again in full, and
    its digest decides.
    """

    def __init__(self, corpus: CorpusUsed) -> None:
        self._corpus = corpus
        self._states_at_start = self._file_states()
        if self._states_at_start:
            self._check_digest(reread=False)

    def revise_outcome(self, outcome: Outcome, say: Callable[[str], None]) -> Outcome:
        """Return the outcome; it is a failure where the corpus of a training that ended well was overwritten."""
        if outcome.cause != "exited" or not self._states_at_start:
            return outcome
        try:
            if self._file_states() != self._states_at_start:
                say(f"{self._corpus.prefix}: its files were written to during the run; checking their content again")
                self._check_digest(reread=True)
        except CorpusError as error:
            return replace(outcome, cause="corpus", evidence=f"during the run: {error}")
        return outcome

    def _file_states(self) -> list[FileState]:
        """Return what changes when a file is written to or replaced; nothing for a synthetic corpus."""
        kind, prefix = self._corpus.kind, self._corpus.prefix
        if kind == "synthetic" or prefix is None:
            return []
        try:
            statuses = [path.stat() for path in corpus_files(kind, Path(prefix))]
        except OSError as error:
            raise CorpusError(f"{error.filename}: cannot be read: {error.strerror}") from None
        return [(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in statuses]

    def _check_digest(self, reread: bool) -> None:
        from levelfield.corpus.integrity import check_corpus

        prefix, kind = str(self._corpus.prefix), self._corpus.kind
        facts = check_corpus(prefix, None if kind == "synthetic" else kind, reread=reread)
        if facts.digest != self._corpus.digest:
            raise CorpusError(
                f"{prefix}: was overwritten after it was checked: found digest {facts.digest[:19]}, expected "
                f"{self._corpus.digest[:19]}. Run again while nothing writes to it"
            )


class CodeWatch:
    """Detects changes of one run's code. On other machines each node's agent digests it, and this reads the digests."""

    def __init__(self, plan: Plan, paths: RunPaths) -> None:
        self._plan, self._paths = plan, paths
        self._is_local = plan.launch is None and plan.implementation.rests_on is not None
        self._states_at_start = self._file_states() if self._is_local else {}
        self._digest_at_start = self._digest() if self._is_local else None

    def refusal(self) -> Outcome | None:
        """Return the outcome of a run whose code was changed since it was planned; None where it may train."""
        planned_digest = self._plan.implementation.rests_on
        if self._digest_at_start in (None, planned_digest):
            return None
        evidence = (
            f"{self._plan.implementation.folder}, a folder that it uses, or the worker has changed since the plan was "
            f"made: found {short_value(str(self._digest_at_start))}, planned {short_value(str(planned_digest))}. Run "
            "the command again"
        )
        return Outcome("code-changed", (), evidence)

    def revise_outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the digests of the code at the run's start and end."""
        if not self._is_local:
            nodes = range(self._plan.hardware.nodes if self._plan.launch else 0)
            # a lost node has no last record, and its run is not valid anyway
            digests = {
                f"at the end of node {node}": (read_last_fields(self._paths.root, node) or {}).get("code")
                for node in nodes
            }
            return replace(outcome, code={key: digest for key, digest in digests.items() if isinstance(digest, str)})
        code_digests = {"at its start": str(self._digest_at_start), "at its end": self._digest()}
        if code_digests["at its end"] != self._digest_at_start:
            states_before, states_now = self._states_at_start, self._file_states()
            changed_files = [
                str(path)
                for path in sorted({*states_before, *states_now})
                if states_before.get(path) != states_now.get(path)
            ]
            more = (
                f" and {len(changed_files) - _MAX_LISTED_FILES} more" if len(changed_files) > _MAX_LISTED_FILES else ""
            )
            files = ", ".join(changed_files[:_MAX_LISTED_FILES]) or "a part of the platform"
            warning = (
                f"the code changed during the run: {files}{more}. What a training writes belongs outside its folder"
            )
            outcome = replace(outcome, warnings=(*outcome.warnings, warning))
        if outcome.cause != "exited":
            return replace(outcome, code=code_digests, uncovered_imports=None)
        # the files that ranks imported and that the digest of the code does not cover, with their digests
        folders = [Path(self._plan.implementation.folder)]
        with suppress(OSError):
            folders += shared_folders(folders[0])
        covered_prefixes = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders)
        uncovered_imports: dict[str, str] = {}
        for rank in range(self._plan.world_size):
            try:
                report = json.loads(read_regular(imports_file(self._paths, rank), "imports"))["files"]
                imported = {str(file["path"]): str(file["sha256"]) for file in report}
            except (OSError, ValueError, LookupError, TypeError):
                imported = {f"rank {rank}": "it did not say what it imported"}
            uncovered_imports |= {
                path: digest for path, digest in imported.items() if not path.startswith(covered_prefixes)
            }
        return replace(outcome, code=code_digests, uncovered_imports=uncovered_imports)

    def _file_states(self) -> dict[Path, tuple[int, int]]:
        """Return size and time of each file that the digest of the code covers, without files that just disappear."""
        states: dict[Path, tuple[int, int]] = {}
        implementation = Path(self._plan.implementation.folder)
        with suppress(OSError):
            for folder in (implementation, *shared_folders(implementation)):
                for path in source_files(folder):
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        states[path] = (status.st_size, status.st_mtime_ns)
        return states

    def _digest(self) -> str:
        try:
            return code_digest(Path(self._plan.implementation.folder))
        except OSError as error:
            return f"unreadable: {error.filename}: {error.strerror}"
