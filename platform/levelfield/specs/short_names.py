"""Parts of names and ids, by which users name runs and series."""

from __future__ import annotations

import string

from levelfield.errors import UsageError


def refuse_any(kind: str, name: str) -> None:
    """Raises UsageError for a text that is a part of every name, or that names nothing: no text, blanks, `.`, `/`, `_`.

    A command would act on the only run or series that is there, which nobody named.
    """
    if not name.strip(string.punctuation + string.whitespace):
        raise UsageError(
            f"{kind} '{name}': found no letter and no digit, expected an id, a name or a part of one. If a variable of "
            "the shell holds it, check that the variable is set"
        )
