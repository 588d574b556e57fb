"""Data for the pages' scripts: JSON inside a script that a page of a file can load, and names of files.

A page that was opened from a file may not fetch. It may load a script. So each data file calls one function with a
text of JSON. A text is parsed and not executed: a key such as `__proto__` stays a key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

from pydantic_core import to_json

DIGITS = 10  # of a name's digest: 40 bits, enough for a million names
_UNSAFE = re.compile(r"[^a-z0-9]+")
_READABLE = 40


def slug(name: str) -> str:
    """Return a name of a file: readable, the same on systems that ignore capitals, and of no foreign character."""
    readable = _UNSAFE.sub("-", name.lower())[:_READABLE].strip("-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
    return f"{readable}-{digest}" if readable else digest


def data_script(name: str, value: Any) -> str:
    """Return the script that gives `value` to the pages under this name. NaN and infinity become null."""
    content = _json(value)
    quoted = content.replace("\\", "\\\\").replace("'", "\\'").replace("<", "\\u003c")
    return f"levelfield.data('{name}','{quoted}');\n"


def _json(value: Any) -> str:
    """Return JSON of ASCII alone, so that U+2028 is escaped, too."""
    try:
        content = to_json(value, inf_nan_mode="null").decode()  # in a fifth of the time of json's
    except ValueError:  # of half a pair of characters
        content = ""
    return content if content.isascii() and content else _escaped(value)


def _escaped(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
