"""Data files: a script that gives back exactly what was written, whatever it holds, and harms nothing before."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
from hostile_texts import ALL
from hypothesis import given
from hypothesis import strategies as st
from levelfield.pages.site_files import data_script
from levelfield.specs.short_names import slug

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def read_back(script: str) -> object:
    """What the page gets: the text between the quotes as JavaScript reads it, then as JSON."""
    match = re.fullmatch(r"levelfield\.data\('name','(.*)'\);\n", script)
    assert match, script
    units = re.sub(r"\\(u[0-9a-f]{4}|.)", lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else m[1], match[1])
    return json.loads(units)


@given(JSON)
def test_a_page_reads_what_was_written(value: object) -> None:
    assert read_back(data_script("name", value)) == value


@pytest.mark.parametrize("text", ALL)
def test_no_text_leaves_its_place(text: str) -> None:
    script = data_script("name", {text: [text]})
    assert read_back(script) == {text: [text]}
    assert "<" not in script and script.isascii() and script.count("\n") == 1
    assert not re.search(r"(?<!\\)(\\\\)*'\)", script[:-4]), "a quote ends the text early"


def test_node_agrees(tmp_path: Path) -> None:
    """The same by JavaScript itself, where there is one."""
    node = Path("/usr/bin/node")
    if not node.exists():
        pytest.skip("this machine has no node")
    file = tmp_path / "data.js"
    file.write_text(
        "const levelfield={data:(n,t)=>console.log(t)};\n" + data_script("name", {"a": list(ALL), "__proto__": 1})
    )
    done = subprocess.run([node, file], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"a": list(ALL), "__proto__": 1}


def test_numbers_that_json_lacks_are_null() -> None:
    assert read_back(data_script("name", {"a": [math.nan, (1.5, -math.inf)], "b": 2})) == {
        "a": [None, [1.5, None]],
        "b": 2,
    }


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "CON", "\x00", "名前", "x" * 500, "", "\ud800", *ALL])
def test_a_file_name_has_no_foreign_character(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]{10,60}", slug(name))


def test_names_that_differ_in_capitals_alone_have_two_files() -> None:
    assert len({slug("gpt3_6.7B").lower(), slug("GPT3_6.7b").lower(), slug("gpt3-6.7b")}) == 3
