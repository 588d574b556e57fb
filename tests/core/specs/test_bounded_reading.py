"""Files that would crash a loader, fill the memory or take hours: each ends at once with its name and the bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.errors import DocumentError, UsageError
from levelfield.specs import bounded_reading
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.selector import parse_selector

NINE = ", ".join(["*a{}"] * 9)
ALIASES = "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [{NINE.format(*[n - 1] * 9)}]" for n in range(1, 12))])
READ = """
import sys
from pathlib import Path
from levelfield.specs.bounded_reading import read_mapping
read_mapping(Path(sys.argv[1]))
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("deep.yaml", "[" * 100_000, "found more than 100 nested levels"),
        ("deep.yaml", "{a: " * 50_000, "found more than 100 nested levels"),
        ("deep.yaml", "- " * 50_000 + "1", "found more than 100 nested levels"),
        ("deep.json", "[" * 100_000 + "]" * 100_000, "nested too deep"),
        ("aliases.yaml", ALIASES, "found more than 1,000,000 values"),
        ("key.yaml", "[1, 2]: 3", "found a list as a key, expected a text"),
        ("key.yaml", "{a: 1}: 3", "found a dict as a key, expected a text"),
        ("number.yaml", "a: " + "9" * 400, "found a number of 400 digits, expected at most 25"),
        ("number.json", '{"a": ' + "9" * 400 + "}", "found a number of 400 digits, expected at most 25"),
        ("number.json", '{"a": ' + "9" * 5000 + "}", "found a number of 5000 digits"),
        ("twice.json", '{"a": 1, "a": 2}', "found key 'a' twice"),
        ("twice.yaml", "a: 1\na: 2", "found key 'a' twice"),
    ],
    ids=lambda value: value[:12],
)
def test_a_hostile_file_is_an_error_with_its_name(tmp_path: Path, name: str, text: str, says: str) -> None:
    """In a process of its own, as a loader that is too deep ends the process."""
    path = written(tmp_path, name, text)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1, done.returncode
    last = done.stderr.splitlines()[-1]
    assert "DocumentError" in last and name in last and says in last


def test_a_file_beyond_the_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reading, "MOST_BYTES", 10)
    with pytest.raises(DocumentError, match="found 11 bytes, expected at most 10"):
        read_mapping(written(tmp_path, "large.yaml", "a: 12345678"))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 0x1f}", {"a": {"b": 1}, "c": {"b": 1, "d": 31}}),
        ("[" * 99 + "]" * 99, None),
        ("a: 18446744073709551615", {"a": 2**64 - 1}),
        ("a: -12_000", {"a": -12000}),
    ],
)
def test_honest_files_are_read_as_before(tmp_path: Path, text: str, content: object) -> None:
    found = read_mapping(written(tmp_path, "good.yaml", text))
    assert content is None or found == content


@pytest.mark.parametrize("counts", ["1:10000000000", "10000000000", "1:8:99999999", "1:8:" + "9" * 400])
def test_numbers_far_above_what_exists_are_refused(counts: str) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 1 to"):
        parse_selector(f"gpt3_6.7B:torch:H100:{counts}")
