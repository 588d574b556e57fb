"""JSON for readers. It imports no package, as the help of a command does."""

from __future__ import annotations

import json
from typing import Any


def json_text(content: Any) -> str:
    """Return JSON for readers: indented, letters of every language as they are, and null for a number that is none
    (NaN, infinity), which JSON cannot say."""
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
        return json.dumps(finite, indent=2, ensure_ascii=False)
