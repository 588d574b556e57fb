"""Short forms of names, digests and texts: those that users give, and those that tables and messages have."""

from __future__ import annotations

import hashlib
import re
import string

from levelfield.errors import UsageError

_UNSAFE = re.compile(r"[^a-z0-9]+")
_READABLE_CHARACTERS = 40  # of the name in a slug
_DIGEST_DIGITS = 10  # in a slug; their 40 bits are enough for a million names
_NAMESPACES = re.compile(r"\bat::native::|\(anonymous namespace\)::|\bat::|\bstd::|\bvoid ")  # of C++


def refuse_empty_name(kind: str, name: str) -> None:
    """Raises UsageError for a text that is a part of every name, or that names nothing: no text, blanks, `.`, `/`, `_`.

    A command would act on the only run or series that is there, which nobody named.
    """
    if not name.strip(string.punctuation + string.whitespace):
        raise UsageError(
            f"{kind} '{name}': found no letter and no digit, expected an id, a name or a part of one. If a variable of "
            "the shell holds it, check that the variable is set"
        )


def clipped(value: object, max_length: int) -> str:
    """Return the value as text of at most `max_length` characters, with `...` in place of an end that is left out."""
    text = str(value)
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def short_kernel(name: str, max_length: int = 60) -> str:
    """Return the name of a kernel without namespaces and without the end of its C++ types."""
    return clipped(_NAMESPACES.sub("", name.removeprefix("void ")), max_length)


def slug(name: str) -> str:
    """Return a file name for a name: lower case letters and digits of it, and a digest that keeps it unique."""
    readable = _UNSAFE.sub("-", name.lower())[:_READABLE_CHARACTERS].strip("-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{readable}-{digest}" if readable else digest


def short_digest(digest: str, digits: int = 10) -> str:
    """Return enough of a digest to tell one from another."""
    return digest.removeprefix("sha256:")[:digits]


def short_value(value: str) -> str:
    """Return a digest or a commit by its first 12 digits, and any other value as it is."""
    if len(value) == 40 and set(value) <= set("0123456789abcdef"):
        return value[:12]
    return value[: len("sha256:") + 12] if value.startswith("sha256:") else value
