"""JSON for readers: what every --json prints."""

from __future__ import annotations

import json
import math

from levelfield.specs.readable_json import json_text


def test_letters_stay_and_what_is_no_number_is_null() -> None:
    content = {"名": ["é", math.nan, {"most": math.inf, "least": -math.inf}], "text": "NaN Infinity", "number": 1e-300}
    text = json_text(content)
    assert '"名"' in text and '"é"' in text

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(text, parse_constant=refuse)
    assert content == {"名": ["é", None, {"most": None, "least": None}], "text": "NaN Infinity", "number": 1e-300}


def test_finite_content_is_indented_by_two() -> None:
    assert json_text({"a": [1, 2.5]}).splitlines() == ["{", '  "a": [', "    1,", "    2.5", "  ]", "}"]
