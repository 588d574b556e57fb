"""Corpora on the host: check a whole corpus once, and prepare a corpus from text.

    facts = check("data/books")                          # raises CorpusError; instant the second time
    facts = prepare(["texts/"], "bytes", "data/books")

Both are imported at first use, because most commands need no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from levelfield.corpus.facts import CorpusFacts, Preparation

if TYPE_CHECKING:
    from levelfield.corpus.integrity import check
    from levelfield.corpus.preparation import prepare

__all__ = ["CorpusFacts", "Preparation", "check", "prepare"]


def __getattr__(name: str) -> Any:
    if name == "check":
        from levelfield.corpus.integrity import check

        return check
    if name == "prepare":
        from levelfield.corpus.preparation import prepare

        return prepare
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
